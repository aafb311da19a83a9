"""The model families, and how a model is built from its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from torch import nn

from regard.contracts import OWN, Specials
from regard.models.contract import Model, ModelSettings
from regard.models.decoder_only import DecoderOnly, DecoderOnlySettings
from regard.models.encoder_only import Classifier, ClassifierSettings, Masked, MaskedSettings, Tagger, TaggerSettings
from regard.models.rnn_lm import RnnLm, RnnLmSettings
from regard.models.rnn_seq2seq import RnnSeq2Seq, RnnSettings
from regard.models.stack import Scores
from regard.models.transformer import PRESETS as TRANSFORMERS
from regard.models.transformer import Transformer, TransformerSettings

Settings = TypeVar("Settings", bound=ModelSettings)


@dataclass(frozen=True)
class Family(Generic[Settings]):
    """A model family.

    settings: the class of its settings.  model: the class of its models; arguments as in `build`.
    presets: settings that have a name.
    """

    settings: type[Settings]
    model: Callable[[Settings, int, int, Scores, int], Model]
    presets: Mapping[str, Settings] = field(default_factory=dict)


FAMILIES: dict[str, Family[Any]] = {
    "rnn": Family(RnnSettings, RnnSeq2Seq),
    "rnn_lm": Family(RnnLmSettings, RnnLm),
    "transformer": Family(TransformerSettings, Transformer, TRANSFORMERS),
    "decoder_only": Family(DecoderOnlySettings, DecoderOnly),
    "classifier": Family(ClassifierSettings, Classifier),
    "tagger": Family(TaggerSettings, Tagger),
    "masked": Family(MaskedSettings, Masked),
}
"""`kind` in the settings -> the family. This is the only list of families: settings files, model folders and `build` use it."""


def presets() -> dict[str, ModelSettings]:
    """Returns the presets of all families by name."""
    return {name: preset for family in FAMILIES.values() for name, preset in family.presets.items()}


def file_readers() -> list[str]:
    """Returns the families whose models can read files: their settings have the field `frontend`."""
    return [kind for kind, family in FAMILIES.items() if "frontend" in family.settings.__dataclass_fields__]


def build(
    settings: ModelSettings,
    source_vocab: int,
    target_vocab: int,
    scores: Scores = None,
    *,
    auxiliary: int = 0,
    specials: Specials = OWN,
) -> Model:
    """Returns a new model with randomly initialised weights.

    source_vocab: number of source tokens; with a frontend, numbers per pixel, cell or frame.
    target_vocab: number of target tokens.
    scores: the user's own score functions, by the names used in the settings.
    auxiliary: vocabulary size of the auxiliary texts, or number of the features of a text; 0 if there are none.
    specials: the special tokens of the outputs.
    """
    model = FAMILIES[settings.kind].model(settings, source_vocab, target_vocab, scores, auxiliary)
    model.specials = specials
    return model


def num_parameters(model: nn.Module) -> int:
    """Returns the number of parameters, frozen ones included."""
    return sum(parameter.numel() for parameter in model.parameters())
