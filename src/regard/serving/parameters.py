"""The parameters of a request, from JSON, a form or the query string, with LibreTranslate's checks, in its order and words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from regard.errors import is_utf_8, one_line, shown
from regard.serving.limits import Limits
from regard.serving.refusal import Refusal

MOST_FIELDS = 1_000
"""The largest number of fields of a form."""

YES, NO = ("true", "1", "yes", "on"), ("false", "0", "no", "off", "")
"""What a form may say instead of true and false."""

Parameters = Mapping[str, Any]


async def parse(request: Request) -> dict[str, Any]:
    """Returns the parameters of a request: those of its body, or of a form and of the query string.

    Raises Refusal if the body is JSON, but no object, or if it is not UTF-8.
    """
    body, query = await request.body(), request.url.query
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return _json(body)
    given = _form(query.encode())
    if kind == "application/x-www-form-urlencoded":
        given |= _form(body)
    elif kind == "multipart/form-data":
        given |= await _multipart(request, len(body))
    return given


class _Parts(MultiPartParser):
    """Keeps files in memory: the file system may be read-only."""

    spool_max_size = 1 << 30


async def _multipart(request: Request, size: int) -> dict[str, Any]:
    parser = _Parts(request.headers, request.stream(), max_files=1, max_fields=MOST_FIELDS, max_part_size=size)
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, UnicodeError) as error:
        raise Refusal(400, f"Invalid request: the form cannot be read: {one_line(error)}") from None
    given: dict[str, Any] = {}
    for name, value in reversed(form.multi_items()):
        given[name] = File(value.filename or "", await value.read()) if isinstance(value, UploadFile) else value
    await form.close()
    return given


@dataclass(frozen=True)
class File:
    """A file that came with a request, or waits for its download."""

    name: str
    content: bytes


def _json(body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body.decode())
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise Refusal(400, "Invalid JSON format")
    return content


def _form(content: bytes) -> dict[str, Any]:
    try:
        pairs = parse_qsl(content.decode(), keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS)
    except ValueError:
        raise Refusal(400, f"Invalid request: the form is not UTF-8, or has more than {MOST_FIELDS:,} fields") from None
    return dict(reversed(pairs))  # the first value of a name counts


@dataclass(frozen=True)
class Question:
    """What a client wants to have translated.

    texts: one or several.  is_batch: whether they came as a list.  source: a code, or "auto".  markup: whether they are HTML.
    alternatives: how many outputs apart from the best.
    """

    texts: tuple[str, ...]
    is_batch: bool
    source: str
    target: str
    markup: bool = False
    alternatives: int = 0

    @classmethod
    def of(cls, given: Parameters, limits: Limits) -> Question:
        """Checks the parameters of /translate. Raises Refusal with the text of LibreTranslate for the first that is wrong.

        That the languages are served is checked later, by `language`; so is the format, which comes after it.
        """
        for name in ("q", "source", "target"):
            if not given.get(name):
                raise Refusal(400, f"Invalid request: missing {name} parameter")
        alternatives = number(given, "alternatives", 0, limits.alternatives)
        texts = _texts(given["q"])
        if len(texts) > limits.batch:
            raise _too_long(len(texts), limits.batch)
        if (size := sum(map(len, texts))) > limits.text:
            raise _too_long(size, limits.text)
        markup = given.get("format") == "html"
        return cls(texts, isinstance(given["q"], list), str(given["source"]), str(given["target"]), markup, alternatives)


def text_to_detect(given: Parameters, limits: Limits) -> str:
    """Returns the text whose language is asked for. Raises Refusal if it is missing or too long."""
    if not given.get("q"):
        raise Refusal(400, "Invalid request: missing q parameter")
    found = text(given, "q")
    if len(found) > limits.text:
        raise _too_long(len(found), limits.text)
    return found


def _texts(q: Any) -> tuple[str, ...]:
    texts = tuple(q) if isinstance(q, list) else (q,)
    if not all(isinstance(text, str) for text in texts):
        raise Refusal(400, f"Invalid request: q parameter is {shown(q, 60)}, expected a text or a list of texts")
    if not all(map(is_utf_8, texts)):
        raise Refusal(400, "Invalid request: q parameter is not valid Unicode: it contains a lone surrogate")
    return texts


def _too_long(size: int, limit: int) -> Refusal:
    return Refusal(400, f"Invalid request: request ({size}) exceeds text limit ({limit})")


def check_format(given: Parameters) -> None:
    """Raises Refusal unless the format is text or html."""
    if (name := given.get("format")) not in (None, "", "text", "html"):
        raise Refusal(400, f"{printable(name)} format is not supported")


def number(given: Parameters, name: str, default: int, most: int) -> int:
    """Returns a whole number from 0 to `most`. Raises Refusal if it is something else."""
    value = given.get(name)
    if value is None or value == "":
        return default
    try:
        if isinstance(value, bool) or not (isinstance(value, int | str) or (isinstance(value, float) and value.is_integer())):
            raise ValueError
        count = int(value)
    except ValueError:
        raise Refusal(400, f"Invalid request: {name} parameter is not a number") from None
    if count > most:
        raise Refusal(400, f"Invalid request: {name} parameter must be <= {most}")
    if count < 0:
        raise Refusal(400, f"Invalid request: {name} parameter must be >= 0")
    return count


def flag(given: Parameters, name: str) -> bool:
    """Returns whether an optional field is on. Raises Refusal if it is neither true nor false."""
    value = given.get(name)
    if value is None or value in (0, 1):  # False and True are equal to these
        return bool(value)
    word = value.strip().lower() if isinstance(value, str) else None
    if word not in (*YES, *NO):
        raise Refusal(400, f"Invalid request: {name} parameter is {shown(value, 60)}, expected true or false")
    return word in YES


def text(given: Parameters, name: str) -> str:
    """Returns an optional text. Raises Refusal if it is something else."""
    value = given.get(name)
    if not isinstance(value, str | None):
        raise Refusal(400, f"Invalid request: {name} parameter is {shown(value, 60)}, expected a text")
    return value or ""


def printable(value: object) -> str:
    """Returns what a client gave as a part of a message: one line, not long."""
    return shown(value, 60)[1:-1] if isinstance(value, str) else shown(value, 60)
