"""Where results go: a text file beside the script that measured them, with the date."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from pathlib import Path


def write_result(script: str | Path, lines: Iterable[str]) -> None:
    """script: the __file__ of a benchmark."""
    result = Path(script).with_suffix(f".{date.today()}.txt")
    result.write_text("\n".join(lines) + "\n")
    print(f"written to {result.name}")
