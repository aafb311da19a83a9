"""Settings of models that write labels or tags, chosen from the data, with the reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from regard.data.codecs import FILE_CODECS
from regard.data.corpus import Pair
from regard.errors import plural
from regard.models.build import FAMILIES
from regard.training.settings import DataSettings, TrainSettings
from regard.training.suggest import Suggestion, rounded, side_of


def suggest_labels(kind: str, pairs: Sequence[Pair], number: int, usual: Suggestion) -> Suggestion:
    """Returns settings for a classifier or a tagger, with reasons.

    kind: the family of the model. pairs: a sample of the pairs. number: that of all pairs. usual: what a model that writes
    texts would get; how files are read is taken from it.
    """
    data, count, frontend = usual.settings.data, plural(number, "pair"), usual.settings.model.traits.frontend
    source = side_of([pair.texts[0] for pair in pairs])
    few = number < 30_000
    if FAMILIES[kind].settings().traits.learns_from == "tags":
        data = DataSettings(source_unit=_tag_unit(pairs, 0), target_unit=_tag_unit(pairs, 1))
        unit_reason = "one tag for each token of the source"
    else:
        unit = data.source_unit if data.source_unit in FILE_CODECS else "bpe" if source.is_sentences else source.unit
        data = DataSettings(source_unit=unit, target_unit="labels", augment=data.augment, vocabulary=data.vocabulary)
        unit_reason = "the whole target is one label"
    sizes: dict[str, Any] = {"width": 128, "feed_forward": 256, "layers": 2, "dropout": 0.2 if few else 0.1}
    if frontend != "tokens":
        sizes |= {"frontend": frontend, "channels": 32}
    train = TrainSettings(batch_tokens=2048, learning_rate=1e-3, schedule="cosine", ema=0.99)
    positions = 128 if data.source_unit in FILE_CODECS else 1 + source.characters / (3 if data.source_unit == "bpe" else 1)
    epoch = number * positions / train.batch_tokens
    steps = rounded(min(8000, max(600, 10 * epoch)))
    settings = replace(
        usual.settings,
        data=data,
        model=FAMILIES[kind].settings(**sizes),
        train=replace(train, steps=steps, validate_every=rounded(steps / 8), metric="symbol_error_rate"),
    )
    reasons = {
        key: reason for key, reason in usual.reasons.items() if key in ("data.source_unit", "data.augment", "model.frontend")
    }
    return Suggestion(
        settings,
        {
            **reasons,
            "data.target_unit": unit_reason,
            "model.dropout": ("only " if few else "") + count,
            "train.steps": f"about {steps / epoch:.1f} passes over {count}; the aim is 10 passes, in 600 to 8,000 updates",
        },
    )


def _tag_unit(pairs: Sequence[Pair], side: int) -> Any:
    """Returns symbols if there are spaces, which then separate tokens; otherwise every character is a token."""
    return "symbols" if any(" " in pair.texts[side] for pair in pairs) else "characters"
