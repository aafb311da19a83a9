"""The parser of CTranslate2's model.bin, against a writer of ours, and against damaged files."""

import random
import struct
import tracemalloc
from pathlib import Path

import pytest
import torch
from torch import Tensor

from regard.errors import UserError
from regard.interop.model_bin import TYPES, dequantised, read_model_bin


def text(name: str) -> bytes:
    return struct.pack("<H", len(name.encode()) + 1) + name.encode() + b"\0"


def written(version: int, variables: dict[str, Tensor], aliases: dict[str, str] | None = None) -> bytes:
    """Returns a file as CTranslate2 writes it, in any version."""
    parts = [struct.pack("<I", version), text("TransformerSpec"), struct.pack("<II", 7, len(variables))]
    for name, value in variables.items():
        raw = value.contiguous().flatten().view(torch.uint8).numpy().tobytes() if value.dim() else value.numpy().tobytes()
        kind, size = TYPES.index(value.dtype), len(raw)
        if version < 4:
            kind, size = value.dtype.itemsize, value.numel()
        parts += [text(name), struct.pack(f"<B{value.dim()}I", value.dim(), *value.shape), struct.pack("<BI", kind, size), raw]
    if version >= 3:
        parts.append(struct.pack("<I", len(aliases or {})))
        parts += [text(alias) + text(name) for alias, name in (aliases or {}).items()]
    return b"".join(parts)


NUMBERS = {
    "a/weight": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "ab/weight": torch.tensor([[-127, 5, 0], [3, 2, 1]], dtype=torch.int8),
    "ab/weight_scale": torch.tensor([2.0, 8.0]),
    "c/weight": torch.tensor([512, -256], dtype=torch.int16),
    "c/weight_scale": torch.tensor(1024.0),
    "heads": torch.tensor(5, dtype=torch.int16),
}
HALVES = {"d/weight": torch.tensor([0.5, -2], dtype=torch.float16), "e": torch.tensor([[0.5, 3]], dtype=torch.bfloat16)}


@pytest.mark.parametrize("version", range(2, 7))
def test_every_version_and_type_is_read(version: int, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    halves = HALVES if version >= 4 else {}
    aliases = {"z/weight": "ab/weight"} if version >= 3 else {}
    path.write_bytes(written(version, NUMBERS | halves, aliases))
    model = read_model_bin(path)
    assert (model.version, model.specification, model.revision, model.flag("heads"), model.flag("no", 3)) == (
        version,
        "TransformerSpec",
        7,
        5,
        3,
    )
    arrays = dequantised(model)
    assert arrays["a/weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert arrays["ab/weight"].tolist() == [[-63.5, 2.5, 0], [0.375, 0.25, 0.125]]
    assert arrays["c/weight"].tolist() == [0.5, -0.25]
    assert set(arrays) == {"a/weight", "ab/weight", "c/weight", *halves, *aliases}
    if version >= 4:
        assert (arrays["d/weight"].tolist(), arrays["e"].tolist()) == ([0.5, -2], [[0.5, 3]])
    if version >= 3:
        assert arrays["z/weight"].tolist() == arrays["ab/weight"].tolist()


def test_a_file_of_one_byte_less_or_more_is_refused_by_name(tmp_path: Path) -> None:
    path, content = tmp_path / "model.bin", written(6, NUMBERS)
    for wrong in (content[:-1], content + b"\0", b"", struct.pack("<I", 7) + content[4:]):
        path.write_bytes(wrong)
        with pytest.raises(UserError, match=r"model\.bin (is damaged|cannot be read)"):
            read_model_bin(path)


def test_sizes_that_exceed_the_file_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    header = struct.pack("<I", 6) + text("TransformerSpec") + struct.pack("<I", 7)
    huge = 2**32 - 1
    for wrong in (
        struct.pack("<I", huge),
        struct.pack("<I", 1) + text("a") + struct.pack("<B2IBI", 2, huge, huge, 0, huge),
        struct.pack("<I", 1) + text("a") + struct.pack("<B1IBI", 1, 2**30 - 1, 0, huge - 3),
    ):
        path.write_bytes(header + wrong + b"\0" * 64)
        tracemalloc.start()
        with pytest.raises(UserError, match=r"model\.bin"):
            read_model_bin(path)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
        tracemalloc.stop()


def test_mutations_give_an_error_that_names_the_file_or_a_model(tmp_path: Path) -> None:
    path, rng = tmp_path / "model.bin", random.Random(5)
    content = written(6, NUMBERS | HALVES, {"z/weight": "ab/weight"})
    messages = []
    for _ in range(2000):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged[: rng.randint(0, 2 * len(damaged))])
        try:
            dequantised(read_model_bin(path))
        except UserError as error:
            messages.append(str(error))
    assert len(messages) > 1000
    assert all("model.bin" in message or "_scale" in message for message in messages)
