"""Exact hard attention of a recurrent decoder: the probabilities of all choices of one source position, added up.

The decoder state s_t does not depend on the choices. Position j writes the next token with softmax(W_o [s_t; h_j] + b_o); with
`copy` it may also write its own token, with probability σ(W_g [s_t; h_j] + b_g).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.contracts import Specials
from regard.core import latent, masks
from regard.core.attention import scores_prepared
from regard.core.mechanism import Mechanism
from regard.core.precision import log_softmax
from regard.core.score import Score
from regard.core.taps import Capture, look_at_given
from regard.look import Look
from regard.models.mixture import Mixture
from regard.models.rnn_settings import RnnSettings
from regard.models.rnn_state import RnnState

# B sentences  K hypotheses  S source positions  T target positions  R = K·T rows, where K or T is 1  E memory width
# D decoder width  V vocabulary  J jumps


@dataclass(frozen=True)
class Choices:
    """Which source position each token comes from, see core/latent.py.

    emission: the tokens that each position writes: a `Mixture` in which all positions have the weight 1.
    prior_BKTS: log p(a_t = j | y_<t). written_BKTS: log p(y_t | s_t, h_j) of the tokens that are read after step t, up to a
    number for each token; the token after the last step is not known. steps: the moves of every step, if monotone.
    """

    emission: Mixture
    prior_BKTS: Tensor
    written_BKTS: Tensor
    steps: Sequence[latent.Moves] = ()

    @property
    def mixture(self) -> Mixture:
        """What each token comes from, given those before it."""
        return self.emission.weighted(self.prior_BKTS.flatten(1, 2))

    def posterior_BKTS(self) -> Tensor:
        """Returns p(a_t = j | y), where y are the tokens read after step t; after the last step there are none."""
        known_BKTS = latent.after_token(self.prior_BKTS[:, :, :-1], self.written_BKTS)
        filtered_BKTS = torch.cat((known_BKTS, self.prior_BKTS[:, :, -1:]), dim=2)
        if not self.steps:
            return filtered_BKTS.exp()
        smoothed = latent.smooth_chain(self.prior_BKTS.unbind(2), filtered_BKTS.unbind(2), self.steps)
        return torch.stack(smoothed, dim=2).exp()


@dataclass(frozen=True)
class SummedAttention:
    """The layers of a model that exact hard attention reads.

    jump: scores the moves, if the attention is monotone.  gate: decides between writing and copying, if the model copies.
    """

    settings: RnnSettings
    specials: Specials
    score: Score
    output: nn.Linear
    jump: nn.Linear | None = None
    gate: nn.Linear | None = None

    def source_parts(self, values_BSE: Tensor, allow_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what depends on the source only: log-probabilities of the tokens (B, S, V), scores of the jumps (B, S, J).

        A monotone alignment ends at the last source position: no other position writes <eos>.
        """
        width = self.settings.width
        logits_BSV = F.linear(values_BSE, self.output.weight[:, width:])
        if self.jump is None:
            return log_softmax(logits_BSV), values_BSE[..., :0]
        before_last_BS = masks.first(allow_BS.sum(1) - 1, allow_BS.shape[1])
        is_eos_V = torch.arange(logits_BSV.shape[-1], device=logits_BSV.device) == self.specials.eos
        logits_BSV = logits_BSV.masked_fill(before_last_BS.unsqueeze(-1) & is_eos_V, latent.NEVER)
        return log_softmax(logits_BSV), F.linear(values_BSE, self.jump.weight[:, width:])

    def source_gates(self, values_BSE: Tensor, tokens_BS: Tensor) -> Tensor:
        """Returns the part of the source in the log-odds of copying each of its tokens, (B, S)."""
        assert self.gate is not None
        gates_BS = F.linear(values_BSE, self.gate.weight[:, self.settings.width :]).squeeze(-1)
        for special in self.specials.ids:  # which are not copied
            gates_BS = gates_BS.masked_fill(tokens_BS == special, latent.NEVER)
        return gates_BS

    def choices(self, ids_BKT: Tensor, states_BRD: Tensor, state: RnnState) -> Choices:
        """Returns how probable each source position is, for every token that follows the tokens read."""
        size, width = ids_BKT.shape[1:], self.settings.width
        emission = self._emission(states_BRD, state)
        next_BR = ids_BKT.roll(-1, dims=-1).flatten(1)  # what is rolled to the end, is not used
        written_BKTS = emission.positions(next_BR).unflatten(1, size)[:, :, :-1]
        mechanism = Mechanism(self.score, state.allow_BS[:, None, None])
        scores_BRS = scores_prepared(states_BRD.unsqueeze(1), state.prepared_BSA.unsqueeze(1), mechanism).squeeze(1)
        forbidden_B1S = ~state.allow_BS.unsqueeze(1)
        scores_BKTS = scores_BRS.masked_fill(forbidden_B1S, latent.NEVER).unflatten(1, size)
        if self.jump is None:
            return Choices(emission, log_softmax(scores_BKTS), written_BKTS)
        jumps_BRJ = F.linear(states_BRD, self.jump.weight[:, :width], self.jump.bias)
        jumps_BKTSJ = jumps_BRJ.unflatten(1, size).unsqueeze(3) + state.jumps_BSJ[:, None, None]
        steps = latent.moves(scores_BKTS, jumps_BKTSJ, state.allow_BS[:, None, None]).unbind(2)
        last_BKS = self._last(state).positions(ids_BKT[:, :, 0])
        start_BKS = log_softmax(last_BKS.masked_fill(forbidden_B1S, latent.NEVER))
        start_BKS = torch.where((state.lengths_B == 0)[:, None, None], latent.first_position(start_BKS), start_BKS)
        priors = latent.filter_chain(start_BKS, steps, [torch.zeros_like(start_BKS)] * len(steps), written_BKTS.unbind(2))
        return Choices(emission, torch.stack(priors, dim=2), written_BKTS, steps)

    def _emission(self, states_BRD: Tensor, state: RnnState) -> Mixture:
        """Returns the tokens that each source position writes in the decoder states s_t."""
        width = self.settings.width
        state_BRV = log_softmax(F.linear(states_BRD, self.output.weight[:, :width], self.output.bias))
        mixture_BRS = -latent.log_overlap(state_BRV, state.source_BSV)
        if self.gate is None:
            return Mixture(state_BRV, state.source_BSV, mixture_BRS)
        gates_BRS = F.linear(states_BRD, self.gate.weight[:, :width], self.gate.bias) + state.gates_BS.unsqueeze(1)
        mixture_BRS = mixture_BRS + F.logsigmoid(-gates_BRS)
        return Mixture(state_BRV, state.source_BSV, mixture_BRS, F.logsigmoid(gates_BRS), state.tokens_BS)

    def _last(self, state: RnnState) -> Mixture:
        """Returns what the next token comes from, as the last step left it."""
        if self.gate is None:
            return Mixture(state.state_BKV, state.source_BSV, state.mixture_BKS)
        return Mixture(state.state_BKV, state.source_BSV, state.mixture_BKS, state.copied_BKS, state.tokens_BS)

    def with_look(
        self, choices: Choices, states_BRD: Tensor, state: RnnState, look: Look | None, positions_BR: Tensor | None
    ) -> Mixture:
        """Returns the distribution of every token, and what a Look requests. Edits change only what the tokens are mixed from;
        the alignments go on without them.

        positions_BR: the positions of the rows, (B or 1, R or 1); by default 0, 1, 2, …
        """
        if look is None:
            return choices.mixture
        weights_BHRS = choices.prior_BKTS.flatten(1, 2).exp().unsqueeze(1)
        query, prepared, values = (tensor.unsqueeze(1) for tensor in (states_BRD, state.prepared_BSA, state.values_BSE))
        mechanism = Mechanism(self.score, state.allow_BS[:, None, None])
        capture = Capture(query, prepared, values, mechanism, given_BHRS=weights_BHRS)
        used_BHRS, seen = look_at_given(
            capture, look, lambda: choices.posterior_BKTS().flatten(1, 2).unsqueeze(1), positions_BR
        )
        mixture = choices.mixture
        if look.edits or look.grad:
            log_weights_BRS, log_rest_BR1 = latent.log_weights(used_BHRS.squeeze(1))
            mixture = choices.emission.weighted(log_weights_BRS).with_no_key(log_rest_BR1)
        return replace(mixture, seen=seen)


def after(state: RnnState, mixture: Mixture, size: torch.Size) -> RnnState:
    """Returns a State that holds what the next token comes from. size: (K, T)."""
    state = replace(state, mixture_BKS=mixture.mixture_BTS.unflatten(1, size)[:, :, -1])
    if mixture.copied_BTS is None:
        return state
    copied_BKS, state_BKV = (x.unflatten(1, size)[:, :, -1] for x in (mixture.copied_BTS, mixture.state_BTV))
    return replace(state, copied_BKS=copied_BKS, state_BKV=state_BKV)
