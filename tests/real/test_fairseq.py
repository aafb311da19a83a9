"""A Transformer of fairseq that writes Latin letters in N'Ko (pre-norm, 5+5 layers): our outputs equal those of the oracle."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import regard


def test_fairseq_transliterates_as_its_oracle(
    data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    folder = data("detransliterator-latin2nqo-001.35")
    expected = json.loads((folder / "expected_greedy.json").read_text())
    model = regard.load(folder)
    detailed = [one for one in expected if "src_ids" in one]
    assert len(detailed) == 10
    assert [[*model.source.encode(one["src"]), 2] for one in detailed] == [one["src_ids"] for one in detailed]
    results = model.batch([one["src"] for one in expected])
    assert [result.text for result in results] == [one["greedy"] for one in expected]
    scored = model.score([one["src"] for one in detailed], [one["greedy"] for one in detailed])
    assert [sum(one["logprobs"]) for one in detailed] == pytest.approx([one.log_prob for one in scored], abs=2e-3)
