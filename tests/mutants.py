"""Mutation tests: every change of the source in mutants.toml must be caught by a test.

    python tests/mutants.py [A4.2 "header rows" ...]

First the tests that are named run without any change: all must pass. Then each mutant is applied to a copy of src/, and the
test that it names runs against that copy; without a name, all tests with its SPEC id run. A mutant is caught if a test fails.
Each run is a fork of this process, which has imported torch and all other libraries; two run at a time.
"""

import ast
import compileall
import gc
import importlib
import os
import re
import shutil
import signal
import sys
import tempfile
import tomllib
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).parents[1]
LIBRARIES = """
torch torch.func torch._dynamo numpy hypothesis.strategies hypothesis.extra.numpy typer.testing rich.progress pydantic
tokenizers safetensors.torch ruamel.yaml rapidfuzz PIL.Image matplotlib.figure matplotlib.backends.backend_agg
matplotlib.backends.backend_svg anyio.pytest_plugin pytest_cov.plugin xdist.plugin xdist.looponfail
"""
"""Imported once, for all forks; also the plugins of pytest, whose assertions would be rewritten in each."""
SECONDS = 600
"""A run that takes longer is ended, and counts as one that could not run."""
IDS = re.compile(r"# SPEC((?: A\d+\.\d+)+)")


def tests_by_id() -> dict[str, list[str]]:
    """Returns a dict from SPEC ids to the pytest ids of the tests with a `# SPEC` comment of that id on their lines."""
    tests: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        lines = path.read_text().splitlines()
        for node in ast.parse("\n".join(lines)).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for match in IDS.finditer("\n".join(lines[node.lineno - 1 : node.end_lineno])):
                    for name in match[1].split():
                        tests.setdefault(name, []).append(f"{path.relative_to(ROOT)}::{node.name}")
    return tests


def mutants() -> list[dict[str, str]]:
    return list(tomllib.loads((ROOT / "tests" / "mutants.toml").read_text())["mutant"])


def apply(mutant: dict[str, str], root: Path) -> None:
    """Changes one file under `root`; the old text must occur in it exactly once."""
    path = root / mutant["file"]
    text = path.read_text()
    if text.count(mutant["old"]) != 1:
        sys.exit(f"{mutant['id']}: {mutant['old']!r} occurs {text.count(mutant['old'])} times in {mutant['file']}, expected 1")
    path.write_text(text.replace(mutant["old"], mutant["new"]))


def tests_of(mutant: dict[str, str], by_id: dict[str, list[str]]) -> list[str]:
    return [mutant["tests"]] if "tests" in mutant else by_id[mutant["id"]]


class Report:
    """A plugin of pytest: writes the names of the tests that failed to a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with (self.folder / "failed").open("a") as file:
                print(report.nodeid, file=file)


def run_tests(mutant: dict[str, str] | None, tests: list[str], folder: Path) -> NoReturn:
    """Runs the tests with this mutant in a copy of the source under `folder`, then ends the process with pytest's exit code."""
    code = 2
    signal.alarm(SECONDS)
    try:
        shutil.copytree(ROOT / "src", folder / "src")
        if mutant:
            apply(mutant, folder)
        os.environ |= {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.path.insert(0, str(folder / "src"))
        sys.dont_write_bytecode = True
        with (folder / "output").open("w") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        imported = "ignore::pytest.PytestAssertRewriteWarning"  # plugins cannot be rewritten any more
        first = ["-x"] if mutant else []
        code = int(pytest.main(["-q", *first, "-p", "no:cacheprovider", "-W", imported, *tests], plugins=[Report(folder)]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@dataclass(frozen=True)
class Outcome:
    """What came of the tests with one mutant, or without any.

    code: pytest's exit code: 0 if all tests passed.  failed: the tests that failed.
    """

    mutant: dict[str, str] | None
    tests: list[str]
    code: int
    failed: list[str]
    output: str


def outcomes(runs: list[tuple[dict[str, str] | None, list[str]]], processes: int = 2) -> Iterator[Outcome]:
    """Yields what came of each run of tests, in the order in which they end."""
    for library in LIBRARIES.split():
        importlib.import_module(library)
    gc.freeze()  # forks need not look through all objects of the libraries
    compileall.compile_dir(ROOT / "src", quiet=1)  # so that each copy compiles the changed file alone
    waiting, running = runs[::-1], {}
    while waiting or running:
        while waiting and len(running) < processes:
            mutant, tests = waiting.pop()
            folder = tempfile.TemporaryDirectory()
            if child := os.fork():
                running[child] = mutant, tests, folder
            else:
                run_tests(mutant, tests, Path(folder.name))
        child, status = os.wait()
        mutant, tests, folder = running.pop(child)
        with folder:
            files = [Path(folder.name) / name for name in ("failed", "output")]
            failed, output = [file.read_text() if file.exists() else "" for file in files]
        yield Outcome(mutant, tests, os.waitstatus_to_exitcode(status), failed.splitlines(), output)


def without_mutants(tests: set[str]) -> list[tuple[None, list[str]]]:
    """Returns one run per file for these tests."""
    files: dict[str, list[str]] = {}
    for test in sorted(tests):
        files.setdefault(test.partition("::")[0], []).append(test)
    return [(None, [file] if file in tests else names) for file, names in files.items()]


def main(ids: list[str]) -> None:
    os.chdir(ROOT)
    by_id = tests_by_id()
    chosen = [(mutant, tests_of(mutant, by_id)) for mutant in mutants() if not ids or mutant["id"] in ids]
    for outcome in outcomes(without_mutants({test for _, tests in chosen for test in tests})):
        if outcome.code:
            sys.exit(f"Without a mutant, these tests do not pass: {' '.join(outcome.failed)}\n{outcome.output}")
    survivors = []
    for outcome in outcomes(list(chosen)):
        mutant = outcome.mutant
        assert mutant
        if outcome.code and not outcome.failed:
            sys.exit(f"{mutant['id']}: the tests could not run:\n{outcome.output}")
        word = "caught " if outcome.failed else "ESCAPED"
        print(f"{mutant['id']:<6} {word} {mutant['file']}: {' '.join(mutant['new'].split())}", flush=True)
        if not outcome.failed:
            survivors.append(mutant["id"])
    if survivors:
        sys.exit(f"not caught: {' '.join(survivors)}")


if __name__ == "__main__":
    main(sys.argv[1:])
