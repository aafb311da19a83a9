# Masks
import torch

import regard

# %% N22
# Padded keys get −∞, not a small score: what leaks to them as a function of that score, and the output with 0, 3 and 50
# padded keys.
query, key = torch.randn(1, 8), torch.randn(4, 8)
scores = query @ key.T / 8**0.5
print(
    [
        round(torch.cat((scores, torch.full((1, 3), float(small))), -1).softmax(-1)[0, 4:].sum().item(), 4)
        for small in (-1, -5, -10, float("-inf"))
    ]
)
for number in (0, 3, 50):
    padded = torch.cat((key, torch.randn(number, 8)))
    print(
        regard.attend(query, padded, padded, allow=regard.masks.first(torch.tensor([4]), 4 + number)[:, None][0])[0, 0].item()
    )

# %% N23
# The look-ahead mask: a word sees itself and what precedes it.
words = "<sos> je suis étudiant".split()
weights = regard.attention_weights(torch.randn(4, 8), torch.randn(4, 8), allow=regard.masks.causal(4))
regard.draw({"mask": regard.masks.causal(4), "weights": weights}, "n23.svg", rows=words, columns=words)

# %% N24
# Inside a head: product, scale, mask, softmax, product with V. Each stage is the input of the next.
layer, x = regard.MultiHeadAttention(8, 1, value_dim=8), torch.randn(1, 3, 8)
scores, weights = (
    layer(x, allow=regard.masks.causal(3), look=regard.Look((regard.Tap(what=what),))).seen[0] for what in ("scores", "weights")
)
print(scores.weights_BHTS[0, 0].double().round(decimals=2).tolist())
print(torch.equal(scores.weights_BHTS.softmax(-1), weights.weights_BHTS))

# %% N25
# A window bounds the cost: L·(2w+1) scores instead of L². Outside the window nothing counts.
x, changed = torch.randn(100, 8), torch.randn(100, 8)
print(regard.masks.window(100, width=3).sum().item(), 100 * 7 - 2 * (1 + 2 + 3), 100**2)
changed[50:] = x[50:]
print(torch.equal(regard.attend(x, x, x, window=3)[53:], regard.attend(changed, changed, changed, window=3)[53:]))

# %% N26
# The mask is for training, where all positions are computed at once: a later token changes no earlier logit by a bit.
model, source = regard.build("transformer", num_tokens=9, width=16, heads=2).eval(), torch.tensor([[4, 5, 6]])
one, other = model(source, torch.tensor([[2, 4, 5, 6]])), model(source, torch.tensor([[2, 4, 5, 7]]))
print(
    torch.equal(one[:, :3], other[:, :3]),
    torch.equal(one[:, 3], other[:, 3]),
    torch.allclose(model(source, torch.tensor([[2, 4]])), one[:, :2], atol=1e-5),
)
