"""Opens damaged copies of files of other formats: python benchmarks/damaged.py [--write] [FORMAT=CASES ...].

Each must give an error that names the file, or be read. The cases run in worker processes, which may crash, with limits on
the memory and on the time of a case. Files of torch.save are read in a worker by what the child process of regard runs,
since a process of its own for each of them takes two seconds; `torch_child` opens some of them so, too. The model.bin of
CTranslate2 has a script of its own, model_bin.py.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import resource
import signal
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]

import foreign  # noqa: E402
import torch  # noqa: E402
from dated import write_result  # noqa: E402

from regard.errors import UserError  # noqa: E402
from regard.interop import argos, marian, torch_child  # noqa: E402
from regard.interop.convert import write_model  # noqa: E402
from regard.interop.torch_file import read_safetensors, read_torch_file  # noqa: E402

CASES = {"argos": 20_000, "safetensors": 30_000, "marian": 10_000, "torch": 40_000, "torch_child": 100}
CHUNK, SECONDS, MEMORY = 500, 20, 1 << 30
"""Cases per worker; the most seconds of a case; bytes that a worker may take in addition to its imports."""


def make(folder: Path) -> dict[str, bytes]:
    """Writes one file of each kind and returns their contents."""
    torch.manual_seed(3)
    saved = foreign.saved()
    write_model(saved, folder / "en_de.argosmodel", "argos")
    write_model(saved, folder / "marian", "marian")
    weights = {name: one for name, one in saved.model.state_dict().items() if one.numel() < 300}
    options = argparse.Namespace(encoder_attention_heads=3, activation_fn="relu")
    torch.save({"model": weights, "args": options}, folder / "model.pt")
    found = {
        "argos": (folder / "en_de.argosmodel").read_bytes(),
        "safetensors": (folder / "marian" / "model.safetensors").read_bytes(),
        "torch": (folder / "model.pt").read_bytes(),
    }
    return {**found, "marian": found["safetensors"], "torch_child": found["torch"]}


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Changes some bytes, more often in the parts that say what the rest is, and sometimes cuts the end off."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        edge = rng.randrange(min(3000, len(changed)))
        at = rng.choice((rng.randrange(len(changed)), edge, -1 - edge))
        changed[at] = rng.choice((rng.randrange(256), changed[at] ^ 1 << rng.randrange(8), 0, 255))
    return bytes(changed[: rng.randint(0, len(changed))] if rng.random() < 0.2 else changed)


def damaged_package(content: bytes, rng: random.Random) -> bytes:
    """Damages a package; every other time one of the files in it, so that its checksums are right."""
    if rng.random() < 0.5:
        return damaged(content, rng)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as new:
        names = [name for name in old.namelist() if not name.endswith("/")]
        chosen = rng.choice(names)
        for name in names:
            inner = old.read(name)
            new.writestr(name, damaged(inner, rng) if name == chosen and inner else inner)
    return out.getvalue()


def open_argos(path: Path) -> None:
    with argos.open_package(path) as opened, marian.naming(path):
        opened.model()


def open_marian(path: Path) -> None:
    """Opens a folder whose weights are damaged."""
    opened = marian.open_folder(path.parent)
    with marian.naming(path):
        opened.model()


def open_torch(path: Path) -> None:
    """Does in this process what the child process does; any exception is an error that it reports."""
    try:
        torch_child.read(path)
    except Exception as error:
        raise UserError(f"{path} cannot be read: {error}") from None


OPEN: dict[str, tuple[str, Callable[[Path], object]]] = {
    "argos": ("other.argosmodel", open_argos),
    "safetensors": ("model.safetensors", read_safetensors),
    "marian": ("model.safetensors", open_marian),
    "torch": ("pytorch_model.bin", open_torch),
    "torch_child": ("pytorch_model.bin", read_torch_file),
}


def run(kind: str, folder: Path, content: bytes, first: int, last: int, out: int) -> None:
    """Runs cases in this worker and writes one letter for each: r(ead), e(rror), u(nnamed), o(ther exception)."""
    name, opens = OPEN[kind]
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    if kind != "torch_child":
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    path = folder / name
    for number in range(first, last):
        rng = random.Random(number * 31 + len(kind))
        path.write_bytes(damaged_package(content, rng) if kind == "argos" else damaged(content, rng))
        signal.alarm(SECONDS if kind != "torch_child" else 60)
        letter = "r"
        try:
            with redirect_stderr(io.StringIO()):
                opens(path)
        except UserError as error:
            letter = "e" if folder.name in str(error) or name in str(error) else "u"
        except BaseException as error:
            letter = "o"
            print(kind, number, type(error).__name__, str(error)[:200], flush=True)
        os.write(out, letter.encode())
    signal.alarm(0)


def fork(kind: str, folder: Path, content: bytes, first: int, last: int) -> str:
    """Runs cases in a fork. Returns their letters; "!" stands for one that ended it."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            run(kind, folder, content, first, last, write)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        letters = file.read().decode()
    _, status = os.waitpid(child, 0)
    if len(letters) == last - first:
        return letters
    print(kind, "case", first + len(letters), "ended its process, status", status, flush=True)
    return letters + "!"


def main() -> None:
    torch.set_num_threads(1)
    cases = {**CASES, **{name: int(number) for name, number in (one.split("=") for one in sys.argv[1:] if "=" in one)}}
    lines = []
    with tempfile.TemporaryDirectory() as root:
        contents = make(Path(root))
        for kind, number in cases.items():
            start, counts = time.process_time(), Counter[str]()
            children = resource.getrusage(resource.RUSAGE_CHILDREN)
            folder = Path(root) / "marian" if kind == "marian" else Path(root)
            done = 0
            while done < number:
                letters = fork(kind, folder, contents[kind], done, min(number, done + CHUNK))
                counts.update(letters)
                done += len(letters)
            now = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = time.process_time() - start + now.ru_utime + now.ru_stime - children.ru_utime - children.ru_stime
            lines.append(
                f"{kind:12} {number:7,} damaged files: {counts['e']:,} refused by name, {counts['r']:,} read, "
                f"{counts['u']} without a name, {counts['o']} other exceptions, {counts['!']} crashes or hangs; "
                f"{seconds:.0f} CPU seconds"
            )
            print(lines[-1], flush=True)
    lines.append(f"the largest worker took {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024:.0f} MB in all")
    print(lines[-1])
    if "--write" in sys.argv:
        write_result(__file__, lines)


if __name__ == "__main__":
    main()
