"""regard translate model in.txt"""

import sys
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.bulk import check_bulk, translate_files
from regard.cli.lines import Lines, is_pipe, lines_of
from regard.cli.options import (
    Beam,
    Device,
    EngineOption,
    From,
    LengthPenalty,
    MaxLength,
    MaxRatio,
    MaxSource,
    Model,
    Pieces,
    Score,
    Threads,
    With,
    check_engine,
    check_search,
    describe_unknown,
    open_model,
    split_columns,
)
from regard.data.labels import visible
from regard.errors import UserError, plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from regard.contracts import SourceText
    from regard.decoding.workers import Workers
    from regard.pipeline import Translator
    from regard.results import Refused, Result

    Links = tuple[tuple[int, int], ...]

ALIGNED_TOGETHER = 256
"""How many results --align runs through the model at a time, if as many lines have been read."""


def one_line(text: str) -> str:
    """Replaces line breaks by spaces, so that there is one output line per input line."""
    return text.replace("\r", " ").replace("\n", " ")


def moses(number: int, result: "Result") -> str:
    """Formats n-best outputs as Moses does: number of the line, output, log probability, score that ranked it."""
    return "\n".join(
        f"{number} ||| {one_line(output.text)} ||| log_prob= {output.log_prob:.6f} ||| {output.rank_score:.6f}"
        for output in result.n_best
    )


def aligned(result: "Result", links: "Links") -> str:
    """Formats the output and its alignment in Pharaoh format. An empty line stays empty."""
    from regard.links import pharaoh

    return f"{one_line(result.text)} ||| {pharaoh(links)}" if result.tokens else ""


def as_json(number: int, source: "SourceText", result: "Result", links: "Links | None") -> str:
    import json

    from regard.data.source_text import as_line

    plain = result.as_dict()
    record = {
        "line": number + 1,
        "source": as_line(source),
        **{name: plain[name] for name in ("text", "source_tokens", "tokens")},
        "token_log_probs": plain["n_best"][0]["token_log_probs"],
        **{name: plain[name] for name in ("log_prob", "rank_score", "finished", "unknown")},
        "n_best": [{name: value for name, value in output.items() if name != "ids"} for output in plain["n_best"]],
    }
    if links is not None:
        record["alignment"] = links
    return json.dumps(record, ensure_ascii=False)


def refused_as_json(number: int, source: "SourceText", reason: str) -> str:
    import json

    from regard.data.source_text import as_line

    return json.dumps({"line": number + 1, "source": as_line(source), "text": "", "error": reason}, ensure_ascii=False)


@dataclass(frozen=True)
class Style:
    """How results are printed: as JSON, with alignments (and what these count), as n-best lists."""

    json: bool = False
    align: bool = False
    pieces: bool | None = None
    lists: bool = False


def format_result(
    number: int, source: "SourceText", result: "Result | Refused", style: Style, links: "Links | None" = None
) -> str | None:
    """Formats the result of a line. Returns None for a refused line in n-best lists, which have no entry for it.

    links: its alignment, if that is printed.
    """
    from regard.results import Refused

    if isinstance(result, Refused):
        return refused_as_json(number, source, result.reason) if style.json else None if style.lists else ""
    if style.json:
        return as_json(number, source, result, links)
    if links is not None:
        return aligned(result, links)
    return moses(number, result) if style.lists else one_line(result.text)


def translate(
    model: Model,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE",
            help="Files with one text per line; may be compressed (.gz, .zst). With --out, also folders, .jsonl and .parquet. "
            "Default: standard input.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write a file for each input file instead of printing. The same command goes on after a kill.",
            show_default=False,
        ),
    ] = None,
    from_: From = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="With --out: translate on a Ray cluster; local: one on this machine.", show_default=False
        ),
    ] = None,
    with_: With = None,
    beam: Beam = 1,
    n_best: Annotated[int, typer.Option(help="Number of outputs per line, in Moses' n-best format (or with --json).")] = 1,
    length_penalty: LengthPenalty = "0.6",
    min_length: Annotated[int, typer.Option(help="Do not end an output before this many tokens.")] = 0,
    max_length: MaxLength = 256,
    max_ratio: MaxRatio = None,
    no_repeat: Annotated[
        int, typer.Option(metavar="N", help="Never write the same N tokens in a row twice in an output; 0: no limit.")
    ] = 0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1, make tokens that the output already contains less probable; 1: no change.")
    ] = 1.0,
    ban: Annotated[list[str] | None, typer.Option(help="Word that no output may contain. Can be repeated.")] = None,
    prefix: Annotated[str, typer.Option(help="Text that every output starts with.", show_default=False)] = "",
    sample: Annotated[
        bool, typer.Option("--sample", help="Sample outputs at random instead of searching for the best.")
    ] = False,
    temperature: Annotated[float, typer.Option(help="With --sample: below 1 more conservative, above 1 more varied.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="With --sample: draw from this many most probable tokens; 0: from all.")] = 0,
    top_p: Annotated[
        float, typer.Option(help="With --sample: draw from the smallest set of tokens with this total probability.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="With --sample: seed of the random numbers.")] = 0,
    stream: Annotated[bool, typer.Option("--stream", help="Print each word as soon as it can no longer change.")] = False,
    align: Annotated[
        bool, typer.Option("--align", help="Append ||| and the alignment, such as 0-0 1-2 (source word-target word, from 0).")
    ] = False,
    pieces: Pieces = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line, with all details.")] = False,
    max_source: MaxSource = 1024,
    score: Score = None,
    device: Device = "auto",
    threads: Threads = None,
    engine: EngineOption = "auto",
) -> None:
    """Translate files, or standard input, line by line. An empty line stays empty.

    If the model was trained on several source columns, separate them by TABs, as in its table: lemma<TAB>V;PST.

    For pictures and sounds, each line is a path, relative to the folder of the file that lists it.
    """
    given = {
        "beam": beam,
        "n_best": n_best,
        "length_penalty": length_penalty,
        "min_length": min_length,
        "max_length": max_length,
        "max_ratio": max_ratio,
        "no_repeat": no_repeat,
        "repetition_penalty": repetition_penalty,
        "sample": sample,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        **({"banned": ban} if ban else {}),
        **({"prefix": prefix} if prefix else {}),
    }
    search = check_search(given)
    if stream and (json or align or n_best > 1):
        raise UserError("--stream prints text while it is generated; it cannot be combined with --json, --align or --n-best")
    if align and n_best > 1 and not json:
        raise UserError("--align is for the best output only; add --json to print several outputs and the alignment")
    if pieces is not None and not align:
        raise UserError("--pieces and --words say what --align counts; add --align")
    for file in files or ():
        if not file.exists():
            raise UserError(f"{file}: no such file")  # before torch is imported, so that a mistyped name is reported at once
    load = partial(open_model, model, score, device, threads, max_source, others=with_, engine=check_engine(engine))
    if out is not None:
        check_bulk(files, stream=stream, json=json, align=align, n_best=n_best)
        translate_files(files or [], out, load, search, split_columns(from_), ray, threads)
        return
    if from_ or ray:
        raise UserError(f"{'--from' if from_ else '--ray'} is for files that are translated into a folder; add --out FOLDER")
    translator = load()

    style = Style(json=json, align=align, pieces=pieces, lists=n_best > 1 and not json)
    diagnostics = Diagnostics(max_length, refused_are="skipped" if style.lists else "left empty")
    workers = None if stream else translator.workers()
    if workers is not None and not files and is_pipe():
        workers.start()  # before the thread that reads the pipe
    try:
        number = 0
        for folder, lines in lines_of(files or ()):
            system = translator if folder is None else translator.at(folder)
            sources = Lines(system.reader, lines)
            if stream:
                number = stream_lines(system, sources, search, diagnostics, number)
            else:
                number = translate_lines(system, sources, search, diagnostics, number, workers, style)
            diagnostics.num_normalised += sources.num_normalised
            if sources.error is not None:
                raise sources.error
    finally:
        if workers is not None:
            workers.close()
    diagnostics.print()


def translate_lines(
    translator: "Translator",
    sources: Lines,
    search: dict[str, Any],
    diagnostics: "Diagnostics",
    number: int,
    workers: "Workers | None",
    style: Style,
) -> int:
    """Prints the results of lines. number: the number of the first line. Returns the number of the next line."""
    results = translator.translate(sources, first=number, workers=workers, **search)
    for result, links in (
        with_links(translator, results, sources, style.pieces) if style.align else ((result, None) for result in results)
    ):
        source = sources.unanswered.popleft()
        line = format_result(number, source, result, style, links)
        if line is not None:
            print(line, flush=True)
        diagnostics.add(number, result)
        number += 1
        diagnostics.progress(number)
    return number


def with_links(
    translator: "Translator", results: "Iterable[Result | Refused]", sources: Lines, pieces: bool | None
) -> "Iterator[tuple[Result | Refused, Links]]":
    """Yields each result with its alignment. Many are aligned together, but none waits for a line that was not read yet.

    pieces: what alignments count.
    """
    from regard.results import Result

    waiting: list[Result | Refused] = []

    def aligned_together() -> "Iterator[tuple[Result | Refused, Links]]":
        links = iter(translator.alignments((one for one in waiting if isinstance(one, Result)), pieces=pieces))
        ready = [(result, next(links) if isinstance(result, Result) else ()) for result in waiting]
        waiting.clear()
        yield from ready

    for result in results:
        waiting.append(result)
        if len(waiting) in (ALIGNED_TOGETHER, len(sources.unanswered)):
            yield from aligned_together()
    yield from aligned_together()


def stream_lines(
    translator: "Translator", sources: Lines, search: dict[str, Any], diagnostics: "Diagnostics", number: int
) -> int:
    """Prints each output while it is generated. number: the number of the first line. Returns the number of the next line."""
    for source in sources:
        if source is None:
            continue
        num_printed = 0
        try:
            for part in translator.stream(source, **search):
                text = one_line(part.text)
                print(text[num_printed:], end="", flush=True)
                num_printed = max(num_printed, len(text))
                if part.result:
                    diagnostics.add(number, part.result)
        except UserError as error:
            diagnostics.refuse(number, str(error))
        print(flush=True)
        number += 1
    return number


class Diagnostics:
    """The messages on standard error, during the translation and at its end.

    refused_are: what happens to lines that cannot be translated.
    """

    def __init__(self, max_length: int, *, refused_are: str = "left empty") -> None:
        self.max_length, self.refused_are = max_length, refused_are
        self.unknown: Counter[str] = Counter()
        self.num_stopped = self.num_split = self.num_refused = self.num_normalised = 0
        self.shown_at = 0.0

    def add(self, number: int, result: "Result | Refused") -> None:
        from regard.results import Refused

        if isinstance(result, Refused):
            sys.stdout.flush()  # so that a message follows the line that it is about
            self.refuse(number, result.reason)
            return
        self.unknown.update(result.unknown)
        self.num_stopped += not result.finished
        self.num_split += len(result.parts) > 1

    def refuse(self, number: int, reason: str) -> None:
        self.num_refused += 1
        print(f"regard: line {number + 1} is {self.refused_are}: {reason}", file=sys.stderr)

    def progress(self, number: int) -> None:
        """Shows the number of lines, some times a second, if the output goes elsewhere."""
        from time import monotonic

        if monotonic() - self.shown_at > 0.1 and sys.stderr.isatty() and not sys.stdout.isatty():
            self.shown_at = monotonic()
            print(f"\r{plural(number, 'line')}", end="", file=sys.stderr, flush=True)

    def print(self) -> None:
        if sys.stderr.isatty() and not sys.stdout.isatty():
            print(file=sys.stderr)
        if self.unknown:
            most = visible(symbol for symbol, _ in self.unknown.most_common(10))
            print(f"regard: {describe_unknown(self.unknown.total())}: {most}", file=sys.stderr)
        if self.num_normalised:
            print(f"regard: {plural(self.num_normalised, 'line')} normalised to Unicode NFC", file=sys.stderr)
        if self.num_split:
            print(
                f"regard: lines that were too long and were translated sentence by sentence: {self.num_split:,}",
                file=sys.stderr,
            )
        if self.num_stopped:
            print(
                f"regard: outputs that did not end and were stopped at {plural(self.max_length, 'token')} (--max-length): "
                f"{self.num_stopped:,}",
                file=sys.stderr,
            )
        if self.num_refused:
            raise UserError(f"lines that could not be translated and were {self.refused_are}: {self.num_refused:,}")
