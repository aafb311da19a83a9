"""API keys in an SQLite file. It holds their hashes, so whoever reads it learns no key. Needs no web framework."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from regard.errors import UserError, shown

_TABLE = "CREATE TABLE IF NOT EXISTS keys (hash TEXT PRIMARY KEY, name TEXT UNIQUE NOT NULL, per_minute INTEGER, created TEXT)"


@dataclass(frozen=True)
class Key:
    """A key, as the file knows it. per_minute: how many requests its owner may send in a minute; None if as many as others."""

    name: str
    per_minute: int | None
    created: str


class KeyFile:
    """The keys of a server. It only reads the file, so that the file system may be read-only, and sees new keys at once."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise UserError(f"{path}: no such file; make a key with: regard keys add NAME --file {path}")
        self.path = path
        self.list()

    def find(self, key: str) -> Key | None:
        """Returns what is known of a key; None if it is not valid."""
        with _reading(self.path) as database:
            row = database.execute("SELECT name, per_minute, created FROM keys WHERE hash = ?", (_hash(key),)).fetchone()
        return None if row is None else Key(*row)

    def list(self) -> list[Key]:
        """Returns all keys, by name."""
        with _reading(self.path) as database:
            return [Key(*row) for row in database.execute("SELECT name, per_minute, created FROM keys ORDER BY name")]


def add(path: Path, name: str, per_minute: int | None = None) -> str:
    """Makes a key and returns it; nobody can read it from the file later. Raises UserError if the name is taken."""
    key, today = secrets.token_urlsafe(32), datetime.now(UTC).strftime("%Y-%m-%d")
    with _writing(path) as database:
        try:
            database.execute("INSERT INTO keys VALUES (?, ?, ?, ?)", (_hash(key), name, per_minute, today))
        except sqlite3.IntegrityError:
            raise UserError(f"there is a key with the name {shown(name)} already; choose another name, or remove it") from None
    return key


def remove(path: Path, name: str) -> None:
    """Removes a key. Raises UserError if there is none of this name."""
    KeyFile(path)
    with _writing(path) as database:
        if not database.execute("DELETE FROM keys WHERE name = ?", (name,)).rowcount:
            raise UserError(f"there is no key with the name {shown(name)}; see: regard keys list --file {path}")


def _hash(key: str) -> str:
    return sha256(key.encode(errors="surrogatepass")).hexdigest()  # a key has 256 random bits, so no slow hash is needed


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    with _wrong_files(path), closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
        yield database


@contextmanager
def _writing(path: Path) -> Iterator[sqlite3.Connection]:
    is_new = not path.exists()
    with _wrong_files(path), closing(sqlite3.connect(path)) as database, database:
        if is_new:
            path.chmod(0o600)
        database.execute(_TABLE)
        yield database


@contextmanager
def _wrong_files(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise UserError(f"{path} cannot be used as a file of keys: {error}") from None
