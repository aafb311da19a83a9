"""docs/notes.md is what its lines give: the page belongs to the lines, and the quick ones are run again."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import mutants
import pytest

NOTES = mutants.ROOT / "docs" / "notes"
NOT_RUN: set[str] = set()
"""Items whose lines were never run."""
MOST_SECONDS = 0.35
"""Items that took longer are not run again here."""


def load() -> ModuleType:
    """Returns docs/notes/make.py."""
    spec = importlib.util.spec_from_file_location("notes_make", NOTES / "make.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["notes_make"] = module
    spec.loader.exec_module(module)
    return module


MAKE = load()
ITEMS = {item.id: item for item in MAKE.read_items()}
RESULTS = json.loads((NOTES / "results.json").read_text())


def is_quick(name: str) -> bool:
    """Whether an item neither trains nor loads a model nor draws, and runs at once."""
    needs_files = re.search(r"regard\.(load|train|compare|draw|describe)|\.tsv|\$ ", ITEMS[name].lines)
    return not needs_files and name in RESULTS and RESULTS[name]["seconds"] <= MOST_SECONDS


def test_every_item_is_there_and_belongs_to_its_lines() -> None:
    assert list(ITEMS) == [f"N{number}" for number in range(1, 95)]
    assert set(ITEMS) - set(RESULTS) == NOT_RUN
    for name, result in RESULTS.items():
        assert result["digest"] == ITEMS[name].digest, f"{name} changed; run python docs/notes/make.py"
        assert result["output"] or result["pictures"], f"{name} shows nothing"
        for picture in result["pictures"]:
            assert (NOTES / picture).stat().st_size > 1000


def test_the_page_is_that_of_the_results() -> None:
    page = (NOTES.parent / "notes.md").read_text()
    assert page == MAKE.render(list(ITEMS.values()), RESULTS)
    pictures = {path.name for path in NOTES.iterdir() if path.suffix in (".png", ".svg") and path.name[0] != "."}
    assert pictures == {name for result in RESULTS.values() for name in result["pictures"]}
    assert sum((NOTES / name).stat().st_size for name in pictures) < 3 * 2**20


@pytest.mark.parametrize("name", [name for name in ITEMS if is_quick(name)])
def test_quick_items_give_what_the_page_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = MAKE.run(ITEMS[name], tmp_path)
    number = r"-?\d+\.?\d*(?:e[-+]\d+)?"
    assert re.sub(number, "#", found["output"]) == re.sub(number, "#", RESULTS[name]["output"])
    before, after = (list(map(float, re.findall(number, text))) for text in (RESULTS[name]["output"], found["output"]))
    assert after == pytest.approx(before, rel=2e-3, abs=2e-4)
