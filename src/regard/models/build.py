"""Builds a model from its settings. Every model family has an entry in `SETTINGS` and in `MODELS`."""

from collections.abc import Mapping

from torch import nn

from regard.layers.scores import ScoreMaker
from regard.models.decoder_only import DecoderOnly, DecoderOnlySettings
from regard.models.rnn_lm import RnnLm, RnnLmSettings
from regard.models.rnn_seq2seq import RnnSeq2Seq, RnnSettings
from regard.models.transformer import PRESETS as TRANSFORMERS
from regard.models.transformer import Transformer, TransformerSettings

Model = RnnSeq2Seq | RnnLm | Transformer | DecoderOnly
ModelSettings = RnnSettings | RnnLmSettings | TransformerSettings | DecoderOnlySettings

SETTINGS: dict[str, type[ModelSettings]] = {
    "rnn": RnnSettings,
    "rnn_lm": RnnLmSettings,
    "transformer": TransformerSettings,
    "decoder_only": DecoderOnlySettings,
}
"""Name of a model family -> its settings class."""

PRESETS: dict[str, ModelSettings] = {**TRANSFORMERS}
"""Name of a preset -> its settings."""

MODELS: dict[type[ModelSettings], type[Model]] = {
    RnnSettings: RnnSeq2Seq,
    RnnLmSettings: RnnLm,
    TransformerSettings: Transformer,
    DecoderOnlySettings: DecoderOnly,
}
"""Settings class -> model class."""


def build(
    settings: ModelSettings,
    source_vocab: int,
    target_vocab: int,
    scores: Mapping[str, ScoreMaker] | None = None,
    *,
    auxiliary: int = 0,
) -> Model:
    """Returns a new model with randomly initialised weights.

    source_vocab: number of source tokens; with a frontend, numbers per pixel, cell or frame.
    target_vocab: number of target tokens.
    scores: the user's own score functions, by the names used in the settings.
    auxiliary: vocabulary size of the auxiliary texts; 0 if there are none.
    """
    if isinstance(settings, RnnSettings):
        return RnnSeq2Seq(settings, source_vocab, target_vocab, scores, auxiliary)
    if isinstance(settings, TransformerSettings):
        return Transformer(settings, source_vocab, target_vocab, scores, auxiliary)
    return MODELS[type(settings)](settings, source_vocab, target_vocab, scores)  # type: ignore[arg-type]


def num_parameters(model: nn.Module) -> int:
    """Returns the number of parameters, frozen ones included."""
    return sum(parameter.numel() for parameter in model.parameters())
