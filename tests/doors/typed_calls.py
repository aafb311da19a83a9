"""Calls that a user may write, for mypy: it must accept all lines but those that end in the code of an error.

tests/doors/test_types.py runs mypy over this file; nothing runs the file itself.
"""

from collections.abc import Iterator
from typing import Unpack, assert_type

import torch
from torch import Tensor

import regard

model = regard.load("model")
assert_type(model, regard.Translator)
print(regard.attendd)  # attr-defined

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
model.attention(result, kind)
regard.draw(attention, "a.png")
regard.draw(result, "a.png")  # arg-type
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


class Manhattan(regard.Score):
    name = "manhattan"

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        return -(query.unsqueeze(-2) - prepared.unsqueeze(-3)).abs().sum(-1)


regard.load("model", scores={"manhattan": Manhattan})
regard.attend(x, x, x, score=Manhattan())
