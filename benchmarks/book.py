"""A language model that is trained on a book of 1 MB: does it continue a line in words of that book?

    python benchmarks/book.py VERSES FOLDER      VERSES: verses.tsv.gz with the columns id, en, pt and la

FOLDER receives the model; if it has one, that one is measured.

The book is the first megabyte of the English verses (Douay-Rheims). It is trained by `regard train book.txt --set
model.kind=decoder_only` with one thread, in about ten minutes of its time: 2,500 updates; other settings are chosen from the
text. 100 of the verses after the book are continued from their first
quarter. A word of a continuation is right if it occurs in the book, in lower case and without punctuation; two baselines write
as many tokens of the same vocabulary: drawn by their frequency in the book, and drawn by the model before its first update.
"""

from __future__ import annotations

import gzip
import random
import re
import resource
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import torch
from dated import write_result

import regard
from regard.training.assess_texts import beginning

SIZE, STEPS, PROMPTS = 1_000_000, 2500, 100


def words_of(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]+", text.lower())


def share_in(book: set[str], texts: list[str]) -> str:
    """Returns the share of words that occur in the book, and their number."""
    words = [word for text in texts for word in words_of(text)]
    right = sum(word in book for word in words)
    return f"{right / len(words):6.1%} of {len(words):,} words, {len(set(words)):,} of them different"


def continuations(model: regard.Translator, prompts: list[str], **options: object) -> list[str]:
    results = model.batch(prompts, max_length=40, **options)  # type: ignore[arg-type]
    return [result.text[len(prompt) :] for result, prompt in zip(results, prompts, strict=True)]


def by_frequency(model: regard.Translator, verses: list[str], sizes: list[int]) -> list[str]:
    """Returns texts of tokens that are drawn by their frequency in the book."""
    tokens = [token for verse in verses for token in model.target.encode(verse)]
    rng = random.Random(1)
    return [model.target.decode(rng.choices(tokens, k=size)) for size in sizes]


def train(text: Path, out: Path) -> None:
    """Trains the model, and writes the CPU seconds that it took."""
    command = [sys.executable, "-m", "regard", "train", text, "--out", out, "--threads", "1"]
    command += ["--set", "model.kind=decoder_only", "--set", f"train.steps={STEPS}"]
    subprocess.run(command, check=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    (out.parent / "seconds.txt").write_text(f"{used.ru_utime + used.ru_stime:,.0f}")


def main(path: Path, folder: Path) -> None:
    with gzip.open(path, "rt") as file:
        verses = [line.split("\t")[1] for line in file][1:]
    ends = list(accumulate(len(verse) + 1 for verse in verses))
    number = sum(end <= SIZE for end in ends)
    book, following = verses[:number], verses[number:]
    text, rest, out = folder / "book.txt", folder / "rest.txt", folder / "model"
    folder.mkdir(exist_ok=True)
    text.write_text("\n".join(book) + "\n")
    rest.write_text("\n".join(following[:1000]) + "\n")
    if not out.exists():
        train(text, out)
    model, known = regard.load(out), set(words_of(" ".join(book)))
    sizes = {name: getattr(model.settings, name) for name in ("width", "feed_forward", "layers", "heads", "tie")}
    untrained = regard.build("decoder_only", text, vocabularies=(model.source, model.target), **sizes)
    evaluate = [sys.executable, "-m", "regard", "evaluate", out, rest, "--threads", "1"]
    evaluated = subprocess.run(evaluate, check=True, capture_output=True, text=True).stdout
    prompts = [beginning(verse) for verse in following[:: len(following) // PROMPTS][:PROMPTS]]
    written = {
        "greedy": continuations(model, prompts),
        "beam 4": continuations(model, prompts, beam=4),
        "sampled, temperature 0.7": continuations(model, prompts, sample=True, temperature=0.7, seed=1),
        "sampled, temperature 1": continuations(model, prompts, sample=True, seed=1),
        "baseline: tokens by their frequency": by_frequency(model, book, [30] * PROMPTS),
        "baseline: sampled from the untrained model": continuations(untrained, prompts, sample=True, seed=1),
    }
    lines = [
        f"torch {torch.__version__}, one thread, on a machine that did other work too",
        f"book: {len(book):,} verses, {ends[number - 1]:,} characters, {len(known):,} different words",
        f"training: {STEPS:,} updates, {(folder / 'seconds.txt').read_text()} CPU seconds",
        "",
        model.card,
        "the 1,000 verses after the book, with `regard evaluate`:",
        evaluated,
        f"words of continuations of {len(prompts)} verses after the book that occur in the book:",
        *(f"  {name:<44}{share_in(known, texts)}" for name, texts in written.items()),
    ]
    for name in list(written)[:4]:
        lines += ["", f"{name}:"]
        lines += [f"  {prompt} …{text}" for prompt, text in zip(prompts[:8], written[name][:8], strict=True)]
    print("\n".join(lines))
    write_result(__file__, lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
