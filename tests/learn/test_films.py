"""Saying what moves in a video, and where, in the order of time; one frame is not enough."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from films import Film, draw_films, stories_of_the_same_frames
from rich.console import Console

from regard.models.rnn_seq2seq import RnnSettings
from regard.training.data import in_memory
from regard.training.run import Trained, run
from regard.training.settings import DataSettings, RunSettings, TrainSettings

SETTINGS = RunSettings(
    data=DataSettings(source_unit="video", target_unit="words"),
    model=RnnSettings(width=64, embedding=32, score_width=32, frontend="video", channels=32, decoder="bahdanau", dropout=0.1),
    train=TrainSettings(steps=700, batch_tokens=1200, learning_rate=5e-3, ema=0.98),
)


def weight_on_the_right_frames(trained: Trained, films: list[Film]) -> tuple[float, float]:
    """Returns the mean share of a word's weight that falls on the frames in which its shape moves, and the share of frames."""
    shares, chances = [], []
    for film in films:
        attention = trained.translator(film.name).attention()
        weights_TF = attention.maps_TFRC.sum((2, 3))
        for number in range(min(len(attention.target) - 1, 3 * len(film.spans))):
            span = film.spans[number // 3]
            shares.append(float(weights_TF[number, list(span)].sum()))
            chances.append(len(span) / weights_TF.shape[1])
    return float(np.mean(shares)), float(np.mean(chances))


@pytest.mark.slow
def test_attention_reads_videos_in_the_order_of_time(tmp_path: Path) -> None:  # SPEC A8.5
    training = draw_films(tmp_path / "learn", 1500, seed=1)
    testing = draw_films(tmp_path / "test", 150, seed=2)
    assert not {film.text for film in training} >= {film.text for film in testing}  # some of the stories are new
    first_frame = replace(SETTINGS, data=replace(SETTINGS.data, max_frames=1), train=replace(SETTINGS.train, steps=300))
    trained = []
    pairs, held_out = ([film.pair for film in films] for films in (training, testing))
    for settings in (SETTINGS, first_frame):
        data = in_memory("films", pairs, held_out, settings.data, root=tmp_path)
        trained.append(run(data, settings, Console(quiet=True), torch.device("cpu")))
    films, one_frame = trained
    assert films.rates.symbol < 0.2
    assert films.rates.sequence < 0.75  # of 24 x 24 stories; more films and updates get better (docs/LOG.md)
    without_order = [1 / len(stories_of_the_same_frames(film.text)) for film in testing]  # the best that a set of frames allows
    assert 1 - films.rates.sequence > np.mean(without_order) + 0.1
    mixed = draw_films(tmp_path / "mixed", 150, seed=3, shuffled=True)
    right = [films.translator(film.name).text == film.text for film in mixed]
    assert np.mean(right) < np.mean(without_order) + 0.1  # the same model, when its frames come in any order
    assert one_frame.rates.symbol > 0.35
    assert one_frame.rates.sequence > 0.9  # one frame shows neither where its shape moves nor what follows
    share, chance = weight_on_the_right_frames(films, testing[:60])
    assert share > 0.75 > chance + 0.2
