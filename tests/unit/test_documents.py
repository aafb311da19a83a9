"""JSON from untrusted files."""

from dataclasses import dataclass

import pytest

from regard.data.documents import parse, validated
from regard.errors import UserError


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[" * 100_000, "nested more than 32 levels deep"),
        ('{"a":' * 33 + "1" + "}" * 33, "nested more than 32 levels deep"),
        ("NaN", "NaN is not a JSON number"),
        ('{"a": [-Infinity]}', "-Infinity is not a JSON number"),
        ("1e999", "1e999 is too large for a 64-bit number"),
        (r'"\ud83d"', "surrogates not allowed"),
        (r'{"\udc00": 1}', "surrogates not allowed"),
        ("9" * 5000, "it is not valid JSON: Exceeds the limit"),
        (b"\xff", "it is not valid JSON: 'utf-8' codec can't decode byte 0xff"),
        ("", "it is not valid JSON: Expecting value"),
    ],
)
def test_invalid_json_is_refused_in_one_line(content: str | bytes, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        parse(content)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_plain_json_is_read() -> None:
    assert parse(rb'{"a": ["\ud83d\ude00", "\\ud83d", 1.5, null]}') == {"a": ["😀", "\\ud83d", 1.5, None]}
    deepest = parse("[" * 32 + "]" * 32)
    for _ in range(31):
        (deepest,) = deepest
    assert deepest == []


@dataclass(frozen=True)
class Size:
    width: int
    height: int = 3
    depth: int = 3
    weight: int = 3


def test_fields_are_checked_strictly_and_errors_are_counted() -> None:
    assert validated(Size, {"width": 2}, "a size") == Size(2)
    for content, words in {
        "x": "a size is 'x', expected a mapping",
        '{"width": true}': "a size: width: Input should be a valid integer, got True",
        '{"width": 2.5}': "a size: width: Input should be a valid integer",
        "{}": "a size: width: Field required",
        '{"width": 1, "heigth": 2}': 'a size: unknown field heigth; did you mean "height"',
    }.items():
        with pytest.raises(UserError, match=words):
            validated(Size, parse(content) if content != "x" else content, "a size")
    with pytest.raises(UserError, match=r"^a size: width: .*; height: .*; depth: .* and 1 more") as caught:
        validated(Size, dict.fromkeys(("width", "height", "depth", "weight"), "long " * 1000), "a size")
    assert len(str(caught.value)) < 300
    assert "weight" in caught.value.details
    assert caught.value.__notes__ == [caught.value.details]
