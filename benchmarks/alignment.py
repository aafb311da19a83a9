"""Alignment error rates on a constructed corpus whose word alignment is known: which head, and how it is chosen.

    python benchmarks/alignment.py [parts of names ...]      default: all models; the result is written to a file

The corpus (tests/lexicon.py) has 200 nouns, 80 adjectives and 80 verbs; adjectives and verbs change their position, a fifth of
the nouns and verbs are translated by two words, and most words are split into subwords (bpe, 400 ids). A model of each
direction is trained on 8,000 pairs. Heads are chosen on 200 development pairs, and read on 200 others:

    last layer      the mean over the heads of the last layer, what a model without a chosen head uses
    weights, …      the best of the layers, heads and means by the known links, with weights or norms, unshifted or shifted
    any             the best of all these, what `regard align --gold` chooses
    agreement       the head of the model that agrees best with one of the other direction, what `--backward` chooses
    intersection, … both directions joined, with the heads of `agreement`

One process with one thread. Times depend on what else the machine does, and are not reported.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import torch
from dated import write_result

from regard.contracts import AlignmentHead
from regard.inspection.align import AlignedPair, best_agreement, best_alignment_head
from regard.links import Links, symmetrised, turned
from regard.models.contract import ModelSettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import TransformerSettings
from regard.training.settings import DataSettings, RunSettings, TrainSettings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from lexicon import Aligned, Lexicon, aligned, error_rate, trained, turned_round

DATA = DataSettings(source_unit="bpe", target_unit="bpe", vocabulary=400)
RECURRENT = TrainSettings(steps=1500, batch_tokens=1024, learning_rate=8e-3)
MODELS: dict[str, tuple[ModelSettings, TrainSettings]] = {
    "luong": (RnnSettings(width=96, embedding=48, score_width=48, dropout=0.1), RECURRENT),
    "bahdanau": (RnnSettings(width=64, embedding=48, score_width=48, decoder="bahdanau", dropout=0.1), RECURRENT),
    "transformer": (
        TransformerSettings(width=64, heads=4, feed_forward=128, encoder_layers=2, decoder_layers=2, dropout=0.1),
        TrainSettings(steps=2000, batch_tokens=1024, learning_rate=4e-3),
    ),
}


def measure(model: ModelSettings, train: TrainSettings, parts: list[list[Aligned]]) -> list[str]:
    """Trains both directions and returns the lines of the table."""
    test, development, training = parts
    settings = RunSettings(seed=1, data=DATA, model=model, train=train)
    pairs, held_out = [one.pair for one in training], [one.pair for one in development]
    forward = trained(pairs, held_out, settings)
    backward = trained([*map(turned_round, pairs)], [*map(turned_round, held_out)], settings)
    there, back = (
        [aligned(forward, part) for part in (development, test)],
        [aligned(backward, part, backward=True) for part in (development, test)],
    )
    heads = there[0][0].heads
    lines = [row("last layer", AlignmentHead(max(head.layer or 0 for head in heads)), there[1], test)]
    for norms in (False, True):
        for shifted in (False, True):
            name = ("norms" if norms else "weights") + (", shifted" if shifted else "")
            some = [head for head in heads if (head.norms, head.shifted) == (norms, shifted)]
            lines.append(row(name, best(there[0], some, development), there[1], test))
    lines.append(row("any", best(there[0], heads, development), there[1], test))
    mine, theirs, _ = best_agreement(there[0], back[0])
    lines.append(row("agreement", mine, there[1], test))
    both: list[tuple[Links, Links]] = [
        (one.links(mine), turned(other.links(theirs))) for one, other in zip(there[1], back[1], strict=True)
    ]
    lines.append(f"  {'backward':18} {100 * error_rate([other for _, other in both], test):5.1f}  {theirs}")
    for how in ("intersection", "union", "grow-diag-final-and"):
        joined = [symmetrised(one, other, how) for one, other in both]  # type: ignore[arg-type]
        lines.append(f"  {how:18} {100 * error_rate(joined, test):5.1f}")
    return lines


def best(
    pairs: list[AlignedPair], heads: list[AlignmentHead] | tuple[AlignmentHead, ...], gold: list[Aligned]
) -> AlignmentHead:
    """Returns the best of some heads by the known links."""
    if len(heads) == len(pairs[0].heads):
        return best_alignment_head(pairs, [one.sure for one in gold], [one.possible for one in gold])[0]
    return min(heads, key=lambda head: error_rate([pair.links(head) for pair in pairs], gold))


def row(name: str, head: AlignmentHead, pairs: list[AlignedPair], gold: list[Aligned]) -> str:
    return f"  {name:18} {100 * error_rate([pair.links(head) for pair in pairs], gold):5.1f}  {head}"


def main(wanted: list[str]) -> None:
    torch.set_num_threads(1)
    sentences = Lexicon(200).sentences(8400, seed=1)
    parts = [sentences[:200], sentences[200:400], sentences[400:]]
    lines = [f"Alignment error rate in % on {len(parts[0])} pairs | torch {torch.__version__} | {platform.machine()} | seed 1"]
    for name, (model, train) in MODELS.items():
        if not wanted or any(part in name for part in wanted):
            lines += [f"{name}, {train.steps} updates", *measure(model, train, parts)]
            print("\n".join(lines[1 if len(lines) > 14 else 0 :]), flush=True)
    if not wanted:
        write_result(__file__, lines)


if __name__ == "__main__":
    main(sys.argv[1:])
