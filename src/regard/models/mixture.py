"""The result of a decoder with exact hard attention: every token comes from a mixture over the source positions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from regard.core import latent
from regard.models.contract import Decoded

# B sentences  T target positions, or the hypotheses of a step  S source positions  V vocabulary


@dataclass(frozen=True, eq=False)
class Mixture(Decoded):
    """p(v) = Σ_j p(a_t = j) p(v | s_t, h_j), see core/latent.py. No tensor (B, T, S, V) is computed.

    state_BTV, source_BSV: the log-probabilities of both experts. mixture_BTS: log p(a_t = j) − log_overlap.
    """

    state_BTV: Tensor
    source_BSV: Tensor
    mixture_BTS: Tensor

    @cached_property
    def logits_BTV(self) -> Tensor:
        """The log-probability of every token; log-probabilities are logits, too."""
        return latent.distribution(self.state_BTV, self.source_BSV, self.mixture_BTS)

    def distribution(self) -> Tensor:
        return self.logits_BTV

    def log_probs(self, targets_BT: Tensor) -> Tensor:
        return latent.token_log_probs(self.state_BTV, self.source_BSV, self.mixture_BTS, targets_BT)
