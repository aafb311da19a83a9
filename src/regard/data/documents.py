"""Parses and validates JSON from untrusted sources. Nesting is limited, types are checked strictly, and errors are one line."""

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
"""Maximum depth of nested lists and mappings."""
MAX_NAMED = 3
"""How many errors in a document a message names."""


def parse(content: bytes | str) -> Any:
    """Returns the value of a JSON document. Raises UserError if it is not valid, or contains NaN, infinity or deep nesting."""
    try:
        text = content.decode() if isinstance(content, bytes) else content
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # raises for an unpaired surrogate, which cannot be printed
    except RecursionError:
        raise UserError(_TOO_DEEP) from None
    except ValueError as error:  # invalid JSON, invalid UTF-8, or a number with thousands of digits
        raise UserError(f"it is not valid JSON: {one_line(error)}") from None
    _check_levels(value)
    return value


_TOO_DEEP = f"its lists and mappings are nested more than {MOST_LEVELS} levels deep"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise ValueError(f"{one_line(digits, 40)} is too large for a 64-bit number")
    return number


def _check_levels(value: Any) -> None:
    """Raises UserError if the value is nested too deeply. Works level by level, because recursion has a limited depth."""
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        level = [child for node in level if isinstance(node, dict | list) for child in _children(node)]
        if not level:
            return
    raise UserError(_TOO_DEEP)


def _children(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value if isinstance(value, list) else value.values()


def mapping(value: Any, what: str) -> dict[str, Any]:
    """Returns the value if it is a mapping; raises UserError otherwise. what: the name of the value in the error."""
    if not isinstance(value, dict):
        raise UserError(f"{what} is {shown(value)}, expected a mapping")
    return value


def validated(kind: type[T], given: Any, what: str) -> T:
    """Returns a dataclass made from a mapping of its fields. Raises UserError for unknown names and wrong types.

    what: the name of the mapping in the error.
    """
    known = kind.__dataclass_fields__  # type: ignore[attr-defined]
    if unknown := sorted(mapping(given, what).keys() - known):
        hint = did_you_mean(unknown[0], list(known))
        raise UserError(
            f"{what}: unknown {'fields' if unknown[1:] else 'field'} {few(unknown)}{hint}",
            details=f"expected {', '.join(known)}",
        )
    try:
        valid: T = _adapter(cast(Hashable, kind)).validate_json(json.dumps(given), strict=True)
    except ValidationError as error:
        errors = [_describe_error(item) for item in error.errors(include_url=False)]
        raise UserError(f"{what}: {few(errors, '; ')}", details="\n".join(errors)) from None
    return valid


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def few(texts: Sequence[str], joint: str = ", ") -> str:
    """Joins the first few texts and says how many more there are."""
    more = f" and {len(texts) - MAX_NAMED:,} more" if len(texts) > MAX_NAMED else ""
    return joint.join(one_line(text, 80) for text in texts[:MAX_NAMED]) + more


def _describe_error(error: Any) -> str:
    if error["type"] == "value_error":
        return one_line(error["ctx"]["error"])
    where = ".".join(map(str, error["loc"]))
    return one_line(f"{where}: {error['msg']}, got {shown(error['input'], 40)}")
