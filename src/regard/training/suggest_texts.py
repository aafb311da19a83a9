"""Settings of models that learn from texts, chosen from these texts, with the reasons. The experiments: docs/LOG.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from regard.data.corpus import Pair
from regard.data.texts import Contents
from regard.errors import plural
from regard.models.build import FAMILIES
from regard.models.contract import ModelSettings
from regard.models.decoder_only import DecoderOnlySettings
from regard.models.rnn_lm import RnnLmSettings
from regard.training.settings import DataSettings, RunSettings, TrainSettings
from regard.training.suggest import Suggestion, rounded, side_of

CHARACTERS_PER_TOKEN = 3.5
"""Of a subword, on average."""

MODELS: dict[str, ModelSettings] = {
    "decoder_only": DecoderOnlySettings(width=192, feed_forward=768, tie="output"),
    "rnn_lm": RnnLmSettings(width=384, embedding=128),
}
"""The models for texts; models of other families have the default settings of their family."""


def suggest_texts(
    kind: str, contents: Contents, texts: Sequence[Pair], number: int, given: Mapping[str, Any], reasons: Mapping[str, str]
) -> Suggestion:
    """Returns settings for texts, with reasons.

    kind: the family of the model. contents: what the files hold. texts: a sample of the texts. number: that of all texts.
    given: the settings that the user gives, by key. reasons: those that are known before.
    """
    side = side_of([text.target for text in texts])
    unit = given.get("data.target_unit") or given.get("data.source_unit") or ("bpe" if side.is_sentences else side.unit)
    characters = number * (side.characters + 1)
    vocabulary = min(8000, max(1000, 500 * round(characters / 200_000)))
    tokens = characters / (CHARACTERS_PER_TOKEN if unit in ("bpe", "unigram") else 1)
    train = TrainSettings(batch_tokens=1024, learning_rate=2e-3, schedule="cosine", ema=0.999)
    epoch = tokens / train.batch_tokens
    steps = rounded(min(20_000, max(1000, 10 * epoch)))
    settings = RunSettings(
        data=DataSettings(contents=contents, source_unit=unit, target_unit=unit, shared=True, vocabulary=vocabulary),
        model=MODELS.get(kind) or FAMILIES[kind].settings(),
        train=replace(train, steps=steps, validate_every=rounded(steps / 8)),
    )
    count = plural(number, "text")
    return Suggestion(
        settings,
        {
            **reasons,
            "data.target_unit": str(side),
            "data.vocabulary": f"about {characters:,.0f} characters; little text is not enough for many subwords",
            "train.steps": f"about {steps / epoch:.1f} passes over {count}; the aim is 10 passes, in 1,000 to 20,000 updates",
        },
    )
