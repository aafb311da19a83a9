"""Alignment error rates on a constructed corpus whose word alignment is known: which head, and how it is chosen.

    python benchmarks/alignment.py [parts of names ...]      default: all models; the result is written to a file

The corpus (tests/lexicon.py) has 200 nouns, 80 adjectives and 80 verbs; adjectives and verbs change their position, a fifth of
the nouns and verbs are translated by two words, and most words are split into subwords (bpe, 400 ids). A model of each
direction is trained on 8,000 pairs. Heads are chosen on 200 development pairs, and read on 200 others:

    last layer      the mean over the heads of the last layer, what a model without a chosen head uses; the weights of the
                    tokens of two words are added up, or the words are linked if any of their tokens are
    weights, …      the best of the layers, heads and means by the known links, with weights or norms, unshifted or shifted
    all             the best of all these, what `regard align --gold` chooses
    agreement       the head of the model that agrees best with one of the other direction, what `--backward` chooses; also
                    the links of that other head, and both directions joined

One process with one thread. Times depend on what else the machine does, and are not reported.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import torch
from dated import write_result

from regard.contracts import AlignmentHead
from regard.data.tokenizers.codec import Codec
from regard.inspection.align import align_pairs, best_agreement
from regard.links import Links, Symmetrisation, symmetrised, turned
from regard.models.contract import ModelSettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import TransformerSettings
from regard.pipeline import Translator
from regard.training.settings import DataSettings, RunSettings, TrainSettings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from lexicon import Aligned, Lexicon, aligned, error_rate, trained, turned_round

DATA = DataSettings(source_unit="bpe", target_unit="bpe", vocabulary=400)
MODELS: dict[str, tuple[ModelSettings, TrainSettings]] = {
    "recurrent, additive": (
        RnnSettings(width=96, embedding=48, score="additive", score_width=48, dropout=0.1),
        TrainSettings(steps=1500, batch_tokens=1024, learning_rate=8e-3),
    ),
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
    chosen_on, read_on = aligned(forward, development), aligned(forward, test)
    heads = chosen_on[0].heads

    def best(some: Sequence[AlignmentHead]) -> AlignmentHead:
        return min(some, key=lambda head: error_rate([pair.links(head) for pair in chosen_on], development))

    def row(name: str, head: AlignmentHead) -> str:
        return line(name, [pair.links(head) for pair in read_on], test, head)

    last = AlignmentHead(max(head.layer or 0 for head in heads))
    lines = [row("last layer", last), line("  by any piece", by_any_piece(forward, test, last), test)]
    for norms in (False, True):
        for shifted in (False, True):
            name = ("norms" if norms else "weights") + (", shifted" if shifted else "")
            lines.append(row(name, best([head for head in heads if (head.norms, head.shifted) == (norms, shifted)])))
    lines.append(row("all", best(heads)))
    mine, theirs, _ = best_agreement(chosen_on, aligned(backward, development, backward=True))
    lines.append(row("agreement", mine))
    there = [pair.links(mine) for pair in read_on]
    back = [turned(pair.links(theirs)) for pair in aligned(backward, test, backward=True)]
    lines.append(line("  backward", back, test, theirs))
    for how in get_args(Symmetrisation):
        joined = [symmetrised(one, other, how) for one, other in zip(there, back, strict=True)]
        lines.append(line(f"  {how}", joined, test))
    return lines


def by_any_piece(translator: Translator, sentences: Sequence[Aligned], head: AlignmentHead) -> list[Links]:
    """Links two words if any of their tokens are linked."""
    found = []
    for one in sentences:
        texts = str(one.pair.source), one.pair.target
        (pair,) = align_pairs(translator, [texts], [head], pieces=True)
        source, target = (
            codec.units(text, codec.pieces(text)).of_tokens
            for codec, text in zip((translator.source, translator.target), texts, strict=True)
            if isinstance(codec, Codec)
        )
        links = {(source[i], target[j]) for i, j in pair.links(head)}
        found.append(frozenset((i, j) for i, j in links if i is not None and j is not None))
    return found


def line(name: str, links: Sequence[Links], gold: Sequence[Aligned], head: AlignmentHead | None = None) -> str:
    return f"  {name:22} {100 * error_rate(links, gold):5.1f}  {head or ''}".rstrip()


def main(wanted: list[str]) -> None:
    torch.set_num_threads(1)
    sentences = Lexicon(200).sentences(8400, seed=1)
    parts = [sentences[:200], sentences[200:400], sentences[400:]]
    lines = [f"Alignment error rate in % on {len(parts[0])} pairs | torch {torch.__version__} | {platform.machine()} | seed 1"]
    for name, (model, train) in MODELS.items():
        if not wanted or any(part in name for part in wanted):
            lines += [f"{name}, {train.steps} updates", *measure(model, train, parts)]
            print("\n".join(lines), flush=True)
    if not wanted:
        write_result(__file__, lines)


if __name__ == "__main__":
    main(sys.argv[1:])
