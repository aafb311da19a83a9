"""How often the flags of the server are right: `coverage` and `repetition`.

    python benchmarks/serving_flags.py MODEL TEXTS      MODEL: a folder; TEXTS: a file with one sentence per line

An output leaves its source if it is that of another sentence: hits are outputs of other sentences (the next one in the file)
that are flagged, false alarms the model's own outputs. An output goes round in circles if it was made to: the last one to four
words of the model's own output are written three times more. The result is written to a dated file in the folder of this
script.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from dated import write_result

from regard import Translator, load
from regard.look import Look
from regard.serving.explanation import COVERED, UNCOVERED, repeats


def shares(model: Translator, sources: list[str], outputs: list[str]) -> Iterator[float]:
    """Yields the share of the source words that each output covers, as `coverage` computes it."""
    reader, codec = model.reader, model.target
    segments = [reader.segment(source, line=number) for number, source in enumerate(sources)]
    written = [(*codec.encode(output), codec.specials.eos) for output in outputs]
    requests = [replace(segment.request, look=Look((model.alignment_head.tap,))) for segment in segments]
    found = {forced.id: forced for forced in model.engine.force(requests, written, log_probs=False)}
    for number, segment in enumerate(segments):
        units = reader.units(segment.source, reader.pieces(segment.source), pieces=False)
        assert units is not None
        layers = [layer.weights_BHTS[0] for layer in found[number].seen]
        weights_TS = model.alignment_head.weights_TS(layers, len(written[number]) - 1, len(units.of_tokens))
        mass = units.pooled(weights_TS, -1).sum(0)
        yield float((mass >= COVERED).mean())


def main(folder: Path, file: Path) -> None:
    torch.set_num_threads(1)
    model, rng = load(folder), random.Random(1)
    sources = [line for line in file.read_text().splitlines() if line.strip()][:400]
    outputs = [result.text for result in model.batch(sources, beam=1)]
    others = [*outputs[1:], outputs[0]]
    looped = []
    for output in outputs:
        words = output.split()
        looped.append(" ".join(words + words[-rng.randint(1, min(4, len(words))) :] * 3))
    lines = [f"{len(sources)} sentences of {file.name}, greedy; covered from {COVERED}, flagged above {UNCOVERED} uncovered"]
    for name, texts in (("own outputs", outputs), ("outputs of other sentences", others)):
        found = sorted(shares(model, sources, texts))
        flagged = sum(share < 1 - UNCOVERED for share in found) / len(found)
        tenth, half, most = (found[int(at * len(found))] for at in (0.1, 0.5, 0.9))
        lines.append(
            f"coverage, {name}: {100 * flagged:.1f} % flagged; covered: 10 % {tenth:.2f}, median {half:.2f}, 90 % {most:.2f}"
        )
    for name, texts in (("own outputs", outputs), ("made to repeat themselves", looped)):
        flagged = sum(map(repeats, sources, texts)) / len(texts)
        lines.append(f"repetition, {name}: {100 * flagged:.1f} % flagged")
    print("\n".join(lines))
    write_result(__file__, lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
