"""Files that people asked for by name: whole or not at all, and one clear line where they cannot be written."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.errors import UserError


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Gives another name in the same folder, which is made if need be; what is written there gets the right name at the end."""
    if os.path.isdir(path):
        raise UserError(f"{path} is a folder; expected the name of a file to write")
    fresh = path.with_name(f".{path.stem[:40]}-{secrets.token_hex(4)}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield fresh
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        reason = "its folder is a file" if isinstance(error, FileExistsError) else error.strerror or error
        raise UserError(f"{path} cannot be written: {reason}; choose another file") from None
