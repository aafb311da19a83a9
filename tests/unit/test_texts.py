"""Language models learn from texts: how texts are read, divided, trained on, continued, scored and measured."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from table import EOS, SOS
from test_command_line import run

import regard
from regard.data.counts import CorpusCounts
from regard.data.texts import cut, recognise_texts, stream_texts
from regard.data.trained import TrainedOn
from regard.errors import UserError
from regard.evaluation import Perplexity, perplexities
from regard.results import Scored
from regard.training.assess_texts import beginning

WRAPPED = """It was the best of times, it was the worst
of times, it was the age of wisdom, it was
the age of foolishness.

There were a king with a large jaw and a
queen with a plain face, on the throne of
England.
"""
VERSE = "The king\nsat down to dine\n\nand drank\na cup of wine\nand said no more that day\n"
TEXTS = ["a red cat sat down", "a blue dog ran away", "the old man said no", "the young man said yes", "one fish swam home"]
TINY = {"kind": "decoder_only", "width": 16, "heads": 2, "feed_forward": 24, "layers": 1, "dropout": 0.0, "unit": "words"}


def texts_of(path: Path, contents: str, most: int | None = None) -> tuple[list[str], CorpusCounts]:
    counts = CorpusCounts()
    pairs = list(stream_texts([path], contents, most, counts))  # type: ignore[arg-type]
    assert {pair.source for pair in pairs} == {""}
    return [pair.target for pair in pairs], counts


def train(out: Path | None = None, data: object = TEXTS, **changed: object) -> regard.Translator:
    settings: dict[str, object] = {**TINY, "steps": 4, "learning_rate": 0.01, "batch_tokens": 32, **changed}
    unit = settings.pop("unit")
    return regard.train(data, out, source_unit=unit, target_unit=unit, quiet=True, threads=1, **settings)  # type: ignore[arg-type]


def test_wrapped_lines_are_paragraphs_and_others_are_texts(tmp_path: Path) -> None:
    for name, content, contents in (("book", WRAPPED, "paragraphs"), ("verse", VERSE, "lines")):
        path = tmp_path / f"{name}.txt"
        path.write_text(content)
        assert recognise_texts(path)[0] == contents
    paragraphs, counts = texts_of(tmp_path / "book.txt", "paragraphs")
    assert [text[:26] for text in paragraphs] == ["It was the best of times, ", "There were a king with a l"]
    assert "\n" not in paragraphs[0]
    assert paragraphs[0].endswith("it was the age of foolishness.")
    assert (counts.lines, counts.pairs) == (7, 2)
    lines, counts = texts_of(tmp_path / "verse.txt", "lines")
    assert lines == ["The king", "sat down to dine", "and drank", "a cup of wine", "and said no more that day"]
    assert counts.describe() == "verse.txt: 5 texts in 6 lines."


def test_long_texts_are_cut_after_sentences_and_nothing_is_lost(tmp_path: Path) -> None:
    assert cut("One two. Three four. Five six.", 20) == ["One two. Three four.", "Five six."]
    assert cut("one two three four", 9) == ["one two", "three", "four"]
    assert cut("abcdefgh ij", 3) == ["abc", "def", "gh", "ij"]
    assert cut("", 3) == []
    rng = random.Random(3)
    words = ["".join(rng.choices("abc.", k=rng.randint(1, 9))) for _ in range(200)]
    parts = cut(" ".join(words), 23)
    assert " ".join(parts).split() == words
    assert max(map(len, parts)) <= 23
    (tmp_path / "t.txt").write_text("One two. Three four. Five six.\nSeven.\n")
    texts, counts = texts_of(tmp_path / "t.txt", "lines", 20)
    assert texts == ["One two. Three four.", "Five six.", "Seven."]
    assert counts.describe() == "t.txt: 3 texts in 2 lines. Kept: 1 text of more than 20 characters that was cut."


def test_what_holds_pairs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    for name in ("pairs.tsv", "pairs.txt"):
        (tmp_path / name).write_text("a\tb\nc\td\n")
        with pytest.raises(UserError, match=r"holds pairs, such as 'a\\tb', but this model learns from texts.*cut -f2"):
            train(data=tmp_path / name)
    with pytest.raises(UserError, match="holds pairs"):
        train(data=[("a", "b"), ("c", "d")])
    with pytest.raises(UserError, match="got 2 files, expected one file of texts"):
        train(data=(tmp_path / "texts.txt", tmp_path / "pairs.tsv"))
    with pytest.raises(UserError, match=r"learns from texts, but data.contents is pairs"):
        train(contents="pairs")
    with pytest.raises(UserError, match=r"row 1 of the data is 'a red cat sat down'; expected pairs"):
        regard.train(TEXTS, quiet=True)
    with pytest.raises(UserError, match=r"kind=rnn learns from pairs, but data.contents is lines; set model.kind=decoder_only"):
        regard.train(tmp_path / "texts.txt", kind="rnn", contents="lines", quiet=True)
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(UserError, match=r"empty.txt: expected texts, found only blank lines \(2\)"):
        train(data=tmp_path / "empty.txt")
    with pytest.raises(UserError, match=r"train.metric is symbol_error_rate, which compares outputs with references"):
        train(metric="symbol_error_rate")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["decoder_only", "rnn_lm"])
def test_a_language_model_learns_to_continue_the_lines_of_a_file(kind: str, tmp_path: Path) -> None:  # SPEC A7.6
    (tmp_path / "book.txt").write_text("".join(f"{text}\n" for text in TEXTS) * 3)
    sizes = {"heads": 2, "feed_forward": 48, "layers": 2} if kind == "decoder_only" else {"embedding": 16}
    model = regard.train(
        tmp_path / "book.txt",
        tmp_path / "model",
        held_out=tmp_path / "book.txt",
        kind=kind,
        width=32,
        dropout=0.0,
        target_unit="characters",
        steps=150,
        learning_rate=0.01,
        quiet=True,
        threads=1,
        **sizes,  # type: ignore[arg-type]
    )
    model = regard.load(tmp_path / "model")
    assert [result.text for result in model.batch(["a red", "the y", "one"])] == [TEXTS[0], TEXTS[3], TEXTS[4]]
    sampled = model("a", sample=True, temperature=0.5, seed=1)
    assert sampled.text in TEXTS[:2]
    alone, *_ = model.score([""], [sampled.text])
    assert alone.log_prob == pytest.approx(model.score(["a"], [sampled.text])[0].log_prob)
    assert model.training["perplexity_per_character"] < 1.2
    assert model.training["settings"]["data"]["contents"] == "lines"


def log_prob_by_hand(model: regard.Translator, text: str) -> float:
    """Σ log p(token | those before), by softmax over the logits of the forward pass, one token after the other."""
    ids, total = [SOS, *model.target.encode(text)], 0.0
    for number, token in enumerate([*ids[1:], EOS], start=1):
        logits = model.model(None, torch.tensor([ids[:number]]))[0, -1]
        total += F.log_softmax(logits, -1)[token].item()
    return total


def test_perplexity_is_that_of_the_forward_pass(tmp_path: Path) -> None:
    model = train(tmp_path / "m")
    texts = ["a red dog said no", "the cat swam"]
    (tmp_path / "test.txt").write_text("\n".join(texts))
    nll = -sum(log_prob_by_hand(model, text) for text in texts)
    sizes = {"token": 8 + 2, "word": 8 + 2, "character": sum(map(len, texts)) + 2}
    out = run("evaluate", f"{tmp_path}/m", f"{tmp_path}/test.txt", "--threads", "1").out
    for name, size in sizes.items():
        (line,) = (line for line in out.splitlines() if line.startswith(f"perplexity/{name} "))
        assert float(line.split()[1]) == pytest.approx(math.exp(nll / size), abs=0.006)
    assert "data:test.txt:" in out.splitlines()[-1]
    assert "the end of each text is a token, a word and a character, too" in out.splitlines()[-1]
    scored = run("score", f"{tmp_path}/m", f"{tmp_path}/test.txt", "--threads", "1")
    assert sum(float(line.split("\t")[0]) for line in scored.out.splitlines()) == pytest.approx(-nll, abs=1e-4)
    refused = run("evaluate", f"{tmp_path}/m", f"{tmp_path}/test.txt", "--outputs")
    assert "this one learns from texts" in refused.err


def test_perplexity_with_two_systems_is_paired() -> None:
    texts = ["ab", "c d e", "f"]
    measures = perplexities(texts, [[-1.0, -2.0, -3.0], [-2.0, -3.0, -4.0]], [[2, 3, 1], [2, 3, 1]])
    assert [measure.value for measure in measures] == pytest.approx([math.exp(6 / n) for n in (6, 2 + 4 + 2, 3 + 6 + 2)])
    assert all(measure.p_value is not None and measure.low <= measure.value <= measure.high for measure in measures)
    whole = Perplexity.of(6.0, 6, texts)
    assert (whole.per_token, whole.per_word, whole.per_character) == pytest.approx([m.value for m in measures])


def test_held_out_texts_are_not_trained_on(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(60)]
    model = train(tmp_path / "m", texts, steps=1, batch_tokens=10_000, unit="characters")
    trained = TrainedOn.from_facts(model.training)
    assert trained.sources is not None
    seen = {text for text in texts if trained.sources.describe_seen([text])}
    assert 0 < len(texts) - len(seen) < 12
    assert model.training["texts"] == len(texts) - len(seen)


def test_the_beginning_of_a_text_is_a_quarter_of_its_words() -> None:
    assert beginning("one two three four five six seven eight") == "one two"
    assert beginning("one two three") == "one"
    assert beginning("seven") == "sev"


def weights(model: regard.Translator) -> dict[str, torch.Tensor]:
    return dict(model.model.state_dict())


def test_a_run_on_texts_continues_exactly(tmp_path: Path) -> None:
    """Law 6, with dropout and subword dropout."""
    (tmp_path / "book.txt").write_text("\n".join(TEXTS * 4))
    settings = {"unit": "bpe", "dropout": 0.2, "subword_dropout": 0.1, "steps": 6, "data": tmp_path / "book.txt"}
    whole = train(tmp_path / "whole", **settings)
    stopped = train(tmp_path / "parts", **settings, on_update=lambda update: update.number < 2)
    assert any(not torch.equal(one, weights(whole)[name]) for name, one in weights(stopped).items())
    continued = train(tmp_path / "parts", **settings)
    assert all(torch.equal(one, weights(whole)[name]) for name, one in weights(continued).items())


def test_batches_of_texts(tmp_path: Path) -> None:
    sizes = {name: value for name, value in TINY.items() if name not in ("kind", "unit")}
    model = regard.build("decoder_only", TEXTS, target_unit="words", **sizes)
    (batch,) = regard.batches(model, TEXTS, batch_tokens=1000)
    read = {model.target.decode(row[row > EOS].tolist()) for row in batch.target_in_BT}
    assert read == set(TEXTS)
    (tmp_path / "t.txt").write_text("\n".join(TEXTS))
    (again,) = regard.batches(model, tmp_path / "t.txt", batch_tokens=1000)
    assert torch.equal(batch.target_out_BT, again.target_out_BT)


def test_scores_do_not_depend_on_the_batch() -> None:
    model = train(steps=1)
    model.model.double()
    together = model.score([""] * 5, TEXTS)
    for text, scored in zip(TEXTS, together, strict=True):
        assert isinstance(scored, Scored)
        assert scored.log_prob == pytest.approx(model.score([""], [text])[0].log_prob, abs=1e-12)
        assert scored.log_prob == pytest.approx(log_prob_by_hand(model, text), abs=1e-9)
