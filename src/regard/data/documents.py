"""JSON that somebody else may have written: parsed within bounds, checked strictly, every error one line."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from math import isfinite
from typing import Any, NoReturn, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from regard.errors import UserError, did_you_mean, one_line, shown

T = TypeVar("T")

MOST_LEVELS = 32
"""How deeply lists and mappings may be nested."""
FEW = 3
"""How many mistakes of a document an error names."""


def parse(content: bytes | str) -> Any:
    """The value of a JSON document in UTF-8, without NaN and infinities."""
    try:
        text = content.decode() if isinstance(content, bytes) else content
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is not text, and cannot be printed
    except RecursionError:
        raise UserError(_TOO_DEEP) from None
    except ValueError as error:  # of JSON, of UTF-8, or of numbers of thousands of digits
        raise UserError(f"it is not JSON: {one_line(error)}") from None
    _check_levels(value)
    return value


_TOO_DEEP = f"its lists and mappings are nested more than {MOST_LEVELS} deep"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise ValueError(f"{one_line(digits, 40)} is larger than any number of 64 bits")
    return number


def _check_levels(value: Any) -> None:
    """Level by level, so that the depth of the document is not the depth of a recursion."""
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        level = [inner for one in level if isinstance(one, dict | list) for inner in _inner(one)]
        if not level:
            return
    raise UserError(_TOO_DEEP)


def _inner(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value if isinstance(value, list) else value.values()


def mapping(value: Any, what: str) -> dict[str, Any]:
    """The value, if it is a mapping. what: for the error."""
    if not isinstance(value, dict):
        raise UserError(f"{what} is {shown(value)}, expected a mapping")
    return value


def validated(kind: type[T], given: Any, what: str) -> T:
    """A dataclass from what a document says of its fields: the right types and no unknown names. what: for the error."""
    known = kind.__dataclass_fields__  # type: ignore[attr-defined]
    if unknown := sorted(mapping(given, what).keys() - known):
        hint = did_you_mean(unknown[0], list(known))
        raise UserError(f"{what}: unknown {few(unknown)}{hint}", details=f"expected {', '.join(known)}")
    try:
        valid: T = _adapter(cast(Hashable, kind)).validate_json(json.dumps(given), strict=True)
    except ValidationError as error:
        mistakes = [_mistake(one) for one in error.errors(include_url=False)]
        raise UserError(f"{what}: {few(mistakes, '; ')}", details="\n".join(mistakes)) from None
    return valid


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def few(texts: Sequence[str], joint: str = ", ") -> str:
    """The first few, and how many more there are."""
    more = f" and {len(texts) - FEW:,} more" if len(texts) > FEW else ""
    return joint.join(one_line(text, 80) for text in texts[:FEW]) + more


def _mistake(error: Any) -> str:
    if error["type"] == "value_error":
        return one_line(error["ctx"]["error"])
    where = ".".join(map(str, error["loc"]))
    return one_line(f"{where}: {error['msg']}, got {shown(error['input'], 40)}")
