"""Settings of models that leave out one part, or replace it: they reach every layer, and refuse what does not fit."""

import re

import pytest
import torch
from table import SOURCE_VOCAB, TARGET_VOCAB
from torch import nn

from regard.core.attention import ScaledDot
from regard.errors import UserError
from regard.layers.attention import MultiHeadAttention
from regard.layers.scores import Basic, Concat, Cosine
from regard.models.build import build
from regard.models.contract import Model, ModelSettings
from regard.models.decoder_only import DecoderOnlySettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import TransformerSettings
from regard.training.overrides import override
from regard.training.settings import RunSettings

STACK = {"width": 20, "heads": 2, "feed_forward": 29, "dropout": 0.0}
FAMILIES = TransformerSettings, DecoderOnlySettings


def make(settings: ModelSettings) -> Model:
    torch.manual_seed(5)
    return build(settings, SOURCE_VOCAB, TARGET_VOCAB).double().eval()


def attentions(model: nn.Module) -> list[MultiHeadAttention]:
    return [module for module in model.modules() if isinstance(module, MultiHeadAttention)]


# --- scores ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_settings_of_scores_reach_every_attention(family: type[ModelSettings]) -> None:  # SPEC A2.2 A2.7
    """By default they are those of the score: √d, and a temperature of 0.1."""
    for settings, expected in (
        ({}, ScaledDot()),
        ({"score_divisor": "d"}, ScaledDot(divide_by="d")),
        ({"score_divisor": 1}, ScaledDot(divide_by=1)),
        ({"score": "cosine"}, Cosine()),
        ({"score": "cosine", "score_temperature": 0.7}, Cosine(0.7)),
    ):
        found = attentions(make(family(**STACK, **settings)))
        assert len(found) == (6 if family is TransformerSettings else 4)
        assert all(attention.score == expected for attention in found)


@pytest.mark.parametrize(("name", "kind"), [("basic", Basic), ("concat", Concat)])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_attention_has_a_score_of_its_own(family: type[ModelSettings], name: str, kind: type) -> None:  # SPEC A2.9
    found = [attention.score for attention in attentions(make(family(**STACK, score=name)))]
    assert all(type(score) is kind for score in found)
    assert len(set(map(id, found))) == len(found)


def test_a_score_of_ones_own_gets_the_settings_that_are_given() -> None:
    """Its own default stays if the setting is left out."""

    class Mine(Cosine):
        name = "mine"

        def __init__(self, temperature: float = 0.31) -> None:
            super().__init__(temperature)

    for settings, expected in (({}, 0.31), ({"score_temperature": 0.5}, 0.5)):
        model = build(RnnSettings(width=8, score="mine", **settings), SOURCE_VOCAB, TARGET_VOCAB, {"mine": Mine})
        assert model.score.temperature == expected


@pytest.mark.parametrize(
    ("make_settings", "words"),
    [
        (
            lambda: RnnSettings(score_divisor="d"),
            "score_divisor is d, but only the score scaled_dot has one, and the score is additive; set score=scaled_dot",
        ),
        (lambda: TransformerSettings(score_temperature=0.5), "only the score cosine has one, and the score is scaled_dot"),
        (lambda: RnnSettings(score="cosine", score_temperature=0.0), "score_temperature is 0.0, expected a number above 0"),
        (lambda: TransformerSettings(score_divisor=-2.0), "score_divisor is -2.0, expected a number above 0"),
        (
            lambda: RnnSettings(readout_activation="tanh"),
            "readout_activation=tanh requires decoder=bahdanau, but the decoder is luong",
        ),
    ],
)
def test_wrong_settings_are_explained(make_settings, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=re.escape(words)):
        make_settings()


def test_wrong_values_on_the_command_line_are_explained() -> None:
    with pytest.raises(UserError) as raised:
        override(RunSettings(model=TransformerSettings()), ["model.score_divisor=x"])
    assert "--set model.score_divisor: input should be 'd', got 'x'" in str(raised.value)
    assert "score_divisor." not in str(raised.value)
    changed = override(RunSettings(model=TransformerSettings()), ["model.score_divisor=2.5"]).model
    assert changed == TransformerSettings(score_divisor=2.5)


def test_an_option_may_belong_to_the_fusion_alone() -> None:
    assert TransformerSettings(score="dot", fusion_score="cosine", score_temperature=0.5)
