"""The optional fields of the server's answers, compared with what the model says itself."""

import json
import math
from collections.abc import Iterator
from http.client import HTTPConnection
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from serving import MODEL, Running, serving

from regard import Edit, load
from regard.serving.explanation import leaves_words_out, most_repeated, repeats

MODEL_ITSELF = load(MODEL)
TEXT = "The big dog sees a cat."


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving() as running:
        yield running


def test_nothing_is_explained_unless_asked(server: Running) -> None:
    assert server.translate(TEXT, alignment=False, tokens=None) == {"translatedText": "Das groß hund sieht ein katze."}


def test_alignment_of_a_text_of_several_lines(server: Running) -> None:
    found = server.translate(f"{TEXT}\n  — \nA man and a woman", alignment=True)["alignment"]
    assert found["source"] == [*TEXT.split(), "—", *"A man and a woman".split()]
    assert found["target"] == [*"Das groß hund sieht ein katze. — Ein mann und ein frau".split()]
    first = MODEL_ITSELF(TEXT).alignment(pieces=False)
    second = MODEL_ITSELF("A man and a woman").alignment(pieces=False)
    links = [*first, (6, 6), *((source + 7, target + 7) for source, target in second)]
    assert [(source, target) for source, target, _ in found["links"]] == links
    assert all(0 < score <= 1 for *_, score in found["links"])


def test_tokens_and_their_log_probabilities(server: Running) -> None:
    (tokens,) = server.translate(TEXT, tokens=True)["tokens"]
    result = MODEL_ITSELF(TEXT)
    assert [each["token"] for each in tokens] == [*result.tokens, "<eos>"]
    assert sum(each["log_prob"] for each in tokens) == pytest.approx(result.log_prob, abs=1e-3)


@pytest.mark.parametrize(
    ("given", "of"),
    [
        ("cross.1.0", ("cross", 1, 0)),
        ({"kind": "cross", "layer": 0, "head": 1}, ("cross", 0, 1)),
        ("decoder.0", ("decoder", 0, None)),
        ("encoder", ("encoder", -1, None)),
        (True, ("cross", -1, None)),
    ],
)
def test_attention_of_a_head(server: Running, given: Any, of: tuple[Any, ...]) -> None:
    (found,) = server.translate(TEXT, attention=given)["attention"]
    expected = MODEL_ITSELF(TEXT).attention(*of)
    assert (tuple(found["rows"]), tuple(found["columns"])) == (expected.target, expected.source)
    assert [pytest.approx(row, abs=1e-3) for row in found["weights"]] == expected.mean_TS.tolist()


def test_alternatives_at_a_word_and_a_prefix(server: Running) -> None:
    found = server.translate(TEXT, alternatives_at=2)["alternatives_at"]
    assert found["word"] == "hund"
    best = found["choices"][0]
    assert (best["word"], best["text"]) == ("hund", "Das groß hund sieht ein katze.")
    shares = [choice["probability"] for choice in found["choices"]]
    assert shares == sorted(shares, reverse=True)
    assert len({choice["word"] for choice in found["choices"]}) == len(shares) == 6
    for choice in found["choices"][1:]:
        assert choice["text"].startswith("Das groß")
        if choice["word"] and choice["word"].isalpha():
            again = server.translate(TEXT, prefix=f"Das groß {choice['word']}")["translatedText"]
            assert again == choice["text"] == MODEL_ITSELF(TEXT, prefix=f"Das groß {choice['word']}").text
    (scored,) = MODEL_ITSELF.score([TEXT], ["Das groß hund"])
    assert shares[0] == pytest.approx(math.exp(scored.token_log_probs[2]), abs=1e-3)


def test_heads_that_are_off(server: Running) -> None:
    off = [["cross", layer, head] for layer in (0, 1) for head in (0, 1)]
    expected = MODEL_ITSELF(TEXT, edits=[Edit.off("cross", layer, head) for _, layer, head in off]).text
    assert server.translate(TEXT, heads_off=off)["translatedText"] == expected != MODEL_ITSELF(TEXT).text
    assert server.translate(TEXT, heads_off=[["cross", 0, 0]], alignment=True)["alignment"]["links"]


def test_what_goes_round_in_circles_is_reported(server: Running) -> None:
    assert server.translate(TEXT, repetition=True, coverage=True)["repetition"] is False
    assert [most_repeated(text) for text in ("", "a", "a b a b c", "x a b a b a b", "a a a a", "a b c a b d")] == [
        0,
        1,
        2,
        3,
        4,
        1,
    ]
    assert repeats("the cat", "die die die katze")
    assert not repeats("the cat", "die die katze")
    assert not repeats("very very very good", "sehr sehr sehr gut")
    assert repeats("ha ha ha", "ha ha ha ha ha ha")


def test_coverage_counts_the_words_of_the_source(server: Running) -> None:
    found = server.translate([TEXT, "cat"], coverage=True)["coverage"]
    assert [(each["leaves_out"], each["leaves_source"]) for each in found] == [(False, False)] * 2
    result = MODEL_ITSELF(TEXT)
    mass = result.attention().mean_TS[: len(result.tokens), : len(result.source_tokens)].sum(0)
    words = [*mass[:-2], mass[-2] + mass[-1]]  # the full stop belongs to the last word
    assert found[0]["share"] == pytest.approx(sum(value >= 0.25 for value in words) / 6, abs=1e-3)
    assert found[0]["log_prob"] == pytest.approx(result.log_prob / (len(result.tokens) + 1), abs=1e-3)


def test_an_output_that_leaves_its_source_is_flagged(server: Running) -> None:
    given = {"coverage": True, "prefix": "katze katze katze katze"}
    (found,) = server.translate(["the big dog runs and the small woman sees a red house"], **given)["coverage"]
    assert found["leaves_source"]
    assert found["log_prob"] < -2.6
    assert leaves_words_out(np.array([1.0, 0.2, 0.1, 0.24, 0.9, 2.0]))
    assert not leaves_words_out(np.array([1.0, 0.2, 0.1, 0.25, 0.9, 2.0]))
    assert not leaves_words_out(np.array([0.0, 0.0, 1.0]))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"attention": "cross.x"}, 'expected "cross"'),
        ({"attention": "cross.0.0.0"}, 'expected "cross"'),
        ({"attention": {"kind": "other"}}, 'expected "cross"'),
        ({"attention": {"layer": 0.5}}, 'expected "cross"'),
        ({"attention": []}, "expected true or false"),
        ({"alternatives_at": "x"}, "alternatives_at parameter is not a number"),
        ({"heads_off": "x"}, "heads_off is not a list of at most 64 heads, such as"),
        ({"heads_off": [["cross", 0, 0]] * 65}, "heads_off is not a list"),
        ({"heads_off": [["cross", 0]]}, "heads_off is not a list"),
        ({"heads_off": [["cross", True, 0]]}, "heads_off is not a list"),
        ({"beam": 17}, "beam parameter must be <= 16"),
        ({"tokens": "maybe"}, "tokens parameter is 'maybe', expected true or false"),
        ({"coverage": {}}, "coverage parameter is {}, expected true or false"),
        ({"prefix": 5}, "prefix parameter is 5, expected a text"),
        ({"api_key": 5}, "api_key parameter is 5, expected a text"),
        ({"format": 0}, "0 format is not supported"),
    ],
)
@pytest.mark.parametrize("target", ["de", "en"])
def test_mistakes(server: Running, given: dict[str, Any], error: str, target: str) -> None:
    answer = server.post("/translate", {"q": TEXT, "source": "en", "target": target, **given})
    assert answer.status == 400, answer.body
    assert error in answer.json["error"]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"attention": "fusion"}, "no fusion attention"),
        ({"attention": "cross.9"}, "layer"),
        ({"alternatives_at": 9}, "alternatives_at is 9, but the output has 6 words"),
        ({"alternatives_at": 0, "q": "cat\ndog"}, "one sentence, but this text has 2"),
        ({"prefix": "Das", "q": "cat\ndog"}, "a prefix is for one sentence"),
        ({"prefix": "qqq"}, "the prefix 'qqq' contains symbols"),
        ({"heads_off": [["cross", 7, 0]]}, "layer"),
    ],
)
def test_what_does_not_fit_the_model_or_the_text(server: Running, given: dict[str, Any], error: str) -> None:
    answer = server.post("/translate", {"q": TEXT, "source": "en", "target": "de", **given})
    assert answer.status == 409, answer.body
    assert error in answer.json["error"]


def events(server: Running, given: Any) -> tuple[int, list[tuple[str, Any]]]:
    """Returns the status and the (name, data) of server-sent events."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    connection.request("POST", "/translate", json.dumps(given), headers)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    if response.status != 200:
        return response.status, [("", json.loads(text))]
    found = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        found.append((fields.get("event", ""), json.loads(fields["data"])))
    return response.status, found


@pytest.mark.parametrize("beam", [1, 4])
def test_a_stream_only_grows(server: Running, beam: int) -> None:
    text = f"  {TEXT} A man.\n\n\tred wine\n"
    given = {"q": text, "source": "en", "target": "de", "beam": beam, "tokens": True, "alternatives": 1}
    whole = server.post("/translate", given).json
    status, found = events(server, given)
    assert status == 200
    assert found[-1] == ("done", whole)
    texts = [data["text"] for name, data in found[:-1]]
    assert {name for name, _ in found[:-1]} == {""}
    assert len(set(texts)) > 3
    for before, after in pairwise(texts):
        assert after.startswith(before)
    assert whole["translatedText"].startswith(texts[-1])
    assert texts[-1].strip() == whole["translatedText"].strip()
    if beam > 1:
        assert any(data["tail"] for _, data in found[:-1])


def test_streams_of_what_cannot_be_streamed(server: Running) -> None:
    given = {"q": TEXT, "source": "en", "target": "de"}
    for wrong in ({"q": [TEXT]}, {"format": "html"}, {"source": "zz"}):
        status, ((_, data),) = events(server, {**given, **wrong})
        assert status == 400
        assert "error" in data
    assert events(server, {**given, "q": "—"})[1][-1] == ("done", {"translatedText": "—"})
    assert events(server, {**given, "target": "en"})[1] == [("done", {"translatedText": TEXT})]
