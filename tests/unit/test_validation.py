"""Measurements during a run, and the messages that report them."""

import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from regard.data.batch import Example
from regard.data.corpus import Pair
from regard.data.tokenizers.codec import Codec
from regard.errors import UserError
from regard.models.contract import ModelSettings
from regard.models.decoder_only import DecoderOnlySettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import TransformerSettings
from regard.results import Result
from regard.training import validation
from regard.training.data import HeldOut, in_memory
from regard.training.run import Trained, run
from regard.training.settings import DataSettings, RunSettings, TrainSettings
from regard.training.survey import survey
from regard.training.tokenise import from_files
from regard.training.validation import Prediction

CPU = torch.device("cpu")
VALIDATED = {"steps": 4, "validate_every": 2, "metric": "symbol_error_rate"}


def words(number: int) -> list[Pair]:
    """Different words, "aaab" and so on, each paired with its letters in capitals."""
    texts = ("".join("abcd"[n // 4**digit % 4] for digit in (3, 2, 1, 0)) for n in range(number))
    return [Pair(text, " ".join(text.upper())) for text in texts]


def train_on(
    training: list[Pair], held_out: list[Pair], model: Any = None, console: Console | None = None, **train: Any
) -> tuple[str, Trained]:
    """Returns the console output and the trained model."""
    settings = RunSettings(
        data=DataSettings(target_unit="symbols"),
        model=model or RnnSettings(width=8, embedding=4, score_width=4, dropout=0.0),
        train=TrainSettings(batch_tokens=256, **{"learning_rate": 2e-2, "steps": 2, **train}),
    )
    console = console or Console(file=io.StringIO(), width=300)
    trained = run(in_memory("words", training, held_out, settings.data), settings, console, CPU)
    return console.file.getvalue(), trained  # type: ignore[attr-defined]


# --- the sample --------------------------------------------------------------------------------------------------------------


def test_a_sample_depends_on_the_seed_and_the_sources_but_not_on_their_order() -> None:
    pairs = [*words(100), *(Pair(one.source, "X") for one in words(50))]

    def sample_of(pairs: list[Pair], number: int, seed: int) -> Sequence[Pair]:
        sample = HeldOut(pairs, [Example([], [*map(ord, pair.source)]) for pair in pairs]).sample(number, seed)
        assert ["".join(map(chr, example.target)) for example in sample.examples] == [pair.source for pair in sample.pairs]
        return sample.pairs

    chosen = sample_of(pairs, 20, seed=1)
    assert len({pair.source for pair in chosen}) == 20
    from_reversed = sample_of(pairs[::-1], 20, seed=1)
    assert set(from_reversed) == set(chosen)
    assert list(dict(from_reversed)) == list(dict(chosen))
    assert {pair.source for pair in sample_of(pairs, 20, seed=2)} != {pair.source for pair in chosen}
    assert {pair.source for pair in chosen} != {pair.source for pair in pairs[:20]}
    for source in {pair.source for pair in chosen}:
        assert {pair for pair in chosen if pair.source == source} == {pair for pair in pairs if pair.source == source}
    assert set(sample_of(pairs, 500, seed=1)) == set(pairs)


def test_a_validation_reports_that_its_metric_is_that_of_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each validation uses the same sample; the loss is that of all held-out pairs."""
    monkeypatch.setattr(validation, "MOST_DECODED", 30)
    pairs, decoded = words(140), []
    plain = validation.predict

    def predict(translator: Any, held_out: HeldOut, *others: Any) -> Any:
        decoded.append([pair.source for pair in held_out.pairs])
        return plain(translator, held_out, *others)

    monkeypatch.setattr(validation, "predict", predict)
    printed, _ = train_on(pairs[40:], pairs[:40], steps=4, validate_every=2, metric="symbol_error_rate")
    assert decoded[0] == decoded[1] != [pair.source for pair in pairs[:30]]
    assert [len(sources) for sources in decoded] == [30, 30, 40]
    found = re.findall(
        r"validation after update \d+: loss \d\.\d{4}; on a sample of 30 of 40 held-out sources: "
        r"symbol error rate \d+\.\d\d%, sequence error rate \d+\.\d\d%\n",
        printed,
    )
    assert len(found) == 2, printed


def test_a_validation_on_everything_mentions_no_sample() -> None:
    printed, _ = train_on(words(100)[20:], words(20), validate_every=2, metric="bleu")
    assert "sample" not in printed
    assert re.search(
        r"update 2: loss \d\.\d{4}, symbol error rate \d+\.\d\d%, sequence error rate \d+\.\d\d%, BLEU \d+\.\d\d\n", printed
    )
    assert re.search(r"update 2: loss \d\.\d{4}\n", train_on(words(100)[20:], words(20), validate_every=2)[0])


def test_a_validation_shows_progress_on_a_terminal_only() -> None:
    """It has its own bar, below that of training, which stays."""
    seen = train_on(
        words(100)[20:], words(20), console=Console(file=io.StringIO(), force_terminal=True, width=120), **VALIDATED
    )[0]
    assert seen.count("validation after update") == 2
    for what in ("training", "computing the held-out loss", "translating held-out sources", "4/4", "20/20"):
        assert what in seen
    plain = train_on(words(100)[20:], words(20), **VALIDATED)[0]
    assert "computing" not in plain
    assert "translating" not in plain


def test_held_out_targets_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the model is validated; the sources are read again whenever they are translated."""
    counted: Counter[str] = Counter()
    one, many = Codec.encode, Codec.encode_batch

    def encode(codec: Codec, text: str) -> list[int]:
        counted[text] += 1
        return one(codec, text)

    def encode_batch(codec: Codec, texts: Sequence[str]) -> list[list[int]]:
        counted.update(texts)
        return many(codec, texts)

    monkeypatch.setattr(Codec, "encode", encode)
    monkeypatch.setattr(Codec, "encode_batch", encode_batch)
    model = RnnSettings(width=8, embedding=4, score="location", max_positions=12, beyond="error", dropout=0.0)
    printed, _ = train_on(words(100)[20:], words(20), model, **VALIDATED)
    assert printed.count("validation after update") == 2
    assert [counted[pair.target] for pair in words(20)] == [1] * 20


def test_a_prediction_is_one_line_without_control_characters() -> None:
    result = Result("\x1b[2Jb", ("b",), "a", ("a",), -1.0, -1.0, True, (), ())
    line = str(Prediction("a\tV;PST", ("\u202ec", "d"), (("c",), ("d",)), result))
    assert line == r"a [V;PST] -> \x1b[2Jb (expected \u202ec or d)"


# --- counts ------------------------------------------------------------------------------------------------------------------


def test_pairs_and_their_distinct_sources_are_both_counted() -> None:
    held_out = [*words(20), *(Pair(one.source, "X") for one in words(5))]
    printed, trained = train_on(words(100)[20:], held_out)
    assert "80 training pairs, 25 held-out pairs with 20 different sources;" in printed
    assert len(trained.predictions) == 20
    assert "80 training pairs, 20 held-out pairs;" in train_on(words(100)[20:], words(20))[0]


def test_references_that_are_equal_count_once() -> None:
    _, trained = train_on(words(100)[20:], [Pair("cab", "C A B"), Pair("cab", "C A B"), Pair("cab", "K"), Pair("bad", "B")])
    assert trained.predictions[0].references == ("C A B", "K")
    assert len(trained.predictions[0].reference_tokens) == 2
    assert "(expected C A B or K)" in str(trained.predictions[0])
    assert str(trained.predictions[1]).endswith("(expected B)")


NOUNS = "pair update source output token character symbol word file line parameter validation checkpoint reference text weight"


def plurals_of_one(text: str) -> list[str]:
    """Finds counts of one with a plural noun, such as "1 pairs"."""
    nouns = "|".join(f"{noun}s" for noun in NOUNS.split())
    return re.findall(rf"(?<![\d.,/])\b1 (?:[a-z-]+ ){{0,2}}(?:{nouns})\b", text)


def test_counts_of_one_have_a_singular_noun() -> None:
    """The smallest possible run: one update, one training pair, one held-out pair."""
    assert plurals_of_one("1 pairs, 1 updates go, 21 pairs, 1.1 pairs, 1 source characters") == [
        "1 pairs",
        "1 updates",
        "1 source characters",
    ]
    printed, trained = train_on([Pair("a", "A")], [Pair("b", "B")], steps=1, validate_every=1, metric="symbol_error_rate")
    assert not plurals_of_one(printed), printed
    assert not plurals_of_one(trained.saved.card), trained.saved.card
    assert "1 training pair, 1 held-out pair" in printed
    assert "one pass over the data takes 1 update;" in printed


# --- the signature -----------------------------------------------------------------------------------------------------------


def test_the_signature_names_the_file_whose_fingerprint_it_holds(tmp_path: Path) -> None:
    for name, pairs in (("learn.tsv", words(100)[20:]), ("measure.tsv", words(20))):
        (tmp_path / name).write_text("".join("\t".join(pair) + "\n" for pair in pairs))
    settings = RunSettings(
        data=DataSettings(target_unit="symbols", files=(str(tmp_path / "learn.tsv"),)),
        model=RnnSettings(width=8, embedding=4, score_width=4, dropout=0.0),
        train=TrainSettings(batch_tokens=256, steps=1),
    )
    console = Console(file=io.StringIO())
    with_file = DataSettings(**{**vars(settings.data), "held_out_files": (str(tmp_path / "measure.tsv"),)})
    names = {}
    for data in (settings.data, with_file):
        training_data = from_files(data, survey(data), tmp_path / f"run{len(names)}", console)
        trained = run(training_data, settings, console, CPU)
        names[bool(data.held_out_files)] = re.match(r"data:(.*?):[0-9a-f]{6} \| ", trained.signature)[1]  # type: ignore[index]
        assert "- Data: learn.tsv, " in trained.saved.card
    assert names == {False: "learn.tsv", True: "measure.tsv"}


# --- a limited number of positions -------------------------------------------------------------------------------------------


LIMITED = {"width": 16, "heads": 2, "feed_forward": 16, "positions": "learned", "max_positions": 12, "dropout": 0.0}
TRANSFORMER = TransformerSettings(encoder_layers=1, decoder_layers=1, **LIMITED)
LANGUAGE_MODEL = DecoderOnlySettings(layers=1, **LIMITED)


@pytest.mark.parametrize("model", [TRANSFORMER, LANGUAGE_MODEL], ids=lambda model: str(model.kind))
@pytest.mark.parametrize("metric", ["loss", "symbol_error_rate"])
def test_an_endless_output_does_not_stop_the_run(model: ModelSettings, metric: str) -> None:
    """A model with 12 positions writes at most 11 tokens, although twice the longest target is more. A language model writes
    them after the tokens of its source."""
    pairs = [Pair(" ".join(one.source.upper()), "A A A A A A A A") for one in words(60)]
    printed, trained = train_on(pairs[20:], pairs[:20], model, steps=6, validate_every=3, metric=metric, learning_rate=1e-2)
    assert len(re.findall(r"validation after update \d: loss", printed)) == 2
    assert "outputs that did not end and were stopped at 11 tokens: 20 of 20\n" in printed
    assert "search:greedy,max_length=11 |" in trained.signature
    assert {len(prediction.result.tokens) for prediction in trained.predictions} == {11}


@pytest.mark.parametrize("long", [Pair("a" * 12, "A"), Pair("a", " ".join("A" * 12))])
def test_held_out_pairs_that_are_too_long_for_the_model_are_refused_before_training(long: Pair) -> None:
    console = Console(file=io.StringIO())
    settings = RunSettings(data=DataSettings(target_unit="symbols"), model=TRANSFORMER)
    training_data = in_memory("words", words(60)[20:], [*words(20), long], settings.data)
    with pytest.raises(UserError, match=r"^held-out pairs: the input has 13 positions, but .* max_positions=13$"):
        run(training_data, settings, console, CPU)
    assert "update 1/" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_held_out_sources_that_a_language_model_cannot_continue_are_refused_before_training() -> None:
    """It does not train on the sources, so only translating them would show that one is too long."""
    console = Console(file=io.StringIO())
    held_out = [*words(20), Pair(" ".join("A" * 11), "A")]
    with pytest.raises(UserError, match=r"^held-out pairs: a source has 11 tokens, .* or set model\.max_positions=13$"):
        train_on(words(60)[20:], held_out, LANGUAGE_MODEL, console, steps=2, validate_every=1)
    assert "update 1/" not in console.file.getvalue()  # type: ignore[attr-defined]
    train_on(words(60)[20:], held_out, replace(LANGUAGE_MODEL, max_positions=13), steps=2, validate_every=1)


def test_long_held_out_sources_do_not_stop_the_run() -> None:
    """Longer than a translator accepts at once, without a full stop to split them at."""
    _, trained = train_on(words(60)[20:], [Pair("ab" * 600, "A"), Pair("b", "B")], validate_every=2)
    assert len(trained.predictions) == 2
