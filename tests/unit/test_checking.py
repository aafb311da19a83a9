"""`regard check` without child processes: each mistaken formula is recognised by its own numbers, and right ones are right."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from regard import reference
from regard.checking import child, formulas
from regard.checking.check import _request, check_file
from regard.checking.diagnose import Diagnosis, diagnose
from regard.checking.mistakes import MISTAKES, NOTES
from regard.checking.tasks import TASKS, Task, find
from regard.errors import UserError

WAY = {"arrays": "numpy"}
MATRICES = ("W_q", "W_k", "W_v", "W_o")


def answers(task: Task, wrong: Iterable[str] = (), without: Iterable[str] = ()) -> Iterator[dict[str, Any]]:
    """Yields what a function that computes a mistaken formula answers."""
    bound = [name for name in task.parameters if name not in without]
    for case in task.cases:
        common = {"case": case.name, "way": WAY, "bound": bound}
        arguments = {name: value for name, value in case.arguments.items() if name in bound or name == "causal"}
        try:
            with np.errstate(all="ignore"):
                output = task.formula(arguments, frozenset(wrong))[0]
            yield common | ({"value": [output.tolist()]} if set(case.needs) <= set(bound) else {"skipped": True})
        except ValueError:
            yield common | {"error": {"type": "ValueError", "text": "shapes", "line": 1, "code": ""}}


def switches(task: Task) -> list[str]:
    return [switch for group in (*task.plain, *task.masked) for switch in group]


def names(found: Diagnosis) -> list[str]:
    return [mistake.name for mistake in found.mistakes]


SINGLES = [(task, switch) for task in TASKS for switch in switches(task)]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_right_formula_is_right(task: Task) -> None:
    found = diagnose("mine", task, list(answers(task)))
    assert (found.verdict, found.mistakes) == ("right", [])


@pytest.mark.parametrize(("task", "switch"), SINGLES, ids=[f"{task.name}-{switch}" for task, switch in SINGLES])
def test_every_mistake_is_distinguished_from_all_others(task: Task, switch: str) -> None:
    without = MATRICES if switch in ("heads_mean", "heads_sum") else ()  # W_o would not fit
    found = diagnose("mine", task, list(answers(task, [switch], without)))
    assert (found.verdict, names(found)) == ("wrong", [switch.partition(":")[0]])
    assert all(mistake.says and mistake.hint for mistake in found.mistakes)
    assert found.mistakes[0].seen != found.mistakes[0].expected


@pytest.mark.parametrize("task", [find("attention"), find("multi_head"), find("positions")], ids=lambda task: task.name)
def test_two_mistakes_together_are_named(task: Task) -> None:
    """Most pairs are named by themselves; where another set has the same numbers, it is as small."""
    groups = [group[:5] for group in (*task.plain, *task.masked)]
    pairs = [pair for two in itertools.combinations(groups, 2) for pair in itertools.product(*two)]
    exact = 0
    for pair in pairs:
        found = diagnose("mine", task, list(answers(task, pair)))
        assert len(found.mistakes) <= 2, pair
        assert not {"unnamed", "wrong_shape"} & set(names(found)), pair
        exact += sorted(names(found)) == sorted(switch.partition(":")[0] for switch in pair)
    assert exact > 0.7 * len(pairs)


def test_every_switch_has_a_name_and_every_formula_its_switches() -> None:
    assert {switch.partition(":")[0] for task in TASKS for switch in switches(task)} <= MISTAKES.keys()
    assert not MISTAKES.keys() & NOTES.keys()
    for task in TASKS:
        assert {"small", "distinct"} <= {case.name for case in task.cases}
        assert set(task.first) <= {case.name for case in task.cases}
        assert find(task.name) is task


def test_the_right_formulas_are_those_of_the_reference() -> None:
    cases = {task.name: {case.name: dict(case.arguments) for case in task.cases} for task in TASKS}
    given = cases["attention"]["masked"]
    weights = reference.softmax(reference.scaled_dot(given["query"], given["key"]), given["mask"])
    output, returned = formulas.attention(given)
    np.testing.assert_allclose(output, weights @ given["value"], rtol=1e-12)
    np.testing.assert_allclose(returned, weights, rtol=1e-12)
    given = cases["additive_scores"]["distinct"]
    expected = reference.additive(given["query"], given["key"], given["W_q"].T, given["W_k"].T, given["v"])
    np.testing.assert_allclose(formulas.additive_scores(given)[0], expected, rtol=1e-12)
    np.testing.assert_allclose(formulas.positions({"length": 7, "width": 10})[0], reference.sinusoidal(np.arange(7), 10))
    np.testing.assert_array_equal(formulas.causal_mask({"queries": 3, "keys": 5})[0], reference.causal(3, 5))
    given = cases["multi_head"]["distinct"]
    parts = zip(*(np.split(given[name], given["heads"], axis=1) for name in MATRICES[:3]), strict=True)
    heads = [reference.Head(*part) for part in parts]
    expected = reference.multi_head(given["x"], given["x"], heads, given["W_o"])
    np.testing.assert_allclose(formulas.multi_head(given)[0], expected, rtol=1e-12)


def test_mistaken_formulas_are_right_ones_of_other_arguments() -> None:
    cases = {task.name: {case.name: dict(case.arguments) for case in task.cases} for task in TASKS}

    def check(task: str, case: str, switch: str, **others: object) -> None:
        given = cases[task][case]
        formula = formulas.attention if task == "attention" else formulas.multi_head
        expected = formula({**given, **others})[0]
        np.testing.assert_allclose(formula(given, frozenset([switch]))[0], expected, rtol=1e-12, err_msg=switch)

    heads = cases["multi_head"]["masked"]
    check("multi_head", "masked", "wrong_projection:W_k W_q", W_k=heads["W_q"])
    check("multi_head", "masked", "wrong_projection:W_v W_k", W_v=heads["W_k"])
    first = {name: np.tile(heads[name][:, :4], 3) for name in MATRICES[:3]}
    check("multi_head", "masked", "head_repeated", **first)
    check("multi_head", "masked", "heads_share_weights", W_q=first["W_q"], W_k=first["W_k"])
    given = cases["attention"]["padded"]
    check("attention", "padded", "mask_one_row", mask=np.ones((3, 1), bool) & given["mask"][:1])
    unit = {
        name: given[name] / np.sqrt(reference.dot(given[name], given[name]).diagonal())[:, None] for name in ("query", "key")
    }
    check("attention", "padded", "cosine", query=np.sqrt(7) * unit["query"], key=unit["key"])
    check("attention", "padded", "mask_values:all", value=given["value"] * [[1], [1], [1], [0], [0]], mask=None)
    check("attention", "masked", "mask_values:all", mask=None)
    check("attention", "masked", "mask_values:some", value=0 * given["value"])


def test_a_softmax_over_the_heads() -> None:
    task = find("multi_head")
    assert task is not None
    given = next(case.arguments for case in task.cases if case.name == "distinct")
    q, k, v = ((given["x"] @ given[name]).reshape(5, 3, 4) for name in MATRICES[:3])
    e = np.exp(np.einsum("qhd,khd->qkh", q, k) / 2)
    expected = np.einsum("qkh,khd->qhd", e / e.sum(-1, keepdims=True), v).reshape(5, 12) @ given["W_o"]
    np.testing.assert_allclose(formulas.multi_head(given, frozenset(["softmax_heads"]))[0], expected, rtol=1e-12)


def test_a_mistake_without_a_name_is_described_by_properties() -> None:
    task = find("attention")
    assert task is not None
    given = list(answers(task))
    for answer in given:
        if "value" in answer:
            answer["value"] = [(np.abs(np.array(answer["value"][0])) + 0.1).tolist()]
    found = diagnose("mine", task, given)
    assert names(found) == ["unnamed"]
    assert found.properties["the weights of each query sum to 1"] is False
    assert found.properties["the order of the keys does not matter"] is True
    assert found.properties["doubled values double the output"] is False
    assert found.mistakes[0].seen.startswith("row 0: ")
    assert "query = [[2, 0], [0, 1]]" in found.mistakes[0].example


def test_arguments_are_passed_by_name_or_by_order() -> None:
    task = find("attention")
    assert task is not None
    request = _request(task, "mine", ["numpy"])

    def bound(code: str) -> dict[str, str]:
        return child.bind(eval(code), request)

    assert bound("lambda Q, K, V: 0") == {"query": "Q", "key": "K", "value": "V"}
    assert bound("lambda values, keys, queries, allow: 0") == {
        "value": "values",
        "key": "keys",
        "query": "queries",
        "mask": "allow",
    }
    assert bound("lambda a, b, c: 0") == {"query": "", "key": "", "value": ""}
    assert bound("lambda a, b, c, d=None: 0") == {"query": "", "key": "", "value": "", "mask": ""}
    assert bound("lambda a, b, c, dropout=0.1: 0") == {"query": "", "key": "", "value": ""}
    assert bound("lambda q, k, v, dropout=0.1, causal=False: 0") == {"query": "q", "key": "k", "value": "v", "causal": "causal"}
    for code in ("lambda q: 0", "lambda q, k, v, mask, t: 0", "lambda: 0", "lambda q, k, v, *, t: 0"):
        with pytest.raises(child.CannotCall):
            bound(code)


def test_files_and_names_that_do_not_exist_are_refused(tmp_path: Any) -> None:
    with pytest.raises(UserError, match="expected a Python file that exists"):
        check_file(tmp_path / "mine.py")
    (tmp_path / "mine.py").write_text("def attention(q, k, v): return v\n")
    with pytest.raises(UserError, match=r"there is no check for 'atention'.*did you mean \"attention\""):
        check_file(tmp_path / "mine.py", only=["atention"])
