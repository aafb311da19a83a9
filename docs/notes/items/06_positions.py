# Positions
import torch

import regard

# %% N30
# Attention strips away where a word stands: without positions, a permuted source gives the same states, permuted.
for positions in ("none", "sinusoidal"):
    model = regard.build(
        "transformer",
        [("a b c", "x"), ("c a b", "y")],
        positions=positions,
        source_unit="symbols",
        width=16,
        heads=2,
        dropout=0.0,
    )
    one, other = (torch.from_numpy(model.encode(text).states) for text in ("a b c", "c a b"))
    print(positions, torch.allclose(one[[2, 0, 1]], other[:3], atol=1e-5))

# %% N31
# The bare index is most similar to far positions; one-hot vectors make neighbours no nearer than strangers.
i = torch.arange(100)
index, one_hot = regard.positions.raw_index(i) / 99, regard.positions.one_hot(i, 100)
regard.draw({"index": index @ index.T, "one-hot": one_hot @ one_hot.T}, "n31.png", x="j", y="i", numbers=False)

# %% N32
# What is wanted is exp(−λ(i−j)²). A truncated Fourier series comes close, the closer the wider.
i, distance = torch.arange(100), torch.tensor([1.0, 5, 10, 20])
print((-0.01 * distance**2).exp().round(decimals=3).tolist())
for width in (8, 16, 32, 64):
    phi = regard.positions.fourier(i, width)
    print(width, "largest error", round((phi @ phi.T - (-0.01 * (i[:, None] - i) ** 2).exp()).abs().max().item(), 4))
phi = regard.positions.fourier(i, 64)
regard.draw(phi @ phi.T, "n32.png", x="j", y="i", scale="own")

# %% N33
# The sinusoids, ω_k = 10000^(−2k/d): the table, 100 × 64, and its products. From k = 0 or from k = 1, they never come near 0.
phi = regard.positions.sinusoidal(torch.arange(100), 64)
for first in (0, 1):
    products = (table := regard.positions.sinusoidal(torch.arange(100), 64, first=first)) @ table[0]
    print(
        first,
        [round(products[distance].item(), 2) for distance in (0, 1, 10)],
        round(products.min().item(), 2),
        products.argmin().item(),
    )
regard.draw(phi @ phi.T, "n33.png", x="j", y="i", scale="own")
regard.draw(phi, "n33b.png", x="dimension", y="position", scale="diverging")

# %% N34
# Four words, d = 4: the rows that are added to the embeddings.
phi = regard.positions.sinusoidal(torch.arange(4), 4)
print(phi.round(decimals=4).tolist())
regard.draw(phi, "n34.svg", rows="I am a student".split(), columns=["sin ω₀i", "cos ω₀i", "sin ω₁i", "cos ω₁i"])

# %% N35 trains
# Position vectors may be appended to the embeddings, or added.
found = regard.compare(
    "reverse.tsv", only="transformer,transformer-appended", updates=300, settings={"model.heads": 2}, quiet=True
)
print(found.table())

# %% N36 trains
# A task that needs order (copy) and one that does not (bag of letters): what the positions are worth.
for task in ("copy.tsv", "bag.tsv"):
    found = regard.compare(task, only="transformer", without="positions", updates=250, settings={"model.heads": 2}, quiet=True)
    print(task, {row.name: (f"{row.value:.0%}", f"loss {row.training_loss:.2f}") for row in found.rows})

# %% N37
# A look-ahead mask is a position encoding of a kind: without positions, a causal stack distinguishes permuted prefixes by its
# second layer, an encoder does not.
x = torch.randn(1, 6, 16)
order = [2, 0, 1, 3, 4, 5]
for name, stack in (
    ("encoder", regard.TransformerEncoder(16, 2, layers=2)),
    ("decoder", regard.TransformerDecoder(16, 2, layers=2, cross=False)),
):
    print(
        name,
        "last state unchanged by a permutation of the prefix:",
        torch.allclose(stack.eval()(x)[0, -1], stack(x[:, order])[0, -1], atol=1e-5),
    )

# %% N38
# The graph of a sentence as arcs: who depends on whom.
links = [(1, 0), (2, 1), (2, 3), (1, 4), (4, 6), (6, 5), (3, 7), (2, 8)]
regard.draw(links, "n38.svg", kind="arcs", columns="A hearing is scheduled on the issue today .".split())

# %% N39
# w(is, hearing) = f(x_is, x_hearing), wherever the two stand. A convolution's weight depends on the distance alone.
of_is, of_hearing = torch.randn(2, 8).unbind()
convolution = regard.Convolution(8, 8, reach=6, weights="scalar")
for apart in (1, 3, 6):
    sentence = torch.cat((of_is[None], torch.zeros(apart - 1, 8), of_hearing[None]))
    print(
        apart,
        "score",
        round((sentence[0] @ sentence[-1] / 8**0.5).item(), 4),
        "convolution",
        round(next(convolution.parameters()).flatten()[6 + apart].item(), 4),
    )
