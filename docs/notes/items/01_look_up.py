# Soft dictionary look-up
import numpy as np
import torch

import regard

# %% N1
# One query meets three keys, each of which leads to its value. With a large scale it is a dictionary, with none the mean of
# the values.
keys, values = torch.eye(3), torch.tensor([[10.0], [20.0], [60.0]])
print([round(regard.attend(scale * keys[1:2], keys, values).item(), 2) for scale in (100, 3, 0)])

# %% N2
# Who asks, who is compared and what is mixed: one sequence for all three, or the decoder asks the encoder.
print(regard.describe(regard.build("transformer", num_tokens=(9, 9), width=8, heads=1, encoder_layers=1, decoder_layers=1)))

# %% N3
# Seven queries, four keys: the third query has four scores, four weights and one output; then the fourth, then the fifth.
weights = regard.attention_weights(torch.randn(7, 8), torch.randn(4, 8))
lit = (weights * torch.eye(7).unsqueeze(-1))[2:5]
regard.draw(
    lit,
    "n3.svg",
    kind="lines",
    rows=[f"q{i}" for i in range(1, 8)],
    columns=["k1", "k2", "k3", "k4"],
    panels=["q3", "q4", "q5"],
)

# %% N4
# Scores q·k/√d, a softmax along the keys, the weighted sum of the values. Weights are from 0 to 1, and every row sums to 1.
query, key, value = (
    torch.randn(7, 8, dtype=torch.float64),
    torch.randn(4, 8, dtype=torch.float64),
    torch.randn(4, 5, dtype=torch.float64),
)
weights = regard.attention_weights(query, key)
print(
    weights.sum(-1).tolist(),
    torch.dist(regard.attend(query, key, value), (query @ key.T / 8**0.5).softmax(-1) @ value).item() < 1e-12,
)
print(
    np.allclose(
        regard.reference.attention(regard.reference.scaled_dot(query.numpy(), key.numpy()), value.numpy()), weights @ value
    )
)

# %% N5
# Keys, scores, softmax, weighting, sum: first with the states themselves as values (two matrices), then with V z (three).
for layer in (
    regard.MultiHeadAttention(8, 1, project_values=False, project_output=False, bias=False),
    regard.MultiHeadAttention(8, 1, project_output=False, bias=False),
):
    print([tuple(matrix.shape) for matrix in layer.parameters()], tuple(layer(torch.randn(4, 8)).shape))

# %% N6
# From a table of weights to a recipe f(x_i, x_j); without a normaliser the sum grows with the number of keys.
x = torch.randn(6, 8)
for length in (3, 6):
    print(
        [
            round(regard.attend(x[:1], x[:length], torch.ones(length, 1), attention=kind).item(), 3)
            for kind in ("soft", "unnormalised")
        ]
    )

# %% N7
# The listing in NumPy: four words, matrices 3×2, divisor √2. Scores of ±10,000 give NaN in it, and finite weights here.
words, W_Q, W_K = (
    np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1.0]]),
    np.array([[1, 0], [0, 2], [1, 1.0]]),
    np.array([[0, 1], [1, 1], [2, 0.0]]),
)
scores = (words @ W_Q) @ (words @ W_K).T
print((np.exp(scores / 2**0.5) / np.exp(scores / 2**0.5).sum(-1, keepdims=True)).round(3).tolist())
with np.errstate(all="ignore"):
    print(np.exp(1e4 * scores[0]) / np.exp(1e4 * scores[0]).sum(), regard.reference.softmax(1e4 * scores[0]))

# %% N8
# The order of the pairs (key, value) is of no matter: shifted, shuffled or reversed, they give the same output. Location does
# not.
query, key, value = torch.randn(3, 8), torch.randn(6, 8), torch.randn(6, 8)
for order in (torch.arange(5, -1, -1), torch.arange(6).roll(2), torch.randperm(6)):
    print(
        [
            torch.allclose(
                regard.attend(query, key[order], value[order], score=score),
                regard.attend(query, key, value, score=score),
                atol=1e-6,
            )
            for score in (None, regard.scores.Location(8, 6))
        ]
    )

# %% N9
# Attention has no trainable number; self-attention has W_Q, W_K and W_V, the same for any length.
head = regard.MultiHeadAttention(64, 1, key_dim=8, value_dim=16, project_output=False, bias=False)
print(
    sum(matrix.numel() for matrix in head.parameters()),
    2 * 64 * 8 + 64 * 16,
    [tuple(head(torch.randn(length, 64)).shape) for length in (4, 400)],
)
