"""What the folders of all models of Hugging Face have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.data.documents import mapping, parse
from regard.data.files import read_bytes
from regard.errors import UserError
from regard.interop.torch_file import read_safetensors, read_torch_file
from regard.layers.blocks import Activation

CONFIG, WEIGHTS, OLD_WEIGHTS = "config.json", "model.safetensors", "pytorch_model.bin"
ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "swish": "silu",
    "silu": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""Their names of activation functions, and ours; of several, the first is written."""


def model_type(path: Path) -> str:
    """Returns what a Hugging Face folder says it is; "" if it is none."""
    try:
        config = json.loads(read_bytes(path / CONFIG))
        found = config.get("model_type")
    except (UserError, ValueError, AttributeError, RecursionError):
        return ""
    return found if isinstance(found, str) else ""


def read_json(path: Path, *, required: bool = True) -> dict[str, Any]:
    """Returns the content of a JSON file; {} if it is missing and not required. Raises UserError if it is damaged."""
    if not required and not path.is_file():
        return {}
    try:
        return mapping(parse(path.read_bytes()), "its content")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except UserError as error:
        raise UserError(f"{path} is damaged: {error}") from None


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Returns the tensors of a folder. Raises UserError if there are none, or if they are damaged."""
    if (folder / WEIGHTS).is_file():
        return read_safetensors(folder / WEIGHTS)
    if (folder / OLD_WEIGHTS).is_file():
        return read_torch_file(folder / OLD_WEIGHTS)[0]
    raise UserError(f"{folder} has no weights, expected {WEIGHTS} or {OLD_WEIGHTS}")


def licence_of(folder: Path) -> str:
    """Returns the licence that the model's README states, as Hugging Face writes it: "license: cc-by-4.0"."""
    try:
        lines = (folder / "README.md").read_text(encoding="utf-8", errors="replace").split("\n")[:200]
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.lower().startswith(("license:", "licence:"))), "")
