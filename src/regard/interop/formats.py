"""The formats of other people that regard reads and writes. To add one, write its file and add it to FORMATS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from regard.checkpoint.folder import Saved
from regard.interop import argos, ctranslate2, fairseq, marian, onnx_export, whisper
from regard.interop.exports import Export
from regard.interop.opened import Opened
from regard.interop.proof import Peer

REGARD = "regard"
"""The name of our own format."""


@dataclass(frozen=True)
class Format:
    """One format.

    title: its name for people.  found: whether a path is of this format.  open: reads it.
    refused: the reasons why a model cannot be written in it.  write: writes the files, and returns the names of those that
    hold weights; None if regard does not write it.
    peer: what was read or written, as its own library runs it; None if that is not installed or does not exist.
    library: the name of that library.  inner: the folder that holds the weights, in what was written.  pack: makes one file of
    the folder that was written; None if the folder is the result.
    """

    title: str
    found: Callable[[Path], bool]
    open: Callable[[Path], Opened] | None = None
    refused: Callable[[Saved], list[str]] | None = None
    write: Callable[[Path, Export], tuple[str, ...]] | None = None
    peer: Callable[[Path, Saved], Peer | None] | None = None
    library: str = ""
    inner: str = ""
    pack: Callable[[Path, Path], None] | None = None


FORMATS: dict[str, Format] = {
    "whisper_ctranslate2": Format(
        "CTranslate2's Whisper (faster-whisper)",
        whisper.is_ctranslate2,
        whisper.open_ctranslate2,
        peer=whisper.ctranslate2_peer,
        library="ctranslate2",
    ),
    "marian": Format(
        "Hugging Face MarianMT",
        marian.is_folder,
        marian.open_folder,
        marian.refused,
        marian.write_folder,
        marian.peer,
        "transformers",
    ),
    "ctranslate2": Format(
        "CTranslate2",
        ctranslate2.is_folder,
        ctranslate2.open_folder,
        ctranslate2.refused,
        ctranslate2.write_folder,
        ctranslate2.peer,
        "ctranslate2",
    ),
    "argos": Format(
        "Argos Translate",
        argos.is_package,
        argos.open_package,
        argos.refused,
        argos.write_folder,
        argos.peer,
        "ctranslate2",
        "model",
        argos.pack,
    ),
    "onnx": Format(
        "ONNX",
        onnx_export.is_folder,
        refused=onnx_export.refused,
        write=onnx_export.write_folder,
        peer=onnx_export.peer,
        library="onnxruntime",
    ),
    "fairseq": Format("fairseq", fairseq.is_folder, fairseq.open_folder),
    "whisper": Format(
        "Hugging Face Whisper", whisper.is_folder, whisper.open_folder, peer=whisper.peer, library="transformers"
    ),
}
"""All formats by name."""


def format_of(path: Path) -> str | None:
    """Returns the name of the format of a path; None if no format of other people recognises it."""
    return next((name for name, one in FORMATS.items() if one.open and one.found(path)), None)
