"""regard translate model in.txt"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import (
    Beam,
    Device,
    LengthPenalty,
    MaxLength,
    MaxSource,
    Model,
    Score,
    Threads,
    check_search,
    describe_unknown,
    open_model,
    strip_source,
)
from regard.data.labels import visible
from regard.errors import UserError, plural

if TYPE_CHECKING:
    from regard.pipeline import Refused, Translator
    from regard.results import Result

CHUNK_LINES = 1024


def groups(lines: Iterator[str], size: int, trim: Callable[[str], str] = str.strip) -> Iterator[list[str]]:
    """Yields lists of up to `size` lines, stripped as the sides of a pair are in training. When a line cannot be read, yields
    the lines before it, then raises UserError."""
    group: list[str] = []
    try:
        for line in lines:
            group.append(trim(line))
            if len(group) == size:
                yield group
                group = []
    except UserError:
        yield group
        raise
    yield group


def as_they_come(lines: Iterator[str], size: int, trim: Callable[[str], str] = str.strip) -> Iterator[list[str]]:
    """Like `groups`, for a pipe: yields the lines that arrived while the last list was translated, and at least one.

    A thread reads during the translation, so a slow pipe is answered line by line and a fast one in full chunks.
    """
    from queue import Empty, Queue
    from threading import Thread

    arrived: Queue[str | BaseException | None] = Queue(maxsize=4 * size)

    def read() -> None:
        try:
            for line in lines:
                arrived.put(trim(line))
        except BaseException as error:
            arrived.put(error)
        else:
            arrived.put(None)

    Thread(target=read, daemon=True).start()
    while True:
        group: list[str] = []
        item = arrived.get()
        while isinstance(item, str):
            group.append(item)
            if len(group) == size:
                break
            try:
                item = arrived.get_nowait()
            except Empty:
                break
        yield group
        if item is None:
            return
        if isinstance(item, BaseException):
            raise item


def one_line(text: str) -> str:
    """Replaces line breaks by spaces, so that there is one output line per input line."""
    return text.replace("\r", " ").replace("\n", " ")


def moses(number: int, result: "Result") -> str:
    """Formats n-best outputs as Moses does: number of the line, output, log probability, score that ranked it."""
    return "\n".join(
        f"{number} ||| {one_line(output.text)} ||| log_prob= {output.log_prob:.6f} ||| {output.rank_score:.6f}"
        for output in result.n_best
    )


def aligned(result: "Result") -> str:
    """Formats the output and its alignment, in the order of the target, as Marian does. An empty line stays empty."""
    if not result.tokens:
        return ""
    return f"{one_line(result.text)} ||| {' '.join(f'{source}-{target}' for source, target in result.alignment())}"


def as_json(number: int, source: str, result: "Result", *, align: bool) -> str:
    import json

    record = {
        "line": number + 1,
        "source": source,
        "text": result.text,
        "source_tokens": result.source_tokens,
        "tokens": result.tokens,
        "token_log_probs": result.n_best[0].token_log_probs,
        "log_prob": result.log_prob,
        "rank_score": result.rank_score,
        "finished": result.finished,
        "unknown": result.unknown,
        "n_best": [
            {
                "text": output.text,
                "tokens": output.tokens,
                "token_log_probs": output.token_log_probs,
                "log_prob": output.log_prob,
                "rank_score": output.rank_score,
                "finished": output.finished,
            }
            for output in result.n_best
        ],
    }
    if align:
        record["alignment"] = result.alignment()
    return json.dumps(record, ensure_ascii=False)


def refused_as_json(number: int, source: str, reason: str) -> str:
    import json

    return json.dumps({"line": number + 1, "source": source, "text": "", "error": reason}, ensure_ascii=False)


def format_result(number: int, source: str, result: "Result | Refused", *, json: bool, align: bool, lists: bool) -> str | None:
    """Formats the result of a line. lists: as an n-best list, which has no entry for a refused line: returns None."""
    from regard.pipeline import Refused

    if isinstance(result, Refused):
        return refused_as_json(number, source, result.reason) if json else None if lists else ""
    if json:
        return as_json(number, source, result, align=align)
    if align:
        return aligned(result)
    return moses(number, result) if lists else one_line(result.text)


def translate(
    model: Model,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="Files with one text per line; may be compressed (.gz). Default: standard input."),
    ] = None,
    beam: Beam = 1,
    n_best: Annotated[int, typer.Option(help="Number of outputs per line, in Moses' n-best format (or with --json).")] = 1,
    length_penalty: LengthPenalty = "0.6",
    min_length: Annotated[int, typer.Option(help="Do not end an output before this many tokens.")] = 0,
    max_length: MaxLength = 256,
    max_ratio: Annotated[
        float | None, typer.Option(help="Stop an output after this many tokens per source token, plus 10.", show_default=False)
    ] = None,
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
        bool, typer.Option("--align", help="Append ||| and the alignment, such as 0-0 1-2 (source token-target token, from 0).")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line, with all details.")] = False,
    max_source: MaxSource = 1024,
    score: Score = None,
    device: Device = "auto",
    threads: Threads = None,
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
    for file in files or ():
        if not file.exists():
            raise UserError(f"{file}: no such file")  # before torch is imported, so that a mistyped name is reported at once
    translator = open_model(model, score, device, threads, max_source)
    from functools import partial

    from regard.data.tokenizers.codec import Codec
    from regard.inspection.align import cut_differently
    from regard.pipeline import Refused

    lists = n_best > 1 and not json
    diagnostics = Diagnostics(
        max_length, of_text=isinstance(translator.source, Codec), refused_are="skipped" if lists else "left empty"
    )

    trim = partial(strip_source, translator)
    number = 0
    for reader, lines in inputs(translator, files or ()):
        if stream:
            number = stream_lines(reader, lines, search, diagnostics, trim, number)
            continue
        for group in groups(lines, CHUNK_LINES, trim) if files else chunks(lines, trim):
            diagnostics.num_normalised += sum(reader.source.normalised(text) != text for text in group)
            for text, result in zip(group, reader.translate(group, first=number, **search), strict=True):
                line = format_result(number, text, result, json=json, align=align, lists=lists)
                if line is not None:
                    print(line)
                diagnostics.add(number, result)
                if align and diagnostics.of_text and not diagnostics.cut and not isinstance(result, Refused):
                    diagnostics.cut = cut_differently(reader, [(text, result.text)])
                number += 1
            sys.stdout.flush()
            diagnostics.progress(number)
    diagnostics.print()


def inputs(translator: "Translator", files: Sequence[Path]) -> "Iterator[tuple[Translator, Iterator[str]]]":
    """Yields a translator and the lines for each file, or for standard input. Paths of pictures and sounds are relative to the
    file's folder."""
    from dataclasses import replace

    from regard.data.lines import decode_lines, raw_lines, read_lines

    for file in files:
        yield replace(translator, source=translator.source.at(file.parent)), read_lines(file)
    if files:
        return
    if sys.stdin is None:
        raise UserError("there is no standard input; name a file of texts, e.g. regard translate model texts.txt")
    if sys.stdin.isatty():
        print("regard: reading standard input: type a text and press Enter; press Ctrl-D to end", file=sys.stderr)
    yield translator, decode_lines(raw_lines(sys.stdin.buffer.readline, "standard input"), "standard input")


def chunks(lines: Iterator[str], trim: Callable[[str], str]) -> Iterator[list[str]]:
    """Groups the lines of standard input: always in the same way if it is a file, as they arrive from a pipe or a keyboard."""
    import os
    import stat

    whole = stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode)
    return groups(lines, CHUNK_LINES, trim) if whole else as_they_come(lines, CHUNK_LINES, trim)


def stream_lines(
    translator: "Translator",
    lines: Iterator[str],
    search: dict[str, object],
    diagnostics: "Diagnostics",
    trim: Callable[[str], str],
    number: int,
) -> int:
    """Prints each output while it is generated. number: the number of the first line. Returns the number of the next line."""
    for line in lines:
        num_printed = 0
        diagnostics.num_normalised += translator.source.normalised(line) != line
        try:
            for part in translator.stream(trim(line), **search):
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

    of_text: whether sources are texts, not files. refused_are: what happens to lines that cannot be translated. cut: a text
    whose tokens are not words, for --align.
    """

    def __init__(self, max_length: int, *, of_text: bool = True, refused_are: str = "left empty") -> None:
        self.max_length, self.of_text, self.refused_are = max_length, of_text, refused_are
        self.unknown: Counter[str] = Counter()
        self.num_stopped = self.num_split = self.num_refused = self.num_normalised = 0
        self.cut = ""

    def add(self, number: int, result: "Result | Refused") -> None:
        from regard.pipeline import Refused

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
        if sys.stderr.isatty() and not sys.stdout.isatty():
            print(f"\r{plural(number, 'line')}", end="", file=sys.stderr, flush=True)

    def print(self) -> None:
        if sys.stderr.isatty() and not sys.stdout.isatty():
            print(file=sys.stderr)
        if self.cut:
            print(f"regard: the numbers of --align count tokens, not words: {self.cut}", file=sys.stderr)
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
            which = "lines that were too long to translate" if self.of_text else "lines whose file could not be read"
            raise UserError(f"{which} and were {self.refused_are}: {self.num_refused:,}")
