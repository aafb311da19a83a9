"""The log-probability of given outputs, computed in one teacher-forced pass over the whole sequence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.models.contract import Seq2Seq, Source

# B sentences  T target positions  V vocabulary


@torch.inference_mode()
def score(model: Seq2Seq, source: Source, outputs: Sequence[Sequence[int]], *, sos: int, eos: int) -> list[list[float]]:
    """Returns, for each output, the log-probabilities of its tokens and of <eos>. Their sum is the `log_prob` of a search."""
    written_BT = padded([[*output, eos] for output in outputs], eos).to(source.values.device)
    read_BT = padded([[sos, *output] for output in outputs], eos).to(source.values.device)
    log_probs_BT = token_log_probs(model.decode(read_BT, model.encode(source)).logits_BTV, written_BT)
    return [row[: len(output) + 1] for row, output in zip(log_probs_BT.tolist(), outputs, strict=True)]


def token_log_probs(logits_BTV: Tensor, ids_BT: Tensor) -> Tensor:
    """Returns the log-probability of each token, (B, T)."""
    return logits_BTV.log_softmax(-1).gather(-1, ids_BT.unsqueeze(-1)).squeeze(-1)


def padded(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    """Returns the rows as one tensor, padded on the right with `filler`."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[filler] * (longest - len(row))] for row in rows])
