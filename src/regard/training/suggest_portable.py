"""Settings of a model that other toolkits can run: `--portable`."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from regard.data.codecs import FILE_CODECS
from regard.errors import UserError
from regard.models.transformer import MARIAN, PRESETS
from regard.training.suggest import Suggestion

LARGE = 200_000
"""With more pairs, the model has the size of the preset `small`, else of `tiny`."""
WARMUP = 0.1


def suggest_portable(suggestion: Suggestion, number: int) -> Suggestion:
    """Returns the suggested settings with a model and a vocabulary that other toolkits have, too.

    number: the number of pairs. Raises UserError if the sources are files.
    """
    settings = suggestion.settings
    if settings.data.source_unit in FILE_CODECS:
        raise UserError(
            f"--portable trains models that read texts, but the sources are files ({settings.data.source_unit}); leave it out"
        )
    is_large = number > LARGE
    size: Literal["small", "tiny"] = "small" if is_large else "tiny"
    data = replace(
        settings.data,
        source_unit="sentencepiece",
        target_unit="sentencepiece",
        shared=True,
        normalise="nmt_nfkc",
        vocabulary=min(8000, max(1000, 500 * round(number / 1800))),
    )
    model = replace(PRESETS[size], **MARIAN, dropout=0.1 if is_large else 0.3)
    train = replace(settings.train, warmup=WARMUP)
    if settings.model.kind != "transformer":  # the suggestion is for a recurrent model
        train = replace(train, learning_rate=3e-3, label_smoothing=0.1, batch_tokens=1024, metric="loss", weights="best")
    why = "--portable: OPUS-MT, CTranslate2 and Argos have it, too"
    own = {key: reason for key, reason in suggestion.reasons.items() if key.startswith("train.")}
    return Suggestion(
        replace(settings, data=data, model=model, train=train),
        {
            **own,
            "data.source_unit": why,
            "data.target_unit": why,
            "data.shared": why,
            "data.normalise": why,
            "data.vocabulary": "few pairs are not enough for many subwords",
            "model.kind": f"a Transformer of the size {size}, post-norm, with all embeddings shared: {why}",
            "model.dropout": "" if is_large else "only few pairs",
            "train.warmup": "post-norm needs a longer warm-up",
        },
    )
