"""Shows that the tests can fail: every change of the source in mutants.toml must be caught by a test.

    python tests/mutants.py [A4.2 "header rows" ...]

Each mutant is applied to a copy of src/; the tests that it names, or that carry its SPEC id, run against that copy.
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
    """SPEC id -> tests (as pytest names them) with that id in a comment on their lines."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        lines = path.read_text().splitlines()
        for node in ast.parse("\n".join(lines)).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for match in IDS.finditer("\n".join(lines[node.lineno - 1 : node.end_lineno])):
                    for name in match[1].split():
                        found.setdefault(name, []).append(f"{path.relative_to(ROOT)}::{node.name}")
    return found


def mutants() -> list[dict[str, str]]:
    return list(tomllib.loads((ROOT / "tests" / "mutants.toml").read_text())["mutant"])


def applied(mutant: dict[str, str], root: Path) -> None:
    """Changes one file below root; the text to be changed must stand there exactly once."""
    path = root / mutant["file"]
    text = path.read_text()
    if text.count(mutant["old"]) != 1:
        sys.exit(f"{mutant['id']}: {mutant['old']!r} stands {text.count(mutant['old'])} times in {mutant['file']}, expected 1")
    path.write_text(text.replace(mutant["old"], mutant["new"]))


def caught(mutant: dict[str, str], tests: list[str]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src", Path(folder) / "src")
        applied(mutant, Path(folder))
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        env = {**os.environ, "PYTHONPATH": str(Path(folder) / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode not in (0, 1):  # 1: tests failed; anything else: they could not run
        sys.exit(f"{mutant['id']}: the tests could not run:\n{done.stdout}{done.stderr}")
    return done.returncode == 1


def main(wanted: list[str]) -> None:
    tests, escaped = tests_by_id(), []
    for mutant in mutants():
        if wanted and mutant["id"] not in wanted:
            continue
        verdict = caught(mutant, [mutant["tests"]] if "tests" in mutant else tests[mutant["id"]])
        print(
            f"{mutant['id']:<6} {'caught ' if verdict else 'ESCAPED'} {mutant['file']}: {' '.join(mutant['new'].split())}",
            flush=True,
        )
        if not verdict:
            escaped.append(mutant["id"])
    if escaped:
        sys.exit(f"not caught: {' '.join(escaped)}")


if __name__ == "__main__":
    main(sys.argv[1:])
