"""Ensemble folders: the model folders of several models that write together, and ensemble.json, which names them.

OUT/1, OUT/2, …          model folders, each complete by itself
OUT/1.run, OUT/2.run, …  their run folders
OUT/ensemble.json        format, and the names of the model folders; written when all of them are trained
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from regard.checkpoint.files import replace_file
from regard.checkpoint.folder import CONFIG, ENSEMBLE
from regard.data.documents import mapping, parse
from regard.errors import UserError, shown

FORMAT = 1


def write_ensemble(folder: Path, names: Sequence[str]) -> None:
    """Writes ensemble.json, atomically. names: those of the model folders in the folder."""
    replace_file(folder / ENSEMBLE, json.dumps({"format": FORMAT, "models": list(names)}, indent=2).encode() + b"\n")


def members_of(folder: Path) -> list[Path]:
    """Returns the model folders of an ensemble folder, or the folder itself if it is none. Raises UserError if ensemble.json
    is damaged, or names anything but folders in its own folder."""
    path = folder / ENSEMBLE
    if not path.is_file() or (folder / CONFIG).exists():
        return [folder]
    try:
        content = mapping(parse(path.read_bytes()), "its content")
        if content.get("format") != FORMAT:
            raise UserError(f"its format is {shown(content.get('format'))}, expected {FORMAT}")
        names = content.get("models")
        if not isinstance(names, list) or not names or not all(isinstance(name, str) and _is_plain(name) for name in names):
            raise UserError(f'its models are {shown(names)}, expected names of folders in its own folder, such as ["1", "2"]')
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except UserError as error:
        raise UserError(f"{path} is damaged: {error}; train the models again with the same command") from None
    return [folder / name for name in names]


def _is_plain(name: str) -> bool:
    """Returns whether a name is that of an entry of a folder, and not a path that leads elsewhere."""
    return name not in ("", ".", "..") and Path(name).name == name and "\\" not in name
