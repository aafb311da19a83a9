"""The types that a user's editor and type checker see."""

import re
from pathlib import Path
from typing import get_type_hints

import pytest
from user_types import type_errors

import regard

CALLS = Path(__file__).with_name("typed_calls.py")
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.slow
def test_wrong_calls_are_type_errors_and_right_ones_are_not(tmp_path: Path) -> None:
    """Nor is anything in the examples. One run of mypy checks both, because it reads all of torch."""
    lines = enumerate(CALLS.read_text().splitlines(), start=1)
    expected = [
        (CALLS.name, number, match[1]) for number, line in lines if (match := re.search(r"  # ([a-z]+-?[a-z]+)$", line))
    ]
    assert len(expected) > 20
    assert EXAMPLES
    assert sorted(set(type_errors([CALLS, *EXAMPLES], tmp_path))) == expected


def test_the_keywords_of_a_search_are_its_options() -> None:
    keywords, options = get_type_hints(regard.SearchKeywords), get_type_hints(regard.SearchOptions)
    assert set(keywords) == {*options, "prefix", "seed"}
    differ = {name for name in options if keywords[name] != options[name]}
    assert differ == {"banned"}  # a user gives words, a search has token ids
    assert regard.SearchKeywords.__total__ is False
