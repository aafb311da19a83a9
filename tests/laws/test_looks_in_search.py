"""Looks in generation: taps never change an output and show what a forced pass shows; edits mean the same in both."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from searching import alone_outputs, assert_same_hypotheses, batched, last_outputs, make_engine, make_requests, rows_of, run
from searching import run_joining as join_requests
from table import EOS, make_model, make_source

from regard.contracts import Array, Event, Hypothesis
from regard.look import Edit, Kind, Look, Seen, Tap, What
from regard.pipeline.assembly import joined

WHATS: tuple[What, ...] = ("weights", "scores", "norms")
KINDS: tuple[Kind, ...] = ("encoder", "decoder", "cross")
NAMES = (
    "rnn additive",
    "rnn lstm, bahdanau, 2+2 layers",
    "rnn tanh, one direction, input feeding",
    "rnn hard",
    "transformer alibi, grouped",
    "transformer windows",
    "transformer additive, 1+3 layers",
)
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beam": {"beam": 5, "n_best": 3},
    "sample": {"sample": True, "n_best": 2},
}
EDITS: dict[str, tuple[Edit, ...]] = {
    "a head off": (Edit.off("cross", -1, -1), Edit.off("decoder", 0, 0)),
    "a query forced": (Edit.force(4, 1), Edit.force(3, 0, "decoder", -1), Edit.force(0, 1, "encoder")),
    "a link cut": (Edit.cut(4, 0), Edit.cut(3, 2, "decoder", 0, 1), Edit.cut(None, 2), Edit.cut(1, 0, "encoder")),
    "a token removed": (Edit.remove(1),),
}
PREFIXES = (), (7, 11, 5), (9,), (12, 4, 4, 8), (7, 11, 6)
every_name = pytest.mark.parametrize("name", NAMES)
every_way = pytest.mark.parametrize("way", WAYS)


def written(output: Hypothesis) -> list[int]:
    return [*output.ids, EOS] if output.finished else [*output.ids]


def seen_of(events: list[Event], id: int) -> tuple[Seen[Array], ...]:
    return joined([seen for event in events if event.id == id for seen in event.seen])


@every_name
@every_way
@pytest.mark.parametrize("change", EDITS)
def test_edits_mean_the_same_in_a_search_and_in_a_forced_pass(name: str, way: str, change: str) -> None:
    """Prefixes differ in length and requests join a running batch, so that a step holds many positions."""
    model = make_model(name)
    has = model.traits.attention
    edits = tuple(edit for edit in EDITS[change] if all(kind in has for kind in edit.kinds))
    engine, look = make_engine(model), Look(edits=edits)
    requests = make_requests(rows_of(make_source(7, 3, 5, 3, 4)), max_length=8, min_length=4, **WAYS[way])
    requests = [replace(request, prefix=prefix, look=look) for request, prefix in zip(requests, PREFIXES, strict=True)]
    found = last_outputs(join_requests(engine, batched(requests, 2)))
    assert sorted(found) == [0, 1, 2, 3, 4]
    changes = []
    for request, alone in zip(requests, alone_outputs(engine, requests).values(), strict=True):
        assert_same_hypotheses(found[request.id], alone)  # law 3
        for output in found[request.id]:
            (forced,) = engine.force([request], [written(output)])
            assert output.token_log_probs == pytest.approx(forced.token_log_probs, abs=1e-9)
            (usual,) = engine.force([replace(request, look=None)], [written(output)])
            changes.append(usual.token_log_probs != pytest.approx(forced.token_log_probs, abs=1e-7))
    assert any(changes) == bool(edits)
    assert all(changes) or not edits or name == "rnn hard"  # which may not have attended to the key that was cut


@every_name
@every_way
def test_law_2_a_search_with_taps_finds_the_same_and_shows_it(name: str, way: str) -> None:
    """Outputs are equal bit for bit; what was seen is that of a forced pass over the best output, <eos> and prefix included."""
    engine = make_engine(make_model(name))
    look = Look(tuple(Tap(kind, what=what) for kind in KINDS for what in WHATS))
    plain = make_requests(rows_of(make_source(7, 3, 5, 2, 4)), max_length=8, **WAYS[way])
    plain = [replace(request, prefix=prefix) for request, prefix in zip(plain, PREFIXES, strict=True)]
    tapped = [replace(request, look=look, stream=request.id % 2 == 1) for request in plain]
    events = join_requests(engine, batched(tapped, 2))
    assert last_outputs(events) == last_outputs(join_requests(engine, batched(plain, 2)))
    for request in tapped:
        (best, *_) = last_outputs(events)[request.id]
        (forced,) = engine.force([request], [written(best)])
        seen = seen_of(events, request.id)
        assert len(seen) == len(forced.seen) > 0
        for one, other in zip(seen, forced.seen, strict=True):
            assert (one.kind, one.layer, one.heads, one.rows, one.what) == (
                other.kind,
                other.layer,
                other.heads,
                other.rows,
                other.what,
            )
            np.testing.assert_allclose(one.weights_BHTS, other.weights_BHTS, atol=1e-9)


def test_taps_and_edits_together_show_the_edited_weights() -> None:
    engine = make_engine(make_model("transformer alibi, grouped"))
    look = Look((Tap("cross", 1),), (Edit.force(2, 0, layer=1, head=3), Edit.cut(None, 1, layer=1, head=0)))
    events = run(engine, make_requests(rows_of(make_source(5, 3)), max_length=6, min_length=5, beam=3, look=look))
    for id in (0, 1):
        ((seen,),) = (seen_of(events, id),)
        assert seen.weights_BHTS[0, 3, 2].tolist() == [1.0] + [0.0] * (seen.weights_BHTS.shape[-1] - 1)
        assert not seen.weights_BHTS[0, 0, :, 1].any()
        np.testing.assert_allclose(seen.weights_BHTS.sum(-1), 1.0)
