"""Train a model on pairs in memory, follow the run, stop it, and continue it: numbers are spelled out in English."""

import tempfile
from pathlib import Path

import regard

ONES = "zero one two three four five six seven eight nine ten eleven twelve".split()
ONES += [f"{word}teen" for word in "thir four fif six seven eigh nine".split()]
TENS = [f"{word}ty" for word in "twen thir for fif six seven eigh nine".split()]


def spelled(number: int) -> str:
    """Returns a number below 1,000 in words."""
    if number >= 100:
        rest = f" {spelled(number % 100)}" if number % 100 else ""
        return f"{ONES[number // 100]} hundred{rest}"
    if number < 20:
        return ONES[number]
    return TENS[number // 10 - 2] + (f" {ONES[number % 10]}" if number % 10 else "")


def show(update: regard.Update) -> bool:
    """Prints every fiftieth loss, and stops the run after update 100."""
    if (update.number + 1) % 50 == 0:
        print(f"update {update.number + 1}: loss {update.loss:.3f}")
    return update.number + 1 < 100


pairs = [(str(number), spelled(number)) for number in range(1000)]
with tempfile.TemporaryDirectory() as folder:
    out = Path(folder) / "numbers"
    regard.train(pairs, out, on_update=show, steps=300, width=64, target_unit="words", quiet=True)
    model = regard.train(pairs, out, steps=300, width=64, target_unit="words", quiet=True)  # goes on after update 100
    for number in ("7", "42", "640", "999"):
        print(number, "->", model(number).text)
    print(model.card)
