"""Fingerprints of data and signatures of results: what was measured, on which data, with which versions."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path


class Fingerprint:
    """Six hexadecimal digits that identify some lines of text in a signature."""

    def __init__(self) -> None:
        self._digest, self._separator = hashlib.sha256(), b""

    def add(self, line: str) -> None:
        """Adds a line."""
        self._digest.update(self._separator + line.encode())
        self._separator = b"\n"

    def __str__(self) -> str:
        return self._digest.hexdigest()[:6]


def text_fingerprint(lines: Iterable[str]) -> str:
    """Returns the fingerprint of all these lines."""
    fingerprint = Fingerprint()
    for line in lines:
        fingerprint.add(line)
    return str(fingerprint)


def file_fingerprint(*parts: Path | str) -> str:
    """Returns a sha256 of the contents of files (Path) and of texts (str), such as settings or a tokenizer's JSON."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            part_digest = hashlib.sha256(part.encode())
        else:
            with open(part, "rb") as file:
                part_digest = hashlib.file_digest(file, "sha256")
        digest.update(part_digest.digest())
    return digest.hexdigest()


def signature(facts: Mapping[str, object]) -> str:
    """Returns one line with all that is needed to reproduce a number:
    `data:… | search:greedy | seed:7 | regard:0.1.0 | torch:…`."""
    versions = {"regard": version("regard"), "torch": version("torch"), "python": platform.python_version()}
    return " | ".join(f"{name}:{value}" for name, value in {**facts, **versions}.items())
