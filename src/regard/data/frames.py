"""Reads the frames of a video one by one: of an animated GIF, WebP or PNG, of a folder of pictures, or of a .npy array."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

import numpy as np

from regard.contracts import Array
from regard.data.arrays import map_npy
from regard.data.documents import few
from regard.data.files import reading
from regard.data.pictures import Pictures, check_pillow, in_grey_or_colours, open_picture, opened
from regard.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

T = TypeVar("T")

ANIMATED = frozenset({".gif", ".webp", ".png", ".apng"})
"""Suffixes of files that may hold several frames."""
ARRAY = ".npy"
MOST_FRAMES = 100_000
"""Maximum number of frames of one video."""
MOST_PIXELS = 2**30
"""Maximum number of pixels of all frames of an animated file, which are decoded one after the other."""
CHANNELS = (1, 3)
"""Numbers of features of an array of pixels: grey, or red, green and blue."""


def num_frames(path: Path) -> int:
    """Returns the number of frames, from the header of a file, without decoding it. Raises UserError if it cannot be read."""
    if path.is_dir():
        return len(frame_files(path))
    if path.suffix.lower() == ARRAY:
        return len(_pixels(path))
    with opened(path) as file:
        return _counted(path, file)


def is_video(path: Path) -> bool:
    """Whether a file has more than one frame, or is a folder of pictures or an array of four axes whose numbers are pixels.
    Raises UserError if it cannot be read."""
    if path.is_dir():
        return bool(frame_files(path))
    if path.suffix.lower() == ARRAY:
        return is_pixels(map_npy(path))
    return path.suffix.lower() in ANIMATED and num_frames(path) > 1


def is_pixels(array: Array) -> bool:
    """Whether an array is a video, (time, rows, columns, features): bytes, one or three per pixel."""
    return array.ndim == 4 and array.dtype == np.uint8 and array.shape[-1] in CHANNELS


def spaced(number: int, most: int) -> list[int]:
    """Returns the indices of at most `most` of `number` frames, evenly spaced, with the first and the last.

    >>> spaced(10, 4)
    [0, 3, 6, 9]
    """
    if number <= most:
        return list(range(number))
    gaps = max(1, most - 1)
    return [(2 * index * (number - 1) + gaps) // (2 * gaps) for index in range(most)]


def read_frames(path: Path, most: int, convert: Callable[[Image], T]) -> list[T]:
    """Returns `convert(frame)` of at most `most` evenly spaced frames of a video, which are in the mode L or RGB, and of one
    size. Only one frame is in memory at a time.

    Raises UserError with the name of the file if it cannot be read.
    """
    size, converted = None, list[T]()
    for number, frame in _frames(path, most):
        size = size or frame.size
        if frame.size != size:
            raise UserError(
                f"frame {number} of {path} has {frame.width} x {frame.height} pixels, but the first has {size[0]} x {size[1]}; "
                "scale all frames to one size"
            )
        converted.append(convert(frame))
    return converted


def _frames(path: Path, most: int) -> Iterator[tuple[int, Image]]:
    """Yields evenly spaced frames with their numbers, from 0."""
    if path.is_dir():
        files = frame_files(path)
        if not files:
            raise UserError(f"{path} is a folder without pictures, expected the frames of a video")
        yield from ((index, open_picture(files[index])) for index in spaced(len(files), most))
    elif path.suffix.lower() == ARRAY:
        yield from _array_frames(path, most)
    else:
        yield from _animated_frames(path, most)


def _array_frames(path: Path, most: int) -> Iterator[tuple[int, Image]]:
    check_pillow()
    from PIL import Image

    pixels = _pixels(path)
    for index in spaced(len(pixels), most):
        frame = np.ascontiguousarray(pixels[index])
        yield index, Image.fromarray(frame[..., 0] if frame.shape[-1] == 1 else frame)


def _animated_frames(path: Path, most: int) -> Iterator[tuple[int, Image]]:
    with opened(path) as file:
        for index in spaced(_counted(path, file), most):
            file.seek(index)
            file.load()
            yield index, in_grey_or_colours(file.copy())


def _pixels(path: Path) -> Array:
    """Maps an array of pixels, (time, rows, columns, features). Raises UserError if it is none."""
    array = map_npy(path)
    if not is_pixels(array):
        raise UserError(
            f"{path} has shape {array.shape} and numbers of type {array.dtype}, expected (time, rows, columns, features) with "
            "1 or 3 features (grey, or red, green and blue) of type uint8"
        )
    _check_number(path, len(array))
    if max(array.shape[1:3]) > 2**14:
        raise UserError(f"{path} has frames of {array.shape[2]:,} x {array.shape[1]:,} pixels; scale them down first")
    return array


def _counted(path: Path, file: ImageFile) -> int:
    """Returns the number of frames of an open file. Raises UserError if there are too many, or too many pixels."""
    width, height = file.size
    most = min(MOST_FRAMES, MOST_PIXELS // max(1, width * height))
    if file.format == "GIF":
        with open(path, "rb") as content:
            number = _gif_frames(content, most)
    else:
        number = int(getattr(file, "n_frames", 1))
    _check_number(path, number)
    if number > 1 and number > most:
        raise UserError(
            f"{path} has {number:,} or more frames of {width:,} x {height:,} pixels, expected at most {MOST_PIXELS:,} pixels "
            "in total; shorten it, or scale it down first"
        )
    return number


def _gif_frames(file: IO[bytes], most: int) -> int:
    """Returns the number of frames of a GIF, whose header does not hold it, but not more than `most` + 1."""
    file.seek(0)
    flags, number = file.read(13)[10], 0
    _skip_colours(file, flags)
    while number <= most:
        match file.read(1):
            case b",":  # a picture
                _skip_colours(file, file.read(9)[8])
                file.read(1)
                number += 1
            case b"!":  # an extension
                file.read(1)
            case _:
                break
        while size := file.read(1):
            if size == b"\0":
                break
            file.seek(size[0], os.SEEK_CUR)
    return number


def _skip_colours(file: IO[bytes], flags: int) -> None:
    """Skips a table of colours, if there is one."""
    if flags & 0x80:
        file.seek(3 << (flags & 7) + 1, os.SEEK_CUR)


def _check_number(path: Path, number: int) -> None:
    if number > MOST_FRAMES:
        raise UserError(f"{path} has more than {MOST_FRAMES:,} frames; split it into shorter videos")


def frame_files(folder: Path) -> list[Path]:
    """Returns the pictures of a folder in natural order (2.png before 10.png); hidden files are left out.

    Raises UserError if the folder holds anything else.
    """
    with reading(folder):
        names = sorted((name for name in os.listdir(folder) if not name.startswith(".")), key=_natural)
    others = [name for name in names if Path(name).suffix.lower() not in Pictures.suffixes]
    if others:
        raise UserError(f"{folder} contains files that are no pictures ({few(others)}), expected only the frames of one video")
    _check_number(folder, len(names))
    return [folder / name for name in names]


def _natural(name: str) -> tuple[list[tuple[int, str]], str]:
    """Returns a key that sorts numbers in names by their value."""
    parts = re.split(r"([0-9]+)", name)  # texts and numbers alternate
    return [(int(part), "") if index % 2 else (0, part) for index, part in enumerate(parts)], name
