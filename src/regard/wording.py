"""Messages name the options of the command line. In Python, they name the arguments of functions instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from regard.errors import UserError, UserErrors

_ARGUMENTS = {
    "from": "source",
    "to": "target",
    "score": "scores",
    "overwrite": "overwrite=True",
    "freeze": "freeze=True",
    "tensorboard": "tensorboard=True",
    "header": 'header="yes"',
    "no-header": 'header="no"',
    "skip-bad-lines": 'bad_lines="skip"',
}
"""Option -> argument, where the argument is not the option with underscores."""

_PHRASES: dict[str, str | Callable[[re.Match[str]], str]] = {
    r"given with --set": "given",
    r"change any with --set": "change any by name, such as steps=300",
    r"--set (?:\w+\.)?(\w+)=([\w.]*\w)?": lambda found: f"{found[1]}={_value(found[2] or '')}",
    r"--set (?=[\w.…]+:)": "",
    r"--(from|to) (?!and\b)([\w,]*\w)": lambda found: f"{_ARGUMENTS[found[1]]}={_columns(found[2])}",
    r"--device auto": 'device="auto"',
    r"--score file\.py:Class": 'scores={"name": Class}',
    r"([Rr])un the same command": lambda found: f"{'M' if found[1] == 'R' else 'm'}ake the same call",
    r"repeat its command": "repeat its call",
}
"""Pattern -> what it says in Python; applied first, in this order."""

_SHELL = re.compile(r"(?<=type: )(?:regard|pip) .*?(?=\. |$)", re.DOTALL)
"""A whole command to type in a shell, which stays as it is."""


def in_python(text: str) -> str:
    """Returns a message with arguments of Python functions where it names options of the command line."""
    commands = _SHELL.findall(text)
    parts = [_reworded(part) for part in _SHELL.split(text)]
    return "".join(part + command for part, command in zip(parts, [*commands, ""], strict=True))


@contextmanager
def python_words(names: Mapping[str, str] | None = None) -> Iterator[None]:
    """Rewords the UserErrors that are raised inside. names: further texts to replace, such as the path of a temporary file."""

    def reword(text: str) -> str:
        for name, replacement in (names or {}).items():
            text = text.replace(name, replacement)
        return in_python(text)

    try:
        yield
    except UserErrors as error:
        error.lines = [reword(line) for line in error.lines]
        error.args = ("\n".join(error.lines),)
        raise
    except UserError as error:
        error.args = (reword(str(error)),)
        raise


def _reworded(text: str) -> str:
    for pattern, replacement in _PHRASES.items():
        text = re.sub(pattern, replacement, text)
    return re.sub(r"--([a-z][a-z-]*[a-z])", lambda found: _ARGUMENTS.get(found[1], found[1].replace("-", "_")), text)


def _value(text: str) -> str:
    """Returns a value of --set as Python writes it: numbers as they are, words in quotes."""
    return f'"{text}"' if text[:1].isalpha() else text


def _columns(text: str) -> str:
    """Returns the columns of --from as Python writes them: "1,3" becomes (1, 3)."""
    values = [_value(name) for name in text.split(",")]
    return values[0] if len(values) == 1 else f"({', '.join(values)})"
