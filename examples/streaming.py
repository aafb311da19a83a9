"""Read an output while it is being written, and see where the model looks for each of its tokens."""

import itertools

import regard

pairs = [("".join(letters), " ".join(reversed(letters)).upper()) for letters in itertools.product("abcd", repeat=4)]
model = regard.train(pairs, kind="rnn", width=48, steps=200, learning_rate=0.01, quiet=True)

for partial in model.stream("abcd", beam=3):
    if partial.result is None:
        print(f"{partial.text:8} {partial.tail}")  # what is certain, and the rest of the best hypothesis
    else:
        print(f"{partial.text:8} log-probability {partial.result.log_prob:.3f}")

look = regard.Look(taps=(regard.Tap("cross"),))
for partial in model.stream("abcd", look=look):
    for seen in partial.seen:  # one row of weights for each new token; the last is that of <eos>
        print("token", seen.rows[0], "weights", seen.weights_BHTS[0, 0, 0].round(2))
