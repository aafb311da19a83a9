"""Hugging Face's MarianMT (OPUS-MT), and Pegasus, its twin with pre-norm: a folder with config.json, model.safetensors (or an
old pytorch_model.bin), source.spm, target.spm and vocab.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.checkpoint.files import tensor_bytes, write
from regard.checkpoint.folder import Saved
from regard.contracts import Array, Specials
from regard.core.arrays import as_array
from regard.core.positions import sinusoidal
from regard.data.tokenizers.contract import TextCodec
from regard.data.tokenizers.sentencepieces import SentencePieces
from regard.errors import UserError, shown
from regard.interop.exports import Export
from regard.interop.huggingface import (
    ACTIVATIONS,
    CONFIG,
    OLD_WEIGHTS,
    WEIGHTS,
    licence_of,
    model_type,
    read_json,
    read_weights,
)
from regard.interop.library import optional
from regard.interop.names import Names, bart_modules, check_reasons
from regard.interop.opened import Opened, naming, num_layers, tie_of
from regard.interop.proof import Ids, Peer
from regard.interop.record import RECORD, read_record
from regard.interop.vocabularies import own_codecs, refused_without_pieces, text_codec
from regard.models.transformer import TransformerSettings

VOCABULARY, TARGET_VOCABULARY, TOKENIZER = "vocab.json", "target_vocab.json", "tokenizer_config.json"
READ = (CONFIG, WEIGHTS, OLD_WEIGHTS, VOCABULARY, TARGET_VOCABULARY, TOKENIZER, "source.spm", "target.spm", RECORD)
"""The files of a folder that we read."""
ARCHITECTURES = {"marian": ("MarianMTModel", "post"), "pegasus": ("PegasusForConditionalGeneration", "pre")}
"""model_type -> the name of the class, and where its norms are."""
LONGEST = 1024
"""The number of positions for which an export asks; their model computes the sinusoids."""
BIAS = "final_logits_bias"

_POSITIONS = {
    f"model.{side}.embed_positions": f"{side}.embedding.learned.vectors" for side in ("encoder", "decoder")
}  # computed in new versions, but kept in old files
SHARED = Names(
    bart_modules(
        "model.",
        {
            "model.shared": "decoder.embedding.tokens",
            "model.encoder.embed_tokens": "decoder.embedding.tokens",
            "model.decoder.embed_tokens": "decoder.embedding.tokens",
            "lm_head": "decoder.output",
            **_POSITIONS,
        },
    )
)
"""Their names of modules and ours, if both sides have one embedding."""
SEPARATE = Names(
    bart_modules(
        "model.",
        {
            "model.encoder.embed_tokens": "encoder.embedding.tokens",
            "model.decoder.embed_tokens": "decoder.embedding.tokens",
            "model.shared": "encoder.embedding.tokens",
            "lm_head": "decoder.output",
            **_POSITIONS,
        },
    )
)
"""The same, if each side has an embedding of its own."""


# --- in ----------------------------------------------------------------------------------------------------------------------


def is_folder(path: Path) -> bool:
    """Whether a folder holds a MarianMT or Pegasus model of Hugging Face."""
    return model_type(path) in ARCHITECTURES


def open_folder(folder: Path) -> Opened:
    """Reads a folder. Raises UserError with all reasons if our Transformer cannot represent the model."""
    config, tensors = read_json(folder / CONFIG), read_weights(folder)
    with naming(folder):
        check_reasons("our Transformer cannot represent this model", _obstacles(config))
        weights = _weights(tensors, config)
        settings = _settings(weights, config)
        record = read_record(folder)
        if record:
            settings, weights = record.settings, record.restored(weights)
            source, target = own_codecs(folder)
        else:
            source, target = _codecs(folder, config, weights)
    files = tuple(folder / name for name in READ if (folder / name).is_file())
    return Opened(
        "marian", folder, files, settings, weights, source, target, record.alignment if record else {}, licence_of(folder)
    )


def _obstacles(config: Mapping[str, Any]) -> list[str]:
    """Returns all reasons why our Transformer cannot represent a model."""
    reasons = []
    for what in ("attention_heads", "ffn_dim"):
        sizes = [config.get(f"{side}_{what}") for side in ("encoder", "decoder")]
        if sizes[0] != sizes[1] or type(sizes[0]) is not int:
            reasons.append(f"{what} is {sizes[0]} in the encoder and {sizes[1]} in the decoder, expected one number for both")
    if (activation := config.get("activation_function")) not in ACTIVATIONS:
        reasons.append(f"its activation function is {shown(activation)}, expected one of {', '.join(ACTIVATIONS)}")
    if config.get("static_position_embeddings") is False:
        reasons.append("its positions are learned, and transformers no longer runs such a model")
    for name, noun in {
        "normalize_embedding": "a norm after the embeddings",
        "extra_pos_embeddings": "shifted positions",
    }.items():
        if config.get(name):
            reasons.append(f"it has {noun} ({name})")
    return reasons


def _weights(tensors: dict[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the weights under our names."""
    theirs = dict(tensors)
    bias = theirs.pop(BIAS, None)
    names = SHARED if config.get("share_encoder_decoder_embeddings", True) else SEPARATE
    weights = names.to_ours(theirs)
    target = weights.get("decoder.embedding.tokens.weight")
    if target is None:
        raise UserError("its weights have no embedding of the decoder")
    for side in ("encoder", "decoder"):
        _check_positions(weights.pop(f"{side}.embedding.learned.vectors.weight", None), side)
    if not config.get("scale_embedding", False):
        raise UserError("its embeddings are not scaled (scale_embedding), which its output matrix would need as well")
    if "decoder.output.weight" in weights and torch.equal(weights["decoder.output.weight"], target):
        del weights["decoder.output.weight"]
    weights["decoder.output.bias"] = torch.zeros(len(target)) if bias is None else bias.reshape(-1)
    return weights


def _check_positions(table_PD: Tensor | None, side: str) -> None:
    """Raises UserError if the positions in an old file are not the sinusoids that the model computes."""
    if table_PD is None:
        return
    expected = sinusoidal(torch.arange(len(table_PD)), table_PD.shape[1], layout="halves")
    if not torch.allclose(table_PD.float(), expected, rtol=0, atol=1e-3):
        raise UserError(
            f"the positions of the {side} are not the sinusoids of Marian, so the model computes others than it learned"
        )


def _settings(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> TransformerSettings:
    return TransformerSettings(
        width=weights["decoder.embedding.tokens.weight"].shape[1],
        heads=config["encoder_attention_heads"],
        feed_forward=config["encoder_ffn_dim"],
        encoder_layers=num_layers(weights, "encoder"),
        decoder_layers=num_layers(weights, "decoder"),
        activation=ACTIVATIONS[config["activation_function"]],
        norm_order="post" if config["model_type"] == "marian" else "pre",
        dropout=config.get("dropout", 0.1),
        tie=tie_of(weights),
        layout="halves",
    )


def _codecs(folder: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> tuple[TextCodec, TextCodec]:
    """Returns the codecs of both sides."""
    target_size = len(weights["decoder.embedding.tokens.weight"])
    source_size = len(weights.get("encoder.embedding.tokens.weight", weights["decoder.embedding.tokens.weight"]))
    source = _tokens(folder / VOCABULARY, source_size)
    separate = (folder / TARGET_VOCABULARY).is_file()
    target = _tokens(folder / TARGET_VOCABULARY, target_size) if separate else source
    return (
        text_codec(folder, "source", source, _specials(source, config)),
        text_codec(folder, "target", target, _specials(target, config)),
    )


def _tokens(path: Path, size: int) -> list[str]:
    """Returns the tokens of a vocabulary by id. Raises UserError if they do not fit the embedding."""
    ids = read_json(path)
    tokens = {number: token for token, number in ids.items() if type(number) is int}
    if sorted(tokens) != list(range(len(ids))) or len(ids) > size:
        raise UserError(f"{path} does not number its {len(ids):,} tokens from 0 to at most {size - 1:,}")
    return [tokens.get(number, f"<unused {number}>") for number in range(size)]


def _specials(tokens: list[str], config: Mapping[str, Any]) -> Specials:
    def number(name: str) -> int:
        value = config.get(name)
        if type(value) is not int or not 0 <= value < len(tokens):
            raise UserError(f"{CONFIG}: {name} is {shown(value)}, expected the id of one of {len(tokens):,} tokens")
        return value

    if "<unk>" not in tokens:
        raise UserError(f"{VOCABULARY} has no token <unk>")
    pad = number("pad_token_id")
    banned = [ids[0] for ids in config.get("bad_words_ids") or [[pad]] if isinstance(ids, list) and len(ids) == 1]
    unused = [number for number, token in enumerate(tokens) if token.startswith("<unused ")]
    never = tuple(dict.fromkeys([*banned, pad, *unused]))
    return Specials(pad, tokens.index("<unk>"), number("decoder_start_token_id"), number("eos_token_id"), never=never)


# --- out ---------------------------------------------------------------------------------------------------------------------


def refused(saved: Saved) -> list[str]:
    """Returns the reasons why a model cannot be written in this format, beyond those of all exports."""
    settings, reasons = saved.settings, []
    if not isinstance(settings, TransformerSettings):
        return []
    if settings.positions != "sinusoidal" or settings.layout != "halves":
        reasons.append(f"its positions are {settings.positions} ({settings.layout}), expected sinusoidal, layout=halves")
    reasons += refused_as_tokens(saved)
    if settings.norm_eps != 1e-5:
        reasons.append(f"norm_eps is {settings.norm_eps:g}, expected 1e-05")
    if settings.tie == "none":
        reasons.append("its output matrix is not its target embedding (tie=none), expected tie=output or tie=all")
    if settings.norm_order == "pre" and settings.tie == "output":
        reasons.append("it is pre-norm with two vocabularies; Marian is post-norm, and Pegasus, its pre-norm twin, has one")
    return reasons


def refused_as_tokens(saved: Saved) -> list[str]:
    """Returns the reasons why the vocabularies of a model cannot be those of a Hugging Face folder."""
    source, target, reasons = saved.source.specials, saved.target.specials, refused_without_pieces(saved)
    if (source.pad, source.eos, source.unk) != (target.pad, target.eos, target.unk) or not source.source_eos:
        reasons.append("its special tokens have other ids in the source than in the target, or sources do not end with <eos>")
    return reasons


def write_folder(folder: Path, export: Export) -> tuple[str, ...]:
    """Writes the files of a model into a folder. Returns the names of those with weights."""
    settings = export.settings
    names = SHARED if settings.tie == "all" else SEPARATE
    weights = dict(export.weights)
    bias = weights.pop("decoder.output.bias")
    theirs = {**names.to_theirs(weights), BIAS: bias[None]}
    if settings.norm_order == "pre":  # Pegasus expects its positions in the file
        table_PD = sinusoidal(torch.arange(LONGEST), settings.width, layout="halves")
        theirs |= {f"model.{side}.embed_positions.weight": table_PD for side in ("encoder", "decoder")}
    write(folder / WEIGHTS, tensor_bytes(theirs))
    write_descriptions(folder, export)
    return (WEIGHTS,)


def write_descriptions(folder: Path, export: Export) -> None:
    """Writes all files of a folder but the weights."""
    settings, specials = export.settings, export.saved.target.specials
    kind = next(kind for kind, (_, order) in ARCHITECTURES.items() if order == settings.norm_order)
    config = _their_config(export, kind)
    generation = {
        "decoder_start_token_id": specials.start,
        "pad_token_id": specials.pad,
        "eos_token_id": specials.eos,
        "bad_words_ids": [[number] for number in sorted(specials.never) if number != specials.eos],
        "num_beams": 4,
        "max_length": 512,
        "renormalize_logits": True,
    }
    write(folder / CONFIG, json.dumps(config, indent=2).encode())
    write(folder / "generation_config.json", json.dumps(generation, indent=2).encode())
    _write_vocabularies(folder, export.saved)


def _write_vocabularies(folder: Path, saved: Saved) -> None:
    """Writes the SentencePiece models, the ids of their pieces, and what the tokenizer of Hugging Face reads."""
    source, target, specials = saved.source, saved.target, saved.target.specials
    assert isinstance(source, SentencePieces)
    assert isinstance(target, SentencePieces)
    separate = source.vocabulary != target.vocabulary
    for name, codec in (("source.spm", source), ("target.spm", target)):
        write(folder / name, codec.spm)
    for name, codec in ((VOCABULARY, source), (TARGET_VOCABULARY, target))[: 1 + separate]:
        ids = {token: number for number, token in enumerate(codec.vocabulary)}
        write(folder / name, json.dumps(ids, ensure_ascii=False, indent=0).encode())
    languages = saved.all_languages
    described = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": languages.source[0].code,
        "target_lang": languages.target[0].code,
        "unk_token": target.vocabulary[specials.unk],
        "eos_token": target.vocabulary[specials.eos],
        "pad_token": target.vocabulary[specials.pad],
        "model_max_length": 512,
        "separate_vocabs": separate,
    }
    write(folder / TOKENIZER, json.dumps(described, ensure_ascii=False, indent=2).encode())


def _their_config(export: Export, kind: str) -> dict[str, Any]:
    settings, saved = export.settings, export.saved
    activation = next(theirs for theirs, ours in ACTIVATIONS.items() if ours == settings.activation)
    sides: dict[str, int] = {}
    for side, layers in (("encoder", settings.encoder_layers), ("decoder", settings.decoder_layers)):
        sides |= {
            f"{side}_layers": layers,
            f"{side}_attention_heads": settings.heads,
            f"{side}_ffn_dim": settings.feed_forward,
        }
    specials = saved.target.specials
    return {
        "architectures": [ARCHITECTURES[kind][0]],
        "model_type": kind,
        "d_model": settings.width,
        **sides,
        "activation_function": activation,
        "dropout": settings.dropout,
        "scale_embedding": True,
        "static_position_embeddings": True,
        "normalize_embedding": False,
        "max_position_embeddings": LONGEST,
        "vocab_size": len(saved.source),
        "decoder_vocab_size": len(saved.target),
        "share_encoder_decoder_embeddings": settings.tie == "all",
        "tie_word_embeddings": True,
        "is_encoder_decoder": True,
        "pad_token_id": specials.pad,
        "eos_token_id": specials.eos,
        "decoder_start_token_id": specials.start,
        "forced_eos_token_id": None,
        "bos_token_id": None,
        "num_beams": 4,
        "dtype": "float32",
    }


# --- their side --------------------------------------------------------------------------------------------------------------


class TransformersPeer:
    """A folder, run by transformers."""

    def __init__(self, folder: Path, library: Any, opened: Saved) -> None:
        self.name, self.specials = f"transformers {library.__version__}", opened.target.specials
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()
        architecture = getattr(library, ARCHITECTURES[model_type(folder)][0])
        self.model = architecture.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()

    @torch.no_grad()
    def forced(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> list[Array]:
        return [
            as_array(
                self.model(
                    input_ids=torch.tensor([[*source, *self.specials.source_end]]),
                    decoder_input_ids=torch.tensor([[self.specials.start, *target[:-1]]]),
                )
                .logits[0]
                .log_softmax(-1)
            )
            for source, target in zip(sources, targets, strict=True)
        ]

    @torch.no_grad()
    def greedy(self, sources: Sequence[Ids], most: int) -> list[list[int]]:
        outputs = []
        for source in sources:
            ids = torch.tensor([[*source, *self.specials.source_end]])
            written = self.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                num_beams=1,
                do_sample=False,
                max_new_tokens=most,
                max_length=None,
                forced_eos_token_id=None,
                bad_words_ids=[[number] for number in self.specials.never if number != self.specials.eos] or None,
            )[0].tolist()[1:]
            outputs.append(written[: written.index(self.specials.eos)] if self.specials.eos in written else written)
        return outputs


def peer(folder: Path, opened: Saved) -> Peer | None:
    """Returns the folder as transformers runs it; None if it is not installed."""
    library = optional("transformers")
    return None if library is None else TransformersPeer(folder, library, opened)
