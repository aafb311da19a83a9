"""The lines that `regard translate` reads: of files, or of standard input as they arrive."""

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import UserError

if TYPE_CHECKING:
    from regard.contracts import SourceText
    from regard.data.reader import Reader

READ_AHEAD = 4096
"""How many lines of a pipe are held until they are translated."""


class Lines:
    """The sources in some lines. Iterating yields them, and None where a pipe pauses.

    unanswered: the sources that were read and have no result yet.  num_normalised: how many lines Unicode NFC changed.
    error: what is wrong with the first line that cannot be read; the input ends before it.
    """

    def __init__(self, reader: "Reader", lines: Iterator[str | None]) -> None:
        self.reader, self.lines = reader, lines
        self.unanswered: deque[SourceText] = deque()
        self.num_normalised = 0
        self.error: UserError | None = None

    def __iter__(self) -> "Iterator[SourceText | None]":
        try:
            for line in self.lines:
                if line is None:
                    yield None
                    continue
                source = self.reader.line(line)
                self.num_normalised += self.reader.normalised(source) != source
                self.unanswered.append(source)
                yield source
        except UserError as error:
            self.error = error


def lines_of(files: Sequence[Path]) -> Iterator[tuple[Path | None, Iterator[str | None]]]:
    """Yields the lines of each file, with the folder that paths in them are relative to; or those of standard input, where None
    stands for a pause."""
    from regard.data.lines import decode_lines, raw_lines, read_lines

    for file in files:
        yield file.parent, read_lines(file)
    if files:
        return
    if sys.stdin is None:
        raise UserError("there is no standard input; name a file of texts, e.g. regard translate model texts.txt")
    if sys.stdin.isatty():
        print("regard: reading standard input: type a text and press Enter; press Ctrl-D to end", file=sys.stderr)
    lines = decode_lines(raw_lines(sys.stdin.buffer.readline, "standard input"), "standard input")
    yield None, as_they_come(lines) if is_pipe() else lines


def is_pipe() -> bool:
    """Whether standard input is a pipe or a keyboard, whose lines arrive at their own pace, and not a file."""
    import os
    import stat

    return sys.stdin is not None and not stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode)


def as_they_come(lines: Iterator[str]) -> Iterator[str | None]:
    """Yields the lines of a pipe, and None whenever no further line has arrived yet.

    A thread reads during the translation, so a slow pipe is answered line by line and a fast one in full batches. It starts
    with the first line; worker processes must be forked before.
    """
    from queue import Empty, Queue
    from threading import Thread

    arrived: Queue[str | BaseException | None] = Queue(maxsize=READ_AHEAD)

    def read() -> None:
        try:
            for line in lines:
                arrived.put(line)
        except BaseException as error:
            arrived.put(error)
        else:
            arrived.put(None)

    Thread(target=read, daemon=True).start()
    while True:
        try:
            item = arrived.get_nowait()
        except Empty:
            yield None
            item = arrived.get()
        if item is None:
            return
        if isinstance(item, BaseException):
            raise item
        yield item
