"""Files to translate: texts, HTML and subtitles; and translated files that wait for their download, in memory."""

from __future__ import annotations

import html
import re
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from urllib.parse import quote

from regard.serving.limits import MEGABYTE, Limits
from regard.serving.parameters import File, printable
from regard.serving.refusal import Refusal

ENDINGS = (".txt", ".html", ".srt")
"""The files that can be translated, by the end of their name; .htm is like .html."""

Texts = Callable[[Sequence[str]], Awaitable[list[str]]]
"""Translates texts, or pieces of HTML."""

_CUE = re.compile(
    r"(?P<head>[ \t]*\d+[ \t]*(?P<break>\r?\n)[^\n]*-->[^\n]*(?:\n|$))(?P<text>(?:(?!\r?\n[ \t]*(?:\n|\r|\Z))[\s\S])*)"
)
_NOT_IN_NAMES = re.compile(r"[^\w.-]+")
_NOT_ASCII = re.compile(r"[^\w.-]+", re.ASCII)


def ending_of(file: File) -> str:
    """Returns the end of the name of a file. Raises Refusal if such files are not translated."""
    found = f".{file.name.rpartition('.')[2].lower()}" if "." in file.name else ""
    ending = ".html" if found == ".htm" else found
    if ending not in ENDINGS:
        raise Refusal(400, f"Invalid request: {printable(file.name)} is none of {', '.join(ENDINGS)}")
    return ending


def text_of(file: File) -> str:
    """Returns the content of a file. Raises Refusal if it is not UTF-8."""
    try:
        return file.content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refusal(400, f"Invalid request: the file is not UTF-8 at byte {error.start:,}; convert it") from None


def named(file: File, target: str, content: str) -> File:
    """Returns the translated file. Its name holds the code of the language, and nothing that a file system or a header would
    mind: letters and digits of any script, and - _ and dots."""
    stem = _NOT_IN_NAMES.sub("_", file.name.rpartition(".")[0])[:80].strip("._") or "file"
    return File(f"{stem}.{_NOT_IN_NAMES.sub('_', target)}{ending_of(file)}", content.encode())


def plain_name(name: str) -> str:
    """Returns a name in ASCII."""
    stem, dot, ending = name.partition(".")
    return (_NOT_ASCII.sub("_", stem).strip("._") or "file") + _NOT_ASCII.sub("_", dot + ending)


def disposition(name: str) -> str:
    """Returns the header that makes a browser save an answer under a name, in ASCII for old clients and in UTF-8 (RFC 6266)."""
    return f"attachment; filename=\"{plain_name(name)}\"; filename*=UTF-8''{quote(name, safe='')}"


async def translated(file: File, target: str, plain: Texts, marked: Texts) -> File:
    """Returns a translated file. plain, marked: translate texts, and pieces of HTML."""
    text, ending = text_of(file), ending_of(file)
    if ending == ".srt":
        return named(file, target, await subtitles(text, marked))
    (done,) = await (marked if ending == ".html" else plain)([text])
    return named(file, target, done)


async def subtitles(text: str, marked: Texts) -> str:
    """Translates subtitles: the text of each cue in one go, in as many lines as before. Numbers and times stay as they are."""
    cues = list(_CUE.finditer(text))
    if not cues:
        raise Refusal(
            400, "Invalid request: the file has no subtitles; expected numbers, times such as 00:00:01,000 --> …, texts"
        )
    done = await marked([cue["text"] for cue in cues])
    pieces, position = [], 0
    for cue, output in zip(cues, done, strict=True):
        lines = wrapped(html.unescape(output), cue["text"].count("\n") + 1 if cue["text"].strip() else 1)
        pieces += [text[position : cue.start()], cue["head"], cue["break"].join(lines)]
        position = cue.end()
    return "".join((*pieces, text[position:]))


def wrapped(text: str, lines: int) -> list[str]:
    """Splits a text into so many lines of about equal length, fewer if it has fewer words."""
    words, found = text.split(), list[str]()
    for left in range(lines, 0, -1):
        share = len(" ".join(words)) / left
        taken = 0
        while taken < len(words) - (left - 1) and (
            not taken or len(" ".join(words[: taken + 1])) <= share + len(words[taken]) / 2
        ):
            taken += 1
        found.append(" ".join(words[: taken if left > 1 else len(words)]))
        words = words[taken:]
    return [line for line in found if line] or [""]


class Downloads:
    """Translated files that wait for their download: bounded in number of bytes, for some minutes; then the oldest go."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._files: OrderedDict[str, tuple[float, File]] = OrderedDict()
        self.nbytes = 0

    def add(self, file: File) -> str:
        """Keeps a file, and returns a name that nobody can guess."""
        if len(file.content) > self.limits.files:
            raise Refusal(413, f"the translated file has {len(file.content) / MEGABYTE:,.0f} MB, which is too much to keep")
        name = f"{secrets.token_urlsafe(18)}.{plain_name(file.name)}"
        self._files[name] = monotonic(), file
        self.nbytes += len(file.content)
        self._drop_old()
        return name

    def find(self, name: str) -> File:
        """Returns a file. Raises Refusal if there is none of this name, or not any more."""
        self._drop_old()
        if name not in self._files:
            minutes = self.limits.file_seconds / 60
            raise Refusal(404, f"there is no such file; files are kept for {minutes:g} minutes, so translate it again")
        return self._files[name][1]

    def _drop_old(self) -> None:
        oldest = monotonic() - self.limits.file_seconds
        while self._files and (self.nbytes > self.limits.files or next(iter(self._files.values()))[0] < oldest):
            _, (_, file) = self._files.popitem(last=False)
            self.nbytes -= len(file.content)
