"""The model card says what a person needs to know, and shows the picture in its folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import regard

PAIRS = [(f"{a}{b}", f"{b} {a}") for a in "abcdefgh" for b in "ijklmnop"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder, m, that was trained on a file with an empty line."""
    path = tmp_path_factory.mktemp("card")
    (path / "pairs|x.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS) + "lonely\t\n")
    options = {"width": 4, "embedding": 3, "score_width": 3, "steps": 4, "validate_every": 2, "threads": 1, "quiet": True}
    regard.train(path / "pairs|x.tsv", path / "m", **options)  # type: ignore[arg-type]
    return path / "m"


def test_the_card_has_all_sections(folder: Path) -> None:
    card = (folder / "card.md").read_text()
    assert re.findall(r"^## (.*)$", card, re.MULTILINE) == ["Data", "Quality", "Settings", "Limits", "Use"]
    assert re.search(r"- As read: pairs\|x.tsv: 64 pairs in 65 lines. Skipped: 1 line with an empty source or target", card)
    assert re.search(r"- Held out, and never trained on: \d+ held-out pairs?, from pairs\|x.tsv\n", card)
    assert f"- Signature: {regard.load(folder).training['signature']}\n" in card
    assert re.search(r"\| `train.steps` \| 4 \| given \|\n", card)
    assert re.search(r"\| `data.target_unit` \| symbols \| 2.0 symbols of 1.0 characters per line, on average \|\n", card)
    assert "longest training source has 2 tokens, its longest target 2 tokens" in card
    assert "- Few pairs: it gets frequent patterns right" in card
    assert 'model = regard.load("path/of/this/folder")' in card


def test_the_picture_is_in_the_folder_of_the_card(folder: Path, tmp_path: Path) -> None:
    assert "](curves.svg)" in (folder / "card.md").read_text()
    picture = (folder / "curves.svg").read_text()
    assert picture == (folder.with_name("m.run") / "curves.svg").read_text()
    model = regard.load(folder)
    model.save(tmp_path / "copy")
    assert (tmp_path / "copy" / "curves.svg").read_text() == picture
    model.save(tmp_path / "plain", card="# Mine\n")
    assert not (tmp_path / "plain" / "curves.svg").exists(), "a card that does not show it"
    model.save(tmp_path / "copy", overwrite=True)


def test_a_table_cell_stays_one_cell(folder: Path) -> None:
    from regard.training.card import _cell

    assert _cell("a|b\nc") == "a\\|b c"
    rows = [line for line in (folder / "card.md").read_text().splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1
