"""The interface of the areas that benchmarks/fuzz.py tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from random import Random


class Area(ABC):
    """One kind of input, such as tables or model folders, with a way to damage it and a way to use it."""

    longest_line = 300
    """The maximum length of an error message in characters, not counting paths."""

    def load_modules(self) -> None:
        """Imports slow modules before any worker is forked."""
        import regard.errors  # noqa: F401

    @abstractmethod
    def prepare(self, root: Path) -> None:
        """Writes valid input into `root`; called once."""

    @abstractmethod
    def change(self, rng: Random, root: Path, folder: Path) -> str:
        """Writes a changed copy of valid input into the empty `folder`; returns a description of the change."""

    @abstractmethod
    def use(self, folder: Path) -> None:
        """Uses the changed input as a user would. Lets every exception through."""


class Wrong(Exception):
    """No error was raised, but the result is wrong, or files were left behind."""


def require(condition: object, what: str) -> None:
    """Raises `Wrong` with the message `what` if the condition is false."""
    if not condition:
        raise Wrong(what)
