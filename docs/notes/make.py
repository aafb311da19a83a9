"""Runs the lines of docs/notes/items and writes docs/notes.md: every item with its lines, and what came out.

    python docs/notes/make.py             runs the items whose lines changed since their last run
    python docs/notes/make.py --all       runs all of them (make notes)
    python docs/notes/make.py N16 N33     runs these

An item starts with `# %% ID`, then its claim as a comment, then its lines; commands are comments that start with `$`. The
imports at the top of the file run before it. "trains" after the ID means that it takes more than a few seconds. What came out
is kept in results.json, with a digest of the lines, so that no result can belong to other lines.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE, RESULTS = HERE.parent / "notes.md", HERE / "results.json"
HEAD = re.compile(r"^# %% (N\d+)( trains)?$", re.MULTILINE)
MOST_LINES = 40
"""Longer outputs are cut."""


@dataclass(frozen=True)
class Item:
    """One item: its topic, its claim, the imports of its file, and its lines."""

    id: str
    trains: bool
    topic: str
    claim: str
    imports: str
    lines: str

    @property
    def digest(self) -> str:
        return hashlib.sha256((self.imports + self.lines).encode()).hexdigest()[:12]

    @property
    def commands(self) -> list[str]:
        return re.findall(r"^# \$ (.*)$", self.lines, re.MULTILINE)

    @property
    def code(self) -> str:
        return re.sub(r"^# \$ .*\n?", "", self.lines, flags=re.MULTILINE).strip()


def read_items() -> list[Item]:
    """Reads all items, in the order of their numbers."""
    found = []
    for file in sorted((HERE / "items").glob("*.py")):
        imports, *parts = HEAD.split(file.read_text("utf-8"))
        topic, _, imports = imports.partition("\n")
        for number, trains, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            lines = text.strip("\n").split("\n")
            size = next(at for at, line in enumerate(lines) if not line.startswith("# ") or line.startswith("# $ "))
            claim = " ".join(line.removeprefix("# ") for line in lines[:size])
            found.append(
                Item(number, bool(trains), topic.removeprefix("# "), claim, imports, "\n".join(lines[size:]).strip("\n"))
            )
    return found


# --- running -----------------------------------------------------------------------------------------------------------------


def run(item: Item, pictures: Path = HERE) -> dict[str, object]:
    """Runs an item in the current folder. Returns its result; pictures that it drew are moved to a folder."""
    import torch

    torch.manual_seed(7)
    printed, began, before = io.StringIO(), time.monotonic(), set(Path.cwd().iterdir())
    namespace: dict[str, object] = {}
    with contextlib.redirect_stdout(printed):
        exec(compile(f"{item.imports}\n{item.code}", item.id, "exec"), namespace)
        for command in item.commands:
            _command(command)
    drawn = sorted(path.name for path in set(Path.cwd().iterdir()) - before if path.suffix in (".png", ".svg"))
    for name in drawn:
        shutil.move(name, pictures / name)
    output = printed.getvalue().rstrip().split("\n")
    if len(output) > MOST_LINES:
        output = [*output[:MOST_LINES], f"… ({len(output) - MOST_LINES} more lines)"]
    return {
        "digest": item.digest,
        "output": "\n".join(map(tidy, output)),
        "pictures": drawn,
        "seconds": round(time.monotonic() - began, 1),
    }


def tidy(line: str) -> str:
    """Rounds numbers of more than four digits after the point."""
    return re.sub(r"-?\d+\.\d{5,}(e[-+]\d+)?", lambda number: f"{float(number[0]):.4g}", line).rstrip()


def _command(command: str) -> None:
    from regard.cli.main import main

    arguments, sys.argv = sys.argv, shlex.split(command)
    try:
        main()
    except SystemExit as done:
        if done.code not in (0, None):
            raise RuntimeError(f"{command}: {done.code}") from None
    finally:
        sys.argv = arguments


# --- the page ----------------------------------------------------------------------------------------------------------------

TOP = """# The lecture notes, reproduced

Every figure, table, formula and claim of five lecture notes on attention, {number} in all, each with the lines that reproduce
it and what came out. `make notes` runs all of them and writes this page; `tests/unit/test_notes.py` runs the quick ones and
compares. Each item starts anew after these imports, with `torch.manual_seed(7)`; numbers are rounded.

```py
import numpy as np
import torch

import regard
```

The files that items read, such as `reverse.tsv`, are made by [docs/notes/data.py](notes/data.py), and so are the models that
they load: `french` (an LSTM with Luong's dot product) and `french-transformer` translate small sentences, `words` pronounces,
`squares/model` reads pictures. Models here are small and trained for seconds, to show an effect and not to be good; items that
train print what came out of one run on one machine. For measurements with intervals and seeds, see
[comparing mechanisms](compare.md).
"""


def render(items: list[Item], results: dict[str, dict[str, object]]) -> str:
    """Returns the page."""
    parts, topic = [TOP.format(number=len(items))], ""
    for item in items:
        if item.topic != topic:
            topic = item.topic
            parts.append(f"## {topic}\n")
        parts.append(f"### {item.id}\n\n{item.claim}\n")
        if item.code:
            parts.append(f"```py\n{item.code}\n```\n")
        if item.commands:
            parts.append("```text\n" + "\n".join(f"$ {command}" for command in item.commands) + "\n```\n")
        result = results.get(item.id)
        if result is None:
            parts.append("Not run yet.\n")
            continue
        if result["output"]:
            parts.append(f"```text\n{result['output']}\n```\n")
        for name in result["pictures"]:  # type: ignore[attr-defined]
            parts.append(f"![{item.id}](notes/{name})\n")
    return "\n".join(parts)


def load_results() -> dict[str, dict[str, object]]:
    """Returns what came out so far."""
    return json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}


def main(arguments: list[str]) -> None:
    items, results = read_items(), load_results()
    if arguments and arguments[0] != "--all":
        chosen = [item for item in items if item.id in arguments]
    else:
        chosen = [item for item in items if arguments or results.get(item.id, {}).get("digest") != item.digest]
    sys.path.insert(0, str(HERE))
    import data

    folder = Path(os.environ.get("NOTES_WORK") or tempfile.mkdtemp(prefix="regard-notes-"))
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    data.write()
    failed = []
    for item in chosen:
        try:
            data.train_models(item.lines)
            found = run(item)
            print(item.id, found["seconds"], "s", file=sys.stderr, flush=True)
        except Exception:
            failed.append(item.id)
            traceback.print_exc(limit=-3)
            continue
        results = {**load_results(), item.id: found}
        ordered = {one.id: results[one.id] for one in items if one.id in results}
        RESULTS.write_text(json.dumps(ordered, ensure_ascii=False, indent=1) + "\n", "utf-8")
    PAGE.write_text(render(items, load_results()), "utf-8")
    if failed:
        raise SystemExit(f"failed: {' '.join(failed)}")


if __name__ == "__main__":
    main(sys.argv[1:])
