"""Beam search, greedy search and sampling: the hypotheses of a batch, and how a step changes them. Knows no model.

A sentence has K live hypotheses, which are K query rows of one `step`. Each step of the search does three things:

1. Expansion. `expand` ranks all continuations by log-probability. Of the best K, those that are <eos> finish a hypothesis; the
   best K other continuations become the live hypotheses. `sample` returns the same `Candidates`, but draws one continuation for
   each hypothesis independently.
2. Pruning. Of the finished hypotheses, the search keeps the best `n_best` by rank score. The live ones inherit the caches of
   their parents.
3. Stopping. A sentence is done when no live hypothesis can enter the list of kept ones any more.

Stopping is exact. Log-probabilities are at most 0, so the score s ≤ 0 of a live hypothesis can only fall, and the length norm
can only grow, up to norm(limit + 1). If the hypothesis finishes with score s' ≤ s and n ≤ limit + 1 tokens, its rank score is
s'/norm(n) ≤ s/norm(n) ≤ s/norm(limit + 1). If that does not exceed the rank score of the worst kept hypothesis, further steps
cannot change the result. Greedy search (a beam of 1) stops at the first <eos>.

Batching is continuous: sentences leave the batch when they are done, and waiting ones join when there is room. So the outputs
in a batch may differ in length. They are aligned on the right, at the newest token; shorter ones are padded on the left with
<pad>.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from math import isfinite

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.contracts import Array, Event, Hypothesis, Request
from regard.core.arrays import as_array
from regard.core.largest import largest
from regard.decoding.constraints import NEVER
from regard.look import Seen, Summary
from regard.models.contract import State
from regard.options import SearchOptions

# B sentences  K hypotheses  V vocabulary  T tokens written  M best tokens of one row  N candidates of one sentence

StepSeen = tuple[Seen[Tensor], ...]
"""The attention that the taps captured in one step, that is, while one token was written."""


NOT_FINITE = "this model computed a log-probability of {}; its weights are damaged or too large"
"""The error of a request whose output is arbitrary, since NaN has no order."""


# --- expansion ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidates:
    """The hypotheses after a step. A score of −∞ marks an unused entry.

    live, parent, token: the score of each live hypothesis, the hypothesis that it continues, and its new token.
    ended, ended_parent: the score, <eos> included, of each finished hypothesis, and its index.
    """

    live_BK: Tensor
    parent_BK: Tensor
    token_BK: Tensor
    ended_BK: Tensor
    ended_parent_BK: Tensor


def expand(total_BK: Tensor, scores_BKV: Tensor, eos: int, keep: int) -> Candidates:
    """Expands a beam: returns which of the best `keep` continuations finish, and the best `keep` that do not.

    A hypothesis has only one continuation that finishes it, so its best keep + 1 tokens are enough.
    """
    best_BKM, token_BKM = largest(scores_BKV, min(keep + 1, scores_BKV.shape[-1]))
    all_BN = (total_BK.unsqueeze(-1) + best_BKM).flatten(1)
    if (missing := 2 * keep - all_BN.shape[1]) > 0:  # a small vocabulary: pad with candidates that cannot win
        all_BN = F.pad(all_BN, (0, missing), value=NEVER)
    score_BN, index_BN = all_BN.topk(2 * keep)
    index_BN = index_BN.clamp(max=token_BKM[0].numel() - 1)
    parent_BN, token_BN = index_BN // token_BKM.shape[-1], token_BKM.flatten(1).gather(1, index_BN)
    ends_BN = token_BN == eos
    live_BK, index_BK = score_BN.masked_fill(ends_BN, NEVER).topk(keep)
    ended_BK = score_BN[:, :keep].masked_fill(~ends_BN[:, :keep], NEVER)
    return Candidates(live_BK, parent_BN.gather(1, index_BK), token_BN.gather(1, index_BK), ended_BK, parent_BN[:, :keep])


def sample(total_BK: Tensor, scores_BKV: Tensor, eos: int, uniform_BK: Tensor, options: SearchOptions) -> Candidates:
    """Samples the next token of each hypothesis, with the temperature, top_k and top_p of `options`.

    uniform: a random number in [0, 1) for each hypothesis; it determines the token (inverse transform sampling).
    """
    scaled_BKV = scores_BKV.to(widest(scores_BKV.device)) / options.temperature
    sorted_BKV, token_BKV = scaled_BKV.sort(dim=-1, descending=True, stable=True)
    if options.top_k:
        sorted_BKV = sorted_BKV[..., : options.top_k]
    probs_BKV = sorted_BKV.softmax(-1)
    before_BKV = probs_BKV.cumsum(-1) - probs_BKV
    probs_BKV = probs_BKV.masked_fill(before_BKV >= options.top_p, 0.0)
    cumulative_BKV = probs_BKV.cumsum(-1)
    index_BK1 = (cumulative_BKV <= uniform_BK.unsqueeze(-1) * cumulative_BKV[..., -1:]).sum(-1, keepdim=True)
    token_BK1 = token_BKV.gather(-1, index_BK1.clamp(max=sorted_BKV.shape[-1] - 1))
    score_BK = total_BK + scores_BKV.gather(-1, token_BK1).squeeze(-1)
    token_BK = token_BK1.squeeze(-1)
    parent_BK = torch.arange(token_BK.shape[1], device=token_BK.device).expand_as(token_BK)
    ends_BK = (token_BK == eos) & ~score_BK.isnan()  # NaN ends nothing; the search looks for it among the live ones
    live_BK, ended_BK = score_BK.masked_fill(ends_BK, NEVER), score_BK.masked_fill(~ends_BK, NEVER)
    return Candidates(live_BK, parent_BK, token_BK, ended_BK, parent_BK)


# --- the sentences of one batch ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """An output that is complete or was stopped, and the attention captured for each of its tokens."""

    hypothesis: Hypothesis
    seen_steps: tuple[StepSeen, ...]


@dataclass
class Sentence:
    """The search state of a sentence outside the tensors of `Beams`.

    limit: the maximum number of output tokens.  sources: the indices of its source positions, without padding.
    seen_before: the attention captured before the first step: that of the encoder, and of the prefix.
    start: the index in `ids_BKT` of its first token.
    kept: the best outputs so far, best first.  num_reported: the number of tokens already streamed.
    """

    request: Request
    limit: int
    sources: Tensor | None = None
    seen_before: tuple[Seen[Array], ...] = ()
    start: int = 0
    kept: list[Ended] = field(default_factory=list)
    num_reported: int = 0
    done: bool = False

    def keep(self, output: Ended, n_best: int) -> None:
        """Adds an output, and prunes all but the best `n_best`; finished ones rank before those that were stopped."""
        self.kept.append(output)
        self.kept.sort(key=lambda kept: (kept.hypothesis.finished, kept.hypothesis.rank_score), reverse=True)
        del self.kept[n_best:]

    def seen_since(self, seen_steps: Sequence[StepSeen]) -> tuple[Seen[Array], ...]:
        """Returns what was captured and not reported yet. seen_steps: of all tokens of an output so far, in order."""
        before = () if self.num_reported else self.seen_before
        return (*before, *(as_arrays(seen) for step in seen_steps[self.num_reported :] for seen in step))

    def worst(self, n_best: int) -> float:
        """Returns the rank score that a new hypothesis must exceed to be kept."""
        return self.kept[-1].hypothesis.rank_score if len(self.kept) == n_best else NEVER


@dataclass
class Beams:
    """The hypotheses of a batch of sentences.

    ids, log_probs: the tokens written so far and their log-probabilities under the model.
    total: the score that the search ranks by; −∞ marks a dead hypothesis. It differs from the sum of `log_probs` where
    repetitions are penalised.
    norms: the length norm of the longest output that a sentence may have.
    worst: the rank score that a hypothesis must exceed to be kept.
    seen_steps: the attention that the taps captured in each step so far.
    """

    sentences: list[Sentence]
    ids_BKT: Tensor
    log_probs_BKT: Tensor
    total_BK: Tensor
    norms_B: Tensor
    worst_B: Tensor
    seen_steps: list[StepSeen]

    def lengths(self) -> list[int]:
        """Returns the number of tokens in the hypotheses of each sentence."""
        return [self.ids_BKT.shape[-1] - sentence.start for sentence in self.sentences]

    def extend(self, candidates: Candidates, log_prob_BK: Tensor, step_seen: StepSeen | None) -> Beams:
        """Returns the live hypotheses with their new tokens."""
        rows_B1 = torch.arange(len(self.sentences), device=candidates.parent_BK.device)[:, None]
        seen_steps = self.seen_steps if step_seen is None else [*self.seen_steps, step_seen]
        return replace(
            self,
            ids_BKT=torch.cat((self.ids_BKT[rows_B1, candidates.parent_BK], candidates.token_BK.unsqueeze(-1)), dim=-1),
            log_probs_BKT=torch.cat((self.log_probs_BKT[rows_B1, candidates.parent_BK], log_prob_BK.unsqueeze(-1)), dim=-1),
            total_BK=candidates.live_BK,
            seen_steps=_map_weights(
                seen_steps, lambda weights_BHKS: weights_BHKS[rows_B1, :, candidates.parent_BK].transpose(1, 2)
            ),
        )

    def keep(self, rows_N: Tensor) -> Beams:
        """Returns only these sentences, without the columns in which all of them have padding."""
        sentences = [self.sentences[row] for row in rows_N.tolist()]
        first = min(sentence.start for sentence in sentences)
        for sentence in sentences:
            sentence.start -= first
        return Beams(
            sentences,
            self.ids_BKT[rows_N, :, first:],
            self.log_probs_BKT[rows_N, :, first:],
            self.total_BK[rows_N],
            self.norms_B[rows_N],
            self.worst_B[rows_N],
            _map_weights(self.seen_steps[first:], lambda weights_BHKS: weights_BHKS[rows_N]),
        )

    def join(self, new: Beams, pad: int) -> Beams:
        """Returns these sentences and new ones, which have written only their prefix. Shorter ones are padded on the left."""
        (_, K, T), (num_new, new_K, new_T) = self.ids_BKT.shape, new.ids_BKT.shape
        longest = max(T, new_T)
        for sentence in self.sentences:
            sentence.start += longest - T
        for sentence in new.sentences:
            sentence.start += longest - new_T
        ids = (self.ids_BKT, T), (new.ids_BKT.expand(-1, K, -1), new_T)
        log_probs = (self.log_probs_BKT, T), (new.log_probs_BKT.expand(-1, K, -1), new_T)
        return Beams(
            self.sentences + new.sentences,
            torch.cat([F.pad(part, (longest - length, 0), value=pad) for part, length in ids]),
            torch.cat([F.pad(part, (longest - length, 0)) for part, length in log_probs]),
            torch.cat((self.total_BK, F.pad(new.total_BK, (0, K - new_K), value=NEVER))),  # missing hypotheses are dead
            torch.cat((self.norms_B, new.norms_B)),
            torch.cat((self.worst_B, new.worst_B)),
            [
                *[()] * (longest - T),
                *_map_weights(self.seen_steps, lambda weights_BHKS: F.pad(weights_BHKS, (0, 0) * 3 + (0, num_new))),
            ]
            if self.seen_steps or new.seen_steps
            else [],
        )

    def seen_by(self, row: int, hypothesis: int, step_seen: StepSeen | None = None) -> tuple[StepSeen, ...]:
        """Returns the captured attention of one hypothesis, token by token; `step_seen` is that of the token being written.
        That of the tokens of the prefix is in `Sentence.seen_before`."""
        if not self.seen_steps and step_seen is None:
            return ()
        sentence = self.sentences[row]
        prefix = len(sentence.request.prefix)
        written = (*self.seen_steps[sentence.start + prefix :], *(() if step_seen is None else (step_seen,)))

        def part(seen: Seen[Tensor], position: int) -> Seen[Tensor]:
            weights_1H1S = seen.weights_BHTS[row : row + 1, :, hypothesis : hypothesis + 1]
            keys = sentence.sources if seen.kind == "cross" else torch.arange(position + 1, device=weights_1H1S.device)
            return replace(seen, rows=(position,), weights_BHTS=weights_1H1S[..., keys])  # without those of other sentences

        steps = enumerate(written, start=prefix)
        return (*[()] * prefix, *(tuple(part(seen, position) for seen in step) for position, step in steps))


def _map_weights(seen_steps: Sequence[StepSeen], change: Callable[[Tensor], Tensor]) -> list[StepSeen]:
    """Returns a copy in which `change` is applied to all weights."""
    return [tuple(replace(seen, weights_BHTS=change(seen.weights_BHTS)) for seen in step) for step in seen_steps]


@dataclass(frozen=True)
class Running:
    """The sentences of the current batch: their hypotheses, the State of the decoder, and the tokens that it reads next."""

    beams: Beams
    state: State
    ids_BK: Tensor

    @property
    def num_sentences(self) -> int:
        return len(self.beams.sentences)

    @property
    def free_rows(self) -> list[int]:
        """The rows of the sentences that are done, which new ones may take; first those with the longest outputs."""
        rows = [row for row, sentence in enumerate(self.beams.sentences) if sentence.done]
        return sorted(rows, key=lambda row: self.beams.sentences[row].start)

    @property
    def nbytes(self) -> int:
        """The size of the State and of the hypotheses, in bytes."""
        return self.state.nbytes + self.beams.ids_BKT.nbytes + self.beams.log_probs_BKT.nbytes

    def state_of_width(self, K: int) -> State:
        """Returns the State with K hypotheses per sentence, where there has been no step yet."""
        same = self.ids_BK.shape[1] == K
        return self.state if same else self.state.select(self.ids_BK.new_zeros(self.num_sentences, K))

    def keep(self, rows_N: Tensor) -> Running:
        """Returns only these sentences."""
        return Running(self.beams.keep(rows_N), self.state.keep(rows_N), self.ids_BK[rows_N])

    def join(self, others: Sequence[Running], pad: int) -> Running:
        """Returns these sentences and those of `others`, which have not taken a step yet."""
        if not others:
            return self
        K, beams = self.ids_BK.shape[1], self.beams
        for new in others:
            beams = beams.join(new.beams, pad)
        states = [new.state_of_width(K) for new in others]
        ids_BK = torch.cat((self.ids_BK, *(new.ids_BK.expand(-1, K) for new in others)))
        return Running(beams, self.state.join(*states), ids_BK)

    def put(self, rows_N: Tensor, new: Running, pad: int) -> Running:
        """Returns these sentences with those in some rows replaced by the ones of `new`, which has not taken a step yet."""
        K = self.ids_BK.shape[1]
        order_B = torch.arange(self.num_sentences, device=rows_N.device)
        order_B[rows_N] = torch.arange(new.num_sentences, device=rows_N.device) + self.num_sentences
        return Running(
            self.beams.join(new.beams, pad).keep(order_B),
            self.state.put(rows_N, new.state_of_width(K)),
            torch.cat((self.ids_BK, new.ids_BK.expand(-1, K)))[order_B],
        )


# --- streaming ---------------------------------------------------------------------------------------------------------------


def stream_events(beams: Beams) -> Iterator[Event]:
    """Yields the tokens of each sentence that have become certain.

    These are the tokens that all live hypotheses and the best finished one start with: the output will be one of these
    hypotheses or a continuation of one. The common prefix only grows.
    """
    alive_BK = beams.total_BK.isfinite()
    best_B = beams.total_BK.argmax(-1).tolist()
    for row, sentence in enumerate(beams.sentences):
        if sentence.done or not sentence.request.stream:
            continue
        written_KT = beams.ids_BKT[row, :, sentence.start :]
        rivals = [tuple(ids) for ids in written_KT[alive_BK[row]].tolist()]
        if sentence.kept:
            rivals.append(sentence.kept[0].hypothesis.ids)
        common = max(sentence.num_reported, common_prefix(rivals))
        best = tuple(written_KT[best_B[row]].tolist())
        certain, tail = best[sentence.num_reported : common], best[common:]
        seen = sentence.seen_since(beams.seen_by(row, best_B[row])[:common]) if beams.seen_steps and certain else ()
        sentence.num_reported = common
        yield Event(sentence.request.id, certain, tail, seen=seen)


def final_event(sentence: Sentence) -> Event:
    """Returns the event that ends a sentence, with its n-best list."""
    if not sentence.kept:  # its prefix has the probability 0
        return Event(sentence.request.id, error=NOT_FINITE.format(NEVER))
    best = sentence.kept[0]
    if not isfinite(best.hypothesis.log_prob):
        return Event(sentence.request.id, error=NOT_FINITE.format(best.hypothesis.log_prob))
    hypotheses = tuple(kept.hypothesis for kept in sentence.kept)
    new = best.hypothesis.ids[sentence.num_reported :]
    return Event(sentence.request.id, new, hypotheses=hypotheses, seen=sentence.seen_since(best.seen_steps))


def as_arrays(seen: Seen[Tensor]) -> Seen[Array]:
    """Returns what one tap captured as numpy arrays."""
    summary = None
    if seen.summary is not None:
        parts = (getattr(seen.summary, part.name) for part in fields(seen.summary))
        summary = Summary[Array](*(None if part is None else as_array(part) for part in parts))  # type: ignore[arg-type]
    return Seen(seen.kind, seen.layer, seen.heads, seen.rows, as_array(seen.weights_BHTS), seen.what, summary)


def widest(device: torch.device) -> torch.dtype:
    """Returns the most precise floating-point type of a device."""
    return torch.float32 if device.type == "mps" else torch.float64


def common_prefix(sequences: Sequence[tuple[int, ...]]) -> int:
    """Returns the length of the longest prefix that all sequences share."""
    first, last = min(sequences), max(sequences)  # the first and last in lexicographic order have the shortest common prefix
    length = next((index for index, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), None)
    return min(len(first), len(last)) if length is None else length
