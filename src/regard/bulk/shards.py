"""Translates shards: each input file becomes one output file, which is written under another name and then renamed.

So an output is complete or absent. Whatever is killed, the same command goes on: it skips the shards that have an output. The
file .regard.json of the output folder says which model and which options wrote it; others are refused.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from regard.bulk.formats import Row, format_of_shard
from regard.checkpoint.files import clean, discard, replace_file, sync_folder, writing
from regard.checkpoint.folder import weights_digest
from regard.contracts import SourceText
from regard.decoding.workers import Workers
from regard.errors import UserError, plural
from regard.pipeline.translator import Translator
from regard.results import Refused

MANIFEST = ".regard.json"
UNFINISHED = ".unfinished"
"""The folder of the output folder in which outputs are written, before they are renamed. Each attempt has a name of its own:
when the driver of a Ray cluster is killed, its actors may write for some seconds together with those of the next run."""
OTHER = {"model": "another model", "options": "other options", "columns": "other columns"}
"""What outputs depend on apart from the inputs, as error messages name it."""


@dataclass(frozen=True)
class Shard:
    """An input file and its output file."""

    source: Path
    output: Path


@dataclass(frozen=True)
class Done:
    """A shard that was translated: how many rows it has, and how many have no translation; the first reason."""

    name: str
    rows: int
    refused: int
    reason: str = ""


def find_shards(given: Sequence[Path], out: Path) -> list[Shard]:
    """Returns the files that were given, and those in given folders, sorted. Raises UserError if two have one name."""
    files = [file for path in given for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    files = [file for file in files if file.is_file() and not file.name.startswith(".")]
    if not files:
        raise UserError(f"{' '.join(map(str, given))}: found no files to translate")
    names = [file.name for file in files]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"two files are called {twice}, but each output has the name of its input; rename one")
    if any(file.resolve().parent == out.resolve() for file in files):
        raise UserError(f"--out {out} is the folder of the input; choose another one, so that no input is replaced")
    return [Shard(file, out / file.name) for file in files]


def prepare(out: Path, signature: Mapping[str, Any]) -> None:
    """Creates the output folder, and records what its files are made with. Raises UserError if that was something else."""
    manifest = out / MANIFEST
    with writing(out, "choose another folder with --out"):
        out.mkdir(parents=True, exist_ok=True)
    discard(out / UNFINISHED)
    clean(out)
    if not manifest.exists():
        if any(path for path in out.iterdir() if not path.name.startswith(".")):
            raise UserError(f"{out} holds other files; choose an empty folder, or a new one, with --out")
        replace_file(manifest, json.dumps(signature, indent=1, sort_keys=True).encode())
        return
    try:
        before = json.loads(manifest.read_text("utf-8"))
    except ValueError:
        raise UserError(f"{manifest} is damaged; choose another folder with --out") from None
    same = json.loads(json.dumps(signature))
    if before != same:
        differing = [key for key in OTHER if before.get(key) != same.get(key)]
        raise UserError(
            f"{out} holds translations that were made with {' and '.join(OTHER[key] for key in differing)}; "
            "repeat the command that made them, or choose another folder with --out"
        )


def translate_shard(
    translator: Translator,
    shard: Shard,
    search: Mapping[str, Any],
    columns: Sequence[str] = (),
    workers: Workers | None = None,
    progress: Callable[[int], None] = lambda rows: None,
) -> Done:
    """Translates a file. columns: its source columns. progress: called with the number of rows that are written."""
    form, system = format_of_shard(shard.source), translator.at(shard.source.parent)
    waiting: deque[Row] = deque()

    def sources() -> Iterator[SourceText]:
        for row in form.rows(shard.source, system.reader, columns):
            waiting.append(row)
            yield row.source

    rows = refused = 0
    reason = ""
    fresh = shard.output.parent / UNFINISHED / f"{secrets.token_hex(4)}-{shard.output.name}"
    with writing(shard.output), removed(fresh):
        fresh.parent.mkdir(exist_ok=True)
        with form.writer(fresh) as put:
            for outcome in system.translate(sources(), workers=workers, **search):
                put(waiting.popleft(), outcome)
                rows += 1
                if isinstance(outcome, Refused):
                    refused += 1
                    reason = reason or f"{shard.source.name}:{rows}: {outcome.reason}"
                progress(rows)
        with open(fresh, "rb") as file:
            os.fsync(file.fileno())
        fresh.replace(shard.output)
        sync_folder(shard.output.parent)
    return Done(shard.source.name, rows, refused, reason)


def num_broken_off(shard: Shard) -> int:
    """Returns how many attempts at a shard were broken off since `prepare`, and left a file."""
    attempt = re.compile(rf"[0-9a-f]{{8}}-{re.escape(shard.output.name)}")
    unfinished = shard.output.parent / UNFINISHED
    return sum(bool(attempt.fullmatch(path.name)) for path in unfinished.iterdir()) if unfinished.is_dir() else 0


def translate_shards(
    translator: Translator,
    shards: Iterable[Shard],
    search: Mapping[str, Any],
    columns: Sequence[str] = (),
    progress: Callable[[str, int], None] = lambda name, rows: None,
) -> Iterator[Done]:
    """Translates files one after the other, with all cores."""
    workers = translator.workers()
    try:
        for shard in shards:
            yield translate_shard(translator, shard, search, columns, workers, partial(progress, shard.source.name))
    finally:
        if workers is not None:
            workers.close()


@contextmanager
def removed(path: Path) -> Iterator[None]:
    """Removes a file at the end, unless it was renamed."""
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def signature_of(translator: Translator, search: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """Returns what the outputs depend on apart from the inputs."""
    return {"model": weights_digest(translator.model), "options": dict(search), "columns": list(columns)}


def summary(done: Sequence[Done], skipped: int) -> str:
    """Returns a sentence on what was translated."""
    if not done:
        return f"all {plural(skipped, 'shard')} had been translated before"
    text = f"{plural(sum(one.rows for one in done), 'row')} in {plural(len(done), 'shard')} translated"
    return text + (f"; {plural(skipped, 'shard was', 'shards were')} finished before" if skipped else "")
