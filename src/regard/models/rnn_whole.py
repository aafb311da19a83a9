"""Bahdanau's decoder over whole sequences in one call of the native kernels, where they compute the same as its loop."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.core.linear import linear
from regard.core.precision import is_rounding
from regard.core.score import Score
from regard.core.transforms import is_transformed
from regard.layers.recurrent import GRU, layer_weights
from regard.layers.scores import Additive
from regard.models.rnn_settings import RnnSettings
from regard.models.rnn_state import RnnState
from regard.native import bahdanau as native

# N rows  T steps  I embedding  W width  E memory width


def runs_whole(settings: RnnSettings, stack: nn.RNNBase, score: Score, embedded_NTI: Tensor, state: RnnState) -> bool:
    """Whether the kernels compute these steps: soft additive attention, one layer of a GRU, more than one step in float32."""
    if settings.decoder != "bahdanau" or settings.attention != "soft" or not isinstance(score, Additive):
        return False
    if not isinstance(stack, GRU) or stack.num_layers > 1 or embedded_NTI.shape[1] < 2:
        return False
    if is_transformed() or torch.compiler.is_exporting() or is_rounding(embedded_NTI.device):
        return False
    return native.fits(embedded_NTI, state.prepared_BSA, state.values_BSE, state.hidden_BKLX, score.v, *stack.parameters())


def run_whole(stack: nn.RNNBase, score: Additive, embedded_NTI: Tensor, state: RnnState) -> tuple[Tensor, Tensor]:
    """Returns all states s_t (N, T, W) and all context vectors c_t (N, T, E); there is one hypothesis per sentence."""
    W_GI, U_GW, b_G, b_U_G = layer_weights(stack, 0)
    context_GE, early_GI = W_GI.split((stack.input_size - embedded_NTI.shape[-1], embedded_NTI.shape[-1]), dim=1)
    return native.decode(
        linear(embedded_NTI, early_GI, b_G),
        context_GE,
        U_GW,
        b_U_G,
        score.query.weight,
        score.v,
        state.prepared_BSA,
        state.values_BSE,
        state.hidden_BKLX[:, 0, 0],
        state.allow_BS,
    )
