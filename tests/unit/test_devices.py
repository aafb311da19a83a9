"""The memory of tensors, and what Regard leaves unchanged in the process that imports it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from regard.core.devices import choose_device
from regard.errors import UserError

FAULTS = """
import ctypes, resource, torch
from regard.core.devices import keep_freed_memory
if {keep}:
    keep_freed_memory()
else:
    ctypes.CDLL(None).mallopt(-3, 1 << 16)  # every tensor gets new pages; by default, glibc decides by earlier allocations
def allocate():
    [torch.ones(1 << 21) for _ in range(10)]  # 8 MB each
allocate(), allocate()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    allocate()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has this setting")
def test_freed_memory_is_used_again() -> None:
    """8 MB are 2,048 pages: thirty tensors in new memory cause 60,000 page faults."""
    kept, plain = (
        int(subprocess.run([sys.executable, "-c", FAULTS.format(keep=keep)], capture_output=True, text=True, check=True).stdout)
        for keep in (True, False)
    )
    assert kept < 3_000
    assert plain > 30_000


MODEL = Path(__file__).parents[1] / "frozen" / "models" / "rnn-luong"
HOST = """
import ctypes, os, signal, warnings
import numpy, pydantic, rapidfuzz, safetensors, tokenizers, torch  # these change settings of the process themselves

def settings():
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    return list(warnings.filters), dict(os.environ), handlers, torch.get_num_threads(), torch.get_rng_state().tolist()

looked_up, find = [], ctypes.CDLL.__getattr__
ctypes.CDLL.__getattr__ = lambda library, name: looked_up.append(name) or find(library, name)
before = settings()
{code}
assert [one == other for one, other in zip(before, settings())] == [True] * 5
print("mallopt" in looked_up)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "sets_malloc"),
    [
        ("import regard; regard.attend; regard.reference; regard.Translator; regard.inspect", False),
        (f"import regard; regard.load({str(MODEL)!r}, device='cpu')('ab')", False),
        ("from regard.cli.options import prepare_device; prepare_device('cpu', None)", True),
    ],
    ids=["import", "load", "command"],
)
def test_only_commands_change_settings_of_the_process(code: str, sets_malloc: bool) -> None:
    """Warning filters, environment, signal handlers, threads and random numbers stay as they are; commands set up malloc."""
    done = subprocess.run([sys.executable, "-c", HOST.format(code=code)], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{sets_malloc and sys.platform == 'linux'}\n", "")


def test_devices_are_chosen_by_name_number_or_object(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_device("cpu") == choose_device(torch.device("cpu")) == torch.device("cpu")
    for name in ("tpu", "cuda:x", "cuda:", "cpu0", "", "meta"):
        with pytest.raises(UserError, match=f"unknown device '{name}'; expected auto, cpu, cuda or mps, or a number such as"):
            choose_device(name)
    with pytest.raises(UserError, match="unknown device 'meta'"):
        choose_device(torch.device("meta"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto") == torch.device("cuda")
    assert choose_device("cuda:1") == choose_device(torch.device("cuda", 1)) == torch.device("cuda", 1)
    with pytest.raises(UserError, match="device 'cuda:2' is not available on this machine"):
        choose_device("cuda:2")
