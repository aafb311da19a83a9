"""Law 6 at length: a run killed thirty times, at random moments and in the middle of writes, ends with the same weights.

    python benchmarks/kills.py [kills]      default: 30

For a recurrent model and a Transformer, with dropout, accumulation, both averages and subword dropout on (the settings of
tests/doors/test_resume.py, with more updates). The result is written beside this script, with its date.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path

import torch
from dated import write_result

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "doors"))
from kills import begin, finish, random_kills
from test_resume import EVERYTHING, MODELS

from regard.data.dictionary import pronunciations


def main(number: int = 30) -> None:
    lines = [f"torch {torch.__version__}, 1 thread; {number} kills for each model; {' '.join(EVERYTHING)}, train.steps=400"]
    print(lines[0], flush=True)
    for name, changes in MODELS.items():
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            (folder / "words.tsv").write_text("".join(f"{one.source}\t{one.target}\n" for one in pronunciations("dev")[:600]))
            options = [part for change in (*EVERYTHING, *changes, "train.steps=400") for part in ("--set", change)]
            finish(begin(["words.tsv", "--out", "unbroken", *options], folder))
            command = ["words.tsv", "--out", "killed", *options]
            random_kills(command, folder, folder / "killed.run" / "log.jsonl", number, seed=1)
            said = finish(begin(command, folder))
            went_on = next((line for line in said.splitlines() if line.startswith("going on")), "from the beginning")
            found = [
                hashlib.sha256((folder / out / "model.safetensors").read_bytes()).hexdigest() for out in ("unbroken", "killed")
            ]
        lines.append(f"{name}: last time {went_on}; weights {found[0][:12]} and {found[1][:12]}")
        print(lines[-1], flush=True)
        assert found[0] == found[1], "the weights differ"
    if number == 30:
        write_result(__file__, lines)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
