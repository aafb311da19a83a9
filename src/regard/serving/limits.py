"""What one client may ask for, and what all of them together may use."""

from __future__ import annotations

from dataclasses import dataclass

MEGABYTE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of the server. Sizes are in bytes, times in seconds.

    body: of the body of a request.  text: characters of all texts of a request together.  batch: texts of a request.
    alternatives, beam: of a request.
    memory: of all searches that run at the same time, with outputs of the largest length.
    waiting: how many sentences may wait for a search.
    seconds: how long a request may take.  receiving: how long a client may take to send a request.
    files: of all translated files that wait for their download.  file_seconds: how long a file waits.
    """

    body: int = 2 * MEGABYTE
    text: int = 20_000
    batch: int = 200
    alternatives: int = 10
    beam: int = 16
    memory: int = 1 << 30
    waiting: int = 5_000
    seconds: float = 60.0
    receiving: float = 20.0
    files: int = 64 * MEGABYTE
    file_seconds: float = 600.0
