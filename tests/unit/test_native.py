"""The native library: how it is built, found, switched off, and run in threads. Its kernels: tests/unit/test_kernels.py."""

import ctypes
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.native import library
from regard.native.library import load

ROOT = Path(__file__).parents[2]


@pytest.fixture
def fresh(monkeypatch):
    """Loads again, with the environment and the files of the test."""
    load.cache_clear()
    yield monkeypatch
    load.cache_clear()


def test_it_can_be_switched_off(fresh):
    fresh.setenv("REGARD_NATIVE", "0")
    assert library.library() is None
    assert library.report().startswith("no: switched off by REGARD_NATIVE=0 (without it, ")


def test_a_mistyped_choice(fresh):
    fresh.setenv("REGARD_NATIVE", "yes")
    with pytest.raises(UserError, match="REGARD_NATIVE is 'yes', expected one of 0, 1, avx512, avx2, portable"):
        load()


def test_a_missing_library_says_how_to_build_it(fresh, tmp_path):
    fresh.setattr(library, "FILE", tmp_path / "regard_native.so")
    assert library.library() is None
    assert f"not built; install a C++ compiler such as g++, and run `make native` in {ROOT}" in library.report()
    fresh.setattr(library, "SOURCES", tmp_path / "CMakeLists.txt")
    load.cache_clear()
    assert "install regard again with `pip install" in library.report()


def test_a_file_that_is_no_library(fresh, tmp_path):
    (tmp_path / "regard_native.so").write_bytes(b"not ELF")
    fresh.setattr(library, "FILE", tmp_path / "regard_native.so")
    assert library.library() is None
    assert "regard_native.so cannot be loaded" in library.report()


@pytest.mark.skipif(not library.FILE.exists(), reason="the native library is not built: make native")
def test_a_library_from_other_sources(fresh):
    fresh.setattr(library, "ABI", library.ABI + 1)
    assert library.library() is None
    assert f"was built from other sources (interface {library.ABI - 1}, expected {library.ABI})" in library.report()


@pytest.mark.skipif(not library.FILE.exists(), reason="the native library is not built: make native")
def test_the_portable_instructions_can_be_chosen(fresh):
    copy = ctypes.CDLL(str(library.FILE))
    best = library.declare(copy).regard_instruction_set().decode()
    fresh.setenv("REGARD_NATIVE", "portable")
    try:
        assert library.report().startswith("yes, portable instructions")
    finally:
        copy.regard_choose(best.encode())


def test_the_number_of_the_interface_is_that_of_the_header():
    assert f"constexpr int REGARD_ABI = {library.ABI};" in (library.FOLDER / "abi.h").read_text()


def wheel(folder: Path, path: str) -> Path:
    """Builds a wheel without network, with no other programs than those on this PATH."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        str(ROOT),
    ]
    environment = {name: value for name, value in os.environ.items() if name not in ("CXX", "CC")}
    subprocess.run(command, check=True, env={**environment, "PATH": path})
    (found,) = folder.glob("*.whl")
    return found


@pytest.mark.slow
def test_it_installs_without_a_compiler(tmp_path):
    pytest.importorskip("scikit_build_core", reason="scikit-build-core is not installed")
    (tmp_path / "nothing").mkdir()
    plain = wheel(tmp_path / "plain", str(tmp_path / "nothing"))
    assert plain.name.endswith("-py3-none-any.whl")
    zipfile.ZipFile(plain).extractall(tmp_path / "site")
    program = "from regard.native.library import report; import regard; print(regard.__file__, report())"
    environment = {name: value for name, value in os.environ.items() if name != "COVERAGE_PROCESS_CONFIG"}  # of src alone
    environment["PYTHONPATH"] = str(tmp_path / "site")
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert ran.stdout.startswith(f"{tmp_path / 'site'}")
    assert "no: not built; install a C++ compiler such as g++, and install regard again with `pip install" in ran.stdout


@pytest.mark.slow
def test_a_wheel_holds_the_library_and_what_it_held_before(tmp_path):
    pytest.importorskip("scikit_build_core", reason="scikit-build-core is not installed")
    built = wheel(tmp_path, os.environ["PATH"])
    names = zipfile.ZipFile(built).namelist()
    if built.name.endswith("-any.whl"):
        pytest.skip("there is no C++ compiler")
    assert "-py3-none-" in built.name
    data = [
        "native/regard_native.so",
        "assets/cmudict.txt.gz",
        "inspection/page/page.html",
        "checking/template.txt",
        "py.typed",
    ]
    assert {f"regard/{name}" for name in data} <= set(names)
    assert any(name.endswith("licenses/src/regard/assets/cmudict.LICENSE") for name in names)
    assert not any(name.endswith((".cpp", ".h", "CMakeLists.txt", ".pyc")) for name in names)
