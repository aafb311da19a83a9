"""Reads tensors of safetensors files, and of old files of torch.save, which are pickles: those only in a child process that may
create nothing but tensors and plain values, with limits on memory and time and without network."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.errors import UserError, one_line

SECONDS = 600
"""How long the child process may take."""


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Returns the tensors of a safetensors file. Raises UserError if it is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 it is no mapping
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged or not a safetensors file: {one_line(error)}; copy it again") from None


def read_torch_file(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns the tensors of a file of torch.save, and the plain values next to them.

    The tensors are those of the file's mapping, or of its entry "model", as fairseq has it. Raises UserError if the file is
    damaged, holds anything else than tensors and plain values, or needs too much memory.
    """
    with tempfile.TemporaryDirectory(prefix="regard-convert-") as folder:
        out, facts = Path(folder) / "tensors.safetensors", Path(folder) / "facts.json"
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "regard.interop.torch_child", str(path.resolve()), str(out), str(facts)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        try:
            _, message = child.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            raise UserError(f"{path} could not be read within {SECONDS} seconds; is it damaged?") from None
        if child.returncode or not out.exists():
            reason = (
                one_line(message.decode(errors="replace").strip().split("\n")[-1])
                or f"the process ended with {child.returncode}"
            )
            raise UserError(f"{path} cannot be read as tensors alone: {reason}; expected a file of torch.save without code")
        return read_safetensors(out), json.loads(facts.read_bytes())
