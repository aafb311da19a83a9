"""Any command line gives the right output or a one-line error. All commands run in this process, through `main`."""

import contextlib
import gzip
import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import typer
from table import EOS
from test_folder import make_saved

import regard
from regard.checkpoint import folder
from regard.cli.main import app, main
from regard.models.rnn_lm import RnnLmSettings
from regard.models.rnn_seq2seq import RnnSettings

HOSTILE = ["0", "-1", "1000000", "1" + "0" * 18, "nan", "inf", "", "9" * 5000, "\udcff", "../x", "\x1b[2J"]
BASE = {
    "train": ["{train}", "--out", "trained", "--overwrite", "--set", "train.steps=1", "--set", "model.width=8"],
    "distill": ["{model}", "{train}", "--out", "taught", "--overwrite", "--set", "train.steps=1"],
    "translate": ["{model}", "--max-length", "2"],
    "evaluate": ["{model}", "{pairs}", "--max-length", "2"],
    "score": ["{model}", "{pairs}"],
    "inspect": ["{model}", "abc"],
    "explain": ["{model}", "abc"],
    "describe": ["{model}"],
    "align": ["{model}", "{pairs}"],
    "roles": ["{model}", "{pairs}"],
    "demo": [],
    "check": ["{student}"],
    "cost": [],
}
UNTRIED = {"plan", "compare", "convert", "serve", "keys"}
"""Commands that measure, train or serve for every valid value; their tests are in test_plan, test_compare, test_interop and
doors/test_serving."""
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
OPTIONS = [
    (name, option.opts[0])
    for name, command in COMMANDS.items()
    if name not in UNTRIED
    for option in command.params
    if option.opts[0].startswith("--") and not option.is_flag and (name, option.opts[0]) != ("demo", "--out")  # would train
]


class Completed(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workspace = tmp_path_factory.mktemp("typed") / "inner"
    workspace.mkdir()
    saved = make_saved(RnnSettings(width=8, embedding=3))
    with torch.no_grad():
        saved.model.get_parameter("output.bias")[EOS] += 0.5  # outputs end soon
    folder.save(saved, workspace / "model")
    (workspace / "pairs.tsv").write_text("ab\tX Y\nbc\tY Z\n")
    (workspace / "mine.py").write_text("def causal_mask(n):\n    return [[j <= i for j in range(n)] for i in range(n)]\n")
    (workspace / "train.tsv").write_text("".join(f"{letter}b\tX {letter.upper()}\n" for letter in "acdefghij"))
    return workspace


@pytest.fixture
def inside(workspace: Path) -> Iterator[Path]:
    with contextlib.chdir(workspace):
        yield workspace


def run(*arguments: str, stdin: bytes = b"ab\n") -> Completed:
    """Runs `regard` with these arguments in the current folder (see the fixture `inside`)."""
    out, err = io.StringIO(), io.StringIO()
    paths = {"model": "model", "pairs": "pairs.tsv", "train": "train.tsv", "student": "mine.py"}
    typed = ["regard", *(argument.format(**paths) if argument.startswith("{") else argument for argument in arguments)]
    with (
        Path("stdin").open("w+", newline="") as file,
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        file.buffer.write(stdin)
        file.seek(0)
        patch.setattr(sys, "stdin", file)
        patch.setattr(sys, "argv", typed)
        with pytest.raises(SystemExit) as ended:
            main()
    code = ended.value.code
    messages = err.getvalue() + (f"{code}\n" if isinstance(code, str) else "")
    return Completed(1 if isinstance(code, str) else int(code or 0), out.getvalue(), messages)


def check(done: Completed) -> None:
    """Checks that a command succeeded or ended with a one-line error."""
    assert all(line.isprintable() and len(line) <= 1100 for line in done.err.splitlines())
    if done.code:
        *before, line = done.err.splitlines()
        assert line.startswith("regard: ")
        assert all(earlier.startswith("regard: ") for earlier in before)
        assert "Errno" not in line


@pytest.mark.parametrize(("command", "option"), OPTIONS, ids=map("".join, OPTIONS))
def test_no_value_of_an_option_crashes_a_command(command: str, option: str, inside: Path) -> None:
    for value in HOSTILE:
        check(run(command, *BASE[command], option, value))


@pytest.mark.parametrize("command", BASE)
def test_no_argument_crashes_a_command(command: str, inside: Path) -> None:
    arguments = BASE[command]
    for index, argument in enumerate(arguments):
        if argument.startswith("{") or argument == "abc":
            for value in HOSTILE:
                rest = [later for later in arguments[index + 1 :] if later[0] != "-"]
                check(run(command, *arguments[:index], "--", value, *rest))


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "two\nlines.tsv", "--out", "trained"],
        ["train", "train.tsv", "--out", "trained", "--set", "two\nlines"],
        ["train", "train.tsv", "--out", "trained", "--set", "two\nlines=1"],
        ["translate", "model", "two\nlines.txt"],
        ["translate", "two\nlines"],
    ],
)
def test_a_name_of_two_lines_is_printed_in_one(arguments: list[str], inside: Path) -> None:
    done = run(*arguments)
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert r"two\nlines" in done.err


def test_a_language_model_scores_texts_with_and_without_their_beginning(inside: Path) -> None:
    folder.save(make_saved(RnnLmSettings(width=8, embedding=3)), inside / "lm")
    Path("texts.tsv").write_text("X\tX Y\n\tX Y\nY\tX Y\n\t\nZ\tZ\n")
    done = run("score", "lm", "texts.tsv")
    scored = regard.load("lm").score(["X", "", "Z"], ["X Y", "X Y", "Z"])
    assert done.out.splitlines() == [
        f"{one.log_prob:.6f}\t{pair}" for one, pair in zip(scored, ("X\tX Y", "\tX Y", "Z\tZ"), strict=True)
    ]
    assert done.code == 1
    first, *_, last = done.err.splitlines()
    assert first == (
        "regard: line 3 is skipped: this is a language model, which continues its source, but the output 'X Y' does not start "
        "with 'Y'; give the whole text as the output, or leave the source empty"
    )
    assert "regard: Skipped 1 line with an empty source or target" in done.err
    assert last == "regard: lines that could not be scored and were skipped: 1"
    records = [json.loads(line) for line in run("score", "lm", "texts.tsv", "--json").out.splitlines()]
    assert [record["source"] for record in records] == ["X", "", "Z"]
    without = run("score", "{model}", "texts.tsv")  # a model that reads a source skips the line without one
    assert [line.split("\t")[1] for line in without.out.splitlines()] == ["X", "Y", "Z"]


def test_a_command_that_is_refused_leaves_no_folder(inside: Path) -> None:
    assert run("demo", "--out", "new/demo", "--set", "train.steps=none").code == 1
    assert run("train", "train.tsv", "--out", "new/trained", "--set", "train.steps=none").code == 1
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["transalte"], "no such command 'transalte'. Did you mean 'translate'? (see regard --help)"),
        (["translate", "model", "--beem", "3"], "no such option: --beem (Possible options: --beam, --seed) (see regard transl"),
        (["translate"], "missing argument 'model' (see regard translate --help)"),
        (["translate", "model", "--beam", "x"], "invalid value for '--beam': Input should be a valid integer"),
        (
            ["translate", "model", "--threads", "1000000"],
            "invalid value for '--threads': Input should be less than or equal to",
        ),
        (["translate", "model", "--max-source", "1000000"], "invalid value for '--max-source': Input should be less than or"),
    ],
)
def test_a_typing_error_gives_one_line(arguments: list[str], words: str, inside: Path) -> None:
    done = run(*arguments)
    assert done.code == 2
    assert done.err.startswith(f"regard: {words}")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--beam", "1000000"], "beam is 1000000, expected a whole number from 1 to 1,000"),
        (["--sample", "--n-best", "1000000"], "n_best is 1000000, expected a whole number from 1 to 1,000"),
        (["--max-length", "1000000"], "max_length is 1000000, expected a whole number from 1 to 100,000"),
        (["--length-penalty", "inf"], 'length_penalty is inf, expected a number from 0 to 10, or "mean"'),
        (["--length-penalty", "1e9"], 'length_penalty is 1000000000.0, expected a number from 0 to 10, or "mean"'),
        (["--length-penalty", "much"], "length_penalty is 'much', expected a number from 0 to 10, or \"mean\""),
        (["--sample", "--temperature", "1e-320"], "temperature is 1e-320, expected a number, 1e-06 or more"),
        (["--prefix", "X " * 300], "the prefix has 300 tokens, but max_length is 256; raise max_length"),
        (["--prefix", "\udcff"], r"argument 4 (\xff) is not UTF-8; type texts in UTF-8, and rename files whose names are not"),
        (["\udcff.txt"], r"argument 3 (\xff.txt) is not UTF-8; type texts in UTF-8, and rename files whose names are not"),
    ],
)
def test_invalid_search_options_give_one_line(arguments: list[str], words: str, inside: Path) -> None:
    done = run("translate", "model", *arguments)
    assert (done.code, done.err) == (1, f"regard: {words}\n")


def test_without_arguments_there_is_help(inside: Path) -> None:
    done = run()
    assert "Usage: regard" in done.out
    assert done.err == ""


def test_a_long_message_keeps_both_ends(inside: Path) -> None:
    done = run("train", "train.tsv", "--out", "new", "--set", "x" * 5000 + "=1")
    assert re.fullmatch(r"regard: --set x{400,}….*train.metric.*\n", done.err)


def test_errors_of_the_system_name_the_file(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system", "page.html")

    monkeypatch.setattr("regard.inspection.report.write", refuse)
    done = run("inspect", "model", "ab", "--out", "page.html")
    assert (done.code, done.err) == (1, "regard: page.html cannot be written: Read-only file system; choose another file\n")


def test_running_out_of_memory_gives_one_line(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def allocate(*_: object, **__: object) -> None:
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
        )

    monkeypatch.setattr(regard, "load", allocate)
    done = run("translate", "model")
    assert done.code == 1
    assert done.err.startswith("regard: out of memory; ")
    monkeypatch.setattr(regard, "load", lambda *_, **__: 1 / 0)  # a bug in regard keeps its traceback
    with pytest.raises(ZeroDivisionError):
        run("translate", "model")


# --- translate ---------------------------------------------------------------------------------------------------------------


def test_translate_reads_files_in_order(inside: Path) -> None:
    Path("one.txt").write_text("ab\n\nbc\n")
    with gzip.open("two.txt.gz", "wt") as file:
        file.write("cab\n")
    texts = ["ab", "", "bc", "cab"]
    options = ["--max-length", "5", "--sample", "--seed", "7"]  # a sample depends on its line number
    for mode in ([], ["--stream"]):
        read = run("translate", "model", "one.txt", "two.txt.gz", *options, *mode, stdin=b"not read\n")
        piped = run("translate", "model", *options, *mode, stdin="".join(f"{text}\n" for text in texts).encode())
        assert read == piped
        assert (read.code, len(read.out.splitlines())) == (0, 4)
    records = run("translate", "model", "one.txt", "two.txt.gz", "--json").out.splitlines()
    assert [(record["line"], record["source"]) for record in map(json.loads, records)] == list(enumerate(texts, start=1))
    for name, words in (("nowhere.txt", "nowhere.txt: no such file"), ("model", "model: cannot be read: Is a directory")):
        done = run("translate", "model", "one.txt", name)
        assert (done.code, done.err.splitlines()[-1]) == (1, f"regard: {words}")


def test_translate_keeps_the_translation_with_its_alignment(inside: Path) -> None:
    result = regard.load("model")("abc", max_length=4, min_length=2)
    links = " ".join(f"{source}-{target}" for source, target in result.alignment())
    options = ["--align", "--max-length", "4", "--min-length", "2"]
    assert links
    assert run("translate", "model", *options, stdin=b"abc\n\n").out == f"{result.text} ||| {links}\n\n"
    record = json.loads(run("translate", "model", *options, "--json", stdin=b"abc\n").out)
    assert (record["text"], record["alignment"]) == (result.text, [list(link) for link in result.alignment()])


def test_the_help_says_how_to_give_features(inside: Path) -> None:
    assert "lemma<TAB>V;PST" in " ".join(run("translate", "--help").out.split())


def test_a_long_line_of_standard_input_is_refused_without_reading_it_whole(
    inside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.data.lines.LONGEST_LINE", 100)
    fits, long = b"a" * 99 + b"\n", b"b" * 10_000 + b"\n"
    done = run("translate", "model", "--max-length", "3", stdin=fits + long + fits)
    assert len(done.out.splitlines()) == 1
    words = "the line is longer than 100 bytes; expected a text file with shorter lines; split the line"
    assert done.err == f"regard: standard input:2: {words}\n"


def test_on_a_terminal_translate_says_that_it_reads_standard_input(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, b"ab\n\x04")
    with open(theirs) as terminal, contextlib.redirect_stderr(io.StringIO()) as err:
        monkeypatch.setattr(sys, "stdin", terminal)
        monkeypatch.setattr(sys, "argv", ["regard", "translate", "model", "--max-length", "3"])
        with pytest.raises(SystemExit):
            main()
    os.close(ours)
    assert err.getvalue().startswith("regard: reading standard input: type a text and press Enter; press Ctrl-D to end\n")
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SystemExit, match="regard: there is no standard input; name a file of texts"):
        main()


@pytest.mark.slow
@pytest.mark.parametrize("setting", [{"PYTHONIOENCODING": "ascii"}, {"LANG": "C", "LC_ALL": "C"}], ids=str)
def test_any_terminal_can_print_everything(setting: dict[str, str], inside: Path) -> None:
    environment = {**os.environ, **setting}
    command = [sys.executable, "-m", "regard"]
    shown = subprocess.run([*command, "inspect", "model", "ab→é"], capture_output=True, env=environment)
    assert shown.returncode == 0
    assert "ab→é" in shown.stdout.decode()
    refused = subprocess.run([*command, "inspect", "model", b"caf\xe9"], capture_output=True, env=environment)
    assert refused.stderr.decode().startswith(r"regard: argument 3 (caf\xe9) is not UTF-8; type texts in UTF-8")


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_closed_stream_is_not_an_error(closed: str, inside: Path) -> None:
    number = {"stdout": 1, "stderr": 2}[closed]
    command = [sys.executable, "-m", "regard", "translate", "model", "--max-length", "2"]
    quoted = " ".join(f"'{argument}'" for argument in command)
    done = subprocess.run(["sh", "-c", f"{quoted} {number}>&-"], input=b"ab!\n", capture_output=True)
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
    assert (done.stdout == b"") == (closed == "stdout")
    assert b"never seen" not in done.stdout


@pytest.mark.parametrize("command", ["translate", "train"])
def test_a_removed_current_folder_gives_one_line(command: str, inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_folder() -> str:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "getcwd", no_folder)
    done = run(command, *BASE[command])
    assert done.err == "regard: the current folder has been removed; change to one that exists, e.g. cd ~\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "{train}", "--out", "/"], "got / as a model folder, expected one with a name, such as /model"),
        (["train", "{train}", "--out", "/", "--overwrite"], "got / as a model folder, expected one with a name"),
        (["train", "{train}", "--out", "round"], "round is a symbolic link that points back to itself; choose another folder"),
        (["translate", "round"], "round is a symbolic link that points back to itself; choose another folder"),
        (["train", "{train}", "--out", "train.tsv/x"], "train.tsv/x cannot be written: Not a directory; choose another folder"),
    ],
)
def test_an_impossible_model_folder_gives_one_line(arguments: list[str], words: str, inside: Path) -> None:
    if not Path("round").is_symlink():
        Path("round").symlink_to("round")
    done = run(*arguments)
    check(done)
    assert words in done.err


def test_a_pipe_in_a_run_folder_is_refused_instead_of_read(inside: Path) -> None:
    Path("piped.run/checkpoints").mkdir(parents=True)
    os.mkfifo("piped.run/checkpoints/state.json")
    done = run("train", "{train}", "--out", "piped")
    assert done.err.endswith("state.json is a pipe or a device, expected a file of this run; remove it\n")


@pytest.mark.parametrize(
    ("text", "words"), [("a!", "1 source symbol was never seen"), ("!?", "2 source symbols were never seen")]
)
def test_one_symbol_is_counted_in_the_singular(text: str, words: str, inside: Path) -> None:
    assert words in run("translate", *BASE["translate"], stdin=f"{text}\n".encode()).err
