"""The facts about training data in a model folder, columns and sources, and how evaluate, score and align use them."""

import base64
import io
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from regard.checkpoint import folder
from regard.cli.align import align
from regard.cli.evaluate import evaluate
from regard.cli.score import score
from regard.data import trained as trained_module
from regard.data.columns import Columns
from regard.data.corpus import stream_pairs
from regard.data.test_set import read_test_set
from regard.data.trained import Sources, TrainedOn
from regard.errors import UserError
from regard.evaluation import ErrorRates
from regard.models.rnn_seq2seq import RnnSettings
from regard.training.run import run
from regard.training.settings import DataSettings, RunSettings, TrainSettings
from regard.training.survey import survey
from regard.training.tokenise import from_files

ROWS = [(f"{a}{b}e", f"{b}{a}ed", f"V;{'PST' if a < 'e' else 'PRS'}") for a in "abcdefgh" for b in "mnpqr"]
HEADER = ("lemma", "form", "features")


def write(path: Path, rows: Sequence[Sequence[str]]) -> Path:
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained on columns 1 and 3 -> 2 of a file with a header."""
    workspace = tmp_path_factory.mktemp("trained")
    return train_model(workspace, write(workspace / "train.tsv", [HEADER, *ROWS]), source_columns=("1", "3"), target_column="2")


def train_model(workspace: Path, data: Path, **options: Any) -> Path:
    settings = RunSettings(
        data=DataSettings(files=(str(data),), held_out=0.2, **options),
        model=RnnSettings(width=10, embedding=6, score_width=4, dropout=0.0),
        train=TrainSettings(steps=2),
    )
    console = Console(file=io.StringIO())
    training_data = from_files(settings.data, survey(settings.data), workspace / "m.run", console)
    folder.save(run(training_data, settings, console, torch.device("cpu")).saved, workspace / "model")
    return workspace / "model"


@pytest.fixture
def run_command(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run_and_capture(command: Callable[..., None], *arguments: Any, **options: Any) -> str:
        capsys.readouterr()
        if command is evaluate:
            options = {"beam": 1, "max_length": 12, **options}
        command(*arguments, **options)
        done = capsys.readouterr()
        return done.out + done.err

    return run_and_capture


# --- columns -----------------------------------------------------------------------------------------------------------------


def test_columns_of_the_training_are_used(model: Path, tmp_path: Path, run_command: Callable[..., str]) -> None:
    expected = read_test_set([write(tmp_path / "t.tsv", ROWS[:7])], [Columns(("1", "3"), "2")])
    plain = write(tmp_path / "plain.tsv", ROWS[:7])
    printed = run_command(evaluate, model, [plain], outputs=True)
    assert "columns as in training: source 1, 3 and target 2 (choose others with --from and --to)" in printed
    assert f"plain.tsv:{expected.fingerprint}" in printed
    reordered = write(tmp_path / "reordered.tsv", [[row[2], row[1], row[0]] for row in (HEADER, *ROWS[:7])])
    printed = run_command(evaluate, model, [reordered])
    assert "columns as in training: source lemma, features and target form" in printed
    assert f"reordered.tsv:{expected.fingerprint}" in printed
    assert "columns as in training" not in run_command(evaluate, model, [plain], from_="1,3", to="2")
    assert "source 1, 3 and target 3" not in run_command(evaluate, model, [plain], from_="1", to="2")
    for command in (score, align):
        given = [plain] if command is score else plain
        printed = run_command(command, model, given)
        assert "regard: columns as in training: source 1, 3 and target 2" in printed
        chosen = run_command(command, model, given, from_="1,3", to="2")
        assert "columns as in training" not in chosen
        assert chosen.splitlines()[:7] == printed.splitlines()[:7]


@pytest.mark.parametrize("header", [(), (("lemma", "features"),)])
@pytest.mark.parametrize("command", [evaluate, score, align])
def test_a_file_without_targets_is_an_error(
    model: Path, tmp_path: Path, header: Sequence[Sequence[str]], command: Callable[..., None]
) -> None:
    """Features must not be taken for targets."""
    path = write(tmp_path / "t.tsv", [*header, *((row[0], row[2]) for row in ROWS)])
    with pytest.raises(UserError) as error:
        command(model, path if command is align else [path])
    assert "t.tsv has 2 columns" in str(error.value)
    assert "the columns that the model was trained on, source lemma, features and target form" in str(error.value)
    assert "--from and --to" in str(error.value)


def test_names_and_numbers() -> None:
    by_name = TrainedOn(("lemma", "features"), "form", HEADER)
    assert [by_name._number(name) for name in HEADER] == ["1", "2", "3"]
    assert by_name._number("word") is None
    by_number = TrainedOn(("1", "3"), "2")
    assert by_number._name("1") is None


def test_a_model_trained_by_name_reads_a_file_without_names(tmp_path: Path) -> None:
    path = [write(tmp_path / "t.tsv", ROWS)]
    known = TrainedOn(("lemma", "features"), "form", HEADER)
    assert next(stream_pairs(path, known.columns(path).each[0])) == (("ame", "V;PST"), "maed")
    with pytest.raises(UserError, match=r"none is called 'lemma'.*trained on, source lemma, features and target form"):
        TrainedOn(("lemma", "features"), "form").columns(path)  # an older model does not know their numbers
    other = [write(tmp_path / "o.tsv", [("word", "target", "id"), *ROWS])]
    with pytest.raises(UserError, match=r"none is called 'lemma'"):
        known.columns(other)  # its columns have other names
    only = known.columns(path, ["3"])
    assert (only.source, only.targets) == (("3",), ("2",))
    with pytest.raises(UserError, match="column 2 is chosen twice"):
        known.columns(path, ["2"])


def test_parallel_files_have_no_columns(tmp_path: Path) -> None:
    known = TrainedOn(("lemma",), "form", HEADER)
    assert known.columns([tmp_path / "a", tmp_path / "b"]).each[0].source == ()


def test_columns_named_source_and_target_are_used(tmp_path: Path) -> None:
    """Training finds the columns by their names, and so does evaluation."""
    rows = [(str(number), *row[:2]) for number, row in enumerate(ROWS)]
    path = write(tmp_path / "train.tsv", [("id", "source", "target"), *rows])
    assert TrainedOn.from_facts(folder.load(train_model(tmp_path, path)).training).one_reference
    assert read_test_set([path], one_reference=True).references[0] == ("maed",)


def test_several_references_need_no_options_after_training_on_pairs(tmp_path: Path, run_command: Callable[..., str]) -> None:
    model = train_model(tmp_path, write(tmp_path / "pairs.tsv", [row[:2] for row in ROWS]))
    test = write(tmp_path / "t.tsv", [("xme", "one", "two"), ("yme", "one", "two")])
    assert "t.tsv: 2 sources, 4 references" in run_command(evaluate, model, [test])


# --- sources seen in training ------------------------------------------------------------------------------------------------


def test_evaluation_on_the_training_data_is_reported(model: Path, tmp_path: Path, run_command: Callable[..., str]) -> None:
    num_seen = len(base64.b64decode(folder.load(model).training["sources"]["hashes"])) // 4
    assert 20 < num_seen < 40
    printed = run_command(evaluate, model, [write(tmp_path / "t.tsv", [HEADER, *ROWS])])
    assert f"{model}: {num_seen} of 40 sources were seen in training; results on such sources say little" in printed
    fresh = write(tmp_path / "fresh.tsv", [(f"x{row[0]}", *row[1:]) for row in ROWS])
    assert "were seen in training" not in run_command(evaluate, model, [fresh])


def test_older_folders_report_no_seen_sources(model: Path, tmp_path: Path, run_command: Callable[..., str]) -> None:
    old = tmp_path / "old"
    shutil.copytree(model, old)
    config = json.loads((old / "config.json").read_text())
    del config["training"]["sources"], config["training"]["header"]
    (old / "config.json").write_text(json.dumps(config))
    printed = run_command(evaluate, old, [write(tmp_path / "t.tsv", [HEADER, *ROWS])])
    assert "were seen in training; results" not in printed
    assert "columns as in training: source 1, 3 and target 2" in printed  # these were always stored
    config["training"]["sources"] = {"below": 1, "hashes": "?"}
    (old / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"config.json: the description of the training data cannot be read"):
        evaluate(old, [tmp_path / "t.tsv"])
    assert TrainedOn.from_facts({}).columns([tmp_path / "t.tsv"]).each[0].source == ()


def test_many_sources_are_sampled_and_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained_module, "MOST_KEYS", 100)
    seen = Sources(f"seen {number}" for number in range(1000))
    facts = seen.to_facts()
    assert len(facts["hashes"]) < 600
    again = Sources.from_facts(json.loads(json.dumps(facts)))
    assert again.to_facts() == facts
    mixed = [f"seen {number}" for number in range(500)] + [f"new {number}" for number in range(500)]
    description = again.describe_seen(mixed)
    count, total = (int(description.split()[at].replace(",", "")) for at in (0, 2))
    assert f"{count} of {total} sources that can be checked were seen in training" in description
    assert 50 < total < 200
    assert abs(count / total - 0.5) < 0.2
    assert again.describe_seen([f"new {number}" for number in range(500)]) == ""
    other = Sources(f"more {number}" for number in range(30))
    other.update(again)
    both = [*(f"seen {number}" for number in range(1000)), *(f"more {number}" for number in range(30))]
    assert other.to_facts() == Sources(both).to_facts()


def test_one_source_is_counted_as_one() -> None:
    seen = Sources(["a", "b"])
    assert seen.describe_seen(["a"]).startswith("1 of 1 source was seen in training")
    assert seen.describe_seen(["a", "b", "c"]).startswith("2 of 3 sources were seen in training")


def test_error_rates_above_100_percent_are_explained() -> None:
    assert "282.78% (above 100%: the outputs are much longer than the references)," in str(ErrorRates(1.0, 2.8278, 7))
    assert "above 100%" not in str(ErrorRates(1.0, 1.0, 7))
