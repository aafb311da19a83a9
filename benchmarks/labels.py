"""A classifier and a tagger trained by `regard.train`, side by side with plain torch loops of the same size.

    python benchmarks/labels.py VERSES [SEED ...]      VERSES: verses.tsv.gz with the columns id, en, pt and la

language    which of three languages the first 12 letters of a verse are (characters, one label)
stress      which stress each vowel of an English word has: none, main or secondary (one tag per phoneme; those of consonants
            are in the training, but not counted)

Both have the same data, sizes, learning rates and number of updates, about as many tokens per update, AdamW with the same
numbers, and no moving average. The plain loop is written with nn.Embedding, nn.TransformerEncoder and nn.Linear alone, and
keeps its last weights, as ours does here. The figures are the shares of right labels on sources that neither was trained on.
"""

from __future__ import annotations

import gzip
import math
import random
import re
import resource
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import torch
import torch.nn.functional as F
from dated import write_result
from torch import Tensor, nn

import regard

Pairs = list[tuple[list[str], list[str]]]
SIZES = {"width": 64, "heads": 4, "feed_forward": 128, "layers": 2, "dropout": 0.1}
RATE, BATCH, NUMBER = 2e-3, 1024, 6000
STEPS = {"language": 300, "stress": 600}
CONSONANT = "-"


def verses(path: Path) -> list[list[str]]:
    with gzip.open(path, "rt") as file:
        return [line.rstrip("\n").split("\t")[1:] for line in file][1:]


def language(rows: list[list[str]]) -> Pairs:
    names, pairs = ("en", "pt", "la"), set()
    for number, row in enumerate(rows):
        side = number % 3
        pairs.add((re.sub(r"[\W\d_]+", " ", row[side].lower()).strip()[:12], names[side]))
    return [(list(text), [label]) for text, label in sorted(pairs) if text]


def stress(rows: list[list[str]]) -> Pairs:
    """Words of two syllables or more from the bundled dictionary: their phonemes, and the stress of each vowel."""
    pairs = {}
    for line in gzip.decompress((files("regard") / "assets" / "cmudict.txt.gz").read_bytes()).decode().splitlines():
        _, *phonemes = line.partition("#")[0].split()
        tags = [phoneme[-1] if phoneme[-1].isdigit() else CONSONANT for phoneme in phonemes]
        if len(tags) - tags.count(CONSONANT) > 1:
            pairs[tuple(phoneme.rstrip("012") for phoneme in phonemes)] = tags
    return [(list(phonemes), tags) for phonemes, tags in pairs.items()]


def split(pairs: Pairs) -> tuple[Pairs, Pairs]:
    random.Random(1).shuffle(pairs)
    return pairs[:NUMBER], pairs[NUMBER : NUMBER + 1000]


# --- plain torch -----------------------------------------------------------------------------------------------------------


class Plain(nn.Module):
    def __init__(self, vocab: int, labels: int, *, pooled: bool) -> None:
        super().__init__()
        width, dropout = SIZES["width"], SIZES["dropout"]
        self.embedding, self.dropout, self.pooled = nn.Embedding(vocab, int(width), padding_idx=0), nn.Dropout(dropout), pooled
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        layer = nn.TransformerEncoderLayer(
            int(width), int(SIZES["heads"]), int(SIZES["feed_forward"]), dropout, F.gelu, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, int(SIZES["layers"]), nn.LayerNorm(int(width)), enable_nested_tensor=False)
        self.head = nn.Linear(int(width), labels)
        angles = torch.arange(1000)[:, None] * 10000 ** (-torch.arange(0, width, 2) / width)
        self.register_buffer("positions", torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) * math.sqrt(SIZES["width"]) + self.positions[: ids.shape[1]]  # type: ignore[index]
        x = self.layers(self.dropout(x), src_key_padding_mask=ids == 0)
        if self.pooled:
            real = (ids != 0).unsqueeze(-1)
            x = ((x * real).sum(1) / real.sum(1)).unsqueeze(1)
        logits: Tensor = self.head(x)
        return logits


def batches(pairs: Pairs, known: dict[str, int], labels: dict[str, int], rng: random.Random) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields ids and labels of pairs of similar length, in random order; -100 is no label."""
    order = sorted(pairs, key=lambda pair: (len(pair[0]), rng.random()))
    groups: list[Pairs] = [[]]
    for pair in order:
        if (len(groups[-1]) + 1) * len(pair[0]) > BATCH:
            groups.append([])
        groups[-1].append(pair)
    rng.shuffle(groups)
    for group in groups:
        longest, most = max(len(source) for source, _ in group), max(len(target) for _, target in group)
        ids = torch.tensor([[known.get(one, 1) for one in source] + [0] * (longest - len(source)) for source, _ in group])
        gold = torch.tensor([[labels[one] for one in target] + [-100] * (most - len(target)) for _, target in group])
        yield ids, gold


def plain(training: Pairs, test: Pairs, steps: int, seed: int) -> float:
    """Trains a plain torch model, and returns the share of right labels."""
    known = {one: number for number, one in enumerate(sorted({one for source, _ in training for one in source}), start=2)}
    labels = {one: number for number, one in enumerate(sorted({one for _, target in training for one in target}))}
    torch.manual_seed(seed)
    model, rng, step = Plain(len(known) + 2, len(labels), pooled=len(training[0][1]) == 1), random.Random(seed), 0
    optimiser = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    while step < steps:
        for ids, gold in batches(training, known, labels, rng):
            warmup = round(0.05 * steps)
            rate = RATE * min((step + 1) / warmup, 0.5 - 0.5 * math.cos(math.pi * min(1.0, (steps - step) / (steps - warmup))))
            for group in optimiser.param_groups:
                group["lr"] = rate
            F.cross_entropy(model(ids).flatten(0, 1), gold.flatten(), ignore_index=-100).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad()
            step += 1
            if step == steps:
                break
    model.eval()
    right = total = 0
    with torch.no_grad():
        for ids, gold in batches(test, known, labels, rng):
            counts = (gold != -100) & (gold != labels.get(CONSONANT, -100))
            right += int((model(ids).argmax(-1) == gold)[counts].sum())
            total += int(counts.sum())
    return right / total


# --- ours ------------------------------------------------------------------------------------------------------------------


def ours(task: str, training: Pairs, test: Pairs, steps: int, seed: int) -> float:
    """Trains a model of ours, and returns the share of right labels."""
    joint, kind = ("", "classifier") if task == "language" else (" ", "tagger")
    pairs, held_out = ([(joint.join(source), " ".join(target)) for source, target in part] for part in (training, test[:50]))
    units = {"source_unit": "characters" if task == "language" else "symbols"}
    train = {"steps": steps, "learning_rate": RATE, "schedule": "cosine", "warmup": 0.05, "batch_tokens": BATCH, "ema": 0.0}
    others = {"validate_every": 0, "metric": "loss", "seed": seed, "quiet": True, "threads": 1, "vocabulary": 100_000}
    model = regard.train(pairs, kind=kind, held_out=held_out, **SIZES, **units, **train, **others)
    results = model.batch([joint.join(source) for source, _ in test])
    written = [[result.text] if kind == "classifier" else result.text.split() for result in results]
    pairs_of_labels = [pair for own, (_, gold) in zip(written, test, strict=True) for pair in zip(own, gold, strict=True)]
    return share_right([(own, gold) for own, gold in pairs_of_labels if gold != CONSONANT])


def share_right(labels: list[tuple[str, str]]) -> float:
    return sum(own == gold for own, gold in labels) / len(labels)


def by_frequency(training: Pairs, test: Pairs) -> tuple[float, float]:
    """Returns the share of right labels if each is the most frequent one, and if each is the most frequent one of its token."""
    counted = [
        [
            (token if len(source) == len(target) else "", label)
            for source, target in part
            for token, label in zip(source, target, strict=False)  # one label goes with all tokens
        ]
        for part in (training, test)
    ]
    seen, gold = ([(token, label) for token, label in part if label != CONSONANT] for part in counted)
    most = Counter(label for _, label in seen).most_common(1)[0][0]
    of_token = {token: label for (token, label), _ in reversed(Counter(seen).most_common())}
    return share_right([(most, label) for _, label in gold]), share_right(
        [(of_token.get(token, most), label) for token, label in gold]
    )


def seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main(path: Path, seeds: list[int]) -> None:
    torch.set_num_threads(1)
    rows = verses(path)
    lines = [f"torch {torch.__version__}, one thread, on a machine that did other work too; {SIZES}"]
    for task, make in (("language", language), ("stress", stress)):
        training, test = split(make(rows))
        most, of_token = by_frequency(training, test)
        number = sum(label != CONSONANT for _, target in test for label in target)
        sizes = f"{len(training):,} sources, {number:,} labels in {len(test):,} test sources"
        lines.append(f"{task}: {sizes}; always the most frequent label: {most:.2%} right, that of each token: {of_token:.2%}")
        for seed in seeds:
            for name in ("plain torch", "regard"):
                before = seconds()
                share = (
                    plain(training, test, STEPS[task], seed)
                    if name != "regard"
                    else ours(task, training, test, STEPS[task], seed)
                )
                lines.append(
                    f"  seed {seed}  {name:<12} {share:.2%} right, {STEPS[task]} updates, {seconds() - before:.0f} CPU seconds"
                )
                print(lines[-1], flush=True)
    write_result(__file__, lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(seed) for seed in sys.argv[2:]] or [1, 2])
