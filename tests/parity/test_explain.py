"""Every number of an explanation is recomputed in NumPy from the numbers above it and the model's weights."""

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from table import MODELS
from test_folder import make_saved
from torch import Tensor, nn

import regard
from regard import reference
from regard.core.attention import ScaledDot
from regard.core.score import Score
from regard.data.batch import source_batch
from regard.errors import UserError
from regard.inspection.explain import Explanation, explain
from regard.layers.blocks import SwiGlu
from regard.layers.scores import Additive, Basic, Concat, Cosine, Distance, General, Location
from regard.models.decoder import TargetDecoder
from regard.models.rnn_seq2seq import RnnSeq2Seq

Array = np.ndarray
OUTPUT = (4, 6, 5, 4)


def array(tensor: Tensor | nn.Parameter) -> Array:
    return tensor.detach().numpy()


def make_translator(name: str) -> regard.Translator:
    torch.manual_seed(5)
    saved = make_saved(MODELS[name])
    return regard.Translator.of_model(saved.model.double(), saved.source, saved.target)


def scores(score: Score, query: Array, keys: Array) -> Array:
    """Returns the scores of one query and prepared keys."""
    q = query[None]
    if isinstance(score, ScaledDot):
        divide_by = {"√d": len(query) ** 0.5, "d": len(query)}.get(str(score.divide_by), score.divide_by)
        return reference.scaled_dot(q, keys, float(divide_by))[0]
    if isinstance(score, General | Basic | Location):
        return reference.dot(q, keys)[0]
    if isinstance(score, Additive):
        return np.tanh(query @ array(score.query.weight).T + keys) @ array(score.v)
    if isinstance(score, Concat):
        return np.tanh(query @ array(score.weight.weight)[:, : len(query)].T + keys) @ array(score.v)
    if isinstance(score, Cosine):
        return reference.cosine(q, keys, score.temperature)[0]
    assert isinstance(score, Distance)
    return reference.distance(q, keys)[0]


def weights(attention: str, e: Array, allow: Array) -> Array:
    e = np.where(allow, e, 0.0)
    if attention == "unnormalised":
        return e * allow
    function: Callable[..., Array] = {
        "soft": reference.softmax,
        "marginal": reference.softmax,
        "hard": reference.hard,
        "gated": reference.hard_gates,
    }[attention]
    return function(e[None], allow[None])[0]


def linear(x: Array, layer: nn.Linear) -> Array:
    return x @ array(layer.weight).T + (0 if layer.bias is None else array(layer.bias))


def normed(x: Array, norm: nn.Module) -> Array:
    if isinstance(norm, nn.LayerNorm):
        return reference.layer_norm(x, array(norm.weight), array(norm.bias), norm.eps)
    if isinstance(norm, nn.RMSNorm):
        return reference.rms_norm(x, array(norm.weight), norm.eps)  # type: ignore[arg-type]
    return x


def fed(x: Array, feed: nn.Module) -> Array:
    if isinstance(feed, SwiGlu):
        gate, value = np.split(array(feed.gate_and_value.weight), 2)
        return reference.swiglu(x, gate.T, value.T, array(feed.output.weight).T)
    first, function, _, second = feed  # type: ignore[misc]
    inner = linear(x, first)
    return linear(reference.relu(inner) if isinstance(function, nn.ReLU) else reference.gelu(inner), second)


def check_attention(found: Explanation, score: Score, attention: str, bias: Array | float = 0.0) -> None:
    lines = {line.name: array(line.values) for line in found.lines}
    allow = lines["allowed"].astype(bool)
    np.testing.assert_allclose(lines["scores"][allow], (scores(score, lines["query"], lines["keys"]) + bias)[allow], atol=1e-10)
    assert (lines["scores"][~allow] == -np.inf).all()
    if attention == "monotone":
        np.testing.assert_allclose(lines["weights"].sum(), 1)
        return  # the weights are given: they depend on the tokens before
    np.testing.assert_allclose(lines["weights"], weights(attention, lines["scores"], allow), atol=1e-10)
    if attention == "marginal":
        return
    values = lines["values"] if "values" in lines else lines["states"]
    np.testing.assert_allclose(lines["context"], lines["weights"] @ values, atol=1e-10)


def check_output(found: Explanation, translator: regard.Translator, position: int) -> None:
    lines = {line.name: array(line.values) for line in found.lines}
    np.testing.assert_allclose(lines["probabilities"], reference.softmax(lines["logits"][None])[0], atol=1e-10)
    written = (*OUTPUT, 3)[position]
    assert int(lines["token"]) == written
    assert found.token == translator.target.tokens([written])[0]
    memory = translator.model.encode(source_batch([translator.source.encode("abcab")]))
    logits = translator.model.decode(torch.tensor([[2, *OUTPUT]]), memory).logits_BTV[0, position]
    if not translator.model.traits.looks_ahead:
        np.testing.assert_allclose(lines["logits"], array(logits), atol=1e-10)  # the logits of a pass over the whole output


@pytest.mark.parametrize("position", [0, 3])
@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].kind in ("rnn", "rnn_lm")])
def test_recurrent_models(name: str, position: int) -> None:  # SPEC A9.2
    translator = make_translator(name)
    model = translator.model
    found = explain(translator, "abcab", position, output=OUTPUT)
    lines = {line.name: array(line.values) for line in found.lines}
    if isinstance(model, RnnSeq2Seq) and model.settings.decoder != "fixed":
        keys = model.score.prepare(torch.from_numpy(lines["states"]), torch.arange(6))
        np.testing.assert_allclose(lines["keys"], array(keys), atol=1e-10)
        check_attention(found, model.score, model.settings.attention)
        if model.settings.sums_choices:
            rows = np.stack([linear(np.concatenate((lines["query"], h)), model.output) for h in lines["states"]])
            if model.settings.attention == "monotone":
                rows[:-1, 3] = -np.inf
            probabilities = reference.softmax(rows)
            if model.settings.copy:
                pairs = np.stack([np.concatenate((lines["query"], h)) for h in lines["states"]])
                own = [*translator.source.encode("abcab"), 0]
                gates = np.where(np.array(own) > 3, 1 / (1 + np.exp(-linear(pairs, model.gate)[:, 0])), 0.0)
                np.testing.assert_allclose(lines["gates"], gates, atol=1e-10)
                probabilities = (1 - gates[:, None]) * probabilities + gates[:, None] * np.eye(rows.shape[1])[own]
            np.testing.assert_allclose(lines["logits"], np.log(lines["weights"] @ probabilities), atol=1e-10)
            check_output(found, translator, position)
            return
        if model.settings.decoder == "bahdanau":
            read = np.concatenate((lines["state"], lines["context"]))
            if model.settings.readout_activation != "none":
                assert model.settings.readout_activation == "tanh"
                read = np.tanh(read)
        elif model.settings.readout == "plain":
            read = np.concatenate((lines["query"], lines["context"]))
        else:
            read = np.tanh(linear(np.concatenate((lines["context"], lines["query"])), model.combine))
            np.testing.assert_allclose(lines["mixed"], read, atol=1e-10)
    else:
        read = lines["state"]
    np.testing.assert_allclose(lines["logits"], linear(read, model.output), atol=1e-10)  # type: ignore[union-attr,arg-type]
    check_output(found, translator, position)


EXPLAINED = [
    name
    for name in MODELS
    if MODELS[name].kind == "transformer" or (MODELS[name].kind == "decoder_only" and MODELS[name].mixing == "attention")
]


@pytest.mark.parametrize("position", [0, 3])
@pytest.mark.parametrize("layer", [0, -1])
@pytest.mark.parametrize("name", EXPLAINED)
def test_transformers(name: str, layer: int, position: int) -> None:  # SPEC A9.2
    translator, head = make_translator(name), min(1, MODELS[name].heads - 1)
    decoder: TargetDecoder = translator.model.decoder  # type: ignore[union-attr,assignment]
    found = explain(translator, "abcab", position, output=OUTPUT, layer=layer, head=head)
    lines = {line.name: array(line.values) for line in found.lines}
    block = decoder.layers[layer]
    attention = block.cross or block.attention
    around = block.around_cross or block.around_attention
    pre = around.norm_order == "pre"
    x = lines["x"]
    if pre:
        np.testing.assert_allclose(lines["normed"], normed(x, around.norm), atol=1e-10)
    query = linear(lines["normed"] if pre else x, attention.query).reshape(attention.heads, -1)[head]
    np.testing.assert_allclose(lines["query"], query, atol=1e-10)
    check_attention(found, attention.score, "soft")
    width = len(lines["context"])
    np.testing.assert_allclose(lines["contexts"][head * width : head * width + width], lines["context"], atol=1e-10)
    projects = isinstance(attention.output, nn.Linear)
    expected = linear(lines["contexts"], attention.output) if projects else lines["contexts"]
    np.testing.assert_allclose(lines["output"], expected, atol=1e-10)
    y = (x if MODELS[name].residual else 0) + lines["output"]
    np.testing.assert_allclose(lines["residual"], y if pre else normed(y, around.norm), atol=1e-10)
    norm = block.around_feed_forward.norm
    np.testing.assert_allclose(
        lines["fed"], fed(normed(lines["residual"], norm) if pre else lines["residual"], block.feed_forward), atol=1e-10
    )
    z = (lines["residual"] if MODELS[name].residual else 0) + lines["fed"]
    np.testing.assert_allclose(lines["after"], z if pre else normed(z, norm), atol=1e-10)
    hidden = next(line for line in found.lines if line.name == "hidden")
    assert hidden.given == (layer == 0)
    if layer == -1:
        np.testing.assert_allclose(lines["hidden"], normed(lines["after"], decoder.norm), atol=1e-10)
    last = decoder.output
    matrix = array(decoder.embedding.tokens.weight if last.weight is None else last.weight)
    projected = lines["hidden"] if last.project is None else linear(lines["hidden"], last.project)
    np.testing.assert_allclose(lines["logits"], projected @ matrix.T + array(last.bias), atol=1e-10)
    check_output(found, translator, position)


def test_self_attention_with_rotary_and_alibi_positions() -> None:
    """Rotary rotates query and keys; ALiBi adds −m·|i − j| to the scores."""
    from regard.models.decoder_only import DecoderOnlySettings

    for positions in ("rotary", "alibi"):
        torch.manual_seed(3)
        saved = make_saved(DecoderOnlySettings(width=8, heads=2, feed_forward=11, layers=2, positions=positions))  # type: ignore[arg-type]
        translator = regard.Translator.of_model(saved.model.double(), saved.source, saved.target)
        found = explain(translator, "ab", 3, output=OUTPUT, head=1)
        bias = reference.alibi(np.array([3]), np.arange(4), reference.alibi_slopes(2)[1])[0] if positions == "alibi" else 0.0
        check_attention(found, ScaledDot(), "soft", bias)
        assert found.about == "self-attention, layer 1, head 1"
        assert next(line.rows for line in found.lines if line.name == "keys") == ("<sos>", "X", "Z", "Y")
        lines = {line.name: array(line.values) for line in found.lines}
        query = linear(lines["normed"], translator.model.decoder.layers[1].attention.query).reshape(2, -1)[1]  # type: ignore[union-attr,index]
        if positions == "rotary":
            query = reference.rotary(query[None], np.array([3]), "interleaved")[0]
        np.testing.assert_allclose(lines["query"], query, atol=1e-10)
        check_output(found, translator, 3)


def test_explanations_as_json_and_invalid_arguments() -> None:
    translator = make_translator("transformer windows")
    explanation = json.loads(json.dumps(explain(translator, "abcab", -1, output=OUTPUT).as_dict(), allow_nan=False))
    assert (explanation["text"], explanation["position"], explanation["token"]) == ("abcab", 4, "<eos>")
    lines = {line["name"]: line for line in explanation["lines"]}
    assert lines["scores"]["rows"] == ["a", "b", "c", "a", "b", "<eos>"]
    assert lines["query"]["formula"] == "s = W_Q x' + b_Q, head 0"
    with pytest.raises(UserError, match="there is no token 5: the output has tokens 0 to 4, <eos> included"):
        explain(translator, "abcab", 5, output=OUTPUT)
    with pytest.raises(UserError, match="the text is empty, so there is nothing to explain"):
        explain(translator, "")
    with pytest.raises(UserError, match="there is no layer 9: layers are numbered 0 to 1 here"):
        explain(translator, "ab", layer=9, output=OUTPUT)
    with pytest.raises(UserError, match="there is no head 2: heads are numbered 0 to 1 here"):
        explain(translator, "ab", head=2, output=OUTPUT)
    assert explain(translator, "ab", max_length=3).position == 0
