"""Trains the model that the tests of the server serve: it translates a few English words, one by one, into German.

python tests/served/make.py      (some seconds; writes tests/served/model)
"""

import random
import shutil
import tempfile
from pathlib import Path

from regard.cli.main import app

HERE = Path(__file__).parent
WORDS = dict(
    pair.split("=")
    for pair in """red=rot wine=wein house=haus dog=hund cat=katze man=mann woman=frau tree=baum runs=rennt sleeps=schläft
    the=das a=ein The=Das A=Ein big=groß small=klein and=und sees=sieht""".split()
)


def pairs(number: int = 3000) -> list[tuple[str, str]]:
    rng, found = random.Random(3), set()
    while len(found) < number:
        words, end = rng.choices(list(WORDS), k=rng.randint(1, 7)), rng.choice(".!?,") * rng.randint(0, 1)
        found.add((" ".join(words) + end, " ".join(WORDS[word] for word in words) + end))
    return sorted(found)


def main() -> None:
    model = "kind=transformer width=24 heads=2 feed_forward=48 encoder_layers=1 decoder_layers=2 dropout=0"
    train = "steps=700 batch_tokens=768 learning_rate=0.006 label_smoothing=0"
    settings = [f"model.{each}" for each in model.split()] + [f"train.{each}" for each in train.split()]
    settings += ["data.source_unit=words", "data.target_unit=words"]
    with tempfile.TemporaryDirectory() as folder:
        table, out = Path(folder, "pairs.tsv"), Path(folder, "model")
        table.write_text("".join(f"{source}\t{target}\n" for source, target in pairs()))
        options = [word for setting in settings for word in ("--set", setting)]
        app(["train", str(table), "--out", str(out), "--threads", "1", *options], standalone_mode=False)
        shutil.rmtree(HERE / "model", ignore_errors=True)
        shutil.copytree(out, HERE / "model", ignore=shutil.ignore_patterns("card.md", "curves.svg"))


if __name__ == "__main__":
    main()
