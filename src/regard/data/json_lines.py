"""Reads JSON lines: one object per line, whose texts are the columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.data.columns import Columns, choose_columns
from regard.data.lines import read_lines
from regard.data.rows import BadLine, NumberedRow, Report
from regard.errors import shorten

JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")


def json_rows(path: Path, columns: Columns, report: Report) -> Iterator[NumberedRow | BadLine]:
    """Yields a row per line, a JSON object. The columns are the texts of the first object, in order; dots join nested keys."""
    picks: list[tuple[str, ...]] = []
    for number, line in enumerate(read_lines(path, report.notes), start=1):
        if not line.strip():
            yield number, []
            continue
        try:
            record = _record(line)
            if not picks:
                leaves = list(_leaves(record))
                picks = [
                    leaves[at] for at in choose_columns(path, [".".join(leaf) for leaf in leaves], True, columns, report.notes)
                ]
            several = len(picks) > 2  # several source columns, any of which a row may lack
            yield number, [_get_text(record, pick, several and pick is not picks[-1]) for pick in picks]
        except BadRecord as error:
            yield BadLine(number, str(error))
        except RecursionError:
            yield BadLine(number, f"expected one JSON object per line, got one that is nested too deeply: {shorten(line)!r}")


class BadRecord(Exception):
    """A line of JSON that does not fit the first one."""


def _record(line: str) -> dict[str, Any]:
    try:  # keeps numbers as they are written
        record = json.loads(line, parse_int=str, parse_float=str, parse_constant=str, object_pairs_hook=_unique_keys)
    except ValueError as error:
        record = error
    if isinstance(record, dict):
        return record
    what = f": {record}" if isinstance(record, Exception) else ""
    hint = "; convert a list to lines with jq -c '.[]' list.json > lines.jsonl" if line.lstrip()[0] == "[" else ""
    raise BadRecord(f"expected one JSON object per line, got {shorten(line)!r}{what}{hint}")


def _unique_keys(items: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(items)
    if len(record) < len(items):
        keys = [key for key, _ in items]
        again = next(key for key in keys if keys.count(key) > 1)
        raise BadRecord(f"the key {shorten(again)!r} occurs twice in one object, expected each key once")
    return record


def _leaves(record: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*above, key))
        elif _text(value) is not None:
            yield (*above, key)


def _get_text(record: dict[str, Any], keys: tuple[str, ...], optional: bool = False) -> str:
    value: Any = record
    for key in keys:
        if optional and isinstance(value, dict) and key not in value:
            return ""
        if not isinstance(value, dict) or key not in value:
            raise BadRecord(
                f"expected a text for the key {shorten('.'.join(keys))!r} as in the first object, "
                f"keys found: {shorten(', '.join(map(repr, record)), 200) or 'none'}"
            )
        value = value[key]
    text = _text(value)
    if text is None:
        raise BadRecord(f"expected a text for the key {shorten('.'.join(keys))!r}, got {shorten(json.dumps(value))}")
    return text


def _text(value: Any) -> str | None:
    """Returns a JSON value as text, or None if it is not text. A list of texts is joined by spaces; null is empty."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return " ".join(value)
    return value if isinstance(value, str) else None
