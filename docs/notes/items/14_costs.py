# Costs and comparison
import torch

import regard

# %% N82
# Operations of four layers at L = 50, d = d_v = 512, d_k = 64, k = 5; attention and recurrence meet at L = 4,096.
# $ regard cost
# $ regard cost --plot n82.svg

# %% N83
# Parameters: attention needs fewest, less even than a convolution. Not so for a kernel of 1, or if d_k = d and k < 3.
sizes = {"self_attention": {"key_width": 64}, "convolution": {"kernel": 5}, "recurrent": {}, "dense": {}}
print({layer: regard.cost(layer, 50, 512, 512, form="notes", **options).parameters for layer, options in sizes.items()})
print(
    sum(p.numel() for p in regard.Convolution(512, 512, reach=2, bias=False).parameters()),
    regard.cost("convolution", 50, 512, 512, kernel=1).parameters,
)

# %% N84
# d_k = d/8 makes the quadratic part cheaper, and it stays quadratic.
print(
    {
        width: [
            regard.cost("self_attention", length, 512, 512, key_width=width, form="notes").operations
            for length in (50, 100, 200)
        ]
        for width in (512, 64)
    }
)

# %% N85
# Attention, convolution and dense mixing run in parallel, recurrence does not. Measured layers, with one thread.
print(
    {
        layer: regard.cost(layer, 50, 512, 512, key_width=64, kernel=5).sequential_steps
        for layer in ("self_attention", "convolution", "dense", "recurrent")
    }
)
# $ regard cost --measure --width 64 --value-width 64 --key-width 64 --lengths 16,64,256 --threads 1 --seconds 20 --plot n85.svg

# %% N86
# A kernel of five has the same weights everywhere, dense mixing those of a table, attention others for every sentence.
convolution, dense = regard.Convolution(1, 1, reach=2, weights="scalar", bias=False), regard.Dense(8, 1, 1, bias=False)
table = {"convolution": convolution(torch.eye(8)[..., None])[..., 0].T, "dense": dense(torch.eye(8)[..., None])[..., 0].T}
table |= {f"attention, sentence {n}": regard.attention_weights(x := torch.randn(8, 4), x) for n in (1, 2)}
regard.draw(table, "n86.svg", numbers=False)

# %% N87
# Any length, reach, weights that follow the content: each property by a check of one line.
layers = {
    "attention": regard.MultiHeadAttention(8, 1),
    "convolution": regard.Convolution(8, 8, reach=1),
    "recurrent": torch.nn.LSTM(8, 8, batch_first=True),
    "dense": regard.Dense(3, 8, 8),
}
for name, layer in layers.items():
    lengths = []
    for length in (3, 9):
        try:
            layer(torch.randn(1, length, 8))
            lengths.append(length)
        except (RuntimeError, ValueError):
            pass
    path = regard.path_length("lstm" if name == "recurrent" else name, 9) if name != "dense" else 1
    print(f"{name:12} lengths {lengths}, steps until the ends of nine positions meet: {path}")

# %% N88 trains
# A larger network can learn all graphs by heart, but that is wasteful: recall at moving distances, accuracy against parameters.
# (All three have cross-attention, which can do the recall by itself, and 300 updates do not settle it.)
for heads in (1, 4):
    found = regard.compare(
        "recall.tsv",
        only="transformer,convolution,dense",
        updates=300,
        settings={"model.heads": heads, "model.width": 32 * heads},
        quiet=True,
    )
    print({row.name: (f"{row.parameters:,} parameters", f"{row.value:.0%}") for row in found.rows})
