"""regard translate model in/ --out out/: files into files."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import UserError, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from regard.bulk.shards import Done
    from regard.pipeline.translator import Translator


def check_bulk(files: list[Path] | None, *, stream: bool, json: bool, align: bool, n_best: int) -> None:
    """Raises UserError if there are no files, or if an option is about what is printed."""
    if not files:
        raise UserError("--out writes a file for each input file, but none is given; name files or a folder of them")
    printed = {"--stream": stream, "--json": json, "--align": align, "--n-best": n_best > 1}
    if given := [option for option, is_given in printed.items() if is_given]:
        raise UserError(f"{given[0]} is about what is printed, and --out writes files; leave one of them out")


def translate_files(
    files: list[Path],
    out: Path,
    load: "Callable[[], Translator]",
    search: dict[str, Any],
    columns: tuple[str, ...],
    ray: str | None,
    threads: int | None,
) -> None:
    """Translates each file into one of the same name in the folder `out`; on a Ray cluster, if one is given."""
    from regard.bulk import shards as bulk
    from regard.bulk.on_ray import translate_on_ray
    from regard.checkpoint.files import discard
    from regard.checkpoint.lock import locked

    shards, translator = bulk.find_shards(files, out), load()
    with locked(out):
        bulk.prepare(out, bulk.signature_of(translator, search, columns))
        left = [shard for shard in shards if not shard.output.exists()]
        progress = BulkProgress(len(left))
        if not left:
            done: Iterator[Done] = iter(())
        elif ray:
            done = translate_on_ray(ray, load, left, search, columns, threads or 1)
        else:
            done = bulk.translate_shards(translator, left, search, columns, progress.show)
        finished = []
        for one in done:
            finished.append(one)
            progress.add(one)
        discard(out / bulk.UNFINISHED)
    print(f"regard: {bulk.summary(finished, len(shards) - len(left))}; written to {out}", file=sys.stderr)
    if refused := sum(one.refused for one in finished):
        first = next(one.reason for one in finished if one.refused)
        raise UserError(f"rows that could not be translated and have no translation: {refused:,}; the first: {first}")


class BulkProgress:
    """Shows on a terminal how far a bulk translation is."""

    def __init__(self, total: int) -> None:
        self.total, self.rows, self.shards, self.shown_at = total, 0, 0, 0.0

    def add(self, done: "Done") -> None:
        self.rows, self.shards = self.rows + done.rows, self.shards + 1
        self.show("", 0)

    def show(self, name: str, rows: int) -> None:
        """Shows the number of rows. name, rows: the shard that is being translated, and how many of its rows are."""
        from time import monotonic

        if sys.stderr.isatty() and monotonic() - self.shown_at > 0.1:
            self.shown_at = monotonic()
            line = f"{self.shards} of {plural(self.total, 'shard')}, {plural(self.rows + rows, 'row')}  {name}"
            print(f"\r{line:<78}", end="", file=sys.stderr, flush=True)
