"""Libraries of other formats, which regard does not require."""

from __future__ import annotations

import importlib
from types import ModuleType

from regard.errors import UserError


def require(name: str, why: str) -> ModuleType:
    """Returns a library. Raises UserError with the command that installs it. why: what needs it."""
    library = optional(name)
    if library is None:
        raise UserError(f"{why} needs {name}, which is not installed; install it with: pip install {name}")
    return library


def optional(name: str) -> ModuleType | None:
    """Returns a library, or None if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
