"""Every number of an explanation, computed again in NumPy from the numbers above it and the model's weights."""

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
from regard.contracts import Score
from regard.errors import UserError
from regard.inspection.explain import Explanation, explain
from regard.layers.blocks import SwiGlu
from regard.layers.scores import Additive, Cosine, Distance, General, Location, ScaledDot
from regard.models.decoder import TransformerDecoder
from regard.models.rnn_seq2seq import RnnSeq2Seq

Array = np.ndarray
OUTPUT = (4, 6, 5, 4)


def array(tensor: Tensor | nn.Parameter) -> Array:
    return tensor.detach().numpy()


def make_translator(name: str) -> regard.Translator:
    torch.manual_seed(5)
    saved = make_saved(MODELS[name])
    return regard.Translator(saved.model.double(), saved.source, saved.target, torch.device("cpu"))


def scores(score: Score, query: Array, keys: Array) -> Array:
    """Of prepared keys."""
    q = query[None]
    if isinstance(score, ScaledDot):
        divide_by = {"√d": len(query) ** 0.5, "d": len(query)}.get(str(score.divide_by), score.divide_by)
        return reference.scaled_dot(q, keys, float(divide_by))[0]
    if isinstance(score, General | Location):
        return reference.dot(q, keys)[0]
    if isinstance(score, Additive):
        return np.tanh(query @ array(score.query.weight).T + keys) @ array(score.v)
    if isinstance(score, Cosine):
        return reference.cosine(q, keys, score.temperature)[0]
    assert isinstance(score, Distance)
    return reference.distance(q, keys)[0]


def weights(attention: str, e: Array, allow: Array) -> Array:
    e = np.where(allow, e, 0.0)
    if attention == "unnormalised":
        return e * allow
    function: Callable[..., Array] = {"soft": reference.softmax, "hard": reference.hard, "gated": reference.hard_gates}[
        attention
    ]
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


def check_attention(found: Explanation, score: Score, attention: str, away: Array | float = 0.0) -> None:
    told = {line.name: array(line.values) for line in found.lines}
    allow = told["allowed"].astype(bool)
    np.testing.assert_allclose(told["scores"][allow], (scores(score, told["query"], told["keys"]) + away)[allow], atol=1e-10)
    assert (told["scores"][~allow] == -np.inf).all()
    np.testing.assert_allclose(told["weights"], weights(attention, told["scores"], allow), atol=1e-10)
    values = told["values"] if "values" in told else told["states"]
    np.testing.assert_allclose(told["context"], told["weights"] @ values, atol=1e-10)


def check_end(found: Explanation, translator: regard.Translator, position: int) -> None:
    told = {line.name: array(line.values) for line in found.lines}
    np.testing.assert_allclose(told["probabilities"], reference.softmax(told["logits"][None])[0], atol=1e-10)
    written = (*OUTPUT, 3)[position]
    assert int(told["token"]) == written
    assert found.token == translator.target.tokens([written])[0]
    memory = translator.model.encode(regard.pipeline.source_batch([translator.source.encode("abcab")]))
    logits = translator.model.decode(torch.tensor([[2, *OUTPUT]]), memory).logits_BTV[0, position]
    np.testing.assert_allclose(told["logits"], array(logits), atol=1e-10)  # what the model says when it reads all at once


@pytest.mark.parametrize("position", [0, 3])
@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].kind in ("rnn", "rnn_lm")])
def test_recurrent_models(name: str, position: int) -> None:  # SPEC A9.2
    translator = make_translator(name)
    model = translator.model
    found = explain(translator, "abcab", position, output=OUTPUT)
    told = {line.name: array(line.values) for line in found.lines}
    if isinstance(model, RnnSeq2Seq) and model.settings.decoder != "fixed":
        keys = model.score.prepare(torch.from_numpy(told["states"]), torch.arange(6))
        np.testing.assert_allclose(told["keys"], array(keys), atol=1e-10)
        check_attention(found, model.score, model.settings.attention)
        if model.settings.decoder == "bahdanau":
            read = np.concatenate((told["state"], told["context"]))
        elif model.settings.readout == "plain":
            read = np.concatenate((told["query"], told["context"]))
        else:
            read = np.tanh(linear(np.concatenate((told["context"], told["query"])), model.combine))
            np.testing.assert_allclose(told["mixed"], read, atol=1e-10)
    else:
        read = told["state"]
    np.testing.assert_allclose(told["logits"], linear(read, model.output), atol=1e-10)  # type: ignore[union-attr,arg-type]
    check_end(found, translator, position)


@pytest.mark.parametrize("position", [0, 3])
@pytest.mark.parametrize("layer", [0, -1])
@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].kind in ("transformer", "decoder_only")])
def test_transformers(name: str, layer: int, position: int) -> None:  # SPEC A9.2
    translator, head = make_translator(name), 1
    decoder: TransformerDecoder = translator.model.decoder  # type: ignore[union-attr,assignment]
    found = explain(translator, "abcab", position, output=OUTPUT, layer=layer, head=head)
    told = {line.name: array(line.values) for line in found.lines}
    block = decoder.layers[layer]
    attention = block.cross or block.attention
    around = block.around_cross or block.around_attention
    pre = around.norm_order == "pre"
    x = told["x"]
    if pre:
        np.testing.assert_allclose(told["normed"], normed(x, around.norm), atol=1e-10)
    query = linear(told["normed"] if pre else x, attention.query).reshape(attention.heads, -1)[head]
    np.testing.assert_allclose(told["query"], query, atol=1e-10)
    check_attention(found, attention.score, "soft")
    width = len(told["context"])
    np.testing.assert_allclose(told["contexts"][head * width : head * width + width], told["context"], atol=1e-10)
    np.testing.assert_allclose(told["output"], linear(told["contexts"], attention.output), atol=1e-10)
    y = x + told["output"]
    np.testing.assert_allclose(told["residual"], y if pre else normed(y, around.norm), atol=1e-10)
    norm = block.around_feed_forward.norm
    np.testing.assert_allclose(
        told["fed"], fed(normed(told["residual"], norm) if pre else told["residual"], block.feed_forward), atol=1e-10
    )
    z = told["residual"] + told["fed"]
    np.testing.assert_allclose(told["after"], z if pre else normed(z, norm), atol=1e-10)
    hidden = next(line for line in found.lines if line.name == "hidden")
    assert hidden.given == (layer == 0)
    if layer == -1:
        np.testing.assert_allclose(told["hidden"], normed(told["after"], decoder.norm), atol=1e-10)
    last = decoder.output
    matrix = array(decoder.embedding.tokens.weight if last.weight is None else last.weight)
    projected = told["hidden"] if last.project is None else linear(told["hidden"], last.project)
    np.testing.assert_allclose(told["logits"], projected @ matrix.T + array(last.bias), atol=1e-10)
    check_end(found, translator, position)


def test_self_attention_with_places_in_it() -> None:
    """Rotary: query and keys are turned. ALiBi: −m·|i − j| is added."""
    from regard.models.decoder_only import DecoderOnlySettings

    for positions in ("rotary", "alibi"):
        torch.manual_seed(3)
        saved = make_saved(DecoderOnlySettings(width=8, heads=2, feed_forward=11, layers=2, positions=positions))  # type: ignore[arg-type]
        translator = regard.Translator(saved.model.double(), saved.source, saved.target, torch.device("cpu"))
        found = explain(translator, "ab", 3, output=OUTPUT, head=1)
        away = reference.alibi(np.array([3]), np.arange(4), reference.alibi_slopes(2)[1])[0] if positions == "alibi" else 0.0
        check_attention(found, ScaledDot(), "soft", away)
        assert found.about == "self-attention, layer 1, head 1"
        assert next(line.rows for line in found.lines if line.name == "keys") == ("<sos>", "X", "Z", "Y")
        told = {line.name: array(line.values) for line in found.lines}
        query = linear(told["normed"], translator.model.decoder.layers[1].attention.query).reshape(2, -1)[1]  # type: ignore[union-attr,index]
        if positions == "rotary":
            query = reference.rotary(query[None], np.array([3]), "interleaved")[0]
        np.testing.assert_allclose(told["query"], query, atol=1e-10)
        check_end(found, translator, 3)


def test_as_data_and_mistakes() -> None:
    translator = make_translator("transformer windows")
    told = json.loads(json.dumps(explain(translator, "abcab", -1, output=OUTPUT).as_dict(), allow_nan=False))
    assert (told["text"], told["position"], told["token"]) == ("abcab", 4, "<eos>")
    lines = {line["name"]: line for line in told["lines"]}
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
