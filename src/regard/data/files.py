"""Opens files: checks them first, and turns errors of the system into messages with the file's name."""

from __future__ import annotations

import os
import stat
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.errors import UserError

MOST_BYTES = 2**30
"""Maximum size of a file that is read as a whole."""

_MAGIC = {
    b"RIFF": ("WAV", "a sound file"),
    b"fLaC": ("FLAC", "a sound file"),
    b"\xff\xfb": ("MP3", "a sound file"),
    b"\xff\xf3": ("MP3", "a sound file"),
    b"ID3": ("MP3", "a sound file"),
    b"OggS": ("Ogg", "a sound file"),
    b"FORM": ("AIFF", "a sound file"),
    b"RF64": ("RF64", "a sound file"),
    b"\x89PNG": ("PNG", "a picture"),
    b"\xff\xd8\xff": ("JPEG", "a picture"),
    b"PK\x03\x04": ("ZIP", "an archive"),
}
"""Magic numbers of binary files: the name of the format, and what it contains."""


def packed_as(path: Path) -> str:
    """Returns how a file is compressed, by its name: ".gz", ".zst", or an empty string."""
    suffix = path.suffix.lower()
    return suffix if suffix in (".gz", ".zst") else ""


def suffix_of(path: Path) -> str:
    """Returns the suffix in lower case, without .gz or .zst: ".tsv" for pairs.TSV.gz."""
    return Path(path.stem if packed_as(path) else path.name).suffix.lower()


def check_file(path: Path) -> None:
    """Raises UserError if the file does not exist, or is a pipe, device or socket, which may never end."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: the name contains a null character
        raise UserError(f"{path}: no such file") from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        what = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
        raise UserError(
            f"{path}: this is {what}, expected a file that can be read more than once; save its contents to a file first, "
            "e.g. zcat pairs.tsv.gz > pairs.tsv"
        )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Context that checks the file with `check_file` and turns errors of the system into a UserError with the file's name."""
    try:
        check_file(path)
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


@contextmanager
def temporary_files(folder: Path | None = None) -> Iterator[None]:
    """Context that turns errors of the system, such as a full disk, into a UserError. folder: where temporary files are kept;
    by default, where the system puts them."""
    try:
        yield
    except OSError as error:
        advice = "free some disk space" + ("" if folder else ", or set TMPDIR to a folder that has some")
        where = folder or tempfile.gettempdir()
        raise UserError(f"{where}: temporary files cannot be written: {error.strerror or error}; {advice}") from None


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Returns the contents of a file; raises UserError if it has more than `most` bytes."""
    with reading(path), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise UserError(f"{path} has {size:,} bytes, expected at most {most:,}; is it the right file?")
        return file.read(size)


def format_of(start: bytes) -> tuple[str, str] | None:
    """Returns (name of the format, what it contains) for a file that starts with these bytes; None if the format is unknown."""
    return next((known for magic, known in _MAGIC.items() if start.startswith(magic)), None)
