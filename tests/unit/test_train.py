"""Training from Python: what it takes, what it leaves as it was, how it stops and how it reports."""

from __future__ import annotations

import io
import logging
import os
import signal
import threading
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import regard
from regard.errors import UserError
from regard.models.rnn_seq2seq import RnnSettings
from regard.training.console import RunConsole
from regard.training.overrides import keys_of
from regard.training.progress import progress_bar, with_progress
from regard.training.settings import RunSettings, TrainSettings

PAIRS = [(f"{a}{b}", f"{b}{a}") for a in "abcde" for b in "fghij"]
TINY: dict[str, Any] = {"width": 4, "embedding": 3, "score_width": 3, "batch_tokens": 40, "steps": 6, "checkpoint_every": 4}
TINY |= {"threads": 1, "quiet": True}


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def weights(model: regard.Translator) -> list[torch.Tensor]:
    return list(model.model.state_dict().values())


def same(one: regard.Translator, other: regard.Translator) -> bool:
    return all(map(torch.equal, weights(one), weights(other)))


# --- names of settings -------------------------------------------------------------------------------------------------------


def test_settings_are_found_by_name() -> None:
    assert keys_of({"steps": 3, "kind": "tiny", "seed": 2, "train.clip": 1.0, "vocabulary": 300}, "train") == {
        "train.steps": 3,
        "model.kind": "tiny",
        "seed": 2,
        "train.clip": 1.0,
        "data.vocabulary": 300,
    }
    assert keys_of({"heads": 2}, "train") == {"model.heads": 2}, "a setting of another family than the default one"
    for name in ("start.model", "model"):
        assert name not in keys_of({"files": "x"}, "train")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"stpes": 3}, r"train\(\) got an unknown argument 'stpes', which is no setting either; did you mean \"steps\"\?"),
        ({"xyzzy": 3}, r"'xyzzy', which is no setting either; expected one of accumulate, activation, "),
        ({"freeze": True}, "unknown argument 'freeze'"),
        ({"steps": 3, "train.steps": 4}, r"got the setting 'train.steps' twice"),
    ],
)
def test_wrong_names_are_errors(given: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        keys_of(given, "train")


def test_an_ambiguous_name_lists_the_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.training import overrides

    monkeypatch.setattr(overrides, "_trees", lambda: iter([{"data": {"size": 1}, "train": {"size": 2}}]))
    with pytest.raises(TypeError, match=r"'size', which names several settings: data.size, train.size; give one of these keys"):
        keys_of({"size": 3}, "train")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"data": "missing.tsv"}, "missing.tsv: no such file"),
        ({"data": ("a.txt", "b.txt")}, "a.txt: no such file"),
        ({"settings": "run.yaml"}, "settings: run.yaml: no such file"),
        ({"data": {"train": PAIRS}}, r"data is a mapping with 'train', expected pairs; choose a part of it: data\[…\]"),
        ({"data": []}, r"data: expected pairs of texts .* found none in 0 lines"),
        ({"data": ["ab", "cd"]}, "row 1 of the data is 'ab'; expected pairs"),
        ({"data": [("a\ud800", "b"), ("c", "d")]}, r"^data:1: a lone surrogate"),
        ({"data": [{"a": "1", "b": "2", "c": "3"}]}, r"data has 3 columns .*e.g. source=1 target=2, or source=\(1, 3\)"),
        ({"steps": 0}, "^train.steps: input should be greater than or equal to 1"),
        ({"settings": {"train": {"stpes": 3}}}, r"there is no setting 'train.stpes'; did you mean \"train.steps\"\?"),
        ({"settings": {"start.model": "m"}}, "start.…: use start_from, encoder_from and freeze=True to say"),
        ({"freeze": True}, "freeze=True requires an encoder to freeze; name its model with encoder_from"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"device": "cuda:7"}, "device 'cuda:7' is not available on this machine; use device=\"auto\""),
    ],
)
def test_mistakes_are_explained_in_the_words_of_python(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        regard.train(**{"data": PAIRS, **TINY, **arguments})


@pytest.mark.parametrize("given", [{"data": 3}, {"data": b"x"}, {"settings": 3}])
def test_what_is_no_data_is_a_type_error(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"(data|settings) is .*, expected"):
        regard.train(**{"data": PAIRS, **TINY, **given})
    with pytest.raises(ValueError, match="threads is 0"):
        regard.train(PAIRS, **{**TINY, "threads": 0})


# --- data --------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_data_of_every_kind_gives_the_same_weights(inside: Path) -> None:
    """A list, a generator, dictionaries, nested dictionaries, files; settings by name, by key, nested, or in a file."""
    expected = regard.train(PAIRS, **TINY)
    rows = [{"id": number, "translation": {"en": a, "de": b}} for number, (a, b) in enumerate(PAIRS)]
    (inside / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS))
    (inside / "a.txt").write_text("\n".join(a for a, _ in PAIRS) + "\n")
    (inside / "b.txt").write_text("\n".join(b for _, b in PAIRS) + "\n")
    assert same(regard.train((pair for pair in PAIRS), **TINY), expected)
    assert same(regard.train(rows, source="en", target="de", **TINY), expected)
    assert same(regard.train([{"target": b, "source": a} for a, b in PAIRS], **TINY), expected)
    assert same(regard.train(("a.txt", "b.txt"), **TINY), expected)
    assert same(regard.train(Path("pairs.tsv"), "m", **TINY), expected)
    others = {name: value for name, value in TINY.items() if name not in ("steps", "width")}
    for settings in ({"train.steps": 6, "model.width": 4}, {"train": {"steps": 6}, "model": {"width": 4}}):
        assert same(regard.train(PAIRS, settings=settings, **others), expected)
    assert same(regard.train(PAIRS, settings="m.run/run.yaml", threads=1, quiet=True), expected)
    assert same(regard.train("m.run/run.yaml", threads=1, quiet=True), expected)
    assert os.listdir(inside) == [*(name for name in os.listdir(inside) if name in "pairs.tsv a.txt b.txt m m.run".split())]


@pytest.mark.slow
def test_complete_settings_are_taken_as_they_are() -> None:
    settings = RunSettings(
        seed=3, model=RnnSettings(width=6, embedding=5, score_width=3), train=TrainSettings(steps=2, batch_tokens=40)
    )
    model = regard.train(PAIRS, settings=settings, quiet=True, clip=0.5)
    assert model.settings == settings.model
    recorded = model.training["settings"]
    assert (recorded["seed"], recorded["train"]["steps"], recorded["train"]["clip"]) == (3, 2, 0.5)


@pytest.mark.slow
def test_held_out_pairs_and_columns_in_memory() -> None:
    held_out = [("xa", "ax"), ("xb", "bx")]
    seen = regard.train(PAIRS, held_out=held_out, validate_every=3, **TINY)
    assert "held_out.jsonl" in seen.training["signature"]
    several = [((a, "V;PST"), b) for a, b in PAIRS]
    model = regard.train(several, "m", held_out=several[:3], **TINY)
    assert model(("af", "V;PST"), max_length=3).source == ("af", "V;PST")
    assert model.training["settings"]["data"]["source_columns"] == ["source", "source 2"]
    assert same(regard.train(several, "m", held_out=several[:3], **TINY), model)


# --- runs --------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_call_again_continues_and_other_data_or_settings_are_refused() -> None:
    model = regard.train(PAIRS, "m", **TINY)
    assert same(regard.train(iter(PAIRS), "m", **TINY), model)
    assert same(regard.load("m"), model)
    assert regard.load("m").training == model.training
    assert regard.load("m").card == model.card
    before = {path: path.read_bytes() for path in Path("m.run").rglob("*") if path.is_file()}
    with pytest.raises(
        UserError, match=r"the training data changed since this run started; .*another out or with overwrite=True"
    ):
        regard.train(PAIRS[:-1], "m", **TINY)
    with pytest.raises(UserError, match=r"train.clip was 1.0 and is now 0.5.*choose another out, or use overwrite=True"):
        regard.train(PAIRS, "m", clip=0.5, **TINY)
    assert {path: path.read_bytes() for path in Path("m.run").rglob("*") if path.is_file()} == before
    other = regard.train(PAIRS[:-1], "m", overwrite=True, **TINY)
    assert not same(other, model)
    with pytest.raises(UserError, match="data:1: a lone surrogate"):
        regard.train([("a\ud800", "b"), *PAIRS], "m2", **TINY)


@pytest.mark.slow
def test_on_update_sees_every_update_and_can_stop_the_run() -> None:
    """A run that was stopped returns a model, saves it, and continues to the same weights as one that was not."""
    updates: list[regard.Update] = []
    unbroken = regard.train(PAIRS, "whole", on_update=updates.append, **TINY)
    assert [update.number for update in updates] == [0, 1, 2, 3, 4, 5]
    assert all(update.loss > 0 and update.norm > 0 and update.num_targets > 0 for update in updates)
    stopped = regard.train(PAIRS, "m", on_update=lambda update: update.number < 2, **TINY)
    assert not same(stopped, unbroken)
    assert "stopped-after:3" in stopped.training["signature"]
    assert same(regard.load("m"), stopped)
    assert same(regard.load("m.run", update=3), stopped)
    later: list[int] = []
    assert same(regard.train(PAIRS, "m", on_update=lambda update: later.append(update.number), **TINY), unbroken)
    assert later == [3, 4, 5]
    log = [Path(name, "log.jsonl").read_text().count("norm") for name in ("m.run", "whole.run")]
    assert log == [6, 6]
    alone = regard.train(PAIRS, on_update=lambda update: update.number < 2, **TINY)
    assert same(alone, stopped)


@pytest.mark.slow
def test_an_exception_of_on_update_is_raised_and_loses_no_checkpoint() -> None:
    def fail(update: regard.Update) -> None:
        if update.number == 4:
            raise LookupError("mine")

    unbroken = regard.train(PAIRS, **TINY)
    with pytest.raises(LookupError, match="mine"):
        regard.train(PAIRS, "m", on_update=fail, **TINY)
    assert regard.load("m.run").training["update"] == 4
    assert not Path("m").exists()
    assert not Path(".m.lock").exists()
    assert same(regard.train(PAIRS, "m", **TINY), unbroken)


@pytest.mark.slow
def test_an_interrupted_run_says_how_to_continue() -> None:
    def interrupt(update: regard.Update) -> None:
        if update.number == 1:
            os.kill(os.getpid(), signal.SIGINT)

    words = r"training stopped after update 2 of 6 and was saved in .*m.run; make the same call to continue"
    with pytest.raises(UserError, match=words):
        regard.train(PAIRS, "m", on_update=interrupt, **TINY)
    assert same(regard.train(PAIRS, "m", **TINY), regard.train(PAIRS, **TINY))


@pytest.mark.slow
def test_a_run_without_a_checkpoint_starts_again(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(update: regard.Update) -> None:
        raise LookupError

    loud = {**TINY, "quiet": False}
    with pytest.raises(LookupError):
        regard.train(PAIRS, "m", on_update=fail, **loud)
    assert "no checkpoint" not in capsys.readouterr().out
    with pytest.raises(UserError, match=r"m.run: this run has no checkpoint yet"):
        regard.load("m.run")
    regard.train(PAIRS, "m", **loud)
    printed = capsys.readouterr().out
    assert "this run had no checkpoint yet; it starts again from update 0" in printed
    assert "the model has the weights of update 6\n" in printed
    assert "saved in m\n" in printed


@pytest.mark.slow
def test_the_weights_that_were_chosen_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The sequence error rate of every validation is 100 %, so the first one counts."""
    given = {**TINY, "quiet": False, "validate_every": 2, "metric": "sequence_error_rate"}
    regard.train(PAIRS, **given)
    printed = capsys.readouterr().out
    assert printed.count("sequence error rate 100.00%\n") == 3
    assert "the model has the weights of update 2\n" in printed
    regard.train(PAIRS, **{**given, "metric": "loss", "average": 2, "checkpoint_every": 2, "learning_rate": 0.5})
    assert "the model has the weights of " in capsys.readouterr().out


@pytest.mark.slow
def test_the_last_weights_instead_of_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    """Validations only inform, so the weights are those of a run without any. The best ones are not kept."""
    given = {**TINY, "validate_every": 2, "metric": "sequence_error_rate"}
    last = regard.train(PAIRS, "m", **{**given, "weights": "last", "quiet": False})
    assert "the model has the weights of update 6\n" in capsys.readouterr().out
    assert not list(Path("m.run/best").glob("*/*"))
    assert same(last, regard.train(PAIRS, **TINY))
    assert not same(last, regard.train(PAIRS, **given))
    regard.train(PAIRS, "n", **{**given, "weights": "last", "checkpoint_every": 2, "average": 2, "quiet": False})
    assert "the model has the weights of 2 checkpoints, averaged\n" in capsys.readouterr().out


# --- what stays as it was ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_settings_of_the_process_are_restored() -> None:
    """Threads, random numbers and handlers of signals, also after an error; and in another thread."""

    def state() -> list[Any]:
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        return [torch.get_num_threads(), torch.get_rng_state().tolist(), handlers, logging.getLogger("regard").handlers]

    torch.manual_seed(11)
    before, inside = state(), list[int]()
    other = {**TINY, "threads": 2}
    regard.train(PAIRS, on_update=lambda update: inside.append(torch.get_num_threads()), **other)
    assert inside == [2] * 6
    assert state() == before
    with pytest.raises(LookupError):
        regard.train(PAIRS, on_update=lambda update: {}[update], **other)
    assert state() == before

    trained: list[regard.Translator] = []
    thread = threading.Thread(target=lambda: trained.append(regard.train(PAIRS, **TINY)))
    thread.start()
    thread.join()
    assert same(trained[0], regard.train(PAIRS, **TINY))
    assert state() == before


# --- what it reports ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_quiet_prints_nothing_and_the_logger_receives_everything(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "regard")
    regard.train(PAIRS, validate_every=3, **TINY)
    assert capfd.readouterr() == ("", "")
    assert {record.levelno for record in caplog.records} == {logging.INFO}
    logged = "\n".join(record.getMessage() for record in caplog.records)
    for words in ("25 pairs in 25 lines", "update 6/6  loss", "validation after update 3: loss", "given", "held out: symbol"):
        assert words in logged
    caplog.clear()
    regard.train(PAIRS, validate_every=3, **{**TINY, "quiet": False})
    printed = capfd.readouterr().out

    def facts(text: str) -> list[str]:
        """Returns the lines without speeds and times."""
        return [line.partition("  loss")[0] for line in text.splitlines() if line]

    assert facts(printed) == facts("\n".join(record.getMessage() for record in caplog.records))
    assert "--" not in printed.replace("---", "")


def test_the_progress_of_a_bar_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "regard")
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with progress_bar(console, 40) as show:
        for number in range(40):
            show(regard.Update(number, 1.5, 1.0, 0.1, 7))
    assert len(caplog.records) == 20
    assert caplog.records[-1].getMessage().startswith("update 40/40  loss 1.500")


def test_what_others_print_is_visible_while_a_quiet_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar captures what others print, so a quiet run has none, not even on a terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    console = RunConsole(quiet=True)
    assert console.is_terminal
    with redirect_stdout(io.StringIO()) as output, progress_bar(console, 3) as show:
        show(regard.Update(0, 1.5, 1.0, 0.1, 7))
        print("mine")
    assert output.getvalue() == "mine\n"


def test_an_empty_tuple_and_an_array_are_no_files() -> None:
    with pytest.raises(UserError, match="found none in 0 lines"):
        regard.train((), **TINY)
    with pytest.raises(UserError, match="row 1 of the data is array"):
        regard.train(np.zeros((2, 2)), **TINY)


class Notebook(io.StringIO):
    """The standard output of a notebook: a carriage return goes back to the start of the line."""

    def lines(self) -> list[str]:
        shown = []
        for line in self.getvalue().split("\n"):
            cells: list[str] = []
            for part in line.split("\r"):
                cells[: len(part)] = part
            shown.append("".join(cells).rstrip())
        return shown


@pytest.fixture
def in_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes rich believe that it runs in a notebook; ipywidgets is not installed."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("regard.training.progress.REFRESH", 0.0)


@pytest.mark.usefixtures("in_notebook")
def test_a_notebook_shows_one_line_that_changes() -> None:
    """It needs neither ipywidgets nor a thread, and what is printed in between stays."""
    threads = threading.active_count()
    with redirect_stdout(Notebook()) as notebook, progress_bar(console := RunConsole(), 3) as show:
        show(regard.Update(0, 1.5, 1.0, 0.1, 7))
        assert notebook.lines()[-1] == "training 1/3  loss 1.500"
        console.print("validation after update 1: loss 1.4")
        show(regard.Update(1, 1.5, 1.0, 0.1, 7))
        assert notebook.lines()[0] == "validation after update 1: loss 1.4"
        assert notebook.lines()[-1].startswith("training 2/3  loss 1.500")
        assert threading.active_count() == threads
    with redirect_stdout(notebook):
        assert list(with_progress(range(3), 3, "reading", console)) == [0, 1, 2]
    assert notebook.lines() == ["validation after update 1: loss 1.4", ""]


@pytest.mark.slow
@pytest.mark.usefixtures("in_notebook")
def test_a_run_in_a_notebook() -> None:
    with redirect_stdout(Notebook()) as notebook:
        regard.train(PAIRS, validate_every=3, **{**TINY, "quiet": False})
    lines = notebook.lines()
    assert not any(line.startswith(("update ", "training ")) for line in lines)
    assert any(line.startswith("validation after update 3: loss") for line in lines)
    assert "training 6/6" in notebook.getvalue()
    assert "<pre" not in notebook.getvalue()


def test_a_model_that_is_only_returned_names_no_temporary_file() -> None:
    model = regard.train(PAIRS, held_out=PAIRS[:3], **TINY)
    assert model.training["settings"]["data"]["files"] == model.training["settings"]["data"]["held_out_files"] == []
    assert regard.train(PAIRS, "kept", **TINY).training["settings"]["data"]["files"] != []
    Path("pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))
    assert regard.train("pairs.tsv", **TINY).training["settings"]["data"]["files"] == ["pairs.tsv"]
