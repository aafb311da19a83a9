"""The parts of frontends: what reads tokens, pictures, videos, sounds and auxiliary texts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

from torch import nn

from regard.inspection.ledger import Ledger, around, input_part, shape_of
from regard.inspection.parts import ModelPart
from regard.inspection.read_blocks import read_attention, read_norm
from regard.layers.frontends import (
    FrameFrontend,
    Frontend,
    FusionFrontend,
    GridFrontend,
    GridProjection,
    PatchFrontend,
    ResNetFrontend,
    SoundFrontend,
    TimeBlock,
    VideoFrontend,
    WhisperFrontend,
)
from regard.layers.subsample import Subsampling


def read_source(ledger: Ledger, embedding: nn.Module) -> list[ModelPart]:
    """Returns what is read, and its embedding or frontend."""
    if isinstance(embedding, Frontend):
        return read_frontend(ledger, embedding)
    return [input_part("source tokens", "(B, S)"), *ledger.parts(embedding, "S")]


def read_frontend(ledger: Ledger, frontend: Frontend) -> list[ModelPart]:
    """Returns what a frontend reads, and its parts."""
    if isinstance(frontend, FusionFrontend):
        return read_fusion(ledger, frontend)
    if isinstance(frontend, ResNetFrontend):
        return read_resnet(ledger, frontend)
    if isinstance(frontend, VideoFrontend):
        return read_resnet(ledger, frontend.frames, frontend.over_time)
    if isinstance(frontend, PatchFrontend):
        project = frontend.project
        read = input_part("picture", shape_of("B", project.in_channels, "H", "W"))
        cell = frontend.cell
        formula = f"W · patch of {cell} × {cell} pixels + φ(row, column)"
        return [read, ledger.leaf("patches", project, formula, shape_of("B", "S", project.out_channels), "embedding")]
    if isinstance(frontend, GridFrontend):
        axes = ("frames", "rows", "columns") if ledger.reads_video else ("rows", "columns")
        read = input_part("grid of features", shape_of("B", frontend.projection.project.in_features, *axes))
        return [read, read_grid(ledger, frontend.projection)]
    if isinstance(frontend, SoundFrontend):
        return read_sound(ledger, frontend.subsampling, frontend.positions)
    if isinstance(frontend, WhisperFrontend):
        return read_whisper(ledger, frontend)
    if isinstance(frontend, FrameFrontend):
        shape = shape_of("B", "S", frontend.project.out_features)
        part = ledger.leaf("frames", frontend.project, "x W + b", shape, "embedding")
        read = input_part("frames", shape_of("B", "S", frontend.project.in_features))
        return [read, part, *_sines(frontend.positions, shape)]
    inner = [part for child in frontend.children() for part in ledger.parts(child, "S")]
    return [around(type(frontend).__name__, inner, parameters=ledger.count(frontend), role="embedding")]


def read_fusion(ledger: Ledger, frontend: FusionFrontend) -> list[ModelPart]:
    """Returns the parts of a frontend that attends to an auxiliary text. The text is a stack of its own."""
    parts = read_frontend(ledger, frontend.frontend)
    shape = parts[-1].shape
    nothing = ledger.count(frontend.nothing)
    parts.append(ModelPart("missing source", "x, or a learned vector if there is no source", shape, nothing))
    text = [*ledger.parts(frontend.words, "S"), *ledger.parts(frontend.reader, "S")]
    text = [_along_text(part) for part in (input_part("auxiliary tokens", "(B, S)"), *text)]
    text[-1] = replace(text[-1], gives="text")
    ledger.texts.append(around("auxiliary text", text, role="stack"))
    attention = read_attention(ledger, frontend.attention, "S", "text", "fusion", "")
    inner = tuple(replace(part, shape=_keys_of_text(part)) for part in attention.parts)
    added = ModelPart("Add", "x + f(x)", shape, skips=2, role="norm")
    return [*parts, *read_norm(ledger, frontend.norm, shape), replace(attention, parts=inner), added]


def read_resnet(ledger: Ledger, network: ResNetFrontend, over_time: Iterable[nn.Module] = ()) -> list[ModelPart]:
    """Returns the parts of a residual network. over_time: for videos, the `TimeBlock` after each of its stages."""
    blocks = list(over_time)
    frames = ("frames",) if blocks else ()
    channels = cast(nn.Conv2d, network.halve[0]).in_channels // 2  # it reads raw and standardised values
    parts = [input_part("video" if blocks else "picture", shape_of("B", channels, *frames, "H", "W"))]
    for number, (halve, block) in enumerate(zip(network.halve, network.blocks, strict=True), 1):
        convolution = cast(nn.Conv2d, halve)
        shape = shape_of("B", convolution.out_channels, *frames, f"H/{2**number}", f"W/{2**number}")
        formula = f"{convolution.in_channels} → {convolution.out_channels} channels, stride 2"
        inner = [ledger.leaf("convolution", halve, formula, shape), ledger.leaf("residual block", block, "x + f(x)", shape)]
        inner += [read_time_block(ledger, cast(TimeBlock, block), shape) for block in blocks[number - 1 : number]]
        parts.append(around(f"stage {number}", inner, shape=shape, role="embedding"))
    return [*parts, read_grid(ledger, network.projection)]


def read_time_block(ledger: Ledger, block: TimeBlock, shape: str) -> ModelPart:
    frames = block.convolution.kernel_size[0]
    return ledger.leaf("convolution over time", block, f"x + f(x), {frames} frames", shape)


def read_grid(ledger: Ledger, projection: GridProjection) -> ModelPart:
    shape = shape_of("B", "S", projection.output.out_features)
    position = "φ(time, row, column)" if ledger.reads_video else "φ(row, column)"
    return ledger.leaf("grid", projection, f"A x + W₂ relu(W₁ x + {position}) + b, S cells", shape, "embedding")


def read_sound(ledger: Ledger, subsampling: Subsampling, positions: bool) -> list[ModelPart]:
    first, second, width = subsampling.first, subsampling.second, subsampling.project.out_features
    shape = shape_of("B", "S", width)
    return [
        input_part("frames of sound", "(B, 4S, bands)"),
        ledger.leaf(
            "convolution", first, "3 × 3, stride 2, relu", shape_of("B", first.out_channels, "2S", "bands/2"), "embedding"
        ),
        ledger.leaf(
            "convolution", second, "3 × 3, stride 2, relu", shape_of("B", second.out_channels, "S", "bands/4"), "embedding"
        ),
        ledger.leaf("projection", subsampling.project, "x W + b", shape, "embedding"),
        *read_norm(ledger, subsampling.norm, shape),
        *_sines(positions, shape),
    ]


def read_whisper(ledger: Ledger, frontend: WhisperFrontend) -> list[ModelPart]:
    width, convolutions = frontend.first.out_channels, (frontend.first, frontend.second)
    parts = [
        ledger.leaf("convolution", convolution, f"3 frames, stride {stride}, gelu", shape_of("B", length, width), "embedding")
        for stride, length, convolution in zip((1, 2), ("2S", "S"), convolutions, strict=True)
    ]
    return [input_part("frames of sound", "(B, 2S, bands)"), *parts, *_sines(frontend.positions, shape_of("B", "S", width))]


def _sines(positions: bool, shape: str) -> list[ModelPart]:
    return [ModelPart("positions", "x + φ(i), sinusoidal", shape, role="embedding")] if positions else []


def _along_text(part: ModelPart) -> ModelPart:
    """Returns a part that reads the U positions of the auxiliary text."""
    return replace(part, shape=part.shape.replace("S", "U"), parts=tuple(map(_along_text, part.parts)))


def _keys_of_text(part: ModelPart) -> str:
    """Returns the shape of a part of fusion, whose keys and values have the U positions of the auxiliary text."""
    if part.name.startswith(("K", "V")):
        return part.shape.replace("S", "U")
    return part.shape[::-1].replace("S", "U", 1)[::-1] if part.name == "weights" else part.shape
