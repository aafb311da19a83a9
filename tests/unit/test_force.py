"""`force`: one forward pass over given outputs, in batches whose results equal those of single runs."""

import gc
from dataclasses import replace

import numpy as np
import pytest
import torch
from searching import make_engine, make_requests, rows_of, token_batch
from table import EOS, FRONTENDS, MODELS, SOS, make_frontend_model, make_model, make_rows, make_source
from test_search import TableModel, TableState, table_engine
from test_torch_engine import BAD, FailsToEncode
from torch import Tensor

from regard.contracts import Forced, Request
from regard.data.batch import source_batch
from regard.data.sources import num_positions
from regard.decoding import torch_engine
from regard.decoding.torch_engine import TorchEngine
from regard.look import Edit, Kind, Look, Tap, What
from regard.models.contract import Step

every_model = pytest.mark.parametrize("name", MODELS)
KINDS: tuple[Kind, ...] = ("encoder", "decoder", "cross")
OUTPUTS = [[7, 11, 5, EOS], [EOS], [4, 4, 9, 16, 12, 5, EOS], [8, 10], [13, 6, 7, EOS], []]
LENGTHS = (3, 7, 1, 5, 2, 4)


def look_with(*whats: What, edits: tuple[Edit, ...] = ()) -> Look:
    return Look(tuple(Tap(kind, what=what) for kind in KINDS for what in whats), edits)


def forced(
    engine: TorchEngine, requests: list[Request], outputs: list[list[int]] = OUTPUTS, **options: bool
) -> dict[int, Forced]:
    found = list(engine.force(requests, outputs, **options))
    assert sorted(one.id for one in found) == sorted(request.id for request in requests)
    return {one.id: one for one in found}


def assert_same_forced(found: Forced, expected: Forced) -> None:
    assert (found.error, found.axes) == (expected.error, expected.axes)
    assert found.token_log_probs == pytest.approx(expected.token_log_probs, abs=1e-9)
    assert len(found.seen) == len(expected.seen)
    for seen, other in zip(found.seen, expected.seen, strict=True):
        for name in ("kind", "layer", "heads", "rows", "what"):
            assert getattr(seen, name) == getattr(other, name), name
        assert isinstance(seen.weights_BHTS, np.ndarray)
        assert seen.weights_BHTS.shape[2] == len(seen.rows)
        np.testing.assert_allclose(seen.weights_BHTS, other.weights_BHTS, atol=1e-9)  # −∞ equals −∞
        assert (seen.summary is None) == (other.summary is None)


@every_model
@pytest.mark.parametrize("edits", [(), (Edit("cross", key=0), Edit("decoder", 0, 0))], ids=["as it is", "edited"])
def test_a_batch_gives_what_single_runs_give(name: str, edits: tuple[Edit, ...]) -> None:
    """Log-probabilities, weights, scores with −∞ and norms of texts of mixed lengths; one of them is empty."""
    model = make_model(name)
    engine = make_engine(model)
    look = look_with("weights", "scores", "norms", edits=tuple(edit for edit in edits if edit.kind in model.traits.attention))
    requests = make_requests(rows_of(make_source(*LENGTHS)), look=look)
    together = forced(engine, requests)
    for request, output in zip(requests, OUTPUTS, strict=True):
        (alone,) = engine.force([request], [output])
        ours = together[request.id]
        assert len(ours.token_log_probs) == len(output)
        assert_same_forced(ours, alone)
        if not output:
            continue
        memory = model.encode(token_batch([request.source]), look)
        decoded = model.decode(torch.tensor([[SOS, *output[:-1]]]), memory, look)
        log_probs = decoded.distribution()[0, range(len(output)), output]
        assert ours.token_log_probs == pytest.approx(log_probs.tolist(), abs=1e-9)
        for seen, expected in zip(ours.seen, memory.seen + decoded.seen, strict=True):
            np.testing.assert_allclose(seen.weights_BHTS, expected.weights_BHTS.detach().numpy(), atol=1e-9)


@pytest.mark.parametrize("name", FRONTENDS)
def test_sources_may_be_arrays(name: str) -> None:
    """Pictures, grids, frames and sounds of different sizes, some with an auxiliary text; what was captured has no padding."""
    engine = make_engine(make_frontend_model(name), collate=source_batch)
    rows = make_rows(name)
    plain = [replace(request, num_positions=num_positions(request.source)) for request in make_requests(rows)]
    outputs = OUTPUTS[: len(rows)]
    together = forced(engine, plain, outputs)
    look = Look((*look_with("weights", "scores").taps, Tap("fusion")))
    seen = forced(engine, [replace(request, look=look) for request in plain], outputs)
    for request, output in zip(plain, outputs, strict=True):
        (alone,) = engine.force([request], [output])
        assert_same_forced(together[request.id], alone)
        assert seen[request.id].token_log_probs == pytest.approx(alone.token_log_probs, abs=1e-9)
        (alone,) = engine.force([replace(request, look=look)], [output])
        assert_same_forced(seen[request.id], alone)
        for part in alone.seen:
            if part.kind == "cross":
                assert part.weights_BHTS.shape[2:] == (len(output), max(1, int(np.prod(alone.axes))))


def test_a_summary_and_chosen_rows_do_not_depend_on_the_batch() -> None:
    engine = make_engine(make_model("transformer scaled_dot"))
    look = Look((*look_with("summary").taps, Tap("cross", rows=(-1,)), Tap("encoder", rows=(-1,))))
    requests = make_requests(rows_of(make_source(*LENGTHS[:5])), look=look)
    together = forced(engine, requests, OUTPUTS[:5])
    for request, output in zip(requests, OUTPUTS[:5], strict=True):
        (alone,) = engine.force([request], [output])
        assert_same_forced(together[request.id], alone)
        for seen, other in zip(together[request.id].seen, alone.seen, strict=True):
            if seen.summary is not None and other.summary is not None:
                np.testing.assert_allclose(seen.summary.entropy, other.summary.entropy, atol=1e-9)
                np.testing.assert_allclose(seen.summary.mass, other.summary.mass, atol=1e-9)
                columns = len(output) if seen.kind == "decoder" else len(request.source)
                assert seen.summary.mass.shape[-1] == columns
        assert {seen.what for seen in alone.seen} == {"summary", "weights"}


@every_model
def test_distributions_are_returned_if_asked_for(name: str) -> None:
    engine = make_engine(make_model(name))
    requests = make_requests(rows_of(make_source(*LENGTHS)))
    assert all(one.log_probs_TV is None for one in forced(engine, requests).values())
    for id, one in forced(engine, requests, distributions=True).items():
        output = OUTPUTS[id]
        assert one.log_probs_TV is not None
        assert one.log_probs_TV.shape == (len(output), 19)
        assert one.log_probs_TV.dtype == np.float64
        np.testing.assert_allclose(one.log_probs_TV[range(len(output)), output], one.token_log_probs)
        np.testing.assert_allclose(np.exp(one.log_probs_TV).sum(-1), np.ones(len(output)))


def test_different_looks_are_forced_in_one_call() -> None:
    engine = make_engine(make_model("transformer scaled_dot"))
    looks = None, look_with("weights"), Look(edits=(Edit("cross", key=0),)), None, look_with("weights"), None
    requests = make_requests(rows_of(make_source(*LENGTHS)))
    requests = [replace(request, look=look) for request, look in zip(requests, looks, strict=True)]
    together = forced(engine, requests)
    for request, output in zip(requests, OUTPUTS, strict=True):
        (alone,) = engine.force([request], [output])
        assert_same_forced(together[request.id], alone)
    assert [len(together[id].seen) > 0 for id in range(6)] == [False, True, False, False, True, False]


def test_batches_have_a_maximum_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_engine, "FORCED_POSITIONS", 24)
    sizes: list[tuple[int, int]] = []

    class Recorded(TableModel):
        def decode(self, ids_BT: Tensor, memory, look: None = None):  # type: ignore[no-untyped-def]
            sizes.append(tuple(ids_BT.shape))
            return super().decode(ids_BT, memory)

    outputs = [[3] * length for length in (1, 9, 30, 2, 2, 3, 12, 1, 1, 5)]
    found = forced(table_engine(Recorded()), make_requests([[100]] * 10), outputs)
    assert sizes[0] == (1, 30)  # the longest first, alone
    assert all(rows * width <= 24 for rows, width in sizes[1:])
    assert len(sizes) < 6
    assert all(found[index].token_log_probs == found[2].token_log_probs[: len(row)] for index, row in enumerate(outputs))


def test_a_row_that_fails_is_an_error_of_that_row() -> None:
    class ComputesNan(TableModel):
        def step(self, ids_BK: Tensor, state: TableState, look: None = None) -> Step:
            step = super().step(ids_BK, state)
            step.logits_BKV[state.which_B == BAD] = torch.nan
            return step

    tables = [100, 101, BAD, 102, 103]
    outputs = [[3, 4, 2], [2], [4, 2], [5, 5, 5, 2], [3, 2]]
    for model, error in (
        (FailsToEncode(), "this source cannot be read"),
        (ComputesNan(), "this model computed a log-probability of nan; its weights are damaged or too large"),
    ):
        found = forced(table_engine(model), make_requests([[table] for table in tables]), outputs)
        assert [one.error for _, one in sorted(found.items())] == ["", "", error, "", ""]
        assert found[2].token_log_probs == ()
        for id, one in found.items():
            (alone,) = table_engine().force(make_requests([[tables[id]]]), [outputs[id]])
            assert id == 2 or one.token_log_probs == pytest.approx(alone.token_log_probs)


def test_results_hold_no_more_memory_than_they_show() -> None:
    """Results of many pairs may be held at once: none of them keeps its batch, or anything as large as the vocabulary."""
    engine = make_engine(make_model("transformer scaled_dot"))
    requests = make_requests(rows_of(make_source(*LENGTHS)), look=look_with("weights"))
    before = {id(tensor) for tensor in gc.get_objects() if type(tensor) is Tensor}
    plain = forced(engine, requests)
    gc.collect()
    left = [one for one in gc.get_objects() if type(one) is Tensor and id(one) not in before]
    assert all(19 not in tensor.shape for tensor in left)
    for one in (*plain.values(), *forced(engine, requests, distributions=True).values()):
        arrays = [seen.weights_BHTS for seen in one.seen]
        for array in arrays if one.log_probs_TV is None else [*arrays, one.log_probs_TV]:
            held = array.base.untyped_storage().nbytes() if isinstance(array.base, Tensor) else array.nbytes
            assert held == array.nbytes
            assert isinstance(array.base, Tensor | None)  # not a part of another array
