"""Multi-head attention: projections around the function in core/attention.py."""

from torch import Tensor, nn

from regard.contracts import Look, Score
from regard.core.attention import watched

# B batch  L any length  H heads  D model width  d width of one head

KeysValues = tuple[Tensor, Tensor]
"""(prepared keys, values) of an attended sequence, (B, H, L, ·)."""


class MultiHeadAttention(nn.Module):
    """H independent attentions, side by side (Vaswani et al. 2017, 3.2.2). One wide matrix split = H small ones.

    The parts are separate, because a decoder projects the source's keys and values once and its queries at every step.
    """

    def __init__(self, width: int, heads: int, *, score: Score) -> None:
        super().__init__()
        self.heads = heads
        self.score = score
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def split(self, x_BLD: Tensor) -> Tensor:
        x_BLHd: Tensor = x_BLD.unflatten(-1, (self.heads, -1))
        return x_BLHd.transpose(-2, -3)

    def queries(self, x_BLD: Tensor) -> Tensor:
        return self.split(self.query(x_BLD))

    def keys_values(self, x_BLD: Tensor) -> KeysValues:
        """All that depends on the attended sequence alone."""
        return self.score.prepare(self.split(self.key(x_BLD))), self.split(self.value(x_BLD))

    def attend(
        self, query_BHLd: Tensor, prepared: Tensor, value: Tensor, allow: Tensor | None, look: Look | None
    ) -> tuple[Tensor, Tensor | None]:
        """(output_BLD, the weights that a look asked for)."""
        context_BHLd, weights = watched(query_BHLd, prepared, value, score=self.score, allow=allow, look=look)
        return self.output(context_BHLd.transpose(-2, -3).flatten(-2)), weights
