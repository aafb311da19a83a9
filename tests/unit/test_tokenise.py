"""How often the files of a run are read, and what the passes collect."""

import builtins
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from regard.cli.main import app
from regard.data.corpus import Pair
from regard.training import survey as surveying
from regard.training.settings import DataSettings
from regard.training.survey import survey
from regard.training.tokenise import Division, from_files

NUMBER = 260
"""More than the 200 pairs that show whether sources are file names."""
SMALL = ("train.steps=1", "train.validate_every=1", "model.width=8", "model.embedding=4", "data.held_out=0.1")


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Returns a function that trains a model, and that returns the number of pairs which each pass over the data yields.

    It asserts that the file is opened only for these passes and, once, for the fingerprint of its bytes.
    """
    passes: list[int] = []
    opened: list[str] = []
    stream, plain = surveying.stream_pairs, io.open

    def counting(*arguments: Any) -> Iterator[Pair]:
        passes.append(0)
        for pair in stream(*arguments):
            passes[-1] += 1
            yield pair

    def opening(file: Any, *arguments: Any, **named: Any) -> Any:
        opened.append(str(file))
        return plain(file, *arguments, **named)

    monkeypatch.setattr(surveying, "stream_pairs", counting)
    for module in (builtins, io):
        monkeypatch.setattr(module, "open", opening)

    def run(file: Path, out: str, *options: str, settings: tuple[str, ...] = ()) -> list[int]:
        passes.clear()
        opened.clear()
        sets = [word for setting in (*SMALL, *settings) for word in ("--set", setting)]
        done = CliRunner().invoke(app, ["train", str(file), "--out", str(tmp_path / out), *options, *sets, "--threads", "1"])
        assert done.exit_code == 0, done.output
        assert opened.count(str(file)) == len(passes) + 1
        return list(passes)

    return run


def write_words(path: Path) -> Path:
    words = ("".join("abcd"[n // 4**digit % 4] for digit in range(5)) for n in range(NUMBER))
    path.write_text("".join(f"{word}\t{word.upper()}\n" for word in words))
    return path


@pytest.mark.slow
def test_passes_of_a_run_with_texts(train: Callable[..., list[int]], tmp_path: Path) -> None:
    """After a look at the first 200 pairs: the survey, two vocabularies, the tokens."""
    file = write_words(tmp_path / "words.tsv")
    assert train(file, "m") == [200, *[NUMBER] * 4]
    assert train(file, "m") == [200, *[NUMBER] * 2]  # resumed: the survey, the held-out pairs
    assert train(file, "shared", settings=("data.shared=true",)) == [200, *[NUMBER] * 3]
    further = [200, *[NUMBER] * 2]  # the survey, the tokens
    assert train(file, "further", "--start-from", str(tmp_path / "m")) == further
    assert train(file, "known", settings=("data.source_unit=characters",)) == [NUMBER] * 4


@pytest.mark.slow
def test_passes_of_a_run_with_files(train: Callable[..., list[int]], tmp_path: Path) -> None:
    """The first 100 training pictures show how to read them. Line numbers of damaged files need one more pass."""
    for number in range(NUMBER):
        Image.new("L", (8, 8), number % 256).save(tmp_path / f"{number}.png")
    rows = [f"{number}.png\t{'ab'[number % 2]}\tX Y" for number in range(NUMBER)]
    file = tmp_path / "pictures.tsv"
    file.write_text("file\thint\ttext\n" + "\n".join(rows) + "\n")
    columns = ("--from", "file", "--to", "text")
    first, surveyed, fitted, *rest = train(file, "m", *columns)
    assert (first, surveyed, rest) == (200, NUMBER, [NUMBER] * 2)  # the target vocabulary, the tokens
    assert 100 <= fitted < NUMBER
    assert train(file, "m", *columns) == [200, *[NUMBER] * 2]
    with_text = ("--from", "file,hint", "--to", "text")
    assert train(file, "text", *with_text)[3:] == [NUMBER] * 3  # the vocabulary of the auxiliary texts, too
    (tmp_path / "3.png").write_bytes(b"this is no picture")
    assert train(file, "bad", *columns)[3:] == [NUMBER] * 3


def test_the_first_complete_pass_collects_the_held_out_pairs_and_the_sources(tmp_path: Path) -> None:
    data = DataSettings(files=(str(write_words(tmp_path / "words.tsv")),))
    console = Console(file=io.StringIO())
    division = Division(data, 0.2, NUMBER, console)
    next(division.training("reading a part"))
    training = list(division.training("reading all"))
    held_out, sources = division.held_out, division.sources
    assert sources is not None
    assert sorted([*training, *held_out]) == sorted(survey(data).sample)
    assert 0.1 * NUMBER < len(held_out) < 0.3 * NUMBER
    assert sources.describe_seen([pair.source for pair in training]).startswith(f"{len(training)} of {len(training)} ")
    assert sources.describe_seen([pair.source for pair in held_out]) == ""
    list(division.training("reading all again"))
    assert (division.held_out, division.sources) == (held_out, sources)
    again = Division(data, 0.2, NUMBER, console)
    assert again.held_out == held_out
    assert again.sources is not None
    assert again.sources.to_facts() == sources.to_facts()


def test_files_that_were_surveyed_as_texts_are_fingerprinted_too(tmp_path: Path) -> None:
    """As if the model that a run starts from reads files whose names were not recognised."""
    for number in range(20):
        Image.new("L", (8, 8), number).save(tmp_path / f"{number}.png")
    (tmp_path / "p.tsv").write_text("".join(f"{number}.png\tX\n" for number in range(20)))
    texts = DataSettings(files=(str(tmp_path / "p.tsv"),))
    files = DataSettings(files=texts.files, source_unit="picture")
    console = Console(file=io.StringIO())
    digests = [from_files(files, survey(data), tmp_path / data.source_unit, console).digest for data in (texts, files)]
    assert digests[0] == digests[1]
    Image.new("L", (16, 8)).save(tmp_path / "3.png")
    assert from_files(files, survey(files), tmp_path / "changed", console).digest != digests[0]
