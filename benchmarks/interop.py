"""Opens a MarianMT folder of OPUS-MT's size with random weights: time and memory, ours and transformers', one process each.

    python benchmarks/interop.py [--write]

Writes benchmarks/interop.txt with the date. The proof is left out, as it runs at the first opening only.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROUNDS = 5
SOURCE = """
import json, sys, time
import torch
torch.set_num_threads(1)
if sys.argv[1] == "ours":
    from regard.interop.marian import open_folder
    start = time.perf_counter()
    model = open_folder(__import__("pathlib").Path(sys.argv[2])).model()
else:
    import transformers
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    from transformers import MarianMTModel, MarianTokenizer
    start = time.perf_counter()
    import warnings; warnings.simplefilter("ignore")
    MarianTokenizer.from_pretrained(sys.argv[2])
    model = MarianMTModel.from_pretrained(sys.argv[2], dtype=torch.float32).eval()
seconds = time.perf_counter() - start
status = dict(line.split(":", 1) for line in open("/proc/self/status"))  # ru_maxrss would be that of the parent
peak = int(status["VmHWM"].split()[0]) / 1024
print(json.dumps({"seconds": seconds, "peak": peak, "parameters": sum(one.numel() for one in model.parameters())}))
"""


def make(folder: Path) -> None:
    """Writes random weights of OPUS-MT's size: 6+6 layers, width 512, 58,101 pieces."""
    import torch

    from regard.checkpoint.folder import Saved
    from regard.contracts import Specials
    from regard.data.tokenizers.sentencepieces import SentencePieces
    from regard.interop.exports import Export
    from regard.interop.marian import write_folder
    from regard.interop.record import record_of
    from regard.models.build import build
    from regard.models.transformer import TransformerSettings

    trained = SentencePieces.train([f"text {number} of some length" for number in range(500)], "unigram", 400, "nmt_nfkc")
    rest = [piece for piece in trained.vocabulary if piece not in ("<pad>", "<unk>", "<s>", "</s>")]
    names = ["</s>", "<unk>", *rest, *(f"▁filler{number}" for number in range(58_100 - 2 - len(rest))), "<pad>"]
    codec = SentencePieces(trained.spm, names, Specials(pad=58_100, unk=1, start=58_100, eos=0, never=(58_100,)))
    settings = TransformerSettings(
        width=512,
        heads=8,
        feed_forward=2048,
        encoder_layers=6,
        decoder_layers=6,
        activation="silu",
        norm_order="post",
        tie="all",
        layout="halves",
    )
    torch.manual_seed(0)
    saved = Saved(build(settings, 58_101, 58_101, specials=codec.specials), settings, codec, codec, {}, "")
    record = record_of(saved, settings)
    folder.mkdir()
    write_folder(folder, Export(saved, settings, record.exported(saved.model.state_dict()), record))


def measure(side: str, folder: Path) -> dict[str, float]:
    """Opens the folder in a new process."""
    run = subprocess.run([sys.executable, "-c", SOURCE, side, folder], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "opus"
        make(folder)
        rounds = [{side: measure(side, folder) for side in ("ours", "theirs")} for _ in range(ROUNDS)]
    lines = []
    for side in ("ours", "theirs"):
        seconds, peaks = ([one[side][what] for one in rounds] for what in ("seconds", "peak"))
        lines.append(
            f"{side:6} {median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f}), peak {median(peaks):,.0f} MB, "
            f"{rounds[0][side]['parameters']:,} parameters"
        )
    ratio = median(one["ours"]["seconds"] / one["theirs"]["seconds"] for one in rounds)
    lines.append(f"ours / theirs, median of {ROUNDS} rounds side by side: {ratio:.2f}")
    print("\n".join(lines))
    if "--write" in sys.argv:
        from datetime import date

        text = f"{date.today()}, OPUS-MT's size, random weights, one thread\n" + "\n".join(lines) + "\n"
        Path(__file__).with_suffix(".txt").write_text(text)


if __name__ == "__main__":
    main()
