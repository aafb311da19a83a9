"""Runs mypy over files as a user of the installed package does: strict, and with nothing reported inside of the package."""

import re
from pathlib import Path

from mypy import api

import regard

CONFIG = """
[mypy]
strict = true
mypy_path = {source}

[mypy-regard.*]
follow_imports = silent
"""
REPORT = re.compile(r"^(.*?):(\d+): error: .*\[([\w-]+)\]$", re.MULTILINE)


def type_errors(files: list[Path], folder: Path) -> list[tuple[str, int, str]]:
    """Returns (file name, line, code of the error) of every error that mypy reports. folder: for its settings and cache."""
    config = folder / "mypy.ini"
    config.write_text(CONFIG.format(source=Path(regard.__file__).parents[1]))
    options = ["--config-file", str(config), "--cache-dir", str(folder / "cache"), "--no-error-summary"]
    out, failure, code = api.run([*options, *map(str, files)])
    assert not failure, failure
    assert code < 2, out
    errors = [(Path(path).name, int(line), code) for path, line, code in REPORT.findall(out)]
    assert len(errors) == out.count(": error: "), out
    return errors
