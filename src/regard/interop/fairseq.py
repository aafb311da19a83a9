"""fairseq's Transformer: a folder with dict.SRC.txt, dict.TGT.txt and a checkpoint, *.pt; or model.safetensors with the same
names and config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.contracts import Specials
from regard.core.positions import tensor2tensor
from regard.data.documents import mapping, parse
from regard.errors import UserError, shown
from regard.interop.names import Names, bart_modules, check_reasons
from regard.interop.opened import TABLE_POSITIONS, Opened, naming, num_layers, tie_of
from regard.interop.torch_file import read_safetensors, read_torch_file
from regard.interop.vocabularies import MERGES, text_codec
from regard.layers.blocks import Activation
from regard.models.transformer import TransformerSettings

CONFIG, WEIGHTS = "config.json", "model.safetensors"
FIRST = ("<s>", "<pad>", "</s>", "<unk>")
"""The tokens that precede those of a dictionary."""
SPECIALS = Specials(pad=1, unk=3, start=2, eos=2, never=(1,))
"""A decoder starts with </s>. <s> is not used."""
UNUSED = ("_float_tensor", "version", "_future_mask")
"""The ends of names of tensors that hold nothing that was learned."""
ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "gelu": "gelu", "gelu_accurate": "gelu_tanh", "swish": "silu"}

NAMES = Names(
    bart_modules(
        "",
        {
            "encoder.embed_tokens": "encoder.embedding.tokens",
            "encoder.embed_positions": "encoder.embedding.learned.vectors",
            "decoder.embed_tokens": "decoder.embedding.tokens",
            "decoder.embed_positions": "decoder.embedding.learned.vectors",
            "decoder.output_projection": "decoder.output",
        },
    )
)
"""Their names of modules, and ours."""
SPELLINGS = {
    "embed_dim": "encoder_embed_dim",
    "ffn_dim": "encoder_ffn_embed_dim",
    "heads": "encoder_attention_heads",
    "normalize_before": "encoder_normalize_before",
    "activation": "activation_fn",
    "share_decoder_input_output_embed": "share_decoder_input_output_embed",
}
"""Short names of options, as a config.json may have them, and fairseq's own."""


def is_folder(path: Path) -> bool:
    """Whether a folder holds a model of fairseq."""
    return len(list(path.glob("dict.*.txt"))) in (1, 2) and _weights_file(path) is not None


def open_folder(folder: Path) -> Opened:
    """Reads a folder. Raises UserError with all reasons if our Transformer cannot represent the model."""
    path = _weights_file(folder)
    assert path is not None
    if path.suffix == ".safetensors":
        tensors, given = read_safetensors(path), _config(folder / CONFIG)
    else:
        tensors, facts = read_torch_file(path)
        given = _options(facts)
    options = {SPELLINGS.get(name, name): value for name, value in given.items()}
    with naming(folder):
        check_reasons("our Transformer cannot represent this model", _obstacles(options, tensors))
        weights = _weights(tensors, options)
        settings = _settings(weights, options)
        dictionaries = _dictionaries(folder, options, weights)
        source = text_codec(folder, "source", _tokens(dictionaries[0]), SPECIALS)
        target = text_codec(folder, "target", _tokens(dictionaries[1]), SPECIALS)
    files = {path, *dictionaries, *(one for one in folder.iterdir() if one.name in (CONFIG, *MERGES))}
    return Opened("fairseq", folder, tuple(sorted(files)), settings, weights, source, target)


def _weights_file(folder: Path) -> Path | None:
    """Returns the weights in a folder: model.safetensors, or its only checkpoint, or the best one of several."""
    checkpoints = sorted(folder.glob("*.pt"))
    best = [one for one in checkpoints if one.name == "checkpoint_best.pt"]
    candidates = [folder / WEIGHTS] if (folder / WEIGHTS).is_file() else best or checkpoints
    return candidates[0] if len(candidates) == 1 else None


def _config(path: Path) -> dict[str, Any]:
    try:
        return mapping(parse(path.read_bytes()), "its content")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; it describes the weights in {WEIGHTS}") from None
    except UserError as error:
        raise UserError(f"{path} is damaged: {error}") from None


def _options(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of the model in a checkpoint: `args`, or the section `model` of `cfg`, and the languages."""
    config = facts.get("cfg") or {}
    options = facts.get("args") or config.get("model") or {}
    task = config.get("task") or {}
    if not isinstance(options, dict) or not isinstance(task, dict):
        raise UserError(f"its options are {shown(options)}, expected a mapping")
    return {**{name: task[name] for name in ("source_lang", "target_lang") if name in task}, **options}


def _obstacles(options: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> list[str]:
    """Returns all reasons why our Transformer cannot represent a model."""
    reasons = []
    for side in ("encoder_normalize_before", "decoder_normalize_before"):
        if options.get(side) not in (None, options.get("encoder_normalize_before")):
            reasons.append(f"{side} differs from that of the encoder")
    activation = options.get("activation_fn", "relu")
    if activation not in ACTIVATIONS:
        reasons.append(f"its activation function is {shown(activation)}, expected one of {', '.join(ACTIVATIONS)}")
    for side, sizes in {
        "decoder_attention_heads": "encoder_attention_heads",
        "decoder_embed_dim": "encoder_embed_dim",
        "decoder_ffn_embed_dim": "encoder_ffn_embed_dim",
    }.items():
        if options.get(side) not in (None, options.get(sizes)):
            reasons.append(f"{side} is {options[side]}, but {sizes} is {options.get(sizes)}")
    for name, noun in {
        "layernorm_embedding": "a norm after the embeddings",
        "adaptive_softmax_cutoff": "an adaptive softmax",
        "no_token_positional_embeddings": "no positions",
        "no_cross_attention": "no cross-attention",
        "cross_self_attention": "cross-attention joined with self-attention",
        "no_decoder_final_norm": "no norm after the decoder",
    }.items():
        if options.get(name):
            reasons.append(f"it has {noun} ({name})")
    if not any(name.startswith("encoder.layers.") for name in tensors):
        reasons.append("its weights are not those of a Transformer with an encoder")
    return reasons


def _weights(tensors: Mapping[str, Tensor], options: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the weights under our names. fairseq counts positions from 2, its id of padding plus one."""
    weights = NAMES.to_ours({name: tensor for name, tensor in tensors.items() if not name.endswith(UNUSED)})
    width = weights["decoder.embedding.tokens.weight"].shape[1]
    for side in ("encoder", "decoder"):
        name = f"{side}.embedding.learned.vectors.weight"
        first = SPECIALS.pad + 1
        weights[name] = weights[name][first:] if name in weights else tensor2tensor(TABLE_POSITIONS, width, first=first)
        if options.get("no_scale_embedding"):
            weights[f"{side}.embedding.tokens.weight"] = weights[f"{side}.embedding.tokens.weight"] / width**0.5
    target = weights["decoder.embedding.tokens.weight"]
    output = weights.get("decoder.output.weight", target)
    weights.setdefault("decoder.output.bias", torch.zeros(len(target)))
    if torch.equal(output, target):
        weights.pop("decoder.output.weight", None)
        if torch.equal(weights["encoder.embedding.tokens.weight"], target):
            del weights["encoder.embedding.tokens.weight"]
    return weights


def _settings(weights: Mapping[str, Tensor], options: Mapping[str, Any]) -> TransformerSettings:
    heads = options.get("encoder_attention_heads")
    if type(heads) is not int:
        raise UserError(f"encoder_attention_heads is {shown(heads)}, expected the number of heads")
    table = weights["encoder.embedding.learned.vectors.weight"]
    return TransformerSettings(
        width=table.shape[1],
        heads=heads,
        feed_forward=len(weights["encoder.layers.0.feed_forward.0.bias"]),
        encoder_layers=num_layers(weights, "encoder"),
        decoder_layers=num_layers(weights, "decoder"),
        activation=ACTIVATIONS[options.get("activation_fn", "relu")],
        norm_order="pre" if options.get("encoder_normalize_before") else "post",
        tie=tie_of(weights),
        positions="learned",
        max_positions=len(table),
    )


def _dictionaries(folder: Path, options: Mapping[str, Any], weights: Mapping[str, Tensor]) -> tuple[Path, Path]:
    """Returns the dictionaries of the source and of the target. Raises UserError if it is not clear which is which."""
    found = sorted(folder.glob("dict.*.txt"))
    named = [folder / f"dict.{options.get(name)}.txt" for name in ("source_lang", "target_lang")]
    if all(path in found for path in named):
        return named[0], named[1]
    if len(found) == 1:
        return found[0], found[0]
    target = weights["decoder.embedding.tokens.weight"]
    sizes = [len(weights.get("encoder.embedding.tokens.weight", target)), len(target)]
    orders = [pair for pair in (found, found[::-1]) if [len(_tokens(path)) for path in pair] == sizes]
    if len(orders) != 1:
        raise UserError(
            f"it is not clear whether {found[0].name} or {found[1].name} belongs to the source, whose embedding has "
            f"{sizes[0]:,} rows; set source_lang and target_lang in {CONFIG}"
        )
    return orders[0][0], orders[0][1]


def _tokens(path: Path) -> list[str]:
    """Returns the tokens of a dictionary by id: special tokens, and one in each line, followed by how often it occurs."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    parts = [line.removesuffix(" #fairseq:overwrite").rsplit(" ", 1) for line in lines if line]
    if wrong := next((number for number, part in enumerate(parts, start=1) if len(part) != 2), None):
        raise UserError(f"{path.name}, line {wrong}: expected a token and how often it occurs, separated by a space")
    return [*FIRST, *(token for token, _ in parts)]
