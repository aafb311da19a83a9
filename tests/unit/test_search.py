"""Search on a hand-written table of probabilities: no model, only the contract."""

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from searching import make_engine, make_requests, outputs, run, run_joining
from torch import Tensor

from regard.contracts import Event, Hypothesis, Traits
from regard.core.largest import largest
from regard.core.source import Source
from regard.decoding.constraints import forbid_repeats, forbid_sequence, penalise_repetition
from regard.decoding.search import Ended, Sentence, common_prefix, expand, sample
from regard.decoding.torch_engine import TorchEngine
from regard.errors import UserError
from regard.models.contract import Decoded, Memory, Step
from regard.models.state import BatchState, per_hypothesis, per_sentence
from regard.options import SearchOptions

PAD, SOS, EOS, A, B, C = range(6)
# Probabilities of the next token; the source selects the table. Rows: the previous token; columns: PAD SOS EOS A B C.
TABLES = {
    1: {SOS: [0, 0, 0.1, 0.6, 0.3, 0], A: [0, 0, 0.3, 0.1, 0.6, 0], B: [0, 0, 0.8, 0.1, 0.1, 0]},  # a b </s>
    2: {SOS: [0, 0, 0.9, 0.1, 0, 0], A: [0, 0, 0.5, 0.5, 0, 0]},  # ends immediately
    3: {SOS: [0.5, 0.3, 0, 0.2, 0, 0], A: [0, 0, 0.1, 0.9, 0, 0]},  # prefers tokens that are never allowed, then does not stop
    4: {  # greedy search takes A, the worse start: A B </s> has 0.6 · 0.4 · 0.4, B C </s> has 0.4 · 0.9 · 0.9
        SOS: [0, 0, 0, 0.6, 0.4, 0],
        A: [0, 0, 0.3, 0.3, 0.4, 0],
        B: [0, 0, 0.05, 0, 0.05, 0.9],
        C: [0, 0, 0.9, 0.05, 0.05, 0],
    },
}


@dataclass(kw_only=True)
class TableState(BatchState):
    which_B: Tensor = per_sentence()
    past_BKT: Tensor = per_hypothesis(grows=2)


def following(which: int, past: tuple[int, ...]) -> list[float]:
    """Next probabilities by the last token. Tables from 100 on are random and depend on the whole past, so no outputs tie."""
    if which < 100:
        return TABLES[which].get(past[-1], [1.0, 0, 0, 0, 0, 0])
    chance = random.Random(f"{which}/{past}")
    row = [0, 0, *(chance.random() ** 3 for _ in range(4))]
    return [weight / sum(row) for weight in row]


@dataclass(frozen=True, eq=False)
class TableDecoded(Decoded):
    logits_BTV: Tensor

    def distribution(self) -> Tensor:
        return self.logits_BTV.log_softmax(-1)


class TableModel:
    """Looks up the next probabilities in the sentence's table, by the tokens of the hypothesis."""

    traits = Traits()

    def encode(self, source: Source, look: None = None) -> Memory:
        which = source.values[:, :1, None].float()
        return Memory(which, source.allow, which[:, 0], axes=(1,))

    def start(self, memory: Memory, prefix_BP: Tensor | None = None) -> TableState:
        which = memory.summary_BE[:, 0].long()
        past_BP = which[:, None][:, :0] if prefix_BP is None else prefix_BP
        lengths_B = torch.full_like(which, past_BP.shape[1])
        return TableState(lengths_B=lengths_B, which_B=which, past_BKT=past_BP[:, None])

    def step(self, ids_BK: Tensor, state: TableState, look: None = None) -> Step:
        state.check_ids(ids_BK)
        state.spend()
        past_BKT = torch.cat((state.past_BKT, ids_BK.unsqueeze(-1)), dim=-1)
        rows = [
            [following(which, tuple(token for token in past if token != PAD)) for past in pasts]
            for which, pasts in zip(state.which_B.tolist(), past_BKT.tolist(), strict=True)
        ]
        after = TableState(lengths_B=state.lengths_B + 1, which_B=state.which_B, past_BKT=past_BKT)
        return Step(torch.tensor(rows, dtype=torch.float64).log().clamp(min=-1e4), after)

    def decode(self, ids_BT: Tensor, memory: Memory, look: None = None) -> TableDecoded:
        state, logits = self.start(memory), []
        for ids_B1 in ids_BT.split(1, dim=1):
            step = self.step(ids_B1, state)
            logits.append(step.logits_BKV)
            state = step.state  # type: ignore[assignment]
        return TableDecoded(torch.cat(logits, dim=1))


def table_engine(model: TableModel | None = None) -> TorchEngine:
    return make_engine(model or TableModel(), sos=SOS, eos=EOS, never=(PAD, SOS))


def search(*batches: list[int], **given: Any) -> list[Event]:
    """Searches batches of sentences, one batch after the other; a sentence is the number of its table."""
    events, first = [], 0
    for batch in batches:
        events += run(table_engine(), make_requests([[table] for table in batch], first, **given))
        first += len(batch)
    return events


def hypotheses_of(*batches: list[int], **given: Any) -> dict[int, tuple[Hypothesis, ...]]:
    return {event.id: event.hypotheses for event in search(*batches, **given) if event.hypotheses}


def every_output(table: int, max_length: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yields all outputs that end, with their log-probabilities, by enumerating all sequences."""
    for length in range(max_length + 1):
        for ids in itertools.product((A, B, C), repeat=length):
            whole = (SOS, *ids, EOS)
            chances = [following(table, whole[:index])[whole[index]] for index in range(1, len(whole))]
            if all(chances):
                yield ids, sum(map(math.log, chances))


def test_greedy_follows_the_table() -> None:  # SPEC A7.5
    events = search([1, 2], [1], max_length=10, stream=True, length_penalty=0.0)
    ends = {event.id: event.hypotheses[0] for event in events if event.hypotheses}
    assert [ends[number].ids for number in range(3)] == [(A, B), (), (A, B)]
    assert ends[0].log_prob == pytest.approx(math.log(0.6 * 0.6 * 0.8))
    assert ends[0].token_log_probs == pytest.approx([math.log(0.6), math.log(0.6), math.log(0.8)])
    assert ends[1].log_prob == pytest.approx(math.log(0.9))
    assert all(end.finished and end.rank_score == pytest.approx(end.log_prob) for end in ends.values())
    streamed = [event.ids for event in events if event.id == 0]
    assert streamed == [(A,), (B,), ()]
    assert [event.ids for event in search([1], max_length=10)] == [(A, B)]  # without a stream, all at once


def test_an_output_that_does_not_end_is_stopped_and_marked() -> None:
    (*growing, end) = search([3], max_length=4, stream=True)
    assert end.hypotheses[0].ids == (A, A, A, A)
    assert not end.hypotheses[0].finished
    assert end.hypotheses[0].log_prob == pytest.approx(math.log(0.2 * 0.9**3))
    assert end.hypotheses[0].rank_score == pytest.approx(end.hypotheses[0].log_prob / ((5 + 4) / 6) ** 0.6)  # without <eos>
    assert [event.ids for event in growing] == [(A,)] * 4
    (*_, end) = search([1], max_length=2)  # exactly long enough
    assert end.hypotheses[0].finished


@pytest.mark.parametrize("table", [2, 101, 102])
@pytest.mark.parametrize("penalty", [0.0, 0.6, 2.0, "mean"])
def test_a_beam_that_holds_everything_equals_enumeration(table: int, penalty: float | str) -> None:
    options = SearchOptions(beam=400, n_best=17, max_length=5, length_penalty=penalty)  # type: ignore[arg-type]
    everything = sorted(every_output(table, 5), key=lambda one: one[1] / options.norm(len(one[0]) + 1), reverse=True)
    ours = hypotheses_of([table], beam=400, n_best=17, max_length=5, length_penalty=penalty)[0]
    ours = tuple(one for one in ours if one.finished and one.log_prob > -1e3)  # the table says log 0 = −10⁴
    assert len(ours) == min(17, len(everything))
    for one, (ids, log_prob) in zip(ours, everything, strict=False):
        assert one.ids == ids
        assert one.log_prob == pytest.approx(log_prob)
        assert one.rank_score == pytest.approx(log_prob / options.norm(len(ids) + 1))


def test_a_beam_finds_what_greedy_search_misses() -> None:
    assert hypotheses_of([4])[0][0].ids == (A, B, C)
    (best,) = hypotheses_of([4], beam=2, length_penalty=0.0)[0]
    assert best.ids == (B, C)
    assert best.log_prob == pytest.approx(math.log(0.4 * 0.9 * 0.9))


def reference_beam(table: int, beam: int, n_best: int, max_length: int, options: SearchOptions) -> list[tuple[int, ...]]:
    """The same search, hypothesis by hypothesis, and without stopping early."""
    live, ended = [((), 0.0)], []
    for length in range(max_length + 1):
        grown = [
            ((*ids, token), total + math.log(chance))
            for ids, total in live
            for token, chance in enumerate(following(table, (SOS, *ids)))
            if chance and token not in (PAD, SOS)
        ]
        grown.sort(key=lambda one: -one[1])
        ended += [(ids[:-1], total / options.norm(length + 1)) for ids, total in grown[:beam] if ids[-1] == EOS]
        live = [one for one in grown if one[0][-1] != EOS][:beam]
    return [ids for ids, _ in sorted(ended, key=lambda one: -one[1])[:n_best]]


@pytest.mark.parametrize("penalty", [0.0, 0.6, 3.0, "mean"])
def test_stopping_early_changes_nothing(penalty: float | str) -> None:
    """On random tables, a search that does not stop early finds the same outputs."""
    for number in range(100, 120):
        for beam, n_best in ((2, 1), (3, 3), (5, 2)):
            given = {"beam": beam, "n_best": n_best, "max_length": 9, "length_penalty": penalty}
            ours = hypotheses_of([number], **given)[0]
            expected = reference_beam(number, beam, n_best, 9, SearchOptions(**given))  # type: ignore[arg-type]
            assert [one.ids for one in ours if one.finished] == expected
    steps: list[int] = []

    class Counting(TableModel):
        def step(self, ids_BK: Tensor, state: TableState, look: None = None) -> Step:
            steps.append(len(ids_BK))
            return super().step(ids_BK, state)

    outputs(table_engine(Counting()), [[1]], beam=3, length_penalty=0.0, max_length=99)
    assert len(steps) < 6  # and it does stop


def test_finished_sentences_leave_the_batch_and_numbers_are_kept() -> None:
    tables = [1, 2, 3, 4, 2, 2, 1]
    requests = make_requests([[table] for table in tables], beam=2, max_length=7)
    events = run(table_engine(), [replace(request, id=7 - request.id) for request in requests])
    ours = {event.id: event.hypotheses for event in events}
    assert sorted(ours) == [1, 2, 3, 4, 5, 6, 7]
    for number, table in zip((7, 6, 5, 4, 3, 2, 1), tables, strict=True):
        assert ours[number] == hypotheses_of([table], beam=2, max_length=7)[0]


# --- expansion, as a table ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "probabilities", "keep", "live", "ended"),
    [
        # one row, as at the start: columns EOS A B C
        ([1.0], [[0.4, 0.3, 0.2, 0.1]], 2, [(0.3, 0, 1), (0.2, 0, 2)], [(0.4, 0)]),
        # <eos> of row 1 is not among the two best: no hypothesis ends
        ([1.0, 0.5], [[0.0, 0.6, 0.4, 0.0], [0.5, 0.5, 0.0, 0.0]], 2, [(0.6, 0, 1), (0.4, 0, 2)], []),
        # both end, and the next-best candidates stay live
        ([0.5, 0.5], [[0.8, 0.1, 0.06, 0.04], [0.9, 0.02, 0.03, 0.05]], 2, [(0.05, 0, 1), (0.03, 0, 2)], [(0.45, 1), (0.4, 0)]),
        # a dead hypothesis has no successors
        ([0.5, 0.0], [[0.1, 0.9, 0.0, 0.0], [0.9, 0.1, 0.0, 0.0]], 2, [(0.45, 0, 1)], [(0.05, 0)]),
        # fewer tokens than the beam holds
        ([1.0], [[0.5, 0.5]], 3, [(0.5, 0, 1)], [(0.5, 0)]),
    ],
)
def test_expand_selects_candidates(
    total: list[float],
    probabilities: list[list[float]],
    keep: int,
    live: list[tuple[float, int, int]],
    ended: list[tuple[float, int]],
) -> None:
    candidates = expand(torch.tensor([total]).log(), torch.tensor([probabilities]).log(), 0, keep)
    scores = candidates.live_BK[0].exp().tolist()
    ours = list(zip(scores, candidates.parent_BK[0].tolist(), candidates.token_BK[0].tolist(), strict=True))
    assert len(ours) == keep
    assert [one for one in ours if one[0] > 0] == [(pytest.approx(score), *rest) for score, *rest in live]
    ends = zip(candidates.ended_BK[0].exp().tolist(), candidates.ended_parent_BK[0].tolist(), strict=True)
    assert [one for one in ends if one[0] > 0] == [(pytest.approx(score), parent) for score, parent in ended]


# --- constraints -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocabulary", [5, 1000, 1023, 1024, 1025, 8001])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_largest_equals_topk(vocabulary: int, number: int) -> None:
    scores_BKV = torch.randn(3, 2, vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    scores_BKV[0, 0, : min(900, vocabulary - 4)] = -torch.inf
    scores_BKV[1, 1, -number:] += 9  # the last values do not fill a block
    best_BKM, at_BKM = largest(scores_BKV, number)
    assert torch.equal(best_BKM, scores_BKV.topk(number).values)
    assert torch.equal(best_BKM, scores_BKV.gather(-1, at_BKM))


def test_leaving_tokens_out_does_not_change_the_probability_of_the_others() -> None:
    (best,) = hypotheses_of([3], max_length=1)[0]
    assert best.ids == (A,)
    assert best.log_prob == pytest.approx(math.log(0.2))


def test_lengths() -> None:
    (best,) = hypotheses_of([2], min_length=3)[0]
    assert best.ids == (A, A, A)
    assert best.log_prob == pytest.approx(math.log(0.1 * 0.5**3))
    assert len(hypotheses_of([3], max_ratio=2.0)[0][0].ids) == 12  # one source position: 2 · 1 + 10
    assert len(hypotheses_of([3], max_ratio=2.0, max_length=5)[0][0].ids) == 5
    assert len(hypotheses_of([3], max_ratio=0.1, min_length=20, max_length=30)[0][0].ids) == 20
    assert len(hypotheses_of([3], max_ratio=0.1, min_length=20, max_length=30, limit=15)[0][0].ids) == 15


def test_no_repeat_forbids_repeated_sequences() -> None:
    ids = torch.tensor([[[A, B, A, C, A, B], [A, A, B, C, B, A]]])
    scores = forbid_repeats(torch.zeros(1, 2, 6), ids, 2)
    assert (scores == -torch.inf).nonzero()[:, 1:].tolist() == [[0, A], [1, A], [1, B]]
    scores = forbid_repeats(torch.zeros(1, 2, 6), ids, 3)
    assert (scores == -torch.inf).nonzero()[:, 1:].tolist() == [[0, A]]
    scores = forbid_repeats(torch.zeros(1, 2, 6), ids, 1)
    assert (scores == -torch.inf).nonzero()[:, 1:].tolist() == [[row, token] for row in (0, 1) for token in (A, B, C)]
    assert (forbid_repeats(torch.zeros(1, 2, 6), ids, 7) == 0).all()
    assert hypotheses_of([3], no_repeat=2, max_length=9)[0][0].ids == (A, A)


def test_banned_sequences() -> None:
    ids = torch.tensor([[[A, B], [B, A]]])
    assert (forbid_sequence(torch.zeros(1, 2, 6), ids, (B, C)) == -torch.inf).nonzero().tolist() == [[0, 0, C]]
    assert (forbid_sequence(torch.zeros(1, 2, 6), ids, (C,)) == -torch.inf).nonzero().tolist() == [[0, 0, C], [0, 1, C]]
    assert (forbid_sequence(torch.zeros(1, 2, 6), ids, (A, A, B, C)) == 0).all()
    assert hypotheses_of([1], banned=((A, B),))[0][0].ids == (A,)
    assert hypotheses_of([1], banned=[[A], [B, B]])[0][0].ids == (B,)
    (dead,) = hypotheses_of([1], banned=((A,), (B,), (C,), (EOS,)))[0]
    assert (dead.ids, dead.finished) == ((), False)  # no token is allowed: it stops unfinished


def test_a_repetition_penalty_changes_the_order_and_not_the_probability() -> None:
    scores = penalise_repetition(torch.full((1, 1, 6), -2.0), torch.tensor([[[A, A, C]]]), 1.5)
    assert scores.tolist() == [[[-2, -2, -2, -3, -2, -3]]]
    (best,) = hypotheses_of([3], repetition_penalty=25.0, max_length=9, length_penalty=0.0)[0]
    assert best.ids == (A,)  # then log 0.1 > 25 · log 0.9
    assert best.log_prob == pytest.approx(math.log(0.2 * 0.1))
    (beam,) = hypotheses_of([3], beam=2, repetition_penalty=2.0, max_length=3, length_penalty=0.0, min_length=3)[0]
    assert beam.log_prob == pytest.approx(math.log(0.2 * 0.9**2 * 0.1))
    assert beam.rank_score == pytest.approx(math.log(0.2) + 2 * 2 * math.log(0.9) + math.log(0.1))


def test_a_prefix_is_forced_and_counted() -> None:
    (best,) = hypotheses_of([1], prefix=(B,))[0]
    assert best.ids == (B,)
    assert best.log_prob == pytest.approx(math.log(0.3 * 0.8))
    assert best.token_log_probs == pytest.approx([math.log(0.3), math.log(0.8)])
    (best,) = hypotheses_of([4], beam=3, prefix=(A, B))[0]
    assert best.ids == (A, B, C)
    assert [event.ids for event in search([4], prefix=(A, B), stream=True)] == [(A, B, C), ()]


# --- samples -----------------------------------------------------------------------------------------------------------------


def test_samples_follow_the_table() -> None:  # SPEC A7.5
    outputs = [one.ids for several in hypotheses_of([1] * 40, sample=True, n_best=50, max_length=9).values() for one in several]
    expected = {ids: math.exp(log_prob) for ids, log_prob in every_output(1, 2)}
    for ids, share in expected.items():
        error = math.sqrt(share * (1 - share) / 2000)
        assert outputs.count(ids) / 2000 == pytest.approx(share, abs=4 * error), ids


@pytest.mark.parametrize("max_length", [1, 2, 3])
@pytest.mark.parametrize("table", [1, 4, 101])
def test_samples_that_reach_the_limit_are_counted_once(table: int, max_length: int) -> None:
    """A sample either ends at the limit or is stopped there. Each share equals the probability by enumeration."""
    found = hypotheses_of([table] * 40, sample=True, n_best=50, max_length=max_length, length_penalty=0.0)
    samples = [(one.ids, one.finished) for several in found.values() for one in several]
    expected = {(ids, True): math.exp(log_prob) for ids, log_prob in every_output(table, max_length)}
    for ids in itertools.product((A, B, C), repeat=max_length):
        chance = math.prod(following(table, (SOS, *ids[:index]))[token] for index, token in enumerate(ids))
        expected[ids, False] = chance * (1 - following(table, (SOS, *ids))[EOS])
    assert sum(expected.values()) == pytest.approx(1)
    assert len(samples) == 2000
    for output, share in expected.items():
        error = math.sqrt(share * (1 - share) / 2000)
        assert samples.count(output) / 2000 == pytest.approx(share, abs=4 * error), output


def test_samples_that_no_token_can_continue_are_outputs_too() -> None:
    """Nothing may follow A, and an output has two tokens at least, so a sample that starts with A is stopped there."""
    given = {"banned": ((A, A), (A, B), (A, C)), "min_length": 2, "max_length": 3}
    found = hypotheses_of([1] * 40, sample=True, n_best=50, **given)
    samples = [(one.ids, one.finished) for several in found.values() for one in several]
    assert len(samples) == 2000
    assert samples.count(((A,), False)) / 2000 == pytest.approx(2 / 3, abs=4 * math.sqrt(2 / 9 / 2000))
    together = hypotheses_of([1, 4, 101], sample=True, n_best=5, **given)
    assert together == hypotheses_of([1], [4], [101], sample=True, n_best=5, **given)


def test_a_sample_depends_on_its_seed_and_number_alone() -> None:
    together = hypotheses_of([1, 4, 3, 1, 1, 4, 2], sample=True, n_best=3, max_length=9, seed=5)
    assert together == hypotheses_of([1], [4], [3], [1], [1], [4], [2], sample=True, n_best=3, max_length=9, seed=5)
    assert together != hypotheses_of([1, 4, 3, 1, 1, 4, 2], sample=True, n_best=3, max_length=9, seed=6)
    assert together[0] != together[3]  # the same source under another number


def test_a_sample_depends_on_nothing_but_seed_hypothesis_and_step() -> None:
    """Neither on how many others are sampled, nor on the requests of the batch, nor on the time of joining it."""
    given = {"sample": True, "max_length": 5}
    (request,) = make_requests([[101]], seed=3, n_best=2, **given)
    expected = {one.ids: one for one in run(table_engine(), [request])[-1].hypotheses}
    (more,) = make_requests([[101]], seed=3, n_best=9, **given)
    assert expected.keys() <= {one.ids for one in run(table_engine(), [more])[-1].hypotheses}
    others = make_requests([[100 + number] for number in range(2, 9)], 1, n_best=2, **given)
    for batches in (
        [others, [request]],
        [others[:3], others[3:], [request]],
        [[*others, request]],
        [[replace(request, id=77)]],
    ):
        (found,) = (event for event in run_joining(table_engine(), batches, 2) if event.id in (request.id, 77))
        assert {one.ids: one for one in found.hypotheses} == expected


def test_options_restrict_what_is_sampled() -> None:
    scores, total = torch.tensor([[[0.1, 0.4, 0.3, 0.2]]]).log(), torch.zeros(1, 1)

    def drawn(**options: Any) -> list[int]:
        chances = torch.linspace(0, 1, 101, dtype=torch.float64)[:-1, None, None].unbind(0)
        given = SearchOptions(sample=True, **options)
        return [int(sample(total, scores, 9, chance, given).token_BK) for chance in chances]

    assert [drawn().count(token) for token in range(4)] == pytest.approx([10, 40, 30, 20], abs=1)
    assert [drawn(top_k=2).count(token) for token in range(4)] == pytest.approx([0, 57, 43, 0], abs=1)
    assert [drawn(top_p=0.71).count(token) for token in range(4)] == pytest.approx([0, 44, 33, 22], abs=1)
    assert [drawn(top_p=0.69).count(token) for token in range(4)] == pytest.approx([0, 57, 43, 0], abs=1)
    assert drawn(top_p=1e-9) == [1] * 100
    squares = [1, 16, 9, 4]
    assert [drawn(temperature=0.5).count(token) for token in range(4)] == pytest.approx(
        [100 * one / 30 for one in squares], abs=1
    )


def sampled(probabilities: Sequence[float], uniform: float, dtype: torch.dtype = torch.float64, **options: Any) -> int:
    """Returns the token that this random number selects."""
    scores = torch.tensor([[probabilities]], dtype=torch.float64).log().to(dtype)
    total, chance = torch.zeros(1, 1, dtype=torch.float64), torch.tensor([[uniform]], dtype=torch.float64)
    return int(sample(total, scores, 9, chance, SearchOptions(sample=True, **options)).token_BK)


def test_the_nucleus_at_exact_ties() -> None:
    """The smallest set whose probabilities sum to at least top_p: of four equal tokens, half of the probability is two tokens,
    those with the lowest ids."""
    for top_p, tokens in ((0.25, {0}), (0.5, {0, 1}), (0.75, {0, 1, 2}), (0.76, {0, 1, 2, 3}), (1.0, {0, 1, 2, 3})):
        assert {sampled([0.25] * 4, uniform / 100, top_p=top_p) for uniform in range(100)} == tokens
    assert [sampled([0.25] * 4, uniform) for uniform in (0.0, 0.2499, 0.25, 0.5, 0.75, 0.9999)] == [0, 0, 1, 2, 3, 3]


def test_improbable_tokens_are_sampled_too() -> None:
    """Probabilities are added up in float64: a token of 1e-9 has its share of the random numbers in every dtype."""
    for dtype in (torch.float64, torch.float32):
        assert sampled([1 - 1e-9, 1e-9], 1 - 0.5e-9, dtype) == 1
        assert sampled([1 - 1e-9, 1e-9], 1 - 2e-9, dtype) == 0


def test_finished_outputs_rank_before_stopped_ones() -> None:
    def output(rank_score: float, finished: bool) -> Ended:
        return Ended(Hypothesis((A,), rank_score, rank_score, finished), ())

    sentence = Sentence(make_requests([[A]])[0], limit=5)
    for rank_score, finished in ((-1.0, False), (-3.0, True), (-2.0, True), (-0.5, False), (-4.0, True)):
        sentence.keep(output(rank_score, finished), 4)
    ranks = [(kept.hypothesis.rank_score, kept.hypothesis.finished) for kept in sentence.kept]
    assert ranks == [(-2.0, True), (-3.0, True), (-4.0, True), (-0.5, False)]


# --- streaming ---------------------------------------------------------------------------------------------------------------


def test_streams_report_what_is_certain() -> None:
    events = search([4, 1], beam=2, stream=True, length_penalty=0.0)
    for sentence in (0, 1):
        mine = [event for event in events if event.id == sentence]
        assert [bool(event.hypotheses) for event in mine] == [False] * (len(mine) - 1) + [True]
        written: tuple[int, ...] = ()
        for event in mine:
            written += event.ids
            best = mine[-1].hypotheses[0].ids
            assert written == best[: len(written)]
        assert written == best
    first = next(event for event in events if event.id == 0)
    assert (first.ids, first.tail) == ((), (A,))  # A leads, but B wins


@pytest.mark.parametrize(
    ("sequences", "length"),
    [([(1, 2, 3)], 3), ([(1, 2, 3), (1, 2)], 2), ([(1, 2), (1, 3), (1, 2, 4)], 1), ([(2,), (3,)], 0), ([(), (1,)], 0)],
)
def test_the_common_prefix_of_sequences(sequences: Sequence[tuple[int, ...]], length: int) -> None:
    assert common_prefix(sequences) == length


# --- options -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_length": 0}, "max_length is 0, expected a whole number from 1 to 100,000"),
        ({"max_length": 10**18}, "max_length is 1000000000000000000, expected a whole number from 1 to 100,000"),
        ({"beam": 0}, "beam is 0, expected a whole number from 1 to 1,000"),
        ({"beam": 10**6}, "beam is 1000000, expected a whole number from 1 to 1,000"),
        ({"beam": 10**5000}, "beam is a number of more than 4,300 digits, expected a whole number from 1 to 1,000"),
        ({"beam": -(10**5000)}, "beam is a number of more than 4,300 digits, expected a whole number"),
        ({"beam": 2.5}, r"beam is 2\.5, expected a whole number"),
        ({"beam": "4"}, "beam is '4', expected a whole number"),
        ({"beam": True}, "beam is True, expected a whole number"),
        ({"beam": None}, "beam is None, expected a whole number"),
        ({"beam": torch.tensor(4)}, r"beam is tensor\(4\), expected a whole number"),
        ({"beam": [4] * 1000}, r"beam is \[4, 4, 4, 4, \.\.\.\], expected a whole number"),
        ({"beam": np.float64(4)}, "beam is .*4.0.*, expected a whole number"),
        (
            {"beam": 400, "max_length": 30_000},
            "beam is 400 and max_length 30,000, together 12,000,000 tokens; .* not exceed 1,000,000",
        ),
        ({"sample": True, "n_best": 1001}, "n_best is 1001, expected a whole number from 1 to 1,000"),
        ({"sample": True, "n_best": 500, "max_length": 3000}, "n_best is 500 and max_length 3,000, together 1,500,000 tokens"),
        ({"n_best": 3}, "n_best is 3, but beam is only 1; set beam=3"),
        ({"min_length": 9, "max_length": 8}, "min_length 9 is more than max_length 8"),
        ({"min_length": -1}, "min_length is -1, expected a whole number from 0"),
        ({"no_repeat": 10**18}, "no_repeat is 1000000000000000000, expected a whole number from 0 to 100,000"),
        ({"sample": True, "beam": 4}, "sample=True cannot be combined with a beam, but beam is 4"),
        ({"sample": "no"}, "sample is 'no', expected True or False"),
        ({"top_k": 4}, "temperature, top_k and top_p apply to sampling only; set sample=True"),
        ({"sample": True, "top_k": 2**64}, "top_k is 18446744073709551616, expected a whole number from 0 to 2,147,483,647"),
        ({"sample": True, "temperature": 0.0}, r"temperature is 0\.0, expected a number, 1e-06 or more"),
        ({"sample": True, "temperature": 1e-320}, "temperature is 1e-320, expected a number, 1e-06 or more"),
        ({"sample": True, "temperature": "1"}, "temperature is '1', expected a number, 1e-06 or more"),
        ({"sample": True, "temperature": float("nan")}, "temperature is nan, expected a number"),
        ({"sample": True, "temperature": float("inf")}, "temperature is inf, expected a number"),
        ({"sample": True, "temperature": True}, "temperature is True, expected a number"),
        ({"sample": True, "temperature": 10**5000}, "temperature is a number of more than 4,300 digits, expected a number"),
        ({"sample": True, "temperature": None}, "temperature is None, expected a number"),
        ({"sample": True, "temperature": 1j}, "temperature is 1j, expected a number"),
        ({"sample": True, "top_p": 1.5}, r"top_p is 1\.5, expected a number above 0 and up to 1"),
        ({"sample": True, "top_p": 0}, "top_p is 0, expected a number above 0 and up to 1"),
        ({"sample": True, "top_p": "all"}, "top_p is 'all', expected a number above 0 and up to 1"),
        ({"sample": True, "top_p": float("nan")}, "top_p is nan, expected a number above 0 and up to 1"),
        ({"repetition_penalty": 0.5}, r"repetition_penalty is 0\.5, expected a number from 1 to 1000; below 1 it would reward"),
        ({"repetition_penalty": 1e308}, r"repetition_penalty is 1e\+308, expected a number from 1 to 1000"),
        ({"max_ratio": 0}, "max_ratio is 0, expected a number above 0, or None"),
        ({"max_ratio": "2"}, "max_ratio is '2', expected a number above 0, or None"),
        ({"max_ratio": float("nan")}, "max_ratio is nan, expected a number above 0, or None"),
        ({"length_penalty": -1.0}, r'length_penalty is -1\.0, expected a number from 0 to 10, or "mean"'),
        ({"length_penalty": 1e9}, r'length_penalty is 1000000000\.0, expected a number from 0 to 10, or "mean"'),
        ({"length_penalty": float("inf")}, "length_penalty is inf, expected a number from 0 to 10"),
        ({"length_penalty": float("nan")}, "length_penalty is nan, expected a number from 0 to 10"),
        ({"length_penalty": "avg"}, "length_penalty is 'avg', expected a number"),
        ({"length_penalty": True}, "length_penalty is True, expected a number"),
        ({"length_penalty": None}, "length_penalty is None, expected a number"),
        ({"banned": [[]]}, "banned holds an empty sequence"),
        ({"banned": [5]}, r"banned is \[5\], expected a list of lists of token ids"),
        ({"banned": None}, "banned is None, expected a list of lists of token ids"),
        ({"banned": [["a"]]}, r"banned is \[\['a'\]\], expected a list of lists of token ids"),
        ({"banned": torch.tensor(4)}, r"banned is tensor\(4\), expected a list of lists of token ids"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as raised:
        SearchOptions(**options)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300


def test_numbers_of_other_libraries_become_plain_numbers() -> None:
    options = SearchOptions(
        beam=np.int64(4),
        n_best=np.int32(2),
        length_penalty=np.float32(0.5),
        max_ratio=np.float64(2),
        repetition_penalty=2,
        banned=[np.array([4, 6]), (7,)],
    )
    plain = SearchOptions(beam=4, n_best=2, length_penalty=0.5, max_ratio=2.0, repetition_penalty=2.0, banned=((4, 6), (7,)))
    assert repr(options) == repr(plain)
    assert SearchOptions(length_penalty="mean").length_penalty == "mean"


@pytest.mark.parametrize(
    "extremes",
    [
        {"beam": 3, "length_penalty": 10},
        {"beam": 1000, "n_best": 1000, "max_length": 7},
        {"beam": 2, "repetition_penalty": 1000.0},
        {"beam": 2, "max_ratio": 1.7e308},
        {"beam": 2, "max_ratio": 5e-324},
        {"no_repeat": 100_000},
        {"sample": True, "temperature": 1e-6},
        {"sample": True, "temperature": 1.7e308},
        {"sample": True, "top_p": 5e-324},
        {"sample": True, "top_k": 2**31 - 1, "seed": 2**50},
    ],
    ids=str,
)
def test_extreme_options_terminate(extremes: dict[str, Any]) -> None:
    (outputs,) = hypotheses_of([4], **{"max_length": 20, **extremes}).values()
    assert outputs[0].ids
    assert all(math.isfinite(one.log_prob) and math.isfinite(one.rank_score) for one in outputs)


def test_the_lowest_temperature_takes_the_best_token_every_time() -> None:
    """Divided by a tiny temperature, log-probabilities once overflowed to −∞, and the output was empty."""
    (greedy,) = hypotheses_of([4], max_length=9).values()
    (drawn,) = hypotheses_of([4], max_length=9, sample=True, temperature=1e-6).values()
    assert drawn[0].ids == greedy[0].ids
