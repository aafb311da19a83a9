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
    never_seen,
    open_model,
    trimmed,
)
from regard.data.labels import visible
from regard.errors import UserError, plural

if TYPE_CHECKING:
    from regard.contracts import Result
    from regard.pipeline import Refused, Translator

CHUNK_LINES = 1024


def groups(lines: Iterator[str], size: int, trim: Callable[[str], str] = str.strip) -> Iterator[list[str]]:
    """Lines by the handful, stripped as the sides of a pair are in training. A bad line ends it, after those before it."""
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
    """The same from a pipe: whatever has arrived while the last handful was translated, and at least one line.

    Reading goes on beside the translation, so a slow pipe is answered line by line and a fast one in full chunks.
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
        news = arrived.get()
        while isinstance(news, str):
            group.append(news)
            if len(group) == size:
                break
            try:
                news = arrived.get_nowait()
            except Empty:
                break
        yield group
        if news is None:
            return
        if isinstance(news, BaseException):
            raise news


def one_line(text: str) -> str:
    """A line for a line, whatever a model writes."""
    return text.replace("\r", " ").replace("\n", " ")


def moses(number: int, result: "Result") -> str:
    """Moses' n-best format: number of the line, output, what it consists of, what it was sorted by."""
    return "\n".join(
        f"{number} ||| {one_line(one.text)} ||| log_prob= {one.log_prob:.6f} ||| {one.rank_score:.6f}" for one in result.n_best
    )


def aligned(result: "Result") -> str:
    """The output and its alignment, in the order of the target, as Marian writes them. An empty line stays empty."""
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
                "text": one.text,
                "tokens": one.tokens,
                "token_log_probs": one.token_log_probs,
                "log_prob": one.log_prob,
                "rank_score": one.rank_score,
                "finished": one.finished,
            }
            for one in result.n_best
        ],
    }
    if align:
        record["alignment"] = result.alignment()
    return json.dumps(record, ensure_ascii=False)


def refused_as_json(number: int, source: str, reason: str) -> str:
    import json

    return json.dumps({"line": number + 1, "source": source, "text": "", "error": reason}, ensure_ascii=False)


def written(number: int, source: str, result: "Result | Refused", *, json: bool, align: bool, lists: bool) -> str | None:
    """What is printed for a line; None: nothing, as Moses' lists lack the number of one that is refused."""
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
        typer.Argument(metavar="FILE", help="Texts, a line for each; may be .gz. Standard input if not given."),
    ] = None,
    beam: Beam = 1,
    n_best: Annotated[int, typer.Option(help="So many outputs of each line, in Moses' format (or with --json).")] = 1,
    length_penalty: LengthPenalty = "0.6",
    min_length: Annotated[int, typer.Option(help="No output ends before this many tokens.")] = 0,
    max_length: MaxLength = 256,
    max_ratio: Annotated[
        float | None, typer.Option(help="Stop an output after this many tokens per source token, plus 10.", show_default=False)
    ] = None,
    no_repeat: Annotated[int, typer.Option(metavar="N", help="No N tokens in a row come twice in an output.")] = 0,
    repetition_penalty: Annotated[float, typer.Option(help="Makes tokens that came before dearer; 1 does not.")] = 1.0,
    ban: Annotated[list[str] | None, typer.Option(help="A word that no output contains; may be repeated.")] = None,
    prefix: Annotated[str, typer.Option(help="What every output begins with.", show_default=False)] = "",
    sample: Annotated[bool, typer.Option("--sample", help="Draw outputs instead of taking the best.")] = False,
    temperature: Annotated[float, typer.Option(help="For --sample: below 1 more careful, above 1 more daring.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="For --sample: only from so many tokens; 0 from all.")] = 0,
    top_p: Annotated[float, typer.Option(help="For --sample: only from the fewest tokens with this probability.")] = 1.0,
    seed: Annotated[int, typer.Option(help="For --sample: another seed, other samples.")] = 0,
    stream: Annotated[bool, typer.Option("--stream", help="Print each word as soon as it is certain.")] = False,
    align: Annotated[
        bool, typer.Option("--align", help="Append ||| and the alignment, such as 0-0 1-2 (source-target tokens, from 0).")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object per line, with everything.")] = False,
    max_source: MaxSource = 1024,
    score: Score = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Translate files, or standard input, line by line. An empty line stays empty.

    A model that learnt from several columns takes them as they stand in its table, with TABs: lemma<TAB>V;PST.

    For pictures and sounds, a line names a file, relative to the folder of the file that lists it.
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
        raise UserError("--stream prints text while it is written; it does not go with --json, --align or --n-best")
    if align and n_best > 1 and not json:
        raise UserError("--align is for the best output; say --json to get several and their alignment")
    for file in files or ():
        if not file.exists():
            raise UserError(f"{file}: no such file")  # before torch is imported: a mistyped name is answered at once
    translator = open_model(model, score, device, threads, max_source)
    from functools import partial

    from regard.data.tokenizers.codec import Codec
    from regard.inspection.align import cut_differently
    from regard.pipeline import Refused

    lists = n_best > 1 and not json
    report = Report(max_length, of_text=isinstance(translator.source, Codec), left="left out" if lists else "left empty")

    trim = partial(trimmed, translator)
    number = 0
    for reader, lines in inputs(translator, files or ()):
        if stream:
            number = stream_lines(reader, lines, search, report, trim, number)
            continue
        for group in groups(lines, CHUNK_LINES, trim) if files else chunks(lines, trim):
            report.num_normalised += sum(reader.source.normalised(text) != text for text in group)
            for text, result in zip(group, reader.translate(group, first=number, **search), strict=True):
                line = written(number, text, result, json=json, align=align, lists=lists)
                if line is not None:
                    print(line)
                report.add(number, result)
                if align and report.of_text and not report.cut and not isinstance(result, Refused):
                    report.cut = cut_differently(reader, [(text, result.text)])
                number += 1
            sys.stdout.flush()
            report.progress(number)
    report.print()


def inputs(translator: "Translator", files: Sequence[Path]) -> "Iterator[tuple[Translator, Iterator[str]]]":
    """The lines of each file, and who reads them: names of pictures and sounds are relative to the folder of that file."""
    from dataclasses import replace

    from regard.data.files import decode_lines, raw_lines, read_lines

    for file in files:
        yield replace(translator, source=translator.source.at(file.parent)), read_lines(file)
    if files:
        return
    if sys.stdin is None:
        raise UserError("there is no standard input; name a file of texts, e.g. regard translate model texts.txt")
    if sys.stdin.isatty():
        print("regard: reading standard input: type a text and press Enter; Ctrl-D ends", file=sys.stderr)
    yield translator, decode_lines(raw_lines(sys.stdin.buffer.readline, "standard input"), "standard input")


def chunks(lines: Iterator[str], trim: Callable[[str], str]) -> Iterator[list[str]]:
    """From a file always the same chunks, from a pipe or a keyboard what has come."""
    import os
    import stat

    whole = stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode)
    return groups(lines, CHUNK_LINES, trim) if whole else as_they_come(lines, CHUNK_LINES, trim)


def stream_lines(
    translator: "Translator",
    lines: Iterator[str],
    search: dict[str, object],
    report: "Report",
    trim: Callable[[str], str],
    number: int,
) -> int:
    """Prints each output while it is written. number: of the first line; gives that of the next."""
    for line in lines:
        num_printed = 0
        report.num_normalised += translator.source.normalised(line) != line
        try:
            for part in translator.stream(trim(line), **search):
                text = one_line(part.text)
                print(text[num_printed:], end="", flush=True)
                num_printed = max(num_printed, len(text))
                if part.result:
                    report.add(number, part.result)
        except UserError as error:
            report.refuse(number, str(error))
        print(flush=True)
        number += 1
    return number


class Report:
    """What is said on standard error, at the end and while it lasts."""

    def __init__(self, max_length: int, *, of_text: bool = True, left: str = "left empty") -> None:
        self.max_length, self.of_text, self.left = max_length, of_text, left
        self.unknown: Counter[str] = Counter()
        self.num_stopped = self.num_split = self.num_refused = self.num_normalised = 0
        self.cut = ""

    def add(self, number: int, result: "Result | Refused") -> None:
        from regard.pipeline import Refused

        if isinstance(result, Refused):
            sys.stdout.flush()  # what is said of a line comes behind it
            self.refuse(number, result.reason)
            return
        self.unknown.update(result.unknown)
        self.num_stopped += not result.finished
        self.num_split += len(result.parts) > 1

    def refuse(self, number: int, reason: str) -> None:
        self.num_refused += 1
        print(f"regard: line {number + 1} is {self.left}: {reason}", file=sys.stderr)

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
            print(f"regard: {never_seen(self.unknown.total())}: {most}", file=sys.stderr)
        if self.num_normalised:
            print(f"regard: normalised to Unicode's NFC: {plural(self.num_normalised, 'line')}", file=sys.stderr)
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
            why = "too long to translate" if self.of_text else "names of files that could not be read"
            raise UserError(f"lines that were {why} and were {self.left}: {self.num_refused:,}")
