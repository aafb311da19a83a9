"""Search on a hand-written table of probabilities: no model, only the contract."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from regard.contracts import Event, Memory, SearchOptions, Source, Step
from regard.decoding.search import TorchEngine, best_continuation
from regard.models.state import Rows, per_sentence

PAD, SOS, EOS, A, B, C = range(6)
# What follows what, for a source that says which table to use. Rows: the token before; columns: PAD SOS EOS A B C.
TABLES = {
    1: {SOS: [0, 0, 0.1, 0.6, 0.3, 0], A: [0, 0, 0.3, 0.1, 0.6, 0], B: [0, 0, 0.8, 0.1, 0.1, 0]},  # a b </s>
    2: {SOS: [0, 0, 0.9, 0.1, 0, 0]},  # at once at the end
    3: {SOS: [0.5, 0.3, 0, 0.2, 0, 0], A: [0, 0, 0.1, 0.9, 0, 0]},  # prefers what may never be said, then never stops
}


@dataclass(kw_only=True)
class TableState(Rows):
    which_B: Tensor = per_sentence()


class TableModel:
    """Looks up the next probabilities by (table of the sentence, last token)."""

    def encode(self, source: Source, look: None = None) -> Memory:
        which = source.values[:, :1, None].float()
        return Memory(which, source.allow, which[:, 0], axes=(1,))

    def start(self, memory: Memory, prefix_BP: None = None) -> TableState:
        which = memory.summary_BE[:, 0].long()
        return TableState(lengths_B=torch.zeros_like(which), which_B=which)

    def step(self, ids_BK: Tensor, state: TableState, look: None = None) -> Step:
        state.spend()
        rows = [
            [TABLES[which][last] for last in row] for which, row in zip(state.which_B.tolist(), ids_BK.tolist(), strict=True)
        ]
        following = TableState(lengths_B=state.lengths_B + 1, which_B=state.which_B)
        return Step(torch.tensor(rows).log().clamp(min=-1e4), following)


def search(*sources: list[int], **options: int) -> list[Event]:
    engine = TorchEngine(TableModel(), sos=SOS, eos=EOS, never=(PAD, SOS))
    batches = [Source(torch.tensor(rows)[:, None], torch.ones(len(rows), 1, dtype=torch.bool)) for rows in sources]
    return list(engine.generate(batches, SearchOptions(**options)))


def test_greedy_follows_the_table() -> None:  # SPEC A7.5
    events = search([1, 2], [1], max_length=10)
    ends = {event.sentence: event.hypotheses[0] for event in events if event.hypotheses}
    assert [ends[number].ids for number in range(3)] == [(A, B), (), (A, B)]
    assert ends[0].log_prob == pytest.approx(math.log(0.6 * 0.6 * 0.8))
    assert ends[1].log_prob == pytest.approx(math.log(0.9))
    assert all(end.finished and end.rank_score == end.log_prob for end in ends.values())
    said = [token for event in events if event.sentence == 0 for token in event.ids]
    assert said == [A, B]


def test_an_output_that_does_not_end_is_stopped_and_marked() -> None:
    (*growing, end) = search([3], max_length=4)
    assert end.hypotheses[0].ids == (A, A, A, A)
    assert not end.hypotheses[0].finished
    assert end.hypotheses[0].log_prob == pytest.approx(math.log(0.2 * 0.9**3))
    assert [event.ids for event in growing] == [(A,)] * 4
    (*_, end) = search([1], max_length=2)  # exactly long enough
    assert end.hypotheses[0].finished


def test_leaving_tokens_out_does_not_change_the_probability_of_the_others() -> None:
    log_prob, token = best_continuation(torch.tensor([[0.5, 0.3, 0.2]]).log(), never=(0, 1))
    assert token.tolist() == [2]
    assert log_prob.item() == pytest.approx(math.log(0.2))


def test_no_room_for_output_is_refused() -> None:
    with pytest.raises(ValueError, match="max_length is 0; an output needs room for at least 1 token"):
        SearchOptions(max_length=0)
