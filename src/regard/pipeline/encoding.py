"""Runs the encoder alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from regard.data.reader import Reader, Segment
from regard.decoding.torch_engine import axes_of
from regard.models.contract import Seq2Seq
from regard.models.evaluation import in_evaluation
from regard.pipeline.engines import batch_for
from regard.results import Encoded

ENCODED = 64
"""How many sources run through the encoder at a time."""


def encode_all(segments: Sequence[Segment], reader: Reader, model: Seq2Seq) -> list[Encoded]:
    """Returns the states and the vector of each segment; see `Translator.encode`."""
    starts = range(0, len(segments), ENCODED)
    return [one for start in starts for one in _encoded(segments[start : start + ENCODED], reader, model)]


@torch.no_grad()
def _encoded(segments: Sequence[Segment], reader: Reader, model: Seq2Seq) -> Iterator[Encoded]:
    memory = in_evaluation(model).encode(
        batch_for(model, reader.source.specials, [segment.request.source for segment in segments])
    )
    for number, segment in enumerate(segments):
        allow_S = memory.allow_BS[number]
        axes = axes_of(allow_S.cpu().numpy(), memory.axes)
        states, vector = memory.values_BSE[number][allow_S], memory.summary_BE[number]
        yield Encoded(states.cpu().numpy(), reader.labels(segment.source, axes), vector.cpu().numpy(), axes)
