"""Mutation tests: every change of the source in mutants.toml must be caught by a test.

    python tests/mutants.py [A4.2 "header rows" ...]

Each mutant is applied to a copy of src/. The tests that it names, or else those with its SPEC id, run against that copy.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
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


def caught(mutant: dict[str, str], tests: list[str]) -> bool:
    """Returns whether one of the tests fails with this mutant."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src", Path(folder) / "src")
        apply(mutant, Path(folder))
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        env = {**os.environ, "PYTHONPATH": str(Path(folder) / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode not in (0, 1):  # 1: a test failed; other codes: the tests could not run
        sys.exit(f"{mutant['id']}: the tests could not run:\n{done.stdout}{done.stderr}")
    return done.returncode == 1


def main(ids: list[str]) -> None:
    tests, survivors = tests_by_id(), []
    for mutant in mutants():
        if ids and mutant["id"] not in ids:
            continue
        is_caught = caught(mutant, [mutant["tests"]] if "tests" in mutant else tests[mutant["id"]])
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
