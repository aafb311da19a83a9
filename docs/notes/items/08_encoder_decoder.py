# Encoder-decoder without and with attention
import regard

# %% N48
# y_i = g(C, y_1 … y_{i−1}): one vector C for the whole source, as the first state or read at every step.
for every_step in (False, True):
    print(
        regard.describe(
            regard.build("rnn", num_tokens=9, decoder="fixed", every_step=every_step, width=8, embedding=4)
        ).parameters
    )

# %% N49 trains
# One vector loses information: exactness by length, with one vector and with attention.
found = regard.compare("reverse.tsv", only="fixed-vector,luong-general", updates=250, settings={"model.width": 48}, quiet=True)
print({row.name: {group.lengths: f"{group.value:.0%}" for group in row.by_length} for row in found.rows})
found.draw("n49.svg")

# %% N50
# The third step of "I am a student": the query s_t, the states h_1 … of the encoder, one dot product each.
explanation = regard.explain(regard.load("french"), "I am a student", token=2)
print(explanation.token, {line.name: (line.formula, line.values.shape) for line in explanation.lines[:3]})

# %% N51
# The softmax turns the scores into bars; their weighted sum of the h_i is the context.
result = regard.load("french")("I am a student")
regard.draw(
    result.attention().mean_TS[1],
    "n51.svg",
    columns=result.attention().source,
    title=f"weights when {result.tokens[1]!r} is written",
    scale=(0, 1),
)

# %% N52
# s̃_t = tanh(W [c_t; s_t]) goes to the output layer: widths of a model with states of 4 numbers.
print(regard.describe(regard.build("rnn", num_tokens=9, width=4, embedding=4, cell="lstm", score="dot")))

# %% N53
# Bahdanau: the context joins the input of the recurrence, and the logits see [s_t; c_t].
print(regard.describe(regard.build("rnn", num_tokens=9, width=4, embedding=4, decoder="bahdanau", score_width=4)))

# %% N54
# One step of a translation: one tall bar, on the word that is translated next.
result = regard.load("french")("I have a red car")
step = result.tokens.index("rouge")
regard.draw(
    result.attention().mean_TS[step],
    "n54.svg",
    columns=result.attention().source,
    title=f"after {' '.join(result.tokens[:step])}: {result.tokens[step]}",
)

# %% N55
# Each word has one thick line to its own word.
regard.draw(regard.load("french")("I see a small house"), "n55.svg", kind="lines")

# %% N56
# Translation is diagonal except where the order differs: an English adjective precedes its noun, a French one follows it.
model = regard.load("french")
result = model("I have a red car")
regard.draw(result.attention(), "n56.svg")
print(result.text, result.alignment())

# %% N57
# At every step the decoder looks back at all states, so far words matter as much as near ones: what is left of the gradient
# at distance 5 when the distance is 80.
norms = regard.gradient_reach(("rnn_tanh", "gru", "lstm", "attention"), (5, 80))
print({name: f"{far / near:.1e}" for name, (near, far) in norms.items()})
