"""Put `regard.MultiHeadAttention` where a model has `torch.nn.MultiheadAttention`: same weights, same outputs, more to see."""

import torch
from torch import Tensor, nn

import regard


class Classifier(nn.Module):
    """A small model as one finds it: one layer of torch's attention, a mean, and a linear layer."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        mixed, _ = self.attention(x, x, x, key_padding_mask=padding)  # True = hidden
        logits: Tensor = self.head(mixed.mean(1))
        return logits


class Inspected(Classifier):
    """The same model with our layer. Our masks say what may be attended to, so torch's mask is inverted."""

    def __init__(self, trained: Classifier) -> None:
        super().__init__()
        self.layer = regard.MultiHeadAttention.from_torch(trained.attention)
        self.head = trained.head
        del self.attention

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer(x, allow=~padding[:, None]).mean(1))
        return logits


torch.manual_seed(1)
trained = Classifier().eval()
model = Inspected(trained).eval()
x = torch.randn(2, 6, 32)
padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])

difference = (trained(x, padding) - model(x, padding)).abs().max().item()
print(f"largest difference between the two models: {difference:.1e}")
assert difference < 1e-6

# The weights of every head, without changing the output.
allow = ~padding[:, None]
output, weights = model.layer(x, allow=allow, weights=True)
assert torch.equal(output, model.layer(x, allow=allow))
print(f"weights: {tuple(weights.shape)}; on padding: {weights[1, :, :, 4:].sum().item()}")

# Taps see more than weights; edits switch heads off.
norms = model.layer(x, allow=allow, look=regard.Look((regard.Tap(what="norms"),))).seen[0]
print(f"norms of what each key adds: {tuple(norms.weights_BHTS.shape)}")
without = model.layer(x, allow=allow, look=regard.Look(edits=(regard.Edit(head=2),))).context
print(f"head 2 changes the output by up to {(output - without).abs().max().item():.2f}")

# And back, for colleagues who have only torch.
again, _ = model.layer.to_torch()(x, x, x, key_padding_mask=padding)
assert torch.allclose(again, output, atol=1e-6)
