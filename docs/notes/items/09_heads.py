# Self-, cross- and multi-head attention
import torch

import regard

# %% N58
# Basic self-attention in three steps, without parameters: x_i·x_j, softmax, sum. One row by hand.
x = torch.randn(5, 4)
print(regard.self_attention(x)[0].tolist())
print(((x[0] @ x.T).softmax(-1) @ x).tolist())

# %% N59
# With parameters: the second query meets all keys. Row 2 from the three matrices of the layer.
layer, x = regard.MultiHeadAttention(4, 1, project_output=False, bias=False), torch.randn(5, 4)
W_Q, W_K, W_V = (matrix.detach() for matrix in layer.parameters())
print(layer(x[None])[0, 1].tolist())
print((((x[1] @ W_Q.T) @ (x @ W_K.T).T / 2).softmax(-1) @ (x @ W_V.T)).tolist())

# %% N60
# softmax(X W_q W_kᵀ Xᵀ/√d_k) X W_v in one line is one head; a convolution with a kernel of 1 is the projection; W_q W_kᵀ is
# one General score.
layer, x = regard.MultiHeadAttention(4, 1, project_output=False, bias=False), torch.randn(5, 4)
W_Q, W_K, W_V = (matrix.detach().T for matrix in layer.parameters())
print(torch.allclose((x @ W_Q @ W_K.T @ x.T / 2).softmax(-1) @ x @ W_V, layer(x[None])[0], atol=1e-6))
print(torch.allclose(torch.nn.functional.conv1d(x.T[None], W_Q.T[..., None])[0].T, x @ W_Q, atol=1e-6))
general = regard.scores.General(4, 4)
general.weight.weight.data = W_Q @ W_K.T / 2
print(torch.allclose(regard.attend(x, x, x @ W_V, score=general), layer(x[None])[0], atol=1e-6))

# %% N61
# Two heads of width 2, values of width 3; the weights of both in the same call.
layer = regard.MultiHeadAttention(4, 2, key_dim=2, value_dim=3)
output, weights = layer(torch.randn(1, 5, 4), weights=True)
print(tuple(output.shape), tuple(weights.shape))
regard.draw(
    weights, "n61.svg", panels=["head 1", "head 2"], rows="I have a red car".split(), columns="I have a red car".split()
)

# %% N62
# Heads look at different things, side by side: the heads of cross-attention in a trained Transformer. One wide matrix is
# several small ones.
result = regard.load("french-transformer")("I have a red car")
regard.draw(
    result.attention().weights_HTS,
    "n62.svg",
    rows=result.attention().target,
    columns=result.attention().source,
    panels=[f"head {head}" for head in range(4)],
    numbers=False,
)

# %% N63
# Eight heads of d/8 have as many parameters as one of d, and as many operations.
print([sum(matrix.numel() for matrix in regard.MultiHeadAttention(64, heads).parameters()) for heads in (1, 8)])
print(
    regard.cost("self_attention", 50, 64, 64, key_width=64).operations,
    8 * regard.cost("self_attention", 50, 64, 8, key_width=8).operations,
)

# %% N64
# Cross-attention: the scores of four target words with four source words, before the softmax.
layer = regard.MultiHeadAttention(4, 2, memory_width=4)
scores = (
    layer(torch.randn(1, 4, 4), torch.randn(1, 4, 4), look=regard.Look((regard.Tap(what="scores"),))).seen[0].weights_BHTS[0, 0]
)
regard.draw(scores, "n64.svg", rows="<sos> je suis étudiant".split(), columns="I am a student".split())

# %% N65
# Layers look at different distances: mean distance of the weight by layer, and of uniform attention, in a trained
# Transformer.
found = regard.roles(
    regard.load("french-transformer"),
    [("I have a red car", "j' ai une voiture rouge"), ("I see a small house", "je vois une petite maison")],
)
for kind in found.kinds:
    print(
        kind,
        [round(distance, 2) for distance in found.distances(kind)],
        [(head.layer, head.head, head.role) for head in found.heads if head.kind == kind][:4],
    )

# %% N66
# Every word may depend on all others, itself included. Without itself, a text of one word has nothing to attend to, and gets
# zeros.
for length in (3, 1):
    x = torch.ones(length, 2)
    print(
        regard.attention_weights(x, x).diagonal().tolist(),
        regard.attend(x, x, x, allow=~torch.eye(length, dtype=torch.bool)).tolist(),
    )
