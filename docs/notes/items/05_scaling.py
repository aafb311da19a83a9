# Scaling
import torch

import regard

# %% N27 trains
# Dividing by √d helps training, the more so the wider the heads: loss with and without it at d_k = 8 and 64.
losses = {}
for score, width in (("scaled_dot", 8), ("dot", 8), ("scaled_dot", 64), ("dot", 64)):
    curve = losses.setdefault(f"{score}, d = {width}", [])
    regard.train(
        "reverse.tsv",
        kind="transformer",
        width=32,
        heads=2,
        key_dim=width,
        feed_forward=64,
        score=score,
        steps=150,
        learning_rate=0.004,
        quiet=True,
        on_update=lambda update, curve=curve: curve.append(update.loss),
    )
print({name: round(sum(curve[-20:]) / 20, 3) for name, curve in losses.items()})
regard.draw(
    {name: torch.tensor(curve).view(-1, 10).mean(-1) for name, curve in losses.items()}, "n27.svg", x="10 updates", y="loss"
)

# %% N28
# It is no bias that the scale removes, but variance: q·k has variance d; scaled, 1. The largest of ten weights, on average:
for width in (4, 64, 512):
    query, keys = torch.randn(2000, 1, width), torch.randn(2000, 10, width)
    products = query @ keys.mT
    print(
        width,
        *(
            f"variance {scores.var():7.2f}, largest weight {scores.softmax(-1).amax(-1).mean():.2f};"
            for scores in (products, products / width**0.5)
        ),
    )

# %% N29
# Four spellings of the divisor: √d, d, a number, none.
query, keys = torch.randn(1, 16), torch.randn(4, 16)
for divisor in ("√d", "d", 2**0.5, 1):
    print(
        f"{divisor!s:7.5}",
        *regard.attention_weights(query, keys, score=regard.scores.ScaledDot(divide_by=divisor))[0].round(decimals=3).tolist(),
    )
