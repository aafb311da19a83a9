"""Converts the weights of Hugging Face's BertModel to our SourceEncoder."""

import json
import math
import re
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from regard.models.encoder import SourceEncoder
from regard.models.stack import StackSettings

NAMES = {
    "embeddings.LayerNorm": "embedding.norm",
    "embeddings.word_embeddings": "embedding.tokens",
    "embeddings.position_embeddings": "embedding.learned.vectors",
    "encoder.layer.{}.attention.self.query": "layers.{}.attention.query",
    "encoder.layer.{}.attention.self.key": "layers.{}.attention.key",
    "encoder.layer.{}.attention.self.value": "layers.{}.attention.value",
    "encoder.layer.{}.attention.output.dense": "layers.{}.attention.output",
    "encoder.layer.{}.attention.output.LayerNorm": "layers.{}.around_attention.norm",
    "encoder.layer.{}.intermediate.dense": "layers.{}.feed_forward.0",
    "encoder.layer.{}.output.dense": "layers.{}.feed_forward.3",
    "encoder.layer.{}.output.LayerNorm": "layers.{}.around_feed_forward.norm",
}


def renamed(name: str) -> str:
    """Returns our name of a weight; raises KeyError for an unknown name."""
    module, kind = name.rsplit(".", 1)
    number = re.search(r"\d+", module)
    if number is None:
        return f"{NAMES[module]}.{kind}"
    pattern = module[: number.start()] + "{}" + module[number.end() :]
    return f"{NAMES[pattern].format(number[0])}.{kind}"


def load(folder: Path) -> SourceEncoder:
    """Returns the encoder. Every token has type 0, so its vector is added to the positions; the pooler is not used."""
    config = json.loads((folder / "config.json").read_text())
    assert (config["hidden_act"], config["position_embedding_type"]) == ("gelu", "absolute")
    theirs: dict[str, Tensor] = load_file(folder / "model.safetensors")
    type_0 = theirs.pop("embeddings.token_type_embeddings.weight")[0]
    for unused in ("embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"):
        del theirs[unused]
    ours = {renamed(name): value for name, value in theirs.items()}
    ours["embedding.learned.vectors.weight"] += type_0
    ours["embedding.tokens.weight"] /= math.sqrt(config["hidden_size"])  # our encoder multiplies by it
    settings = StackSettings(
        width=config["hidden_size"],
        heads=config["num_attention_heads"],
        feed_forward=config["intermediate_size"],
        activation="gelu",
        norm_order="post",
        norm_eps=config["layer_norm_eps"],
        embedding_norm=True,
        positions="learned",
        max_positions=config["max_position_embeddings"],
    )
    model = SourceEncoder(settings, config["num_hidden_layers"], config["vocab_size"], None)
    model.load_state_dict(ours)
    return model.eval()
