"""Laws 3 and 4 for trained models, through the interface that users call: the output for a word does not depend on which other
words are in its batch, or how many."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from table import MODELS, TIES, has_cross, looks_ahead, reads_source

from regard.data.corpus import Pair
from regard.data.dictionary import pronunciations
from regard.decoding import schedule
from regard.models.build import build
from regard.pipeline import Translator
from regard.results import Result
from regard.training.data import in_memory
from regard.training.learner import Learner
from regard.training.loop import Update, train
from regard.training.settings import DataSettings, TrainSettings

pytestmark = pytest.mark.slow
SIZES = 1, 2, 7, 64
NEAR = 1e-4
"""Candidates whose scores differ by less may swap ranks in float32."""


class Losses:
    """Training callbacks that only record the loss."""

    interrupted = False

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_update(self, update: Update) -> None:
        self.values.append(update.loss)

    def validate(self) -> float:
        return 0.0

    def save_best(self) -> None: ...

    def checkpoint(self) -> None: ...


@cache
def words() -> list[Pair]:
    """Short words only: the location score of the table supports eleven positions."""
    every = pronunciations("dev")
    return [pair for pair in every if len(pair.source) <= 9 and len(pair.target.split()) <= 9][:664]


@cache
def trained(name: str) -> Translator:
    training_data = in_memory("words", words()[:600], [], DataSettings(target_unit="symbols"))
    settings = TrainSettings(steps=80, batch_tokens=512, learning_rate=1e-2)
    torch.manual_seed(1)
    model = build(MODELS[name], *map(len, training_data.codecs))
    losses = Losses()
    train(Learner(model, settings), training_data.batches(settings, 0.0, 1), settings, seed=1, callbacks=losses)
    assert sum(losses.values[-5:]) < 0.95 * sum(losses.values[5:10])  # the loss fell; the first updates have no baseline yet
    return Translator.of_model(model.eval(), *training_data.codecs)


def in_batches(translator: Translator, beam: int, size: int, monkeypatch: pytest.MonkeyPatch) -> list[Result]:
    monkeypatch.setattr(schedule, "BATCH_HYPOTHESES", size * beam)
    pairs = words()[600:] if size > 2 else words()[600:612]  # small batches are slow
    return translator.batch([pair.source for pair in pairs], beam=beam, max_length=10)


@pytest.mark.parametrize("beam", [1, 5])
@pytest.mark.parametrize("name", [name for name in MODELS if reads_source(name) and name not in TIES])
def test_laws_3_and_4_hold_for_trained_models(name: str, beam: int, monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC A7.5
    translator = trained(name)
    translator.model.double()
    exact = {size: in_batches(translator, beam, size, monkeypatch) for size in SIZES}
    for size in SIZES:
        for result, expected in zip(exact[size], exact[64], strict=False):
            assert result.tokens == expected.tokens
            assert result.log_prob == pytest.approx(expected.log_prob, abs=1e-9)
    if beam == 1 and has_cross(name):
        assert len({result.text for result in exact[64]}) > 1  # the outputs depend on the source

    sources, texts = [pair.source for pair in words()[600:]], [result.text for result in exact[64]]
    for scored, result in zip(translator.score(sources, texts), exact[64], strict=True):
        if result.finished and result.tokens and not looks_ahead(name):
            assert scored.log_prob == pytest.approx(result.log_prob, abs=1e-9)

    translator.model.float()
    rough = {size: in_batches(translator, beam, size, monkeypatch) for size in SIZES}
    num_different = 0
    for size in SIZES:
        for result, expected in zip(rough[size], rough[64], strict=False):
            num_different += result.tokens != expected.tokens
            assert result.log_prob == pytest.approx(expected.log_prob, abs=NEAR)
            assert result.rank_score == pytest.approx(expected.rank_score, abs=NEAR)
    print(f"{name}, beam {beam}: {num_different} outputs differ in float32, all between candidates within {NEAR}")
