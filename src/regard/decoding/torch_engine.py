"""The reference engine: takes the steps of a search with any model that implements `Seq2Seq`, or runs it over outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, isnan
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from regard.contracts import Array, Event, FileAndText, Forced, Hypothesis, Request, SourceRow, Specials
from regard.core.arrays import as_array
from regard.core.source import Source
from regard.decoding.constraints import NEVER, constrain
from regard.decoding.philox import uniform
from regard.decoding.search import (
    NOT_FINITE,
    Beams,
    Candidates,
    Ended,
    Running,
    Sentence,
    StepSeen,
    as_arrays,
    expand,
    final_event,
    sample,
    stream_events,
    widest,
)
from regard.decoding.torch_search import TorchSearch, describe, is_edited_alone
from regard.errors import UserError
from regard.look import Kind, Look, Seen, check_positions, refused_edits
from regard.models.contract import Memory, Seq2Seq, State
from regard.models.evaluation import device_of, in_evaluation
from regard.options import SearchOptions

# B sentences  K hypotheses  V vocabulary  T tokens written  S source positions

FORCED_POSITIONS = 4096
"""Number of positions per side that `force` runs in one pass, padding included; a longer output is run alone."""

MOST_LONGER = 16
"""A row that is done is removed when it has twice as many tokens as those that run, and so many more."""

NAN_WEIGHTS = "this model computed attention weights of nan; its parameters are damaged or too large"


class Native(Seq2Seq, Protocol):
    """Native steps of a torch model."""

    def serves(self, look: Look | None) -> bool:
        """Returns whether they capture and change what a Look requests."""
        ...


FindNative = Callable[[Seq2Seq], Native | None]
"""Returns the native steps of a model with its present weights, or None if there are none."""


@dataclass(frozen=True)
class TorchEngine:
    """Searches with a torch model.

    collate: returns encoded sources as one padded batch, on the device of the model.
    specials: the special tokens of the outputs.
    native: finds the native steps of the model, which searches then take where they serve.
    """

    model: Seq2Seq
    collate: Callable[[Sequence[SourceRow]], Source]
    specials: Specials
    native: FindNative | None = field(default=None, compare=False)
    _measured: dict[str, Sizes] = field(default_factory=dict, repr=False, compare=False)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return device_of(self.model)

    def stepping(self, look: Look | None) -> TorchEngine:
        """Returns the engine that takes the steps of a search with this Look: natively, where native steps serve."""
        native = None if self.native is None else self.native(self.model)
        return self if native is None or not native.serves(look) else replace(self, model=native)

    def evaluating(self) -> TorchEngine:
        """Returns this engine with its model in evaluation mode, whatever the mode of the model, which stays as it is."""
        return replace(self, model=in_evaluation(self.model))

    def declines(self, request: Request) -> str | None:
        look = request.look
        if look is None:
            return None
        if look.grad:
            return "a search computes no gradients; call the model's decode with look.grad instead"
        if any(tap.what == "summary" or tap.rows is not None for tap in look.taps):
            return (
                "a search captures whole rows, one per token; for a summary or for chosen rows, translate first and call "
                "engine.force with the output"
            )
        return self._refused(look) or None

    def _refused(self, look: Look | None) -> str:
        """Returns why the model cannot apply the edits of a Look; "" if it can."""
        return refused_edits(look.edits, self.model.traits.attention) if look is not None and look.edits else ""

    def nbytes(self, request: Request) -> int:
        """Returns the size of the State and of the logits for an output of maximum length, measured on a small input; 0 if the
        model cannot handle this source."""
        kind = "text" if isinstance(request.source, list) else "file"
        if kind not in self._measured:
            try:
                self._measured[kind] = self.evaluating()._measure(request)
            except Exception:
                return 0  # a search reports why this request fails
        sizes = self._measured[kind]
        per_hypothesis = sizes.fixed + 2 * sizes.per_token * (request.limit + 1) + sizes.logits
        return request.options.num_hypotheses * per_hypothesis + sizes.per_position * (request.num_positions + 1)

    def open(self) -> TorchSearch:
        return TorchSearch(self.evaluating())

    @torch.inference_mode()
    def force(
        self,
        requests: Sequence[Request],
        outputs: Sequence[Sequence[int]],
        *,
        log_probs: bool = True,
        distributions: bool = False,
    ) -> Iterator[Forced]:
        engine = self.evaluating()
        for batch in _similar_outputs(requests, outputs):
            chosen = [requests[index] for index in batch], [outputs[index] for index in batch]
            try:
                yield from engine._force(*chosen, log_probs, distributions)
            except Exception as error:
                if len(batch) == 1:
                    yield Forced(chosen[0][0].id, error=describe(error))
                else:
                    for request, output in zip(*chosen, strict=True):
                        yield from self.force([request], [output], log_probs=log_probs, distributions=distributions)

    def _force(
        self, requests: Sequence[Request], outputs: Sequence[Sequence[int]], log_probs: bool, distributions: bool
    ) -> list[Forced]:
        """Runs one batch of requests with the same Look."""
        look = requests[0].look
        if refused := self._refused(look):
            raise UserError(refused)
        memory = self._encode(requests)
        written_BT = _padded(outputs, self.specials.eos).to(memory.allow_BS.device)
        read_BT = _padded([[self.specials.start, *output[:-1]] for output in outputs], self.specials.pad).to(written_BT.device)
        decoded = self.model.decode(read_BT, memory, look)
        log_probs_BT = decoded.log_probs(written_BT).tolist() if log_probs else [[] for _ in outputs]
        log_probs_BTV = decoded.distribution() if distributions else None
        captured = Captured(memory.seen + decoded.seen, requests, memory)
        results = []
        for row, (request, output) in enumerate(zip(requests, outputs, strict=True)):
            of_tokens, seen = tuple(log_probs_BT[row][: len(output)]), captured.seen(row, len(output))
            if not isfinite(total := sum(of_tokens)):
                results.append(Forced(request.id, error=NOT_FINITE.format(total)))
                continue
            if not log_probs and any(np.isnan(one.weights_BHTS).any() for one in seen):
                results.append(Forced(request.id, error=NAN_WEIGHTS))
                continue
            every = None if log_probs_BTV is None else as_array(log_probs_BTV[row, : len(output)].clone())
            results.append(Forced(request.id, of_tokens, seen, captured.axes(row), every))
        return results

    def _encode(self, requests: Sequence[Request]) -> Memory:
        """Encodes requests with the same Look. Raises UserError if its edits name a position that a source does not have."""
        look = requests[0].look
        memory = self.model.encode(self.collate([request.source for request in requests]), look)
        if look is not None:
            for request, num_sources in zip(requests, memory.allow_BS.sum(-1).tolist(), strict=True):
                check_positions(look.edits, num_sources, _num_auxiliary(request))
        return memory

    @torch.inference_mode()
    def _measure(self, request: Request) -> Sizes:
        """Measures the size of a State on small inputs: of texts on two tokens, of files on the source of this request."""

        def state_bytes(row: SourceRow, written: int) -> int:
            memory = self.model.encode(self.collate([row]))
            read = torch.full((1, written), self.specials.start, device=memory.allow_BS.device)
            return self.model.start(memory, read).nbytes

        is_text = isinstance(request.source, list)
        small = [self.specials.eos] if is_text else request.source
        num_positions = (1 if is_text else request.num_positions) + 1
        two_tokens = state_bytes(small, 2)
        per_token = state_bytes(small, 3) - two_tokens
        per_position = state_bytes([self.specials.eos] * 2, 2) - two_tokens if is_text else two_tokens // num_positions
        fixed = max(0, two_tokens - num_positions * per_position - 2 * per_token)
        memory = self.model.encode(self.collate([small]))
        step = self.model.step(torch.full((1, 1), self.specials.start, device=memory.allow_BS.device), self.model.start(memory))
        logits = 4 * 4 * step.logits_BKV.shape[-1]  # logits, log-probabilities, and the memory for sorting them
        return Sizes(fixed, per_token, per_position, logits)

    def start(self, requests: Sequence[Request], reported: dict[int, int]) -> Running:
        """Encodes requests with prefixes of one length and returns them before their first step. A prefix is read in one pass
        and counts as written. reported: the number of tokens of a request that were streamed before it was started again."""
        options, look, prefix = requests[0].options, requests[0].look, len(requests[0].prefix)
        memory = self._encode(requests)
        device, B = memory.allow_BS.device, len(requests)
        read_BT = torch.tensor([[self.specials.start, *request.prefix] for request in requests], device=device)
        log_probs_BT, seen = torch.zeros(B, 0, device=device), memory.seen
        if prefix:
            decoded = self.model.decode(read_BT[:, :-1], memory, look)
            log_probs_BT, seen = decoded.log_probs(read_BT[:, 1:]), seen + decoded.seen
        if look is not None and look.edits and prefix:  # they also change how the prefix is read
            state = self.model.start(memory)
            for position in range(prefix):
                state = self.model.step(read_BT[:, position : position + 1], state, look).state
        else:
            state = self.model.start(memory, read_BT[:, :-1] if prefix else None)
        total_B = log_probs_BT.to(widest(device)).sum(-1)
        K = options.n_best if options.sample else 1
        if K > 1:
            state = state.select(torch.zeros(B, K, dtype=torch.long, device=device))
        limits = [_limit(*one) for one in zip(requests, memory.allow_BS.sum(-1).tolist(), strict=True)]
        captured = Captured(seen, requests, memory)
        has_taps = look is not None and bool(look.taps)
        beams = Beams(
            [
                Sentence(
                    request,
                    limits[row],
                    memory.allow_BS[row].nonzero().flatten() if has_taps else None,
                    captured.seen(row, prefix),
                    num_reported=reported.get(request.id, 0),
                )
                for row, request in enumerate(requests)
            ],
            read_BT[:, None, 1:].expand(-1, K, -1),
            log_probs_BT[:, None].expand(-1, K, -1),
            total_B[:, None].expand(-1, K),
            total_B.new_tensor([options.norm(limit + 1) for limit in limits]),
            torch.full_like(total_B, NEVER),
            [() for _ in range(prefix)] if has_taps else [],
        )
        return Running(beams, state, read_BT[:, -1:].expand(-1, K))

    def step(self, running: Running, options: SearchOptions, look: Look | None, events: list[Event]) -> Running | None:
        """Advances all sentences by one token and adds what happened to `events`. Returns the sentences that are not done; None
        if all are."""
        beams = running.beams
        step = self.model.step(running.ids_BK, running.state, look)
        step_seen = step.seen if look is not None and look.taps else None
        log_probs_BKV = step.logits_BKV.log_softmax(-1)
        lengths = beams.lengths()
        scores_BKV = constrain(log_probs_BKV, beams.ids_BKT, lengths, options, self.specials)
        if options.sample:
            seeds = [sentence.request.seed for sentence in beams.sentences]
            uniform_BK = torch.from_numpy(uniform(seeds, options.n_best, lengths)).to(beams.total_BK)
            candidates = sample(beams.total_BK, scores_BKV, self.specials.eos, uniform_BK, options)
            stuck_BK = beams.total_BK.isfinite() & (torch.maximum(candidates.live_BK, candidates.ended_BK) == NEVER)
            for row, number in stuck_BK.nonzero().tolist():  # no token is allowed
                self._keep_stopped(beams, row, number, options)
        else:
            candidates = expand(beams.total_BK, scores_BKV, self.specials.eos, options.beam)
        for row in self._keep_finished(beams, candidates, log_probs_BKV, step_seen, options):
            if not options.sample:
                beams.worst_B[row] = beams.sentences[row].worst(options.n_best)
                if options.beam == 1:
                    candidates.live_BK[row] = NEVER
        best_B = candidates.live_BK.amax(-1)
        done_B = ~(best_B / beams.norms_B > beams.worst_B)  # also if the model computed NaN
        at_limit = [row for row, sentence in enumerate(beams.sentences) if lengths[row] >= sentence.limit]
        if at_limit:
            done_B[at_limit] = True
        done = done_B.nonzero().flatten().tolist()
        for row in done:
            sentence = beams.sentences[row]
            if not sentence.done:
                sentence.done = True
                if isnan(best := float(best_B[row])):
                    events.append(Event(sentence.request.id, error=NOT_FINITE.format(best)))
                else:
                    self._keep_unfinished(beams, row, candidates, options)
                    events.append(final_event(sentence))
        if len(done) == len(beams.sentences):
            return None
        if done:
            candidates.live_BK[done_B] = NEVER
        V = log_probs_BKV.shape[-1]
        log_prob_BK = log_probs_BKV.flatten(1).gather(1, candidates.parent_BK * V + candidates.token_BK)
        running = Running(
            beams.extend(candidates, log_prob_BK, step_seen),
            _select(step.state, candidates.parent_BK, step.logits_BKV.shape[1]),
            candidates.token_BK,
        )
        events.extend(stream_events(running.beams))
        if self._should_remove(running.beams.sentences, lengths, done):
            return running.keep((~done_B).nonzero().flatten())
        return running

    def _should_remove(self, sentences: Sequence[Sentence], lengths: Sequence[int], done: Sequence[int]) -> bool:
        """Whether to remove the sentences in these rows, which are done.

        That copies the others, and new ones can take the rows, so it waits until a quarter is done. But rows that are done grow
        on: they must not become much longer than the others, nor longer than a model can count.
        """
        if 4 * len(done) >= len(sentences):
            return True
        if self.model.traits.max_positions is not None:
            return any(lengths[row] >= sentences[row].request.limit for row in done)
        longest = max(length for length, sentence in zip(lengths, sentences, strict=True) if not sentence.done)
        return any(lengths[row] > 2 * longest + MOST_LONGER for row in done)

    def _keep_finished(
        self, beams: Beams, candidates: Candidates, log_probs_BKV: Tensor, step_seen: StepSeen | None, options: SearchOptions
    ) -> set[int]:
        """Adds the hypotheses that finish in this step to the kept ones, and returns the rows of their sentences."""
        row_E, slot_E = candidates.ended_BK.isfinite().nonzero(as_tuple=True)
        if not len(row_E):
            return set()
        parent_E = candidates.ended_parent_BK[row_E, slot_E]
        rows, parents = row_E.tolist(), parent_E.tolist()
        scores = candidates.ended_BK[row_E, slot_E].tolist()
        ids, log_probs = beams.ids_BKT[row_E, parent_E].tolist(), beams.log_probs_BKT[row_E, parent_E].tolist()
        lasts = log_probs_BKV[row_E, parent_E, self.specials.eos].tolist()
        for row, parent, score, written, before, last in zip(rows, parents, scores, ids, log_probs, lasts, strict=True):
            start = beams.sentences[row].start
            written, before = written[start:], before[start:]
            hypothesis = Hypothesis(
                tuple(written),
                sum(before) + last,
                rank_score=score / options.norm(len(written) + 1),
                finished=True,
                token_log_probs=(*before, last),
            )
            seen_steps = beams.seen_by(row, parent, step_seen) if step_seen is not None else ()
            beams.sentences[row].keep(Ended(hypothesis, seen_steps), options.n_best)
        return set(rows)

    def _keep_unfinished(self, beams: Beams, row: int, candidates: Candidates, options: SearchOptions) -> None:
        """If fewer than `n_best` hypotheses finished, adds the best unfinished ones."""
        sentence = beams.sentences[row]
        finished = {kept.hypothesis.ids for kept in sentence.kept}
        totals, live = beams.total_BK[row].tolist(), candidates.live_BK[row].tolist()
        for number in sorted(range(len(totals)), key=lambda number: -totals[number]):
            if len(sentence.kept) == options.n_best or totals[number] == NEVER:
                return
            if options.sample:  # equal samples are different outputs
                is_kept = live[number] == NEVER
            else:
                is_kept = tuple(beams.ids_BKT[row, number, sentence.start :].tolist()) in finished
            if not is_kept:
                self._keep_stopped(beams, row, number, options)

    def _keep_stopped(self, beams: Beams, row: int, number: int, options: SearchOptions) -> None:
        """Adds a hypothesis that is not finished to the kept ones."""
        sentence = beams.sentences[row]
        ids, log_probs = (tuple(part[row, number, sentence.start :].tolist()) for part in (beams.ids_BKT, beams.log_probs_BKT))
        rank_score = float(beams.total_BK[row, number]) / options.norm(max(1, len(ids)))
        stopped = Hypothesis(ids, sum(log_probs), rank_score, finished=False, token_log_probs=log_probs)
        sentence.keep(Ended(stopped, beams.seen_by(row, number)), options.n_best)


@dataclass(frozen=True)
class Sizes:
    """Sizes in bytes: of a hypothesis without tokens, of one of its tokens, of a source position, of a row of logits."""

    fixed: int
    per_token: int
    per_position: int
    logits: int


def _similar_outputs(requests: Sequence[Request], outputs: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yields the indices of requests that are run together: those with the same Look and of similar size, the longest first."""

    def size(index: int) -> int:
        return max(len(outputs[index]), requests[index].num_positions + 1)

    by_look: dict[Look | None, list[int]] = {}
    for index, request in enumerate(requests):
        if _is_captured_alone(request) or is_edited_alone(request):
            yield [index]
        else:
            by_look.setdefault(request.look, []).append(index)
    for same_look in by_look.values():
        batch: list[int] = []
        longest = 0
        for index in sorted(same_look, key=lambda index: (len(outputs[index]), size(index)), reverse=True):
            longest = max(longest, size(index))
            if batch and (len(batch) + 1) * longest > FORCED_POSITIONS:
                yield batch
                batch, longest = [], size(index)
            batch.append(index)
        yield batch


def _is_captured_alone(request: Request) -> bool:
    """Whether what the Look captures would depend on the padding of a batch: summaries and numbered rows."""
    return request.look is not None and any(tap.what == "summary" or tap.rows is not None for tap in request.look.taps)


def axes_of(allow_S: Array, memory_axes: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the axes of the memory of one sentence, without padding. memory_axes: those of its batch."""
    allow = allow_S.reshape(memory_axes)
    others = (tuple(axis for axis in range(allow.ndim) if axis != kept) for kept in range(allow.ndim))
    return tuple(int(allow.any(along).sum()) for along in others)


class Captured:
    """What was captured of a batch, sentence by sentence and without padding, as numpy arrays that do not hold the batch."""

    def __init__(self, seen: Sequence[Seen[Tensor]], requests: Sequence[Request], memory: Memory) -> None:
        self.arrays = [as_arrays(one) for one in seen]
        self.requests, self.memory_axes = requests, memory.axes
        self.allow_BS = as_array(memory.allow_BS)

    def axes(self, row: int) -> tuple[int, ...]:
        """Returns the axes of the memory of one sentence."""
        return axes_of(self.allow_BS[row], self.memory_axes)

    def seen(self, row: int, length: int) -> tuple[Seen[Array], ...]:
        """Returns what was captured of one sentence. length: the number of its target tokens."""
        if not self.arrays:
            return ()
        request, allow_S = self.requests[row], self.allow_BS[row]
        source: slice | Array = slice(int(allow_S.sum()))
        if not allow_S[source].all():
            source = np.flatnonzero(allow_S)  # a grid has padding at the end of each row
        target = slice(length)
        positions: dict[Kind, tuple[slice | Array, slice | Array]] = {
            "encoder": (source, source),
            "fusion": (source, slice(_num_auxiliary(request))),
            "decoder": (target, target),
            "cross": (target, source),
        }

        def part(seen: Seen[Array]) -> Seen[Array]:
            if _is_captured_alone(request) and (length or seen.kind in ("encoder", "fusion")):
                return seen  # there is no padding
            queries, keys = positions[seen.kind]
            weights_1HTS = seen.weights_BHTS[row : row + 1, :, queries][..., keys].copy()  # so that it does not hold the batch
            return replace(seen, rows=seen.rows[: weights_1HTS.shape[2]], weights_BHTS=weights_1HTS)

        return tuple(map(part, self.arrays))


def _num_auxiliary(request: Request) -> int:
    """Returns the number of positions of the auxiliary text of a request, <eos> included."""
    return len(request.source.text) + 1 if isinstance(request.source, FileAndText) else 0


def _padded(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    """Returns the rows as one tensor with at least one column, padded on the right with `filler`."""
    longest = max(1, *map(len, rows))
    return torch.tensor([[*row, *[filler] * (longest - len(row))] for row in rows], dtype=torch.long)


def _limit(request: Request, num_positions: int) -> int:
    """Returns the maximum number of tokens of an output. Without a source, only the limit of the request applies."""
    options = request.options
    if options.max_ratio is None or not num_positions:
        return request.limit
    ratio = min(options.max_ratio * num_positions, request.limit)  # int() fails for infinity
    return min(request.limit, max(1, options.min_length, len(request.prefix), int(ratio) + 10))


def _select(state: State, parents_BK: Tensor, num_before: int) -> State:
    """Returns the State of the live hypotheses: `state` itself if none of them moved, so that greedy search copies nothing."""
    same = torch.arange(parents_BK.shape[1], device=parents_BK.device)
    return state if parents_BK.shape[1] == num_before and bool((parents_BK == same).all()) else state.select(parents_BK)
