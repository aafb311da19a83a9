"""Features of a source that have no order, such as those of an inflected form: found among its tokens, and added to states."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.contracts import Specials
from regard.core import masks
from regard.core.source import Source
from regard.core.transforms import is_readable

# B sentences  S source positions  R rows of states  F features  N chosen ids  D decoder width  I embedding


def split_features(source: Source, num_features: int, specials: Specials) -> tuple[Source, Tensor, Tensor]:
    """Returns a source without its features, the ids of its features (B, F), and where they are real.

    Features have the first ids after the special tokens, see `Codec.num_features`. They follow the text, so what is unknown
    after one of them is an unknown feature, which is left out.
    """
    ids_BS, allow_BS = source.values, source.allow
    is_feature_BS = allow_BS & (ids_BS > specials.eos) & (ids_BS <= specials.eos + num_features)
    is_unknown_BS = (ids_BS == specials.unk) & (is_feature_BS.cumsum(1) > 0)
    ids_BF, real_BF = _chosen(ids_BS, is_feature_BS)
    if is_readable(ids_BS) and not is_feature_BS.any():
        return source, ids_BF, real_BF
    return Source(*_chosen(ids_BS, allow_BS & ~is_feature_BS & ~is_unknown_BS)), ids_BF, real_BF


def add_features(states_BRD: Tensor, features_BFI: Tensor, query: nn.Linear, value: nn.Linear) -> Tensor:
    """Returns s_t + Σ_k σ(W_q s_t · f_k / √I) W_v f_k for every state s_t."""
    scores_BRF = query(states_BRD) @ features_BFI.transpose(1, 2) / math.sqrt(features_BFI.shape[-1])
    added_BRD: Tensor = scores_BRF.sigmoid() @ value(features_BFI)
    return states_BRD + added_BRD


def _chosen(ids_BS: Tensor, chosen_BS: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the chosen ids of each row in their order, (B, N), N being the largest number of them, and where they are real.
    Traced code keeps all columns, because it must not depend on values."""
    order_BN = (~chosen_BS).to(torch.uint8).argsort(dim=1, stable=True)
    numbers_B = chosen_BS.sum(1)
    if is_readable(numbers_B):
        order_BN = order_BN[:, : int(numbers_B.max())]
    return ids_BS.gather(1, order_BN), masks.first(numbers_B, order_BN.shape[1])
