"""The child process of `regard check`: imports a student's file, calls its functions on given arguments, and prints one line of
JSON per event. It knows no formula; the parent (process.py) decides what the answers mean.

    python -m regard.checking.child REQUEST.json

Only the standard library is imported here, and NumPy or torch when arguments are made for a function. Standard output carries
the events; what the student's code prints is discarded. This limits accidents, not malice: the code runs as the user.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import itertools
import json
import os
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

LARGEST = 10_000
"""Maximum number of elements of an answer; the cases are much smaller."""

ABSENT = {"causal": False}
"""What a function gets for a parameter that a case does not set; for others None."""

Names = dict[str, str]
"""Name in the contract -> how it is passed: "" (by order), or the name of the student's parameter."""


class CannotCall(Exception):
    """The parameters of the student's function do not fit the contract."""


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)

    def send(**event: Any) -> None:
        channel.write(json.dumps(event, default=str) + "\n")
        channel.flush()

    limit(request["memory"])
    file = request["file"]
    send(event="import")
    try:
        module = load(file)
    except BaseException as error:
        send(event="broken", error=described(error, file))
        return
    names = [name for name, value in vars(module).items() if callable(value)]
    send(event="imported", names=names)
    for task in request["tasks"]:
        if task["function"] not in names:
            continue
        send(event="start", function=task["function"])
        for answer in run(getattr(module, task["function"]), task, file):
            send(event="answer", function=task["function"], **answer)
        send(event="end", function=task["function"])


def limit(memory: int) -> None:
    """Limits memory and the size of files in bytes, where the system can."""
    try:
        import resource
    except ImportError:  # Windows
        return
    for kind, number in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, 1 << 26), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(kind)[1]
        number = number if hard == resource.RLIM_INFINITY else min(number, hard)
        resource.setrlimit(kind, (number, hard))


def load(file: str) -> ModuleType:
    """Executes the student's file as a module. Modules next to it can be imported; it is not `__main__`."""
    sys.dont_write_bytecode = True
    random.seed(0)
    module = ModuleType(Path(file).stem)
    module.__file__ = file
    code = compile(Path(file).read_bytes(), file, "exec")
    sys.path.insert(0, str(Path(file).parent))
    sys.modules[module.__name__] = module
    exec(code, vars(module))
    return module


def run(function: Callable[..., Any], task: dict[str, Any], file: str) -> Iterator[dict[str, Any]]:
    """Yields one answer per case, all with the first way of calling the function that raises nothing on a case of `first`."""
    try:
        bound = bind(function, task)
    except CannotCall as error:
        yield {"case": "", "unfit": str(error)}
        return
    ways = [
        {"arrays": arrays, "whole": whole, "lead": lead, "mask": mask, "transposed": transposed}
        for arrays, (whole, lead), mask, transposed in itertools.product(
            task["arrays"],
            shapes(task["by_row"], task["row_names"], bound),
            ("bool", "int") if task["masked"] and "mask" in bound else ("bool",),
            (False, True) if task["weights"] else (False,),
        )
    ]
    cases = {case["name"]: case for case in task["cases"]}
    failed, chosen = None, None
    for name, way in itertools.product(task["first"], ways):
        answer = call(function, bound, cases[name], task, way, file)
        if "error" not in answer and not answer.get("skipped"):
            chosen = way
            break
        failed = failed or answer
        if answer.get("error", {}).get("type") in ("MemoryError", "NotImplementedError"):
            break
    if chosen is None:
        yield failed or {"case": task["first"][0], "skipped": True}
        return
    for case in task["cases"]:
        yield call(function, bound, case, task, chosen, file) | {"way": chosen, "bound": list(bound)}


def shapes(by_row: str, row_names: Sequence[str], bound: Names) -> list[tuple[bool, int]]:
    """Returns the shapes to try, as (whole, lead): whole is False if the function gets one row at a time; lead is the number of
    batch axes before the matrix."""
    if not by_row:
        return [(True, 0), (True, 1), (True, 2)]
    whole, rows = (True, 0), (False, 0)
    first = (rows, whole) if bound.get(by_row) in row_names else (whole, rows)
    return [*first, (True, 1), (True, 2)]


def bind(function: Callable[..., Any], task: dict[str, Any]) -> Names:
    """Decides which parameter of the function gets which argument of the contract: by name if all parameters without a default
    have a known name, else by order. Raises CannotCall if that is impossible."""
    parameters, order = task["parameters"], task["order"]
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise CannotCall("its parameters are not known; write it with def") from None
    own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    if any(one.kind is one.VAR_POSITIONAL for one in own):
        return dict.fromkeys(order, "")
    known: Names = {}
    for one in own:
        matches = [name for name, others in parameters.items() if one.name in (name, *others)]
        matches += [name for name, others in parameters.items() if one.name.lower() in map(str.lower, (name, *others))]
        free = [name for name in matches if name not in known]
        if free and one.kind is not one.POSITIONAL_ONLY:
            known[free[0]] = one.name
    needed = [one.name for one in own if one.default is one.empty]
    if known and set(needed) <= set(known.values()) and set(task["required"]) <= set(known):
        return known
    listed = ", ".join(one.name for one in own) or "none"
    expected = f"expected {len(order)}: {', '.join(order)}"
    positional = [one for one in own if one.kind is not one.KEYWORD_ONLY]
    if len(positional) < len(order):
        raise CannotCall(f"it takes {len(positional)} arguments ({listed}), {expected}")
    optional = list(task["optional"])
    taken = [one for one in positional[len(order) :] if one.default is one.empty or one.default is None][: len(optional)]
    if not set(needed) <= {one.name for one in (*positional[: len(order)], *taken)}:
        raise CannotCall(f"it requires {len(needed)} arguments ({', '.join(needed)}), {expected}")
    return dict.fromkeys([*order, *optional[: len(taken)]], "")


def call(
    function: Callable[..., Any], bound: Names, case: dict[str, Any], task: dict[str, Any], way: dict[str, Any], file: str
) -> dict[str, Any]:
    """Calls the function on one case and returns the answer. A case with an argument that the function does not take is
    skipped."""
    given = case["arguments"]
    if any(name not in bound for name in case["needs"]):
        return {"case": case["name"], "skipped": True}
    try:
        reseed(way["arrays"])
        arguments = {name: made(given.get(name, ABSENT.get(name)), name, task, way) for name in bound}
        before = copy.deepcopy(arguments)
        sets = [arguments] if way["whole"] else [arguments | {task["by_row"]: row} for row in arguments[task["by_row"]]]
        values = [listed(function(*ordered(each, bound), **named(each, bound))) for each in sets]
        value = values[0] if way["whole"] else values
        changed = [name for name in arguments if lists(arguments[name]) != lists(before[name])]
        return {"case": case["name"], "changed": changed, **encoded(value, way["lead"])}
    except BaseException as error:
        return {"case": case["name"], "error": described(error, file)}


def ordered(arguments: dict[str, Any], bound: Names) -> list[Any]:
    return [arguments[name] for name, own in bound.items() if not own]


def named(arguments: dict[str, Any], bound: Names) -> dict[str, Any]:
    return {own: arguments[name] for name, own in bound.items() if own}


def reseed(arrays: str) -> None:
    """Loads the library and makes the first random numbers of every check the same; the calls of one check still differ."""
    if arrays != "lists" and "regard_seeded" not in vars(module := importlib.import_module(arrays)):
        module.__dict__["regard_seeded"] = True
        (module.random.seed if arrays == "numpy" else module.manual_seed)(0)


def made(value: Any, name: str, task: dict[str, Any], way: dict[str, Any]) -> Any:
    """Returns an argument in the form that the function gets it: nested lists, an array or a tensor, with batch axes."""
    if not isinstance(value, list):
        return value
    if name in task["weights"] and way["transposed"] and isinstance(value[0], list):
        value = [list(column) for column in zip(*value, strict=True)]
    if name == "mask" and way["mask"] == "int":
        value = [[int(cell) for cell in row] for row in value]
    if name in task["batched"]:
        for _ in range(way["lead"]):
            value = [value]
    if way["arrays"] == "lists":
        return copy.deepcopy(value)
    if way["arrays"] == "numpy":
        return importlib.import_module("numpy").array(value)
    torch = importlib.import_module("torch")
    return torch.tensor(value, dtype=torch.float64) if has_fractions(value) else torch.tensor(value)


def has_fractions(value: Any) -> bool:
    """Whether nested lists hold floating-point numbers."""
    return has_fractions(value[0]) if isinstance(value, list) else isinstance(value, float)


def encoded(value: Any, lead: int) -> dict[str, Any]:
    """Returns what a function returned, ready for JSON: its parts if it is a tuple of arrays, and their dtypes."""
    if value is None:
        return {"none": True}
    parts = value if isinstance(value, tuple) and all(depth(part) > 1 for part in value) else (value,)
    if any(size(part) > LARGEST for part in parts):
        return {"large": [shape(part) for part in parts]}
    plain = []
    for part in map(lists, parts):
        for _ in range(lead):
            part = part[0] if isinstance(part, list) and len(part) == 1 else part
        plain.append(part)
    return {"value": plain, "dtypes": [str(getattr(part, "dtype", "")) for part in parts]}


def listed(value: Any) -> Any:
    """Returns what a generator, a map or a zip yields, as a list, at every depth; row after row, as a loop would read it. An
    endless one gives a list that is too large."""
    if isinstance(value, Iterator):
        return [listed(part) for part in itertools.islice(value, LARGEST + 1)]
    if type(value) in (list, tuple):
        return type(value)(map(listed, value))
    return value


def depth(value: Any) -> int:
    """Returns the number of axes."""
    if hasattr(value, "shape"):
        return len(value.shape)
    return 1 + depth(value[0]) if isinstance(value, (list, tuple)) and value else 0


def shape(value: Any) -> list[int]:
    if hasattr(value, "shape"):
        return list(value.shape)
    return [len(value), *shape(value[0])] if isinstance(value, (list, tuple)) and value else []


def size(value: Any) -> int:
    if hasattr(value, "shape"):
        number = 1
        for length in value.shape:
            number *= int(length)
        return number
    return sum(map(size, value)) if isinstance(value, (list, tuple)) else 1


def lists(value: Any) -> Any:
    """Returns an array, a tensor or a sequence of them as nested lists of Python numbers."""
    if hasattr(value, "detach"):
        value = value.detach()
    if hasattr(value, "tolist"):
        return value.tolist()
    return [lists(part) for part in value] if isinstance(value, (list, tuple)) else value


def described(error: BaseException, file: str) -> dict[str, Any]:
    """Returns the type and text of an exception, and the last line of the student's file that it passed through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    line, code = (frames[-1].lineno, frames[-1].line) if frames else (None, "")
    if isinstance(error, SyntaxError) and error.filename == file:
        line, code = error.lineno, error.text
    text = str(error.msg if isinstance(error, SyntaxError) else error)
    return {"type": type(error).__name__, "text": text[:500], "line": line, "code": (code or "").strip()[:200]}


if __name__ == "__main__":
    main()
