"""The sizes and the training that all mechanisms of a comparison share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from regard.training.settings import TrainSettings


@dataclass(frozen=True)
class Recipe:
    """sizes: the settings of each family, by key; the families have about equally many parameters.  train: for all."""

    sizes: Mapping[str, Mapping[str, object]]
    train: TrainSettings

    def changes(self, kind: str) -> dict[str, object]:
        """Returns the sizes of a family."""
        return dict(self.sizes[kind])


def _recipe(rnn: Mapping[str, object], transformer: Mapping[str, object], dropout: float, train: TrainSettings) -> Recipe:
    sizes = {"rnn": rnn, "transformer": transformer}
    return Recipe(
        {kind: {"model.dropout": dropout, **{f"model.{name}": size for name, size in sizes[kind].items()}} for kind in sizes},
        train,
    )


_TRAIN = TrainSettings(batch_tokens=1024, learning_rate=4e-3, warmup=0.1, weights="last", checkpoint_every=200, keep=1)
STRINGS = _recipe(
    {"width": 128, "embedding": 64, "score_width": 64},
    {"width": 64, "heads": 4, "feed_forward": 128, "encoder_layers": 2, "decoder_layers": 2},
    0.0,
    _TRAIN,
)
"""For short strings: about 165,000 parameters."""
SENTENCES = _recipe(
    {"width": 256, "embedding": 128, "score_width": 128},
    {"width": 128, "heads": 4, "feed_forward": 256, "encoder_layers": 3, "decoder_layers": 2},
    0.2,
    TrainSettings(
        batch_tokens=1024,
        learning_rate=3e-3,
        warmup=0.1,
        label_smoothing=0.1,
        weights="last",
        checkpoint_every=200,
        keep=1,
    ),
)
"""For sentences: about 800,000 parameters and the embeddings of the subwords."""
