"""Writes results to a dated text file in the folder of the script that measured them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from pathlib import Path


def write_result(script: str | Path, lines: Iterable[str], part: str = "") -> None:
    """Writes lines to NAME.DATE.txt, or to NAME-PART.DATE.txt. script: the `__file__` of a benchmark NAME.py."""
    path = Path(script)
    result = path.with_name(f"{path.stem}{'-' if part else ''}{part}.{date.today()}.txt")
    result.write_text("\n".join(lines) + "\n")
    print(f"wrote {result.name}")
