"""Search, written once over `step`: it knows no model, only the contract.

A sentence has K live hypotheses, which are K query rows of one `step`. Each step

1. `choose` ranks all continuations by log-probability: those among the best K that are <eos> end a hypothesis, and the best K
   others live on. Drawing (`draw`) fills the same form: each hypothesis ends or lives on by itself.
2. Ended hypotheses are kept, the best `n_best` by rank score; the others live on with the caches of their parents.
3. A sentence is done when nothing that lives can still get into the list of the kept.

Step 3 is exact. Log-probabilities are at most 0, so the score s ≤ 0 of a live hypothesis can only fall; and the norm can only
grow, up to norm(limit + 1). Whatever it ends as, with s' ≤ s and n ≤ limit + 1 tokens, its rank score is s'/norm(n) ≤ s/norm(n)
≤ s/norm(limit + 1). If this is not above the rank score of the worst one kept, no step that could follow changes the outcome.
Greedy search (a beam of 1) is done at the first <eos>.

Sentences leave when they are done, and those that wait enter where there is room, so the rows of a step are at different places
of their outputs. What they wrote ends at the same place, with the newest token; an output that began later has <sos> before it.
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

from regard.contracts import Event, Hypothesis, Look, SearchOptions, Seen, Seq2Seq, Source, State
from regard.core.largest import largest
from regard.decoding.constraints import NEVER, constrain
from regard.decoding.scoring import of_tokens

# B sentences  K hypotheses  V vocabulary  T tokens written  M best tokens of one row  N candidates of one sentence

Sight = tuple[Seen, ...]
"""What the taps saw while one token was written."""


# --- the choice of candidates ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidates:
    """Where a step goes on. Scores of −∞ mark places that nobody fills.

    live: score, the hypothesis it grew from, its new token.  ended: score with <eos>, the hypothesis that ended.
    """

    live_BK: Tensor
    parent_BK: Tensor
    token_BK: Tensor
    ended_BK: Tensor
    ended_parent_BK: Tensor


def choose(total_BK: Tensor, scores_BKV: Tensor, eos: int, keep: int) -> Candidates:
    """The best `keep` continuations: which of them end, and with which others `keep` hypotheses live on.

    A row can end in one way only, so its best keep + 1 tokens hold all that could be wanted of it.
    """
    best_BKM, token_BKM = largest(scores_BKV, min(keep + 1, scores_BKV.shape[-1]))
    all_BN = (total_BK.unsqueeze(-1) + best_BKM).flatten(1)
    if (missing := 2 * keep - all_BN.shape[1]) > 0:  # few words: fill up with candidates that cannot win
        all_BN = F.pad(all_BN, (0, missing), value=NEVER)
    score_BN, at_BN = all_BN.topk(2 * keep)
    at_BN = at_BN.clamp(max=token_BKM[0].numel() - 1)
    parent_BN, token_BN = at_BN // token_BKM.shape[-1], token_BKM.flatten(1).gather(1, at_BN)
    ends_BN = token_BN == eos
    live_BK, at_BK = score_BN.masked_fill(ends_BN, NEVER).topk(keep)
    ended_BK = score_BN[:, :keep].masked_fill(~ends_BN[:, :keep], NEVER)
    return Candidates(live_BK, parent_BN.gather(1, at_BK), token_BN.gather(1, at_BK), ended_BK, parent_BN[:, :keep])


def draw(total_BK: Tensor, scores_BKV: Tensor, eos: int, chance_BK: Tensor, options: SearchOptions) -> Candidates:
    """Each hypothesis draws its next token. chance: one number in [0, 1) each, which decides."""
    sorted_BKV, token_BKV = (scores_BKV.double() / options.temperature).sort(dim=-1, descending=True, stable=True)
    if options.top_k:
        sorted_BKV = sorted_BKV[..., : options.top_k]
    share_BKV = sorted_BKV.softmax(-1)
    before_BKV = share_BKV.cumsum(-1) - share_BKV
    share_BKV = share_BKV.masked_fill(before_BKV >= options.top_p, 0.0)
    reach_BKV = share_BKV.cumsum(-1)
    at_BK1 = (reach_BKV <= chance_BK.unsqueeze(-1) * reach_BKV[..., -1:]).sum(-1, keepdim=True)
    token_BK1 = token_BKV.gather(-1, at_BK1.clamp(max=sorted_BKV.shape[-1] - 1))
    score_BK = total_BK + scores_BKV.gather(-1, token_BK1).squeeze(-1)
    token_BK = token_BK1.squeeze(-1)
    itself_BK = torch.arange(token_BK.shape[1], device=token_BK.device).expand_as(token_BK)
    ends_BK = token_BK == eos
    live_BK, ended_BK = score_BK.masked_fill(ends_BK, NEVER), score_BK.masked_fill(~ends_BK, NEVER)
    return Candidates(live_BK, itself_BK, token_BK, ended_BK, itself_BK)


# --- the sentences of one batch ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """An output, and what was seen while each of its tokens was written."""

    hypothesis: Hypothesis
    sights: tuple[Sight, ...]


@dataclass
class Sentence:
    """The part of a sentence that is not a tensor. begin: the place among `ids_BKT` where its output begins."""

    number: int
    limit: int
    chance: random.Random
    begin: int = 0
    kept: list[Ended] = field(default_factory=list)
    num_reported: int = 0
    done: bool = False

    def keep(self, ended: Ended, most: int) -> None:
        self.kept.append(ended)
        self.kept.sort(key=lambda one: (one.hypothesis.finished, one.hypothesis.rank_score), reverse=True)
        del self.kept[most:]

    def worst(self, most: int) -> float:
        """What a new hypothesis must beat."""
        return self.kept[-1].hypothesis.rank_score if len(self.kept) == most else NEVER


@dataclass
class Beams:
    """What the hypotheses of a batch have written. `total` is what the search sorts by, `log_prob` what the model says: they
    differ where repetitions are penalised. −∞ marks a hypothesis that lives no more.

    norms: of the longest output that a sentence may have. worst: what a hypothesis must beat to be kept.
    """

    sentences: list[Sentence]
    ids_BKT: Tensor
    log_probs_BKT: Tensor
    total_BK: Tensor
    norms_B: Tensor
    worst_B: Tensor
    sights: list[Sight]

    def lengths(self) -> list[int]:
        """How many tokens the hypotheses of each sentence have."""
        return [self.ids_BKT.shape[-1] - one.begin for one in self.sentences]

    def grown(self, candidates: Candidates, log_prob_BK: Tensor, sight: Sight | None) -> Beams:
        """One token more."""
        rows_B1 = torch.arange(len(self.sentences), device=candidates.parent_BK.device)[:, None]
        sights = self.sights if sight is None else [*self.sights, sight]
        return replace(
            self,
            ids_BKT=torch.cat((self.ids_BKT[rows_B1, candidates.parent_BK], candidates.token_BK.unsqueeze(-1)), dim=-1),
            log_probs_BKT=torch.cat((self.log_probs_BKT[rows_B1, candidates.parent_BK], log_prob_BK.unsqueeze(-1)), dim=-1),
            total_BK=candidates.live_BK,
            sights=_each(sights, lambda weights_BHKS: weights_BHKS[rows_B1, :, candidates.parent_BK].transpose(1, 2)),
        )

    def remaining(self, rows_N: Tensor) -> Beams:
        """Only these sentences; the places before the first of their tokens go too."""
        sentences = [self.sentences[row] for row in rows_N.tolist()]
        first = min(one.begin for one in sentences)
        for sentence in sentences:
            sentence.begin -= first
        return Beams(
            sentences,
            self.ids_BKT[rows_N, :, first:],
            self.log_probs_BKT[rows_N, :, first:],
            self.total_BK[rows_N],
            self.norms_B[rows_N],
            self.worst_B[rows_N],
            _each(self.sights[first:], lambda weights_BHKS: weights_BHKS[rows_N]),
        )

    def joined(self, new: Beams, sos: int) -> Beams:
        """With sentences that have written nothing but the prefix, and so no more than those that are here."""
        (_, K, T), (more, own, short) = self.ids_BKT.shape, new.ids_BKT.shape
        for sentence in new.sentences:
            sentence.begin = T - short
        return Beams(
            self.sentences + new.sentences,
            torch.cat((self.ids_BKT, F.pad(new.ids_BKT.expand(-1, K, -1), (T - short, 0), value=sos))),
            torch.cat((self.log_probs_BKT, F.pad(new.log_probs_BKT.expand(-1, K, -1), (T - short, 0)))),
            torch.cat((self.total_BK, F.pad(new.total_BK, (0, K - own), value=NEVER))),  # those that they lack live no more
            torch.cat((self.norms_B, new.norms_B)),
            torch.cat((self.worst_B, new.worst_B)),
            _each(self.sights, lambda weights_BHKS: F.pad(weights_BHKS, (0, 0) * 3 + (0, more))),
        )

    def one(self, row: int, hypothesis: int, sight: Sight | None = None) -> tuple[Sight, ...]:
        """What hypothesis k of a sentence saw, token by token; `sight` belongs to the token that is being written."""
        return tuple(
            tuple(
                replace(seen, rows=(0,), weights_BHTS=seen.weights_BHTS[row : row + 1, :, hypothesis : hypothesis + 1])
                for seen in each
            )
            for each in (*self.sights[self.sentences[row].begin :], *(() if sight is None else (sight,)))
        )


def _each(sights: Sequence[Sight], change: Callable[[Tensor], Tensor]) -> list[Sight]:
    return [tuple(replace(one, weights_BHTS=change(one.weights_BHTS)) for one in each) for each in sights]


@dataclass(frozen=True)
class Running:
    """The sentences that are searched now: what they have written, and the token of each hypothesis that is read next."""

    beams: Beams
    state: State
    ids_BK: Tensor

    @property
    def num_sentences(self) -> int:
        return len(self.beams.sentences)

    def remaining(self, rows_N: Tensor) -> Running:
        return Running(self.beams.remaining(rows_N), self.state.keep(rows_N), self.ids_BK[rows_N])

    def joined(self, news: Sequence[Running], sos: int) -> Running:
        """With sentences that are about to begin."""
        if not news:
            return self
        K, beams, states = self.ids_BK.shape[1], self.beams, []
        for new in news:
            beams = beams.joined(new.beams, sos)
            wide = new.ids_BK.shape[1] == K
            states.append(new.state if wide else new.state.select(new.ids_BK.new_zeros(new.num_sentences, K)))
        ids_BK = torch.cat((self.ids_BK, *(new.ids_BK.expand(-1, K) for new in news)))
        return Running(beams, self.state.join(*states), ids_BK)


# --- the engine --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TorchEngine:
    """The reference engine: it searches with any model that keeps the contract. `never` are ids that no output may contain."""

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
        if look is not None and look.taps and not options.stream:
            raise ValueError("what a Look sees comes with the tokens, but stream is off; set stream=True")
        number = iter(range(sum(source.num_sentences for source in sources)) if numbers is None else numbers)
        waiting = deque(sources)
        running: Running | None = None
        while waiting or running:
            parts = [running] if running else []
            while waiting and (not parts or sum(one.num_sentences for one in parts) + waiting[0].num_sentences <= room):
                source = waiting.popleft()
                parts.append(self._begin(source, list(islice(number, source.num_sentences)), options, look))
            running = yield from self._step(parts[0].joined(parts[1:], self.sos), options, look)

    def _begin(self, source: Source, numbers: list[int], options: SearchOptions, look: Look | None) -> Running:
        """Sentences as they stand before their first step. A prefix is read at once; it counts like tokens that were chosen."""
        memory = self.model.encode(source, look)
        device, B = memory.allow_BS.device, len(numbers)
        begun = torch.tensor([[self.sos, *options.prefix]] * B, device=device)
        state = self.model.start(memory, begun[:, :-1] if options.prefix else None)
        log_probs_BT = torch.zeros(B, 0, device=device)
        if options.prefix:
            log_probs_BT = of_tokens(self.model.decode(begun[:, :-1], memory).logits_BTV, begun[:, 1:])
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
            begun[:, None, 1:].expand(-1, K, -1),
            log_probs_BT[:, None].expand(-1, K, -1),
            total_B[:, None].expand(-1, K),
            total_B.new_tensor([options.norm(limit + 1) for limit in limits]),
            torch.full_like(total_B, NEVER),
            [() for _ in options.prefix],
        )
        return Running(beams, state, begun[:, -1:].expand(-1, K))

    def _step(self, running: Running, options: SearchOptions, look: Look | None) -> Generator[Event, None, Running | None]:
        """One token further; what goes on, or None."""
        beams = running.beams
        step = self.model.step(running.ids_BK, running.state, look)
        sight = step.seen if look is not None and options.stream else None
        log_probs_BKV = step.logits_BKV.log_softmax(-1)
        lengths = beams.lengths()
        scores_BKV = constrain(log_probs_BKV, beams.ids_BKT, lengths, options, self.eos, self.never)
        if options.sample:
            chances = [[one.chance.random() for _ in range(options.n_best)] for one in beams.sentences]
            chance_BK = torch.tensor(chances, dtype=torch.float64).to(running.ids_BK.device)
            candidates = draw(beams.total_BK, scores_BKV, self.eos, chance_BK, options)
        else:
            candidates = choose(beams.total_BK, scores_BKV, self.eos, options.beam)
        for row in self._end(beams, candidates, log_probs_BKV, sight, options):
            if not options.sample:
                beams.worst_B[row] = beams.sentences[row].worst(options.n_best)
                if options.beam == 1:
                    candidates.live_BK[row] = NEVER
        over = [row for row, one in enumerate(beams.sentences) if lengths[row] >= one.limit]
        if over:
            candidates.live_BK[over] = NEVER
        done_B = candidates.live_BK.amax(-1) / beams.norms_B <= beams.worst_B
        done = done_B.nonzero().flatten().tolist()
        for row in done:
            sentence = beams.sentences[row]
            if not sentence.done:
                self._fill(beams, row, options)
                sentence.done = True
                yield _last(sentence)
        if len(done) == len(beams.sentences):
            return None
        if done:
            candidates.live_BK[done_B] = NEVER
        V = log_probs_BKV.shape[-1]
        log_prob_BK = log_probs_BKV.flatten(1).gather(1, candidates.parent_BK * V + candidates.token_BK)
        running = Running(
            beams.grown(candidates, log_prob_BK, sight),
            _selected(step.state, candidates.parent_BK, step.logits_BKV.shape[1]),
            candidates.token_BK,
        )
        if options.stream:
            yield from _news(running.beams)
        if 4 * len(done) >= len(beams.sentences):  # to leave costs a copy of the others: wait until it pays
            return running.remaining((~done_B).nonzero().flatten())
        return running

    def _end(
        self, beams: Beams, candidates: Candidates, log_probs_BKV: Tensor, sight: Sight | None, options: SearchOptions
    ) -> set[int]:
        """Puts the hypotheses that end here among the kept; gives the rows of their sentences."""
        row_E, slot_E = candidates.ended_BK.isfinite().nonzero(as_tuple=True)
        if not len(row_E):
            return set()
        parent_E = candidates.ended_parent_BK[row_E, slot_E]
        rows, parents = row_E.tolist(), parent_E.tolist()
        scores = candidates.ended_BK[row_E, slot_E].tolist()
        ids, log_probs = beams.ids_BKT[row_E, parent_E].tolist(), beams.log_probs_BKT[row_E, parent_E].tolist()
        lasts = log_probs_BKV[row_E, parent_E, self.eos].tolist()
        for row, parent, score, written, before, last in zip(rows, parents, scores, ids, log_probs, lasts, strict=True):
            begin = beams.sentences[row].begin
            written, before = written[begin:], before[begin:]
            hypothesis = Hypothesis(
                tuple(written),
                sum(before) + last,
                rank_score=score / options.norm(len(written) + 1),
                finished=True,
                token_log_probs=(*before, last),
            )
            sights = beams.one(row, parent, sight) if sight is not None else ()
            beams.sentences[row].keep(Ended(hypothesis, sights), options.n_best)
        return set(rows)

    def _fill(self, beams: Beams, row: int, options: SearchOptions) -> None:
        """Where fewer outputs came to an end than are wanted: the best of those that were stopped."""
        sentence = beams.sentences[row]
        ended = {one.hypothesis.ids for one in sentence.kept}
        totals = beams.total_BK[row].tolist()
        for number in sorted(range(len(totals)), key=lambda number: -totals[number]):
            ids = tuple(beams.ids_BKT[row, number, sentence.begin :].tolist())
            if len(sentence.kept) == options.n_best or totals[number] == NEVER:
                return
            if ids in ended and not options.sample:
                continue
            log_probs = tuple(beams.log_probs_BKT[row, number, sentence.begin :].tolist())
            rank_score = totals[number] / options.norm(max(1, len(ids)))
            stopped = Hypothesis(ids, sum(log_probs), rank_score, finished=False, token_log_probs=log_probs)
            sentence.keep(Ended(stopped, beams.one(row, number)), options.n_best)


def _limit(num_positions: int, options: SearchOptions) -> int:
    """How many tokens an output may have. Where there is no source, only max_length counts."""
    if options.max_ratio is None or not num_positions:
        return options.max_length
    ratio = min(options.max_ratio * num_positions, options.max_length)  # an infinite number has no whole part
    return max(1, options.min_length, len(options.prefix), min(options.max_length, int(ratio) + 10))


def _widest(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def _selected(state: State, parents_BK: Tensor, num_before: int) -> State:
    """The State of the hypotheses that live on; itself where each follows itself, so that greedy search copies nothing."""
    same = torch.arange(parents_BK.shape[1], device=parents_BK.device)
    return state if parents_BK.shape[1] == num_before and bool((parents_BK == same).all()) else state.select(parents_BK)


# --- streaming ---------------------------------------------------------------------------------------------------------------


def _news(beams: Beams) -> Iterator[Event]:
    """Of each sentence the tokens that all that can still win have in common: all live hypotheses and the best one that ended.

    Whatever wins is one of them or grows out of one, so these tokens are certain; and they only become more.
    """
    alive_BK = beams.total_BK.isfinite()
    best_B = beams.total_BK.argmax(-1).tolist()
    for row, sentence in enumerate(beams.sentences):
        if sentence.done:
            continue
        written_KT = beams.ids_BKT[row, :, sentence.begin :]
        rivals = [tuple(ids) for ids in written_KT[alive_BK[row]].tolist()]
        if sentence.kept:
            rivals.append(sentence.kept[0].hypothesis.ids)
        common = shared(rivals)
        best = tuple(written_KT[best_B[row]].tolist())
        certain, tail = best[sentence.num_reported : common], best[common:]
        sights = beams.one(row, best_B[row])[sentence.num_reported : common] if beams.sights else ()
        sentence.num_reported = common
        yield Event(sentence.number, certain, tail, seen=tuple(seen for sight in sights for seen in sight))


def _last(sentence: Sentence) -> Event:
    best = sentence.kept[0]
    seen = tuple(seen for sight in best.sights[sentence.num_reported : len(best.hypothesis.ids)] for seen in sight)
    hypotheses = tuple(one.hypothesis for one in sentence.kept)
    return Event(sentence.number, best.hypothesis.ids[sentence.num_reported :], hypotheses=hypotheses, seen=seen)


def shared(sequences: Sequence[tuple[int, ...]]) -> int:
    """How many tokens all of them begin with."""
    first, last = min(sequences), max(sequences)  # in the order of a dictionary, these differ first
    length = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), None)
    return min(len(first), len(last)) if length is None else length
