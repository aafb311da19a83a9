"""The assessment at the end of training: whether the model is good, and what would help."""

import io
import json
import math
import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from regard.data.batch import Example
from regard.data.corpus import Pair
from regard.data.dictionary import pronunciations
from regard.data.tokenizers.codec import Codec
from regard.models.rnn_seq2seq import RnnSettings
from regard.training import assess as assessing
from regard.training.assess import Advice, Assessment, Figures, Losses, advise, most_frequent, next_step, wilson
from regard.training.callbacks import RunCallbacks
from regard.training.data import in_memory
from regard.training.run import Trained, run
from regard.training.run_folder import RunFolder
from regard.training.settings import DataSettings, RunSettings, StartSettings, TrainSettings
from regard.training.survey import survey
from regard.training.tokenise import from_files

CPU = torch.device("cpu")
NEAR, FAR = (0.9, 1.0), (0.4, 1.0)
"""Losses on training pairs and on held-out pairs."""


# --- the curves --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("curve", "losses", "passes", "right", "what", "reason"),
    [
        ([3, 2, 1.5, 1.2, 1.1, 1.06, 1.03, 1.0], NEAR, 20, 0.3, "updates", "still falling"),
        ([3, 2, 1.5, 1.2, 1.1, 1.06, 1.03, 1.0], FAR, 20, 0.3, "data", "0.40 on training pairs, but 1.00"),
        ([3, 2.5, 2.2, 1.9, 1.6, 1.4, 1.2, 1.0], FAR, 20, 0.3, "updates", "still falling"),
        ([3, 2, 1.0, 1.0, 1.1, 1.3, 1.5, 1.6], FAR, 20, 0.3, "data", "rose again"),
        ([3, 2, 1.0, 1.0, 1.1, 1.3, 1.5, 1.6], NEAR, 20, 0.3, "data", "rose again"),
        ([3, 2, 1.4, 1.1, 1.02, 1.01, 1.0, 1.0], NEAR, 20, 0.3, "size", "stopped falling"),
        ([3, 2, 1.4, 1.1, 1.02, 1.01, 1.0, 1.01], NEAR, 20, 0.3, "size", "stopped falling"),
        ([3, 2, 1.4, 1.1, 1.02, 1.01, 1.0, 1.0], NEAR, 1.7, 0.3, "updates", "only 1.7 passes"),
        ([3, 2, 1.4, 1.1, 1.02, 1.01, 1.0, 1.0], NEAR, 20, 0.99, "enough", "99.0%"),
        ([0.02, 0.01, 0.005, 0.01], (0.001, 0.01), 20, 0.999, "enough", "99.9%"),
        ([], NEAR, 20, 0.3, "unknown", "no validations were made"),
        ([1.0], NEAR, 20, 0.3, "unknown", "only 1 validation was made"),
        ([3.0, 2.0, 1.0], NEAR, 20, 0.3, "unknown", "only 3 validations were made"),
        ([], FAR, 20, 0.3, "data", "0.40 on training pairs"),
        ([], NEAR, 0.5, 0.3, "updates", "only 0.5 passes"),
        ([0.1, 0.06, 0.051, 0.05, 0.05, 0.05, 0.05, 0.05], (0.01, 0.05), 20, 0.9, "size", "stopped falling"),
    ],
)
def test_advice_follows_from_the_curves(
    curve: list[float], losses: tuple[float, float], passes: float, right: float, what: str, reason: str
) -> None:
    advice = advise(curve, Losses(*losses), passes, right)
    assert advice.what == what
    assert reason in advice.reason


def test_every_advice_suggests_a_next_step() -> None:
    settings = RunSettings(model=RnnSettings(width=64, dropout=0.25), train=TrainSettings(steps=300))
    continued = RunSettings(model=settings.model, train=settings.train, start=StartSettings(model="parent"))
    kinds = ("updates", "data", "size", "enough", "unknown")
    steps = {what: next_step(Advice(what, "so it is"), settings) for what in kinds}  # type: ignore[arg-type]
    assert steps == {
        "updates": "More updates would probably help: so it is. "
        "Run the same command with --set train.steps=600 and a different --out.",
        "data": "More pairs would probably help, or more dropout (model.dropout is 0.25): so it is.",
        "size": "More updates would change little: so it is. Try a larger model (--set model.width=128) or other data.",
        "enough": "There is little left to gain.",
        "unknown": "It is unclear whether more updates would help: so it is. "
        "Use --set train.validate_every=37 to validate often enough.",
    }
    assert next_step(Advice("size", "so it is"), continued) == "More updates would change little: so it is. Try other data."
    assert next_step(Advice("data", "so it is"), continued) == "More pairs would probably help: so it is."


# --- the grade ---------------------------------------------------------------------------------------------------------------


def assessment(model: Figures, guess: Figures, number: int = 1000, *, sentences: bool = False) -> Assessment:
    advice = Advice("size", "")
    return Assessment(number, sentences, model, guess, "copying the source", Losses(1, 1), advice, "Next.")


@pytest.mark.parametrize(
    ("model", "guess", "number", "grade"),
    [
        ((0.95, 0.01), (0.1, 0.5), 1000, "Yes"),
        ((0.7, 0.1), (0.1, 0.5), 1000, "Mostly"),
        ((0.4, 0.3), (0.1, 0.5), 1000, "Partly"),
        ((0.05, 0.4), (0.0, 0.9), 1000, "Not yet"),
        ((0.95, 0.01), (0.95, 0.01), 1000, "No, a trivial guess is about as good"),
        ((0.84, 0.06), (0.85, 0.05), 1000, "No, a trivial guess is about as good"),
        ((0.0, 2.8), (0.0, 0.9), 1000, "No, a trivial guess is about as good"),
        ((0.97, 0.01), (0.95, 0.01), 1000, "Yes"),
        ((0.6, 0.1), (0.0, 0.9), 5, "Too few sources to judge"),
        ((0.0, 1.0), (0.0, 0.9), 1, "Too few sources to judge"),
    ],
)
def test_the_verdict_compares_the_model_with_a_trivial_guess(model: Any, guess: Any, number: int, grade: str) -> None:
    verdict = assessment(Figures(*model), Figures(*guess), number).verdict
    assert verdict.startswith(f"Is this good? {grade}: {model[0]:.1%} of {number:,} held-out source")
    assert verdict.endswith(f"; a trivial guess (copying the source) gets {guess[0]:.1%}.")


@pytest.mark.parametrize(
    ("model", "guess", "grade"),
    [
        (
            Figures(0.01, 0.5, 75),
            Figures(0, 0.9, 20),
            "Yes: chrF 75.0 of 100 on 1,000 held-out sources, 1.0% exactly right",
        ),
        (Figures(0.01, 0.5, 41), Figures(0, 0.9, 20), "Partly: chrF 41.0 of 100"),
        (Figures(0.01, 0.5, 21), Figures(0, 0.9, 20), "No, a trivial guess is about as good: chrF 21.0 of 100"),
        (Figures(0.01, 0.2), Figures(0, 0.9), "Mostly: symbol error rate 20.0% on 1,000 held-out sources"),
        (Figures(0.01, 0.85), Figures(0, 0.9), "No, a trivial guess is about as good: symbol error rate 85.0%"),
    ],
)
def test_sentences_need_not_be_exactly_right(model: Figures, guess: Figures, grade: str) -> None:
    assert assessment(model, guess, sentences=True).verdict.startswith(f"Is this good? {grade}")


def test_the_interval_is_wilsons() -> None:
    """Compared with the equation |p − share| = z √(p (1 − p) / n), whose roots are its ends, and with a published value."""
    assert wilson(0.5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    for share, number in ((0.0, 7), (1.0, 7), (0.3, 41), (0.716, 2000)):
        low, high = wilson(share, number)
        assert 0 <= low <= share <= high <= 1
        for end in (low, high):
            if 1e-9 < end < 1 - 1e-9:
                assert abs(end - share) == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / number), rel=1e-6)


# --- training runs -----------------------------------------------------------------------------------------------------------


def trained_on(training: list[Pair], held_out: list[Pair], unit: Any = "symbols", **train: Any) -> Trained:
    settings = RunSettings(
        data=DataSettings(target_unit=unit),
        model=RnnSettings(width=48, embedding=24, score_width=24, dropout=0.0),
        train=TrainSettings(batch_tokens=512, **{"learning_rate": 1e-2, **train}),
    )
    training_data = in_memory("words", training, held_out, settings.data)
    return run(training_data, settings, Console(file=io.StringIO()), CPU)


def test_trivial_guesses_are_measured_on_held_out_pairs() -> None:
    """One guess copies the source without features; the other always writes the most frequent training target."""
    same = [Pair(f"{word}\tV", word) for word in ("ab", "ba", "aab")]
    copied = trained_on([*same, Pair("b\tV", "bb")], [Pair("bba\tV", "bba"), Pair("aa\tV", "ab")], "characters", steps=1)
    assert copied.assessment.guess_name == "copying the source"
    assert copied.assessment.guess == Figures(0.5, pytest.approx(1 / 5))
    often = [Pair("ab", "X"), Pair("ba", "Y"), Pair("bb", "Y"), Pair("aa", "Z")]
    constant = trained_on(often, [Pair("bab", "Y"), Pair("bab", "X"), Pair("aab", "Z Z"), Pair("bbb", "Y")], steps=1)
    assert constant.assessment.guess_name == "always writing 'Y'"
    assert constant.assessment.guess == Figures(pytest.approx(2 / 3), pytest.approx(2 / 4))
    unknown = trained_on(often, [Pair("Å", "Ä"), Pair("bab", "X")], steps=1)
    assert unknown.assessment.guess.right == 0, "two unknown symbols do not count as equal"


def test_the_most_frequent_target_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = Codec.train(["A B", "C"], "symbols")
    examples = [Example([1], codec.encode(text)) for text in ["A B", "C"] * 50]
    assert most_frequent(examples, codec) == most_frequent(examples[::-1], codec), "the order does not matter"
    monkeypatch.setattr(assessing, "MOST_COUNTED", 50)
    assert most_frequent(examples, codec) == "A B", "only every second example is counted"


def spelled(number: int) -> list[Pair]:
    words = list(dict.fromkeys(pair.source for pair in pronunciations("dev")))
    random.Random(1).shuffle(words)
    return [Pair(word, " ".join(word.upper())) for word in words[:number]]


@pytest.mark.slow
def test_the_assessments_of_real_trainings_are_plausible() -> None:
    sounds = list(pronunciations("dev"))
    random.Random(1).shuffle(sounds)
    short = trained_on(sounds[:1000], sounds[1000:1100], steps=40, validate_every=5).assessment
    assert short.advice.what == "updates"
    assert short.verdict.startswith(("Is this good? No", "Is this good? Not yet"))
    assert "--set train.steps=80 and a different --out" in str(short)

    memorised = trained_on(sounds[:60], sounds[1000:1100], steps=240, validate_every=30).assessment
    assert memorised.advice.what == "data"
    assert "rose again" in memorised.advice.reason
    without_a_curve = trained_on(sounds[:60], sounds[1000:1100], steps=240).assessment
    assert without_a_curve.advice.what == "data"
    assert without_a_curve.losses.training < 0.2 < 1 < without_a_curve.losses.held_out

    pairs = spelled(1200)
    good = trained_on(pairs[:1100], pairs[1100:], steps=400, validate_every=50).assessment
    assert good.verdict.startswith(("Is this good? Yes: ", "Is this good? Mostly: "))
    assert good.guess.right == 0
    assert len(str(good).splitlines()) == 2


def test_sentences_are_measured_by_chrf_and_without_sacrebleu_by_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [Pair(f"the cat sat on mat {n}", f"die Katze sass auf Matte {n}") for n in range(40)]
    found = trained_on(pairs[20:], pairs[:20], "words", steps=30).assessment
    assert found.sentences
    assert found.model.chrf is not None
    assert "chrF" in found.verdict
    assert {"chrf", "guess_chrf"} <= found.facts().keys()
    monkeypatch.setattr(assessing, "can_use_sacrebleu", lambda: False)
    found = trained_on(pairs[20:], pairs[:20], "words", steps=1).assessment
    assert found.model.chrf is None
    assert "symbol error rate" in found.verdict


# --- the log and the card ----------------------------------------------------------------------------------------------------


def settings_for(folder: Path) -> RunSettings:
    (folder / "words.tsv").write_text("".join("\t".join(pair) + "\n" for pair in spelled(120)))
    return RunSettings(
        data=DataSettings(target_unit="symbols", files=(str(folder / "words.tsv"),), held_out=0.2),
        model=RnnSettings(width=8, embedding=4, score_width=4, dropout=0.1),
        train=TrainSettings(batch_tokens=128, steps=12, validate_every=2, checkpoint_every=3, average=2),
    )


def run_in(folder: Path, settings: RunSettings) -> Trained:
    console = Console(file=io.StringIO())
    training_data = from_files(settings.data, survey(settings.data), folder, console)
    with closing(RunFolder(folder)) as run_folder:
        return run(training_data, settings, console, CPU, run_folder=run_folder)


def logged(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "time"} for line in lines]


@pytest.mark.parametrize("stop", ["in the middle", "in the last validation", "at the very end"])
def test_a_resumed_run_gets_the_same_assessment(stop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # law 6
    settings = settings_for(tmp_path)
    monkeypatch.setattr(assessing, "FEW_PASSES", 0)  # so that only the curve decides
    whole = run_in(tmp_path / "whole", settings)
    assert whole.assessment.advice.what != "unknown"
    assert [line["result"] for line in logged(tmp_path / "whole") if "result" in line] == [whole.assessment.facts()]

    def stopping(callbacks: RunCallbacks, which: str = "") -> float:
        value = validate(callbacks, which)
        if which or (callbacks.learner.state.update == 8 and stop == "in the middle"):
            raise KeyboardInterrupt
        return value

    validate = RunCallbacks.validate
    if stop == "at the very end":
        run_in(tmp_path / "stopped", settings)
    else:
        monkeypatch.setattr(RunCallbacks, "validate", stopping)
        with pytest.raises(KeyboardInterrupt):
            run_in(tmp_path / "stopped", settings)
        monkeypatch.setattr(RunCallbacks, "validate", validate)
    again = run_in(tmp_path / "stopped", settings)
    assert again.assessment == whole.assessment
    assert again.saved.card == whole.saved.card
    assert logged(tmp_path / "stopped") == logged(tmp_path / "whole")


def test_the_card_contains_the_facts_without_the_verdict(tmp_path: Path) -> None:
    trained = run_in(tmp_path / "run", settings_for(tmp_path))
    facts = trained.assessment
    assert f"- Exactly right: {facts.model.right:.1%} of {facts.num_sources} sources (95% interval " in trained.saved.card
    assert f"- A trivial guess ({facts.guess_name}): {facts.guess.right:.1%} exactly right, symbol error" in trained.saved.card
    assert f"- Loss per token: {facts.losses.training:.4f} on training pairs, {facts.losses.held_out:.4f}" in trained.saved.card
    assert "Is this good" not in trained.saved.card
