"""A training loop of one's own: build a model, make batches, compute the loss, save."""

import tempfile
from itertools import product
from pathlib import Path

import torch

import regard

pairs = [("".join(letters), " ".join(letters).upper()) for letters in product("abcdef", repeat=3)]  # "bad" -> "B A D"

model = regard.build("transformer", pairs, width=32, heads=2, feed_forward=64, dropout=0.0, seed=7).train()
optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
for number, batch in enumerate(regard.batches(model, pairs, batch_tokens=256, epochs=30)):
    loss = regard.loss(model, batch, label_smoothing=0.1)
    loss.backward()  # type: ignore[no-untyped-call]  # torch has no type for it
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    optimiser.zero_grad()
    if number % 50 == 0:
        print(f"update {number}: loss {loss.item():.3f}, bad -> {model('bad', max_length=5).text}")

with tempfile.TemporaryDirectory() as folder:
    regard.save(model, Path(folder) / "letters", card="# Letters, in capitals\n")
    print("fade ->", regard.load(Path(folder) / "letters")("fade").text)
