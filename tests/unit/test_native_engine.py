"""The native encoder and steps equal torch's, do not depend on the batch, and decline what they cannot do by name."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from searching import alone_outputs, assert_same_hypotheses, last_outputs, make_engine, make_requests, rows_of, run, run_joining
from table import (
    EOS,
    FRONTENDS,
    MODELS,
    SOURCE_VOCAB,
    TARGET_VOCAB,
    TIES,
    make_frontend_model,
    make_model,
    make_rows,
    make_source,
)
from torch import Tensor

import regard
from regard.contracts import Event
from regard.data.batch import source_batch
from regard.errors import UserError
from regard.look import Edit, Look, Tap
from regard.models.build import build
from regard.models.contract import Model, Seq2Seq
from regard.models.native_steps import NativeCopy, NativeSteps
from regard.models.native_weights import beyond_native
from regard.models.transformer import Transformer, TransformerSettings
from regard.native import engine
from regard.native.library import library, load
from regard.pipeline.engines import check_native, engine_of

pytestmark = pytest.mark.skipif(library() is None, reason="the native library is not built: make native")

DECLINED = {
    "transformer location": "the score location",
    "transformer alibi, additive": "the score additive",
    "transformer cosine": "the score cosine",
    "transformer distance": "the score distance",
    "transformer additive, 1+3 layers": "the score additive",
    "transformer convolution": "mixing=convolution",
    "transformer dense": "mixing=dense",
    "decoder only convolution": "mixing=convolution",
    "transformer without look-ahead mask": "no look-ahead mask",
}
SERVED = [name for name in MODELS if not name.startswith("rnn") and name not in DECLINED]
NAME = "transformer rotary, general"
served = pytest.mark.parametrize("name", SERVED)


def make_pair(name: str) -> tuple[Model, NativeSteps]:
    model = make_model(name, torch.float32)
    return model, NativeSteps(model)  # type: ignore[arg-type]


@torch.inference_mode()
def logits_of(model: Seq2Seq, lengths: tuple[int, ...], prefix: int = 0, steps: int = 6) -> Iterator[Tensor]:
    """Yields the logits of steps after a prefix, with three hypotheses that come and go, and with sentences that leave and
    enter; they do not depend on the model."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int, least: int = 4, most: int = TARGET_VOCAB) -> Tensor:
        return torch.randint(least, most, shape, generator=generator)

    read = draw(len(lengths), prefix) if prefix else None
    state = model.start(model.encode(make_source(*lengths)), read)
    state = state.select(torch.zeros(len(lengths), 3, dtype=torch.long))
    for number in range(steps):
        B = len(state.lengths_B)
        step = model.step(draw(B, 3), state)
        yield step.logits_BKV
        state = step.state.select(draw(B, 3, least=0, most=3))
        if number == 2:
            fresh = model.start(model.encode(make_source(3, 9)))
            state = state.keep(torch.tensor([2, 0])).join(fresh.select(torch.zeros(2, 3, dtype=torch.long)))


@served
def test_its_numbers_are_those_of_torch(name):
    ours, native = make_pair(name)
    memories = [one.encode(make_source(5, 2, 7, 1)) for one in (ours, native)]
    allow_BS = memories[0].allow_BS
    torch.testing.assert_close(memories[1].values_BSE[allow_BS], memories[0].values_BSE[allow_BS], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(memories[1].summary_BE, memories[0].summary_BE, atol=1e-5, rtol=1e-5)
    for prefix in (0, 4):
        for found, expected in zip(logits_of(native, (5, 2, 7, 1), prefix), logits_of(ours, (5, 2, 7, 1), prefix), strict=True):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "swiglu"])
def test_activations(activation):
    torch.manual_seed(1)
    small = TransformerSettings(width=20, heads=2, feed_forward=37, activation=activation, max_positions=50)
    model = build(small, SOURCE_VOCAB, TARGET_VOCAB).eval()
    for parameter in model.parameters():
        parameter.data *= 1.7  # so that activations saturate, too
    for found, expected in zip(logits_of(NativeSteps(model), (5, 3, 2)), logits_of(model, (5, 3, 2)), strict=True):
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


def test_embeddings_that_are_not_scaled():
    torch.manual_seed(1)
    sizes = TransformerSettings(width=20, heads=2, feed_forward=37, scale_embedding=False)
    model = build(sizes, SOURCE_VOCAB, TARGET_VOCAB).eval()
    for found, expected in zip(logits_of(NativeSteps(model), (5, 3, 2)), logits_of(model, (5, 3, 2)), strict=True):
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


def wide_model() -> Transformer:
    """A model whose products are divided among threads, and whose sizes leave tails."""
    torch.manual_seed(4)
    sizes = TransformerSettings(width=90, heads=3, feed_forward=331, encoder_layers=2, decoder_layers=2, activation="gelu")
    model = build(sizes, SOURCE_VOCAB, 1003).eval()
    assert isinstance(model, Transformer)
    return model


def test_no_bit_depends_on_the_batch_or_on_threads():
    native = NativeSteps(wide_model())
    lengths = (5, 2, 7, 1, 6, 4, 3, *[8] * 24)
    threads = torch.get_num_threads()

    def outputs(rows: range, K: int) -> list[Tensor]:
        memory = native.encode(make_source(*lengths))
        state = native.start(native.encode(source_batch([rows_of(make_source(*lengths))[row] for row in rows])))
        state = state.select(torch.zeros(len(rows), K, dtype=torch.long))
        found = [memory.values_BSE[row, : lengths[row]] for row in rows]
        for number in range(3):
            step = native.step(torch.tensor([[(7 * row + number) % 1003] * K for row in rows]), state)
            found.append(step.logits_BKV[:, -1])
            state = step.state
        return found

    try:
        torch.set_num_threads(1)
        whole = outputs(range(len(lengths)), 5)
        torch.set_num_threads(2)
        assert all(map(torch.equal, outputs(range(len(lengths)), 5), whole))
        for row, K in ((0, 1), (2, 2), (3, 3), (11, 4)):
            alone = outputs(range(row, row + 1), K)
            assert torch.equal(alone[0], whole[row])
            assert all(map(torch.equal, alone[1:], (step[row : row + 1] for step in whole[len(lengths) :])))
    finally:
        torch.set_num_threads(threads)


def test_instruction_sets_give_the_same():
    functions, best = library(), load().instruction_set
    assert functions is not None
    found = {}
    try:
        for name in ("portable", "avx2", "avx512"):
            if functions.regard_choose(name.encode()) == 0:
                found[name] = list(logits_of(NativeSteps(wide_model()), (5, 3, 8)))
    finally:
        functions.regard_choose(best.encode())
    if "avx512" in found:
        assert all(map(torch.equal, found["avx512"], found["avx2"]))  # wider registers, the same order
    for steps in found.values():
        for one, other in zip(steps, found["portable"], strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


# --- States ------------------------------------------------------------------------------------------------------------------


def test_states_that_share_caches_do_not_disturb_each_other():
    native = make_pair(NAME)[1]

    def begin():
        return native.step(torch.tensor([[4], [5]]), native.start(native.encode(make_source(3, 4)))).state

    def go_on(state, ids) -> Tensor:
        for token in ids:
            step = native.step(torch.full((2, 1), token), state)
            state = step.state
        return step.logits_BKV

    expected = {ids: go_on(begin(), ids) for ids in ((6, 7, 8), (9, 10, 11))}
    state = begin()
    for other in (state.copy(), state.keep(torch.tensor([0, 1])), state.select(torch.tensor([[0], [0]]))):
        assert torch.equal(go_on(other, (9, 10, 11)), expected[9, 10, 11])
    assert torch.equal(go_on(state, (6, 7, 8)), expected[6, 7, 8])


def test_new_sentences_take_the_rows_of_others():
    native, sources = make_pair(NAME)[1], ((3, 4, 2), (5, 6))

    def begin(*lengths: int):
        ids = torch.tensor([[4 + length] for length in lengths])
        return native.step(ids, native.start(native.encode(make_source(*lengths)))).state

    def go_on(state) -> Tensor:
        return native.step(torch.full((len(state.lengths_B), 1), 7), state).logits_BKV

    old, new = (go_on(begin(*lengths)) for lengths in sources)
    found = go_on(begin(*sources[0]).put(torch.tensor([2, 0]), begin(*sources[1])))
    assert torch.equal(found, torch.stack((new[1], old[1], new[0])))
    with pytest.raises(IndexError, match="there is no sentence 3"):
        begin(*sources[0]).put(torch.tensor([3]), begin(5))


def test_a_spent_state_and_wrong_indices():
    native = make_pair(NAME)[1]
    state = native.start(native.encode(make_source(3, 4)))
    with pytest.raises(ValueError, match=r"ids have shape \(1, 1\), expected \(sentences, hypotheses\) = \(2, 1\)"):
        native.step(torch.tensor([[4]]), state)
    with pytest.raises(IndexError, match="there is no hypothesis 1"):
        state.select(torch.tensor([[0], [1]]))
    with pytest.raises(IndexError, match="there is no sentence 2"):
        state.keep(torch.tensor([2]))
    with pytest.raises(ValueError, match="parents has 1 rows, expected 2"):
        state.select(torch.tensor([[0]]))
    with pytest.raises(ValueError, match="different numbers of hypotheses"):
        state.join(state.select(torch.zeros(2, 2, dtype=torch.long)))
    size = state.nbytes
    with pytest.raises(IndexError, match="a token that the vocabulary of the model has not"):
        native.step(torch.tensor([[4], [TARGET_VOCAB]]), state.copy())
    step = native.step(torch.tensor([[4], [5]]), state)
    assert step.state.lengths_B.tolist() == [1, 1]
    assert step.state.nbytes > size
    for use in (state.copy, state.spend, lambda: native.step(torch.tensor([[4], [5]]), state)):
        with pytest.raises(RuntimeError, match="already used by an earlier step"):
            use()


def test_positions_that_the_model_has_not():
    model = build(TransformerSettings(width=20, heads=2, positions="learned", max_positions=5), SOURCE_VOCAB, TARGET_VOCAB)
    native = NativeSteps(model.eval())
    state = native.start(native.encode(make_source(5)))
    for _ in range(5):
        state = native.step(torch.tensor([[4]]), state).state
    with pytest.raises(UserError, match="the input has 6 positions, but this model has learned vectors for 5"):
        native.step(torch.tensor([[4]]), state)
    with pytest.raises(UserError, match="the input has 6 positions"):
        native.encode(make_source(6))


# --- searches ----------------------------------------------------------------------------------------------------------------


def assert_same(found: dict[int, Any], expected: dict[int, Any]) -> None:
    assert found.keys() == expected.keys()
    for id, hypotheses in expected.items():
        assert_same_hypotheses(found[id], hypotheses, tolerance=1e-4)


def engines(name: str) -> tuple[Any, Any]:
    torch_engine = make_engine(make_model(name, torch.float32))
    return torch_engine, replace(torch_engine, native=NativeCopy().of)


@pytest.mark.parametrize("name", [name for name in SERVED if name not in TIES])
def test_a_search_finds_the_same(name):
    rows = rows_of(make_source(5, 2, 7, 1, 3)) if "decoder only" not in name else [[]] * 3
    ours, native = engines(name)
    for options in ({}, {"beam": 4, "n_best": 3}, {"beam": 3, "prefix": (5, 6)}, {"sample": True, "n_best": 2, "top_k": 5}):
        requests = make_requests(rows, max_length=9, **options)
        expected, found = (last_outputs(run(one, requests)) for one in (ours, native))
        assert_same(found, expected)


options = st.fixed_dictionaries(
    {"max_length": st.integers(3, 10), "beam": st.integers(1, 5), "length_penalty": st.sampled_from((0.0, 0.6, 2.0, "mean"))},
    optional={
        "min_length": st.integers(0, 3),
        "max_ratio": st.sampled_from((0.3, 1.0, 3.0)),
        "no_repeat": st.integers(1, 3),
        "repetition_penalty": st.sampled_from((1.0, 1.5)),
        "banned": st.just(((5,), (6, 7))),
        "prefix": st.just((8,)),
    },
)


@settings(max_examples=40, deadline=None)
@given(options, st.integers(0, 999))
def test_any_options_find_the_same(given_options, seed):
    draw = random.Random(seed)
    rows = [[draw.randrange(4, SOURCE_VOCAB) for _ in range(draw.randint(1, 9))] for _ in range(5)]
    ours, native = NAMED_ENGINES
    requests = make_requests(rows, **given_options)
    assert_same(last_outputs(run(native, requests)), last_outputs(run(ours, requests)))


NAMED_ENGINES: tuple[Any, Any] = engines(NAME) if library() is not None else ((), ())


def test_joining_a_running_search_changes_no_bit():
    requests = make_requests(rows_of(make_source(5, 2, 7, 1, 3, 6)), beam=3, n_best=2, max_length=9)
    native = NAMED_ENGINES[1]
    together = last_outputs(run_joining(native, [requests[:2], requests[2:3], requests[3:]], every=2))
    assert together == alone_outputs(native, requests)


def test_a_search_takes_native_steps(monkeypatch):
    taken = []
    read = NativeSteps._read
    monkeypatch.setattr(NativeSteps, "_read", lambda *given, **named: taken.append(given) or read(*given, **named))
    for number, one in enumerate(NAMED_ENGINES):
        taken.clear()
        run(one, make_requests([[5, 6]], max_length=4))
        assert bool(taken) == bool(number)


# --- taps --------------------------------------------------------------------------------------------------------------------

EVERYTHING = Look(taps=(Tap("encoder"), Tap("decoder", what="posterior"), Tap("cross"), Tap("cross", layer=-1, head=1)))


def seen_of(events: list[Event]) -> dict[tuple[Any, ...], list[Any]]:
    found: dict[tuple[Any, ...], list[Any]] = {}
    for event in events:
        for one in event.seen:
            found.setdefault((event.id, one.kind, one.layer, one.heads, one.what), []).append(one)
    return found


@pytest.mark.parametrize("name", [NAME, "transformer windows", "transformer alibi, grouped"])
def test_taps_are_those_of_torch_and_change_no_bit(name):
    ours, native = engines(name)
    rows = rows_of(make_source(5, 2, 7))
    plain = last_outputs(run(native, make_requests(rows, beam=2, max_length=6)))
    requests = make_requests(rows, beam=2, max_length=6, look=EVERYTHING)
    assert native.stepping(EVERYTHING).model is not native.model
    found, expected = run(native, requests), run(ours, requests)
    assert last_outputs(found) == plain
    seen, should = seen_of(found), seen_of(expected)
    assert seen.keys() == should.keys()
    for key, parts in should.items():
        assert [one.rows for one in seen[key]] == [one.rows for one in parts]
        for one, other in zip(seen[key], parts, strict=True):
            assert one.weights_BHTS == pytest.approx(other.weights_BHTS, abs=1e-5)


@pytest.mark.parametrize("look", [Look(edits=(Edit.off("cross", 0),)), Look(taps=(Tap("cross", what="norms"),))])
def test_other_looks_are_those_of_torch(look):
    ours, native = NAMED_ENGINES
    requests = make_requests(rows_of(make_source(5, 2)), max_length=6, look=look)
    assert native.stepping(look).model is native.model
    assert last_outputs(run(native, requests)) == last_outputs(run(ours, requests))


# --- what is declined --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_what_it_cannot_do_is_declined_by_name(name):
    model = make_model(name, torch.float32)
    expected = [f"models of the class {type(model).__name__} have no native steps yet"] if name.startswith("rnn") else []
    assert beyond_native(model) == ([DECLINED[name]] if name in DECLINED else expected)
    if name in DECLINED:
        with pytest.raises(UserError, match=f"cannot run this model: {DECLINED[name]}. Use the engine auto or torch"):
            check_native(model)


def test_other_weights_and_hooks_are_declined():
    assert beyond_native(make_model(NAME)) == ["weights of torch.float64"]
    model = make_model(NAME, torch.float32)
    handle = model.decoder.layers[0].feed_forward.register_forward_hook(lambda *_: None)  # type: ignore[index, union-attr]
    assert beyond_native(model) == ["hooks of its modules"]
    handle.remove()
    torch.nn.utils.parametrizations.weight_norm(model.decoder.layers[0].attention.query)  # type: ignore[index, union-attr, arg-type]
    assert "modules of the class ParametrizedLinear" in beyond_native(model)


def test_changed_weights_are_packed_again():
    model = make_model(NAME, torch.float32)
    copy = NativeCopy()
    first = copy.of(model)
    assert copy.of(model) is first
    with torch.no_grad():
        model.decoder.output.bias[7] += 50  # type: ignore[union-attr]
    again = copy.of(model)
    assert again is not None
    assert again is not first
    assert all((step.argmax(-1) == 7).all() for step in logits_of(again, (5, 3, 2)))
    model.double()
    assert copy.of(model) is None


@pytest.mark.parametrize("name", ["picture, transformer", "sound with text, transformer"])
def test_files_are_encoded_by_torch_and_decoded_natively(name):
    model = make_frontend_model(name, torch.float32)
    assert beyond_native(model) == []
    assert FRONTENDS[name].kind == "transformer"
    source, native = source_batch(make_rows(name)), NativeSteps(model)  # type: ignore[arg-type]
    memory = native.encode(source)
    assert torch.equal(memory.values_BSE, model.encode(source).values_BSE)
    ids = torch.tensor([[EOS, 5]] * source.num_sentences)
    found, expected = (one.step(ids[:, :1], one.start(memory, ids)).logits_BKV for one in (native, model))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert not native.serves(EVERYTHING)


def test_padding_in_the_middle_is_torchs():
    model, native = make_pair(NAME)
    source = make_source(4, 4)
    allow = source.allow.clone()
    allow[0, 1] = False
    odd = replace(source, allow=allow)
    assert torch.equal(native.encode(odd).values_BSE, model.encode(odd).values_BSE)


# --- what users type ---------------------------------------------------------------------------------------------------------


def test_load_takes_an_engine(tmp_path):
    codec = regard.train(
        [("ab", "ba"), ("bb", "ab"), ("ba", "aa"), ("aab", "baa")],
        kind="transformer", width=16, heads=2, feed_forward=16, encoder_layers=1, decoder_layers=1, steps=3, quiet=True,
    )  # fmt: skip
    codec.save(tmp_path / "model")
    by_torch, native, auto = (regard.load(tmp_path / "model", engine=name) for name in ("torch", "native", "auto"))
    assert by_torch.engine_report == "torch, as asked for"
    assert native.engine_report == auto.engine_report == f"native, with {load().instruction_set} instructions"
    for beam in (1, 3):
        found, expected = native("aba", beam=beam, max_length=9), by_torch("aba", beam=beam, max_length=9)
        assert found.ids == expected.ids
        assert found.log_prob == pytest.approx(expected.log_prob, abs=1e-5)
    with pytest.raises(UserError, match=r'engine is .naitve., expected one of auto, native, torch; did you mean "native"'):
        regard.load(tmp_path / "model", engine="naitve")  # type: ignore[arg-type]


def test_the_report_says_why_torch_serves():
    model = make_model("transformer dense", torch.float32)
    from regard.pipeline.engines import describe_engine

    assert describe_engine(replace(make_engine(model), native=NativeCopy().of)) == "torch: mixing=dense"
    assert engine_of.__defaults__ == ("torch",)


def test_no_memory_is_an_error():
    with pytest.raises(MemoryError, match="use a smaller batch"):
        engine.Handle(None, lambda address: None)
