"""Recurrent layers in which padding never reaches a state."""

import torch
from torch import Tensor, nn

# B batch  S source length  I input width  W width of one direction


def reverse_rows(x_BSI: Tensor, lengths_B: Tensor) -> Tensor:
    """Each row's real places in reverse order, padding left at the end. Its own inverse."""
    places_S = torch.arange(x_BSI.shape[1], device=x_BSI.device)
    mirrored_BS = lengths_B[:, None] - 1 - places_S
    index_BS = torch.where(mirrored_BS >= 0, mirrored_BS, places_S)
    return x_BSI.gather(1, index_BS[..., None].expand_as(x_BSI))


class BidirectionalGRU(nn.Module):
    """Two GRUs per layer, one for each direction. The backward one reads rows reversed within their own length, so both keep
    padding behind the real places and no packing is needed."""

    def __init__(self, input_width: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        sizes = [input_width] + [2 * width] * (layers - 1)
        self.forwards = nn.ModuleList(nn.GRU(size, width, batch_first=True) for size in sizes)
        self.backwards = nn.ModuleList(nn.GRU(size, width, batch_first=True) for size in sizes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BSI: Tensor, allow_BS: Tensor) -> tuple[Tensor, Tensor]:
        """(states (B, S, 2W), last states of both directions (B, 2W))."""
        lengths_B = allow_BS.sum(1)
        last_B = (lengths_B - 1).clamp(min=0)
        rows_B = torch.arange(x_BSI.shape[0], device=x_BSI.device)
        for number, (forwards, backwards) in enumerate(zip(self.forwards, self.backwards, strict=True)):
            if number:
                x_BSI = self.dropout(x_BSI)
            ahead_BSW, _ = forwards(x_BSI)
            back_BSW, _ = backwards(reverse_rows(x_BSI, lengths_B))
            ends = torch.cat((ahead_BSW[rows_B, last_B], back_BSW[rows_B, last_B]), dim=-1)
            x_BSI = torch.cat((ahead_BSW, reverse_rows(back_BSW, lengths_B)), dim=-1)
        return x_BSI, ends
