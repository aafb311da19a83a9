"""Lines in, lines out: the part of `regard translate` between standard input and the model."""

import contextlib
import io
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_folder import make_saved

from regard.checkpoint import folder
from regard.cli.lines import as_they_come
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
