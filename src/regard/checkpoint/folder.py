"""Model folders: plain files that describe a model completely. Loading is strict and runs no code.

config.json              format, model settings, vocabulary sizes, languages, training details, sha256 of the other files
model.safetensors        the weights
source.tokenizer.json    the tokenizer of the sources
source.json              if sources are pictures or other files: how they are read, in place of source.tokenizer.json
target.tokenizer.json    the tokenizer of the targets
source.spm, target.spm   their SentencePiece models, if they are such
card.md                  the model card: data, figures with their signature, settings with their reasons, limits, licence
curves.svg               the losses and error rates of its run, if there was one; the card shows it
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from regard.checkpoint import migrate
from regard.checkpoint.files import discard, leftovers, resolved, sha256, sibling, tensor_bytes, write, writing
from regard.checkpoint.migrate import FORMAT
from regard.checkpoint.weights import check_finite, load_weights
from regard.data.codecs import check_fit, read_source
from regard.data.documents import mapping, parse, validated
from regard.data.sources import FileCodec, SourceCodec, auxiliary_vocabulary_size
from regard.data.tokenizers import units
from regard.data.tokenizers.contract import TextCodec
from regard.errors import UserError, shown
from regard.languages import Languages
from regard.layers.scores import SCORES, ScoreMaker
from regard.models.build import FAMILIES, build, file_readers
from regard.models.contract import Model, ModelSettings

CONFIG, CARD, CURVES = "config.json", "card.md", "curves.svg"
WEIGHTS, SOURCE, TARGET = "model.safetensors", "source.tokenizer.json", "target.tokenizer.json"
FILE_SOURCE, ENSEMBLE = "source.json", "ensemble.json"
FILES = {CONFIG, CARD, CURVES, WEIGHTS, SOURCE, FILE_SOURCE, TARGET, "source.spm", "target.spm"}


@dataclass(frozen=True)
class Saved:
    """The contents of a model folder.

    training: data, seed, versions, settings and metrics.  card: the text of card.md.
    alignment: the alignment head and how it was chosen (see checkpoint/alignment.py); empty if none was.
    languages: those that are known.
    curves: the text of curves.svg; empty if there is none.
    """

    model: Model
    settings: ModelSettings
    source: SourceCodec
    target: TextCodec
    training: Mapping[str, Any]
    card: str
    alignment: Mapping[str, Any] = field(default_factory=dict)
    curves: str = ""
    languages: Languages = Languages()

    @property
    def all_languages(self) -> Languages:
        """The languages, filled in from the names of the columns and from the vocabulary."""
        header = self.training.get("header")
        columns = list(map(str, header)) if isinstance(header, list | tuple) and len(header) == 2 else []
        return self.languages.known(columns, () if isinstance(self.source, FileCodec) else self.source.prefix_tokens)


def save(saved: Saved, folder: Path, *, replace: bool = False) -> None:
    """Writes a model folder atomically: it is complete or absent.

    replace: whether an existing model may be replaced.

    Raises UserError if the folder exists, holds other files or cannot be written, or if a weight is not finite.
    """
    folder = resolved(folder)  # keeps a symbolic link, and gives "." a name
    check_destination(folder, replace=replace)
    check_finite(folder / WEIGHTS, saved.model)
    files = {
        WEIGHTS: tensor_bytes(saved.model.state_dict()),
        **codec_files("source", saved.source),
        **codec_files("target", saved.target),
        CARD: saved.card.encode(),
        **({CURVES: saved.curves.encode()} if saved.curves else {}),
    }
    config = {
        "format": FORMAT,
        "model": asdict(saved.settings),
        "vocabulary": {"source": len(saved.source), "target": len(saved.target)},
        "training": dict(saved.training),
        **({"alignment": dict(saved.alignment)} if saved.alignment else {}),
        **({"languages": asdict(saved.languages)} if saved.languages != Languages() else {}),
        "sha256": {name: sha256(content) for name, content in files.items() if name not in (CARD, CURVES)},
    }
    files[CONFIG] = json.dumps(config, indent=2, ensure_ascii=False).encode()
    fresh = sibling(folder, "new")
    with writing(folder, "free some disk space, or choose another folder with --out"):
        try:
            fresh.mkdir()
            for name, content in files.items():
                write(fresh / name, content)
            _move_to_destination(fresh, folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def weights_digest(model: Model) -> str:
    """Returns the sha256 of the weights, as in config.json."""
    return sha256(tensor_bytes(model.state_dict()))


def check_destination(folder: Path, *, replace: bool) -> None:
    """Raises UserError if a model cannot be saved to the folder. Call it before hours of training, not after.

    replace: whether an existing model may be replaced.
    """
    empty = folder.is_dir() and not any(folder.iterdir())
    if folder.exists() and not empty and not replace:
        raise UserError(f"{folder} already exists; choose another name with --out, or replace it with --overwrite")
    if folder.exists():
        others = sorted(path.name for path in folder.iterdir() if path.name not in FILES) if folder.is_dir() else [folder.name]
        if others:
            raise UserError(
                f"{folder} is not overwritten, since it contains files that are not part of a model ({', '.join(others[:3])}); "
                "choose another name with --out"
            )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder.parent).close()
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}; choose another folder with --out") from None


def recover(folder: Path) -> None:
    """Restores a model if the process that was replacing it was killed, and removes incomplete files. The caller must hold the
    lock. Raises UserError if the folder cannot be written."""
    with writing(folder, "choose another folder with --out"):
        folder = resolved(folder)
        if not folder.exists() and (old := leftovers(folder, "old")):
            old[0].rename(folder)
        for left in leftovers(folder, "old", "new", "gone"):
            discard(left, folder)


def load(folder: Path, scores: Mapping[str, ScoreMaker] | None = None) -> Saved:
    """Loads a model folder, with the model in evaluation mode.

    scores: custom score functions by name, for models that use one.

    Raises UserError if a file or setting is missing, damaged or unknown, if weights do not match the settings, or if the model
    uses a custom score function that is not in `scores`.
    """
    if not folder.exists() and (old := leftovers(resolved(folder), "old")):
        folder = old[0]  # the process that was replacing the model was killed
    config = read_config(folder)
    settings = read_settings(folder, config["model"])
    source_file = FILE_SOURCE if FILE_SOURCE in config["sha256"] else SOURCE
    for name in (WEIGHTS, source_file, TARGET):
        _check_digest(folder / name, config["sha256"][name])

    def attached(suffix: str, side: str) -> bytes:
        """Returns the content of a further file of a codec."""
        path = folder / f"{side}.{suffix}"
        _check_digest(path, config["sha256"].get(path.name))
        return _read(path)

    source = read_source_codec(folder / source_file, _read(folder / source_file), partial(attached, side="source"))
    target = read_codec(folder / TARGET, _read(folder / TARGET), partial(attached, side="target"))
    sizes = {"source": len(source), "target": len(target)}
    if config["vocabulary"] != sizes:
        raise UserError(
            f"{folder / CONFIG} gives the vocabulary sizes as {shown(config['vocabulary'])}, but the tokenizers have {sizes}"
        )
    try:
        check_fit(source.unit if isinstance(source, FileCodec) else "text", settings.traits.frontend, file_readers())
    except UserError as error:
        raise UserError(f"{folder / CONFIG}: {error}") from None
    check_score(folder, settings, scores or {})

    def make(scores: Mapping[str, ScoreMaker]) -> Model:
        auxiliary = auxiliary_vocabulary_size(source)
        return build(settings, len(source), len(target), scores, auxiliary=auxiliary, specials=target.specials)

    model = load_weights(folder / WEIGHTS, settings, make, scores or {}, number=config["format"])
    check_finite(folder / WEIGHTS, model)
    alignment = config.get("alignment") or {}
    card, curves = _read_text(folder / CARD), _read_text(folder / CURVES)
    languages = read_languages(folder, config.get("languages") or {})
    return Saved(model.eval(), settings, source, target, config["training"], card, alignment, curves, languages)


def read_config(folder: Path) -> dict[str, Any]:
    """Returns the content of config.json, migrated to the current format. Raises UserError if it is missing or damaged, a
    section is missing or of the wrong type, or its format is unknown."""
    path = folder / CONFIG
    if not path.is_file():
        if (folder / ENSEMBLE).is_file():
            raise UserError(f"{folder} holds an ensemble of several models, expected one of them, such as {folder / '1'}")
        problem = "it has no config.json" if folder.is_dir() else "it is a file" if folder.exists() else "it does not exist"
        raise UserError(f"{folder} is not a model folder: {problem}; expected the --out folder of `regard train`")
    try:
        config = mapping(parse(_read(path)), "its content")
        if type(config.get("format")) is not int:
            raise UserError(f"its format is {shown(config.get('format'))}, expected {FORMAT}")
        if config["format"] in migrate.READABLE:
            config = migrate.config(config)
            _check_parts(config)
    except UserError as error:
        raise UserError(f"{path} is damaged: {error}") from None
    if config["format"] not in migrate.READABLE:
        raise UserError(migrate.unreadable(path, shown(config["format"])))
    return config


def _check_parts(config: dict[str, Any]) -> None:
    """Raises UserError if a section or digest is missing, or a section is not a mapping."""
    if missing := {"model", "vocabulary", "training", "sha256"} - config.keys():
        raise UserError(f"it has no {', '.join(sorted(missing))}")
    for name in ("training", "vocabulary"):
        mapping(config[name], name)
    digests = mapping(config["sha256"], "sha256")
    if missing := {WEIGHTS, TARGET, FILE_SOURCE if FILE_SOURCE in digests else SOURCE} - digests.keys():
        raise UserError(f"it has no sha256 of {', '.join(sorted(missing))}")


def source_name(codec: SourceCodec) -> str:
    """Returns the name of the file that stores a source codec."""
    return FILE_SOURCE if isinstance(codec, FileCodec) else SOURCE


def codec_files(side: str, codec: SourceCodec) -> dict[str, bytes]:
    """Returns the files that store a codec in a model folder, by name. side: source or target."""
    if isinstance(codec, FileCodec):
        return {FILE_SOURCE: codec.to_json().encode()}
    attached = {f"{side}.{suffix}": content for suffix, content in codec.attachments.items()}
    return {f"{side}.tokenizer.json": codec.to_json(attached=True).encode(), **attached}


Attached = Callable[[str], bytes] | None
"""Returns the content of a further file of a codec, by its suffix; None if there are none."""


def read_source_codec(path: Path, content: bytes, attached: Attached = None) -> SourceCodec:
    """Returns the source codec stored in a file. Raises UserError if the content is invalid."""
    if path.name == SOURCE:
        return read_codec(path, content, attached)
    try:
        return read_source(content, migrate.SOURCE_FIELDS)
    except UserError as error:
        raise UserError(f"{path}: {error}", error.details) from None


def read_codec(path: Path, content: bytes, attached: Attached = None) -> TextCodec:
    """Returns the tokenizer stored in a file. Raises UserError if the content is invalid."""
    try:
        return units.read_codec(content, attached)
    except UserError as error:
        raise UserError(f"{path} is not a tokenizer written by regard: {error}") from None


def read_settings(folder: Path, given: Any) -> ModelSettings:
    """Returns the model settings in the section `model` of config.json. Raises UserError if they are invalid."""
    try:
        kind = mapping(given, "model").get("kind")
        if not isinstance(kind, str) or kind not in FAMILIES:
            raise UserError(f"its kind is {shown(kind)}, expected one of {', '.join(FAMILIES)}")
        settings: ModelSettings = validated(FAMILIES[kind].settings, given, kind)
        return settings
    except UserError as error:
        raise UserError(f"{folder / CONFIG}: the model settings cannot be read: {error}", error.details) from None


def read_languages(folder: Path, given: Any) -> Languages:
    """Returns the languages in the section `languages` of config.json. Raises UserError if they are invalid."""
    try:
        languages: Languages = validated(Languages, given, "languages")
        return languages
    except UserError as error:
        raise UserError(f"{folder / CONFIG}: the languages cannot be read: {error}", error.details) from None


def check_score(folder: Path, settings: ModelSettings, scores: Mapping[str, ScoreMaker]) -> None:
    """Raises UserError if the model uses a custom score function that is not in `scores`."""
    score = settings.traits.score
    if score is not None and score not in SCORES and score not in scores:
        raise UserError(
            f"{folder} uses the custom score {shown(score)}, which is not part of regard: load it with "
            f"regard.load(…, scores={{{shown(score)}: …}}), or with --score file.py:Class"
        )


def _read_text(path: Path) -> str:
    """Returns the text of a file that people read; "" if it is missing."""
    if not path.exists():
        return ""
    try:
        return _read(path).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8: {error.reason} at byte {error.start:,}; save it as UTF-8") from None


def _read(path: Path) -> bytes:
    try:
        _check_regular(path)
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def _check_digest(path: Path, digest: Any) -> None:
    try:
        _check_regular(path)
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if found != digest:
        raise UserError(
            f"{path} is damaged: its sha256 differs from the one in config.json; copy the folder again from its source"
        )


def _check_regular(path: Path) -> None:
    """Raises UserError for anything but a regular file: reading a pipe would block, and a device may never end."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a regular file")


def _move_to_destination(fresh: Path, folder: Path) -> None:
    """Renames a new model folder to its final name, and removes the one that it replaces."""
    if not folder.exists():
        fresh.rename(folder)
        return
    old = sibling(folder, "old")
    folder.rename(old)
    try:
        fresh.rename(folder)
    except BaseException:  # restore the old model, whatever interrupted the two renames
        old.rename(folder)
        raise
    discard(old, folder)
