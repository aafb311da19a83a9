"""A model folder: plain files that say everything about a model. Loading is strict and runs no code.

config.json           format, model settings, vocabulary sizes, how it was trained, the sha256 of the other files
model.safetensors     the weights
source.tokenizer.json, target.tokenizer.json
source.json           instead of the first where sources are pictures or other files: how they are read
card.md               for people: data, error rates with their signature, licence
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor

from regard.checkpoint.files import beside, discard, leftovers, sha256, tensor_bytes, write, writing
from regard.data.codecs import check_fit, read_source
from regard.data.sources import SourceCodec, beside_size
from regard.data.tokenizers.codec import Codec
from regard.errors import UserError
from regard.layers.scores import SCORES, ScoreMaker
from regard.models.build import SETTINGS, Model, ModelSettings, build

FORMAT = 1
CONFIG, CARD = "config.json", "card.md"
WEIGHTS, SOURCE, TARGET = "model.safetensors", "source.tokenizer.json", "target.tokenizer.json"
FILE_SOURCE = "source.json"
FILES = {CONFIG, CARD, WEIGHTS, SOURCE, FILE_SOURCE, TARGET}


@dataclass(frozen=True)
class Saved:
    """All that a folder holds. `training` is the signature: data, seed, versions, settings, metrics."""

    model: Model
    settings: ModelSettings
    source: SourceCodec
    target: Codec
    training: Mapping[str, Any]
    card: str


def save(saved: Saved, folder: Path, *, replace: bool = False) -> None:
    """Writes the folder under another name first, so that it is there whole or not at all."""
    folder = folder.resolve()  # a link stays a link, and "." gets a name
    check_place(folder, replace=replace)
    files = {
        WEIGHTS: tensor_bytes(_finite(folder, saved.model.state_dict())),
        source_name(saved.source): saved.source.to_json().encode(),
        TARGET: saved.target.to_json().encode(),
        CARD: saved.card.encode(),
    }
    config = {
        "format": FORMAT,
        "model": asdict(saved.settings),
        "vocabulary": {"source": len(saved.source), "target": len(saved.target)},
        "training": dict(saved.training),
        "sha256": {name: sha256(content) for name, content in files.items() if name != CARD},
    }
    files[CONFIG] = json.dumps(config, indent=2, ensure_ascii=False).encode()
    fresh = beside(folder, "new")
    with writing(folder, "make room there, or choose another folder with --out"):
        try:
            fresh.mkdir()
            for name, content in files.items():
                write(fresh / name, content)
            _move_into_place(fresh, folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def weights_digest(model: Model) -> str:
    """The sha256 of the weights, as it stands in the config.json of the model's folder."""
    return sha256(tensor_bytes(model.state_dict()))


def check_place(folder: Path, *, replace: bool) -> None:
    """Raises if the folder cannot be written; better before hours of training than after."""
    empty = folder.is_dir() and not any(folder.iterdir())
    if folder.exists() and not empty and not replace:
        raise UserError(f"{folder} exists already and is left alone; choose another name with --out, or say --overwrite")
    if folder.exists():
        strangers = (
            sorted(path.name for path in folder.iterdir() if path.name not in FILES) if folder.is_dir() else [folder.name]
        )
        if strangers:
            raise UserError(
                f"{folder} holds more than a model ({', '.join(strangers[:3])}) and is not overwritten; "
                "choose another name with --out"
            )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder.parent).close()
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}; choose another place with --out") from None


def recover(folder: Path) -> None:
    """Brings back a model whose replacement was killed half-way, and removes what is unfinished. The caller holds the lock."""
    with writing(folder, "choose another folder with --out"):
        folder = folder.resolve()
        if not folder.exists() and (old := leftovers(folder, "old")):
            old[0].rename(folder)
        for left in leftovers(folder, "old", "new", "gone"):
            discard(left, folder)


def load(folder: Path, scores: Mapping[str, ScoreMaker] | None = None) -> Saved:
    """Reads a folder back. Anything missing, damaged or left over is an error. `scores`: the user's own, which it may name."""
    if not folder.exists() and (old := leftovers(folder.resolve(), "old")):
        folder = old[0]  # it was being replaced when the process was killed
    config = _read_config(folder)
    source_file = FILE_SOURCE if FILE_SOURCE in config["sha256"] else SOURCE
    content = {name: _read_checked(folder / name, config["sha256"][name]) for name in (WEIGHTS, source_file, TARGET)}
    settings = _read_settings(folder, config["model"])
    source = read_source_codec(folder / source_file, content[source_file])
    target = read_codec(folder / TARGET, content[TARGET])
    sizes = {"source": len(source), "target": len(target)}
    if config["vocabulary"] != sizes:
        raise UserError(f"{folder / CONFIG} speaks of vocabularies {config['vocabulary']}, but the tokenizers hold {sizes}")
    try:
        check_fit("text" if isinstance(source, Codec) else source.unit, getattr(settings, "front", "tokens"))
    except UserError as error:
        raise UserError(f"{folder / CONFIG}: {error}") from None
    score = getattr(settings, "score", None)  # a language model of recurrent cells has none
    if score is not None and score not in SCORES and score not in (scores or {}):
        raise UserError(
            f"{folder} needs the score {score!r}, which is not part of regard: load it with "
            f'regard.load(…, scores={{"{score}": …}}), or with --score file.py:Class'
        )
    model = build(settings, len(source), len(target), scores, beside=beside_size(source))
    try:
        model.load_state_dict(_finite(folder, load_tensors(content[WEIGHTS])), strict=True)
    except (SafetensorError, RuntimeError) as error:
        raise UserError(f"{folder / WEIGHTS} does not fit config.json: {error}") from None
    card = folder / CARD
    return Saved(
        model.eval(), settings, source, target, config["training"], card.read_text(encoding="utf-8") if card.exists() else ""
    )


def source_name(codec: SourceCodec) -> str:
    """What the file of a source codec is called."""
    return SOURCE if isinstance(codec, Codec) else FILE_SOURCE


def read_source_codec(path: Path, content: bytes) -> SourceCodec:
    if path.name == SOURCE:
        return read_codec(path, content)
    try:
        return read_source(content.decode())
    except (UserError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {error}") from None


def read_codec(path: Path, content: bytes) -> Codec:
    try:
        return Codec.from_json(content.decode())
    except Exception as error:  # the library raises nothing more precise
        raise UserError(f"{path} is not a tokenizer: {error}") from None


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"{folder} is not a model folder: it has no config.json; expected the --out folder of `regard train`")
    try:
        config: dict[str, Any] = json.loads(path.read_bytes())
        number = config["format"]
        missing = {"model", "vocabulary", "training", "sha256"} - config.keys()
        listed = config.get("sha256", {}).keys()
        missing |= {WEIGHTS, TARGET, FILE_SOURCE if FILE_SOURCE in listed else SOURCE} - listed
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is damaged: {error!r}") from None
    if number != FORMAT:
        raise UserError(f"{path} has format {number!r}, expected {FORMAT}; this folder needs another version of regard")
    if missing:
        raise UserError(f"{path} is damaged: it lacks {', '.join(sorted(missing))}")
    return config


def _read_settings(folder: Path, raw: Any) -> ModelSettings:
    path = folder / "config.json"
    if not isinstance(raw, dict) or raw.get("kind") not in SETTINGS:
        raise UserError(f"{path}: the model settings cannot be read: expected a kind out of {', '.join(SETTINGS)}, got {raw!r}")
    wanted = SETTINGS[raw["kind"]]
    strange = sorted(raw.keys() - wanted.__dataclass_fields__.keys())
    if strange:
        raise UserError(f"{path}: the model settings cannot be read: unknown {', '.join(strange)}")
    try:
        settings: ModelSettings = TypeAdapter(wanted).validate_json(json.dumps(raw), strict=True)
    except ValidationError as error:
        raise UserError(f"{path}: the model settings cannot be read: {error}") from None
    return settings


def _read_checked(path: Path, digest: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if sha256(content) != digest:
        raise UserError(f"{path} is damaged: its sha256 is not the one in config.json; copy the folder again from its origin")
    return content


def _finite(folder: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise UserError(f"{folder / WEIGHTS}: {name} holds numbers that are not finite; the training run went wrong")
    return tensors


def _move_into_place(fresh: Path, folder: Path) -> None:
    if not folder.exists():
        fresh.rename(folder)
        return
    old = beside(folder, "old")
    folder.rename(old)
    try:
        fresh.rename(folder)
    except BaseException:  # whatever happens between the two, the old model comes back
        old.rename(folder)
        raise
    discard(old, folder)
