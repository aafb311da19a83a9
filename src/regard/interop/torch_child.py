"""The child process that reads a file of torch.save: python -m regard.interop.torch_child FILE TENSORS FACTS.

torch's restricted unpickler creates tensors and plain values only; of other classes, argparse.Namespace is allowed, where
fairseq keeps its options, and becomes a mapping. Before it reads, the process limits its memory to a small multiple of the
file, gives up the network where the system lets it, and can start no other process.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from regard.checkpoint.files import tensor_bytes

SPARE = 256 << 20
"""Bytes that reading may take apart from the tensors."""
COPIES = 4
"""How many times the size of the file the process may hold: as a file, as tensors, and as what it writes."""
NEW_NETWORK, NEW_USER = 0x40000000, 0x10000000
"""Flags of unshare(2)."""


def confine(size: int) -> None:
    """Limits this process. size: of the file, in bytes."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).unshare(NEW_NETWORK | NEW_USER)  # best effort: some systems do not allow it
    try:
        import resource
    except ImportError:  # not on Windows
        return
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if Path("/proc").exists() else 8 << 30
    for what, most in (
        (resource.RLIMIT_AS, used + COPIES * size + SPARE),
        (resource.RLIMIT_FSIZE, 2 * size + SPARE),
        (resource.RLIMIT_CORE, 0),
    ):
        with suppress(ValueError, OSError):
            resource.setrlimit(what, (most, most))


def plain(value: Any, levels: int = 8) -> Any:
    """Returns the plain part of a value: numbers, texts, lists and mappings; anything else becomes None."""
    if isinstance(value, argparse.Namespace):
        value = vars(value)
    if isinstance(value, Mapping) and levels:
        return {str(name): plain(one, levels - 1) for name, one in value.items() if not isinstance(one, torch.Tensor)}
    if isinstance(value, list | tuple) and levels:
        return [plain(one, levels - 1) for one in value[:1000]]
    return value if isinstance(value, str | int | float | bool) else None


def read(path: Path) -> tuple[dict[str, torch.Tensor], Any]:
    """Returns the tensors of a file, and the plain values of its options."""
    with torch.serialization.safe_globals([argparse.Namespace]):
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=False)
    if not isinstance(content, Mapping):
        raise TypeError(f"it holds a {type(content).__name__}, expected a mapping of tensors by name")
    model = content["model"] if isinstance(content.get("model"), Mapping) else content
    tensors = {str(name): tensor for name, tensor in model.items() if isinstance(tensor, torch.Tensor)}
    if not tensors:
        raise TypeError("it holds no tensors by name")
    return tensors, plain({name: value for name, value in content.items() if name in ("args", "cfg")})


def main(source: str, out: str, facts: str) -> None:
    path = Path(source)
    confine(path.stat().st_size)
    torch.set_num_threads(1)
    tensors, about = read(path)
    Path(out).write_bytes(tensor_bytes(tensors))
    Path(facts).write_text(json.dumps(about))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
