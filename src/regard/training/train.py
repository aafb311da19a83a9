"""Training from Python: `regard.train` is the command `regard train` as a function."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch

from regard.core.devices import choose_device, settings_restored
from regard.errors import UserError, check_whole, shown
from regard.layers.scores import ScoreMaker
from regard.pipeline import Translator
from regard.training.console import RunConsole
from regard.training.loop import Update
from regard.training.members import train_members
from regard.training.order import Files, Order, Rows, are_files
from regard.training.overrides import flat_settings, keys_of
from regard.training.session import print_result, train_model
from regard.training.settings import RunSettings, StartSettings
from regard.training.spool import DATA, HELD_OUT
from regard.wording import in_python, python_words

Path_: TypeAlias = str | os.PathLike[str]
Data: TypeAlias = Path_ | tuple[Path_, Path_] | Iterable[object]
"""A file of pairs; two parallel files; or pairs or dictionaries in memory."""


def train(
    data: Data,
    out: Path_ | None = None,
    *,
    held_out: Data | None = None,
    settings: RunSettings | Mapping[str, object] | Path_ | None = None,
    on_update: Callable[[Update], object] | None = None,
    source: str | int | Sequence[str | int] | None = None,
    target: str | int | None = None,
    scores: Mapping[str, ScoreMaker] | None = None,
    start_from: Path_ | None = None,
    encoder_from: Path_ | None = None,
    freeze: bool = False,
    models: int = 1,
    minutes: float | None = None,
    portable: bool = False,
    tensorboard: bool = False,
    overwrite: bool = False,
    device: str | torch.device = "auto",
    threads: int | None = None,
    quiet: bool = False,
    **overrides: object,
) -> Translator:
    """Trains a model on pairs, or on texts, and returns it: `regard.train([("walk", "walked"), …], "model", steps=300)`.

    It does what the command `regard train` does: it chooses the settings from the data, writes checkpoints, and continues a run
    that was interrupted. The same data, settings and number of threads give the same weights, bit for bit.

    data: the path of a file (.tsv, .csv, .jsonl, .xlsx, or a run file .yaml), a tuple with the paths of two parallel files, any
    iterable of pairs (source, target) or of dictionaries, such as the rows of a Hugging Face dataset, or a pandas DataFrame. A
    source of several columns is a tuple. An iterable is read once, and stored in the run folder. Language models
    (kind="decoder_only" or "rnn_lm") learn from texts: a text file, or an iterable of texts.
    out: the model folder to write, next to which OUT.run holds the checkpoints. The same call again continues the run, and
    returns the model if it is finished. By default, the model is only returned.
    held_out: pairs to validate on, in any form that `data` may have; by default a part of the data.
    settings: a `RunSettings`, the path of a run file, or a mapping such as {"train.steps": 300} or {"train": {"steps": 300}}.
    overrides: settings by name, such as steps=300, width=64 or kind="transformer"; `**{"train.steps": 300}` is the same.
    on_update: called after every update with its `Update`. If it returns False, the run ends with the weights that it has then;
    a later call continues after that update. An exception ends the run; it continues from its last checkpoint.
    source, target: the columns of a file or of dictionaries, by name or number; by default they are recognised by name.
    scores: your own score functions, {"name": Class}.
    start_from: a model folder to train further.  encoder_from: a model folder whose encoder the new model starts with, or the
    folder of a BERT.
    freeze: whether that encoder stays unchanged.
    models: how many models to train, with the seeds 1, 2, …, side by side on the cores, in processes of their own. They are
    returned as an ensemble; `regard.load(out)` opens it. `threads` is then the number of threads of each model.
    minutes: how long the run may take; fixes the number of updates before the first.
    portable: whether to train a model that can be converted for other toolkits (`regard convert`).
    tensorboard: whether to write the log for TensorBoard, too.
    overwrite: whether to start over, and to replace the model folder if it exists.
    device: "auto", "cpu", "cuda", "cuda:1", "mps" or a torch.device.
    threads: the number of CPU threads; it is restored afterwards.
    quiet: whether to print nothing; the logger `regard` receives every message in any case.

    Runs in several threads at once share the random numbers of torch, so their weights are not reproducible.

    Raises UserError if the data or the settings are wrong, if the run in OUT.run has other data or settings, and after Ctrl-C,
    when a checkpoint was written; TypeError if an argument has no setting of its name.

    >>> pairs = [("cab", "C A B"), ("bad", "B A D"), ("ace", "A C E"), ("dab", "D A B")]
    >>> model = regard.train(pairs, steps=50, width=32, learning_rate=0.01, quiet=True)
    >>> model("cab").text
    'C A B'
    """
    if models != 1 and on_update:
        raise TypeError("on_update follows one run, but there are several models; train them one by one: seed=1, seed=2, …")
    complete, changes = _settings(settings)
    changes = {**changes, **keys_of(overrides, "train")}

    def order(folder: Path) -> Order:
        return Order(
            data=given_data(data, "data"),
            held_out=() if held_out is None else given_data(held_out, "held_out"),
            out=folder,
            save=out is not None,
            settings=complete,
            reading={"source_columns": columns(source), "target_column": "".join(columns(target))},
            changes=changes,
            scores=scores or {},
            minutes=minutes,
            portable=portable,
            start=StartSettings(model=_text(start_from), encoder=_text(encoder_from), freeze=freeze),
            tensorboard=tensorboard,
            overwrite=overwrite,
        )

    return train_order(order, out, models=models, on_update=on_update, device=device, threads=threads, quiet=quiet)


def train_order(
    make_order: Callable[[Path], Order],
    out: Path_ | None,
    *,
    models: int = 1,
    on_update: Callable[[Update], object] | None = None,
    device: str | torch.device = "auto",
    threads: int | None = None,
    quiet: bool = False,
) -> Translator:
    """Trains what an order says, and returns the model, or the ensemble of several models. Errors name arguments of Python.

    make_order: returns the order for a model folder, which is a temporary one if `out` is None.
    """
    for name, number in (("threads", threads), ("models", models)):
        if number is not None:
            check_whole(name, number)
    console = RunConsole(quiet=quiet, words=in_python)
    with _folder(out) as folder, python_words(_names(folder)), settings_restored(threads if models == 1 else None):
        order = make_order(folder)
        if models > 1:
            load = partial[dict[str, ScoreMaker]](dict, order.scores)
            ensemble = train_members(order, models, console, choose_device(device), threads=threads, scores=load)
            facts = ensemble.training
        else:
            trained = train_model(order, console, choose_device(device), on_update)
            print_result(trained, console)
            facts = json.loads(json.dumps(trained.saved.training))  # as a model folder returns them
        if out is not None:
            console.print(f"\nsaved in {out}")
    if out is None:  # rows in memory were in files that no longer exist
        named = {"files": order.data, "held_out_files": order.held_out}
        facts["settings"]["data"] |= {name: [] for name, rows in named.items() if not are_files(rows)}
    return (ensemble if models > 1 else Translator.of_saved(trained.saved, training=facts)).at(Path())


def given_data(data: Data, name: str) -> Files | Rows:
    """Returns data as files, which exist, or as rows in memory. name: the argument, for error messages."""
    if isinstance(data, str | os.PathLike):
        data = (data,)
    if isinstance(data, tuple) and data and all(isinstance(file, str | os.PathLike) for file in data):
        files = tuple(Path(file) for file in data)
        for file in files:
            if not file.exists():
                raise UserError(f"{file}: no such file")
        return files
    if isinstance(data, Mapping):
        parts = ", ".join(map(repr, data))
        raise UserError(f"{name} is a mapping with {parts or 'no keys'}, expected pairs; choose a part of it: {name}[…]")
    if isinstance(data, bytes) or not isinstance(data, Iterable):
        raise TypeError(f"{name} is {shown(data)}, expected a path, or an iterable of pairs (source, target) or dictionaries")
    return iter(()) if isinstance(data, tuple) and not data else data


def columns(given: str | int | Sequence[str | int] | None) -> tuple[str, ...]:
    """Returns columns as they are typed: (1, "de") becomes ("1", "de")."""
    if given is None:
        return ()
    return tuple(map(str, (given,) if isinstance(given, str | int) else given))


def _settings(given: RunSettings | Mapping[str, Any] | Path_ | None) -> tuple[RunSettings | Path | None, dict[str, Any]]:
    """Returns complete settings, if these are, and changed settings by key."""
    if isinstance(given, Mapping):
        return None, flat_settings(given)
    if given is None or isinstance(given, RunSettings):
        return given, {}
    if not isinstance(given, str | os.PathLike):
        raise TypeError(
            f"settings is {shown(given)}, expected a RunSettings, a path, or a mapping such as {{'train.steps': 300}}"
        )
    if not Path(given).is_file():
        raise UserError(f"settings: {given}: no such file")
    return Path(given), {}


@contextmanager
def _folder(out: Path_ | None) -> Iterator[Path]:
    """Yields the model folder: a temporary one, which is removed afterwards, if none was given."""
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        yield Path(folder) / "model"


def _names(folder: Path) -> dict[str, str]:
    """Returns what to call the files of rows in memory in error messages."""
    run = folder.resolve().with_name(f"{folder.resolve().name}.run")
    names = {DATA: "data", HELD_OUT: "held_out"}
    return {str(path / file): name for path in (run, folder) for file, name in names.items()}


def _text(path: Path_ | None) -> str:
    return "" if path is None else os.fspath(path)
