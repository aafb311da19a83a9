"""Packages of Argos Translate and LibreTranslate: a zip with one folder, with a CTranslate2 model, sentencepiece.model and
metadata.json."""

from __future__ import annotations

import json
import lzma
import shutil
import struct
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from regard.checkpoint.files import new_file, write
from regard.checkpoint.folder import Saved
from regard.data.documents import mapping, parse
from regard.data.tokenizers.sentencepieces import SentencePieces
from regard.errors import UserError, one_line
from regard.interop import ctranslate2
from regard.interop.exports import Export
from regard.interop.opened import Opened
from regard.interop.proof import Peer
from regard.interop.vocabularies import refused_without_pieces
from regard.languages import Language, Languages

SUFFIX = ".argosmodel"
METADATA, PIECES, MODEL = "metadata.json", "sentencepiece.model", "model"
MOSES = "bpe.model"
"""The merges of packages that split words by Moses first, which regard does not."""
MOST_ENTRIES, MOST_RATIO, SPARE = 10_000, 100, 1 << 26
"""Limits of an archive: its entries, and how many times its own size they may take, apart from the first bytes."""
CHUNK = 1 << 20
DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    NotImplementedError,
    OSError,
    RuntimeError,
    ValueError,
)
"""What reading a damaged zip raises."""


def is_package(path: Path) -> bool:
    """Whether a path is a package: a zip with this suffix."""
    return path.suffix == SUFFIX and path.is_file()


def open_package(path: Path) -> Opened:
    """Reads a package. Raises UserError that names it if it is damaged, or if it needs what regard does not have."""
    kept = TemporaryDirectory(prefix="regard-argos-")
    folder = Path(kept.name)
    try:
        metadata = _extract(path, folder)
        if (folder / MOSES).exists() or not (folder / PIECES).exists():
            raise UserError(f"it splits texts by Moses and merges ({MOSES}), expected {PIECES}")
        opened = ctranslate2.open_folder(folder)
        return replace(opened, format="argos", path=path, files=(path,), languages=_languages(metadata), kept=kept)
    except UserError as error:
        reason = str(error).replace(f"{folder}/", "").removeprefix(f"{folder}: ")
    except DAMAGED as error:
        reason = one_line(error)
    kept.cleanup()
    raise UserError(f"{path} is damaged, or no package of Argos that regard can read: {reason}")


def _extract(path: Path, folder: Path) -> dict[str, Any]:
    """Writes the files of a package that we read into one folder. Returns its metadata."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if len(entries) > MOST_ENTRIES or sum(one.file_size for one in entries) > MOST_RATIO * path.stat().st_size + SPARE:
            raise UserError("its files would take more than a hundred times its own size")
        wanted = {}
        for entry in entries:
            match PurePosixPath(entry.filename).parts:
                case (top, name) if name in (METADATA, PIECES, MOSES) and not entry.is_dir():
                    wanted[name] = top, entry
                case (top, "model", name) if not entry.is_dir():
                    wanted[name] = top, entry
        if METADATA not in wanted or len({top for top, _ in wanted.values()}) != 1:
            raise UserError(f"it does not hold one folder with {METADATA} and {MODEL}/")
        for name, (_, entry) in wanted.items():
            with archive.open(entry) as source, open(folder / Path(name).name, "xb") as target:
                _copy(source, target, entry.file_size)
    return mapping(parse((folder / METADATA).read_bytes()), METADATA)


def _copy(source: Any, target: Any, size: int) -> None:
    """Copies `size` bytes, not more, whatever the archive holds."""
    while size and (chunk := source.read(min(CHUNK, size))):
        target.write(chunk)
        size -= len(chunk)


def _languages(metadata: dict[str, Any]) -> Languages:
    def language(side: str) -> tuple[Language, ...]:
        code, name = metadata.get(f"{side}_code"), metadata.get(f"{side}_name")
        return (Language(code, name if isinstance(name, str) and name else code),) if isinstance(code, str) and code else ()

    return Languages(language("from"), language("to"))


# --- out ---------------------------------------------------------------------------------------------------------------------


def refused(saved: Saved) -> list[str]:
    """Returns the reasons why a model cannot be written in this format, beyond those of all exports."""
    reasons = [*ctranslate2.refused(saved), *refused_without_pieces(saved)]
    source, target = saved.source, saved.target
    if isinstance(source, SentencePieces) and isinstance(target, SentencePieces) and source.spm != target.spm:
        reasons.append("it has two SentencePiece models, expected one for both sides (data.shared=true)")
    languages = saved.all_languages
    if saved.languages == Languages() and languages.source[0].code == "src":
        reasons.append("its languages are not known; add --languages en,de")
    if len(languages.source) > 1 or len(languages.target) > 1:
        reasons.append("it has several languages on a side, expected one")
    return reasons


def write_folder(folder: Path, export: Export) -> tuple[str, ...]:
    """Writes the files of a package into a folder. Returns the names of those with weights."""
    saved = export.saved
    (folder / MODEL).mkdir()
    files = ctranslate2.write_folder(folder / MODEL, export)
    assert isinstance(saved.target, SentencePieces)
    write(folder / PIECES, saved.target.spm)
    source, target = saved.all_languages.source[0], saved.all_languages.target[0]
    metadata = {
        "package_version": "1.0",
        "argos_version": "1.9.0",
        "from_code": source.code,
        "from_name": source.name,
        "to_code": target.code,
        "to_name": target.name,
    }
    write(folder / METADATA, json.dumps(metadata, ensure_ascii=False, indent=2).encode())
    return tuple(f"{MODEL}/{name}" for name in files)


def pack(folder: Path, out: Path) -> None:
    """Writes a folder as a package, whose files are in one folder: at the top of the archive, Argos would not find them."""
    metadata = json.loads((folder / METADATA).read_bytes())
    top = f"translate-{metadata['from_code']}_{metadata['to_code']}-{metadata['package_version'].replace('.', '_')}"
    with new_file(out) as fresh, zipfile.ZipFile(fresh, "w") as archive:
        for path in sorted(one for one in folder.rglob("*") if one.is_file()):
            entry = zipfile.ZipInfo(f"{top}/{path.relative_to(folder).as_posix()}")  # without a date: equal models, equal files
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            with open(path, "rb") as source, archive.open(entry, "w", force_zip64=True) as target:
                shutil.copyfileobj(source, target)


def peer(folder: Path, saved: Saved) -> Peer | None:
    """Returns the files of a package as CTranslate2 runs them; None if it is not installed."""
    return ctranslate2.peer(folder / MODEL if (folder / MODEL).is_dir() else folder, saved)
