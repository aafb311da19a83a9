"""How often the flags of the server are right: `coverage` and `repetition`.

    python benchmarks/serving_flags.py TEXTS MODEL …      TEXTS: a file with one sentence per line; MODEL: folders

Outputs are damaged on purpose, and the share that is flagged is counted. Those of the model itself that are flagged are false
alarms.

- other: the output of the next sentence in the file.
- dropped: two fifths of the words of an output are removed, at its beginning, in its middle or at its end.
- joined: two sentences are given as one, and the model itself writes less than 0.7 of what it writes for both. (This is the
  damage that happens; in the others the model scores an output that it would not have written.)
- looped: the last one to four words of an output are written three times more.

The result is written to a dated file in the folder of this script.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from dated import write_result

from regard import Translator, load
from regard.contracts import Array
from regard.look import Look
from regard.serving.explanation import (
    COVERED,
    IMPROBABLE,
    MOST_UNCOVERED,
    UNCOVERED,
    leaves_words_out,
    mean_log_prob,
    repeats,
)

SENTENCES = 120
DROPPED = 0.4
SHORT = 0.7


def measured(model: Translator, sources: Sequence[str], outputs: Sequence[str]) -> Iterator[tuple[Array, float]]:
    """Yields the attention that each source word gets, and the mean log-probability of each output, as the server has them."""
    reader, codec = model.reader, model.target
    segments = [reader.segment(source, line=number) for number, source in enumerate(sources)]
    written = [(*codec.encode(output), codec.specials.eos) for output in outputs]
    requests = [replace(segment.request, look=Look((model.alignment_head.tap,))) for segment in segments]
    found = {forced.id: forced for forced in model.engine.force(requests, written)}
    for number, segment in enumerate(segments):
        units = reader.units(segment.source, reader.pieces(segment.source), pieces=False)
        assert units is not None
        forced = found[requests[number].id]
        layers = [layer.weights_BHTS[0] for layer in forced.seen]
        weights_TS = model.alignment_head.weights_TS(layers, len(written[number]) - 1, len(units.of_tokens))
        yield units.pooled(weights_TS, -1).sum(0), mean_log_prob(forced.token_log_probs)


def without_a_part(output: str, part: int) -> str:
    """Returns an output without two fifths of its words. part: 0 the beginning, 1 the middle, 2 the end."""
    words = output.split()
    number = max(1, round(DROPPED * len(words)))
    start = part * (len(words) - number) // 2
    return " ".join(words[:start] + words[start + number :])


def joined(model: Translator, sources: Sequence[str], outputs: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns two sentences each as one source, and its output, where the model leaves out a large part of them."""
    both = [f"{one.rstrip('.')} and {other[0].lower()}{other[1:]}" for one, other in pairwise(sources)]
    least = [SHORT * (len(one.split()) + len(other.split())) for one, other in pairwise(outputs)]
    written = [result.text for result in model.batch(both, beam=1, max_length=100)]
    chosen = [number for number, output in enumerate(written) if len(output.split()) < least[number]]
    return [both[number] for number in chosen], [written[number] for number in chosen]


def rates(model: Translator, sources: Sequence[str], outputs: Sequence[str]) -> str:
    if not sources:
        return "there are none"
    found = list(measured(model, sources, outputs))
    flagged = sum(leaves_words_out(mass) for mass, _ in found), sum(log_prob < IMPROBABLE for _, log_prob in found)
    either = sum(leaves_words_out(mass) or log_prob < IMPROBABLE for mass, log_prob in found)
    shares = [f"{100 * number / len(found):.1f} %" for number in (*flagged, either)]
    return f"leaves_out {shares[0]}, leaves_source {shares[1]}, either {shares[2]} of {len(found)}"


def lines_of(folder: Path, texts: Sequence[str]) -> Iterator[str]:
    model, rng = load(folder), random.Random(1)
    written = [result.text for result in model.batch(texts, beam=1, max_length=60)]
    kept = [number for number, output in enumerate(written) if 4 <= len(output.split()) <= 40]
    sources, outputs = [texts[number] for number in kept], [written[number] for number in kept]
    looped = []
    for output in outputs:
        words = output.split()
        looped.append(" ".join(words + words[-rng.randint(1, 4) :] * 3))
    yield f"{folder.name}, own outputs: {rates(model, sources, outputs)}"
    yield f"{folder.name}, other: {rates(model, sources, [*outputs[1:], outputs[0]])}"
    for part, name in enumerate(("beginning", "middle", "end")):
        dropped = [without_a_part(output, part) for output in outputs]
        yield f"{folder.name}, dropped, {name}: {rates(model, sources, dropped)}"
    yield f"{folder.name}, joined: {rates(model, *joined(model, sources, outputs))}"
    for name, damaged in (("own outputs", outputs), ("looped", looped)):
        flagged = sum(map(repeats, sources, damaged)) / len(damaged)
        yield f"{folder.name}, {name}: repetition {100 * flagged:.1f} %"


def main(file: Path, folders: Sequence[Path]) -> None:
    torch.set_num_threads(1)
    texts = [line for line in file.read_text().splitlines() if line.strip()][:SENTENCES]
    lines = [
        f"{len(texts)} sentences of {file.name}, greedy, outputs of 4 to 40 words; covered from {COVERED}; leaves_out: more "
        f"than {UNCOVERED} and {MOST_UNCOVERED} words uncovered; leaves_source: mean log-probability below {IMPROBABLE}"
    ]
    print(lines[0])
    for folder in folders:
        for line in lines_of(folder, texts):
            print(line, flush=True)
            lines.append(line)
    write_result(__file__, lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
