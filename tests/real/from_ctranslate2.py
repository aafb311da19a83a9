"""Converts CTranslate2's model.bin to our Transformer."""

import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from regard.models.transformer import Transformer, TransformerSettings

MAX_POSITIONS = 32

PARTS = {"self_attention": "attention", "attention": "cross", "ffn": "feed_forward"}
LINEARS = {  # fused in CTranslate2: one matrix computes queries, keys and values
    ("self_attention", "linear_0"): ("query", "key", "value"),
    ("self_attention", "linear_1"): ("output",),
    ("attention", "linear_0"): ("query",),
    ("attention", "linear_1"): ("key", "value"),
    ("attention", "linear_2"): ("output",),
    ("ffn", "linear_0"): ("0",),
    ("ffn", "linear_1"): ("3",),
}


def read(path: Path) -> dict[str, Tensor]:
    """Reads the variables. Little-endian: version, name, revision, number of variables; then for each its name, shape, item
    size, count and data."""
    content, at = path.read_bytes(), 0

    def number(form: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from(f"<{form}", content, at)
        at += struct.calcsize(form)
        return int(value)

    def text() -> str:
        nonlocal at
        length = number("H")
        at += length
        return content[at - length : at].rstrip(b"\0").decode()

    header = number("I"), text(), number("I")
    assert header == (2, "TransformerBase", 2), header
    variables = {}
    for _ in range(number("I")):
        name, shape = text(), [number("I") for _ in range(number("B"))]
        size, count = number("B"), number("I")
        assert size == 4, f"{name} is not float32"
        variables[name] = torch.from_numpy(np.frombuffer(content, "<f4", count, at).reshape(shape).copy())
        at += size * count
    assert at == len(content)
    return variables


def renamed(name: str, value: Tensor) -> dict[str, Tensor]:
    """Returns our weights for one CTranslate2 variable; raises an error for an unknown name."""
    side, *path, kind = name.split("/")
    kind = {"gamma": "weight", "beta": "bias"}.get(kind, kind)
    match path:
        case ["embeddings"]:
            return {f"{side}.embedding.tokens.{kind}": value}
        case ["projection"]:
            return {f"{side}.output.{kind}": value}
        case ["layer_norm"]:
            return {f"{side}.norm.{kind}": value}
        case [layer, part, "layer_norm"]:
            return {f"{side}.layers.{layer.removeprefix('layer_')}.around_{PARTS[part]}.norm.{kind}": value}
        case [layer, part, linear]:
            names = LINEARS[part, linear]
            prefix = f"{side}.layers.{layer.removeprefix('layer_')}.{PARTS[part]}"
            return {f"{prefix}.{ours}.{kind}": chunk for ours, chunk in zip(names, value.chunk(len(names)), strict=True)}
    raise ValueError(f"unknown variable {name!r}")


def positions(width: int) -> Tensor:
    """Returns sines | cosines, from position 1 on. CTranslate2's frequencies are 10000^(−k/(d/2−1)), the slowest exactly
    1/10000, and not the paper's 10000^(−2k/d), so our model loads them as learned positions."""
    k = torch.arange(width // 2, dtype=torch.float64)
    angle = torch.arange(1, MAX_POSITIONS + 1)[:, None] * 10000 ** (-k / (width // 2 - 1))
    return torch.cat((angle.sin(), angle.cos()), dim=1).float()


def load(path: Path) -> Transformer:
    theirs = read(path)
    ours: dict[str, Tensor] = {}
    for name, value in theirs.items():
        ours |= renamed(name, value)
    (source_vocab, width), (target_vocab, _) = (theirs[f"{side}/embeddings/weight"].shape for side in ("encoder", "decoder"))
    for side in ("encoder", "decoder"):
        ours[f"{side}.embedding.learned.vectors.weight"] = positions(width)
    settings = TransformerSettings(
        width=width,
        heads=8,  # not in the file
        feed_forward=len(theirs["encoder/layer_0/ffn/linear_0/bias"]),
        encoder_layers=6,
        decoder_layers=6,
        positions="learned",
        max_positions=MAX_POSITIONS,
    )
    model = Transformer(settings, source_vocab, target_vocab)
    model.load_state_dict(ours)
    return model.eval()
