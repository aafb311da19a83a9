"""Files of torch.save are read by a child process that creates nothing but tensors and plain values."""

import argparse
import os
from pathlib import Path

import pytest
import torch

from regard.errors import UserError
from regard.interop.torch_file import read_torch_file

pytestmark = pytest.mark.slow


class Runs:
    """A pickle that would run a command."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


def test_tensors_and_the_options_of_fairseq_are_read(tmp_path: Path) -> None:
    path, weight = tmp_path / "checkpoint.pt", torch.randn(3, 5)
    options = argparse.Namespace(encoder_attention_heads=8, activation_fn="relu", odd=None)
    torch.save({"model": {"a.weight": weight, "copy": weight}, "args": options, "last_optimizer_state": {"x": 1}}, path)
    tensors, facts = read_torch_file(path)
    assert tensors.keys() == {"a.weight", "copy"}
    assert torch.equal(tensors["copy"], weight)
    assert facts == {"args": {"encoder_attention_heads": 8, "activation_fn": "relu", "odd": None}}


@pytest.mark.parametrize("damage", ["code", "cut", "number"])
def test_anything_else_is_refused_by_name_and_runs_no_code(damage: str, tmp_path: Path) -> None:
    path, proof = tmp_path / "pytorch_model.bin", tmp_path / "ran"
    content = {"code": {"a": torch.zeros(2), "b": Runs(proof)}, "cut": {"a": torch.zeros(999)}, "number": 5}[damage]
    torch.save(content, path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(UserError, match=r"pytorch_model\.bin cannot be read as tensors alone: \w+"):
        read_torch_file(path)
    assert not proof.exists()
