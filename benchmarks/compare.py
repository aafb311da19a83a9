"""What theory says of attention, asserted on `regard compare --quick`: strings of 2 to 20 letters, reversed.

    python benchmarks/compare.py [FOLDER]       default: a temporary folder; with one, an earlier comparison is continued

The table goes to a dated file in the folder of this script, with what was asserted.
"""

from __future__ import annotations

import os
import platform
import sys
import time

import torch
from dated import write_result

import regard

SIDE_BY_SIDE = int(os.environ.get("SIDE_BY_SIDE", "2"))


def claims(found: regard.Comparison) -> dict[str, bool]:
    """Returns what theory says, and whether it holds."""

    def longest(name: str) -> regard.Row:
        return found.row(name)

    def at_length(name: str) -> float:
        return longest(name).by_length[-1].low if name != "fixed-vector" else longest(name).by_length[-1].high

    def looks(name: str) -> float:
        share = found.row(name).aligned
        assert share is not None
        return share

    transformer, without_mask = found.row("transformer"), found.row("without-mask")
    return {
        "Luong's attention beats the fixed vector at length": at_length("luong-general") > at_length("fixed-vector"),
        "Bahdanau's attention beats the fixed vector at length": at_length("bahdanau") > at_length("fixed-vector"),
        "a Transformer reverses better with positions than without": transformer.low > found.row("without-positions").high,
        "a Transformer without positions does not reverse": found.row("without-positions").value < 0.05,
        "without the look-ahead mask the training loss is lower": without_mask.training_loss < transformer.training_loss,
        "without the look-ahead mask generation fails": without_mask.value < 0.05,
        "hard attention learns where to look": looks("hard") > 0.5,
        "hard attention without its policy gradient does not": looks("hard-without-gradient") < 0.35,
    }


def main(folder: str | None) -> None:
    began = time.monotonic()
    found = regard.compare("reverse", folder, quick=True, side_by_side=SIDE_BY_SIDE)
    minutes = (time.monotonic() - began) / 60
    asserted = claims(found)
    lines = [
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}",
        f"{SIDE_BY_SIDE} at a time, 1 thread each",
        f"{minutes:.1f} minutes; the training alone {sum(row.timing('seconds') for row in found.rows) / 60:.1f} minutes",
        "",
        found.markdown(),
        *(f"{'holds' if holds else 'FAILS'}: {claim}" for claim, holds in asserted.items()),
    ]
    print("\n".join(lines[-len(asserted) :]))
    write_result(__file__, lines)
    if not all(asserted.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
