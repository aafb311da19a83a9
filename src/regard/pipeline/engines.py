"""The engine that runs a torch model: by torch alone, or with native steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from regard.contracts import SourceRow, Specials
from regard.core.source import Source
from regard.data.batch import source_batch
from regard.data.sources import SourceCodec
from regard.data.tokenizers.contract import TextCodec
from regard.decoding.torch_engine import TorchEngine
from regard.errors import UserError
from regard.models.contract import Seq2Seq
from regard.models.evaluation import device_of
from regard.models.native_steps import NativeCopy
from regard.models.native_weights import beyond_native
from regard.native.library import load
from regard.options import EngineName, engine_name


def engine_of(model: Seq2Seq, source: SourceCodec, target: TextCodec, name: EngineName = "torch") -> TorchEngine:
    """Returns the engine that runs a torch model, wherever it is, with the special tokens of its vocabularies.

    Raises UserError if the native engine is asked for and cannot run the model.
    """
    if engine_name(name) == "native":
        check_native(model)
    native = None if name == "torch" else NativeCopy().of
    return TorchEngine(model, partial(batch_for, model, source.specials), target.specials, native)


def check_native(model: Seq2Seq) -> None:
    """Raises UserError with all reasons if the native engine cannot run a model."""
    if reasons := beyond_native(model):
        raise UserError(f"the native engine cannot run this model: {'; '.join(reasons)}. Use the engine auto or torch")


def describe_engine(engine: TorchEngine) -> str:
    """Returns which engine takes the steps of searches, and why."""
    if engine.native is None:
        return "torch, as asked for"
    reasons = beyond_native(engine.model)
    return f"torch: {'; '.join(reasons)}" if reasons else f"native, with {load().instruction_set} instructions"


def batch_for(model: Seq2Seq, specials: Specials, rows: Sequence[SourceRow]) -> Source:
    """Returns a batch on the device of the model. specials: those of the sources."""
    return source_batch(rows, specials).to(device_of(model))
