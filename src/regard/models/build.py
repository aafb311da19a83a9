"""From settings to a model. A new family enters these two dictionaries with a line each."""

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
"""What a user calls a family -> its settings."""

PRESETS: dict[str, ModelSettings] = {**TRANSFORMERS}
"""What a user calls a member of a family -> all its settings."""

MODELS: dict[type[ModelSettings], type[Model]] = {
    RnnSettings: RnnSeq2Seq,
    RnnLmSettings: RnnLm,
    TransformerSettings: Transformer,
    DecoderOnlySettings: DecoderOnly,
}


def build(
    settings: ModelSettings,
    source_vocab: int,
    target_vocab: int,
    scores: Mapping[str, ScoreMaker] | None = None,
    *,
    auxiliary: int = 0,
) -> Model:
    """`scores` holds score functions of the user's own, by the names that settings may call them. beside: how many tokens the
    texts have that stand beside the sources; 0: there are none."""
    if isinstance(settings, RnnSettings):
        return RnnSeq2Seq(settings, source_vocab, target_vocab, scores, auxiliary)
    if isinstance(settings, TransformerSettings):
        return Transformer(settings, source_vocab, target_vocab, scores, auxiliary)
    return MODELS[type(settings)](settings, source_vocab, target_vocab, scores)  # type: ignore[arg-type]


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
