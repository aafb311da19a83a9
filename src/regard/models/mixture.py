"""The result of a decoder with exact hard attention: every token comes from a mixture over the source positions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.core import latent
from regard.models.contract import Decoded

# B sentences  T target positions, or the hypotheses of a step  S source positions  V vocabulary


@dataclass(frozen=True, eq=False)
class Mixture(Decoded):
    """p(v) = Σ_j p(a_t = j) p(v | s_t, h_j), see core/latent.py. No tensor (B, T, S, V) is computed.

    state_BTV, source_BSV: the log-probabilities of both experts. mixture_BTS: log p(a_t = j) − log_overlap + log(1 − g_tj).
    copied_BTS: log p(a_t = j) + log g_tj, and tokens_BS: x_j, if positions may write their own tokens.
    """

    state_BTV: Tensor
    source_BSV: Tensor
    mixture_BTS: Tensor
    copied_BTS: Tensor | None = None
    tokens_BS: Tensor | None = None

    @cached_property
    def logits_BTV(self) -> Tensor:
        """The log-probability of every token; log-probabilities are logits, too."""
        log_probs_BTV = latent.distribution(self.state_BTV, self.source_BSV, self.mixture_BTS)
        if self.copied_BTS is None or self.tokens_BS is None:
            return log_probs_BTV
        return log_probs_BTV.logaddexp(latent.copied_distribution(self.copied_BTS, self.tokens_BS, self.state_BTV.shape[-1]))

    def distribution(self) -> Tensor:
        return self.logits_BTV

    def log_probs(self, targets_BT: Tensor) -> Tensor:
        log_probs_BT = latent.token_log_probs(self.state_BTV, self.source_BSV, self.mixture_BTS, targets_BT)
        if self.copied_BTS is None or self.tokens_BS is None:
            return log_probs_BT
        return log_probs_BT.logaddexp(latent.copied_log_probs(self.copied_BTS, self.tokens_BS, targets_BT))

    def positions(self, ids_BT: Tensor) -> Tensor:
        """Returns log p(a_t = j, y_t) for the tokens y_t, (B, T, S), up to a number for each token."""
        mixed_BTS = self.mixture_BTS + latent.source_log_probs(self.source_BSV, ids_BT)
        if self.copied_BTS is None or self.tokens_BS is None:
            return mixed_BTS
        state_BT1 = self.state_BTV.gather(2, ids_BT.unsqueeze(-1))
        return (mixed_BTS + state_BT1).logaddexp(latent.where_copied(self.copied_BTS, self.tokens_BS, ids_BT))

    def weighted(self, log_weights_BTS: Tensor) -> Mixture:
        """Returns the mixture in which position j has e^log_weights times its probability."""
        copied_BTS = None if self.copied_BTS is None else self.copied_BTS + log_weights_BTS
        return replace(self, mixture_BTS=self.mixture_BTS + log_weights_BTS, copied_BTS=copied_BTS)

    def with_no_key(self, log_rest_BT1: Tensor) -> Mixture:
        """Returns the mixture with one more choice: that the state alone writes the token. log_rest_BT1: its probability."""
        return replace(
            self,
            source_BSV=F.pad(self.source_BSV, (0, 0, 0, 1)),
            mixture_BTS=torch.cat((self.mixture_BTS, log_rest_BT1), dim=-1),
            copied_BTS=None if self.copied_BTS is None else F.pad(self.copied_BTS, (0, 1), value=latent.NEVER),
            tokens_BS=None if self.tokens_BS is None else F.pad(self.tokens_BS, (0, 1)),
        )
