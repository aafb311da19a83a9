"""The worksheets: reproducible, offline, escaped; their solutions agree with a second computation from the page itself."""

import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from regard.checking.worksheet import EXERCISES, page, text


class Reader(HTMLParser):
    """Collects the matrices of a page by their caption, the text of each section, and tags that are not closed."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words = [""]
        self.tables: list[list[list[str]]] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)
        if tag == "section":
            self.words.append("")
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words[-1] += data
        if self.open[-1:] == ["td"]:
            self.tables[-1][-1].append(data)


def numbers(table: list[list[str]]) -> np.ndarray:
    return np.array([[float(cell.replace("−", "-").replace("∞", "inf")) for cell in row] for row in table if row])


@pytest.mark.parametrize("seed", [0, 7, 2**31 - 1])
def test_the_same_seed_gives_the_same_page(seed: int) -> None:
    assert page(seed) == page(seed)
    assert page(seed) != page(seed + 1)


@pytest.mark.parametrize("seed", range(12))
def test_a_page_is_complete_and_offline(seed: int) -> None:
    content = page(seed)
    reader = Reader(content)
    assert reader.open == []
    assert len(reader.words) == 1 + 2 * len(EXERCISES)
    assert "<!--" not in content
    assert not re.search(r"https?:|src=|href=|<script|nan", content)
    assert "break-before: page" in content


@pytest.mark.parametrize("seed", range(12))
def test_solutions_agree_with_torch(seed: int) -> None:
    """Reads the numbers of exercise 2 from the page, and computes attention from them with torch."""
    reader = Reader(page(seed))
    query, key, value = (torch.tensor(numbers(table)) for table in reader.tables[:3])
    scores = query @ key.T / 2
    assert torch.equal(scores, scores.round())  # can be computed by hand
    weights = torch.nn.functional.scaled_dot_product_attention(query, key, torch.eye(3, dtype=query.dtype))
    solved = next(section for section in reader.words if section.startswith("\n2. ") and "Weights" in section)
    tables = [numbers(table) for table in reader.tables[3:] if len(table) == 4 and re.fullmatch(r"\d\.\d\d", table[1][0])]
    assert any(np.abs(table - weights.numpy()).max() <= 0.005 for table in tables if table.shape == (3, 3))
    for output in (weights @ value).tolist():
        assert f" = ({', '.join(f'{number:.2f}' for number in output)})" in solved


@pytest.mark.parametrize("seed", range(12))
def test_the_softmax_by_hand_is_right(seed: int) -> None:
    words = Reader(page(seed)).words
    scores = [int(score) for score in re.findall(r"The scores of one query are \((\d), (\d), (\d)\)", words[1])[0]]
    total = sum(math.exp(score) for score in scores)
    assert f"weights ({', '.join(f'{math.exp(score) / total:.2f}' for score in scores)})" in words[1 + len(EXERCISES)]


def test_texts_are_escaped() -> None:
    assert text("<b>h_1 & 10^(−2)") == "&lt;b&gt;h<sub>1</sub> &amp; 10<sup>−2</sup>"
