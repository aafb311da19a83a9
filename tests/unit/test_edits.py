"""Edits of attention: plain data, checked; their effect on one call of attention, compared with NumPy."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from searching import assert_same_hypotheses, make_engine, make_requests, rows_of, run
from table import EOS, has_cross, make_frontend_model, make_model, make_rows, make_source
from torch import Tensor

from regard.core import masks
from regard.core.attention import ScaledDot
from regard.core.mechanism import Mechanism
from regard.core.taps import attend_with_look
from regard.data.batch import source_batch
from regard.errors import UserError
from regard.look import Edit, Kind, Look, Tap, check_positions
from regard.pipeline.assembly import joined

# B2 H3 R5 S7 d11

EDITS = (
    Edit.off("cross", layer=1, head=-1),
    Edit.off("encoder"),
    Edit.force(query=3, key=0),
    Edit.cut(query=2, key=1, kind="decoder", layer=0),
    Edit.cut(None, 4),
    Edit.remove(2),
)


def test_an_edit_is_plain_data() -> None:
    assert len({*EDITS, *EDITS}) == len(EDITS)
    for edit in EDITS:
        assert Edit(**json.loads(json.dumps(asdict(edit)))) == edit
        assert eval(str(edit), {"Edit": Edit}) == edit
    numpy = Edit.force(np.int64(3), np.int64(0), "cross", np.int32(1), np.int8(-1))  # type: ignore[arg-type]
    assert json.loads(json.dumps(asdict(numpy))) == asdict(Edit("cross", 1, -1, 0, 3))
    assert Edit("cross", 1, 2, 3) == Edit.force(None, 3, "cross", 1, 2)
    assert Edit("cross", 1, 2) == Edit.off("cross", 1, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Edit.force(-1, 0), "query is -1; sentences differ in length, so queries are counted from the first, 0"),
        (lambda: Edit.cut(0, -2), "key is -2; sentences differ in length, so keys are counted from the first, 0"),
        (lambda: Edit.force(1.0, 0), "query is 1.0, expected a whole number, or None for all"),
        (
            lambda: Edit.cut(0, None),
            "masked is True, but there is no key to mask; give a position, as in Edit.cut(query=3, key=0)",
        ),
        (
            lambda: Edit.cut(0, "largest"),
            "masked is True, but the largest weight is known only after the softmax, so it is no key",
        ),
        (lambda: Edit("source", key=3), "an edit of the kind 'source' removes a position from all attention; write Edit.rem"),
        (lambda: Edit("source", 0, key=3, masked=True), "an edit of the kind 'source' removes a position from all attention"),
        (lambda: Edit("source", query=0, key=3, masked=True), "an edit of the kind 'source' removes a position from all att"),
        (
            lambda: Edit.force(2, 4, "decoder"),
            "query 2 cannot attend to key 4 in decoder attention, because that token is read later; expected a key from 0 to 2",
        ),
        (lambda: Edit.off("self"), "unknown kind of attention 'self'; expected one of encoder, decoder, cross, fusion, source"),
    ],
)
def test_invalid_edits_are_refused(make: Callable[[], Edit], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_a_tap_has_no_kind_source() -> None:
    with pytest.raises(
        ValueError, match=r"unknown kind of attention 'source'; expected one of encoder, decoder, cross, fusion$"
    ):
        Tap("source")  # type: ignore[arg-type]


# --- one call of attention ---------------------------------------------------------------------------------------------------


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(2, 3, length, 11, dtype=torch.float64, generator=generator) for length in (5, 7, 7))
    allow = masks.first(torch.tensor([7, 4]), 7)[:, None, None]
    return query, key, value, allow


def attended(*edits: Edit, positions: Tensor | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Returns the weights and the context after edits."""
    query, key, value, allow = inputs()
    look = Look((Tap("cross", 0),), edits)
    output = attend_with_look(query, key, value, Mechanism(ScaledDot(), allow), look, positions_BR=positions)
    return output.seen[0].weights_BHTS.numpy(), output.context.numpy()


def by_hand(forbidden: np.ndarray | None = None) -> np.ndarray:
    """softmax(q kᵀ / √11) without the forbidden links."""
    query, key, _, allow = (tensor.numpy() for tensor in inputs())
    scores = np.einsum("bhrd,bhsd->bhrs", query, key) / np.sqrt(11)
    allowed = np.broadcast_to(allow, scores.shape) & ~(np.zeros(scores.shape, bool) if forbidden is None else forbidden)
    numerators = np.where(allowed, np.exp(scores), 0.0)
    return numerators / numerators.sum(-1, keepdims=True)


def links(at: Any) -> np.ndarray:
    marked = np.zeros((2, 3, 5, 7), bool)
    marked[at] = True
    return marked


def one_hot(weights: np.ndarray, at: Any, key: int) -> np.ndarray:
    forced = weights.copy()
    forced[at] = np.eye(7)[key]
    return forced


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ((Edit.off(head=1),), lambda: by_hand() * np.array([1, 0, 1])[:, None, None]),
        ((Edit.off(),), lambda: 0 * by_hand()),
        ((Edit.force(2, 3),), lambda: one_hot(by_hand(), np.s_[:, :, 2], 3)),
        ((Edit.force(2, 3, head=-1),), lambda: one_hot(by_hand(), np.s_[:, 2, 2], 3)),
        ((Edit.force(None, 0),), lambda: one_hot(by_hand(), np.s_[:], 0)),
        ((Edit.force(1, 5),), lambda: one_hot(by_hand(), np.s_[0, :, 1], 5)),  # padding of the second sentence
        ((Edit.cut(4, 1),), lambda: by_hand(links(np.s_[:, :, 4, 1]))),
        ((Edit.cut(None, 2, head=0),), lambda: by_hand(links(np.s_[:, 0, :, 2]))),
        ((Edit.remove(3),), lambda: by_hand(links(np.s_[..., 3]))),
        (
            (Edit.cut(0, 0), Edit.cut(0, 1), Edit.force(3, 2)),
            lambda: one_hot(by_hand(links(np.s_[:, :, 0, :2])), np.s_[:, :, 3], 2),
        ),
        ((Edit.force(3, 2), Edit.remove(2)), lambda: by_hand(links(np.s_[..., 2]))),  # what is removed cannot be forced
        ((Edit.force(9, 2),), by_hand),  # there is no step 9
    ],
)
def test_weights_after_an_edit_by_hand(edits: tuple[Edit, ...], expected: Callable[[], np.ndarray]) -> None:
    weights, context = attended(*edits)
    np.testing.assert_allclose(weights, expected(), atol=1e-12)
    np.testing.assert_allclose(context, np.einsum("bhrs,bhsv->bhrv", expected(), inputs()[2].numpy()), atol=1e-12)


def test_a_query_is_a_position_not_a_row() -> None:
    """In a step all rows are hypotheses at one position, which sentences of a batch do not share."""
    weights, _ = attended(Edit.force(6, 1), positions=torch.tensor([[6], [2]]))
    np.testing.assert_allclose(weights, one_hot(by_hand(), np.s_[0], 1), atol=1e-12)
    weights, _ = attended(Edit.cut(2, 1), positions=torch.tensor([[6], [2]]))
    np.testing.assert_allclose(weights, by_hand(links(np.s_[1, ..., 1])), atol=1e-12)


def test_a_key_without_any_other_leaves_nothing() -> None:
    query, key, value, _ = (tensor[:, :, :1] for tensor in inputs())
    output = attend_with_look(query, key, value, Mechanism(ScaledDot()), Look((Tap("cross", 0),), (Edit.cut(None, 0),)))
    assert not output.context.any()
    assert not output.seen[0].weights_BHTS.any()


# --- what does not exist -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (Edit.force(0, 7), "key 7 does not exist: this source has 7 positions"),
        (Edit.remove(7), "key 7 does not exist: this source has 7 positions"),
        (Edit.cut(7, 0, "encoder"), "query 7 does not exist: this source has 7 positions"),
        (Edit.force(0, 2, "fusion"), "key 2 does not exist: this auxiliary text has 2 positions"),
        (Edit.force(7, 1, "fusion"), "query 7 does not exist: this source has 7 positions"),
        (Edit.force(99, 6), None),  # nobody knows how long the output will be
        (Edit.force(99, 98, "decoder"), None),
    ],
)
def test_positions_that_a_source_does_not_have(edit: Edit, message: str | None) -> None:
    if message is None:
        check_positions((edit,), 7, 2)
        return
    with pytest.raises(UserError, match=message):
        check_positions((edit,), 7, 2)


@pytest.mark.parametrize("name", ["transformer scaled_dot", "rnn additive"])
def test_a_missing_position_is_an_error_of_that_request(name: str) -> None:
    engine = make_engine(make_model(name))
    look = Look(edits=(Edit.force(None, 4),))
    requests = make_requests(rows_of(make_source(7, 3, 5, 4)), max_length=3, look=look)
    message = "key 4 does not exist: this source has {} positions"
    expected = {0: "", 1: message.format(3), 2: "", 3: message.format(4)}
    assert {event.id: event.error for event in run(engine, requests) if event.is_last} == expected
    assert {forced.id: forced.error for forced in engine.force(requests, [[7, 3]] * 4)} == expected


def test_a_model_without_this_attention_refuses() -> None:
    for name, edit, message in (
        ("rnn additive", Edit.remove(2), r"the encoder of this model has no self-attention .*; Edit.cut\(None, 2\) hides pos"),
        ("rnn additive", Edit.off("decoder"), r"Edit\(kind='decoder'\) changes decoder attention, but this model has cross at"),
        ("rnn fixed", Edit.off(), r"Edit\(kind='cross'\) changes cross attention, but this model has no attention"),
        ("decoder only", Edit.remove(0), "changes encoder attention, but this model has decoder attention"),
        ("transformer scaled_dot", Edit.off("cross", 2), "there is no layer 2 in cross attention: layers are numbered 0 to 1"),
        ("transformer scaled_dot", Edit.off(head=2), "there is no head 2 in cross attention: heads are numbered 0 to 1 here"),
    ):
        engine = make_engine(make_model(name))
        (request,) = make_requests(rows_of(make_source(5)), max_length=3, look=Look(edits=(edit,)))
        (event,) = run(engine, [request])
        (forced,) = engine.force([request], [[7, 3]])
        assert re.search(message, event.error), event.error
        assert event.error == forced.error


@pytest.mark.parametrize("kind", ["encoder", "cross"])
def test_a_removed_token_leaves_no_trace(kind: Kind) -> None:
    """Whatever a removed token is, the output is the same."""
    model = make_model("transformer scaled_dot")
    assert has_cross("transformer scaled_dot")
    engine = make_engine(model)
    rows = [[5, 6, 7, 8], [5, 6, 11, 8]]

    def scores(edit: Edit) -> list[tuple[float, ...]]:
        found = engine.force(make_requests(rows, look=Look(edits=(edit,))), [[7, 9, 3]] * 2)
        return [forced.token_log_probs for forced in sorted(found, key=lambda forced: forced.id)]

    one, other = scores(Edit.remove(2))
    assert one == pytest.approx(other, abs=1e-12)
    one, other = scores(Edit.cut(None, 2, kind))  # the other kind of attention still passes it on
    assert one != pytest.approx(other, abs=1e-6)


def test_cells_of_a_grid_are_numbered_in_their_own_grid() -> None:
    """Pictures of other sizes in the batch do not change which cell an edit means, nor which cells a tap shows."""
    name = "picture, transformer"
    engine = make_engine(make_frontend_model(name), collate=source_batch)
    edits = Edit.force(1, 4), Edit.cut(None, 5), Edit.cut(5, 3, "encoder")  # most of them below the first row
    look = Look((Tap("cross"), Tap("encoder", 0)), edits)
    rows = make_rows(name)
    axes = {forced.id: forced.axes for forced in engine.force(make_requests(rows), [[7, 3]] * len(rows))}
    assert {axes[number] for number in (0, 2, 3)} == {(2, 3), (3, 2), (2, 4)}
    rows = [rows[number] for number in (0, 2, 3)]
    for tapped in (look, Look(look.taps)):
        requests = make_requests(rows, max_length=4, min_length=2, look=tapped)
        together = {event.id: event for event in run(engine, requests) if event.is_last}
        for request in requests:
            (alone,) = (event for event in run(engine, [request]) if event.is_last)
            assert_same_hypotheses(together[request.id].hypotheses, alone.hypotheses)
            output = alone.hypotheses[0]
            (forced,) = engine.force([request], [[*output.ids, EOS] if output.finished else output.ids])
            assert output.token_log_probs == pytest.approx(forced.token_log_probs, abs=1e-9)
            for event in (alone, together[request.id]):
                for one, other in zip(joined(event.seen), forced.seen, strict=True):
                    np.testing.assert_allclose(one.weights_BHTS, other.weights_BHTS, atol=1e-9)
