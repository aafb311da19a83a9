"""`check_file`: runs and diagnoses all functions of a student's file."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from regard.checking.diagnose import Diagnosis, Finding, Verdict, diagnose
from regard.checking.process import Limits, run_file
from regard.checking.tasks import TASKS, Task, find
from regard.errors import UserError, did_you_mean

Arrays = Literal["auto", "numpy", "torch", "lists"]
LARGEST_FILE = 1 << 20


@dataclass(frozen=True)
class Report:
    """What was found in a file. problem: why it could not be run as a whole, if so."""

    file: str
    functions: list[Diagnosis] = field(default_factory=list)
    problem: Finding | None = None

    @property
    def verdict(self) -> Verdict:
        verdicts = {function.verdict for function in self.functions}
        if self.problem is not None or "failed" in verdicts:
            return "failed"
        return "wrong" if "wrong" in verdicts else "right"

    def as_dict(self) -> dict[str, Any]:
        """Returns the report for JSON."""
        return {
            "file": self.file,
            "verdict": self.verdict,
            "problem": None if self.problem is None else self.problem.as_dict(),
            "functions": [function.as_dict() for function in self.functions],
        }


def check_file(file: str | Path, *, only: Sequence[str] = (), arrays: Arrays = "auto", limits: Limits | None = None) -> Report:
    """Runs the functions of a student's file in a child process, compares them with the formulas, and names their mistakes.

    only: names of the functions to check; one that the file does not define is reported as failed. By default all that it
    defines.
    arrays: what the functions get: NumPy arrays, torch tensors or lists. "auto" gives what the file imports, or else lists.

    Raises UserError if there is no such file, or no such function to check.
    """
    file = Path(file)
    tree = _parse(file)
    if isinstance(tree, Finding):
        return Report(str(file), problem=tree)
    defined = {task.name: function for task, function in _defined(tree)}
    wanted = [_task(name).name for name in only] or list(defined)
    if not wanted:
        return _without_functions(file)
    libraries = _libraries(tree) if arrays == "auto" else (arrays,)
    tasks = [task for task in TASKS if task.name in wanted]
    requests = [_request(task, defined[task.name], libraries) for task in tasks if task.name in defined]
    outcome = run_file(file.resolve(), requests, limits or Limits())
    if outcome.broken is not None:
        return Report(str(file), problem=_broken(outcome.broken))
    diagnoses = []
    for task in tasks:
        function = defined.get(task.name)
        is_function = function in outcome.names  # and not an array of this name
        if not is_function and not only:
            continue
        if function is None or not is_function:
            missing = Finding("missing", f"the file does not define {task.signature}", "regard check --template shows it")
            diagnoses.append(Diagnosis(task.name, task.name, "failed", mistakes=[missing]))
        else:
            diagnoses.append(diagnose(function, task, outcome.answers.get(function, []), outcome.ended.get(function, "")))
    return Report(str(file), diagnoses) if diagnoses else _without_functions(file)


def _without_functions(file: Path) -> Report:
    names = ", ".join(task.name for task in TASKS)
    says = f"the file defines none of the functions that are checked: {names}"
    return Report(str(file), problem=Finding("no_function", says, "regard check --template prints a file to start from"))


def _parse(file: Path) -> ast.Module | Finding:
    """Reads a Python file. Returns what is wrong if it is not Python. Raises UserError if it cannot be read."""
    if file.suffix != ".py" or not file.is_file():
        raise UserError(f"{file}: expected a Python file that exists, such as mine.py; regard check --template prints one")
    if file.stat().st_size > LARGEST_FILE:
        raise UserError(f"{file} has more than {LARGEST_FILE:,} bytes, expected a file written by a person")
    try:
        return ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line, text = getattr(error, "lineno", None), getattr(error, "text", None)
        where = f" (line {line}: {(text or '').strip()})" if line else ""
        says = f"the file is not valid Python: {getattr(error, 'msg', None) or error}{where}"
        return Finding("syntax_error", says, "python FILE shows it too")


def _defined(tree: ast.Module) -> Iterator[tuple[Task, str]]:
    """Yields the functions that a file defines, each with its task. Of several names for one task, the best known counts."""
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Lambda, ast.Call, ast.Name)):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for task in TASKS:
        matching = [name for name in sorted(names) if find(name) is task]
        if matching:
            yield task, min(matching, key=lambda name: name != task.name)


def _task(name: str) -> Task:
    task = find(name)
    if task is None:
        names = [task.name for task in TASKS]
        raise UserError(f"there is no check for {name!r}; expected some of {', '.join(names)}{did_you_mean(name, names)}")
    return task


def _libraries(tree: ast.Module) -> tuple[str, ...]:
    """Returns what to pass to functions, the most likely first: what the file imports, then lists, then NumPy arrays."""
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    known = [library for library in ("numpy", "torch") if library in imported]
    return (*known, "lists") if "numpy" in known else (*known, "lists", "numpy")


def _request(task: Task, function: str, libraries: Sequence[str]) -> dict[str, Any]:
    """Returns what child.py needs to know."""
    cases = [{"name": case.name, "needs": case.needs, "arguments": _plain(case.arguments)} for case in task.cases]
    names = ("order", "required", "optional", "first", "by_row", "row_names", "weights", "batched")
    return {
        "function": function,
        "arrays": libraries,
        "cases": cases,
        "masked": bool(task.masked),
        "parameters": dict(task.parameters),
        **{name: getattr(task, name) for name in names},
    }


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in arguments.items()}


def _broken(error: Mapping[str, Any]) -> Finding:
    """Describes why a file could not be imported."""
    if not error["type"]:
        return Finding("did_not_import", f"the import of the file {error['text']}", "move code that runs into functions")
    line = f" (line {error['line']}: {error['code']})" if error["line"] else ""
    if error["type"] == "SystemExit":
        return Finding("ends_process", f"the file ends the process when it is imported{line}", "remove sys.exit()")
    hint = "put code that runs at import under if __name__ == '__main__':"
    if error["type"] in ("ModuleNotFoundError", "ImportError"):
        hint = "install the module, or remove the import"
    if error["type"] == "MemoryError" or "map segment" in error["text"] or "llocate memory" in error["text"]:
        hint = "give it more memory, e.g. --memory 16"
    return Finding("does_not_import", f"the file does not run: {error['type']}: {error['text']}{line}", hint)
