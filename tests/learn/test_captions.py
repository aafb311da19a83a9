"""A small version of benchmarks/digits.py: naming handwritten digits side by side, none of which was seen in training."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from digits import Row, draw_rows, drawn_digits
from rich.console import Console

from regard.models.rnn_seq2seq import RnnSettings
from regard.training.data import in_memory
from regard.training.run import Trained, run
from regard.training.settings import DataSettings, RunSettings, TrainSettings

SETTINGS = RunSettings(
    data=DataSettings(source_unit="picture", target_unit="words"),
    model=RnnSettings(width=64, embedding=32, score_width=32, frontend="picture", channels=64, decoder="bahdanau", dropout=0.1),
    train=TrainSettings(steps=260, batch_tokens=320, learning_rate=5e-3, ema=0.98),
)


def centres(trained: Trained, rows: list[Row]) -> list[tuple[Row, list[float]]]:
    """Returns, for each picture, the mean column of the attention of every digit, as a fraction of the width."""
    pictures = []
    for row in rows:
        attention = trained.translator(row.name).attention()
        columns = attention.axes[1]
        middles = (np.arange(columns) + 0.5) / columns
        pictures.append((row, (attention.maps_TRC.sum(1) @ middles)[: len(row.digits)].tolist()))
    return pictures


@pytest.mark.slow
def test_attention_reads_digits_from_left_to_right_and_beats_one_vector(tmp_path: Path) -> None:  # SPEC A8.1 A8.2
    seen, unseen = drawn_digits()
    size = {"least": 1, "most": 2, "width": 40, "height": 16}
    training = draw_rows(tmp_path / "learn", seen, 1000, **size, seed=1)
    testing = draw_rows(tmp_path / "test", unseen, 150, **size, seed=2)
    one_vector = replace(SETTINGS, model=replace(SETTINGS.model, decoder="fixed"))  # type: ignore[arg-type]
    trained = {}
    for settings in (SETTINGS, one_vector):
        training_data = in_memory(
            "digits", [row.pair for row in training], [row.pair for row in testing], settings.data, root=tmp_path
        )
        trained[settings.model.decoder] = run(training_data, settings, Console(quiet=True), torch.device("cpu"))  # type: ignore[union-attr]
    soft = trained["bahdanau"]
    assert soft.rates.sequence < 0.1
    assert trained["fixed"].rates.sequence > 3 * soft.rates.sequence + 0.1
    attended = centres(soft, [row for row in testing if len(row.digits) == 2][:50])
    assert sum(first < second for _, (first, second) in attended) >= 0.9 * len(attended)
    errors = [abs(a - b) for row, columns in attended for a, b in zip(columns, row.middles, strict=True)]
    assert sum(errors) / len(errors) < 0.2  # as a fraction of the width; a digit is 0.4 wide
