"""Finds models in the cache of Hugging Face on this machine. Nothing is downloaded."""

from __future__ import annotations

import os
import re
from pathlib import Path

from regard.errors import UserError

NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
"""What a name on Hugging Face looks like: OWNER/MODEL."""


def cache() -> Path:
    """Returns the folder in which Hugging Face's tools keep what they download."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")


def is_name(name: str) -> bool:
    """Whether this may be the name of a model on Hugging Face, and is no path."""
    return NAME.fullmatch(name) is not None and not Path(name).exists() and not Path(name).parent.exists()


def find(name: str) -> Path:
    """Returns the folder of a model that was downloaded before, of its newest main version. Raises UserError with the command
    that downloads it if it is not there."""
    folder = cache() / f"models--{name.replace('/', '--')}"
    try:
        snapshot = folder / "snapshots" / (folder / "refs" / "main").read_text(encoding="utf-8").strip()
    except OSError:
        snapshot = folder / "snapshots" / "missing"
    if not (snapshot / "config.json").is_file():
        raise UserError(
            f"there is no folder {name}, and no model of this name in {cache()}; regard uses no network, so download it with: "
            f"hf download {name}  (the command hf comes with: pip install huggingface_hub)"
        )
    return snapshot
