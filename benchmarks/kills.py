"""A long test of law 6: a run that is killed ends with the same weights as one that is not.

    python benchmarks/kills.py [kills]      default: 30

1. Killed thirty times, at random moments and in the middle of writes: a recurrent model and a Transformer, with dropout,
   accumulation, both averages and subword dropout on (the settings of tests/doors/test_resume.py, with more updates).
2. Killed at every moment: each option that keeps state, alone, and all of them with TensorBoard on; after every call that
   changes a file the same command is run again, and a tenth of these runs are killed once more, at a random moment
   (tests/doors/moments.py).

The result is written to a dated file in the folder of this script.
"""

from __future__ import annotations

import hashlib
import random
import re
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from dated import write_result

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "doors"))
from killed_runs import begin, finish, random_kills
from moments import Tree, differences, outcome, plant, recorded, typed
from test_moments import STATEFUL, command
from test_resume import EVERYTHING, MODELS

from regard.data.dictionary import pronunciations

PLAIN = ["train.steps=9", "train.checkpoint_every=2"]
VALIDATED = [*PLAIN, "train.validate_every=3", "train.metric=loss"]
OPTIONS = {
    "average": [*PLAIN, "train.average=3", "train.keep=1"],
    "ema": [*PLAIN, "train.ema=0.9"],
    "best": VALIDATED,
    "patience": [*VALIDATED, "train.patience=1", "train.learning_rate=0.5"],
    "accumulate": [*PLAIN, "train.accumulate=3"],
    "all, with TensorBoard": STATEFUL,
}


def main(number: int = 30) -> None:
    torch.set_num_threads(1)
    lines = [f"torch {torch.__version__}, 1 thread; {number} kills for each model; {' '.join(EVERYTHING)}, train.steps=400"]
    print(lines[0], flush=True)
    for name in MODELS:
        lines.append(at_random_moments(name, number))
        print(lines[-1], flush=True)
    for name, changes in OPTIONS.items():
        lines.append(at_every_moment(name, changes, random.Random(1)))
        print(lines[-1], flush=True)
    if number == 30:
        write_result(__file__, lines)


def at_random_moments(name: str, number: int) -> str:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "words.tsv").write_text("".join(f"{one.source}\t{one.target}\n" for one in pronunciations("dev")[:600]))
        options = [part for change in (*EVERYTHING, *MODELS[name], "train.steps=400") for part in ("--set", change)]
        finish(begin(["words.tsv", "--out", "unbroken", *options], folder))
        arguments = ["words.tsv", "--out", "killed", *options]
        random_kills(arguments, folder, folder / "killed.run" / "log.jsonl", number, seed=1)
        printed = finish(begin(arguments, folder))
        resumed = next((line for line in printed.splitlines() if re.search(r"after update \d+ of \d+", line)), "from the start")
        found = [
            hashlib.sha256((folder / out / "model.safetensors").read_bytes()).hexdigest() for out in ("unbroken", "killed")
        ]
    assert found[0] == found[1], "the weights differ"
    return f"{name}: last run: {resumed}; weights {found[0][:12]} and {found[1][:12]}"


def at_every_moment(name: str, changes: list[str], rng: random.Random) -> str:
    arguments = command(*changes)
    if "TensorBoard" in name:
        arguments.append("--tensorboard")
    with tempfile.TemporaryDirectory() as temporary:
        folder, again = Path(temporary) / "run", Path(temporary) / "again"
        plant({"pairs.tsv": "".join(f"{a}{b}\t{b}{a}\n" for a in "abcde" for b in "fghij").encode()}, folder)
        with recorded(folder) as states:
            typed(arguments, folder)
        expected, twice = without_board(outcome(folder)), 0
        for state in states:
            plant(state, again)
            if rng.random() < 0.1:
                with recorded(again) as later:
                    typed(arguments, again)
                shutil.rmtree(again)
                plant(rng.choice(later), again)
                twice += 1
            typed(arguments, again)
            assert differences(without_board(outcome(again)), expected) == [], name
            shutil.rmtree(again)
    return (
        f"{name}: killed at each of {len(states)} moments, {twice} of these runs killed once more; all files as if never killed"
    )


def without_board(files: Tree) -> Tree:
    """Removes TensorBoard's files, whose names contain the time of writing."""
    return {path: content for path, content in files.items() if "/tensorboard/" not in path}


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
