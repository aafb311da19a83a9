# Recurrent networks and gates
import numpy as np
import torch

import regard

rng = np.random.default_rng(7)

# %% N40
# A loop is its unrolled chain: the whole sequence at once, and one step after the other.
W, U, b, X = rng.normal(size=(3, 2)), rng.normal(size=(3, 3)), rng.normal(size=3), rng.normal(size=(4, 2))
states, _ = regard.reference.unroll(lambda x, h: regard.reference.rnn_cell(x, h, W, U, b), X, (np.zeros(3),))
h = np.zeros(3)
for t, x in enumerate(X):
    (h,) = regard.reference.rnn_cell(x, h, W, U, b)
    print(t, h.round(4), np.array_equal(h, states[t]))

# %% N41
# h_t = f(U h_{t−1} + W x_t + b), f = tanh, ReLU or the sigmoid.
W, U, b, x = rng.normal(size=(3, 2)), rng.normal(size=(3, 3)), rng.normal(size=3), rng.normal(size=2)
for f in (np.tanh, regard.reference.relu, regard.reference.sigmoid):
    print(f.__name__, regard.reference.rnn_cell(x, np.ones(3), W, U, b, f)[0].round(4))

# %% N42 trains
# One output for each input, each the softmax of its state: a tagger.
model = regard.train(
    "tags.tsv", kind="tagger", width=32, heads=2, layers=1, steps=120, source_unit="words", target_unit="words", quiet=True
)
print(model("the old dog sees a cat").text)

# %% N43
# Plain networks forget: the gradient of the last output by the first input vanishes over the length; LSTM and attention help.
lengths = (5, 10, 20, 40, 80)
norms = regard.gradient_reach(("rnn_tanh", "gru", "lstm", "attention"), lengths)
regard.draw(norms, "n43.svg", rows=lengths, scale="log", x="length", y="‖∂ output_L / ∂ x_1‖")

# %% N44
# The cell state of an LSTM runs through time like a conveyor belt: c_t and, below, h_t over the words of a sentence.
gates = regard.inspect(regard.load("french"), "I have a red car").gates[0]
print(gates.where, [*gates.opened], [*gates.states])
regard.draw({name: values[:, :12].T for name, values in gates.states.items()}, "n44.svg", x="position", y="unit", numbers=False)

# %% N45
# The forget gate and the input gate of each unit over the words.
gates = regard.inspect(regard.load("french"), "I have a red car").gates[0]
regard.draw(
    {name: gates.opened[name][:, :12].T for name in ("forget", "input")},
    "n45.svg",
    scale=(0, 1),
    numbers=False,
    x="position",
    y="unit",
)

# %% N46
# C_t = f·C_{t−1} + i·C̃, h_t = o·tanh C_t: the numbers of one step, from the gates of a trained model; computed and, below,
# recorded.
gates = regard.inspect(regard.load("french"), "I have a red car").gates[0]
f, i, o = (np.asarray(gates.opened[name])[2, :4] for name in ("forget", "input", "output"))
candidate, cell, state = (np.asarray(gates.states[name])[:, :4] for name in ("candidate", "cell", "state"))
print("C", (f * cell[1] + i * candidate[2]).round(4), "h", (o * np.tanh(cell[2])).round(4))
print("C", cell[2].round(4), "h", state[2].round(4))

# %% N47
# A recurrent network knows only the past, unless it reads in both directions; and its ends meet only after L steps.
for bidirectional in (False, True):
    model = regard.build("rnn", [("a b c", "x"), ("a b d", "y")], bidirectional=bidirectional, source_unit="symbols", width=8)
    one, other = (torch.from_numpy(model.encode(text).states) for text in ("a b c", "a b d"))
    print(
        "both directions" if bidirectional else "one direction",
        "the first state knows the last word:",
        not torch.equal(one[0], other[0]),
    )
print({name: regard.path_length(name, 16) for name in ("lstm", "attention")})
