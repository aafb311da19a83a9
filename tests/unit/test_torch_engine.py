"""What the torch engine promises as an Engine: requests enter, fail, are cancelled and leave without disturbing each other."""

import logging
import random
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from searching import (
    alone_outputs,
    assert_same_hypotheses,
    batched,
    finish,
    last_outputs,
    make_engine,
    make_requests,
    rows_of,
    run,
    run_joining,
)
from table import EOS, MODELS, SOURCE_VOCAB, TARGET_VOCAB, TIES, has_cross, looks_ahead, make_model, make_source
from test_search import A, B, TableModel, TableState, table_engine
from torch import Tensor

from regard.contracts import CANCELLED, Event, Request
from regard.core.source import Source
from regard.data.batch import source_batch
from regard.decoding import torch_search
from regard.decoding.torch_engine import TorchEngine
from regard.decoding.torch_search import TorchSearch
from regard.errors import UserError
from regard.look import Edit, Look, Tap
from regard.models.build import build
from regard.models.contract import Memory, Step
from regard.models.transformer import TransformerSettings

every_model = pytest.mark.parametrize("name", MODELS)
EDIT = Look(edits=(Edit("cross", key=0),))
WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"beam": 3, "n_best": 2},
    {"sample": True, "n_best": 2},
    {"look": EDIT},
    {"beam": 2, "stream": True},
)
"""Greedy search, a beam, samples, a changed attention, a stream: five batches."""


def assert_nothing_is_left(search: TorchSearch) -> None:
    assert search.nbytes == 0
    assert not any((search._batches, search._live, search._submitted, search._cancelled))


def written(events: list[Event], id: int) -> tuple[int, ...]:
    return tuple(token for event in events if event.id == id for token in event.ids)


# --- threads -----------------------------------------------------------------------------------------------------------------


def test_two_threads_submit_and_cancel() -> None:
    """Each thread submits 500 requests and cancels some of its own and some of the other's, known or unknown."""
    engine = make_engine(make_model("rnn additive"))
    rows = rows_of(make_source(*(1 + number % 7 for number in range(20))))
    kinds = [make_requests(rows, max_length=5, **way) for way in WAYS]
    alone = [alone_outputs(engine, requests) for requests in kinds]

    def request(id: int) -> Request:
        return replace(kinds[id % len(kinds)][id % 20], id=id)

    search = engine.open()
    cancelled: set[int] = set()

    def submit(first: int) -> None:
        chance = random.Random(first)
        for id in range(first, first + 500):
            search.submit(request(id))
            if not id % 7:
                victim = id if not id % 2 else chance.randrange(1000)
                cancelled.add(victim)
                search.cancel(victim)

    threads = [threading.Thread(target=submit, args=(first,)) for first in (0, 500)]
    for thread in threads:
        thread.start()
    events = finish(search, 1000)
    for thread in threads:
        thread.join()
    ends = [event for event in events if event.is_last]
    assert sorted(event.id for event in ends) == list(range(1000))
    assert {event.error for event in ends} == {"", CANCELLED}
    assert {event.id for event in ends if event.error} <= cancelled
    for event in ends:
        last = max(number for number, other in enumerate(events) if other.id == event.id)
        assert events[last] is event
        if not event.error:
            assert_same_hypotheses(event.hypotheses, alone[event.id % len(kinds)][event.id % 20])
            assert written(events, event.id) == event.hypotheses[0].ids
    assert search.events(timeout=0) == []
    assert_nothing_is_left(search)


def test_closing_wakes_the_owner() -> None:
    search = make_engine(make_model("rnn additive")).open()
    closer = threading.Timer(0.1, search.close)
    closer.start()
    assert search.events(timeout=None) == []
    closer.join()
    with pytest.raises(RuntimeError, match="request 0 was submitted to a search that is closed; open another one"):
        search.submit(make_requests([[4]])[0])
    search.cancel(0)
    assert search.events() == []


def test_closing_frees_the_memory_while_requests_run_or_arrive() -> None:
    model = make_model("rnn additive")
    search = make_engine(model).open()
    for request in make_requests([[4, 5], [6]], max_length=50):
        search.submit(request)
    search.events()
    assert search.nbytes > 0
    search.close()
    assert_nothing_is_left(search)

    class Closing(TorchEngine):
        def declines(self, request: Request) -> str | None:
            search.close()  # another thread does it just then

    search = Closing(model, search._engine.collate, search._engine.specials).open()
    search.submit(make_requests([[4, 5]])[0])
    assert search.events() == []
    assert_nothing_is_left(search)


def test_an_idle_search_waits_no_longer_than_asked() -> None:
    search = make_engine(make_model("rnn additive")).open()
    assert search.events(timeout=0) == []
    before = time.monotonic()
    assert search.events(timeout=0.05) == []
    assert time.monotonic() - before >= 0.04
    (request,) = make_requests([[4, 5]], max_length=3)
    waker = threading.Timer(0.05, search.submit, (request,))
    waker.start()
    assert [event.id for event in finish(search, 1)] == [0]
    waker.join()


# --- cancellation, refusal ---------------------------------------------------------------------------------------------------


def test_cancelled_requests_end_once() -> None:
    engine = make_engine(make_model("rnn additive"))
    requests = make_requests([[4, 5], [6], [7, 8]], max_length=6, min_length=6)
    alone = alone_outputs(engine, requests)
    search = engine.open()
    for request in requests:
        search.submit(request)
    search.cancel(1)  # before its first step
    search.cancel(99)  # unknown
    (first,) = search.events()
    assert (first.id, first.error, first.is_last) == (1, CANCELLED, True)
    bytes_of_two = search.nbytes
    search.cancel(0)  # while it runs
    (second,) = search.events()
    assert (second.id, second.error) == (0, CANCELLED)
    assert 0 < search.nbytes < bytes_of_two
    (last,) = finish(search, 1)
    assert_same_hypotheses(last.hypotheses, alone[2])
    search.cancel(2)  # after its end
    assert search.events(timeout=0) == []
    assert_nothing_is_left(search)
    search.submit(requests[2])  # its number is free again
    (again,) = finish(search, 1)
    assert again.hypotheses == last.hypotheses


def test_a_late_cancellation_does_not_hit_the_next_request_of_that_number() -> None:
    class Late(TableModel):
        def step(self, ids_BK: Tensor, state: TableState, look: None = None) -> Step:
            search.cancel(0)  # another thread does it while the last step runs
            return super().step(ids_BK, state)

    search = table_engine(Late()).open()
    (request,) = make_requests([[2]])
    for _ in range(2):
        search.submit(request)
        (event,) = search.events()
        assert event.hypotheses


def test_a_number_is_used_by_one_request_at_a_time() -> None:
    search = make_engine(make_model("rnn additive")).open()
    (request,) = make_requests([[4, 5]])
    search.submit(request)
    with pytest.raises(ValueError, match="request 0 is running already; give each request another id"):
        search.submit(request)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"look": Look((Tap("cross"),), grad=True), "stream": True}, "a search computes no gradients"),
        ({"look": Look((Tap("cross", what="summary"),)), "stream": True}, "translate first and call engine.force"),
        ({"look": Look((Tap("cross", rows=(0,)),))}, "for a summary or for chosen rows, translate first"),
        ({"look": Look((Tap("cross", what="norms"),)), "stream": True}, None),
        ({"look": Look((Tap("cross"),))}, None),
        ({"look": EDIT}, None),
        (
            {"look": Look((), Edit("fusion"))},
            "changes fusion attention, but this model has encoder and decoder and cross atten",
        ),
        ({"look": Look((), Edit("cross", layer=2))}, "there is no layer 2 in cross attention: layers are numbered 0 to 1 here"),
        ({"look": Look((), Edit("decoder", head=-3))}, "there is no head -3 in decoder attention: heads are numbered 0 to 1 h"),
        ({}, None),
    ],
)
def test_what_the_engine_declines(changes: dict[str, Any], reason: str | None) -> None:
    engine = make_engine(make_model("transformer scaled_dot"))
    declined, other = make_requests([[4, 5], [6]], max_length=3)
    declined = replace(declined, **changes)
    found = engine.declines(declined)
    assert found is None if reason is None else found is not None and reason in found
    ends = {event.id: event for event in run(engine, [declined, other]) if event.is_last}
    assert ends[0].error == (found or "")
    assert ends[1].hypotheses


# --- requests that share a batch ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in MODELS if name not in TIES])
@pytest.mark.parametrize(
    "options", [{}, {"beam": 3, "n_best": 2}, {"sample": True, "n_best": 2}], ids=["greedy", "beam", "sample"]
)
def test_prefixes_of_different_lengths_share_a_batch(name: str, options: dict[str, Any]) -> None:
    engine = make_engine(make_model(name))
    requests = make_requests(rows_of(make_source(7, 1, 5, 3, 2)), max_length=7, **options)
    prefixes = (), (7, 11, 5), (9,), (12, 4, 4, 8), (7, 11, 6)
    requests = [replace(request, prefix=prefix) for request, prefix in zip(requests, prefixes, strict=True)]
    alone = alone_outputs(engine, requests)
    ways = run(engine, requests), run_joining(engine, batched(requests, 1))
    for found in map(last_outputs, ways):
        assert sorted(found) == [0, 1, 2, 3, 4]
        for request in requests:
            assert all(one.ids[: len(request.prefix)] == request.prefix for one in found[request.id])
            assert_same_hypotheses(found[request.id], alone[request.id])


@pytest.mark.parametrize("name", [*(name for name in MODELS if has_cross(name) and not looks_ahead(name)), "decoder only"])
def test_edits_also_change_how_a_prefix_is_read(name: str) -> None:
    kind = "cross" if has_cross(name) else "decoder"
    engine = make_engine(make_model(name))
    given = {"prefix": (7, 11, 5), "max_length": 6}
    requests = make_requests(rows_of(make_source(7, 3)), look=Look(edits=(Edit(kind),)), **given)
    found = last_outputs(run(engine, requests))
    for request in requests:
        (best,) = found[request.id]
        output = [*best.ids, engine.specials.eos] if best.finished else best.ids
        (forced,) = engine.force([request], [output])
        assert best.token_log_probs == pytest.approx(forced.token_log_probs, abs=1e-9)
    plain = alone_outputs(engine, [replace(request, look=None) for request in requests])
    assert plain[0][0].token_log_probs[:3] != pytest.approx(found[0][0].token_log_probs[:3], abs=1e-6)


def test_a_batch_has_a_maximum_number_of_hypotheses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further requests wait until others have left; a single request may exceed the maximum."""
    monkeypatch.setattr(torch_search, "BATCH_HYPOTHESES", 7)
    rows: list[int] = []

    class Counting(TableModel):
        def step(self, ids_BK: Tensor, state: TableState, look: None = None) -> Step:
            rows.append(len(ids_BK))
            return super().step(ids_BK, state)

    requests = make_requests([[100 + number] for number in range(20)], beam=2, max_length=6)
    found = last_outputs(run_joining(table_engine(Counting()), batched(requests, 2)))
    assert max(rows) == 3
    alone = alone_outputs(table_engine(), requests)
    for request in requests:
        assert_same_hypotheses(found[request.id], alone[request.id])
    assert run(table_engine(), make_requests([[100]], beam=9))[-1].hypotheses


def test_finished_sentences_are_not_read_beyond_the_last_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished sentence stays in the batch until removing it pays; it must leave before the model runs out of positions."""
    settings = TransformerSettings(width=20, heads=2, feed_forward=29, positions="learned", max_positions=9)
    model = build(settings, SOURCE_VOCAB, TARGET_VOCAB).double().eval()
    step, failures = model.step, []

    def recorded(*arguments: Any) -> Step:
        try:
            return step(*arguments)
        except UserError as error:
            failures.append(error)
            raise

    monkeypatch.setattr(model, "step", recorded)
    requests = make_requests([[4 + number] for number in range(9)], min_length=8, max_length=8)
    requests[0] = replace(requests[0], prefix=(7, 11, 5, 9, 4))
    found = last_outputs(run(make_engine(model), requests))
    assert not failures
    assert [len(best.ids) for (best,) in found.values()] == [8] * 9


# --- failures ----------------------------------------------------------------------------------------------------------------


BAD = 113
"""The number of the table whose sentence fails."""


class FailsToEncode(TableModel):
    def encode(self, source: Source, look: None = None) -> Memory:
        if (source.values == BAD).any():
            raise UserError("this source cannot be read")
        return super().encode(source)


class FailsAtStep(TableModel):
    """Fails when the bad sentence has read three tokens."""

    def __init__(self) -> None:
        self.num_steps = 0

    def step(self, ids_BK: Tensor, state: TableState, look: None = None) -> Step:
        self.num_steps += 1
        if ((state.which_B == BAD) & (state.lengths_B == 3)).any():
            raise RuntimeError("no\nmemory")
        return super().step(ids_BK, state)


class ComputesNan(TableModel):
    """Returns NaN when the bad sentence has read three tokens."""

    num_read = 3

    def step(self, ids_BK: Tensor, state: TableState, look: None = None) -> Step:
        step = super().step(ids_BK, state)
        step.logits_BKV[(state.which_B == BAD) & (state.lengths_B == self.num_read)] = torch.nan
        return step


@pytest.mark.parametrize("way", [{}, {"beam": 3, "n_best": 2}, {"sample": True, "n_best": 3}], ids=["greedy", "beam", "sample"])
@pytest.mark.parametrize(
    ("model", "words"),
    [
        (FailsToEncode, "this source cannot be read"),
        (FailsAtStep, "RuntimeError: no memory"),
        (ComputesNan, "this model computed a log-probability of nan; its weights are damaged or too large"),
    ],
    ids=["encode", "step", "nan"],
)
def test_a_request_that_fails_does_not_disturb_the_others(model: type[TableModel], words: str, way: dict[str, Any]) -> None:
    """The requests stream, some join later; every token is reported once."""
    engine = table_engine(model())
    requests = make_requests([[number] for number in range(106, 122)], min_length=4, max_length=7, stream=True, **way)
    alone = alone_outputs(table_engine(), requests)
    search = engine.open()
    events = []
    for request in requests[:10]:
        search.submit(request)
    for request in requests[10:]:
        events += search.events()
        search.submit(request)
    events += finish(search, len(requests) - sum(event.is_last for event in events))
    ends = {event.id: event for event in events if event.is_last}
    assert sorted(ends) == [request.id for request in requests]
    bad = BAD - 106
    assert [(id, end.error) for id, end in ends.items() if end.error] == [(bad, words)]
    for request in requests:
        if request.id != bad:
            assert_same_hypotheses(ends[request.id].hypotheses, alone[request.id])
            assert written(events, request.id) == ends[request.id].hypotheses[0].ids
    best = alone[bad][0].ids
    assert written(events, bad) == best[: len(written(events, bad))]  # what was certain before it failed
    assert_nothing_is_left(search)


@pytest.mark.parametrize("way", [{}, {"beam": 3}, {"sample": True}], ids=["greedy", "beam", "sample"])
def test_nan_is_an_error_even_if_it_looks_like_an_end(way: dict[str, Any]) -> None:
    """NaN is the largest of numbers in torch, so the first token that is allowed seems to be the best: <eos>."""

    class AtOnce(ComputesNan):
        num_read = 0

    (event,) = run(table_engine(AtOnce()), make_requests([[BAD]], max_length=3, **way))
    assert event.error.startswith("this model computed a log-probability of nan")


def test_a_failing_request_is_found_by_halves() -> None:
    requests = make_requests([[number] for number in range(100, 164)], min_length=4, max_length=5)
    model = FailsAtStep()
    ends = run(table_engine(model), requests)
    assert sum(bool(event.error) for event in ends) == 1
    assert model.num_steps < 64  # alone, the 64 requests take 5 or 6 steps each


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("rnn additive", {}),
        ("rnn additive", {"beam": 3, "n_best": 2}),
        ("transformer scaled_dot", {"beam": 3, "n_best": 2}),
        ("transformer scaled_dot", {"sample": True, "n_best": 2}),
    ],
)
def test_new_requests_take_the_rows_of_those_that_are_done(name: str, way: dict[str, Any]) -> None:
    engine = make_engine(make_model(name))
    requests = make_requests([[4 + number] * (1 + number) for number in range(11)], max_ratio=1.0, **way)
    search, events = engine.open(), []
    for request in requests[:9]:
        search.submit(request)
    search.events(timeout=0)
    (batch,) = search._batches.values()
    assert batch.running is not None
    while not batch.running.free_rows and not batch.is_empty:
        events += search.events(timeout=0)
    free, number = batch.running.free_rows, batch.running.num_sentences
    search.submit(requests[9])
    search.submit(requests[10])
    events += search.events(timeout=0)
    assert batch.running.num_sentences == number + 2 - min(2, len(free))
    assert batch.running.beams.sentences[free[0]].request.id in (9, 10)
    events += finish(search, 11 - sum(event.is_last for event in events))
    found, alone = last_outputs(events), alone_outputs(engine, requests)
    for request in requests:
        for hypothesis, expected in zip(found[request.id], alone[request.id], strict=True):
            assert hypothesis.ids == expected.ids
            assert hypothesis.log_prob == pytest.approx(expected.log_prob)


def test_requests_that_cannot_join_run_one_after_the_other() -> None:
    """As when memory runs out while States are copied."""

    class Narrow(TableState):
        def join(self, *others: TableState) -> TableState:
            joined = super().join(*others)
            if len(joined.lengths_B) > 3:
                raise RuntimeError("not enough memory")
            return joined

    class NarrowModel(TableModel):
        def start(self, memory: Memory, prefix_BP: Tensor | None = None) -> TableState:
            return Narrow(**vars(super().start(memory, prefix_BP)))

        def step(self, ids_BK: Tensor, state: TableState, look: None = None) -> Step:
            step = super().step(ids_BK, state)
            return replace(step, state=Narrow(**vars(step.state)))

    requests = make_requests([[number] for number in range(100, 108)], min_length=4, max_length=7, stream=True)
    alone = alone_outputs(table_engine(), requests)
    events = run_joining(table_engine(NarrowModel()), batched(requests, 2))
    found = last_outputs(events)
    assert sorted(found) == list(range(8))
    for id, expected in alone.items():
        assert_same_hypotheses(found[id], expected)
        assert written(events, id) == expected[0].ids


def test_requests_can_be_cancelled_while_a_failing_one_is_searched_for() -> None:
    requests = make_requests([[number] for number in range(106, 122)], min_length=4, max_length=7)
    alone = alone_outputs(table_engine(), requests)
    search = table_engine(FailsAtStep()).open()
    for request in requests[:-1]:
        search.submit(request)
    events = [event for _ in range(4) for event in search.events()]  # the fourth step fails
    assert not events
    search.submit(requests[-1])
    for id in (0, 9, 14, 15):  # in both halves, and one that waits
        search.cancel(id)
    ends = {event.id: event for event in finish(search, len(requests))}
    assert sorted(id for id, end in ends.items() if end.error == CANCELLED) == [0, 9, 14, 15]
    assert [id for id, end in ends.items() if end.error not in ("", CANCELLED)] == [BAD - 106]
    for id, end in ends.items():
        if not end.error:
            assert_same_hypotheses(end.hypotheses, alone[id])
    assert_nothing_is_left(search)


def test_positions_that_a_model_does_not_have_are_an_error_of_one_request() -> None:
    settings = TransformerSettings(width=20, heads=2, feed_forward=29, positions="learned", max_positions=9)
    engine = make_engine(build(settings, SOURCE_VOCAB, TARGET_VOCAB).double().eval())
    requests = make_requests([[4], [5, 6], [7], [8]], min_length=12, max_length=12)
    too_long = replace(requests.pop(2), prefix=(7, 11, 5))
    requests = [replace(request, limit=8) for request in requests]
    ends = {event.id: event for event in run(engine, [*requests, too_long])}
    assert "the input has 10 positions, but this model has learned vectors for 9" in ends.pop(2).error
    alone = alone_outputs(engine, requests)
    assert sorted(ends) == sorted(alone)
    for id, expected in alone.items():
        assert_same_hypotheses(ends[id].hypotheses, expected)


def test_a_prefix_of_probability_zero_is_an_error() -> None:
    class Impossible(TableModel):
        def step(self, ids_BK: Tensor, state: TableState, look: None = None) -> Step:
            step = super().step(ids_BK, state)
            step.logits_BKV[..., B] = -torch.inf
            return step

    impossible, other = make_requests([[100], [101]], max_length=3)
    ends = {event.id: event for event in run(table_engine(Impossible()), [replace(impossible, prefix=(A, B)), other])}
    assert ends[0].error.startswith("this model computed a log-probability of -inf")
    assert ends[1].hypotheses


def test_a_source_that_cannot_be_measured_needs_no_memory() -> None:
    """It fails when it is searched; other requests are still packed by their size."""
    engine = table_engine(FailsToEncode())
    bad = Request(0, source=torch.tensor([BAD]).numpy(), num_positions=1)
    good = Request(1, source=torch.tensor([101]).numpy(), num_positions=1)
    assert engine.nbytes(bad) == 0
    assert engine.nbytes(good) > 0


def test_a_mistake_in_a_program_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(TableModel):
        def step(self, ids_BK: Tensor, state: TableState, look: None = None) -> Step:
            raise KeyError("B")

    with caplog.at_level(logging.DEBUG, logger="regard"):
        (event,) = run(table_engine(Broken()), make_requests([[100]]))
    assert event.error == "KeyError: 'B'"
    assert 'raise KeyError("B")' in caplog.text


def test_a_mistake_in_a_request_is_an_error_of_that_request() -> None:
    """torch raises IndexError for a token that is not in the vocabulary; the Search goes on with the others."""
    engine = make_engine(make_model("rnn additive"))
    good, bad, late = make_requests([[4, 5], [99_999], [6]], max_length=4)
    search = engine.open()
    for request in (good, bad):
        search.submit(request)
    events = {event.id: event for event in finish(search, 2) if event.is_last}
    assert events[1].error == "IndexError: index out of range in self"
    search.submit(late)
    events |= {event.id: event for event in finish(search, 1) if event.is_last}
    for request in (good, late):
        assert events[request.id].hypotheses == last_outputs(run(engine, [request]))[request.id]
    assert search.nbytes == 0
    forced = {result.id: result for result in engine.force([good, bad], [(4, EOS), (4, EOS)])}
    assert forced[1].error == "IndexError: index out of range in self"
    assert len(forced[0].token_log_probs) == 2


@pytest.mark.parametrize("name", ["rnn additive", "transformer scaled_dot"])
def test_a_search_holds_no_more_than_was_estimated(name: str) -> None:
    """The estimate covers the State and the hypotheses of a real search, also with a wide beam."""
    engine = replace(make_engine(make_model(name)), collate=source_batch)  # which adds <eos>, as the estimate expects
    (request,) = make_requests(rows_of(make_source(7)), beam=8, max_length=9, min_length=9)
    search = engine.open()
    search.submit(request)
    held, ended = 0, False
    while not ended:
        ended = any(event.is_last for event in search.events())
        held = max(held, search.nbytes)
    assert held <= engine.nbytes(request)
    assert engine.nbytes(request) <= 20 * held
