"""Open checkpoints in the middle of a run, and see what the model had learned by then."""

import tempfile
from itertools import product
from pathlib import Path

import regard

pairs = [("".join(letters), "".join(reversed(letters))) for letters in product("abcdef", repeat=3)]

with tempfile.TemporaryDirectory() as folder:
    out = Path(folder) / "reverse"
    regard.train(pairs, out, steps=200, checkpoint_every=50, keep=4, width=32, embedding=16, ema=0.9, quiet=True)
    for update in (50, 100, 150, 200):
        model = regard.load(f"{out}.run", update=update)
        outputs = [model(text, max_length=6).text for text in ("abc", "fed")]
        print(f"after {update} updates: abc -> {outputs[0]}, fed -> {outputs[1]}")
    try:
        regard.load(f"{out}.run", update=70)
    except regard.UserError as error:
        print("no such checkpoint:", error)
