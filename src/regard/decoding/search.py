"""Beam search, greedy search and sampling, written once for every model that implements `Seq2Seq`.

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
<sos>.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.contracts import Event, Hypothesis
from regard.core.largest import largest
from regard.decoding.constraints import NEVER, constrain
from regard.decoding.scoring import token_log_probs
from regard.look import Look, Seen
from regard.models.contract import Seq2Seq, Source, State
from regard.options import SearchOptions

# B sentences  K hypotheses  V vocabulary  T tokens written  M best tokens of one row  N candidates of one sentence

StepSeen = tuple[Seen, ...]
"""The attention that the taps captured in one step, that is, while one token was written."""


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
    sorted_BKV, token_BKV = (scores_BKV.double() / options.temperature).sort(dim=-1, descending=True, stable=True)
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
    ends_BK = token_BK == eos
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

    limit: the maximum number of output tokens.  rng: its random number generator.
    start: the index in `ids_BKT` of its first token.
    kept: the best outputs so far, best first.  num_reported: the number of tokens already streamed.
    """

    number: int
    limit: int
    rng: random.Random
    start: int = 0
    kept: list[Ended] = field(default_factory=list)
    num_reported: int = 0
    done: bool = False

    def keep(self, output: Ended, n_best: int) -> None:
        """Adds an output, and prunes all but the best `n_best`; finished ones rank before those that were stopped."""
        self.kept.append(output)
        self.kept.sort(key=lambda kept: (kept.hypothesis.finished, kept.hypothesis.rank_score), reverse=True)
        del self.kept[n_best:]

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

    def join(self, new: Beams, sos: int) -> Beams:
        """Returns these sentences and new ones. The new ones have written only their prefix, so they are not longer."""
        (_, K, T), (num_new, new_K, new_T) = self.ids_BKT.shape, new.ids_BKT.shape
        for sentence in new.sentences:
            sentence.start = T - new_T
        return Beams(
            self.sentences + new.sentences,
            torch.cat((self.ids_BKT, F.pad(new.ids_BKT.expand(-1, K, -1), (T - new_T, 0), value=sos))),
            torch.cat((self.log_probs_BKT, F.pad(new.log_probs_BKT.expand(-1, K, -1), (T - new_T, 0)))),
            torch.cat((self.total_BK, F.pad(new.total_BK, (0, K - new_K), value=NEVER))),  # missing hypotheses are dead
            torch.cat((self.norms_B, new.norms_B)),
            torch.cat((self.worst_B, new.worst_B)),
            _map_weights(self.seen_steps, lambda weights_BHKS: F.pad(weights_BHKS, (0, 0) * 3 + (0, num_new))),
        )

    def seen_by(self, row: int, hypothesis: int, step_seen: StepSeen | None = None) -> tuple[StepSeen, ...]:
        """Returns the captured attention of one hypothesis, token by token; `step_seen` is that of the token being written."""
        return tuple(
            tuple(
                replace(seen, rows=(0,), weights_BHTS=seen.weights_BHTS[row : row + 1, :, hypothesis : hypothesis + 1])
                for seen in step
            )
            for step in (*self.seen_steps[self.sentences[row].start :], *(() if step_seen is None else (step_seen,)))
        )


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

    def keep(self, rows_N: Tensor) -> Running:
        """Returns only these sentences."""
        return Running(self.beams.keep(rows_N), self.state.keep(rows_N), self.ids_BK[rows_N])

    def join(self, others: Sequence[Running], sos: int) -> Running:
        """Returns these sentences and those of `others`, which have not taken a step yet."""
        if not others:
            return self
        K, beams, states = self.ids_BK.shape[1], self.beams, []
        for new in others:
            beams = beams.join(new.beams, sos)
            same_width = new.ids_BK.shape[1] == K
            states.append(new.state if same_width else new.state.select(new.ids_BK.new_zeros(new.num_sentences, K)))
        ids_BK = torch.cat((self.ids_BK, *(new.ids_BK.expand(-1, K) for new in others)))
        return Running(beams, self.state.join(*states), ids_BK)


# --- the engine --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TorchEngine:
    """The reference engine. It works with every model that implements `Seq2Seq`.

    sos, eos: the ids of <sos> and <eos>.  never: ids that no output may contain.
    """

    model: Seq2Seq
    sos: int
    eos: int
    never: tuple[int, ...]

    @torch.inference_mode()
    def generate(
        self,
        sources: Sequence[Source],
        options: SearchOptions,
        look: Look | None = None,
        *,
        numbers: Sequence[int] | None = None,
        room: int = 0,
    ) -> Iterator[Event]:
        """Searches for the outputs of all sentences and yields events; see `Engine.generate`.

        Raises ValueError if `look` has taps but options.stream is off.
        """
        if look is not None and look.taps and not options.stream:
            raise ValueError(
                "a Look with taps returns attention along with the streamed tokens, but stream is off; set stream=True"
            )
        number = iter(range(sum(source.num_sentences for source in sources)) if numbers is None else numbers)
        waiting = deque(sources)
        running: Running | None = None
        while waiting or running:
            parts = [running] if running else []
            while waiting and (not parts or sum(part.num_sentences for part in parts) + waiting[0].num_sentences <= room):
                source = waiting.popleft()
                parts.append(self._start(source, list(islice(number, source.num_sentences)), options, look))
            running = yield from self._step(parts[0].join(parts[1:], self.sos), options, look)

    def _start(self, source: Source, numbers: list[int], options: SearchOptions, look: Look | None) -> Running:
        """Encodes sentences and returns them before their first step. A prefix is read in one pass and counts as written."""
        memory = self.model.encode(source, look)
        device, B = memory.allow_BS.device, len(numbers)
        read_BT = torch.tensor([[self.sos, *options.prefix]] * B, device=device)
        state = self.model.start(memory, read_BT[:, :-1] if options.prefix else None)
        log_probs_BT = torch.zeros(B, 0, device=device)
        if options.prefix:
            log_probs_BT = token_log_probs(self.model.decode(read_BT[:, :-1], memory).logits_BTV, read_BT[:, 1:])
        total_B = log_probs_BT.to(_widest(device)).sum(-1)
        K = options.n_best if options.sample else 1
        if K > 1:
            state = state.select(torch.zeros(B, K, dtype=torch.long, device=device))
        limits = [_limit(num_positions, options) for num_positions in memory.allow_BS.sum(-1).tolist()]
        beams = Beams(
            [
                Sentence(number, limit, random.Random(f"{options.seed}/{number}"))
                for number, limit in zip(numbers, limits, strict=True)
            ],
            read_BT[:, None, 1:].expand(-1, K, -1),
            log_probs_BT[:, None].expand(-1, K, -1),
            total_B[:, None].expand(-1, K),
            total_B.new_tensor([options.norm(limit + 1) for limit in limits]),
            torch.full_like(total_B, NEVER),
            [() for _ in options.prefix],
        )
        return Running(beams, state, read_BT[:, -1:].expand(-1, K))

    def _step(self, running: Running, options: SearchOptions, look: Look | None) -> Generator[Event, None, Running | None]:
        """Advances all sentences by one token. Returns those that are not done, or None if all are."""
        beams = running.beams
        step = self.model.step(running.ids_BK, running.state, look)
        step_seen = step.seen if look is not None and options.stream else None
        log_probs_BKV = step.logits_BKV.log_softmax(-1)
        lengths = beams.lengths()
        scores_BKV = constrain(log_probs_BKV, beams.ids_BKT, lengths, options, self.eos, self.never)
        if options.sample:
            uniform = [[sentence.rng.random() for _ in range(options.n_best)] for sentence in beams.sentences]
            uniform_BK = torch.tensor(uniform, dtype=torch.float64).to(running.ids_BK.device)
            candidates = sample(beams.total_BK, scores_BKV, self.eos, uniform_BK, options)
        else:
            candidates = expand(beams.total_BK, scores_BKV, self.eos, options.beam)
        for row in self._keep_finished(beams, candidates, log_probs_BKV, step_seen, options):
            if not options.sample:
                beams.worst_B[row] = beams.sentences[row].worst(options.n_best)
                if options.beam == 1:
                    candidates.live_BK[row] = NEVER
        at_limit = [row for row, sentence in enumerate(beams.sentences) if lengths[row] >= sentence.limit]
        if at_limit:
            candidates.live_BK[at_limit] = NEVER
        done_B = candidates.live_BK.amax(-1) / beams.norms_B <= beams.worst_B
        done = done_B.nonzero().flatten().tolist()
        for row in done:
            sentence = beams.sentences[row]
            if not sentence.done:
                self._keep_unfinished(beams, row, options)
                sentence.done = True
                yield _final_event(sentence)
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
        if options.stream:
            yield from _stream_events(running.beams)
        if 4 * len(done) >= len(beams.sentences):  # removing sentences copies the others, so wait until it pays
            return running.keep((~done_B).nonzero().flatten())
        return running

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
        lasts = log_probs_BKV[row_E, parent_E, self.eos].tolist()
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

    def _keep_unfinished(self, beams: Beams, row: int, options: SearchOptions) -> None:
        """If fewer than `n_best` hypotheses finished, adds the best unfinished ones."""
        sentence = beams.sentences[row]
        finished = {kept.hypothesis.ids for kept in sentence.kept}
        totals = beams.total_BK[row].tolist()
        for number in sorted(range(len(totals)), key=lambda number: -totals[number]):
            ids = tuple(beams.ids_BKT[row, number, sentence.start :].tolist())
            if len(sentence.kept) == options.n_best or totals[number] == NEVER:
                return
            if ids in finished and not options.sample:
                continue
            log_probs = tuple(beams.log_probs_BKT[row, number, sentence.start :].tolist())
            rank_score = totals[number] / options.norm(max(1, len(ids)))
            stopped = Hypothesis(ids, sum(log_probs), rank_score, finished=False, token_log_probs=log_probs)
            sentence.keep(Ended(stopped, beams.seen_by(row, number)), options.n_best)


def _limit(num_positions: int, options: SearchOptions) -> int:
    """Returns the maximum number of tokens of an output. Without a source, only max_length applies."""
    if options.max_ratio is None or not num_positions:
        return options.max_length
    ratio = min(options.max_ratio * num_positions, options.max_length)  # int() fails for infinity
    return max(1, options.min_length, len(options.prefix), min(options.max_length, int(ratio) + 10))


def _widest(device: torch.device) -> torch.dtype:
    """Returns the most precise floating-point type of a device."""
    return torch.float32 if device.type == "mps" else torch.float64


def _select(state: State, parents_BK: Tensor, num_before: int) -> State:
    """Returns the State of the live hypotheses: `state` itself if none of them moved, so that greedy search copies nothing."""
    same = torch.arange(parents_BK.shape[1], device=parents_BK.device)
    return state if parents_BK.shape[1] == num_before and bool((parents_BK == same).all()) else state.select(parents_BK)


# --- streaming ---------------------------------------------------------------------------------------------------------------


def _stream_events(beams: Beams) -> Iterator[Event]:
    """Yields the tokens of each sentence that have become certain.

    These are the tokens that all live hypotheses and the best finished one start with: the output will be one of these
    hypotheses or a continuation of one. The common prefix only grows.
    """
    alive_BK = beams.total_BK.isfinite()
    best_B = beams.total_BK.argmax(-1).tolist()
    for row, sentence in enumerate(beams.sentences):
        if sentence.done:
            continue
        written_KT = beams.ids_BKT[row, :, sentence.start :]
        rivals = [tuple(ids) for ids in written_KT[alive_BK[row]].tolist()]
        if sentence.kept:
            rivals.append(sentence.kept[0].hypothesis.ids)
        common = common_prefix(rivals)
        best = tuple(written_KT[best_B[row]].tolist())
        certain, tail = best[sentence.num_reported : common], best[common:]
        seen_steps = beams.seen_by(row, best_B[row])[sentence.num_reported : common] if beams.seen_steps else ()
        sentence.num_reported = common
        yield Event(sentence.number, certain, tail, seen=tuple(seen for step in seen_steps for seen in step))


def _final_event(sentence: Sentence) -> Event:
    """Returns the event that ends a sentence, with its n-best list."""
    best = sentence.kept[0]
    seen = tuple(seen for step in best.seen_steps[sentence.num_reported : len(best.hypothesis.ids)] for seen in step)
    hypotheses = tuple(kept.hypothesis for kept in sentence.kept)
    return Event(sentence.number, best.hypothesis.ids[sentence.num_reported :], hypotheses=hypotheses, seen=seen)


def common_prefix(sequences: Sequence[tuple[int, ...]]) -> int:
    """Returns the length of the longest prefix that all sequences share."""
    first, last = min(sequences), max(sequences)  # the first and last in lexicographic order have the shortest common prefix
    length = next((index for index, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), None)
    return min(len(first), len(last)) if length is None else length
