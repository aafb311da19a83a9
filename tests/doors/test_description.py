"""`regard describe`, as a user types it."""

from pathlib import Path

import pytest

import regard
from regard.cli.main import app
from regard.errors import UserError

FROZEN = Path(__file__).parents[1] / "frozen"


def run(*arguments: object) -> None:
    app(["describe", *map(str, arguments)], standalone_mode=False)


def test_a_preset_with_other_settings(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run("base", "--set", "model.encoder_layers=2", "--tokens", "100,50", "--out", tmp_path / "base.pdf")
    printed = capsys.readouterr().out
    assert printed.startswith("Transformer, 100 source tokens, 50 target tokens: ")
    assert "2 × encoder layer" in printed
    assert f"written to {tmp_path / 'base.pdf'}" in printed
    assert (tmp_path / "base.pdf").read_bytes().startswith(b"%PDF-")


def test_a_family_that_reads_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    run("rnn", "--set", "model.frontend=picture")
    assert "picture" in capsys.readouterr().out


def test_a_model_folder_a_run_file_and_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = FROZEN / "models" / "rnn-luong"
    run(folder)
    model = regard.load(folder).model
    total = sum(parameter.numel() for parameter in model.parameters())
    assert f"RnnSeq2Seq: {total:,} parameters" in capsys.readouterr().out
    (tmp_path / "run.yaml").write_text("model:\n  kind: decoder_only\n  layers: 3\n")
    run(tmp_path / "run.yaml", "--set", "model.heads=2")
    printed = capsys.readouterr().out
    assert "3 × decoder layer" in printed
    assert "self-attention: 2 heads" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bse",), r"bse: there is no such folder or file, and no preset or family .* did you mean \"base\""),
        (("base", "--set", "model.widht=3"), r"did you mean \"model.width\""),
        (("base", "--tokens", "many"), r"--tokens many: expected one or two numbers above 0"),
        (("base", "--tokens", "5,0"), r"--tokens 5,0: expected"),
        (("base", "--out", "a.gif"), r"a.gif: the file extension selects the format"),
        ((FROZEN / "models" / "rnn-luong", "--tokens", "5"), r"is a trained model, whose settings are fixed"),
    ],
)
def test_mistakes(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        run(*arguments)
