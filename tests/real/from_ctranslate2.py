"""CTranslate2's model.bin -> our Transformer."""

import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from regard.models.transformer import Transformer, TransformerSettings

MAX_POSITIONS = 32

PARTS = {"self_attention": "attention", "attention": "cross", "ffn": "feed_forward"}
LINEARS = {  # theirs are fused: one matrix makes queries, keys and values
    ("self_attention", "linear_0"): ("query", "key", "value"),
    ("self_attention", "linear_1"): ("output",),
    ("attention", "linear_0"): ("query",),
    ("attention", "linear_1"): ("key", "value"),
    ("attention", "linear_2"): ("output",),
    ("ffn", "linear_0"): ("0",),
    ("ffn", "linear_1"): ("3",),
}


def read(path: Path) -> dict[str, Tensor]:
    """Little-endian: version, name, revision, number of variables; then of each the name, shape, item size, count, data."""
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
    """One variable of theirs as ours; a name that we do not know raises."""
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
            where = f"{side}.layers.{layer.removeprefix('layer_')}.{PARTS[part]}"
            return {f"{where}.{one}.{kind}": share for one, share in zip(names, value.chunk(len(names)), strict=True)}
    raise ValueError(f"unknown variable {name!r}")


def positions(width: int) -> Tensor:
    """Sines | cosines, from place 1 on. Their frequencies are 10000^(−k/(d/2−1)), the slowest 1/10000 itself, not the paper's
    10000^(−2k/d): so our model takes them for learned."""
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
        heads=8,  # what the file does not say
        feed_forward=len(theirs["encoder/layer_0/ffn/linear_0/bias"]),
        encoder_layers=6,
        decoder_layers=6,
        positions="learned",
        max_positions=MAX_POSITIONS,
    )
    model = Transformer(settings, source_vocab, target_vocab)
    model.load_state_dict(ours)
    return model.eval()
