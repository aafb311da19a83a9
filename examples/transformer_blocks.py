"""Train a small Transformer made of Regard's blocks in a plain loop of PyTorch, and look at its attention.

The task: write a sequence of digits backwards. The decoder must attend to the source from its end to its beginning.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard

START, DIGITS, LENGTH, WIDTH = 10, 10, 6, 32


class Reverser(nn.Module):
    """Digits in, logits out. The blocks take and return vectors, so the embeddings are ours to choose."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(DIGITS + 1, WIDTH)
        self.encoder = regard.TransformerEncoder(WIDTH, 2, 1, feed_forward=64, dropout=0.0)
        self.decoder = regard.TransformerDecoder(WIDTH, 2, 1, feed_forward=64, dropout=0.0)
        self.output = nn.Linear(WIDTH, DIGITS)

    def embed(self, ids: Tensor) -> Tensor:
        embedded: Tensor = self.embedding(ids)
        return embedded + regard.positions.sinusoidal(torch.arange(ids.shape[1]), WIDTH)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        logits: Tensor = self.output(self.decoder(self.embed(target), self.encoder(self.embed(source))))
        return logits


def make_batch(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns sources, what the decoder reads, and what it should write."""
    source = torch.randint(DIGITS, (size, LENGTH))
    target = source.flip(1)
    return source, torch.cat((torch.full((size, 1), START), target[:, :-1]), dim=1), target


torch.manual_seed(1)
model = Reverser()
optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
for update in range(1, 201):
    source, read, target = make_batch(64)
    loss = F.cross_entropy(model(source, read).flatten(0, 1), target.flatten())
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch has no type for it
    optimiser.step()
    if update % 50 == 0:
        print(f"update {update}: loss {loss.item():.3f}")

model.eval()
source, read, target = make_batch(200)
with torch.no_grad():
    correct = (model(source, read).argmax(-1) == target).float().mean().item()
    print(f"correct digits: {correct:.1%}")
    assert correct > 0.9

    look = regard.Look((regard.Tap("cross", layer=0),))
    decoded = model.decoder(model.embed(read), model.encoder(model.embed(source)), look=look)
    strongest = decoded.seen[0].weights_BHTS.mean((0, 1)).argmax(-1)
    print("position that each output attends to most:", strongest.tolist())
