"""Whatever is typed, the outcome is the right output or one clear line. All commands run in this process, through `main`."""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
from test_folder import make_saved

from regard.checkpoint import folder
from regard.cli.main import app, main
from regard.models.rnn_seq2seq import RnnSettings

HOSTILE = ["0", "-1", "1000000", "1" + "0" * 18, "nan", "inf", "", "9" * 5000, "\udcff", "../x", "\x1b[2J"]
BASE = {
    "train": ["{train}", "--out", "trained", "--overwrite", "--set", "train.steps=1", "--set", "model.width=8"],
    "translate": ["{model}", "--max-length", "2"],
    "evaluate": ["{model}", "{pairs}", "--max-length", "2"],
    "score": ["{model}", "{pairs}"],
    "inspect": ["{model}", "abc"],
    "explain": ["{model}", "abc"],
    "align": ["{model}", "{pairs}"],
    "demo": [],
}
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
OPTIONS = [
    (name, option.opts[0])
    for name, command in COMMANDS.items()
    for option in command.params
    if option.opts[0].startswith("--") and not option.is_flag and (name, option.opts[0]) != ("demo", "--out")  # would train
]


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("typed") / "inner"
    place.mkdir()
    folder.save(make_saved(RnnSettings(width=8, embedding=3)), place / "model")
    (place / "pairs.tsv").write_text("ab\tX Y\nbc\tY Z\n")
    (place / "train.tsv").write_text("".join(f"{letter}b\tX {letter.upper()}\n" for letter in "acdefghij"))
    return place


@pytest.fixture
def inside(workplace: Path) -> Iterator[Path]:
    with contextlib.chdir(workplace):
        yield workplace


def run(*arguments: str, stdin: bytes = b"ab\n") -> Done:
    """`regard`, as typed in the folder `inside`."""
    out, err = io.StringIO(), io.StringIO()
    paths = {"model": "model", "pairs": "pairs.tsv", "train": "train.tsv"}
    typed = ["regard", *(argument.format(**paths) if argument.startswith("{") else argument for argument in arguments)]
    with (
        Path("stdin").open("w+", newline="") as file,
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        file.buffer.write(stdin)
        file.seek(0)
        patch.setattr(sys, "stdin", file)
        patch.setattr(sys, "argv", typed)
        main()
    code = ended.value.code
    said = err.getvalue() + (f"{code}\n" if isinstance(code, str) else "")
    return Done(1 if isinstance(code, str) else int(code or 0), out.getvalue(), said)


def check(done: Done) -> None:
    """The right output, or one clear line."""
    assert all(line.isprintable() and len(line) <= 1100 for line in done.err.splitlines())
    if done.code:
        *before, line = done.err.splitlines()
        assert line.startswith("regard: ")
        assert all(one.startswith("regard: ") for one in before)
        assert "Errno" not in line


@pytest.mark.parametrize(("command", "option"), OPTIONS, ids=map("".join, OPTIONS))
def test_no_value_of_an_option_is_too_strange(command: str, option: str, inside: Path) -> None:
    for value in HOSTILE:
        check(run(command, *BASE[command], option, value))


@pytest.mark.parametrize("command", BASE)
def test_no_argument_is_too_strange(command: str, inside: Path) -> None:
    arguments = BASE[command]
    for place, argument in enumerate(arguments):
        if argument.startswith("{") or argument == "abc":
            for value in HOSTILE:
                check(run(command, *arguments[:place], "--", value, *(one for one in arguments[place + 1 :] if one[0] != "-")))
