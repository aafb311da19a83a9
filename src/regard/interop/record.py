"""regard.json: what an export keeps of our model next to the files of the other format, so that it comes back bit by bit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.checkpoint.files import sha256, write
from regard.checkpoint.folder import Saved, codec_files, read_settings
from regard.data.documents import mapping, parse
from regard.errors import UserError, shown
from regard.interop.opened import NEVER
from regard.models.transformer import TransformerSettings

RECORD = "regard.json"
FORMAT = 1


@dataclass(frozen=True)
class Record:
    """What the record holds, checked against the files that it describes.

    settings: of our model.  order: the heads of the cross-attention in layer `layer`, in the order of the export.
    muted: the output biases of tokens that the export must never write, by id, as they were.
    alignment, training, card: as in our model folder.
    """

    settings: TransformerSettings
    layer: int
    order: tuple[int, ...]
    muted: Mapping[int, float]
    alignment: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    card: str = ""

    def exported(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the weights as the export holds them: heads permuted, tokens muted."""
        return self._changed(weights, self.order, dict.fromkeys(self.muted, NEVER))

    def restored(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the weights as our model had them."""
        back = tuple(sorted(range(len(self.order)), key=self.order.__getitem__))
        return self._changed(weights, back, self.muted)

    def _changed(self, weights: Mapping[str, Tensor], order: tuple[int, ...], biases: Mapping[int, float]) -> dict[str, Tensor]:
        changed = dict(weights)
        if order and order != tuple(range(len(order))):
            changed |= permuted(weights, f"decoder.layers.{self.layer}.cross", order)
        bias = changed["decoder.output.bias"].clone()
        for number, value in biases.items():
            bias[number] = value
        return changed | {"decoder.output.bias": bias}


def permuted(weights: Mapping[str, Tensor], attention: str, order: tuple[int, ...]) -> dict[str, Tensor]:
    """Returns the weights of an attention with its heads in another order; its output stays the same."""
    changed = {}
    for name in ("query", "key", "value"):
        for kind in ("weight", "bias"):
            value = weights[f"{attention}.{name}.{kind}"]
            changed[f"{attention}.{name}.{kind}"] = value.reshape(len(order), -1, *value.shape[1:])[list(order)].reshape(
                value.shape
            )
    columns = weights[f"{attention}.output.weight"]
    split = columns.reshape(len(columns), len(order), -1)
    return changed | {f"{attention}.output.weight": split[:, list(order)].reshape(columns.shape)}


def record_of(saved: Saved, settings: TransformerSettings) -> Record:
    """Returns the record of an export of a model, with the alignment head at the front."""
    alignment = dict(saved.alignment)
    layer = alignment.get("layer", -1)
    layer = settings.decoder_layers + layer if layer is not None and layer < 0 else layer or 0
    head, order = alignment.get("head"), list(range(settings.heads))
    if head is not None:
        order.insert(0, order.pop(head))
    bias = saved.model.state_dict()["decoder.output.bias"]
    muted = {number: float(bias[number]) for number in saved.target.specials.never}
    return Record(settings, layer, tuple(order), muted, alignment, saved.training, saved.card)


def write_record(folder: Path, saved: Saved, record: Record, files: Mapping[str, str]) -> None:
    """Writes the record and our tokenizers into the folder of an export. files: the sha256 of the files that hold weights, by
    name."""
    for name, file in (codec_files("source", saved.source) | codec_files("target", saved.target)).items():
        if not (folder / name).exists():  # other formats have source.spm, too
            write(folder / name, file)
    content = {**asdict(record), "format": FORMAT, "files": dict(files)}
    write(folder / RECORD, json.dumps(content, ensure_ascii=False, indent=1).encode())


def read_record(folder: Path) -> Record | None:
    """Returns the record of an export; None if there is none, or if the weights changed since it was written. Raises
    UserError if it is damaged."""
    path = folder / RECORD
    if not path.is_file():
        return None
    try:
        content = mapping(parse(path.read_bytes()), "its content")
        if content.get("format") != FORMAT:
            raise UserError(f"its format is {shown(content.get('format'))}, expected {FORMAT}")
        for name, digest in mapping(content.get("files"), "files").items():
            if Path(name).name != name or not (folder / name).is_file() or sha256((folder / name).read_bytes()) != digest:
                return None
        return _record(folder, content)
    except (UserError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged: {error}; remove it to open the model without it") from None


def _record(folder: Path, content: Mapping[str, Any]) -> Record:
    settings = read_settings(folder, content["settings"])
    if not isinstance(settings, TransformerSettings):
        raise UserError(f"it describes a {settings.kind}, expected a transformer")
    order = tuple(content["order"])
    if sorted(order) != list(range(settings.heads)) or not 0 <= content["layer"] < settings.decoder_layers:
        raise UserError(f"its order of heads is {shown(order)}, expected each of {settings.heads} heads once")
    muted = {int(number): float(value) for number, value in mapping(content["muted"], "muted").items()}
    parts = {name: mapping(content[name], name) for name in ("alignment", "training")}
    return Record(settings, content["layer"], order, muted, card=str(content["card"]), **parts)
