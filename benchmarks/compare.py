"""What theory says of attention, asserted on `regard compare --quick`: strings of 2 to 20 letters, reversed.

    python benchmarks/compare.py [FOLDER]       default: a temporary folder; with one, an earlier comparison is continued

The table goes to a dated file in the folder of this script, with what was asserted.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping

import torch
from dated import write_result

import regard

SIDE_BY_SIDE = int(os.environ.get("SIDE_BY_SIDE", "2"))


def better(found: regard.Comparison, one: str, other: str) -> bool:
    """Whether one mechanism is better than another; their intervals do not touch."""
    return found.row(one).low > found.row(other).high


def better_at_length(found: regard.Comparison, one: str, other: str) -> bool:
    """The same for the longest sources."""
    return found.row(one).by_length[-1].low > found.row(other).by_length[-1].high


def claims(found: regard.Comparison) -> dict[str, bool]:
    """Returns what theory says, and whether it holds."""

    def looks(name: str) -> float:
        share = found.row(name).aligned
        assert share is not None
        return share

    transformer, without_mask = found.row("transformer"), found.row("without-mask")
    return {
        "Luong's attention beats the fixed vector at length": better_at_length(found, "luong-general", "fixed-vector"),
        "Bahdanau's attention beats the fixed vector at length": better_at_length(found, "bahdanau", "fixed-vector"),
        "a Transformer reverses better with positions than without": better(found, "transformer", "without-positions"),
        "a Transformer without positions does not reverse": found.row("without-positions").value < 0.05,
        "without the look-ahead mask the training loss is lower": without_mask.training_loss < transformer.training_loss,
        "without the look-ahead mask generation fails": without_mask.value < 0.05,
        "hard attention learns where to look": looks("hard") > 0.5,
        "hard attention without its policy gradient does not": looks("hard-without-gradient") < 0.35,
    }


def report(found: regard.Comparison, asserted: Mapping[str, bool], words: tuple[str, str], more: str = "") -> list[str]:
    """Returns the lines of a result. words: for what holds and what does not.  more: what else to say of the run."""
    return [
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}{more}",
        f"the training alone took {sum(row.timing('seconds') for row in found.rows if row.trained) / 60:.1f} minutes",
        "",
        found.markdown(),
        *(f"{words[0] if holds else words[1]}: {claim}" for claim, holds in asserted.items()),
        "",
        *(f"{row.name}: {cell.error or cell.signature}" for row in found.rows for cell in row.cells),
    ]


def main(folder: str | None) -> None:
    began = time.monotonic()
    found = regard.compare("reverse", folder, quick=True, side_by_side=SIDE_BY_SIDE)
    minutes = (time.monotonic() - began) / 60
    asserted = claims(found)
    more = f"; {minutes:.1f} minutes in all, {SIDE_BY_SIDE} at a time, 1 thread each"
    write_result(__file__, report(found, asserted, ("holds", "FAILS"), more))
    if failed := [claim for claim, holds in asserted.items() if not holds]:
        raise SystemExit(f"FAILS: {'; '.join(failed)}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
