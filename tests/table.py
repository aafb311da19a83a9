"""The score functions and models that the laws are tested on. A new one needs one line here."""

from collections.abc import Callable

import numpy as np
import torch

from regard.contracts import FileAndText, SourceRow
from regard.core import masks
from regard.core.attention import ScaledDot
from regard.core.score import Score
from regard.core.source import Source
from regard.core.spectrum import BANDS
from regard.layers.scores import Additive, Basic, Concat, Cosine, Distance, Dot, General, Location
from regard.models.build import build
from regard.models.contract import Model, ModelSettings
from regard.models.decoder_only import DecoderOnlySettings
from regard.models.rnn_lm import RnnLmSettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import TransformerSettings

PAD, UNK, SOS, EOS = range(4)
SOURCE_VOCAB, TARGET_VOCAB = 17, 19

SCORES: dict[str, Callable[[int], Score]] = {  # name -> (width of queries and keys) -> score
    "scaled_dot": lambda width: ScaledDot(),
    "scaled_dot by d": lambda width: ScaledDot(divide_by="d"),
    "dot": lambda width: Dot(),
    "general": lambda width: General(width, width),
    "basic": lambda width: Basic(width, width),
    "additive": lambda width: Additive(width, width, 13),
    "concat": lambda width: Concat(width, width, 13),
    "location": lambda width: Location(width, 7),
    "cosine": lambda width: Cosine(temperature=0.3),
    "distance": lambda width: Distance(),
}

MODELS: dict[str, ModelSettings] = {
    "rnn additive": RnnSettings(width=22, embedding=7, score_width=13, dropout=0.3),
    "rnn scaled_dot, 2+2 layers": RnnSettings(
        width=22, embedding=7, encoder_layers=2, decoder_layers=2, score="scaled_dot", dropout=0.3
    ),
    "rnn general, plain readout, wider encoder": RnnSettings(
        width=22, encoder_width=26, embedding=7, score="general", readout="plain", dropout=0.3
    ),
    "rnn basic, bahdanau, wider encoder": RnnSettings(
        width=22, encoder_width=26, embedding=7, decoder="bahdanau", score="basic", dropout=0.3
    ),
    "rnn concat, bahdanau with tanh": RnnSettings(
        width=22,
        encoder_width=26,
        embedding=7,
        decoder="bahdanau",
        readout_activation="tanh",
        score="concat",
        score_width=13,
        dropout=0.3,
    ),
    "rnn location": RnnSettings(width=22, embedding=7, score="location", max_positions=11, dropout=0.3),
    "rnn, sums of dot products": RnnSettings(width=22, embedding=7, score="scaled_dot", attention="unnormalised", dropout=0.3),
    "rnn hard": RnnSettings(width=22, embedding=7, score_width=13, attention="hard", dropout=0.3),
    "rnn gates": RnnSettings(width=22, embedding=7, score_width=13, attention="gated", dropout=0.3),
    "rnn marginal": RnnSettings(width=22, embedding=7, score_width=13, attention="marginal", readout="plain", dropout=0.3),
    "rnn monotone": RnnSettings(
        width=22,
        encoder_width=26,
        embedding=7,
        cell="lstm",
        score="general",
        attention="monotone",
        readout="plain",
        jumps=3,
        dropout=0.3,
    ),
    "rnn monotone, copies, features as a set": RnnSettings(
        width=22,
        encoder_width=26,
        embedding=7,
        score="general",
        attention="monotone",
        readout="plain",
        bridge="zero",
        jumps=2,
        copy=True,
        features="set",
        dropout=0.3,
    ),
    "rnn monotone location, one direction, 2+2 layers": RnnSettings(
        width=22,
        embedding=7,
        encoder_layers=2,
        decoder_layers=2,
        bidirectional=False,
        bridge="zero",
        score="location",
        max_positions=11,
        attention="monotone",
        readout="plain",
        jumps=1,
        dropout=0.3,
    ),
    "rnn lstm, bahdanau, 2+2 layers": RnnSettings(
        width=22,
        embedding=7,
        cell="lstm",
        decoder="bahdanau",
        encoder_layers=2,
        decoder_layers=2,
        score_width=13,
        dropout=0.3,
    ),
    "rnn gru, bahdanau, hard": RnnSettings(
        width=22, embedding=7, decoder="bahdanau", score="general", attention="hard", dropout=0.3
    ),
    "rnn tanh, one direction, input feeding": RnnSettings(
        width=23, embedding=7, cell="rnn_tanh", bidirectional=False, input_feeding=True, score="scaled_dot", dropout=0.3
    ),
    "rnn fixed": RnnSettings(
        width=22, embedding=7, cell="rnn_sigmoid", decoder="fixed", bridge="none", decoder_layers=2, dropout=0.3
    ),
    "rnn fixed at every step": RnnSettings(width=22, embedding=7, cell="lstm", decoder="fixed", every_step=True, dropout=0.3),
    "rnn language model": RnnLmSettings(width=23, embedding=7, layers=2, dropout=0.3),
    "transformer location": TransformerSettings(
        width=20, heads=2, feed_forward=29, score="location", max_positions=401, dropout=0.3
    ),
    "transformer rotary, general": TransformerSettings(
        width=20, heads=5, feed_forward=29, score="general", positions="rotary", dropout=0.3
    ),
    "transformer alibi": TransformerSettings(width=20, heads=5, feed_forward=29, positions="alibi", dropout=0.3),
    "transformer alibi, grouped": TransformerSettings(
        width=20, heads=4, kv_heads=2, feed_forward=29, positions="alibi", dropout=0.3
    ),
    "transformer alibi, additive": TransformerSettings(
        width=20, heads=2, feed_forward=29, score="additive", score_width=13, positions="alibi", dropout=0.3
    ),
    "transformer learned": TransformerSettings(
        width=20, heads=2, feed_forward=29, positions="learned", max_positions=401, dropout=0.3
    ),
    "transformer fourier, appended, tied": TransformerSettings(
        width=21,
        heads=2,
        key_dim=7,
        feed_forward=29,
        positions="fourier",
        position_join="appended",
        position_width=6,
        tie="output",
        dropout=0.3,
    ),
    "transformer post-norm, rms, swiglu, tied, grouped": TransformerSettings(
        width=20,
        heads=4,
        kv_heads=2,
        feed_forward=29,
        norm_order="post",
        norm="rms",
        activation="swiglu",
        tie="output",
        embedding_norm=True,
        dropout=0.3,
    ),
    "transformer windows": TransformerSettings(width=20, heads=2, feed_forward=29, window=2, activation="gelu", dropout=0.3),
    "transformer convolution": TransformerSettings(
        width=20, heads=2, feed_forward=29, mixing="convolution", reach=2, dropout=0.3
    ),
    "transformer dense": TransformerSettings(
        width=20, heads=2, kv_heads=1, feed_forward=29, mixing="dense", max_positions=401, positions="none", dropout=0.3
    ),
    "decoder only convolution": DecoderOnlySettings(
        width=20, heads=2, feed_forward=29, layers=2, mixing="convolution", reach=2, dropout=0.3
    ),
    "transformer without residuals": TransformerSettings(
        width=20, heads=2, feed_forward=29, residual=False, norm_order="post", dropout=0.3
    ),
    "transformer without norms and W_V, tied": TransformerSettings(
        width=20, heads=2, feed_forward=29, norm="none", project_values=False, tie="output", dropout=0.3
    ),
    "transformer without W_O, post-norm": TransformerSettings(
        width=20, heads=2, kv_heads=1, feed_forward=29, project_output=False, norm_order="post", dropout=0.3
    ),
    "transformer with one head, without W_O and W_V": TransformerSettings(
        width=20, heads=1, feed_forward=29, project_values=False, project_output=False, positions="none", dropout=0.3
    ),
    "transformer without look-ahead mask": TransformerSettings(
        width=20, heads=2, feed_forward=29, look_ahead_mask=False, dropout=0.3
    ),
    "decoder only": DecoderOnlySettings(width=20, heads=2, feed_forward=29, layers=2, tie="output", dropout=0.3),
    "transformer cosine": TransformerSettings(
        width=20, heads=2, feed_forward=29, score="cosine", score_temperature=0.7, dropout=0.3
    ),
    "transformer scaled_dot by d": TransformerSettings(width=20, heads=2, feed_forward=29, score_divisor="d", dropout=0.3),
    "transformer distance": TransformerSettings(width=20, heads=2, feed_forward=29, score="distance", dropout=0.3),
    "transformer scaled_dot": TransformerSettings(width=20, heads=2, feed_forward=29, dropout=0.3),
    "transformer additive, 1+3 layers": TransformerSettings(
        width=20, heads=2, feed_forward=29, encoder_layers=1, decoder_layers=3, score="additive", score_width=13, dropout=0.3
    ),
}

FRONTENDS: dict[str, ModelSettings] = {  # models whose source is not text; see tests/laws/test_frontends.py
    "picture, luong": RnnSettings(width=20, embedding=7, score_width=13, frontend="picture", channels=12, dropout=0.3),
    "picture, bahdanau lstm": RnnSettings(
        width=22,
        encoder_width=24,
        embedding=7,
        cell="lstm",
        decoder="bahdanau",
        score="general",
        frontend="picture",
        channels=8,
        dropout=0.3,
    ),
    "picture, hard": RnnSettings(
        width=20, embedding=7, score_width=13, attention="hard", frontend="picture", channels=8, dropout=0.3
    ),
    "picture, marginal": RnnSettings(
        width=20,
        embedding=7,
        score_width=13,
        attention="marginal",
        readout="plain",
        frontend="picture",
        channels=8,
        dropout=0.3,
    ),
    "picture, marginal, rows": RnnSettings(
        width=20,
        encoder_width=24,
        embedding=7,
        encoder_layers=2,
        row_encoder=True,
        attention="marginal",
        readout="plain",
        frontend="picture",
        channels=8,
        dropout=0.3,
    ),
    "picture, seen once": RnnSettings(width=20, embedding=7, decoder="fixed", frontend="picture", channels=8, dropout=0.3),
    "picture, transformer": TransformerSettings(
        width=20, heads=2, feed_forward=29, frontend="picture", channels=8, dropout=0.3
    ),
    "patches, transformer": TransformerSettings(width=20, heads=2, feed_forward=29, frontend="patches", dropout=0.3),
    "grid, luong": RnnSettings(width=20, embedding=7, score="scaled_dot", frontend="grid", dropout=0.3),
    "grid, transformer": TransformerSettings(width=20, heads=2, feed_forward=29, frontend="grid", dropout=0.3),
    "frames, luong": RnnSettings(width=22, embedding=7, score_width=13, frontend="frames", dropout=0.3),
    "frames, transformer": TransformerSettings(width=20, heads=2, feed_forward=29, frontend="frames", dropout=0.3),
    "sound, luong": RnnSettings(width=22, embedding=7, score_width=13, frontend="sound", channels=3, dropout=0.3),
    "sound, monotone": RnnSettings(
        width=22, embedding=7, score="general", attention="monotone", readout="plain", frontend="sound", channels=3, dropout=0.3
    ),
    "sound, transformer": TransformerSettings(width=20, heads=2, feed_forward=29, frontend="sound", channels=3, dropout=0.3),
    "whisper, luong": RnnSettings(width=22, embedding=7, score_width=13, frontend="whisper", dropout=0.3),
    "whisper, transformer": TransformerSettings(
        width=20, heads=2, feed_forward=29, activation="gelu", scale_embedding=False, frontend="whisper", dropout=0.3
    ),
    "sound with text, luong": RnnSettings(width=22, embedding=6, score_width=13, frontend="sound", channels=3, dropout=0.3),
    "sound with text, transformer": TransformerSettings(
        width=20, heads=2, feed_forward=29, frontend="sound", channels=3, dropout=0.3
    ),
    "video, luong": RnnSettings(width=24, embedding=7, score_width=13, frontend="video", channels=8, dropout=0.3),
    "video, seen once": RnnSettings(width=24, embedding=7, decoder="fixed", frontend="video", channels=8, dropout=0.3),
    "video, transformer": TransformerSettings(width=24, heads=2, feed_forward=29, frontend="video", channels=8, dropout=0.3),
    "video with text, luong": RnnSettings(width=24, embedding=7, score_width=13, frontend="video", channels=8, dropout=0.3),
    "video_grid, luong": RnnSettings(width=24, embedding=7, score="scaled_dot", frontend="video_grid", dropout=0.3),
    "video_grid, transformer": TransformerSettings(width=24, heads=2, feed_forward=29, frontend="video_grid", dropout=0.3),
    "picture with text, luong": RnnSettings(width=20, embedding=7, score_width=13, frontend="picture", channels=8, dropout=0.3),
}
CHANNELS = 3


def num_channels(name: str) -> int:
    """Returns the number of channels of the sources of the model in `FRONTENDS`."""
    return BANDS if name.startswith("sound") else 2 * CHANNELS if name.startswith("whisper") else CHANNELS


def reads_source(name: str) -> bool:
    """Returns whether this model encodes a source; language models do not."""
    return not MODELS[name].traits.continues_text


def has_cross(name: str) -> bool:
    """Returns whether this model attends to its source."""
    return "cross" in MODELS[name].traits.attention


TIES = ("transformer without residuals",)
"""Models whose decoder hardly depends on the tokens that it has read, so that hypotheses have the same score."""


def looks_ahead(name: str) -> bool:
    """Returns whether the model has no look-ahead mask, so that a given output says nothing about what it writes."""
    return MODELS[name].traits.looks_ahead


def sums_to_one(name: str, kind: str) -> bool:
    """Returns whether the weights of this kind of attention are probabilities."""
    settings = MODELS[name]
    if kind != "cross":
        return getattr(settings, "mixing", "attention") == "attention"
    return getattr(settings, "attention", "soft") in ("soft", "hard", "marginal", "monotone")


def make_model(name: str, dtype: torch.dtype = torch.float64, *, features: int = 0) -> Model:
    """features: how many of the first ids after the special ones are features."""
    torch.manual_seed(5)
    return build(MODELS[name], SOURCE_VOCAB, TARGET_VOCAB, auxiliary=features).to(dtype).eval()


def make_source(*lengths: int, room: int | None = None) -> Source:
    """Returns random sentences of these lengths, padded to `room`. Their tokens do not depend on the other sentences."""
    room = room or max(lengths)
    rows = []
    for number, length in enumerate(lengths):
        generator = torch.Generator().manual_seed(number)
        row = torch.randint(4, SOURCE_VOCAB, (max(lengths),), generator=generator)[:length]
        rows.append(torch.cat((row, torch.full((room - length,), PAD))))
    ids = torch.stack(rows)
    return Source(ids, masks.not_padding(ids, PAD))


def make_frontend_model(name: str, dtype: torch.dtype = torch.float64) -> Model:
    torch.manual_seed(5)
    auxiliary = SOURCE_VOCAB if "with text" in name else 0
    return build(FRONTENDS[name], num_channels(name), TARGET_VOCAB, auxiliary=auxiliary).to(dtype).eval()


def make_rows(name: str, number: int = 4) -> list[SourceRow]:
    """Returns random pictures, videos, grids, frames or sounds of different sizes; some sides are multiples of the cell, some
    are not. With auxiliary texts, the second file is missing and the third text is empty."""
    generator = torch.Generator().manual_seed(2)
    rows: list[np.ndarray] = []
    for time, (height, width) in enumerate(((16, 24), (8, 8), (24, 13), (9, 31), (16, 24))[:number], start=2):
        if name.startswith(("frames", "whisper")):
            rows.append(torch.randn(width // 2, num_channels(name), generator=generator).numpy())
        elif name.startswith("sound"):
            rows.append(torch.randint(-9999, 9999, (width, 80), generator=generator, dtype=torch.int16).numpy())
        elif name.startswith("grid"):
            rows.append(torch.randn(CHANNELS, height // 4, width // 4, generator=generator).numpy())
        elif name.startswith("video_grid"):
            rows.append(torch.randn(CHANNELS, time, height // 4, width // 4, generator=generator).numpy())
        elif name.startswith("video"):
            shape = (CHANNELS, 7 - time, height, width)
            rows.append(torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8).numpy())
        else:
            rows.append(torch.randint(0, 256, (CHANNELS, height, width), generator=generator, dtype=torch.uint8).numpy())
    if "with text" not in name:
        return list(rows)
    texts = ([4, 5, 6], [7], [], [8, 9, 10, 11, 12])
    missing = np.zeros((0, 80) if name.startswith("sound") else (CHANNELS, *[0] * (rows[1].ndim - 1)), rows[1].dtype)
    return [
        FileAndText(missing if index == 1 else row, text) for index, (row, text) in enumerate(zip(rows, texts, strict=False))
    ]


def make_targets(batch: int, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(4, TARGET_VOCAB, (batch, length), generator=generator)
    ids[:, 0] = SOS
    return ids
