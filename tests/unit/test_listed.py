"""Vocabularies that are lists of tokens, with and without merges."""

import pytest

from regard.contracts import Specials
from regard.data.documents import parse
from regard.data.tokenizers.listed import ListedCodec
from regard.errors import UserError

SPECIALS = Specials(pad=1, unk=3, start=2, eos=2, never=(1,))
FIRST = ["<s>", "<pad>", "</s>", "<unk>"]


def test_merges_join_the_earliest_pair_everywhere_first() -> None:
    merges = [("a", "b"), ("ab", "ab"), ("b", "c</w>"), ("c", "a")]
    codec = ListedCodec([*FIRST, "abab@@", "bc", "ab@@", "c", "ca@@", "x@@"], SPECIALS, "subwords", merges=merges)
    assert codec.pieces("ababbc xc") == ("abab@@", "bc", "x@@", "c")
    assert codec.encode("ababbc  xc q") == [4, 5, 9, 7, 3]
    assert codec.decode([4, 5, 9, 7]) == "ababbc xc"
    assert codec.decode([4, 5, 9]) == "ababbc x"
    assert codec.unknown("xc q") == ("q",)


def test_special_tokens_that_a_text_spells_are_unknown() -> None:
    codec = ListedCodec([*FIRST, "hm"], SPECIALS, "spaces")
    assert codec.encode("hm </s> <s>") == [4, 3, 0]


def test_characters_and_words_survive_their_json() -> None:
    for split, text in (("characters", "ab a"), ("spaces", "a b a")):
        codec = ListedCodec([*FIRST, "a", "b", " "], SPECIALS, split)  # type: ignore[arg-type]
        again = ListedCodec.from_content(parse(codec.to_json()))
        assert again.to_json() == codec.to_json()
        assert again.encode(text) == codec.encode(text)
        assert again.decode(again.encode(text)) == text
        assert again.specials == SPECIALS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": ["a", "a", "b", "c"]}, "occurs twice"),
        ({"tokens": ["a", "b", "c"]}, "has the id 3, but there are only 3"),
        ({"tokens": [1]}, "expected a list of strings"),
        ({"merges": [["a"]]}, "expected a list of pairs"),
        ({"split": "words"}, "expected one of"),
        ({"specials": {}}, "specials lack"),
    ],
)
def test_a_damaged_vocabulary_is_refused(changes: dict[str, object], message: str) -> None:
    content = parse(ListedCodec(FIRST, SPECIALS, "spaces").to_json())
    with pytest.raises(UserError, match=message):
        ListedCodec.from_content(content | changes)
