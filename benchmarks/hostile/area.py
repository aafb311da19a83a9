"""What every area of hostile input has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from random import Random


class Area(ABC):
    """One door through which input comes."""

    longest_line = 300
    """Characters of an error, paths not counted."""

    def load_modules(self) -> None:
        """Imports what takes long, before any worker is forked."""
        import regard.errors  # noqa: F401

    @abstractmethod
    def prepare(self, root: Path) -> None:
        """Writes valid input; done once."""

    @abstractmethod
    def change(self, chance: Random, root: Path, place: Path) -> str:
        """Writes a changed copy of valid input into the empty folder `place`; says what was changed."""

    @abstractmethod
    def use(self, place: Path) -> None:
        """What a user does with it. Raises whatever comes."""


class Wrong(Exception):
    """No error was raised, but the result is not what it should be; or something was left behind."""


def right(condition: object, what: str) -> None:
    """Raises if a result is not what it should be."""
    if not condition:
        raise Wrong(what)
