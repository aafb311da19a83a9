"""Mutation tests: every change of the source in mutants.toml must be caught by a test.

    python tests/mutants.py [A4.2 "header rows" ...]

Each mutant is applied to a copy of src/. The tests that it names, or else those with its SPEC id, run against that copy, in a
fork of this process, which has imported torch and all other libraries; two mutants run at a time.
"""

import ast
import compileall
import importlib
import os
import re
import shutil
import sys
import tempfile
import tomllib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).parents[1]
LIBRARIES = """
torch torch.func torch._dynamo numpy hypothesis.strategies hypothesis.extra.numpy typer.testing rich.progress pydantic
tokenizers safetensors.torch ruamel.yaml rapidfuzz PIL.Image
"""
"""Imported once, for all forks."""
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


def run_tests(mutant: dict[str, str], tests: list[str], folder: Path) -> NoReturn:
    """Runs the tests with this mutant in a copy of the source under `folder`, then ends the process with pytest's exit code."""
    code = 2
    try:
        shutil.copytree(ROOT / "src", folder / "src")
        apply(mutant, folder)
        os.environ |= {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.path.insert(0, str(folder / "src"))
        sys.dont_write_bytecode = True
        with (folder / "output").open("w") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        imported = "ignore::pytest.PytestAssertRewriteWarning"  # hypothesis cannot be rewritten any more
        code = int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-W", imported, *tests]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def outcomes(chosen: list[dict[str, str]], processes: int = 2) -> Iterator[tuple[dict[str, str], bool]]:
    """Yields each mutant with whether one of its tests fails, in the order in which they end."""
    for library in LIBRARIES.split():
        importlib.import_module(library)
    compileall.compile_dir(ROOT / "src", quiet=1)  # so that each copy compiles the changed file alone
    by_id, waiting, running = tests_by_id(), chosen[::-1], {}
    while waiting or running:
        while waiting and len(running) < processes:
            mutant = waiting.pop()
            folder = tempfile.TemporaryDirectory()
            tests = [mutant["tests"]] if "tests" in mutant else by_id[mutant["id"]]
            if child := os.fork():
                running[child] = mutant, folder
            else:
                run_tests(mutant, tests, Path(folder.name))
        child, status = os.wait()
        mutant, folder = running.pop(child)
        code = os.waitstatus_to_exitcode(status)
        if code not in (0, 1):  # 1: a test failed; other codes: the tests could not run
            output = Path(folder.name) / "output"
            sys.exit(f"{mutant['id']}: the tests could not run:\n{output.read_text() if output.exists() else ''}")
        folder.cleanup()
        yield mutant, code == 1


def main(ids: list[str]) -> None:
    os.chdir(ROOT)
    survivors = []
    for mutant, is_caught in outcomes([mutant for mutant in mutants() if not ids or mutant["id"] in ids]):
        print(
            f"{mutant['id']:<6} {'caught ' if is_caught else 'ESCAPED'} {mutant['file']}: {' '.join(mutant['new'].split())}",
            flush=True,
        )
        if not is_caught:
            survivors.append(mutant["id"])
    if survivors:
        sys.exit(f"not caught: {' '.join(survivors)}")


if __name__ == "__main__":
    main(sys.argv[1:])
