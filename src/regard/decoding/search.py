"""Search, written once over `step`: it knows no model, only the contract."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from regard.contracts import Event, Hypothesis, Look, SearchOptions, Seen, Seq2Seq, Source, State


@dataclass
class Growing:
    """An output that is being written."""

    sentence: int
    ids: list[int] = field(default_factory=list)
    log_prob: float = 0.0

    def done(self, *, finished: bool) -> Hypothesis:
        return Hypothesis(tuple(self.ids), self.log_prob, rank_score=self.log_prob, finished=finished)


@dataclass(frozen=True)
class TorchEngine:
    """The reference engine: greedy search on any model that keeps the contract. `never` are ids that no output may contain."""

    model: Seq2Seq
    sos: int
    eos: int
    never: tuple[int, ...]

    @torch.inference_mode()
    def generate(self, sources: Sequence[Source], options: SearchOptions, look: Look | None = None) -> Iterator[Event]:
        first = 0
        for source in sources:
            yield from self._greedy(source, first, options, look)
            first += source.num_sentences

    def _greedy(self, source: Source, first: int, options: SearchOptions, look: Look | None) -> Iterator[Event]:
        alive = [Growing(first + row) for row in range(source.num_sentences)]
        state: State = self.model.start(self.model.encode(source, look))
        ids_B1 = torch.full((len(alive), 1), self.sos, device=source.values.device)
        for length in range(options.max_length + 1):
            step = self.model.step(ids_B1, state, look)
            log_prob_B, ids_B = best_continuation(step.logits_BKV[:, 0], self.never)
            going = []
            for row, (growing, log_prob, token) in enumerate(zip(alive, log_prob_B.tolist(), ids_B.tolist(), strict=True)):
                if token != self.eos and length == options.max_length:
                    yield Event(growing.sentence, hypotheses=(growing.done(finished=False),))
                    continue
                growing.log_prob += log_prob
                if token == self.eos:
                    yield Event(growing.sentence, hypotheses=(growing.done(finished=True),))
                    continue
                growing.ids.append(token)
                going.append(row)
                yield Event(growing.sentence, ids=(token,), seen=tuple(_one_row(one, row) for one in step.seen))
            if not going:
                return
            state, ids_B1 = step.state, ids_B[:, None]
            if len(going) < len(alive):  # finished sentences leave the batch
                rows = torch.tensor(going, device=ids_B.device)
                state, ids_B1, alive = state.keep(rows), ids_B1[rows], [alive[row] for row in going]


def _one_row(seen: Seen, row: int) -> Seen:
    return replace(seen, weights_BHTS=seen.weights_BHTS[row : row + 1])


def best_continuation(logits_BV: Tensor, never: Sequence[int]) -> tuple[Tensor, Tensor]:
    """(log-probability, token) of the most probable token of each row, leaving out `never`. The probability is the model's own:
    leaving tokens out does not raise that of the others."""
    log_probs_BV = logits_BV.log_softmax(-1)
    log_probs_BV[:, list(never)] = float("-inf")
    log_prob_B, ids_B = log_probs_BV.max(-1)
    return log_prob_B, ids_B
