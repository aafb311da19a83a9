"""The log-probability of outputs that are already there: one forced pass, the whole sequence at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.contracts import Seq2Seq, Source

# B sentences  T target places  V vocabulary


@torch.inference_mode()
def score(model: Seq2Seq, source: Source, outputs: Sequence[Sequence[int]], *, sos: int, eos: int) -> list[list[float]]:
    """Of each output the log-probability of every token and of <eos>. Their sum is what a search calls `log_prob`."""
    written_BT = padded([[*output, eos] for output in outputs], eos).to(source.values.device)
    read_BT = padded([[sos, *output] for output in outputs], eos).to(source.values.device)
    log_probs_BT = of_tokens(model.decode(read_BT, model.encode(source)).logits_BTV, written_BT)
    return [row[: len(output) + 1] for row, output in zip(log_probs_BT.tolist(), outputs, strict=True)]


def of_tokens(logits_BTV: Tensor, ids_BT: Tensor) -> Tensor:
    """(B, T): the log-probability of each token."""
    return logits_BTV.log_softmax(-1).gather(-1, ids_BT.unsqueeze(-1)).squeeze(-1)


def padded(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[filler] * (longest - len(row))] for row in rows])
