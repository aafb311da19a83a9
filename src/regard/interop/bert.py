"""Encoders of Hugging Face (BERT, Devlin et al. 2019; ELECTRA, DistilBERT): a folder with config.json, model.safetensors (or an
old pytorch_model.bin), and vocab.txt or tokenizer.json with WordPiece. A new model may start with such an encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from regard.checkpoint.folder import Saved
from regard.checkpoint.weights import SkipInitialisation
from regard.contracts import Specials
from regard.core import masks
from regard.core.source import Source
from regard.data.documents import mapping
from regard.data.tokenizers.pretrained import PretrainedCodec, WordRules
from regard.errors import UserError, shown
from regard.interop.huggingface import ACTIVATIONS, CONFIG, model_type, read_json, read_weights
from regard.interop.library import optional
from regard.interop.names import Names, check_complete, check_reasons
from regard.interop.opened import naming
from regard.models.build import build
from regard.models.contract import Model
from regard.models.transformer import TransformerSettings

VOCABULARY, TOKENIZER, RULES = "vocab.txt", "tokenizer.json", "tokenizer_config.json"
TOLERANCE = 1e-4
"""The largest difference of a number of the encoder's output that counts as rounding, relative to its size if above 1."""
_LAYER = "encoder.layers.{i}"
_EMBEDDINGS: dict[str, str | tuple[str, ...]] = {
    "embeddings.LayerNorm": "encoder.embedding.norm",
    "embeddings.word_embeddings": "encoder.embedding.tokens",
    "embeddings.position_embeddings": "encoder.embedding.learned.vectors",
    "embeddings.token_type_embeddings": "encoder.types",
}
_BERT = Names(
    {
        **_EMBEDDINGS,
        "encoder.layer.{i}.attention.self.query": f"{_LAYER}.attention.query",
        "encoder.layer.{i}.attention.self.key": f"{_LAYER}.attention.key",
        "encoder.layer.{i}.attention.self.value": f"{_LAYER}.attention.value",
        "encoder.layer.{i}.attention.output.dense": f"{_LAYER}.attention.output",
        "encoder.layer.{i}.attention.output.LayerNorm": f"{_LAYER}.around_attention.norm",
        "encoder.layer.{i}.intermediate.dense": f"{_LAYER}.feed_forward.0",
        "encoder.layer.{i}.output.dense": f"{_LAYER}.feed_forward.3",
        "encoder.layer.{i}.output.LayerNorm": f"{_LAYER}.around_feed_forward.norm",
    }
)
_DISTILBERT = Names(
    {
        **_EMBEDDINGS,
        "transformer.layer.{i}.attention.q_lin": f"{_LAYER}.attention.query",
        "transformer.layer.{i}.attention.k_lin": f"{_LAYER}.attention.key",
        "transformer.layer.{i}.attention.v_lin": f"{_LAYER}.attention.value",
        "transformer.layer.{i}.attention.out_lin": f"{_LAYER}.attention.output",
        "transformer.layer.{i}.sa_layer_norm": f"{_LAYER}.around_attention.norm",
        "transformer.layer.{i}.ffn.lin1": f"{_LAYER}.feed_forward.0",
        "transformer.layer.{i}.ffn.lin2": f"{_LAYER}.feed_forward.3",
        "transformer.layer.{i}.output_layer_norm": f"{_LAYER}.around_feed_forward.norm",
    }
)


@dataclass(frozen=True)
class Architecture:
    """One kind of encoder. names: its names of modules, and ours.  sizes: its names of sizes, and the settings that they are.
    heads: the starts of names that other tasks use, such as filling in blanks, and that the encoder does not."""

    names: Names
    sizes: Mapping[str, str]
    heads: tuple[str, ...] = ("pooler.", "cls.", "classifier.", "qa_outputs.", "discriminator_predictions.", "generator_")


_SIZES = {
    "hidden_size": "width",
    "num_attention_heads": "heads",
    "intermediate_size": "feed_forward",
    "num_hidden_layers": "encoder_layers",
}
ARCHITECTURES = {
    "bert": Architecture(_BERT, _SIZES),
    "electra": Architecture(_BERT, _SIZES),
    "distilbert": Architecture(
        _DISTILBERT,
        {"dim": "width", "n_heads": "heads", "hidden_dim": "feed_forward", "n_layers": "encoder_layers"},
        ("vocab_", "pre_classifier.", "classifier.", "qa_outputs."),
    ),
}
"""model_type -> how to read it."""


def is_folder(path: Path) -> bool:
    """Whether a folder holds an encoder of Hugging Face that regard reads."""
    return model_type(path) in ARCHITECTURES


def open_encoder(folder: Path) -> Saved:
    """Returns a model with the encoder of a folder and its vocabulary; its decoder has no weights, only shapes.

    Raises UserError with all reasons if our Transformer cannot represent the encoder, or if transformers, where it is
    installed, computes other states.
    """
    kind, config = model_type(folder), read_json(folder / CONFIG)
    tensors = read_weights(folder)
    with naming(folder):
        architecture = ARCHITECTURES[kind]
        sizes = {ours: config.get(theirs) for theirs, ours in architecture.sizes.items()}
        check_reasons("our Transformer cannot represent this encoder", _obstacles(config, sizes))
        weights = _weights(tensors, architecture, kind)
        source = _codec(folder, len(weights["encoder.embedding.tokens.weight"]))
        settings = _settings(config, sizes, weights)
        saved = Saved(_model(settings, weights, source), settings, source, source, {}, "")
    _prove(saved, folder)
    return saved


def _activation(config: Mapping[str, Any]) -> Any:
    return config.get("hidden_act", config.get("activation", "gelu"))


def _obstacles(config: Mapping[str, Any], sizes: Mapping[str, Any]) -> list[str]:
    """Returns all reasons why our encoder cannot be this one."""
    reasons = [f"its {name} is {shown(size)}, expected a number" for name, size in sizes.items() if type(size) is not int]
    if (activation := _activation(config)) not in ACTIVATIONS:
        reasons.append(f"its activation function is {shown(activation)}, expected one of {', '.join(ACTIVATIONS)}")
    if (positions := config.get("position_embedding_type", "absolute")) != "absolute":
        reasons.append(f"its positions are {shown(positions)}, expected absolute")
    if config.get("embedding_size", sizes["width"]) != sizes["width"]:
        reasons.append(f"its embedding has width {shown(config['embedding_size'])}, its layers {sizes['width']}")
    if config.get("is_decoder"):
        reasons.append("it is a decoder (is_decoder)")
    return reasons


def _weights(tensors: Mapping[str, Tensor], architecture: Architecture, kind: str) -> dict[str, Tensor]:
    """Returns the weights of the encoder under our names. All tokens have type 0, whose vector is added to the positions."""
    theirs = {name.removeprefix(f"{kind}."): tensor for name, tensor in tensors.items()}
    theirs = {
        name: tensor
        for name, tensor in theirs.items()
        if not name.startswith(architecture.heads) and not name.endswith("position_ids")
    }
    old_norms = {"gamma": "weight", "beta": "bias"}  # names of the first versions
    theirs = {
        name.rpartition(".")[0] + "." + old_norms.get(name.rpartition(".")[2], name.rpartition(".")[2]): tensor
        for name, tensor in theirs.items()
    }
    weights = {name: tensor.float() for name, tensor in architecture.names.to_ours(theirs).items()}
    types, table = weights.pop("encoder.types.weight", None), "encoder.embedding.learned.vectors.weight"
    if missing := [name for name in (table, "encoder.embedding.tokens.weight") if name not in weights]:
        raise UserError(f"its weights have no {missing[0]}")
    if types is not None:
        weights[table] = weights[table] + types[0]
    return weights


def _settings(config: Mapping[str, Any], sizes: Mapping[str, Any], weights: Mapping[str, Tensor]) -> TransformerSettings:
    return TransformerSettings(
        **sizes,
        activation=ACTIVATIONS[_activation(config)],
        norm_order="post",
        norm_eps=config.get("layer_norm_eps", 1e-12),
        scale_embedding=False,
        embedding_norm=True,
        positions="learned",
        max_positions=len(weights["encoder.embedding.learned.vectors.weight"]),
        tie="output",
    )


def _model(settings: TransformerSettings, weights: Mapping[str, Tensor], source: PretrainedCodec) -> Model:
    with torch.device("meta"), SkipInitialisation():
        model = build(settings, len(source), len(source.specials.ids), specials=source.specials)
    expected = {name: tuple(one.shape) for name, one in model.state_dict().items() if name.startswith("encoder.")}
    check_complete(expected, weights)
    model.load_state_dict(dict(weights), strict=False, assign=True)
    return model.eval()


# --- tokens ------------------------------------------------------------------------------------------------------------------


def _codec(folder: Path, size: int) -> PretrainedCodec:
    """Returns the codec of the vocabulary. size: the number of rows of the embedding."""
    described, rules = read_json(folder / TOKENIZER, required=False), read_json(folder / RULES, required=False)
    if (folder / VOCABULARY).is_file():
        lines = (folder / VOCABULARY).read_text(encoding="utf-8").split("\n")
        names = [line.rstrip("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
        ids = {name: number for number, name in enumerate(names)}
    else:
        model = mapping(described.get("model"), f"model in {TOKENIZER}, or {VOCABULARY},")
        if model.get("type") != "WordPiece" or model.get("continuing_subword_prefix", "##") != "##":
            raise UserError(f"its tokens are those of {shown(model.get('type'))}, expected WordPiece with ##")
        ids = mapping(model.get("vocab"), "vocab")
    tokens = {number: name for name, number in ids.items()}
    if sorted(tokens) != list(range(len(ids))) or len(ids) > size:
        raise UserError(f"its {len(ids):,} tokens are not numbered from 0 to at most {size - 1:,}")
    if missing := [name for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]") if name not in ids]:
        raise UserError(f"its vocabulary lacks {', '.join(missing)}")
    specials = Specials(ids["[PAD]"], ids["[UNK]"], ids["[CLS]"], ids["[SEP]"], never=(ids["[PAD]"], ids["[CLS]"]))
    normal = described.get("normalizer") or {}
    lowercase = normal.get("lowercase", rules.get("do_lower_case", True))
    words = WordRules(
        lowercase=lowercase,
        strip_accents=normal.get("strip_accents", rules.get("strip_accents")),
        chinese=normal.get("handle_chinese_chars", rules.get("tokenize_chinese_chars", True)),
        first=ids["[CLS]"],
    )
    control = [ids[name] for name in ("[PAD]", "[CLS]", "[SEP]", "[MASK]") if name in ids]
    padded = [tokens.get(number, f"[unused row {number}]") for number in range(size)]
    return PretrainedCodec("wordpiece", padded, specials, control=control, rules=words)


# --- their side --------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def _prove(saved: Saved, folder: Path) -> None:
    """Raises UserError if transformers, where it is installed, computes other states of random tokens."""
    library = optional("transformers")
    if library is None:
        return
    library.utils.logging.set_verbosity_error()
    library.utils.logging.disable_progress_bar()
    theirs = library.AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
    rng, length = Random(0), min(17, getattr(saved.settings, "max_positions", 17))
    ids_BS = torch.tensor([[rng.randrange(len(saved.source)) for _ in range(length)] for _ in range(4)])
    expected = theirs(input_ids=ids_BS).last_hidden_state
    found = saved.model.encode(Source(ids_BS, masks.not_padding(ids_BS, pad=-1))).values_BSE
    difference = float(((found - expected).abs() / expected.abs().clamp(min=1)).max())
    if not difference <= TOLERANCE:
        raise UserError(
            f"{folder}: the conversion is wrong: a number of the encoder's output differs by {difference:.1e} from that of "
            f"transformers {library.__version__}; please report this model"
        )
