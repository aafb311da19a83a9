"""A model as PyTorch users expect it: its parameters, its device, its modes, its forward pass; saved and loaded."""

import tempfile
from pathlib import Path

import torch

import regard

pairs = [(f"{first}{second}", f"{second}{first}") for first in "abcde" for second in "vwxyz"]
model = regard.build("rnn", pairs, width=32, embedding=16)
print(sum(parameter.numel() for parameter in model.parameters()), "parameters on", model.device)
print("settings:", model.settings)

model.to("cuda" if torch.cuda.is_available() else "cpu")
model.train()  # dropout is applied by the model, but never by a translation
batch = next(regard.batches(model, pairs, batch_tokens=64))
logits = model.model(batch.source, batch.target_in_BT)
print("logits:", tuple(logits.shape))
assert model("av", max_length=4).text == model.eval()("av", max_length=4).text

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "swap"
    model.save(path)
    model.save(path, overwrite=True, card="# Swaps two letters; not trained yet\n")
    again = regard.load(path, device=torch.device("cpu"))
    same = all(torch.equal(one.cpu(), other) for one, other in zip(model.parameters(), again.parameters(), strict=True))
    print("the same weights:", same)
    print(again.card)
