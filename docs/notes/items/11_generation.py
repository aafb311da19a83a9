# Generation
import regard

# %% N74
# <sos> je suis étudiant goes in, je suis étudiant <eos> comes out: what is read, what is written, with which probability.
model = regard.load("french")
result = model("I am a student")
for token, (read, written) in enumerate(zip(("<sos>", *result.tokens), (*result.tokens, "<eos>"), strict=True)):
    probabilities = regard.explain(model, "I am a student", token=token).lines[-2].values
    print(f"{read:10} {written:10} {probabilities.max().item():.3f}")
print("log p =", round(result.log_prob, 4))

# %% N75
# Greedy, beam search and samples of one source; the log-probability of an output is the sum over its tokens.
model = regard.load("words")
for name, options in {
    "greedy": {},
    "beam": {"beam": 5},
    "sample": {"sample": True, "seed": 1},
    "again": {"sample": True, "seed": 2},
}.items():
    result = model("thoroughly", **options)
    print(f"{name:7} {result.text:25} {result.log_prob:8.3f} {model.score(['thoroughly'], [result.text])[0].log_prob:8.3f}")
