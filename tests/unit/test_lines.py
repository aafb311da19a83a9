"""Lines in, lines out: the part of `regard translate` between standard input and the model."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Timer
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_folder import make_saved
from test_pipeline import make_listener
from tones import write_words

import regard
from regard.checkpoint import folder
from regard.cli.lines import Lines, as_they_come, lines_of
from regard.cli.translate import moses, one_line, translate
from regard.errors import UserError
from regard.models.rnn_seq2seq import RnnSettings
from regard.results import Alternative, Result


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lines") / "model"
    folder.save(make_saved(RnnSettings(width=8, embedding=3)), path)
    return path


def run(model: Path, raw: bytes, out: io.StringIO | None = None) -> tuple[str, str]:
    out, err = out or io.StringIO(), io.StringIO()
    with tempfile.TemporaryFile() as file, io.TextIOWrapper(file) as stdin, pytest.MonkeyPatch.context() as patch:
        file.write(raw)
        file.seek(0)
        patch.setattr(sys, "stdin", stdin)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            translate(model, max_length=3, beam=2)
    return out.getvalue(), err.getvalue()


@settings(max_examples=60)
@given(lines=st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=20), max_size=6))
def test_as_many_lines_come_out_as_go_in(model: Path, lines: list[str]) -> None:
    out, err = run(model, "".join(f"{line}\n" for line in lines).encode())
    assert out.count("\n") == len(lines)
    for line, translation in zip(lines, out.split("\n"), strict=False):
        assert line.strip("\ufeff \t\r") or not translation  # an empty line stays empty
    assert all(character.isprintable() for character in err.replace("\n", ""))


def test_invalid_utf8_is_an_error_after_the_lines_before_it(model: Path) -> None:
    out = io.StringIO()
    with pytest.raises(UserError, match=r"standard input:3: byte 0xff at position 2 is not UTF-8"):
        run(model, b"abc\n\na\xff\nab\n", out)
    assert out.getvalue() == run(model, b"abc\n\n")[0]


def test_a_pipe_yields_lines_as_they_arrive() -> None:
    """The reader blocks after the third line until the first three lines have been received; None stands for the pause."""
    taken = Event()

    def slow() -> Iterator[str]:
        yield from ("a", "b ", "c")
        assert taken.wait(20)
        yield "d"
        raise UserError("line 5 is bad")

    received: list[str | None] = []

    def take() -> None:
        for line in as_they_come(slow()):
            received.append(line)
            if received[-2:] == ["c", None]:
                taken.set()

    with pytest.raises(UserError, match="line 5 is bad"):
        take()
    assert [line for line in received if line is not None] == ["a", "b ", "c", "d"]
    assert received[received.index("c") + 1] is None


def test_one_line_stays_one_line() -> None:
    best = Alternative("a\nb\r", ("a",), -1.5, -1.25, True, (-1.5,))
    result = Result("a\nb", ("a",), "x", (), -1.5, -1.25, True, (best,), ())
    assert moses(7, result) == "7 ||| a b  ||| log_prob= -1.500000 ||| -1.250000"
    assert one_line("x\u2028y") == "x\u2028y"


# --- a pipe ------------------------------------------------------------------------------------------------------------------

RECORDED = """
import atexit, os, sys, threading
from regard.cli.main import main
order, start = [], threading.Thread.start
os.register_at_fork(before=lambda: order.append(f"fork with {threading.active_count()} thread"))
threading.Thread.start = lambda thread: order.append("thread") or start(thread)
atexit.register(lambda: print(*order, sep=", ", file=sys.stderr))
main()
"""
"""Runs `regard`, and prints at the end when it forked processes and started threads."""

SLOW, FAST = (
    ["abc", "", "cab"],
    ["".join("abc"[number * position % 3] for position in range(1 + number % 9)) for number in range(300)],
)


class Piped(NamedTuple):
    """What `regard translate` answered to each slow line before the next was written, to many lines at once, and at the end."""

    slow: list[bytes]
    fast: list[bytes]
    rest: list[bytes]
    code: int
    messages: list[str]


@pytest.fixture(scope="module")
def piped(model: Path) -> Piped:
    command = [sys.executable, "-c", RECORDED, "translate", str(model), "--json", "--max-length", "3", "--threads", "2"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        watchdog = Timer(60, os.killpg, (process.pid, signal.SIGKILL))  # a worker that was forked too late may wait for ever
        watchdog.start()
        slow = []
        for line in SLOW:
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
            slow.append(process.stdout.readline())
        process.stdin.write("".join(f"{line}\n" for line in FAST).encode())
        process.stdin.flush()
        fast = [process.stdout.readline() for _ in FAST]
        process.stdin.write(b"ab\nb\xff\nab\n")
        process.stdin.close()
        rest = process.stdout.readlines()
        messages = process.stderr.read().decode().splitlines()
        watchdog.cancel()
    return Piped(slow, fast, rest, process.returncode, messages)


def check_answers(answers: list[bytes], lines: list[str], first: int, model: Path) -> None:
    """Checks the JSON records of these lines, the first of which has the number `first`."""
    records = [json.loads(answer) for answer in answers]
    assert [(record["line"], record["source"]) for record in records] == list(enumerate(lines, start=first))
    results = regard.load(model).batch(lines, max_length=3)
    assert [record["text"] for record in records] == [result.text for result in results]
    assert [record["log_prob"] for record in records] == pytest.approx([result.log_prob for result in results], abs=1e-5)


def test_a_slow_pipe_is_answered_line_by_line_and_a_fast_one_the_same(piped: Piped, model: Path) -> None:
    check_answers(piped.slow, SLOW, 1, model)
    check_answers(piped.fast, FAST, 4, model)


def test_a_bad_line_of_a_pipe_ends_it_after_the_lines_before(piped: Piped, model: Path) -> None:
    check_answers(piped.rest, ["ab"], 304, model)
    assert piped.code == 1
    (message,) = (line for line in piped.messages if line.startswith("regard: "))
    assert message.startswith("regard: standard input:305: byte 0xff at position 2 is not UTF-8")


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked, which only Linux does safely")
def test_workers_are_forked_before_any_thread_starts(piped: Piped) -> None:
    assert piped.messages[-1] == "fork with 1 thread, fork with 1 thread, thread"


# --- files -------------------------------------------------------------------------------------------------------------------


def test_paths_are_relative_to_the_file_that_lists_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two lists name different sounds by the same name; lines are numbered through all files."""
    listener = make_listener(tmp_path)
    settings = RnnSettings(width=8, embedding=4, score_width=4, frontend="sound", channels=4)
    folder.save(folder.Saved(listener.model, settings, listener.source, listener.target, {}, ""), tmp_path / "model")
    for name, word in (("one", "abc"), ("two", "h")):
        (tmp_path / name).mkdir()
        write_words(tmp_path / name, [word])
    (tmp_path / "one" / "list.txt").write_text("0-1.wav\n\n")
    (tmp_path / "two" / "list.txt").write_text("0-1.wav\nnone.wav\n0-1.wav\n")
    with pytest.raises(UserError, match="lines that could not be translated and were left empty: 1"):
        translate(tmp_path / "model", [tmp_path / name / "list.txt" for name in ("one", "two")], max_length=3, json=True)
    shown = capsys.readouterr()
    records = [json.loads(line) for line in shown.out.splitlines()]
    assert [record["line"] for record in records] == [1, 2, 3, 4, 5]
    one, two = (listener.at(tmp_path / name)("0-1.wav", max_length=3) for name in ("one", "two"))
    assert one.log_prob != two.log_prob
    assert [records[index]["log_prob"] for index in (0, 2, 4)] == pytest.approx([one.log_prob, two.log_prob, two.log_prob])
    assert records[1]["text"] == ""
    assert records[3]["error"] == f"{tmp_path / 'two' / 'none.wav'}: no such file"
    assert shown.err.startswith(f"regard: line 4 is left empty: {tmp_path / 'two' / 'none.wav'}: no such file\n")


def test_lines_are_counted_until_they_are_answered(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b" ab \r\n\nc\nb\xff\n")
    ((directory, lines),) = lines_of([path])
    assert directory == tmp_path
    sources = Lines(regard.load(model).reader, lines)
    assert list(sources) == list(sources.unanswered) == ["ab", "", "c"]
    assert str(sources.error).startswith(f"{path}:4: byte 0xff at position 2 is not UTF-8")
    pause = Lines(regard.load(model).reader, iter(["a", None, "b"]))
    assert list(pause) == ["a", None, "b"]
    assert list(pause.unanswered) == ["a", "b"]
