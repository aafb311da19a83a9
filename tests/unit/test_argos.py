"""Packages of Argos Translate that are damaged, or hold what they should not."""

import random
import zipfile
from pathlib import Path

import foreign
import pytest
import torch

from regard.errors import UserError
from regard.interop.argos import open_package
from regard.interop.convert import write_model
from regard.interop.opened import Opened


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("ctranslate2")
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("argos") / "en_de.argosmodel"
    write_model(foreign.saved(), path, "argos")
    return path


def rewritten(package: Path, out: Path, names: dict[str, str], more: dict[str, bytes] | None = None) -> Path:
    """Copies a package with some of its files renamed, and with more files."""
    with zipfile.ZipFile(package) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(names.get(name, name), old.read(name))
        for name, content in (more or {}).items():
            new.writestr(name, content)
    return out


def test_what_argos_would_not_find_is_refused(package: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(package) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith("metadata.json")]
    out = tmp_path / "other.argosmodel"
    for name in ("metadata.json", "elsewhere/metadata.json"):
        with pytest.raises(UserError, match=r"other\.argosmodel is damaged.*does not hold one folder with metadata\.json"):
            open_package(rewritten(package, out, {metadata: name}))
    top = metadata.split("/")[0]
    with pytest.raises(UserError, match="it splits texts by Moses"):
        open_package(rewritten(package, out, {f"{top}/sentencepiece.model": f"{top}/bpe.model"}))
    with pytest.raises(UserError, match="more than a hundred times its own size"):
        open_package(rewritten(package, out, {}, {f"{top}/README": b"\0" * (1 << 28)}))


def test_no_file_is_written_outside_of_the_temporary_folder(package: Path, tmp_path: Path) -> None:
    names = {"../../escaped": b"1", f"{tmp_path}/absolute": b"1", "top/model/../../escaped": b"1"}
    with open_package(rewritten(package, tmp_path / "other.argosmodel", {}, names)) as opened:
        assert isinstance(opened, Opened)
    assert [path.name for path in tmp_path.iterdir()] == ["other.argosmodel"]


def test_mutations_give_an_error_that_names_the_file_or_a_model(package: Path, tmp_path: Path) -> None:
    content, path, rng = package.read_bytes(), tmp_path / "other.argosmodel", random.Random(5)
    messages = []
    for _ in range(200):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged[: rng.randint(len(damaged) // 2, 2 * len(damaged))])
        try:
            with open_package(path) as opened:
                assert opened.weights
        except UserError as error:
            messages.append(str(error))
    assert len(messages) > 50
    assert [message for message in messages if "other.argosmodel" not in message] == []
