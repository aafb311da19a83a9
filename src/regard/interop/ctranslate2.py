"""CTranslate2: a folder with model.bin and vocabularies, perhaps config.json. Read by a parser of ours, written through its own
specification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.checkpoint.folder import Saved
from regard.contracts import Array, Specials
from regard.core.positions import sinusoidal, tensor2tensor
from regard.data.documents import mapping, parse
from regard.data.tokenizers.contract import TextCodec
from regard.errors import UserError, shown
from regard.interop.exports import Export
from regard.interop.library import optional, require
from regard.interop.model_bin import ModelBin, dequantised, read_model_bin
from regard.interop.names import Names, check_reasons
from regard.interop.opened import (
    NEVER,
    TABLE_POSITIONS,
    Opened,
    naming,
    num_layers,
    sinusoidal_layout,
    tie_of,
)
from regard.interop.proof import Ids, Peer
from regard.interop.record import RECORD, read_record
from regard.interop.vocabularies import START, VOCABULARY_FILES, names_of, own_codecs, text_codec
from regard.layers.blocks import Activation
from regard.models.transformer import TransformerSettings

MODEL, CONFIG = "model.bin", "config.json"
WRITTEN_POSITIONS = 2048
"""How many position vectors an export has; CTranslate2 itself cuts sources at 1,024 tokens."""
ACTIVATIONS: tuple[Activation, ...] = ("relu", "gelu_tanh", "silu", "gelu")
"""Our activation functions by CTranslate2's numbers."""
HEADS = {"TransformerBase": 8, "TransformerBig": 16}
"""Numbers of heads of the oldest specifications, whose files do not state them."""
READ = {MODEL, CONFIG, "source_vocabulary.json", "target_vocabulary.json", "shared_vocabulary.json"} | {
    "source_vocabulary.txt", "target_vocabulary.txt", "shared_vocabulary.txt", *VOCABULARY_FILES, RECORD
}  # fmt: skip
"""The files of a folder that we read."""
HANDLED = {
    "num_heads", "pre_norm", "activation", "alignment_layer", "alignment_heads", "scale_embeddings", "embeddings_merge",
    "start_from_zero_embedding", "with_source_bos", "with_source_eos", "with_target_bos", "multiply_by_sqrt_depth",
}  # fmt: skip
"""Scalars whose every value is understood; any other must be 0."""


def _modules() -> dict[str, str | tuple[str, ...]]:
    modules: dict[str, str | tuple[str, ...]] = {
        "encoder/embeddings_0": "encoder.embedding.tokens",
        "encoder/position_encodings": "encoder.embedding.learned.vectors",
        "encoder/layer_norm": "encoder.norm",
        "decoder/embeddings": "decoder.embedding.tokens",
        "decoder/position_encodings": "decoder.embedding.learned.vectors",
        "decoder/layer_norm": "decoder.norm",
        "decoder/projection": "decoder.output",
    }
    for side in ("encoder", "decoder"):
        theirs, ours = f"{side}/layer_{{i}}", f"{side}.layers.{{i}}"
        one = f"{ours}.attention"
        modules |= {
            f"{theirs}/self_attention/layer_norm": f"{ours}.around_attention.norm",
            f"{theirs}/self_attention/linear_0": (f"{one}.query", f"{one}.key", f"{one}.value"),
            f"{theirs}/self_attention/linear_1": f"{one}.output",
            f"{theirs}/ffn/layer_norm": f"{ours}.around_feed_forward.norm",
            f"{theirs}/ffn/linear_0": f"{ours}.feed_forward.0",
            f"{theirs}/ffn/linear_1": f"{ours}.feed_forward.3",
        }
    cross = "decoder.layers.{i}.cross"
    return modules | {
        "decoder/layer_{i}/attention/layer_norm": "decoder.layers.{i}.around_cross.norm",
        "decoder/layer_{i}/attention/linear_0": f"{cross}.query",
        "decoder/layer_{i}/attention/linear_1": (f"{cross}.key", f"{cross}.value"),
        "decoder/layer_{i}/attention/linear_2": f"{cross}.output",
    }


NAMES = Names(_modules(), separator="/", norms=("gamma", "beta"))
"""Their names of modules, and ours."""


# --- in ----------------------------------------------------------------------------------------------------------------------


def is_folder(path: Path) -> bool:
    """Whether a folder holds a model of CTranslate2."""
    return (path / MODEL).is_file() and not (path / "model.safetensors").exists()


def open_folder(folder: Path) -> Opened:
    """Reads a folder. Raises UserError with all reasons if our Transformer cannot represent the model."""
    file = read_model_bin(folder / MODEL)
    config = _config(folder, file)
    with naming(folder):
        check_reasons("our Transformer cannot represent this model", _obstacles(file))
        weights = _weights(file)
        source, target = _codecs(folder, file, config, weights)
        settings = _settings(file, config, weights)
        record = read_record(folder)
        if record:
            settings, weights = record.settings, record.restored(weights)
            source, target = own_codecs(folder)
    files = tuple(path for path in sorted(folder.iterdir()) if path.name in READ)
    return Opened(
        "ctranslate2", folder, files, settings, weights, source, target, record.alignment if record else _alignment(file)
    )


def _config(folder: Path, file: ModelBin) -> dict[str, Any]:
    """Returns config.json, or what replaces it in files of versions before 5."""
    path = folder / CONFIG
    if path.is_file():
        try:
            return mapping(parse(path.read_bytes()), "its content")
        except UserError as error:
            raise UserError(f"{path} is damaged: {error}") from None
    return {
        "add_source_bos": bool(file.flag("with_source_bos")),
        "add_source_eos": bool(file.flag("with_source_eos")),
        "decoder_start_token": "<s>" if file.flag("with_target_bos", 1) else "</s>",
    }


def _obstacles(file: ModelBin) -> list[str]:
    """Returns all reasons why our Transformer cannot represent a model."""
    if not file.specification.startswith("Transformer") or "Decoder" in file.specification:
        return [f"its architecture is {file.specification}, expected an encoder-decoder TransformerSpec"]
    names = file.variables
    reasons = []
    if not any(name.startswith("encoder/") for name in names):
        reasons.append("it has no encoder")
    if any(name.startswith("encoder/embeddings_1") for name in names):
        reasons.append("it reads several source features")
    for word, noun in {
        "relative_position": "relative positions",
        "relative_attention_bias": "a bias by relative position",
        "rotary": "rotary positions",
        "linear_0_noact": "gated feed-forward blocks",
        "layernorm_embedding": "a norm after the embeddings",
        "queries_scale": "a scale of its queries",
        "q_norm": "norms of queries",
        "project_in": "projections around the decoder",
    }.items():
        if any(word in name for name in names):
            reasons.append(f"it has {noun}")
    activation = {int(file.flag(f"{side}/activation")) for side in ("encoder", "decoder")}
    if len(activation) > 1 or not activation <= set(range(len(ACTIVATIONS))):
        reasons.append(f"its activation functions have the numbers {sorted(activation)}, expected one of 0 to 3 on both sides")
    for what in ("num_heads", "pre_norm"):
        if file.flag(f"encoder/{what}", 1) != file.flag(f"decoder/{what}", 1):
            reasons.append(f"{what} differs between encoder and decoder")
    for name, value in names.items():
        kind = name.rsplit("/", 1)[-1]
        if value.numel() == 1 and value.dim() == 0 and kind not in HANDLED and not kind.endswith("_scale") and float(value):
            reasons.append(f"{name} is {float(value):g}, which we do not know")
    if any(float(file.flag(f"{side}/scale_embeddings", 1)) not in (0, 1) for side in ("encoder", "decoder")):
        reasons.append("its embeddings have a scale of their own")
    return reasons


def _weights(file: ModelBin) -> dict[str, Tensor]:
    """Returns the weights under our names, with positions as a table if they are not our sinusoids."""
    arrays = {name.replace("encoder/embeddings/", "encoder/embeddings_0/"): value for name, value in dequantised(file).items()}
    tables = {side: arrays.pop(f"{side}/position_encodings/encodings", None) for side in ("encoder", "decoder")}
    weights = NAMES.to_ours(arrays)
    for side in ("encoder", "decoder"):
        name = f"{side}.embedding.tokens.weight"
        if name not in weights:
            raise UserError(f"{MODEL} has no embedding of the {side}")
        if not file.flag(f"{side}/scale_embeddings", 1):
            weights[name] = weights[name] / weights[name].shape[1] ** 0.5  # our embedding multiplies by it
    width = weights["decoder.embedding.tokens.weight"].shape[1]
    if any(table is None for table in tables.values()) or sinusoidal_layout(*_present(tables)) is None:
        for side, table in tables.items():
            made = tensor2tensor(TABLE_POSITIONS, width, first=1) if table is None else table
            weights[f"{side}.embedding.learned.vectors.weight"] = made
    if file.flag("decoder/start_from_zero_embedding"):
        _add_zero_row(weights)
    vocabulary = len(weights["decoder.output.weight"])
    weights.setdefault("decoder.output.bias", torch.zeros(vocabulary))
    _tie(weights)
    return weights


def _present(tables: Mapping[str, Tensor | None]) -> list[Tensor]:
    return [table for table in tables.values() if table is not None]


def _add_zero_row(weights: dict[str, Tensor]) -> None:
    """Adds the token that the decoder starts with, whose embedding is zero and which it never writes."""
    for name in ("encoder.embedding.tokens.weight", "decoder.embedding.tokens.weight", "decoder.output.weight"):
        weights[name] = torch.cat((weights[name], torch.zeros(1, weights[name].shape[1])))
    bias = weights.get("decoder.output.bias", torch.zeros(len(weights["decoder.output.weight"]) - 1))
    weights["decoder.output.bias"] = torch.cat((bias, torch.tensor([NEVER])))


def _tie(weights: dict[str, Tensor]) -> None:
    """Removes copies of the target embedding, so that the names say which matrices are shared."""
    target = weights["decoder.embedding.tokens.weight"]
    if not torch.equal(target, weights["decoder.output.weight"]):
        return
    del weights["decoder.output.weight"]
    if torch.equal(target, weights["encoder.embedding.tokens.weight"]):
        del weights["encoder.embedding.tokens.weight"]


def _settings(file: ModelBin, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> TransformerSettings:
    width = weights["decoder.embedding.tokens.weight"].shape[1]
    heads = int(file.flag("encoder/num_heads", HEADS.get(file.specification, 8)))
    if heads < 1 or width % heads:
        raise UserError(f"width {width} is not divisible by {heads} heads")
    table = weights.get("encoder.embedding.learned.vectors.weight")
    return TransformerSettings(
        width=width,
        heads=heads,
        feed_forward=len(weights.get("encoder.layers.0.feed_forward.0.weight", ())) or 1,
        encoder_layers=num_layers(weights, "encoder"),
        decoder_layers=num_layers(weights, "decoder"),
        activation=ACTIVATIONS[int(file.flag("encoder/activation"))],
        norm_order="pre" if file.flag("encoder/pre_norm", 1) else "post",
        norm_eps=config.get("layer_norm_epsilon") or 1e-5,
        tie=tie_of(weights),
        positions="sinusoidal" if table is None else "learned",
        layout="interleaved" if table is not None or _is_interleaved(file) else "halves",
        max_positions=TransformerSettings.max_positions if table is None else len(table),
    )


def _is_interleaved(file: ModelBin) -> bool:
    table = file.variables.get("encoder/position_encodings/encodings")
    return table is not None and sinusoidal_layout(table) == "interleaved"


def _codecs(
    folder: Path, file: ModelBin, config: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> tuple[TextCodec, TextCodec]:
    """Returns the codecs of both sides: SentencePiece, if its files are in the folder, or lists of tokens."""
    zero = bool(file.flag("decoder/start_from_zero_embedding"))
    target_size = len(weights["decoder.embedding.tokens.weight"]) - zero
    source_size = len(weights.get("encoder.embedding.tokens.weight", weights["decoder.embedding.tokens.weight"])) - zero
    unk = str(config.get("unk_token", "<unk>"))
    both = [_tokens(folder, side, size, unk) for side, size in (("source", source_size), ("target", target_size))]
    if zero:
        both = [[*tokens, START] for tokens in both]
    return (
        text_codec(folder, "source", both[0], _specials(both[0], config, zero, "source")),
        text_codec(folder, "target", both[1], _specials(both[1], config, zero, "target")),
    )


def _tokens(folder: Path, side: str, size: int, unk: str) -> list[str]:
    """Returns the vocabulary of one side. Raises UserError if it is missing or does not fit the embedding."""
    found = [folder / f"{name}_vocabulary.{kind}" for name in (side, "shared") for kind in ("json", "txt")]
    path = next((one for one in found if one.is_file()), None)
    if path is None:
        raise UserError(f"it has no {side} vocabulary, expected {found[0].name} or {found[2].name}")
    if path.suffix == ".json":
        tokens = parse(path.read_bytes())
    else:
        tokens = path.read_text(encoding="utf-8").split("\n")
        tokens = tokens[:-1] if tokens[-1] == "" else tokens
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise UserError(f"{path.name} is no list of tokens")
    if len(tokens) == size - 1 and unk not in tokens:
        tokens = [*tokens, unk]
    if len(tokens) != size:
        raise UserError(f"{path.name} has {len(tokens):,} tokens, but the embedding has {size:,} rows")
    return tokens


def _specials(tokens: list[str], config: Mapping[str, Any], zero: bool, side: str) -> Specials:
    ids = {token: number for number, token in enumerate(tokens)}

    def number(setting: str, default: str) -> int:
        token = config.get(setting, default)
        if token not in ids:
            raise UserError(f"the {side} vocabulary lacks {shown(token)}, which config.json gives as {setting}")
        return ids[token]

    eos, unk = number("eos_token", "</s>"), number("unk_token", "<unk>")
    start = ids[START] if zero else number("decoder_start_token", "<s>")
    if config.get("add_source_bos"):
        raise UserError("it puts a token before every source (add_source_bos), which our models do not")
    padding = [ids[name] for name in (START, "<blank>", "<s>") if name in ids] + [start]
    pad = next((one for one in padding if one not in (eos, unk)), None)
    if pad is None:
        raise UserError(f"the {side} vocabulary has no token for padding, such as <blank> or <s>")
    never = (start,) if zero else ()
    return Specials(pad, unk, start, eos, never=never, source_eos=bool(config.get("add_source_eos", False)))


def _alignment(file: ModelBin) -> dict[str, Any]:
    """Returns the alignment head: CTranslate2 reads the mean of the first heads of one layer."""
    layer, heads = int(file.flag("decoder/alignment_layer", -1)), int(file.flag("decoder/alignment_heads", 1))
    return {"layer": layer, "head": 0 if heads == 1 else None, "shifted": False, "norms": False}


# --- their side --------------------------------------------------------------------------------------------------------------


class CTranslate2Peer:
    """A folder, run by CTranslate2 in float32."""

    def __init__(self, folder: Path, library: Any, opened: Saved) -> None:
        self.name = f"ctranslate2 {library.__version__}"
        self.translator = library.Translator(str(folder), device="cpu", compute_type="float32", intra_threads=1)
        self.source, self.target = names_of(opened.source), names_of(opened.target)

    def forced(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> list[Array]:
        rows, outputs = self._tokens(sources), [[self.target[number] for number in target[:-1]] for target in targets]
        scored = self.translator.score_batch(rows, outputs)
        return [np.array(one.log_probs) for one in scored]

    def greedy(self, sources: Sequence[Ids], most: int) -> list[list[int]]:
        found = self.translator.translate_batch(
            self._tokens(sources), beam_size=1, max_decoding_length=most, min_decoding_length=0
        )
        ids = {name: number for number, name in enumerate(self.target)}
        return [[ids[token] for token in one.hypotheses[0]] for one in found]

    def _tokens(self, sources: Sequence[Ids]) -> list[list[str]]:
        return [[self.source[number] for number in source] for source in sources]


def peer(folder: Path, opened: Saved) -> Peer | None:
    """Returns the folder as CTranslate2 runs it; None if it is not installed."""
    library = optional("ctranslate2")
    return None if library is None else CTranslate2Peer(folder, library, opened)


# --- out ---------------------------------------------------------------------------------------------------------------------


def refused(saved: Saved) -> list[str]:
    """Returns the reasons why a model cannot be written in this format, beyond those of all exports."""
    specials = saved.target.specials
    if saved.source.specials.source_eos != specials.source_eos or specials.prefix:
        return ["its outputs start with fixed tokens"] if specials.prefix else ["its vocabularies end sources differently"]
    return []


def write_folder(folder: Path, export: Export) -> tuple[str, ...]:
    """Writes the files of a model into a folder, through CTranslate2's specification. Returns the name of that with weights."""
    require("ctranslate2", "writing a model of CTranslate2")
    from ctranslate2.specs import common_spec, model_spec, transformer_spec

    settings, record = export.settings, export.record
    head = export.record.alignment.get("head")
    spec = transformer_spec.TransformerSpec.from_config(
        (settings.encoder_layers, settings.decoder_layers),
        settings.heads,
        pre_norm=settings.norm_order == "pre",
        activation=common_spec.Activation(ACTIVATIONS.index(settings.activation)),
        alignment_layer=record.layer,
        alignment_heads=settings.heads if head is None else 1,
    )
    for name, value in _their_variables(export).items():
        scope, kind = name.rsplit("/", 1)
        setattr(model_spec.index_spec(spec, scope), kind, value.detach().numpy())
    _register_vocabularies(spec, export)
    if settings.norm_eps != 1e-5:
        spec.config.layer_norm_epsilon = settings.norm_eps
    spec.validate()
    spec.optimize()
    spec.save(str(folder))
    return (MODEL,)


def _their_variables(export: Export) -> dict[str, Tensor]:
    """Returns the arrays under their names, with shared matrices written out and positions as tables."""
    weights, settings = dict(export.weights), export.settings
    weights.setdefault("encoder.embedding.tokens.weight", weights["decoder.embedding.tokens.weight"])
    weights.setdefault("decoder.output.weight", weights["decoder.embedding.tokens.weight"])
    tables = {}
    for side in ("encoder", "decoder"):
        learned = weights.pop(f"{side}.embedding.learned.vectors.weight", None)
        computed = sinusoidal(torch.arange(WRITTEN_POSITIONS), settings.width, layout=settings.layout)
        tables[f"{side}/position_encodings/encodings"] = computed if learned is None else learned
    return NAMES.to_theirs(weights) | tables


def _register_vocabularies(spec: Any, export: Export) -> None:
    saved = export.saved
    specials = saved.target.specials
    source, target = names_of(saved.source), names_of(saved.target)
    spec.register_source_vocabulary(list(source))
    spec.register_target_vocabulary(list(target))
    config = spec.config
    config.unk_token, config.eos_token = target[specials.unk], target[specials.eos]
    config.bos_token = config.decoder_start_token = target[specials.start]
    config.add_source_bos, config.add_source_eos = False, specials.source_eos
