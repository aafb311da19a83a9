"""Inspections as numbers and as files; tests/doors/test_page.py opens the page in a browser."""

import base64
import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from table import MODELS, sums_to_one
from test_folder import make_saved
from test_pipeline import make_map
from typer.testing import CliRunner

import regard
from regard import reference
from regard.checkpoint import folder
from regard.cli.main import app
from regard.data.batch import source_batch
from regard.errors import UserError
from regard.inspection import capture, report
from regard.inspection.capture import CapturedLayer, Inspection, inspect, mean_distance
from regard.inspection.explain import explain
from regard.layers.recurrent import GATES, STATES, cell_over_time, layer_weights, make_stack, run, state_width
from regard.look import Look, Tap
from regard.models.rnn_seq2seq import RnnSettings

EVERYTHING = ("weights", "scores", "norms")


def make_translator(name: str) -> regard.Translator:
    torch.manual_seed(5)
    saved = make_saved(MODELS[name])
    return regard.Translator.of_model(saved.model, saved.source, saved.target)


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_and_head_of_every_model(name: str) -> None:  # SPEC A9.2
    """One interface shows every layer and head, equal to the weights that the model uses; rows sum to 1."""
    translator = make_translator(name)
    seen = inspect(translator, "abcab", output=(4, 5, 6, 4), what=EVERYTHING)
    assert seen.source == (
        ("abcab", "<eos>") if translator.reader.traits.continues_text else ("a", "b", "c", "a", "b", "<eos>")
    )  # a prompt is target
    assert seen.target == ("X", "Y", "Z", "X", "<eos>")
    assert seen.read == ("<sos>", "X", "Y", "Z", "X")
    summed = getattr(MODELS[name], "attention", "soft") in ("marginal", "monotone")  # their weights are those given the output
    plain = Look(tuple(Tap(kind, what="posterior" if summed else "weights") for kind in capture.KINDS), grad=not summed)
    memory = translator.model.encode(source_batch([[4, 5, 6, 4, 5]]), plain)
    decoded = translator.model.decode(torch.tensor([[2, 4, 5, 6, 4]]), memory, plain)
    used = {(layer.kind, layer.layer): layer.weights_BHTS[0] for layer in (*memory.seen, *decoded.seen)}
    assert {(layer.kind, layer.layer) for layer in seen.layers} == used.keys()
    for layer in seen.layers:
        weights = layer.numbers["weights"]
        assert weights.shape == (layer.num_heads, len(seen.rows(layer.kind)), len(seen.columns(layer.kind)))
        torch.testing.assert_close(weights, used[layer.kind, layer.layer])
        if sums_to_one(name, layer.kind):
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        assert layer.numbers.keys() == set(EVERYTHING)
        assert seen.layer(layer.kind, layer.layer) is layer
    log_probs = decoded.logits_BTV[0].log_softmax(-1)
    torch.testing.assert_close(seen.log_probs_TV, log_probs.detach())


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_tanh"])
def test_gates_by_the_formulas(cell: str) -> None:  # SPEC A9.3
    """Each gate of an LSTM or GRU is σ of its part of W x + U h + b; layer by layer this gives the states of the stack."""
    stack = make_stack(cell, 5, 7, layers=2).double()  # type: ignore[arg-type]
    x, state = torch.randn(3, 4, 5).double(), torch.randn(2, 3, state_width(stack)).double()
    gates_per_layer = cell_over_time(stack, x, state)
    if cell == "rnn_tanh":
        assert gates_per_layer == []
        return
    below = x
    for layer, gates in enumerate(gates_per_layer):
        alone = make_stack(cell, 5 if layer == 0 else 7, 7).double()  # type: ignore[arg-type]
        for mine, theirs in zip(layer_weights(alone, 0), layer_weights(stack, layer), strict=True):
            mine.data.copy_(theirs.data)
        states, _ = run(alone, below, state[layer : layer + 1])
        W, U, b_W, b_U = (weight.detach().numpy() for weight in layer_weights(stack, layer))
        before = torch.cat((state[layer, :, None, :7], states[:, :-1]), dim=1).detach().numpy()
        from_input, from_state = below.detach().numpy() @ W.T + b_W, before @ U.T + b_U
        names = ("input", "forget", None, "output") if cell == "lstm" else ("reset", "update", None)
        for index, name in enumerate(names):
            if name is not None:
                part = slice(7 * index, 7 * index + 7)
                expected = reference.sigmoid(from_input[..., part] + from_state[..., part])
                torch.testing.assert_close(gates[name], torch.from_numpy(expected))
        assert tuple(gates) == GATES[stack.mode] + STATES[stack.mode]
        torch.testing.assert_close(gates["state"], states)
        below = states
    whole, _ = run(stack, x, state)
    torch.testing.assert_close(below, whole)


def lstm_by_hand(
    x_TI: np.ndarray, h: np.ndarray, c: np.ndarray, W: np.ndarray, U: np.ndarray, b: np.ndarray
) -> dict[str, np.ndarray]:
    """Gates, candidate, cell state and state of one layer, step by step in NumPy (Hochreiter & Schmidhuber 1997; Gers 2000)."""
    steps = []
    for x in x_TI:
        i, f, g, o = np.split(W @ x + U @ h + b, 4)
        i, f, g, o = (1 / (1 + np.exp(-i))), (1 / (1 + np.exp(-f))), np.tanh(g), (1 / (1 + np.exp(-o)))
        c = f * c + i * g
        h = o * np.tanh(c)
        steps.append({"input": i, "forget": f, "output": o, "candidate": g, "cell": c, "state": h})
    return {name: np.stack([step[name] for step in steps]) for name in steps[0]}


def test_the_inside_of_an_lstm_by_hand() -> None:  # SPEC A9.3
    """Two layers from any state; the gates also give torch's own outputs and last states."""
    stack = make_stack("lstm", 5, 7, layers=2).double()
    x, state = torch.randn(3, 4, 5).double(), torch.randn(2, 3, 14).double()
    found = cell_over_time(stack, x, state)
    below = x.numpy()
    for layer, inside in enumerate(found):
        W, U, b_W, b_U = (weight.detach().numpy() for weight in layer_weights(stack, layer))
        rows = [lstm_by_hand(below[row], *np.split(state[layer, row].numpy(), 2), W, U, b_W + b_U) for row in range(3)]
        assert inside.keys() == rows[0].keys()
        for name, values in inside.items():
            np.testing.assert_allclose(values.numpy(), np.stack([row[name] for row in rows]), atol=1e-12)
        below = inside["state"].numpy()
    outputs, (h, c) = stack(x, tuple(part.contiguous() for part in state.chunk(2, dim=-1)))
    torch.testing.assert_close(found[1]["state"], outputs)
    torch.testing.assert_close(torch.stack([layer["cell"][:, -1] for layer in found]), c)
    torch.testing.assert_close(torch.stack([layer["state"][:, -1] for layer in found]), h)


def test_the_inside_of_a_whole_model_by_hand() -> None:  # SPEC A9.3
    """The encoder of an LSTM model in both directions: each position has what was computed when it was read."""
    saved = make_saved(RnnSettings(width=8, embedding=3, cell="lstm"))
    translator = regard.Translator.of_model(saved.model, saved.source, saved.target)
    seen = inspect(translator, "abcab", output=(4, 5, 6))
    model = saved.model
    x = model.source_embedding(torch.tensor([4, 5, 6, 4, 5, 3])).detach().numpy()
    stacks = model.encoder.forwards[0], model.encoder.backwards[0]
    for gates, stack, backwards in zip(seen.gates, stacks, (False, True), strict=False):
        assert ("right to left" in gates.where) == backwards
        W, U, b_W, b_U = (weight.detach().numpy() for weight in layer_weights(stack, 0))
        by_hand = lstm_by_hand(x[::-1] if backwards else x, np.zeros(4), np.zeros(4), W, U, b_W + b_U)
        assert gates.opened.keys() | gates.states.keys() == by_hand.keys()
        assert list(gates.states) == ["candidate", "cell", "state"]
        for name, values in (gates.opened | gates.states).items():
            expected = by_hand[name][::-1] if backwards else by_hand[name]
            np.testing.assert_allclose(values.numpy(), expected, atol=1e-6)
    decoder = next(gates for gates in seen.gates if gates.along == "decoder")
    memory = model.encode(source_batch([[4, 5, 6, 4, 5]]))
    state = model.start(memory)
    for position, token in enumerate((2, 4, 5, 6)):
        state = model.step(torch.tensor([[token]]), state).state
        h, c = state.hidden_BKLX[0, 0, 0].split(8)
        torch.testing.assert_close(decoder.states["state"][position], h.detach())
        torch.testing.assert_close(decoder.states["cell"][position], c.detach())


@pytest.mark.parametrize(
    "settings",
    [
        RnnSettings(width=8, embedding=3, cell="lstm", encoder_layers=2),
        RnnSettings(width=8, embedding=3, cell="lstm", decoder="bahdanau", decoder_layers=2, score_width=5),
        RnnSettings(width=8, embedding=3, cell="gru", input_feeding=True, bidirectional=False),
        RnnSettings(width=8, embedding=3, cell="gru", decoder="fixed", every_step=True),
    ],
    ids=lambda one: f"{one.cell} {one.decoder}",
)
def test_gates_of_whole_models(settings: RnnSettings) -> None:  # SPEC A9.3
    """Encoder gates follow the source in both directions, decoder gates the output; checked by the resulting h and c."""
    saved = make_saved(settings)
    translator = regard.Translator.of_model(saved.model, saved.source, saved.target)
    seen = inspect(translator, "abcab", output=(4, 5, 6))
    names = {"lstm": {"input", "forget", "output"}, "gru": {"reset", "update"}}[settings.cell]
    assert all(gates.opened.keys() == names for gates in seen.gates)
    lengths = {"encoder": 6, "decoder": 4}
    assert all(gate.shape[0] == lengths[gates.along] for gates in seen.gates for gate in gates.opened.values())
    directions = 2 if settings.bidirectional else 1
    where = [gates.where for gates in seen.gates]
    assert len(where) == len(set(where)) == settings.encoder_layers * directions + settings.decoder_layers
    # The decoder's first layer, step by step through the model itself.
    model, read = saved.model, (2, 4, 5, 6)
    memory = model.encode(source_batch([[4, 5, 6, 4, 5]]))
    state = model.start(memory)
    opened = next(gates.opened for gates in seen.gates if gates.where == "decoder, layer 0")
    for position, token in enumerate(read):
        before = state
        state = model.step(torch.tensor([[token]]), state).state
        (old, new) = (decoder_state.hidden_BKLX[0, 0, 0] for decoder_state in (before, state))
        if settings.cell == "lstm":  # h' = o · tanh(c')
            h, c = new.split(8)
            torch.testing.assert_close(opened["output"][position] * c.tanh(), h)
        else:  # h' = (1 − z) n + z h, and |n| < 1
            z = opened["update"][position]
            n = (new - z * old) / (1 - z)
            assert (n.abs() < 1 + 1e-4).all()


def test_backward_gates_are_stored_at_the_position_they_read() -> None:  # SPEC A9.3
    saved = make_saved(RnnSettings(width=8, embedding=3, cell="gru"))
    translator = regard.Translator.of_model(saved.model, saved.source, saved.target)
    first, second = (inspect(translator, text, output=(4,)) for text in ("abcab", "bbcab"))
    (forward, backward), (forward_2, backward_2) = (
        (seen.gates[0].opened["update"], seen.gates[1].opened["update"]) for seen in (first, second)
    )
    assert not torch.allclose(forward[-1], forward_2[-1])  # the first token affects all later states
    assert torch.equal(backward[1:], backward_2[1:])  # the backward direction reads it last
    assert not torch.allclose(backward[0], backward_2[0])


def test_mean_distance_by_hand() -> None:  # SPEC A9.3
    weights = torch.tensor(
        [[[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.0, 0.5]], [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]]
    )
    torch.testing.assert_close(mean_distance(weights), torch.tensor([(0 + 0.5 + 1.0) / 3, 4 / 3]))
    query, key = torch.randn(2, 7, 3).double(), torch.randn(2, 7, 3).double()
    summary = regard.summarise(query, key, top=2, blocks=True, distance=True)
    whole = CapturedLayer("encoder", 0, {"weights": regard.attention_weights(query, key)})
    torch.testing.assert_close(CapturedLayer("encoder", 0, {}, summary).distance_H(), whole.distance_H())
    torch.testing.assert_close(CapturedLayer("encoder", 0, {}, summary).entropy_HT(), whole.entropy_HT())
    assert CapturedLayer("cross", 0, whole.numbers).distance_H() is None
    data = report.page_data(inspect(make_translator("transformer scaled_dot"), "abcab", output=(4, 5)))
    distances = {(layer["kind"], layer["layer"]): layer["distance"] for layer in data["layers"]}
    assert distances["cross", 0] is None
    assert len(distances["encoder", 1]) == 2


def test_long_texts_are_summarised(monkeypatch: pytest.MonkeyPatch) -> None:
    translator = make_translator("transformer alibi")
    whole = inspect(translator, "abcab" * 3, output=(4, 5, 6) * 4)
    monkeypatch.setattr(capture, "LONGEST", 12)
    seen = inspect(translator, "abcab" * 3, output=(4, 5, 6) * 4, what=EVERYTHING)
    for summarised, exact in zip(seen.layers, whole.layers, strict=True):
        assert summarised.numbers == {}
        assert summarised.summary is not None
        torch.testing.assert_close(summarised.summary.blocks, exact.numbers["weights"])
        torch.testing.assert_close(summarised.mass_HS(), exact.mass_HS())
        assert summarised.num_heads == exact.num_heads
    first_layer = report.page_data(seen)["layers"][0]
    assert first_layer["summary"]["down"] == 13
    assert first_layer["numbers"] == {}


def test_wrong_requests_are_explained() -> None:
    translator = make_translator("transformer scaled_dot")
    with pytest.raises(UserError, match="the text is empty, so there is no attention to show"):
        inspect(translator, "")
    seen = inspect(translator, "ab", max_length=3)
    with pytest.raises(UserError, match="there is no cross attention in layer 2: this model has layers 0 to 1"):
        seen.layer("cross", 2)
    with pytest.raises(UserError, match="this model has no cross attention"):
        inspect(make_translator("decoder only"), "ab", max_length=3).layer("cross", 0)


def test_nan_is_reported_as_an_error() -> None:
    for name in ("transformer scaled_dot", "rnn additive"):
        translator = make_translator(name)
        next(translator.model.parameters()).data.fill_(torch.nan)  # type: ignore[attr-defined]
        for function in (inspect, explain):
            with pytest.raises(UserError, match="this model computed a log-probability of nan; its weights are damaged or too"):
                function(translator, "ab", output=(4, 5))
        for use in (lambda: translator("ab", max_length=3), lambda: translator.score(["ab"], ["X"])):  # noqa: B023
            with pytest.raises(UserError, match="this model computed a log-probability of nan; its weights are damaged or too"):
                use()


LAYERS = "there is no cross attention in layer 99: this model has layers 0 to 1"


def test_commands_say_what_is_wrong(tmp_path: Path) -> None:
    """Each error is one line, and no file is written."""
    folder.save(make_saved(MODELS["transformer scaled_dot"]), tmp_path / "model")
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "file").write_text("")
    before = sorted(tmp_path.rglob("*"))
    for arguments, expected in (
        (["inspect", "ab", "--layer", "99"], LAYERS),
        *((["inspect", "ab", "--layer", "99", "--out", f"new{ending}"], LAYERS) for ending in (".html", ".npz", ".png")),
        (["inspect", "ab", "--kind", "crosss"], "unknown kind 'crosss'; expected one of"),
        (["inspect", "ab", "--kind", "fusion"], "this model has no fusion attention"),
        (["inspect", "ab", "--out", "new.xyz"], "the file extension selects the format; expected one of .html, .npz, .png"),
        (["inspect", "ab", "--out", "folder.html"], "folder.html is a folder; expected the name of a file to write"),
        (
            ["inspect", "ab", "--out", "file/new.npz"],
            "file/new.npz cannot be written: its folder is a file; choose another file",
        ),
        (["inspect", " ", "--out", "new.html"], "the text is empty, so there is no attention to show"),
        (["inspect", "a" * 1025, "--out", "new.html"], "a sentence has 1,025 tokens, but this model translates at most 1,024"),
        (["inspect", "Ab. " * 300, "--out", "new.html"], "is too long and was translated in 300 parts; inspect one sentence"),
        (["inspect", "a\udcff"], "a lone surrogate"),
        (["explain", " "], "the text is empty, so there is nothing to explain"),
        (["explain", "ab", "--layer", "99"], "there is no layer 99: layers are numbered 0 to 1 here"),
        (["explain", "ab", "--head", "-3"], "there is no head -3: heads are numbered 0 to 1 here"),
        (["explain", "ab", "--token", "999"], "there is no token 999: the output has tokens 0 to"),
    ):
        command, text, *others = arguments
        others = [
            str(tmp_path / value) if name == "--out" else value for name, value in zip(["", *others], others, strict=False)
        ]
        done = CliRunner().invoke(app, [command, str(tmp_path / "model"), text, *others])
        assert isinstance(done.exception, UserError), arguments
        assert expected in str(done.exception)
        assert "\n" not in str(done.exception)
    assert sorted(tmp_path.rglob("*")) == before


# --- files -------------------------------------------------------------------------------------------------------------------


def numbers_of(packed: dict[str, object], shape: tuple[int, ...]) -> np.ndarray:
    array = np.frombuffer(base64.b64decode(str(packed["data"])), dtype=str(packed["type"])).reshape(shape)
    return array * packed.get("by", 1)  # type: ignore[operator]


def embedded(page: str) -> dict[str, object]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert match
    data: dict[str, object] = json.loads(match[1])
    return data


HOSTILE = "ab</script><script>alert(1)</script><!--&\u2028\"'\\ü語"


def test_a_page_holds_the_numbers_and_no_text_can_break_it() -> None:  # SPEC A9.2
    seen = inspect(make_translator("transformer scaled_dot"), HOSTILE, output=(4, 5), what=EVERYTHING)
    page = report.page(seen, model="</title><b>")
    template = (Path(report.__file__).parent / "page" / "page.html").read_text()
    assert page.count("<script") == template.count("<script")
    assert page.count("</script") == template.count("</script")
    assert "<b>" not in page
    assert "<title>ab&lt;/script&gt;" in page
    assert len(template) < 1_000_000
    assert not re.search(r"(src|href)\s*=|https?://(?!www\.w3\.org/2000/svg)|@import|url\(", template)  # no external resources
    data = embedded(page)
    assert (data["text"], data["source"], data["target"]) == (HOSTILE, [*HOSTILE, "<eos>"], ["X", "Y", "<eos>"])
    assert len(data["layers"]) == len(seen.layers)  # type: ignore[arg-type]
    for layer_data, layer in zip(data["layers"], seen.layers, strict=True):  # type: ignore[call-overload]
        for what in EVERYTHING:
            numbers = layer.numbers[what]
            np.testing.assert_array_equal(numbers_of(layer_data["numbers"][what], numbers.shape), numbers.numpy())
        np.testing.assert_array_equal(
            numbers_of(layer_data["entropy"], (layer.num_heads, layer_data["rows"])), layer.entropy_HT().numpy()
        )


def test_many_numbers_take_fewer_bytes() -> None:
    weights = torch.rand(2, 11, 13).softmax(-1)
    for num_numbers, kind, error in ((report.EXACT, "<f4", 0.0), (report.HALF, "<u2", 1e-5), (report.HALF + 1, "|u1", 2e-3)):
        packed = report.packed(weights, num_numbers)
        assert packed["type"] == kind
        assert np.abs(numbers_of(packed, weights.shape) - weights.numpy()).max() <= error * weights.max().item()
    assert report.packed(-weights, report.HALF)["type"] == "<f4"  # scores and sums have signs


def test_arrays_are_read_by_numpy(tmp_path: Path) -> None:
    translator = make_translator("rnn lstm, bahdanau, 2+2 layers")
    seen = inspect(translator, "ab?語", output=(4, 5), what=EVERYTHING)
    path = report.write_npz(seen, tmp_path / "new" / "seen.npz")
    with np.load(path) as arrays:
        assert {"cross.0.weights", "cross.0.scores", "cross.0.norms", "log_probs"} <= set(arrays.files)
        np.testing.assert_array_equal(arrays["cross.0.weights"], seen.layers[0].numbers["weights"].numpy())
        np.testing.assert_array_equal(arrays["log_probs"], seen.log_probs_TV.numpy())
        np.testing.assert_array_equal(arrays["gates.decoder.layer_1.forget"], seen.gates[-1].opened["forget"].numpy())
        words = json.loads(bytes(arrays["tokens.json"]))
    assert words["source"] == ["a", "b", "?", "語", "<eos>"]
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None


def test_notebooks_get_html() -> None:
    shown = make_map()._repr_html_()
    assert shown.count("<td") == 6
    assert 'title="F ← ph: 0.9000"' in shown
    assert "rgba(43,111,143,0.900)" in shown
    assert "&lt;eos&gt;" in shown
    result = make_translator("rnn additive")("ab<", max_length=3)
    assert result._repr_html_().startswith("<p>a b &lt; → <b>")
    assert "<table" in result._repr_html_()
    assert "<table" not in make_translator("rnn fixed")("ab", max_length=3)._repr_html_()


def make_inspection(layers: tuple[CapturedLayer, ...], rows: int, columns: int) -> Inspection:
    """An inspection of any size, made without a model."""
    return Inspection(
        text="a" * columns,
        output="B" * rows,
        finished=False,
        source=tuple(f"s{column}" for column in range(columns)),
        target=tuple(f"t{row}" for row in range(rows)),
        target_ids=(1,) * rows,
        vocabulary=("a", "B", "c"),
        log_probs_TV=torch.randn(rows, 3).log_softmax(-1),
        layers=layers,
        gates=(),
    )


# --- arguments ---------------------------------------------------------------------------------------------------------------


def test_inspections_and_explanations_can_be_compared() -> None:
    translator = make_translator("rnn additive")
    for function in (inspect, explain):
        one, same, other = (function(translator, "abcab", output=ids) for ids in ((4, 5), (4, 5), (4, 6)))
        assert one == same
        assert hash(one) == hash(same)
        assert one != other


@pytest.mark.parametrize("output", [(999,), (-1,), (4, 2.0), "X", (None,)])
def test_outputs_are_ids_of_the_vocabulary(output: object) -> None:
    translator = make_translator("rnn additive")
    for function in (inspect, explain):
        with pytest.raises((TypeError, ValueError), match=r"output is .*, expected token ids (from 0 to \d+|such as)"):
            function(translator, "abcab", output=output)


def test_inspect_and_explain_take_one_text() -> None:
    for function in (inspect, explain):
        with pytest.raises(TypeError, match=r"takes one text, got \['abcab'\]"):
            function(make_translator("rnn additive"), ["abcab"])


@pytest.mark.parametrize("wrong", [9, -9, "0", 1.5, None])
@pytest.mark.parametrize("name", ["rnn additive", "transformer alibi"])
def test_explain_requires_a_token_layer_and_head_that_exist(name: str, wrong: object) -> None:
    """Recurrent models have one layer and one head to explain; other numbers were once accepted without an error."""
    translator = make_translator(name)
    for what in ("token", "layer", "head"):
        with pytest.raises(UserError, match=f"there is no {what} {wrong!r}: "):
            explain(translator, "abcab", output=(4, 5), **{what: wrong})
    assert explain(translator, "abcab", output=(4, 5), layer=0, head=0) is not None


def test_a_page_opens_at_a_kind_that_exists(tmp_path: Path) -> None:
    seen = inspect(make_translator("rnn additive"), "abcab", output=(4, 5))
    with pytest.raises(ValueError, match="unknown kind of attention 'foo'; expected one of"):
        regard.write_page(seen, tmp_path / "a.html", kind="foo")
    with pytest.raises(UserError, match="there is no cross attention in layer 'x'"):
        regard.write_page(seen, tmp_path / "a.html", layer="x")
    assert list(tmp_path.iterdir()) == []
