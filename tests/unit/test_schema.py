"""A tokenizer.json is read if regard wrote it, and only then."""

import json
from typing import Any, get_args

import pytest
from tokenizers import Tokenizer

from regard.data.tokenizers.codec import Codec, TokenUnit
from regard.errors import UserError

TEXTS = {
    "plain": ["walk the dog, don't!", "walk a dog 3.14"] * 3,
    "features": ["walk the\tV\tPST", "dog,\tN", "walk\tV"] * 3,
}
SENTENCE = "walk a dog, don't\tV\tX"


def content_of(unit: TokenUnit, texts: str = "plain") -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Codec.train(TEXTS[texts], unit, 280).to_json())
    return content


@pytest.mark.parametrize("normalizer", [None, {"type": "NFC"}])
@pytest.mark.parametrize("texts", TEXTS)
@pytest.mark.parametrize("unit", get_args(TokenUnit))
def test_every_file_that_regard_writes_is_read(unit: TokenUnit, texts: str, normalizer: dict[str, str] | None) -> None:
    written = Codec.train(TEXTS[texts], unit, 280)
    written.tokenizer = Tokenizer.from_str(json.dumps({**json.loads(written.tokenizer.to_str()), "normalizer": normalizer}))
    read = Codec.from_json(written.to_json())
    assert read.to_json() == written.to_json()
    assert read.encode(SENTENCE) == written.encode(SENTENCE)
    assert read.decode(read.encode(SENTENCE)) == written.decode(written.encode(SENTENCE))
    assert read.alphabet == written.alphabet


def early(pattern: str, behaviour: str, decoder: dict[str, str] | None) -> str:
    """A tokenizer.json as the first versions wrote it for characters and symbols."""
    vocabulary = {token: number for number, token in enumerate(("<pad>", "<unk>", "<sos>", "<eos>", "a", "b", " "))}
    splitter = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behaviour, "invert": False}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": splitter,
        "post_processor": None,
        "decoder": decoder,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    return json.dumps(content, indent=2)


@pytest.mark.parametrize(
    ("pattern", "behaviour", "decoder", "ids", "text"),
    [
        (r"\s+", "Removed", None, [4, 5, 1], "a b <unk>"),
        (" +", "Removed", None, [4, 1], "a <unk>"),
        (r"[\s\S]", "Isolated", {"type": "Fuse"}, [4, 6, 5, 1, 1], "a b<unk><unk>"),
    ],
)
def test_files_of_the_first_versions_are_read(
    pattern: str, behaviour: str, decoder: dict[str, str] | None, ids: list[int], text: str
) -> None:
    codec = Codec.from_json(early(pattern, behaviour, decoder))
    assert codec.encode("a b\tx") == ids
    assert codec.decode(ids) == text
    assert codec.to_json() == early(pattern, behaviour, decoder)


def test_options_that_the_library_may_add_later_are_off() -> None:
    content = content_of("bpe")
    content["model"] |= {"fuse_more": False, "later": None}
    del content["model"]["byte_fallback"]
    assert Codec.from_json(json.dumps(content)).to_json() == json.dumps(content_of("bpe"), ensure_ascii=False, indent=2)


PADDING = {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0}
BOMB = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("padding", {**PADDING, "pad_token": "x"}),
        ("truncation", {"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 0}),
        ("normalizer", {"type": "Sequence", "normalizers": [BOMB] * 40}),
        ("normalizer", {"type": "NFC", "more": 1}),
        ("decoder", {"type": "Sequence", "decoders": [BOMB] * 40}),
        ("decoder", {"type": "Strip", "content": "a", "start": 10**18, "stop": 10**18}),
        ("decoder", None),
        ("pre_tokenizer", {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Removed", "invert": True}),
        ("pre_tokenizer", None),
        ("post_processor", {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}}),
        ("added_tokens", [{"id": 4, "content": "a", "special": True}]),
        ("version", "2.0"),
        ("extra", {"x": 1}),
        ("extra\x1b[31m" * 50, 1),
        ("model", []),
        ("model", {"type": "WordPiece", "vocab": {}}),
        ("model", None),
    ],
)
@pytest.mark.parametrize("unit", ["words", "bpe"])
def test_parts_that_regard_does_not_write_never_reach_the_library(
    unit: TokenUnit, part: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = json.dumps({**content_of(unit), part: value})
    monkeypatch.setattr("regard.data.tokenizers.codec.Tokenizer.from_str", None, raising=False)
    with pytest.raises(UserError) as caught:
        Codec.from_json(content)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 250


def test_pieces_of_two_units_do_not_mix() -> None:
    mixed = {**content_of("words"), "decoder": content_of("bpe")["decoder"]}
    with pytest.raises(UserError, match="its parts do not belong together: regard does not write"):
        Codec.from_json(json.dumps(mixed))


def rotated(model: dict[str, Any]) -> None:
    ids = list(model["vocab"].values())
    model["vocab"] = dict(zip(model["vocab"], ids[1:] + ids[:1], strict=True))


def exchanged(model: dict[str, Any]) -> None:
    model["vocab"] |= {"<sos>": 3, "<eos>": 2}


@pytest.mark.parametrize(
    ("unit", "change", "words"),
    [
        ("words", rotated, "its first tokens are"),
        ("bpe", exchanged, "its first tokens are .*expected <pad>, <unk>, <sos>, <eos>"),
        ("words", lambda model: model["vocab"].update(walk=4, dog=4), "have the same id as another token"),
        ("words", lambda model: model["vocab"].update(walk=10**9), "the id of 'walk' is 1000000000, expected"),
        ("words", lambda model: model["vocab"].update(walk=True), "the id of 'walk' is True"),
        ("words", lambda model: model["vocab"].update(walk=5.0), "the id of 'walk' is 5.0"),
        ("words", lambda model: model["vocab"].update({"": 4}), "the id of '' is 4"),
        ("words", lambda model: model.update(vocab=[]), r"its vocabulary is \[\], expected a mapping"),
        ("words", lambda model: model.update(vocab={}), r"its first tokens are \[\]"),
        ("words", lambda model: model.pop("vocab"), "its vocabulary is None"),
        ("words", lambda model: model.update(unk_token="<eos>"), "its model is .* which regard does not write"),
        ("words", lambda model: model.update(alphabet=7), "its alphabet is 7, expected a string"),
        ("bpe", lambda model: model["vocab"].update({"漢": len(model["vocab"])}), "'漢', which does not represent a byte"),
        (
            "bpe",
            lambda model: model.update(vocab={"<pad>": 0, "<unk>": 1, "<sos>": 2, "<eos>": 3}),
            "lacks 256 of the 256 bytes",
        ),
        ("bpe", lambda model: model["merges"].append(["a", "nowhere"]), "expected two tokens that join to a third"),
        ("bpe", lambda model: model["merges"].append(["a"]), "expected pairs of tokens"),
        ("bpe", lambda model: model["merges"].append("a b"), "expected pairs of tokens"),
        ("bpe", lambda model: model["merges"].append([["a"], {}]), "expected pairs of tokens"),
        ("bpe", lambda model: model.update(merges={}), "its merges are {}, expected a list"),
        ("bpe", lambda model: model.update(dropout=0.5), "its model is .* which regard does not write"),
        ("unigram", lambda model: model["vocab"].append(["a", -1.0]), "its vocabulary contains duplicate tokens: 1"),
        ("unigram", lambda model: model["vocab"].append(["aaaa", 1e30]), "expected pairs of a token and its log-probability"),
        ("unigram", lambda model: model["vocab"].append(["aaaa", "x"]), "expected pairs of a token and its log-probability"),
        ("unigram", lambda model: model["vocab"].append(["", -1.0]), "expected pairs of a token and its log-probability"),
        ("unigram", lambda model: model["vocab"].insert(0, model["vocab"].pop()), "its first tokens are"),
        ("unigram", lambda model: model.update(vocab={}), "its vocabulary is {}, expected a list"),
        ("unigram", lambda model: model.update(unk_id=10**9), "its model is .* which regard does not write"),
    ],
)
def test_damaged_vocabularies_are_refused(unit: TokenUnit, change: Any, words: str) -> None:
    content = content_of(unit)
    change(content["model"])
    with pytest.raises(UserError, match=words) as caught:
        Codec.from_json(json.dumps(content))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 250
