"""The registry of codecs for files: pictures, videos, sounds and features. To add a kind, add it to FILE_CODECS and FITTING."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from regard.contracts import SourceText
from regard.data.arrays import open_array
from regard.data.documents import mapping, parse
from regard.data.features import Features, Frames, Grids
from regard.data.frames import is_pixels, is_video
from regard.data.pictures import Pictures
from regard.data.sounds import Sounds
from regard.data.source_text import file_and_text
from regard.data.sources import FileCodec
from regard.data.tokenizers.codec import Codec
from regard.data.tokenizers.units import TextUnit
from regard.data.videos import VideoGrids, Videos
from regard.data.whisper import WhisperSounds
from regard.errors import UserError, shown

SourceUnit = Literal[TextUnit, "picture", "video", "sound", "whisper", "grid", "frames", "video_grid"]
"""What a source is: the tokens of a text (see `TextUnit`), or the name of a file.

picture: a picture, with one position per grid cell of 8 x 8 pixels. sound: WAV or FLAC, with one position per 40 ms.
whisper: a sound as Whisper reads it: padded to 30 seconds, with one position per 20 ms.
video: an animated GIF, WebP or PNG, a folder of frames, or .npy (time, rows, columns, features) of bytes; the positions of each
frame are those of a picture.
grid, frames, video_grid: your own features, in .npy or .safetensors, (rows, columns, features), (frames, features) or (time,
rows, columns, features).
"""

FILE_CODECS: dict[str, type[FileCodec]] = {
    codec.unit: codec for codec in (Pictures, Sounds, WhisperSounds, Grids, Frames, Videos, VideoGrids)
}

FITTING: dict[str, tuple[str, ...]] = {
    "picture": ("picture", "patches"),
    "sound": ("sound",),
    "whisper": ("whisper",),
    "grid": ("grid",),
    "frames": ("frames",),
    "video": ("video",),
    "video_grid": ("video_grid",),
}
"""unit -> allowed values of the model's setting `frontend`; for every unit of text it is "tokens"."""


def check_fit(unit: str, frontend: str, file_readers: Sequence[str]) -> None:
    """Raises UserError if a model with this `frontend` cannot read sources of this unit.

    file_readers: the model families that have a setting `frontend`.
    """
    fitting = FITTING.get(unit, ("tokens",))
    if frontend not in fitting:
        raise UserError(
            f"the model reads {frontend} (model.frontend), but the sources have the unit {unit}; set model.frontend="
            f"{' or '.join(fitting)}, in a model of kind {' or '.join(file_readers)}"
        )


def read_source(content: str | bytes, names: Mapping[str, str] | None = None) -> FileCodec:
    """Returns the codec that a source.json describes. Raises UserError if the content is invalid.

    names: old field name -> current field name.
    """
    description = mapping(parse(content), "the description of a source")
    fields = {(names or {}).get(name, name): value for name, value in description.items()}
    unit = fields.pop("unit", None)
    if not isinstance(unit, str) or unit not in FILE_CODECS:
        raise UserError(
            f"unknown unit {shown(unit)}; expected one of {', '.join(FILE_CODECS)}; is it from a newer version of regard?"
        )
    auxiliary = fields.pop("auxiliary", None)
    codec = FILE_CODECS[unit].from_dict(fields)
    if auxiliary is None:
        return codec
    try:
        return replace(codec, auxiliary=Codec.from_content(auxiliary))
    except UserError as error:
        raise UserError(f"the tokenizer of the auxiliary texts cannot be read: {error}") from None


UNSUPPORTED = frozenset(
    ".mp3 .ogg .oga .opus .m4a .aac .wma .aiff .aif .amr .mp4 .mkv .mov .avi .webm .heic .svg .pdf .npz".split()
)
FILMS = frozenset({".mp4", ".mkv", ".mov", ".avi", ".webm"})
"""Suffixes of files that users may name as sources, but that are not supported; FILMS: those of videos."""
SUFFIXES = UNSUPPORTED.union(*(codec.suffixes for codec in FILE_CODECS.values()))


def recognise(sources: Sequence[SourceText], root: Path) -> type[FileCodec] | None:
    """Returns the codec class of the sources if at least nine of ten have the suffix of its files; None if they are texts.
    Each file may have an auxiliary text.

    Sources are videos if at least nine of ten are folders, and most of these hold pictures; or if most pictures have more than
    one frame, by their headers. Other pictures are read as pictures, and of several frames the first.

    Raises UserError if file names would be trained on as text, because their kind is not supported, they are in another column,
    or there are too few of them.
    """
    _check_auxiliary(sources)
    names = [name for name, _ in map(file_and_text, sources) if name]
    unsupported = [name for name in names if _suffix(name) in UNSUPPORTED]
    if 10 * len(unsupported) >= 9 * len(names) > 0 or _exists(unsupported, root):
        raise UserError(
            f"{len(unsupported)} of {len(names)} sources that were checked are files of an unsupported kind, such as "
            f"{unsupported[0]}; expected {_expected()}. Convert them, e.g. ffmpeg -i {Path(unsupported[0]).name} "
            f"{_converted(unsupported[0])}; {_AS_TEXT}"
        )
    if names and sum(os.path.isdir(root / name) for name in names) >= 0.9 * len(names) and _are_videos(names, root):
        return Videos
    for codec in FILE_CODECS.values():
        fitting = [name for name in names if _suffix(name) in codec.suffixes]
        if not fitting:
            continue
        if 10 * len(fitting) < 9 * len(names):
            if _exists(fitting, root):
                raise UserError(
                    f"{len(fitting)} of {len(names)} sources that were checked are names of {codec.nouns}, such as "
                    f"{fitting[0]}, but the others are not; expected only files or only texts. Remove the others; {_AS_TEXT}"
                )
            continue
        if codec is Pictures:
            return Videos if _are_videos(fitting, root) else Pictures
        return _kind_of_features(fitting, root) if issubclass(codec, Features) else codec
    return None


def _are_videos(names: Sequence[str], root: Path) -> bool:
    """Whether at least half of those of the first 20 files that can be read are videos."""
    kinds = []
    for name in names[:20]:
        try:
            kinds.append(is_video(root / name))
        except UserError:
            continue
    return bool(kinds) and 2 * sum(kinds) >= len(kinds)


def _kind_of_features(names: Sequence[str], root: Path) -> type[FileCodec]:
    """Returns the codec class for arrays, by the number of axes of the first that can be read."""
    for name in names[:20]:
        try:
            array = open_array(root / name)
        except UserError:
            continue
        if is_pixels(array):
            return Videos
        return VideoGrids if array.ndim == 4 else Grids if array.ndim == 3 else Frames
    return Grids


_AS_TEXT = "to train on the names themselves as texts, use --set data.source_unit=characters"


def _converted(name: str) -> str:
    """Returns the name of a supported file that a file may be converted to, with options of ffmpeg."""
    return f"-vf fps=4,scale=64:-2 {Path(name).stem}.gif" if _suffix(name) in FILMS else f"{Path(name).stem}.wav"


def _expected() -> str:
    return ", ".join(sorted(SUFFIXES - UNSUPPORTED))


def _exists(names: Sequence[str], root: Path) -> bool:
    """Whether any of the first 20 files exists."""
    return any(os.path.isfile(root / name) for name in names[:20])  # Path.is_file raises if a text is too long for a name


def _suffix(name: str) -> str:
    return Path(name).suffix.lower()


def _check_auxiliary(sources: Sequence[SourceText]) -> None:
    """Raises UserError if at least nine of ten auxiliary texts contain file names."""
    auxiliary = [text for _, text in map(file_and_text, sources) if text]
    files = [text for text in auxiliary if any(_suffix(word) in SUFFIXES for word in text.split())]
    if files and 10 * len(files) >= 9 * len(auxiliary):
        raise UserError(
            f"there are file names, such as {files[0]!r}, after the first source column; expected them only in the first "
            f"source column, optionally followed by a column of auxiliary texts, e.g. --from audio,instruction; {_AS_TEXT}"
        )
