"""All kinds of sources that are files, by name. A new one enters with a line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from regard.data.documents import mapping, parse
from regard.data.features import Features, Frames, Grids, kind_of
from regard.data.pictures import Pictures
from regard.data.sounds import Sounds
from regard.data.sources import FileCodec, split_source
from regard.data.tokenizers.codec import Codec, TokenUnit
from regard.errors import UserError, shown

SourceUnit = Literal[TokenUnit, "picture", "sound", "grid", "frames"]
"""What a source is made of: tokens of a text, or the name of a file.

picture: a picture, whose cells of 8 x 8 pixels are the places. sound: WAV or FLAC, with a place for every 40 ms.
grid, frames: features of your own, in .npy or .safetensors, (rows, columns, features) or (frames, features).
"""

FILE_CODECS: dict[str, type[FileCodec]] = {codec.unit: codec for codec in (Pictures, Sounds, Grids, Frames)}

FITTING: dict[str, tuple[str, ...]] = {
    "picture": ("picture", "patches"),
    "sound": ("sound",),
    "grid": ("grid",),
    "frames": ("frames",),
}
"""unit -> what a model's setting `front` may be; that of every text is tokens."""


def check_fit(unit: str, frontend: str) -> None:
    """Raises if a model whose setting `front` is this cannot read sources of this unit."""
    fitting = FITTING.get(unit, ("tokens",))
    if frontend not in fitting:
        raise UserError(
            f"the model reads {frontend} (model.frontend), but the source is of the unit {unit}; set model.frontend="
            f"{' or '.join(fitting)}, in a model of the kind rnn or transformer"
        )


def read_source(content: str | bytes, names: Mapping[str, str] | None = None) -> FileCodec:
    """Makes a codec from the content of a source.json. names: old names of its fields, and what they are called now."""
    given = mapping(parse(content), "the description of a source")
    fields = {(names or {}).get(name, name): value for name, value in given.items()}
    unit = fields.pop("unit", None)
    if not isinstance(unit, str) or unit not in FILE_CODECS:
        raise UserError(
            f"unknown unit {shown(unit)}; expected one of {', '.join(FILE_CODECS)}; is it of a newer version of regard?"
        )
    auxiliary = fields.pop("auxiliary", None)
    codec = FILE_CODECS[unit].from_dict(fields)
    if auxiliary is None:
        return codec
    try:
        return replace(codec, auxiliary=Codec.from_content(auxiliary))
    except UserError as error:
        raise UserError(f"the tokenizer of the texts that come with the files cannot be read: {error}") from None


UNREAD = frozenset(".mp3 .ogg .oga .opus .m4a .aac .wma .aiff .aif .amr .mp4 .mkv .mov .avi .webm .heic .svg .pdf .npz".split())
"""Endings of files that people might name as sources, and that are not read."""
NAMES = UNREAD.union(*(codec.suffixes for codec in FILE_CODECS.values()))


def recognise(sources: Sequence[str], root: Path) -> type[FileCodec] | None:
    """What kind of files nine of ten sources are, by their endings; None if they are text. A text may stand beside each.

    Raises where names of files would be learnt as if they were text, because they are of other kinds, stand in another column,
    or are few.
    """
    _check_auxiliary(sources)
    names = [name for name, _ in map(split_source, sources) if name]
    unread = [name for name in names if _ending(name) in UNREAD]
    if 10 * len(unread) >= 9 * len(names) > 0 or _exists(unread, root):
        raise UserError(
            f"{len(unread)} of {len(names)} sources that were looked at are names of files that are not read, such as "
            f"{unread[0]}; expected {_expected()}. Convert them, e.g. ffmpeg -i {Path(unread[0]).name} "
            f"{Path(unread[0]).stem}.wav; {_AS_TEXT}"
        )
    for codec in FILE_CODECS.values():
        fitting = [name for name in names if _ending(name) in codec.suffixes]
        if not fitting:
            continue
        if 10 * len(fitting) < 9 * len(names):
            if _exists(fitting, root):
                raise UserError(
                    f"{len(fitting)} of {len(names)} sources that were looked at are names of {codec.nouns}, such as "
                    f"{fitting[0]}, but the others are not; expected files or texts alone. Take the others out; {_AS_TEXT}"
                )
            continue
        if not issubclass(codec, Features):
            return codec
        for name in fitting[:20]:
            try:
                return kind_of(root / name)
            except UserError:
                continue
        return codec
    return None


_AS_TEXT = "to learn from the names themselves as texts, say --set data.source_unit=characters"


def _expected() -> str:
    return ", ".join(sorted(NAMES - UNREAD))


def _exists(names: Sequence[str], root: Path) -> bool:
    """Whether any of the first few does."""
    return any(os.path.isfile(root / name) for name in names[:20])  # a text may be too long for a name; Path would raise


def _ending(name: str) -> str:
    return Path(name).suffix.lower()


def _check_auxiliary(sources: Sequence[str]) -> None:
    """Raises where nine of ten of the texts beside what comes first name files."""
    auxiliary = [text for _, text in map(split_source, sources) if text]
    files = [text for text in auxiliary if any(_ending(word) in NAMES for word in text.split())]
    if files and 10 * len(files) >= 9 * len(auxiliary):
        raise UserError(
            f"the names of files, such as {files[0]!r}, stand in a column behind the first; expected them in the first source "
            f"column, and only there, with a text beside each if you like, e.g. --from audio,instruction; {_AS_TEXT}"
        )
