import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Command

from regard.data.dictionary import pronunciations

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def regard_command() -> Run:
    """Returns a function that runs `regard` in a process of its own, as a user does."""

    def run(*arguments: str | Path, input: str | bytes = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        raw = input.encode() if isinstance(input, str) else input
        return subprocess.CompletedProcess(arguments, *Command([*map(str, arguments)], cwd, input=raw).wait())

    return run


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory, regard_command: Run) -> Path:
    """A folder with pairs.tsv, and with regard-demo/, the output of a very short `regard demo`."""
    folder = tmp_path_factory.mktemp("workspace")
    lines = ["\t".join(pair) for pair in pronunciations("dev")]
    (folder / "pairs.tsv").write_text("\n".join([*lines, "", "word without sound\t"]) + "\n")
    done = regard_command("demo", "--set", "train.steps=40", "--threads", "1", cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "demo.out").write_text(done.stdout)
    return folder
