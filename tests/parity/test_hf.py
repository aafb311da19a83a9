"""Same outputs, gradients, attention weights and generated words as Hugging Face's models; small random models, no download.

Each test builds one of their models, maps its parameters to ours, and compares values and the gradients of all parameters.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import replace

os.environ["HF_HUB_OFFLINE"] = "1"  # set before the import, which reads it once

import pytest
import torch
from searching import make_engine, outputs, rows_of
from test_torch import assert_same
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    PegasusConfig,
    PegasusForConditionalGeneration,
)
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRMSNorm

from regard.core import masks
from regard.core.positions import sinusoidal
from regard.core.source import Source
from regard.layers.attention import MultiHeadAttention
from regard.look import Kind, Look, Seen, Tap
from regard.models.decoder_only import DecoderOnly, DecoderOnlySettings
from regard.models.encoder_only import EncoderOnly, EncoderOnlySettings
from regard.models.transformer import PRESETS, Transformer, TransformerSettings

# B3 S7 T5 or 11 D20 H2 (Llama: D24 H6), feed-forward 29, vocabularies of 17 and 19 words, 31 positions
PAD, SOS, EOS = 0, 2, 3
WIDTH, HEADS, INNER, POSITIONS = 20, 2, 29, 31

Named = dict[str, Tensor]
Table = Mapping[str, str | None]
"""Their name -> our name, of a tensor or of a module with its tensors; {i} is a layer number; None drops it on purpose."""


@torch.no_grad()
def randomised(model: nn.Module) -> nn.Module:
    """Converts to float64 and randomises all tensors, also those that start as zeros or ones, which would hide swapped tensors.

    Gains of either sign keep a tied output from repeating its input word.
    """
    model = model.double().eval()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.dim() == 1 and name.endswith("weight"):  # the gain of a norm
            tensor.normal_()
        elif tensor.is_floating_point() and "embed_positions" not in name and "inv_freq" not in name:
            tensor.normal_(std=0.1 if name.endswith("bias") else 0.2)
    return model


def renamed(theirs: Named, table: Table) -> Named:
    """Returns the tensors under our names. Fails if the table lacks a tensor or has an unused entry."""
    ours, used = {}, set()
    for name, tensor in theirs.items():
        pattern, numbers = re.sub(r"\d+", "{i}", name, count=1), re.findall(r"\d+", name)[:1]
        stem, _, part = pattern.rpartition(".")
        key, ending = (pattern, "") if pattern in table else (stem, f".{part}")
        assert key in table, f"the table has no entry for {name}"
        used.add(key)
        if (target := table[key]) is not None:
            ours[target.replace("{i}", "".join(numbers)) + ending] = tensor
    assert used == set(table)
    return ours


def scaled(tensors: Named, factor: float, *names: str) -> Named:
    return {name: tensor * factor if name in names else tensor for name, tensor in tensors.items()}


def parameters(theirs: nn.Module) -> Named:
    """All parameters; tied ones once."""
    return dict(theirs.named_parameters())


def assert_equal(ours: nn.Module, mine: Tensor, other: Tensor, converted: Named, theirs: Named, **tolerance: float) -> None:
    """Compares values, and gradients of all their parameters: ours are propagated back through the conversion.

    The conversion is linear and drops nothing, so each of our gradients takes part, except those of biases that theirs lacks.
    """
    torch.testing.assert_close(mine, other, **tolerance)
    cotangent = torch.randn_like(mine)
    theirs = {name: tensor for name, tensor in theirs.items() if tensor.requires_grad}
    names = [name for name, tensor in converted.items() if tensor.requires_grad]
    parameters_by_name = dict(ours.named_parameters())
    gradients = torch.autograd.grad(mine, [parameters_by_name[name] for name in names], cotangent, retain_graph=True)
    back = torch.autograd.grad([converted[name] for name in names], list(theirs.values()), gradients, retain_graph=True)
    expected = torch.autograd.grad(other, list(theirs.values()), cotangent, retain_graph=True)
    for name, gradient, their_gradient in zip(theirs, back, expected, strict=True):
        torch.testing.assert_close(
            gradient, their_gradient, msg=lambda text, name=name: f"gradient of {name}: {text}", **tolerance
        )
        is_key_bias = re.search(r"(k_proj|key)\.bias$", name)  # softmax cancels the bias of keys
        assert their_gradient.abs().max() > 1e-3 or is_key_bias, name


def assert_same_weights(ours: tuple[Seen, ...], kind: Kind, theirs: tuple[Tensor, ...], real_BT: Tensor) -> None:
    """Compares the attention weights of every layer and head, in the rows of real queries."""
    assert [(seen.layer, seen.heads) for seen in ours] == [(layer, tuple(range(HEADS))) for layer in range(len(theirs))]
    for seen, weights_BHTS in zip(ours, theirs, strict=True):
        assert seen.kind == kind
        torch.testing.assert_close(seen.weights_BHTS.transpose(1, 2)[real_BT], weights_BHTS.transpose(1, 2)[real_BT])


def padded(lengths: tuple[int, ...], vocab: int) -> Source:
    allow_BS = masks.first(torch.tensor(lengths), max(lengths))
    ids_BS = torch.randint(4, vocab, allow_BS.shape)
    return Source(ids_BS.masked_fill(~allow_BS, PAD), allow_BS)


def starting_with(source: Source, first: int) -> Source:
    """Returns a copy of the source whose first token is `first`."""
    ids = source.values.clone()
    ids[:, 0] = first
    return Source(ids, source.allow)


# --- Marian: encoder and decoder, post-norm ----------------------------------------------------------------------------------

ATTENTION = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}

MARIAN_LAYERS = {
    **{f"model.encoder.layers.{{i}}.self_attn.{a}": f"encoder.layers.{{i}}.attention.{b}" for a, b in ATTENTION.items()},
    **{f"model.decoder.layers.{{i}}.self_attn.{a}": f"decoder.layers.{{i}}.attention.{b}" for a, b in ATTENTION.items()},
    **{f"model.decoder.layers.{{i}}.encoder_attn.{a}": f"decoder.layers.{{i}}.cross.{b}" for a, b in ATTENTION.items()},
    **{
        f"model.{half}.layers.{{i}}.{a}": f"{half}.layers.{{i}}.{b}"
        for half in ("encoder", "decoder")
        for a, b in {
            "self_attn_layer_norm": "around_attention.norm",
            "fc1": "feed_forward.0",
            "fc2": "feed_forward.3",
            "final_layer_norm": "around_feed_forward.norm",
        }.items()
    },
    "model.decoder.layers.{i}.encoder_attn_layer_norm": "decoder.layers.{i}.around_cross.norm",
    "model.encoder.embed_positions.weight": None,  # computed; theirs in float32
    "model.decoder.embed_positions.weight": None,
    "final_logits_bias": "decoder.output.bias",
}
PEGASUS = {
    **MARIAN_LAYERS,
    "model.shared.weight": "decoder.embedding.tokens.weight",
    "model.encoder.layer_norm": "encoder.norm",
    "model.decoder.layer_norm": "decoder.norm",
}
MARIAN = {**MARIAN_LAYERS, "model.shared.weight": "decoder.embedding.tokens.weight"}
MARIAN_SEPARATE = {
    **MARIAN_LAYERS,
    "model.encoder.embed_tokens.weight": "encoder.embedding.tokens.weight",
    "model.decoder.embed_tokens.weight": "decoder.embedding.tokens.weight",
}


def marian(*, shared: bool = True, scale: bool = True, activation: str = "swish") -> MarianMTModel:
    config = MarianConfig(
        vocab_size=17,
        decoder_vocab_size=17 if shared else 19,
        d_model=WIDTH,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=INNER,
        decoder_ffn_dim=INNER,
        max_position_embeddings=POSITIONS,
        activation_function=activation,
        scale_embedding=scale,
        share_encoder_decoder_embeddings=shared,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=PAD,
        forced_eos_token_id=None,
        attn_implementation="eager",
    )
    model = randomised(MarianMTModel(config))
    waves = sinusoidal(torch.arange(POSITIONS), WIDTH, layout="halves", dtype=torch.float64)
    for half in (model.model.encoder, model.model.decoder):
        torch.testing.assert_close(half.embed_positions.weight.data, waves, rtol=0, atol=1e-7)
        half.embed_positions.weight.data = (
            waves  # without their rounding to float32, so that the rest can be compared in float64
        )
    return model


def from_marian(theirs: MarianMTModel) -> tuple[Transformer, Named, Named]:
    """Returns (our model, its parameters as computed from theirs, their parameters)."""
    config = theirs.config
    shared = config.share_encoder_decoder_embeddings
    settings = TransformerSettings(
        width=WIDTH,
        heads=HEADS,
        feed_forward=INNER,
        encoder_layers=2,
        decoder_layers=3,
        norm_order="post",
        activation={"swish": "silu"}.get(config.activation_function, config.activation_function),
        layout="halves",
        tie="all" if shared else "output",
        dropout=0.0,
    )
    named = {**parameters(theirs), "final_logits_bias": theirs.final_logits_bias.requires_grad_()}
    converted = renamed(named, MARIAN if shared else MARIAN_SEPARATE)
    converted["decoder.output.bias"] = converted["decoder.output.bias"][0]
    if not config.scale_embedding:
        converted = scaled(converted, WIDTH**-0.5, "encoder.embedding.tokens.weight", "decoder.embedding.tokens.weight")
        last = "decoder.layers.2.around_feed_forward.norm"
        converted = scaled(converted, WIDTH**0.5, f"{last}.weight", f"{last}.bias")  # the output matrix is the embedding
    ours = Transformer(settings, config.vocab_size, config.decoder_vocab_size).double().eval()
    ours.load_state_dict(converted)  # strict: each of our parameters must get a value
    return ours, converted, named


@pytest.mark.parametrize(
    ("shared", "scale", "activation"), [(True, True, "swish"), (True, False, "relu"), (False, False, "gelu")]
)
def test_marian(shared: bool, scale: bool, activation: str) -> None:
    """Compares logits, encoder states, gradients, weights. No target starts with <pad>, whose embedding theirs never trains."""
    theirs = marian(shared=shared, scale=scale, activation=activation)
    ours, converted, named = from_marian(theirs)
    source, target = padded((7, 4, 5), 17), starting_with(padded((3, 5, 2), theirs.config.decoder_vocab_size), SOS)

    other = theirs(
        input_ids=source.values,
        attention_mask=source.allow.long(),
        decoder_input_ids=target.values,
        output_attentions=True,
    )
    look = Look((Tap("encoder"), Tap("decoder"), Tap("cross")))
    memory = ours.encode(source, look)
    decoded = ours.decode(target.values, memory, look)

    torch.testing.assert_close(memory.values_BSE[source.allow], other.encoder_last_hidden_state[source.allow])
    assert_equal(ours, decoded.logits_BTV[target.allow], other.logits[target.allow], converted, named)
    seen = memory.seen + decoded.seen
    for kind, weights, real in (
        ("encoder", other.encoder_attentions, source.allow),
        ("decoder", other.decoder_attentions, target.allow),
        ("cross", other.cross_attentions, target.allow),
    ):
        assert_same_weights(tuple(layer for layer in seen if layer.kind == kind), kind, weights, real)


@pytest.mark.parametrize("name", ["marian", "pegasus"])
def test_the_presets_are_their_models(name: str) -> None:
    """Theirs with the sizes of OPUS-MT as they are configured, but smaller; ours is the preset of the name, made as small."""
    sizes = {"encoder_layers": 2, "decoder_layers": 3}
    their_sizes = {
        **{
            f"{half}_{what}": value
            for half in ("encoder", "decoder")
            for what, value in (("attention_heads", HEADS), ("ffn_dim", INNER))
        },
        **sizes,
    }
    ids = {"pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": PAD}
    config, model = (MarianConfig, MarianMTModel) if name == "marian" else (PegasusConfig, PegasusForConditionalGeneration)
    theirs = randomised(
        model(
            config(
                vocab_size=17,
                d_model=WIDTH,
                max_position_embeddings=POSITIONS,
                activation_function="swish",
                scale_embedding=True,
                **ids,
                **their_sizes,
            )
        )
    )
    for half in (theirs.model.encoder, theirs.model.decoder):  # in float64, as ours
        half.embed_positions.weight.data = sinusoidal(torch.arange(POSITIONS), WIDTH, layout="halves", dtype=torch.float64)
    settings = replace(PRESETS[name], width=WIDTH, heads=HEADS, feed_forward=INNER, dropout=0.0, **sizes)
    ours = Transformer(settings, 17, 17).double().eval()
    named = {**parameters(theirs), "final_logits_bias": theirs.final_logits_bias}
    converted = renamed(named, MARIAN if name == "marian" else PEGASUS)
    ours.load_state_dict(converted | {"decoder.output.bias": converted["decoder.output.bias"][0]})
    source, target = padded((7, 4, 5), 17), starting_with(padded((3, 5, 2), 17), PAD)
    logits = theirs(input_ids=source.values, attention_mask=source.allow.long(), decoder_input_ids=target.values).logits
    torch.testing.assert_close(ours(source, target.values)[target.allow], logits[target.allow])
    assert (settings.tie, PRESETS[name].width, PRESETS[name].encoder_layers) == ("all", 512, 6)


def test_marian_writes_the_same_words() -> None:
    """Greedy search, with both caches, from <pad> as Marian starts, in batches whose sentences end at different steps."""
    lengths, words = set(), set()
    for _ in range(11):
        theirs, source = marian(), padded((7, 4, 5, 6, 3, 7), 17)
        theirs.final_logits_bias[0, EOS] += 1  # so that some sentences end
        ours, _, _ = from_marian(theirs)
        written = theirs.generate(
            source.values, attention_mask=source.allow.long(), do_sample=False, num_beams=1, max_new_tokens=23
        )
        expected = [row[1:] for row in written.tolist()]  # without <sos>
        expected = [tuple(row[: row.index(EOS)] if EOS in row else row) for row in expected]
        found = outputs(make_engine(ours, sos=PAD, eos=EOS, never=()), rows_of(source), max_length=23)
        assert [found[number][0].ids for number in range(6)] == expected
        lengths |= {len(row) for row in expected}
        words |= {word for row in expected for word in row}
    assert len(lengths) > 3  # not all outputs are empty or cut off at the limit
    assert len(words) > 8  # and they do not repeat one word


# --- GPT-2: decoder only, pre-norm -------------------------------------------------------------------------------------------

GPT2 = {
    "transformer.wte.weight": "decoder.embedding.tokens.weight",
    "transformer.wpe": "decoder.embedding.learned.vectors",
    "transformer.h.{i}.ln_1": "decoder.layers.{i}.around_attention.norm",
    "transformer.h.{i}.attn.query": "decoder.layers.{i}.attention.query",
    "transformer.h.{i}.attn.key": "decoder.layers.{i}.attention.key",
    "transformer.h.{i}.attn.value": "decoder.layers.{i}.attention.value",
    "transformer.h.{i}.attn.c_proj": "decoder.layers.{i}.attention.output",
    "transformer.h.{i}.ln_2": "decoder.layers.{i}.around_feed_forward.norm",
    "transformer.h.{i}.mlp.c_fc": "decoder.layers.{i}.feed_forward.0",
    "transformer.h.{i}.mlp.c_proj": "decoder.layers.{i}.feed_forward.3",
    "transformer.ln_f": "decoder.norm",
}


def gpt2() -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=19,
        n_embd=WIDTH,
        n_layer=3,
        n_head=HEADS,
        n_inner=INNER,
        n_positions=POSITIONS,
        pad_token_id=PAD,
        bos_token_id=SOS,
        eos_token_id=EOS,
        attn_implementation="eager",
    )
    return randomised(GPT2LMHeadModel(config))


def as_linear(name: str, tensor: Tensor) -> Named:
    """Converts one of their matrices: they are (inputs, outputs), and queries, keys and values share one projection."""
    if re.search(r"\.(attn|mlp)\.c_\w+\.weight$", name):
        tensor = tensor.T
    if ".c_attn." not in name:
        return {name: tensor}
    return {name.replace("c_attn", part): chunk for part, chunk in zip(("query", "key", "value"), tensor.chunk(3), strict=True)}


def from_gpt2(theirs: GPT2LMHeadModel) -> tuple[DecoderOnly, Named, Named]:
    settings = DecoderOnlySettings(
        width=WIDTH,
        heads=HEADS,
        feed_forward=INNER,
        layers=3,
        activation="gelu_tanh",
        positions="learned",
        max_positions=POSITIONS,
        tie="output",
        dropout=0.0,
    )
    named = parameters(theirs)
    linear = {name: tensor for pair in named.items() for name, tensor in as_linear(*pair).items()}
    converted = scaled(renamed(linear, GPT2), WIDTH**-0.5, "decoder.embedding.tokens.weight")
    converted = scaled(converted, WIDTH**0.5, "decoder.norm.weight", "decoder.norm.bias")
    converted["decoder.output.bias"] = torch.zeros(19, dtype=torch.float64)  # theirs has none
    ours = DecoderOnly(settings, 17, 19).double().eval()
    ours.load_state_dict(converted)
    return ours, converted, named


def test_gpt2() -> None:  # SPEC A7.6
    theirs = gpt2()
    ours, converted, named = from_gpt2(theirs)
    text = starting_with(padded((11, 4, 7), 19), SOS)
    other = theirs(text.values, attention_mask=text.allow.long(), output_attentions=True)
    decoded = ours.decode(text.values, ours.encode(text), Look((Tap("decoder"),)))
    assert_equal(ours, decoded.logits_BTV[text.allow], other.logits[text.allow], converted, named)
    assert_same_weights(decoded.seen, "decoder", other.attentions, text.allow)


def test_gpt2_continues_with_the_same_words() -> None:  # SPEC A7.6
    """Greedy search from prompts of three lengths: theirs are padded on the left, ours are joined in one State."""
    lengths, count, words = (7, 3, 5), 13, set()
    for _ in range(5):
        theirs, text = gpt2(), padded(lengths, 19)
        theirs.generation_config.eos_token_id = None  # no output ends early
        ours, _, _ = from_gpt2(theirs)
        prompts = [row[:length] for row, length in zip(text.values, lengths, strict=True)]
        left = torch.stack([torch.cat((row.new_full((7 - len(row),), PAD), row)) for row in prompts])
        written = theirs.generate(
            left, attention_mask=text.allow.flip(1).long(), do_sample=False, num_beams=1, max_new_tokens=count
        )
        with torch.inference_mode():
            nothing = ours.encode(Source(left[:1], text.allow[:1]))
            first, *others = [ours.start(nothing, row[None, :-1]) for row in prompts]
            state, ids_B1, found = first, torch.stack([row[-1:] for row in prompts]), []
            for next_state in others:
                state = state.join(next_state)
            for _ in range(count):
                step = ours.step(ids_B1, state)
                ids_B1, state = step.logits_BKV.argmax(-1), step.state
                found.append(ids_B1)
        assert torch.cat(found, 1).tolist() == written[:, 7:].tolist()
        words |= set(written[:, 7:].flatten().tolist())
    assert len(words) > 8  # the outputs do not repeat one word


# --- BERT: encoder only, post-norm -------------------------------------------------------------------------------------------

BERT = {
    "bert.embeddings.word_embeddings": "encoder.embedding.tokens",
    "bert.embeddings.positions": "encoder.embedding.learned.vectors",
    "bert.embeddings.LayerNorm": "encoder.embedding.norm",
    "bert.encoder.layer.{i}.attention.self.query": "encoder.layers.{i}.attention.query",
    "bert.encoder.layer.{i}.attention.self.key": "encoder.layers.{i}.attention.key",
    "bert.encoder.layer.{i}.attention.self.value": "encoder.layers.{i}.attention.value",
    "bert.encoder.layer.{i}.attention.output.dense": "encoder.layers.{i}.attention.output",
    "bert.encoder.layer.{i}.attention.output.LayerNorm": "encoder.layers.{i}.around_attention.norm",
    "bert.encoder.layer.{i}.intermediate.dense": "encoder.layers.{i}.feed_forward.0",
    "bert.encoder.layer.{i}.output.dense": "encoder.layers.{i}.feed_forward.3",
    "bert.encoder.layer.{i}.output.LayerNorm": "encoder.layers.{i}.around_feed_forward.norm",
    "classifier": "head",
}


def test_bert() -> None:
    """We have no token types: where they only depend on the position, they can be added to its vector."""
    config = BertConfig(
        vocab_size=17,
        hidden_size=WIDTH,
        num_hidden_layers=3,
        num_attention_heads=HEADS,
        intermediate_size=INNER,
        max_position_embeddings=POSITIONS,
        pad_token_id=PAD,
        num_labels=5,
        attn_implementation="eager",
    )
    theirs = randomised(BertForTokenClassification(config))
    settings = EncoderOnlySettings(
        width=WIDTH,
        heads=HEADS,
        feed_forward=INNER,
        layers=3,
        norm_order="post",
        norm_eps=1e-12,
        embedding_norm=True,
        positions="learned",
        max_positions=POSITIONS,
        dropout=0.0,
    )
    named = parameters(theirs)
    types = (torch.arange(POSITIONS) >= 3).long()
    linear = dict(named)
    positions = linear.pop("bert.embeddings.position_embeddings.weight")
    linear["bert.embeddings.positions.weight"] = positions + linear.pop("bert.embeddings.token_type_embeddings.weight")[types]
    converted = scaled(renamed(linear, BERT), WIDTH**-0.5, "encoder.embedding.tokens.weight")
    ours = EncoderOnly(settings, 17, 5).double().eval()
    ours.load_state_dict(converted)

    source = padded((7, 4, 5), 17)
    other = theirs(
        source.values,
        attention_mask=source.allow.long(),
        token_type_ids=types[:7].expand(3, 7),
        output_attentions=True,
        output_hidden_states=True,
    )
    memory = ours.encode(source, Look((Tap("encoder"),)))
    torch.testing.assert_close(memory.values_BSE[source.allow], other.hidden_states[-1][source.allow])
    assert_equal(ours, ours.tag(memory)[source.allow], other.logits[source.allow], converted, named)
    assert_same_weights(memory.seen, "encoder", other.attentions, source.allow)


# --- Llama: grouped heads, rotary positions, RMSNorm, SwiGLU ------------------------------------------------------------------

LLAMA = {
    "model.embed_tokens": "decoder.embedding.tokens",
    "model.layers.{i}.input_layernorm": "decoder.layers.{i}.around_attention.norm",
    "model.layers.{i}.self_attn.q_proj": "decoder.layers.{i}.attention.query",
    "model.layers.{i}.self_attn.k_proj": "decoder.layers.{i}.attention.key",
    "model.layers.{i}.self_attn.v_proj": "decoder.layers.{i}.attention.value",
    "model.layers.{i}.self_attn.o_proj": "decoder.layers.{i}.attention.output",
    "model.layers.{i}.post_attention_layernorm": "decoder.layers.{i}.around_feed_forward.norm",
    "model.layers.{i}.mlp.gate_and_up": "decoder.layers.{i}.feed_forward.gate_and_value",
    "model.layers.{i}.mlp.down_proj": "decoder.layers.{i}.feed_forward.output",
    "model.norm": "decoder.norm",
    "lm_head": "decoder.output",
}


def llama_config(**more: object) -> LlamaConfig:
    """Six query heads in two groups."""
    return LlamaConfig(
        vocab_size=19,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        intermediate_size=INNER,
        max_position_embeddings=POSITIONS,
        bos_token_id=SOS,
        eos_token_id=EOS,
        **more,
    )


def test_grouped_rotary_attention() -> None:
    """Heads wider than width / heads, no biases; the angles in float64, whereas theirs are in float32."""
    theirs = randomised(LlamaAttention(llama_config(head_dim=10, attn_implementation="sdpa"), layer_idx=0))
    ours = MultiHeadAttention(24, 6, key_dim=10, kv_heads=2, rotary="halves", bias=False).double()
    table = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "output"}
    ours.load_state_dict(renamed(parameters(theirs), table))
    x_BLD = torch.randn(3, 11, 24, dtype=torch.float64, requires_grad=True)
    allow = masks.both(masks.causal(11), masks.first(torch.tensor([11, 4, 7]), 11)[:, None])[:, None]
    angles = rotary_angles(torch.arange(11)[None], 10)
    other, _ = theirs(x_BLD, position_embeddings=(angles.cos(), angles.sin()), attention_mask=allow)
    pairs = [(getattr(ours, b).weight, getattr(theirs, a).weight) for a, b in table.items()]
    assert_same(ours(x_BLD, allow=allow), other, (x_BLD, x_BLD), *pairs)


class RmsNorm64(nn.Module):
    """Their RMSNorm without the conversion to float32."""

    def __init__(self, theirs: LlamaRMSNorm) -> None:
        super().__init__()
        self.weight, self.eps = theirs.weight, theirs.variance_epsilon

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt()


class Rotary64(nn.Module):
    """Their rotary embedding without the conversion to float32."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = rotary_angles(position_ids, 24 // 6)
        return angles.cos(), angles.sin()


def rotary_angles(positions_BL: Tensor, width: int) -> Tensor:
    """Returns angles (B, L, width); both halves are equal."""
    speeds = [10000.0 ** (-2 * k / width) for k in range(width // 2)]
    return positions_BL.double().unsqueeze(-1) * torch.tensor(speeds * 2, dtype=torch.float64)


def in_float64(theirs: LlamaForCausalLM) -> None:
    """Replaces their norms and angles, which are float32 even in a float64 model, so that the rest can be compared exactly.

    The replacements must compute the same values.
    """
    x_BLD, positions_BL = torch.randn(3, 11, 24, dtype=torch.float64), torch.arange(11)[None]
    for name, module in list(theirs.named_modules()):
        if isinstance(module, LlamaRMSNorm):
            theirs.set_submodule(name, replacement := RmsNorm64(module))
            torch.testing.assert_close(replacement(x_BLD), module(x_BLD), rtol=1e-6, atol=1e-6)
    before, theirs.model.rotary_emb = theirs.model.rotary_emb, Rotary64()
    torch.testing.assert_close(theirs.model.rotary_emb(x_BLD, positions_BL), before(x_BLD, positions_BL), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("biases", "exact"), [(True, True), (False, True), (False, False)])
def test_llama(biases: bool, exact: bool) -> None:
    """Their model as it is, and with its float32 parts in float64. Biases that theirs does not have are zero in ours."""
    theirs = randomised(LlamaForCausalLM(llama_config(attention_bias=biases, attn_implementation="sdpa")))
    if exact:
        in_float64(theirs)
    settings = DecoderOnlySettings(
        width=24,
        heads=6,
        kv_heads=2,
        feed_forward=INNER,
        layers=3,
        activation="swiglu",
        norm="rms",
        norm_eps=1e-6,
        positions="rotary",
        layout="halves",
        dropout=0.0,
    )
    ours = DecoderOnly(settings, 17, 19).double().eval()
    named = parameters(theirs)
    linear = dict(named)
    for mlp in (f"model.layers.{layer}.mlp" for layer in range(3)):
        gate_and_up = linear.pop(f"{mlp}.gate_proj.weight"), linear.pop(f"{mlp}.up_proj.weight")
        linear[f"{mlp}.gate_and_up.weight"] = torch.cat(gate_and_up)
    converted = scaled(renamed(linear, LLAMA), 24**-0.5, "decoder.embedding.tokens.weight")
    missing = [name for name in ours.state_dict() if name not in converted]
    kinds = {re.sub(r"\d+", "{i}", name) for name in missing}
    without = {f"decoder.layers.{{i}}.attention.{part}.bias" for part in ("query", "key", "value", "output")}
    assert kinds == {"decoder.output.bias"} | (set() if biases else without)
    ours.load_state_dict(converted | {name: torch.zeros_like(ours.state_dict()[name]) for name in missing})

    text = starting_with(padded((11, 4, 7), 19), SOS)
    other = theirs(text.values, attention_mask=text.allow.long()).logits[text.allow]
    mine = ours.decode(text.values, ours.encode(text)).logits_BTV[text.allow]
    assert_equal(ours, mine, other, converted, named, **({} if exact else {"rtol": 1e-4, "atol": 1e-4}))
