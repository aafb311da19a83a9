"""Where a run reports: on the console, and to the logger `regard`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from rich.console import Console

LOGGER = logging.getLogger("regard")


class RunConsole(Console):
    """Prints texts as they are (no highlighting, no [markup], no wrapped lines in a log), and logs them.

    quiet: whether to print nothing; texts are still logged.
    words: applied to every text, to put it into the words of the caller.
    """

    def __init__(self, *, quiet: bool = False, words: Callable[[str], str] = str) -> None:
        super().__init__(highlight=False, soft_wrap=True, markup=False, quiet=quiet, force_jupyter=False)
        self.in_notebook = not quiet and Console().is_jupyter
        """Whether the output appears in a notebook. It is plain text: rich draws bars with ipywidgets, which may be missing."""
        self._words, self._line = words, ""

    def print(self, *objects: Any, **options: Any) -> None:
        if objects and isinstance(objects[0], str):
            text = self._words(objects[0])
            LOGGER.info("%s", text.strip("\n"))
            objects = (text, *objects[1:])
        self.show_line("")
        super().print(*objects, **options)

    def show_line(self, text: str) -> None:
        """Shows a line without a line end, in place of the one that was shown before; "" only removes that one."""
        if self._line:
            self.file.write(f"\r{' ' * len(self._line)}\r")
        self.file.write(text)
        self.file.flush()
        self._line = text
