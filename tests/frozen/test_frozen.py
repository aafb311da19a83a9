"""Models and a run written by an earlier version still load and give the same outputs; make.py created them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from make import answers, train_command, vars_of

import regard
from regard.cli.main import main

HERE = Path(__file__).parent
MODELS = sorted(path.stem for path in (HERE / "models").glob("*.json"))
TOLERANCE = 1e-4


def differences(got: Any, expected: Any, path: str = "") -> list[str]:
    """Returns the paths at which two JSON values differ; floats may differ by the tolerance."""
    if isinstance(expected, dict) and isinstance(got, dict) and got.keys() == expected.keys():
        return [difference for key in expected for difference in differences(got[key], expected[key], f"{path}/{key}")]
    if isinstance(expected, list) and isinstance(got, list) and len(got) == len(expected):
        return [
            difference
            for index, (one, other) in enumerate(zip(got, expected, strict=True))
            for difference in differences(one, other, f"{path}/{index}")
        ]
    if isinstance(expected, float) and isinstance(got, float):
        return [] if abs(got - expected) <= TOLERANCE * max(1.0, abs(expected)) else [f"{path}: {got} != {expected}"]
    return [] if got == expected and type(got) is type(expected) else [f"{path}: {got!r} != {expected!r}"]


def test_every_family_and_every_kind_of_source_is_frozen() -> None:
    configs = [json.loads((HERE / "models" / name / "config.json").read_text()) for name in MODELS]
    assert {config["format"] for config in configs} == {1}
    assert {config["model"]["kind"] for config in configs} == {"rnn", "rnn_lm", "transformer", "decoder_only"}
    assert {config["model"].get("choice") for config in configs} == {None, "soft", "one", "gates", "sum"}
    units = {config["training"]["settings"]["data"]["source_unit"] for config in configs}
    assert units == {"characters", "symbols", "words", "bpe", "unigram", "picture", "grid", "frames", "sound"}
    assert any("alignment" in config for config in configs)


@pytest.mark.parametrize("name", MODELS)
def test_a_frozen_model_gives_the_same_outputs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)  # the file names are relative to this folder
    expected = json.loads((HERE / "models" / f"{name}.json").read_text())
    if name == "rnn-gates":  # its gates are closed from token 2 on; such tokens were linked to source token 0, now to none
        assert expected["alignment"] == [[0, token] for token in range(20)]
        expected["alignment"] = [[0, 0], [0, 1]]
    assert differences(answers(name, expected["sources"]), expected) == []


def test_the_comparison_detects_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    expected = json.loads((HERE / "models" / "rnn-luong.json").read_text())
    other = json.loads((HERE / "models" / "rnn-hard.json").read_text())
    assert len(differences(other, expected)) > 5
    expected["greedy"][0]["log_prob"] += 0.01
    assert len(differences(answers("rnn-luong", expected["sources"]), expected)) == 1


@pytest.mark.slow
def test_a_frozen_run_resumes_to_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run was killed with kill -9 after update 16 of 40. Training is compared by the logged loss of every update."""
    shutil.copytree(HERE / "run", tmp_path, dirs_exist_ok=True)
    expected = json.loads((HERE / "run" / "finished.json").read_text())
    monkeypatch.chdir(tmp_path)
    _, _, _, *arguments = train_command("words.tsv", "m", [], expected["settings"])
    monkeypatch.setattr("sys.argv", ["regard", *arguments])
    with pytest.raises(SystemExit) as done:
        main()
    assert done.value.code in (0, None)
    for name in ("run.yaml", "tokens.safetensors"):  # read as they are, not written again
        assert Path("m.run", name).read_bytes() == (HERE / "run" / "m.run" / name).read_bytes(), name
    lines = [json.loads(line) for line in Path("m.run/log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert differences(losses, expected["losses"]) == []
    got = [
        vars_of(translation)
        for translation in regard.load("m", device="cpu").batch(["abroad", "catalog", "serendipity"], max_length=20)
    ]
    assert differences(got, expected["answers"]) == []


def test_a_stored_result_is_read() -> None:
    """result.json is what `Result.as_dict` returned in version 0.1, of a text that was translated in two parts."""
    stored = json.loads((HERE / "result.json").read_text())
    result = regard.Result.from_dict(stored)
    assert (result.text, result.source, result.tokens, result.finished) == ("B B", "cab. Fad é.", ("B", "B"), True)
    assert [part.source for part in result.parts] == ["cab.", "Fad é."]
    assert result.parts[0].n_best[1].token_log_probs == (-1.3794748783111572, -2.256011486053467, -2.1910154819488525)
    assert regard.Result.from_dict(result.as_dict()) == result
