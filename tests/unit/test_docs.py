"""The tests, code and settings that docs/ mentions exist."""

import ast
import re
import tomllib
from collections import Counter

import api_page
import mutants
import pytest
import settings_tables

import regard

DOCS = mutants.ROOT / "docs"
TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)")


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_every_named_test_exists(page: str) -> None:
    for path, name in TEST.findall((DOCS / page).read_text()):
        tree = ast.parse((mutants.ROOT / path).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{path}::{name}"


def test_every_erratum_names_tests_that_carry_its_id() -> None:
    sections = re.split(r"^## (A0\.\d+) ", (DOCS / "errata.md").read_text(), flags=re.MULTILINE)[1:]
    pages = dict(zip(sections[::2], sections[1::2], strict=True))
    spec = tomllib.loads((mutants.ROOT / "tests" / "spec.toml").read_text())
    assert list(pages) == [item for item in spec["items"] if item.startswith("A0.") and item not in spec["missing"]]
    proofs = mutants.tests_by_id()
    for spec_id, text in pages.items():
        assert {"::".join(match) for match in TEST.findall(text)} <= set(proofs.get(spec_id, [])), spec_id
        assert re.search(r"^Tests?: ", text, re.MULTILINE), spec_id


def test_the_code_in_costs_runs() -> None:
    codes = re.findall(r"```python\n(.*?)```", (DOCS / "costs.md").read_text(), re.DOTALL)
    assert codes
    for code in codes:
        exec(code, {})


def test_every_example_is_listed() -> None:
    listed = re.findall(r"^\| \[(\w+\.py)\]\(\.\./examples/\1\) \| \S", (DOCS / "examples.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in (mutants.ROOT / "examples").glob("*.py"))
    assert "](docs/examples.md)" in (mutants.ROOT / "README.md").read_text()


def test_the_log_lists_its_sections() -> None:
    page = (DOCS / "LOG.md").read_text()
    expected, times = [], Counter[str]()
    for level, heading in re.findall(r"^(##+) (.*)$", page, re.MULTILINE):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = f"-{times[anchor]}" if times[anchor] else ""
        times[anchor] += 1
        expected.append(f"{'  ' * (len(level) - 2)}- [{heading}](#{anchor}{number})")
    assert re.findall(r"^ *- \[.*\]\(#.*\)$", page, re.MULTILINE) == expected


def test_the_tables_of_settings_are_those_of_the_code() -> None:
    """If this fails, run `python tests/settings_tables.py`."""
    page = settings_tables.PAGE.read_text()
    assert settings_tables.written(page) == page
    assert page.count("| `model.attention` |") == 1


def test_the_list_of_public_names_is_that_of_the_code() -> None:
    """If this fails, run `python tests/api_page.py`."""
    page = api_page.PAGE.read_text()
    assert api_page.written(page) == page
    listed = set(re.findall(r"^(?:\| |### )`(?:regard\.)?(\w+)`", page, re.MULTILINE))
    assert set(regard.__all__) <= listed
