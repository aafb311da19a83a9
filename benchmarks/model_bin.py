"""Opens damaged copies of a model.bin of CTranslate2: python benchmarks/model_bin.py [--write]."""

import random
import resource
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("tests", "tests/unit")]

from test_model_bin import HALVES, NUMBERS, written  # noqa: E402

from regard.errors import UserError  # noqa: E402
from regard.interop.model_bin import dequantised, read_model_bin  # noqa: E402

CASES = 100_000


def peak() -> float:
    """Returns the largest memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    rng, content = random.Random(99), written(6, NUMBERS | HALVES, {"z/weight": "ab/weight"})
    before, start, messages = peak(), time.process_time(), []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.bin"
        for _ in range(CASES):
            damaged = bytearray(content)
            for _ in range(rng.randint(1, 3)):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            path.write_bytes(damaged[: rng.randint(0, 2 * len(damaged))])
            try:
                dequantised(read_model_bin(path))
            except UserError as error:
                messages.append(str(error))
    unnamed = sum("model.bin" not in message and "_scale" not in message for message in messages)
    line = (
        f"{date.today()}: {CASES:,} damaged files, {len(messages):,} refused, {unnamed} without a name, memory grew by "
        f"{peak() - before:.0f} MB, {time.process_time() - start:.0f} CPU seconds"
    )
    print(line)
    if "--write" in sys.argv:
        Path(__file__).with_suffix(".txt").write_text(line + "\n")


if __name__ == "__main__":
    main()
