# GPT, encoders, transfer
import torch

import regard

# %% N89
# An encoder with a look-ahead mask is a decoder without cross-attention: the same weights, the same output. And a GPT
# continues a text.
encoder, decoder, x = (
    regard.TransformerEncoder(16, 2, layers=2).eval(),
    regard.TransformerDecoder(16, 2, layers=2, cross=False).eval(),
    torch.randn(1, 5, 16),
)
decoder.load_state_dict(dict(zip(decoder.state_dict(), encoder.state_dict().values(), strict=True)))
print(torch.allclose(encoder(x, allow=regard.masks.causal(5)), decoder(x), atol=1e-6))
gpt = regard.train(
    ["the cat sat down", "the dog ran away", "the old dog sat down"],
    kind="decoder_only",
    width=32,
    heads=2,
    steps=80,
    quiet=True,
)
print(gpt("the old").text)

# %% N90 trains
# A trained encoder is used again: with 27 pairs of a new task, from scratch and from the frozen encoder of
# another model, which does not help in this run.
for encoder in (None, "french-transformer"):
    model = regard.train(
        "tense.tsv",
        settings={"data.held_out": 0.4},
        encoder_from=encoder,
        freeze=bool(encoder),
        kind="transformer",
        width=64,
        heads=4,
        feed_forward=128,
        encoder_layers=2,
        decoder_layers=2,
        steps=20,
        learning_rate=0.003,
        source_unit="words",
        target_unit="words",
        seed=1,
        quiet=True,
    )
    print(encoder or "from scratch", f"{1 - model.training['sequence_error_rate']:.0%} right")
print(regard.load("french-transformer").encode("I have a red car").vector.shape)

# %% N91 trains
# Transfer is possible with a recurrent encoder, too: here it helps.
for encoder in (None, "french"):
    model = regard.train(
        "tense.tsv",
        settings={"data.held_out": 0.4},
        encoder_from=encoder,
        freeze=bool(encoder),
        kind="rnn",
        cell="lstm",
        score="dot",
        width=48,
        embedding=48,
        steps=60,
        source_unit="words",
        target_unit="words",
        quiet=True,
    )
    print(encoder or "from scratch", f"{1 - model.training['sequence_error_rate']:.0%} right")
