"""The engine that runs a torch model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from regard.contracts import SourceRow, Specials
from regard.core.source import Source
from regard.data.batch import source_batch
from regard.data.sources import SourceCodec
from regard.data.tokenizers.contract import TextCodec
from regard.decoding.torch_engine import TorchEngine
from regard.models.contract import Seq2Seq
from regard.models.evaluation import device_of


def engine_of(model: Seq2Seq, source: SourceCodec, target: TextCodec) -> TorchEngine:
    """Returns the engine that runs a torch model, wherever it is, with the special tokens of its vocabularies."""
    return TorchEngine(model, partial(batch_for, model, source.specials), target.specials)


def batch_for(model: Seq2Seq, specials: Specials, rows: Sequence[SourceRow]) -> Source:
    """Returns a batch on the device of the model. specials: those of the sources."""
    return source_batch(rows, specials).to(device_of(model))
