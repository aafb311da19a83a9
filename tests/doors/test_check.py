"""`regard check` on files as students write them (tests/students), each in a child process.

A file says what must be found in it: `# expect attention: no_scale overflow`, or `# expect file: …` if it cannot be imported.
"""

import json
import re
import time
from pathlib import Path

import pytest
from conftest import Run

from regard.checking import process
from regard.checking.check import Report, check_file
from regard.checking.process import Limits

pytestmark = pytest.mark.slow
STUDENTS = Path(__file__).parents[1] / "students"
RIGHT, WRONG, BROKEN = (sorted((STUDENTS / folder).glob("*.py")) for folder in ("right", "wrong", "broken"))
EXPECT = re.compile(r"^# expect (\w+): *(.*)$", re.MULTILINE)


def expected(file: Path) -> dict[str, list[str]]:
    return {function: mistakes.split() for function, mistakes in EXPECT.findall(file.read_text())}


def found(report: Report) -> dict[str, list[str]]:
    if report.problem is not None:
        return {"file": [report.problem.name]}
    return {function.task: [mistake.name for mistake in function.mistakes] for function in report.functions}


def test_there_are_enough_students() -> None:
    assert len(RIGHT) >= 5
    assert len(WRONG) >= 40
    styles = [file.read_text() for file in (*RIGHT, *WRONG)]
    assert sum("import torch" in text for text in styles) >= 12
    assert sum("import torch" not in text and "numpy" not in text for text in styles) >= 6
    named = {name for file in WRONG for names in expected(file).values() for name in names}
    assert len(named) >= 35


@pytest.mark.parametrize("file", RIGHT, ids=lambda file: file.stem)
def test_right_solutions_pass(file: Path) -> None:
    report = check_file(file)
    assert report.verdict == "right", report
    assert report.functions


@pytest.mark.parametrize("file", WRONG, ids=lambda file: file.stem)
def test_wrong_solutions_are_named(file: Path) -> None:
    report = check_file(file)
    assert report.verdict == "wrong"
    assert {task: mistakes for task, mistakes in found(report).items() if mistakes} == expected(file)


@pytest.mark.parametrize("file", BROKEN, ids=lambda file: file.stem)
def test_broken_solutions_are_reported(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions after the one that hangs or crashes are still checked."""
    monkeypatch.setattr(process, "IMPORT_SECONDS", 0)
    slow = file.stem in ("eats_memory", "prints_a_lot")  # touching memory is slow on some machines
    start = time.monotonic()
    report = check_file(file, limits=Limits(60 if slow else 5, 1 << 29))
    assert time.monotonic() - start < 90
    assert found(report) == expected(file)


def test_a_raised_exception_is_shown_with_its_line() -> None:
    says = check_file(STUDENTS / "broken" / "always_raises.py").functions[0].mistakes[0].says
    assert "AttributeError: 'numpy.ndarray' object has no attribute 'softmax'" in says
    assert says.endswith("(line 6: return scores.softmax(axis=-1) @ value)")


def test_the_command_prints_mistakes_and_returns_a_code(regard_command: Run) -> None:
    right = regard_command("check", STUDENTS / "right" / "plain_lists.py")
    assert (right.returncode, right.stderr) == (0, "")
    assert re.search(r"^attention +right \(lists\)$", right.stdout, re.MULTILINE)
    wrong = regard_command("check", STUDENTS / "wrong" / "softmax_axis_numpy.py")
    assert wrong.returncode == 1
    assert "softmax_queries: the softmax is taken over the wrong axis" in wrong.stdout
    assert "example:  query = [[2, 0], [0, 1]], key = [[1, 1], [0, 2], [1, 0]]" in wrong.stdout
    assert "expected: row 0: 4.012 3\n" in wrong.stdout  # by hand: weights 0.4458, 0.1084, 0.4458 of 3 0, 0 3, 6 6
    assert "hint:" in wrong.stdout
    assert wrong.stderr.endswith("1 mistake found\n")
    failed = regard_command("check", STUDENTS / "broken" / "import_error.py")
    assert failed.returncode == 2
    assert "No module named 'a_library_that_nobody_has' (line 2" in failed.stdout
    missing = regard_command("check", "nowhere.py")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr.startswith("regard: nowhere.py: expected a Python file that exists")


def test_json_for_graders(regard_command: Run) -> None:
    done = regard_command("check", STUDENTS / "wrong" / "two_mistakes.py", "--json", "--only", "attention,softmax")
    assert done.returncode == 2  # softmax is missing
    report = json.loads(done.stdout)
    assert {"file", "verdict", "problem", "functions", "regard"} == report.keys()
    softmax, attention = report["functions"]
    assert (softmax["verdict"], softmax["mistakes"][0]["name"]) == ("failed", "missing")
    assert attention["function"] == attention["task"] == "attention"
    assert (attention["verdict"], attention["arrays"]) == ("wrong", "torch")
    assert [mistake["name"] for mistake in attention["mistakes"]] == ["softmax_queries", "no_scale"]
    assert all({"name", "says", "hint", "example", "seen", "expected"} == mistake.keys() for mistake in attention["mistakes"])


def test_the_template_is_a_file_to_fill_in(regard_command: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(regard_command("check", "--template").stdout)
    report = check_file(tmp_path / "mine.py")
    assert len(report.functions) == 8
    assert {name for names in found(report).values() for name in names} == {"not_written"}


def test_a_check_leaves_nothing_behind(tmp_path: Path) -> None:
    """Files that the student's code writes go to a temporary folder, and modules next to the file can be imported."""
    (tmp_path / "helper.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "mine.py").write_text(
        "import numpy as np\nfrom helper import double\nopen('left.txt', 'w').write('x')\n"
        "def softmax(x):\n    e = np.exp(x - x.max(-1, keepdims=True))\n"
        "    return double(e) / double(e.sum(-1, keepdims=True))\n"
    )
    assert check_file(tmp_path / "mine.py").verdict == "right"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["helper.py", "mine.py"]


def test_arrays_can_be_chosen(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def scaled_dot_scores(q, k):\n    return q @ k.T / len(q[0]) ** 0.5\n")
    assert check_file(tmp_path / "mine.py").functions[0].arrays == "numpy"  # lists have no @
    assert check_file(tmp_path / "mine.py", arrays="torch").functions[0].arrays == "torch"
    assert check_file(tmp_path / "mine.py", arrays="lists").verdict == "failed"
