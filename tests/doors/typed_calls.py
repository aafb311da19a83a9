"""Calls that a user may write, for mypy: it must accept all lines but those that end in the code of an error.

tests/doors/test_types.py runs mypy over this file; nothing runs the file itself.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Unpack, assert_type

import torch
from torch import Tensor

import regard

model = regard.load("model")
assert_type(model, regard.Translator)
print(regard.attendd)  # attr-defined

# --- training ---

pairs = [("walk", "walked"), ("see", "saw")]


def follow(update: regard.Update) -> bool:
    assert_type(update.loss, float)
    return update.number < 100


trained = regard.train(pairs, "model", held_out=Path("held-out.tsv"), on_update=follow, steps=300, kind="rnn", quiet=True)
assert_type(trained, regard.Translator)
regard.train(("source.txt", "target.txt"), settings={"train.steps": 300}, device=torch.device("cpu"))
regard.train(({"de": source, "en": target} for source, target in pairs), source="de", target="en")
regard.train("pairs.tsv", settings=regard.RunSettings(seed=3), source=["word", 2], scores={"mine": regard.scores.Cosine})
regard.train("pairs.tsv", out=3)  # arg-type
regard.train("pairs.tsv", on_update=print, quiet="yes")  # arg-type
regard.train()  # call-arg
built = regard.build("transformer", pairs, width=64, vocabularies=(trained.source, trained.target))
assert_type(built, regard.Translator)
regard.build(pairs, "transformer")  # call-overload
assert_type(built.train().eval().to("cpu").device, torch.device)
optimiser = torch.optim.AdamW(built.parameters())
for batch in regard.batches(built, pairs, epochs=None):
    assert_type(batch, regard.Batch)
    assert_type(regard.loss(built, batch, label_smoothing=0.1), Tensor)
    assert_type(built.model(batch.source, batch.target_in_BT), Tensor)
regard.batches(pairs, built)  # arg-type
regard.loss(built.model, batch)  # arg-type
regard.save(built, "model", overwrite=True)
built.save(Path("model"), card="# A model")
assert_type(regard.load("model.run", update=500), regard.Translator)
regard.load("model.run", updates=500)  # call-arg

# --- translation ---

result = model("banana", beam=5, n_best=2, length_penalty="mean", prefix="B", banned=["AE"], seed=3)
assert_type(result, regard.Result)
assert_type(result.text, str)
assert_type(result.n_best[0], regard.Alternative)
assert_type(result.alignment(), tuple[tuple[int, int], ...])
model("banana", prefix=result.ids, banned=[[4, 5], "AE"], max_ratio=None)
model("banana", beem=5)  # call-arg
model("banana", beam="5")  # arg-type
model("banana", length_penalty="median")  # arg-type
model(["banana"])  # arg-type
result.text = "other"  # misc

assert_type(model.batch(["banana", "cherry"], beam=5), list[regard.Result])
assert_type(model.alignments(model.batch(["banana", "cherry"])), list[tuple[tuple[int, int], ...]])
assert_type(regard.transfer_markup("<b>banana</b>", result), str)
regard.transfer_markup("<b>banana</b>", result.text)  # arg-type
model.batch(["banana"], n_bests=2)  # call-arg
model.batch([1])  # list-item
assert_type(model.score(["banana"], ["B"]), list[regard.Scored])
for outcome in model.translate(iter(["banana"]), sample=True, top_k=5):
    assert_type(outcome, regard.Result | regard.Refused)
    print(outcome.text)  # union-attr
    print(outcome.reason if isinstance(outcome, regard.Refused) else outcome.text)
for partial in model.stream("banana", max_length=9):
    assert_type(partial, regard.Partial)
    print(partial.result.text)  # union-attr
model.stream("banana", lenght=9)  # call-arg


def pass_on(text: str, **options: Unpack[regard.SearchKeywords]) -> Iterator[str]:
    yield from (alternative.text for alternative in model(text, **options).n_best)


pass_on("banana", beam=2, n_best=2)
pass_on("banana", bean=2)  # call-arg
regard.SearchOptions(beam=2, bean=2)  # call-arg

# --- a look inside ---

attention = result.attention("cross", -1)
assert_type(attention, regard.AttentionMap)
result.attention("crss")  # arg-type
kind: regard.Kind = "encoder"
assert_type(model.attention(result, kind), regard.AttentionMap)
assert_type(model.attention("banana", beam=5), regard.AttentionMap)
assert_type(model.attention(["banana", "cherry"], head=0), list[regard.AttentionMap])
assert_type(model.attention([result, result]), list[regard.AttentionMap])
model.attention("banana", bean=5)  # call-overload
model("banana", edits=regard.Edit.off(layer=0))
edited = model("banana", look=regard.Look((regard.Tap(),)), edits=[regard.Edit.force(query=0, key=2), regard.Edit.remove(4)])
assert_type(edited.edits, tuple[regard.Edit, ...])
print(edited.seen[0].weights_BHTS.shape)
model("banana", edit=regard.Edit.off(layer=0))  # call-arg
model("banana", edits="off")  # arg-type
regard.Edit.off("crss")  # arg-type
regard.Edit.cut(query=3)  # call-arg
assert_type(regard.draw(attention, "a.png"), regard.Drawing)
regard.draw(result, "a.png")
regard.draw(torch.ones(2, 3), kind="lines", rows=["a", "b"], columns="xyz", scale=None)
regard.draw({"loss": [1.0, 0.5]}, scale="log")
regard.draw([[1.0, 2.0]], kind="line")  # arg-type
regard.draw(([1.0, 0.5], [[1.0, 2.0]]), kind="arrows", colour="red")  # call-arg
assert_type(regard.describe("base").draw("a.svg"), regard.Drawing)
assert_type(regard.describe(model, num_tokens=(8, 9)).parts, tuple[regard.ModelPart, ...])
regard.describe(3)  # arg-type
assert_type(regard.build("base", num_tokens=100, width=64), regard.Model)
regard.build("base")  # call-overload
inspection = regard.inspect(model, "banana", what=("weights", "norms"), beam=2)
assert_type(inspection, regard.Inspection)
assert_type(inspection.layer("cross", -1), regard.CapturedLayer)
assert_type(inspection.layers[0].entropy_HT(), Tensor)
regard.inspect(model, "banana", what=("weight",))  # arg-type
regard.inspect(model, "banana", bean=2)  # call-arg
assert_type(regard.explain(model, "banana", token=1, beam=2)["weights"], Tensor)
regard.explain(model, "banana", tokn=1)  # call-arg
regard.Look(taps=(regard.Tap("cross", what="norms"),), edits=(regard.Edit(key=0),))
regard.Tap("crss")  # arg-type

# --- attention ---

x = torch.randn(2, 5, 16)
assert_type(regard.attend(x, x, x, allow=regard.masks.causal(5)), Tensor)
assert_type(regard.attend(x, x, x, attention="hard"), regard.AttentionOutput)
regard.attend(x, x, x, attention="hrd")  # call-overload
regard.attend(x, x, x, mask=regard.masks.causal(5))  # call-overload
assert_type(regard.attention_weights(x, x, score=regard.scores.Additive(16, 16, 8)), Tensor)
assert_type(regard.summarise(x, x).entropy, Tensor)
assert_type(regard.Convolution(16, 16, 1)(x), Tensor)
assert_type(regard.positions.sinusoidal(torch.arange(5), 8), Tensor)
regard.positions.sinusoidal(torch.arange(5), 8, layout="half")  # arg-type
assert_type(regard.losses.sequence_loss(x, torch.ones(2, 5), pad=0), Tensor)
assert_type(regard.cost("dense", 5, 16, 16).operations, int)
regard.cost("dens", 5, 16, 16)  # arg-type

# --- layers ---

layer = regard.MultiHeadAttention(16, 4)
assert_type(layer(x, allow=regard.masks.causal(5)), Tensor)
assert_type(layer(x, x, x, weights=True), tuple[Tensor, Tensor])
assert_type(layer(x, look=regard.Look((regard.Tap(),))), regard.AttentionOutput)
layer(x, mask=regard.masks.causal(5))  # call-overload
assert_type(regard.MultiHeadAttention.from_torch(layer.to_torch()), regard.MultiHeadAttention)
encoder = regard.TransformerEncoder(16, 4, 2, positions="rotary")
decoder = regard.TransformerDecoder(16, 4, 2, norm="rms")
assert_type(decoder(x, encoder(x)), Tensor)
assert_type(encoder(x, look=regard.Look((regard.Tap("encoder"),))).seen[0].weights_BHTS, Tensor)
regard.TransformerEncoder(16, 4, 2, position="rotary")  # call-arg
regard.TransformerEncoder(16, 4, 2, positions="rotery")  # arg-type
decoder(x, encoder(x), mask=None)  # call-overload
assert_type(regard.TransformerEncoder.from_torch(encoder.to_torch()), regard.TransformerEncoder)
assert_type(regard.TransformerDecoderLayer(16, 4)(x, x), Tensor)


class Manhattan(regard.Score):
    name = "manhattan"

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        return -(query.unsqueeze(-2) - prepared.unsqueeze(-3)).abs().sum(-1)


regard.load("model", scores={"manhattan": Manhattan})
regard.attend(x, x, x, score=Manhattan())
