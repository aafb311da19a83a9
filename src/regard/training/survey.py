"""The first pass over the files of a run: counts, a sample to choose the settings from, and whether sources are file names."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

from regard.data.codecs import FILE_CODECS, recognise
from regard.data.columns import Columns
from regard.data.corpus import Normalisation, Pair, stream_pairs
from regard.data.counts import CorpusCounts
from regard.data.source_text import file_and_text
from regard.data.texts import stream_texts
from regard.signatures import Fingerprint
from regard.training.settings import DataSettings

SAMPLE = 20_000
"""The maximum number of pairs from which settings are chosen."""
NUM_RECOGNISED = 200
"""The number of sources that decide whether sources are file names."""


@dataclass(frozen=True)
class Survey:
    """The result of the first pass over the files.

    counts: what was counted. sample: a uniform random sample of the pairs. file_sizes: a fingerprint of the sizes of the source
    files, because hashing their contents would take long; None if the sources were read as texts.
    """

    counts: CorpusCounts
    sample: list[Pair]
    file_sizes: str | None = None


def names_files(data: DataSettings) -> bool:
    """Returns whether the sources are file names, judging by the first few."""
    if data.contents != "pairs":
        return False
    first = [pair.source for pair in islice(stream(replace(data, normalise="none")), NUM_RECOGNISED)]
    return recognise(first, folder_of(data.files)) is not None


def survey(data: DataSettings, *, names: bool = False) -> Survey:
    """Reads all pairs once. Raises UserError with the line number if a file is malformed. names: whether the sources are file
    names, even if data.source_unit does not say so yet."""
    counts, sample, rng = CorpusCounts(), list[Pair](), random.Random(0)
    root, sizes = folder_of(data.files), Fingerprint() if names or data.source_unit in FILE_CODECS else None
    for number, pair in enumerate(stream(data, counts, names=names)):
        if number < SAMPLE:
            sample.append(pair)
        elif (index := rng.randrange(number + 1)) < SAMPLE:
            sample[index] = pair
        if sizes:
            path = root / file_and_text(pair.source)[0]
            sizes.add(_size(path))
    return Survey(counts, sample, str(sizes) if sizes else None)


def _size(path: Path) -> str:
    """Returns the size of a file; of a folder, the names and sizes of its files."""
    if os.path.isdir(path):
        return str(sorted((entry.name, entry.stat().st_size) for entry in os.scandir(path) if entry.is_file()))
    return str(os.path.getsize(path) if os.path.isfile(path) else None)


def folder_of(files: Sequence[str]) -> Path:
    """Returns the folder that file names in the data are relative to: that of the first data file."""
    return Path(files[0]).parent if files else Path()


def stream(
    data: DataSettings, counts: CorpusCounts | None = None, *, names: bool = False, held_out: Columns | None = None
) -> Iterator[Pair]:
    """Yields the pairs or texts of the training files or, with their columns, those of the held-out files."""
    files = paths(data.files if held_out is None else data.held_out_files)
    columns, normalisation = held_out or columns_of(data, data.files), normalisation_of(data, names=names)
    if data.contents != "pairs":
        return stream_texts(files, data.contents, data.max_length, counts, normalisation, columns)
    return stream_pairs(files, columns, data.max_length, counts, normalisation)


def normalisation_of(data: DataSettings, *, names: bool = False) -> Normalisation:
    normalise = data.normalise == "nfc"
    return Normalisation(normalise, normalise, names or data.source_unit in FILE_CODECS)


def paths(files: Iterable[str]) -> list[Path]:
    return [Path(file) for file in files]


def columns_of(data: DataSettings, files: Sequence[str]) -> Columns:
    header: dict[str, bool | Literal["usual"] | None] = {"auto": None, "yes": True, "no": False, "usual": "usual"}
    return (
        Columns() if len(files) > 1 else Columns(data.source_columns, data.target_column, header[data.header], data.bad_lines)
    )
