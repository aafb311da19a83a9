"""Models that read sound learn to transcribe synthetic tones as letters; no external data is needed."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from tones import LETTERS, make_words, write_words

from regard.data.corpus import Pair
from regard.models.rnn_seq2seq import RnnSettings
from regard.training.data import in_memory
from regard.training.run import Trained, run
from regard.training.settings import DataSettings, RunSettings, TrainSettings

SEED = 3


def learn(folder: Path, pairs: list[Pair], columns: tuple[str, ...], steps: int) -> Trained:
    """Trains on all but the first hundred pairs, which are held out. Fewer than a thousand would be memorised (docs/LOG.md)."""
    settings = RunSettings(
        seed=SEED,
        data=DataSettings(source_columns=columns, source_unit="sound", target_unit="symbols"),
        model=RnnSettings(frontend="sound", width=64, embedding=64, channels=8, dropout=0.1),
        train=TrainSettings(steps=steps, batch_tokens=512, learning_rate=4e-3),
    )
    training_data = in_memory("tones", pairs[100:], pairs[:100], settings.data, root=folder)
    return run(training_data, settings, Console(quiet=True), torch.device("cpu"))


def learn_letters(folder: Path, steps: int) -> Trained:
    return learn(folder, [Pair(*pair) for pair in write_words(folder, make_words(1500, 3))], (), steps)


@pytest.mark.slow
def test_attention_moves_from_tone_to_tone(tmp_path: Path) -> None:  # SPEC A8.4
    """Nine of ten words are correct, and attention moves from letter to letter; untrained, next to nothing is correct."""
    before, after = learn_letters(tmp_path, 1), learn_letters(tmp_path, 400)
    assert before.rates.sequence > 0.9
    assert after.rates.num_sentences == 100
    assert after.rates.sequence < 0.1
    right = [prediction for prediction in after.predictions if prediction.right and len(prediction.result.tokens) > 1]
    forwards = 0
    for prediction in right:
        weights_TS = prediction.result.attention().mean_TS[: len(prediction.result.tokens)]
        centres_T = weights_TS @ np.arange(weights_TS.shape[1])
        forwards += bool((np.diff(centres_T) > 0).all())
    assert len(right) > 50
    assert forwards / len(right) > 0.9


ORDERS = {"forwards": 1, "from the end": -1}


def learn_orders(folder: Path, steps: int) -> tuple[Trained, list[tuple[str, str]]]:
    """Trains on tones with an instruction, which says in which order to write the letters.

    Returns the trained model and the held-out pairs (file name, letters).
    """
    rng = random.Random(SEED)
    words = ["".join(rng.sample(LETTERS, rng.randint(2, 3))) for _ in range(2500)]
    files = write_words(folder, words)
    pairs = []
    for name, letters in files:
        how = rng.choice(list(ORDERS))
        pairs.append(Pair((name, how), " ".join(letters.split()[:: ORDERS[how]])))
    return learn(folder, pairs, ("audio", "how"), steps), files[:100]


@pytest.mark.slow
def test_an_instruction_as_auxiliary_text_is_followed(tmp_path: Path) -> None:  # SPEC A6.4
    """Nine of ten are correct, and the other instruction reverses the output. Without the instruction at most half are correct,
    without the sound next to none."""
    trained, held_out = learn_orders(tmp_path, 700)
    assert trained.rates.sequence < 0.1

    def right(how: str, order: int, *, sound: bool = True) -> float:
        outputs = trained.translator.batch([(name if sound else "", how) for name, _ in held_out])
        return (
            sum(output.tokens == tuple(text.split()[::order]) for output, (_, text) in zip(outputs, held_out, strict=True))
            / 100
        )

    for how, order in ORDERS.items():
        assert right(how, order) > 0.85
        assert right(how, -order) < 0.1
        assert right(how, order, sound=False) < 0.1
    assert right("", 1) + right("", -1) <= 1
    weights_HSU = trained.predictions[0].result.attention("fusion").weights_HTS
    name, how = trained.predictions[0].source
    assert (Path(name).suffix, weights_HSU.shape[2]) == (".wav", len(how.split()) + 1)
