"""Trains a model in float64 with several processes: `python ranks_child.py SIZE... OUT`, once for each number of processes.

The processes are forks of this one, which has imported torch but not used it. Process 0 writes weights and losses to OUT/SIZE.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.distributed import FileStore  # type: ignore[attr-defined]

from regard.data.dictionary import pronunciations
from regard.models.build import build
from regard.models.rnn_seq2seq import RnnSettings
from regard.training.data import in_memory
from regard.training.follower import Following
from regard.training.learner import Learner
from regard.training.loop import Update, train
from regard.training.ranks import Ranks, connected
from regard.training.settings import DataSettings, TrainSettings

MODEL = RnnSettings(width=14, embedding=7, score_width=5, dropout=0.2)
TRAIN = TrainSettings(steps=9, batch_tokens=97, accumulate=5, ema=0.9)
"""The 600 words make 71 micro-batches, which is not a multiple of 5, 2 or 3."""


class Recording(Following):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_update(self, update: Update) -> None:
        self.losses.append(update.loss)


def trained(ranks: Ranks) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Returns the weights and the loss of each update."""
    data = in_memory("words", pronunciations("dev")[:600], [], DataSettings(target_unit="symbols"))
    torch.manual_seed(1)
    model = build(MODEL, *map(len, data.codecs)).double()
    recording = Recording()
    train(Learner(model, TRAIN), data.batches(TRAIN, 0.0, 1), TRAIN, seed=1, callbacks=recording, ranks=ranks)
    return model.state_dict(), recording.losses


def run(rank: int, size: int, out: Path) -> None:
    """Is one of the processes."""
    torch.set_num_threads(1)
    store = FileStore(str(out / "store"), size)
    with connected(store, rank, size):
        weights, losses = trained(Ranks(rank, size, store))
    if rank == 0:
        save_file(weights, out / "weights.safetensors")
        (out / "losses.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    children = []
    for size in map(int, sys.argv[1:-1]):
        out = Path(sys.argv[-1]) / str(size)
        out.mkdir()
        for rank in range(size):
            if not (child := os.fork()):
                run(rank, size, out)
                os._exit(0)
            children.append(child)
    sys.exit(any(os.waitpid(child, 0)[1] for child in children))
