"""From what a function answered to a diagnosis: which mistaken formula gives the same numbers, and which properties fail.

The search is over sets of switches (formulas.py), the smallest first: none is a right function, one is a mistake, two or three
are mistakes together. A set must give the student's numbers in every case, to 1e-9.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from regard.checking import formulas
from regard.checking.formulas import RIGHT, Array, Values, Wrong
from regard.checking.mistakes import MISTAKES, NOTES, Mistake, mistake
from regard.checking.tasks import Case, Task

EXACT, SINGLE = 1e-9, 1e-5
"""Tolerances, relative to the largest number of a case: of float64, and of a formula computed in float32."""
PROBES = ("repeated", "extreme", "permuted", "other queries", "double values", "other padding", "empty row")
"""Cases for properties. The others are compared with formulas."""
EPSILONS = tuple(f"{formulas.EPSILON}{how} 1e-{digits}" for digits in range(12, 4, -1) for how in ("shifted", "raw"))

Verdict = Literal["right", "wrong", "failed"]
Answer = Mapping[str, Any]


@dataclass(frozen=True)
class Finding:
    """One mistake or note. example: arguments on which it shows.  seen, expected: the first differing numbers there."""

    name: str
    says: str
    hint: str
    example: str = ""
    seen: str = ""
    expected: str = ""

    def as_dict(self) -> dict[str, str]:
        return dict(vars(self))


@dataclass
class Diagnosis:
    """What was found in one function. verdict: "failed" means that it could not be run.  properties: name -> whether it holds;
    empty unless the mistake has no name."""

    function: str
    task: str
    verdict: Verdict = "right"
    arrays: str = ""
    mistakes: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    properties: dict[str, bool] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        findings = {name: [one.as_dict() for one in getattr(self, name)] for name in ("mistakes", "notes")}
        return {**vars(self), **findings}


def finding(name: str, more: str = "", **evidence: str) -> Finding:
    """Returns the mistake or note with this name. more: a detail, to append to what it says."""
    found: Mistake = NOTES[name] if name in NOTES else mistake(name)
    return Finding(name.partition(":")[0], found.says + more, found.hint, **evidence)


def diagnose(function: str, task: Task, answers: Sequence[Answer], ended: str = "") -> Diagnosis:
    """Returns the diagnosis of one function.

    answers: to the cases of the task, in their order, as child.py sends them.  ended: why the process ended in it, if it did.
    """
    found = Diagnosis(function, task.name)
    failure = _failure(answers, ended)
    if failure is not None:
        found.verdict, found.mistakes = "failed", [failure]
        return found
    found.arrays = str(answers[0]["way"]["arrays"])
    found.mistakes, found.notes, found.properties = _Function(task, answers).findings()
    found.verdict = "wrong" if found.mistakes else "right"
    return found


def _failure(answers: Sequence[Answer], ended: str) -> Finding | None:
    """Returns why a function could not be run, or None if it could."""
    if ended:
        return Finding("did_not_finish" if "did not finish" in ended else "crashed", f"the function {ended}", "run it alone")
    if not answers or "unfit" in answers[0]:
        return finding("wrong_arguments", f": {answers[0]['unfit']}" if answers else "")
    if "way" not in answers[0] and "error" in answers[0]:
        return _raised(answers[0]["error"])
    return None


EXCEPTIONS = {
    "NotImplementedError": "not_written",
    "RecursionError": "endless_recursion",
    "MemoryError": "out_of_memory",
    "EOFError": "asks_for_input",
    "SystemExit": "ends_process",
    "KeyboardInterrupt": "ends_process",
}
HINTS = {
    "matmul": "the inner sizes of a matrix product must agree: query (Lq, d) @ key.T (d, Lk) @ value (Lk, dv)",
    "mat1 and mat2": "the inner sizes of a matrix product must agree: query (Lq, d) @ key.T (d, Lk) @ value (Lk, dv)",
    "same dtype": "the arguments are float64; keep their dtype (no .float(), no torch.zeros without dtype=)",
    "broadcast": "two shapes do not fit; print them; keepdims=True keeps an axis",
    "has no attribute": "--arrays numpy, torch or lists sets what the function gets",
    "not defined": "is an import missing, or a name misspelt?",
}
"""Part of a message -> what to do."""


def _raised(error: Mapping[str, Any], name: str = "raises") -> Finding:
    name = EXCEPTIONS.get(error["type"], name)
    if "allocate memory" in error["text"]:
        name = "out_of_memory"
    line = f" (line {error['line']}: {error['code']})" if error["line"] else ""
    known = MISTAKES[name]
    hint = next((hint for part, hint in HINTS.items() if part in error["text"]), known.hint)
    what = ": ".join(filter(None, (known.says, error["type"] * (name != "not_written"), error["text"])))
    return Finding(name, what + line, hint)


class _Function:
    """The answers of one function, and the formulas of its task on the same arguments."""

    def __init__(self, task: Task, answers: Sequence[Answer]) -> None:
        self.task = task
        self.answers = {answer["case"]: answer for answer in answers if not answer.get("skipped")}
        self.cases = {case.name: case for case in task.cases if case.name in self.answers}
        self.bound = set(answers[0]["bound"])
        self.values = {name: _arrays(answer, task) for name, answer in self.answers.items()}
        self.mistakes: list[Finding] = []
        self.notes: list[Finding] = []

    def findings(self) -> tuple[list[Finding], list[Finding], dict[str, bool]]:
        """Returns mistakes, notes and, if a mistake has no name, properties."""
        if self.task.masked and "mask" not in self.bound:
            self.notes.append(finding("no_mask"))
        changed = sorted({name for answer in self.answers.values() for name in answer.get("changed", ())})
        if changed:
            self.mistakes.append(finding("changes_arguments", f": {', '.join(changed)}"))
        unusable = self._unusable()
        if unusable:
            return [*self.mistakes, unusable], self.notes, {}
        if self._is_random():
            self.mistakes.append(
                self._shown("dropout" if self._is_dropout() else "random_output", RIGHT, ["identity", "distinct"])
            )
            return self.mistakes, self.notes, {}
        self._swap_results()
        unnamed = not self._named()
        return self.mistakes, self.notes, self.properties() if unnamed else {}

    # --- before any formula --------------------------------------------------------------------------------------------------

    def _unusable(self) -> Finding | None:
        """Returns what is wrong if there are no numbers to compare."""
        name = next((name for name, answer in self.answers.items() if "error" not in answer), "")
        answer = self.answers.get(name, {})
        if answer.get("none"):
            return finding("returns_none")
        if "large" in answer:
            return finding("wrong_shape", f": {' and '.join(map(str, answer['large']))}")
        return finding("no_numbers") if self.values.get(name) is None else None

    def _is_random(self) -> bool:
        first, again = self.values.get("distinct"), self.values.get("repeated")
        return first is not None and again is not None and not _equal(first[0], again[0], EXACT)

    def _is_dropout(self) -> bool:
        """Whether the weights, which are the output where the values are the unit matrix, are 0 or too large by one factor."""
        got = self.values.get("identity")
        if got is None or got[0].shape != (3, 5):
            return False
        ratio = got[0] / self.expected("identity", RIGHT)[0]  # type: ignore[index]
        kept = ratio[np.abs(ratio) > EXACT]
        return 0 < len(kept) < ratio.size and bool(kept.min() > 1) and _equal(kept, np.full_like(kept, kept[0]), SINGLE)

    def _swap_results(self) -> None:
        """If the weights come first and the output second, says so and swaps them."""
        got, right = self.values.get("distinct"), self.expected("distinct", RIGHT)
        if not self.task.returns_weights or got is None or right is None:
            return
        shapes = [result.shape for result in right]
        if shapes[0] != shapes[1] and [result.shape for result in got] == shapes[::-1]:
            self.values = {name: value and value[::-1] for name, value in self.values.items()}
            self.mistakes.append(finding("results_swapped"))

    # --- formulas ------------------------------------------------------------------------------------------------------------

    def expected(self, name: str, wrong: Wrong) -> Values | None:
        """Returns what the formula with these mistakes gives; None if the mistakes do not fit the shapes."""
        arguments = {key: value for key, value in self.cases[name].arguments.items() if key in self.bound or key == "causal"}
        with np.errstate(all="ignore"):
            try:
                return self.task.formula(arguments, wrong)
            except ValueError:
                return None

    def fits(self, names: Iterable[str], wrong: Wrong, tolerance: float) -> bool:
        """Whether the formula with these mistakes gives the answers of all these cases. At least a third of the cases must have
        an answer: with some mistakes nothing is left to attend to."""
        unknown, names = 0, list(names)
        for name in names:
            expected, got = self.expected(name, wrong), self.values[name]
            if (expected is None) != (got is None):
                return False
            if expected is None or got is None:
                continue
            if not _equal(got[0], expected[0], tolerance):
                return False
            unknown += bool(np.isnan(expected[0]).all())
        return 3 * unknown <= 2 * len(names) or "softmax_heads" in wrong  # across heads, a mask hides nothing

    def search(
        self, names: Sequence[str], groups: Sequence[Sequence[str]], base: Wrong, most: int, tolerance: float
    ) -> list[Wrong]:
        """Returns the smallest sets of switches, at most one per group, that explain the answers of these cases. There are
        several if the cases do not distinguish them."""
        for size in range(most + 1):
            sets = (
                base | set(switches)
                for chosen in itertools.combinations(groups, size)
                for switches in itertools.product(*chosen)
            )
            found = [wrong for wrong in sets if self.fits(names, wrong, tolerance)]
            if found:
                return found
        return []

    def _named(self) -> bool:
        """Finds the mistakes that explain the numbers. Returns whether all have a name."""
        probes = PROBES if self._is_finite("deep") else (*PROBES, "deep")
        plain = [name for name, case in self.cases.items() if name not in probes and not _is_masked(case)]
        masked = [name for name, case in self.cases.items() if name not in probes and _is_masked(case)]
        for names, tolerance in self._attempts(plain):
            found = self.search(names, self.task.plain, RIGHT, 3, tolerance)
            if not found and self.task.normalises and tolerance == EXACT:
                found = self.search(names, (*self.task.plain, EPSILONS), RIGHT, 2, tolerance)
            if found:
                break
        else:
            return self._unexplained(plain)
        wrong, all_wrong = self._with_masks(masked, found, tolerance)
        if tolerance == SINGLE:
            self.mistakes.append(self._shown("float32", wrong, plain))
        if len(names) < len(plain) and wrong == RIGHT:
            self.mistakes.append(self._shown("needs_equal_lengths", RIGHT, [name for name in plain if name not in names]))
        self._add(wrong, plain)
        if names == plain:
            self._check_extreme(wrong, tolerance)
        self._check_weights(wrong, plain, tolerance)
        if all_wrong is not None:
            self._add(all_wrong - wrong, masked)
            self._check_deep(all_wrong)
            if all_wrong == wrong:
                self._check_empty_row()
            return True
        if all("error" in self.answers[name] for name in masked):
            self.mistakes.append(_raised(self.answers[masked[0]]["error"], "fails_with_mask"))
            return True
        return self._unexplained(masked, wrong)

    def _with_masks(self, names: Sequence[str], found: Sequence[Wrong], tolerance: float) -> tuple[Wrong, Wrong | None]:
        """Returns the set of switches, of those found without masks, that explains the cases with masks best; and the set that
        explains both, None if there is none."""
        arguments = ("mask", "causal")
        groups = [group for group, argument in zip(self.task.masked, arguments, strict=False) if argument in self.bound]
        best: list[tuple[Wrong, Wrong]] = []
        for wrong in found:
            fitting = [name for name in names if self.expected(name, wrong) is not None]
            best += [(wrong, more) for more in self.search(fitting, groups, wrong, 2, tolerance)[:1]]
        return min(best, key=lambda pair: len(pair[1])) if best else (found[0], None)

    def _is_finite(self, name: str) -> bool:
        value = self.values.get(name)
        return value is not None and bool(np.isfinite(value[0]).all())

    def _attempts(self, plain: Sequence[str]) -> Iterator[tuple[list[str], float]]:
        """Yields cases and tolerances to try: all cases first, then those with as many queries as keys."""
        square = [name for name in plain if name in ("square", "equal")]
        for names in (list(plain), square) if "square" in plain else (list(plain),):
            yield names, EXACT
            if all(self.values[name] is not None for name in names):
                yield names, SINGLE

    def _add(self, wrong: Iterable[str], names: Sequence[str]) -> None:
        order = [name for group in (*self.task.plain, *self.task.masked) for name in group]
        for switch in sorted(wrong, key=lambda name: order.index(name) if name in order else -1):
            if switch.startswith(formulas.EPSILON):
                self.notes.append(finding("epsilon"))
                continue
            self.mistakes.append(self._shown(switch, RIGHT, names, more=_more(switch)))

    def _check_extreme(self, wrong: Wrong, tolerance: float) -> None:
        """Compares the case with scores of ±10,000."""
        if "extreme" not in self.cases:
            return
        expected, got = self.expected("extreme", wrong), self.values["extreme"]
        if expected is None or not np.isfinite(expected[0]).all():
            return
        if got is None:
            error = self.answers["extreme"].get("error", {"type": "", "text": "", "line": None, "code": ""})
            arithmetic = error["type"] in ("OverflowError", "ZeroDivisionError", "FloatingPointError")
            more = f": {error['type']}: {error['text']}"
            self.mistakes.append(finding("overflow", more) if arithmetic else _raised(error, "fails_sometimes"))
        elif not _equal(got[0], expected[0], tolerance):
            bad = [not np.isfinite(row).all() for row in got[0]]  # row 0 has scores of +10,000, row 1 of −10,000
            name = "large_scores" if not any(bad) else "row_maximum" if bad[1] and not bad[0] else "overflow"
            self.mistakes.append(self._shown(name, wrong, ["extreme"], more=f" (scores of ±10,000 give {_brief(got[0])})"))

    def _check_deep(self, wrong: Wrong) -> None:
        """Compares the case in which hidden keys have far higher scores than the others, unless large scores fail anyway."""
        if "deep" not in self.cases or self._is_finite("deep") or any(one.name == "overflow" for one in self.mistakes):
            return
        expected = self.expected("deep", wrong)
        if expected is not None and np.isfinite(expected[0]).all():
            self.mistakes.append(self._shown("hidden_maximum", wrong, ["deep"]))

    def _check_empty_row(self) -> None:
        """Notes what a query that may attend to nothing gets."""
        got = self.values.get("empty row")
        if got is not None and np.isnan(got[0]).any():
            self.notes.append(finding("empty_row"))

    def _check_weights(self, wrong: Wrong, names: Sequence[str], tolerance: float) -> None:
        """Compares the second result, if there is one, with the weights."""
        if not self.task.returns_weights:
            return
        for name in names:
            got, expected = self.values[name], self.expected(name, wrong)
            if got is None or expected is None or len(got) < 2 or _equal(got[1], expected[1], tolerance):
                continue
            transposed = _equal(got[1], expected[1].T, tolerance)
            what = ": they are transposed" if transposed else ""
            scores = self.expected(name, wrong | {"returns_scores"})
            if scores is not None and _equal(got[1], scores[0], tolerance):
                what = ": it is the scores"
            row = _first_difference(got[1], expected[1], tolerance)
            seen, right = (_numbers(numbers, row) for numbers in (got[1], expected[1]))
            self.mistakes.append(finding("wrong_weights", what, example=self._example(name), seen=seen, expected=right))
            return

    def _unexplained(self, names: Sequence[str], wrong: Wrong = RIGHT) -> bool:
        """Adds the mistake without a name. Returns False."""
        failing = [name for name in names if "error" in self.answers[name]]
        if failing:
            self.mistakes.append(_raised(self.answers[failing[0]]["error"], "fails_sometimes"))
            return False
        got, expected = self.values[names[0]], self.expected(names[0], wrong)
        shapes = got is not None and expected is not None and got[0].shape != expected[0].shape
        more = f": {got[0].shape}, expected {expected[0].shape}" if shapes and got and expected else ""
        self.mistakes.append(self._shown("wrong_shape" if shapes else "unnamed", wrong, names, more=more))
        return False

    # --- evidence ------------------------------------------------------------------------------------------------------------

    def _shown(self, name: str, wrong: Wrong, names: Sequence[str], more: str = "") -> Finding:
        """Returns the mistake with the first numbers that differ from those of the formula with other mistakes. A difference
        that shows in few digits is preferred."""
        for (tolerance, digits), case in itertools.product(((1e-3, 4), (SINGLE, 7), (EXACT, 12)), names):
            got, expected = self.values.get(case), self.expected(case, wrong) if case in self.cases else None
            if got is None or expected is None or _equal(got[0], expected[0], tolerance):
                continue
            row = _first_difference(got[0], expected[0], tolerance)
            seen, right = (_numbers(numbers, row, digits) for numbers in (got[0], expected[0]))
            return finding(name, more, example=self._example(case), seen=seen, expected=right)
        return finding(name, more)

    def _example(self, name: str) -> str:
        """Writes the arguments of a case, if they are few and small."""
        arguments = {key: value for key, value in self.cases[name].arguments.items() if key in self.bound and value is not None}
        if sum(np.size(value) for value in arguments.values()) > 60 or not name.startswith("small"):
            return ""
        return ", ".join(f"{key} = {_written(value)}" for key, value in arguments.items())

    def properties(self) -> dict[str, bool]:
        """Returns which properties of attention hold: a description of a function whose mistake has no name."""
        holds: dict[str, bool] = {}

        def same(first: str, second: str, factor: float = 1.0, rows: slice = slice(None)) -> bool | None:
            one, other = self.values.get(first), self.values.get(second)
            if one is None or other is None:
                return None
            return _equal(other[0][rows], factor * one[0][rows], SINGLE)

        identity = self.values.get("identity")
        if identity is not None and identity[0].ndim == 2:
            sums = identity[0].sum(-1)
            holds["the weights of each query sum to 1"] = _equal(sums, np.ones_like(sums), SINGLE)
            holds["no weight is negative"] = bool((identity[0] >= 0).all())
        extreme = self.values.get("extreme")
        if "extreme" in self.cases:
            holds["scores of ±10,000 give finite numbers"] = extreme is not None and bool(np.isfinite(extreme[0]).all())
        pairs = {
            "the order of the keys does not matter": same("distinct", "permuted"),
            "the row of a query depends on that query alone": same("distinct", "other queries", rows=slice(1)),
            "doubled values double the output": same("distinct", "double values", factor=2.0),
            "hidden keys and values do not matter": same("padded", "other padding"),
        }
        return {**holds, **{name: held for name, held in pairs.items() if held is not None}}


def _more(switch: str) -> str:
    """Returns what a switch says beyond its name."""
    kind, _, how = switch.partition(":")
    first, _, second = how.partition(" ")
    if kind == "mask_small" and int(second) < 100:
        return f" (it is about −{second})"
    return f" ({second} for {first})" if kind == "wrong_projection" else ""


def _is_masked(case: Case) -> bool:
    return "mask" in case.needs or "causal" in case.needs


def _arrays(answer: Answer, task: Task) -> Values | None:
    """Returns what a function returned as arrays of numbers; None if it did not return any."""
    try:
        parts = [np.array(part, dtype=np.float64) for part in answer.get("value", ())]
    except (TypeError, ValueError):
        return None
    if not parts or any(not part.ndim for part in parts):
        return None
    if task.name == "causal_mask" and (parts[0] < -1000).any():  # 0 and −∞, to be added to scores
        parts[0] = (parts[0] == 0).astype(np.float64)
    return tuple(parts)


def _equal(got: Array, expected: Array, tolerance: float) -> bool:
    """Whether two arrays agree. NaN in `expected` agrees with everything."""
    if got.shape != expected.shape:
        return False
    known = ~np.isnan(expected)
    if not known.any():
        return True
    got, expected = got[known], expected[known]
    if not np.isfinite(expected).all():
        return np.array_equal(got, expected)
    scale = max(1.0, float(np.abs(expected).max()))
    return bool((np.abs(got - expected) <= tolerance * scale).all())  # False for NaN


def _first_difference(got: Array, expected: Array, tolerance: float) -> int:
    """Returns the first row with a difference; 0 if the shapes differ."""
    if got.shape != expected.shape or got.ndim != 2:
        return 0
    return next((row for row in range(len(got)) if not _equal(got[row], expected[row], tolerance)), 0)


def _numbers(array: Array, row: int, digits: int = 4) -> str:
    """Writes one row of a result."""
    if array.ndim != 2 or row >= len(array):
        return f"shape {array.shape}"
    shown = " ".join(f"{number:.{digits}g}" for number in array[row][:8])
    return f"row {row}: {shown}{' …' if array.shape[1] > 8 else ''}"


def _brief(array: Array) -> str:
    """Names the numbers that are not finite."""
    kinds = {"NaN": np.isnan(array).any(), "infinity": np.isinf(array).any()}
    return " and ".join(name for name, present in kinds.items() if present) or "other numbers"


def _written(value: Any) -> str:
    """Writes an argument as Python code, with whole numbers where possible."""
    if isinstance(value, np.ndarray):
        return f"[{', '.join(_written(part) for part in value)}]"
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value))
    return f"{value:g}"
