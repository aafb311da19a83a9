"""Compares mechanisms: trains each on the same task with the same budget, in a process of its own, and collects what came out.

The folder of a comparison holds

    plan.json          what is compared: the data, its units, the sizes, the budget
    data/              the strings of a built-in task
    NAME-SEED/         the model of a cell, which `regard.load` opens
    NAME-SEED.json     its result, written at once when it is complete
    compare.md, .json, .html, .png    the reports

A comparison that was killed goes on where it was: finished cells are read, others continue from their last checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from regard.checkpoint.files import discard, replace_file, writing
from regard.checkpoint.lock import locked
from regard.comparing import contenders as table
from regard.comparing.cell import Cell, CellTask
from regard.comparing.contenders import Contender
from regard.comparing.crew import Crew
from regard.comparing.recipes import SENTENCES, STRINGS, Recipe
from regard.comparing.report import Comparison, Row
from regard.comparing.tasks import NUM_TEST, QUICK_TEST, TASKS, Task
from regard.core.devices import choose_device
from regard.errors import UserError, check_whole, plural
from regard.evaluation import can_use_sacrebleu
from regard.models.rnn_seq2seq import RnnSettings
from regard.training.choice import choose
from regard.training.console import RunConsole
from regard.training.members import share_cores
from regard.training.order import Order
from regard.training.overrides import flat_settings, override
from regard.training.run_folder import RunFolder
from regard.training.settings import RunSettings
from regard.training.train import Data, Path_, columns, given_data
from regard.training.transfer import Start
from regard.wording import in_python

BudgetKind: TypeAlias = Literal["updates", "minutes", "operations"]
FILE_UPDATES = 2000
"""The number of updates for files, if no budget is given."""


@dataclass(frozen=True)
class Budget:
    """What every mechanism may use: the same number of updates, minutes or operations."""

    kind: BudgetKind
    amount: float

    def __str__(self) -> str:
        return f"{self.amount:,.6g} {self.kind}"


@dataclass(frozen=True)
class Plan:
    """What all cells share. title: what the report calls the data.  task: the built-in task, or "".
    settings: of all runs, before those of a family and of a contender.  changes: what the user changed, by key.
    measured: the measure that counts."""

    title: str
    task: str
    settings: RunSettings
    recipe: Recipe
    changes: Mapping[str, Any]
    budget: Budget
    measured: str
    threads: int

    def facts(self) -> dict[str, Any]:
        """Returns what must not change while a comparison goes on, for plan.json."""
        digests = {name: _digest(Path(name)) for name in (*self.settings.data.files, *self.settings.data.held_out_files)}
        return {
            "data": list(digests.values()),
            "reading": {**asdict(self.settings.data), "files": [], "held_out_files": []},
            "sizes": {kind: dict(sizes) for kind, sizes in self.recipe.sizes.items()},
            "train": asdict(self.settings.train),
            "changes": dict(self.changes),
            "budget": asdict(self.budget),
            "measured": self.measured,
            "threads": self.threads,
        }

    def order(self, contender: Contender, seed: int, out: Path, updates: int | None) -> Order:
        """Returns the order for a cell. updates: how many it makes, if that is known from another seed."""
        own = self.settings_of(contender)
        given = {"seed": seed}
        if updates or self.budget.kind == "updates":
            given["train.steps"] = updates or round(self.budget.amount)
        free = None if updates else self.budget.amount
        return Order(
            data=tuple(map(Path, own.data.files)),
            held_out=tuple(map(Path, own.data.held_out_files)),
            out=out,
            settings=own,
            changes=given,
            minutes=free if self.budget.kind == "minutes" else None,
            operations=free if self.budget.kind == "operations" else None,
        )

    def settings_of(self, contender: Contender) -> RunSettings:
        """Returns the settings of a contender. Changes by the user come last; those that its family lacks are left out."""
        settings = override(self.settings, {**self.recipe.changes(contender.kind), **contender.settings})
        fields = settings.model.__dataclass_fields__
        known = {key: value for key, value in self.changes.items() if not _of_other_family(key, fields)}
        return override(settings, known)


def _of_other_family(key: str, fields: Mapping[str, object]) -> bool:
    section, _, name = key.partition(".")
    return section == "model" and name not in fields


def compare(
    data: Data = "reverse",
    out: Path_ | None = None,
    *,
    only: Sequence[str] | str = (),
    without: Sequence[str] | str = (),
    updates: int | None = None,
    minutes: float | None = None,
    operations: float | None = None,
    seeds: int = 1,
    quick: bool = False,
    held_out: Data | None = None,
    source: str | int | Sequence[str | int] | None = None,
    target: str | int | None = None,
    settings: Mapping[str, object] | None = None,
    overwrite: bool = False,
    side_by_side: int | None = None,
    threads: int = 1,
    quiet: bool = False,
) -> Comparison:
    """Trains every mechanism on one task with an equal budget, and returns one table: `regard.compare("reverse")`.

    It does what the command `regard compare` does. Each run has the same data, sizes, learning rate and order of batches, and
    a process of its own, so that its peak memory is its own.

    data: a built-in task (copy, reverse, sort, recall, bag, dictionary), or data as for `regard.train`.
    out: the folder to write, with all models and reports. The same call again continues a comparison that was interrupted, and
    other mechanisms or more seeds are added to it. By default, nothing is kept but what is returned.
    only: names of mechanisms, or patterns such as "luong-*"; by default all.
    without: parts of the Transformer to leave out, one at a time: scale, mask, positions, residual, norm, heads, or "all".
    updates, minutes, operations: the budget of each run; minutes and operations are turned into updates before the first.
    seeds: how many runs of each, with the seeds 1, 2, …
    quick: fewer mechanisms, updates and test sources: three minutes on two idle cores.
    held_out, source, target: as for `regard.train`.  settings: for all runs, by key, such as {"train.learning_rate": 0.002}.
    side_by_side: how many runs at a time; by default as many as there are cores for their `threads`.

    Raises UserError if the data or an option is wrong, if the folder holds another comparison, and after Ctrl-C, when all runs
    were saved.

    >>> found = regard.compare("pairs.tsv", only="bahdanau, luong-dot", updates=2, quiet=True)
    >>> [(row.name, row.updates) for row in found.rows]
    [('luong-dot', 2), ('bahdanau', 2)]
    """
    for name, number in (("seeds", seeds), ("threads", threads), ("side_by_side", side_by_side or 1)):
        check_whole(name, number)
    budget = _budget(updates, minutes, operations)
    chosen = table.choose(_names(only) or (table.QUICK if quick else ()), _tricks(without))
    console = RunConsole(quiet=quiet, words=in_python)
    with _folder(out) as folder, locked(folder):
        if overwrite:
            for path in _ours(folder):
                discard(path)
        reading = {"source_columns": columns(source), "target_column": "".join(columns(target))}
        plan = _plan(data, held_out, reading, flat_settings(dict(settings or {})), budget, folder, quick=quick, threads=threads)
        for contender in chosen:
            plan.settings_of(contender)  # reports errors in the settings before anything runs
        _check(plan, chosen)
        if plan.task:
            _write_strings(TASKS[plan.task], QUICK_TEST if quick else NUM_TEST, folder)
        _keep(plan, folder)
        number, _ = share_cores(len(chosen) * seeds, threads, torch.device("cpu"))
        crew = Crew(side_by_side or number, console)
        console.print(
            f"{plural(len(chosen), 'mechanism')}, {plural(seeds, 'seed')}, {plan.budget} each; "
            f"{crew.side_by_side} at a time, with {plural(threads, 'thread')} each; {plan.title}"
        )
        since = time.monotonic()
        for seed in range(1, seeds + 1):
            crew.run([task for contender in chosen if (task := _task(plan, contender, seed, folder))])
        found = _collect(plan, chosen, range(1, seeds + 1), folder)
        found.save(folder)
        console.print(f"\n{found.table()}\n\n{(time.monotonic() - since) / 60:.1f} minutes")
        if out is not None:
            console.print(f"saved in {out}; open {Path(out) / 'compare.html'}")
    return found


# --- the plan ----------------------------------------------------------------------------------------------------------------


def _budget(updates: int | None, minutes: float | None, operations: float | None) -> Budget | None:
    given = {"updates": updates, "minutes": minutes, "operations": operations}
    named = [Budget(kind, float(amount)) for kind, amount in given.items() if amount is not None]  # type: ignore[arg-type]
    if len(named) > 1:
        raise UserError(f"got {' and '.join(budget.kind for budget in named)}; give one budget, which all mechanisms share")
    for budget in named:
        if not 0 < budget.amount < float("inf") or (budget.kind == "updates" and budget.amount % 1):
            raise UserError(f"{budget.kind}: got {budget.amount:g}, expected a number above 0, such as 500")
    return named[0] if named else None


def _names(given: Sequence[str] | str) -> tuple[str, ...]:
    """Splits names that are separated by commas."""
    parts = (given,) if isinstance(given, str) else tuple(given)
    return tuple(name.strip() for part in parts for name in part.split(",") if name.strip())


def _tricks(without: Sequence[str] | str) -> tuple[str, ...]:
    names = _names(without)
    return table.TRICKS if "all" in names else names


def _plan(
    data: Data,
    held_out: Data | None,
    reading: Mapping[str, Any],
    changes: Mapping[str, Any],
    budget: Budget | None,
    folder: Path,
    *,
    quick: bool,
    threads: int,
) -> Plan:
    """Returns the plan."""
    if isinstance(data, str) and data in TASKS:
        if held_out is not None:
            raise UserError(f"the task {data} has test strings of its own; leave out held_out")
        return _plan_of_task(data, changes, budget, folder, quick=quick, threads=threads)
    if isinstance(data, str) and not Path(data).exists():
        raise UserError(f"{data}: no such file, and no built-in task; the tasks are {', '.join(TASKS)}")
    order = Order(
        data=given_data(data, "data"),
        held_out=() if held_out is None else given_data(held_out, "held_out"),
        out=folder / "data",
        reading=reading,
        changes={**{key: value for key, value in changes.items() if key.startswith("data.")}, "model.kind": "rnn"},
    )
    if order.run_file:
        raise UserError(f"{order.run_file} is a run file, which is about one model; give data to compare several")
    order = order.in_files(RunFolder.for_model(folder / "data"), resuming=(folder / "plan.json").exists())
    chosen = choose(order, Start.load(order.start_settings(), {})).settings
    sentences = chosen.data.target_unit in ("bpe", "unigram")
    recipe = SENTENCES if sentences else STRINGS
    updates = budget or Budget("updates", FILE_UPDATES)
    measured = "exact match" if not sentences else "BLEU" if can_use_sacrebleu() else "word error rate"
    model = RnnSettings(frontend=chosen.model.traits.frontend)  # type: ignore[arg-type]
    settings = RunSettings(data=chosen.data, model=model, train=recipe.train)
    title = ", ".join(Path(name).name for name in chosen.data.files)
    others = {key: value for key, value in changes.items() if not key.startswith("data.")}
    return Plan(title, "", settings, recipe, others, updates, measured, threads)


def _plan_of_task(
    name: str, changes: Mapping[str, Any], budget: Budget | None, folder: Path, *, quick: bool, threads: int
) -> Plan:
    task = TASKS[name]
    base = RunSettings(train=STRINGS.train)
    given = {
        "data.files": (str(folder / "data" / "train.tsv"),),
        "data.held_out_files": (str(folder / "data" / "test.tsv"),),
        "data.header": "no",
        "data.target_unit": task.target_unit,
    }
    budget = budget or Budget("updates", task.quick_updates if quick else task.updates)
    return Plan(f"{name}: {task.about}", name, override(base, given), STRINGS, changes, budget, "exact match", threads)


def _write_strings(task: Task, num_test: int, folder: Path) -> None:
    """Writes the strings of a built-in task. Raises UserError if the folder holds others, of another comparison or the user."""
    for part, pairs in zip(("train", "test"), task.pairs(num_test), strict=True):
        path = folder / "data" / f"{part}.tsv"
        content = "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs).encode()
        if path.exists() and path.read_bytes() != content:
            raise _holds_another(folder, "data")
        if not path.exists():
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, content)


def _holds_another(folder: Path, changed: str) -> UserError:
    return UserError(f"{folder} holds a comparison with other {changed}; choose another folder, or start over with --overwrite")


def _check(plan: Plan, chosen: Sequence[Contender]) -> None:
    """Raises UserError for changes that no contender has, or that the comparison itself decides."""
    if wrong := sorted({"seed", "train.steps", "model.kind"} & set(plan.changes)):
        raise UserError(f"settings: {wrong[0]} is what a comparison decides; give seeds, a budget, or names of mechanisms")
    kinds = {contender.kind: plan.settings_of(contender).model.__dataclass_fields__ for contender in chosen}
    for key in plan.changes:
        if all(_of_other_family(key, fields) for fields in kinds.values()):
            raise UserError(f"settings: no mechanism that is compared has {key}")


def _keep(plan: Plan, folder: Path) -> None:
    """Writes plan.json, or checks it. Raises UserError if the folder holds another comparison."""
    path, facts = folder / "plan.json", json.loads(json.dumps(plan.facts()))
    if not path.exists():
        replace_file(path, json.dumps(facts, indent=1).encode())
        return
    before = json.loads(path.read_text("utf-8"))
    if changed := [name for name in facts if facts[name] != before.get(name)]:
        raise _holds_another(folder, " and ".join(changed))


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


# --- cells -------------------------------------------------------------------------------------------------------------------


def _task(plan: Plan, contender: Contender, seed: int, folder: Path) -> CellTask | None:
    """Returns what a cell has to do; None if it is done."""
    name = f"{contender.name}-{seed}"
    result = folder / f"{name}.json"
    if Cell.read(result):
        discard(RunFolder.for_model(folder / name).path)
        return None
    first = Cell.read(folder / f"{contender.name}-1.json") if seed > 1 else None
    order = plan.order(contender, seed, folder / name, first.updates or None if first else None)
    return CellTask(
        order,
        dict,
        choose_device("cpu"),
        plan.threads,
        contender=contender.name,
        seed=seed,
        result=result,
        measured=plan.measured,
        task=plan.task,
    )


def _collect(plan: Plan, chosen: Sequence[Contender], seeds: Sequence[int], folder: Path) -> Comparison:
    rows = []
    for contender in chosen:
        cells = [Cell.read(folder / f"{contender.name}-{seed}.json") for seed in seeds]
        rows.append(Row(contender, tuple(cell for cell in cells if cell), plan.measured))
    return Comparison(tuple(rows), plan.title, str(plan.budget), plan.measured)


def _ours(folder: Path) -> list[Path]:
    """Returns what a comparison writes into its folder. Raises UserError if the folder holds something else."""
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    if found and not (folder / "plan.json").exists():
        raise UserError(f"{folder} holds files, but no comparison that could start over; choose another folder")
    names = [one.name for one in (*table.CONTENDERS, *table.WITHOUT)]
    strings = folder / "data"
    others = [path for path in found if not _is_ours(path.name.removeprefix("."), names)]
    others += [path for path in strings.glob("*") if not path.name.removeprefix(".").startswith(("train.tsv", "test.tsv"))]
    if others:
        name = others[0].relative_to(folder)
        raise UserError(f"{folder} holds files that are not of a comparison, such as {name}; choose another folder")
    return found


def _is_ours(name: str, names: Sequence[str]) -> bool:
    known = name in ("plan.json", "data", "data.run", "data.lock")
    return known or name.startswith(("plan.json-", "data.run-", "compare.", "compare-", *(f"{one}-" for one in names)))


@contextmanager
def _folder(out: Path_ | None) -> Iterator[Path]:
    """Yields the folder of the comparison: a temporary one, which is removed afterwards, if none was given."""
    if out is not None:
        folder = Path(os.fspath(out))
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        try:
            yield folder
        finally:
            with suppress(OSError):  # it is not empty: nothing was refused
                folder.rmdir()
        return
    with tempfile.TemporaryDirectory(prefix="regard-compare-") as folder_name:
        yield Path(folder_name)
