"""The alignment head in the config.json of a model folder: the layer and head that alignments are read from."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from regard.checkpoint.files import replace_file
from regard.checkpoint.folder import CONFIG, read_config, read_settings
from regard.contracts import AlignmentHead
from regard.data.documents import mapping, validated
from regard.errors import UserError, plural, shown
from regard.models.contract import ModelSettings


def write_alignment_head(folder: Path, head: AlignmentHead, **facts: Any) -> None:
    """Writes the alignment head into the config.json of a model folder, with facts on how it was chosen."""
    path = folder / CONFIG
    config = json.loads(path.read_bytes())
    config["alignment"] = {**asdict(head), **facts}
    try:
        replace_file(path, json.dumps(config, indent=2, ensure_ascii=False).encode())
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror or error}; copy the model to a folder that you may write to"
        ) from None


def read_alignment_head(folder: Path) -> AlignmentHead:
    """Returns the alignment head of a model folder; by default the mean of the heads of the last layer.

    Raises UserError if config.json holds one that the model does not have.
    """
    config = read_config(folder)
    if config.get("alignment") is None:
        return AlignmentHead()
    try:
        given, names = mapping(config["alignment"], "alignment"), AlignmentHead.__dataclass_fields__
        if missing := names.keys() - given.keys() - {"norms"}:  # older versions knew no norms
            raise UserError(f"alignment lacks {', '.join(sorted(missing))}")
        head = validated(AlignmentHead, {name: given[name] for name in names if name in given}, "alignment")
        _check_exists(head, read_settings(folder, config["model"]))
    except UserError as error:
        raise UserError(f"{folder / CONFIG}: {error}; choose the head again with regard align --gold or --backward") from None
    return head


def _check_exists(head: AlignmentHead, settings: ModelSettings) -> None:
    """Raises if the cross-attention of a model with these settings has no such layer or head."""
    layers, heads = settings.traits.attention.get("cross", (1, 1))
    if head.layer is not None and not -layers <= head.layer < layers:
        raise UserError(f"alignment: layer is {shown(head.layer)}, but the model has {plural(layers, 'layer')}")
    if head.head is not None and not 0 <= head.head < heads:
        raise UserError(f"alignment: head is {shown(head.head)}, but a layer has {plural(heads, 'head')}")
