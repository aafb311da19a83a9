"""Exact hard attention: each token y_t is written from one source position a_t, and the sum over all choices replaces sampling.

    p(y | x) = Σ_a Π_t p(a_t | a_{t−1}, y_<t, x) p(y_t | a_t, y_<t, x)

    marginal  a_t does not depend on a_{t−1}: p(a_t) is the softmax of the scores (Wu, Shapiro & Cotterell 2018)
    monotone  a_t ≥ a_{t−1}: a first-order Markov chain, summed by the forward algorithm (Wu & Cotterell 2019)

The sum is exact if the decoder's state s_t does not depend on the choices. A token is written by a product of two experts, its
state and its source position: p(v | s_t, h_j) ∝ exp(state_tv + source_jv). Sums over j or v are then matrix products, so no
tensor (B, T, S, V) exists. Where both sides share a vocabulary, a position may also write its own token x_j, with probability
g_tj (a pointer, Vinyals et al. 2015): g_tj [v = x_j] + (1 − g_tj) p(v | s_t, h_j).
All numbers are natural logarithms. Impossible is −1e9, because −∞ would give NaN gradients.

B sentences  R rows: T positions of one hypothesis, or K hypotheses in one step  S source positions  V vocabulary
J number of jumps: 0, 1, …, J − 2 positions, and J − 1 or more  … any leading dimensions
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

SummedAttention = Literal["marginal", "monotone"]
"""The types of attention that sum over all choices."""

SUMMED: tuple[SummedAttention, ...] = ("marginal", "monotone")

NEVER = -1e9
"""The logarithm of the probability of what is impossible."""


def _log(x: Tensor) -> Tensor:
    """Returns log x; numbers too small for the dtype count as the smallest normal one."""
    return x.clamp_min(torch.finfo(x.dtype).tiny).log()


def _least(x: Tensor) -> float:
    """Returns the logarithm of the smallest normal number of the dtype."""
    return math.log(torch.finfo(x.dtype).tiny)


def log_weights(weights_RS: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the logarithms of given weights, (…, S), and of what they lack of a sum of 1, (…, 1).

    >>> weights, rest = regard.latent.log_weights(torch.tensor([0.5, 0.25, 0.0]))
    >>> weights.exp(), rest.exp()
    (tensor([0.5000, 0.2500, 0.0000]), tensor([0.2500]))
    """

    def log(x: Tensor) -> Tensor:
        return torch.where(x > 0, _log(x), NEVER)

    return log(weights_RS), log(1 - weights_RS.detach().sum(-1, keepdim=True))


# --- tokens: a product of two experts ----------------------------------------------------------------------------------------


def log_overlap(state_BRV: Tensor, source_BSV: Tensor) -> Tensor:
    """Returns log Σ_v exp(state_v + source_jv), (B, R, S): the normaliser of the product of two experts.

    state_BRV, source_BSV: log-probabilities, so that the sum lies between 0 and 1.

    >>> state, source = torch.tensor([[[0.5, 0.5]]]).log(), torch.tensor([[[0.9, 0.1], [0.2, 0.8]]]).log()
    >>> regard.latent.log_overlap(state, source).exp()
    tensor([[[0.5000, 0.5000]]])
    """
    return _log(state_BRV.exp() @ source_BSV.exp().transpose(1, 2))


def source_log_probs(source_BSV: Tensor, ids_BR: Tensor) -> Tensor:
    """Returns source_jy for the token y of each row, (B, R, S).

    >>> source = torch.tensor([[[0.9, 0.1], [0.2, 0.8]]]).log()
    >>> regard.latent.source_log_probs(source, torch.tensor([[1]])).exp()
    tensor([[[0.1000, 0.8000]]])
    """
    index_BSR = ids_BR.unsqueeze(1).expand(-1, source_BSV.shape[1], -1)
    return source_BSV.gather(2, index_BSR).transpose(1, 2)


def token_log_probs(state_BRV: Tensor, source_BSV: Tensor, mixture_BRS: Tensor, ids_BR: Tensor) -> Tensor:
    """Returns log p(y) = log Σ_j p(a = j) p(y | s, h_j) for the token y of each row, (B, R).

    mixture_BRS: log p(a = j) − log_overlap.

    >>> state, source = torch.tensor([[[0.5, 0.5]]]).log(), torch.tensor([[[0.9, 0.1], [0.2, 0.8]]]).log()
    >>> mixture = torch.tensor([[[0.5, 0.5]]]).log() - regard.latent.log_overlap(state, source)
    >>> regard.latent.token_log_probs(state, source, mixture, torch.tensor([[1]])).exp()  # (0.1 + 0.8) / 2
    tensor([[0.4500]])
    """
    state_BR = state_BRV.gather(2, ids_BR.unsqueeze(-1)).squeeze(-1)
    source_BR = (mixture_BRS + source_log_probs(source_BSV, ids_BR)).logsumexp(-1)
    least_BR = mixture_BRS.detach().amax(-1) + _least(mixture_BRS)  # as in `distribution`
    return state_BR + torch.maximum(source_BR, least_BR)


def distribution(state_BRV: Tensor, source_BSV: Tensor, mixture_BRS: Tensor) -> Tensor:
    """Returns `token_log_probs` of all tokens of the vocabulary, (B, R, V), by one matrix product.

    >>> state, source = torch.tensor([[[0.5, 0.5]]]).log(), torch.tensor([[[0.9, 0.1], [0.2, 0.8]]]).log()
    >>> mixture = torch.tensor([[[0.5, 0.5]]]).log() - regard.latent.log_overlap(state, source)
    >>> regard.latent.distribution(state, source, mixture).exp()
    tensor([[[0.5500, 0.4500]]])
    """
    largest_BR1 = mixture_BRS.detach().amax(-1, keepdim=True)
    return state_BRV + largest_BR1 + _log((mixture_BRS - largest_BR1).exp() @ source_BSV.exp())


def where_copied(copied_BRS: Tensor, tokens_BS: Tensor, ids_BR: Tensor) -> Tensor:
    """Returns copied_BRS at the positions that hold the token of the row; elsewhere impossible, (B, R, S).

    copied_BRS: log p(a = j) + log g_j. tokens_BS: x_j.

    >>> copied = torch.tensor([[[0.2, 0.1, 0.3]]]).log()
    >>> regard.latent.where_copied(copied, torch.tensor([[5, 7, 5]]), torch.tensor([[5]])).exp()
    tensor([[[0.2000, 0.0000, 0.3000]]])
    """
    return copied_BRS.masked_fill(tokens_BS.unsqueeze(1) != ids_BR.unsqueeze(-1), NEVER)


def copied_log_probs(copied_BRS: Tensor, tokens_BS: Tensor, ids_BR: Tensor) -> Tensor:
    """Returns `copied_distribution` of the token of each row, (B, R).

    >>> copied = torch.tensor([[[0.2, 0.1, 0.3]]]).log()
    >>> regard.latent.copied_log_probs(copied, torch.tensor([[5, 7, 5]]), torch.tensor([[5]])).exp()
    tensor([[0.5000]])
    """
    return where_copied(copied_BRS, tokens_BS, ids_BR).logsumexp(-1).clamp_min(_least(copied_BRS))


def copied_distribution(copied_BRS: Tensor, tokens_BS: Tensor, vocabulary: int) -> Tensor:
    """Returns log Σ_j copied_j [v = x_j] for all tokens v of the vocabulary, (B, R, V).

    >>> copied = torch.tensor([[[0.2, 0.1, 0.3]]]).log()
    >>> regard.latent.copied_distribution(copied, torch.tensor([[1, 0, 1]]), vocabulary=2).exp()
    tensor([[[0.1000, 0.5000]]])
    """
    index_BRS = tokens_BS.unsqueeze(1).expand_as(copied_BRS)
    nothing_BRV = copied_BRS.new_zeros(*copied_BRS.shape[:2], vocabulary)
    return _log(nothing_BRV.scatter_add(2, index_BRS, copied_BRS.exp()))


# --- monotone alignments -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moves:
    """log p(a_t = j | a_{t−1} = i) = content_j + jump_i,min(j − i, J − 1), normalised over j ≥ i.

    Sums over all pairs (i, j) cost O(S·J), not O(S²), and no matrix (S, S) exists: jumps of J − 1 or more share one number, so
    they are cumulative sums. Make it with `moves`; the jumps are normalised there.

    >>> steps = regard.latent.moves(torch.zeros(3), torch.zeros(3, 2), torch.ones(3) > 0)  # all positions are equally likely
    >>> steps.forwards(regard.latent.first_position(torch.zeros(3))).exp()  # from the first position
    tensor([0.3333, 0.3333, 0.3333])
    """

    content_RS: Tensor
    jumps_RSJ: Tensor

    def unbind(self, dim: int) -> list[Moves]:
        """Splits the moves along one of the leading dimensions.

        >>> steps = regard.latent.moves(torch.zeros(4, 3), torch.zeros(4, 3, 2), torch.ones(4, 3) > 0)
        >>> len(steps.unbind(0))  # the moves of four steps
        4
        """
        return [Moves(*parts) for parts in zip(self.content_RS.unbind(dim), self.jumps_RSJ.unbind(dim), strict=True)]

    def forwards(self, mass_RS: Tensor) -> Tensor:
        """Returns log Σ_i exp(mass_i) p(j | i) for every j.

        >>> steps = regard.latent.moves(torch.zeros(3), torch.zeros(3, 2), torch.ones(3) > 0)
        >>> steps.forwards(torch.tensor([0.0, 1.0, 0.0]).log()).exp()  # from the second position
        tensor([0.0000, 0.5000, 0.5000])
        """
        *near, far = self._reach(mass_RS)
        return self.content_RS + torch.stack((*near, _shifted(far.logcumsumexp(-1), len(near)))).logsumexp(0)

    def backwards(self, mass_RS: Tensor) -> Tensor:
        """Returns log Σ_j p(j | i) exp(mass_j) for every i.

        >>> steps = regard.latent.moves(torch.zeros(3), torch.zeros(3, 2), torch.ones(3) > 0)
        >>> steps.backwards(torch.tensor([0.0, 0.0, 1.0]).log()).exp()  # to the third position
        tensor([0.3333, 0.5000, 1.0000])
        """
        mass_RS = self.content_RS + mass_RS
        last = self.jumps_RSJ.shape[-1] - 1
        after_RS = mass_RS.flip(-1).logcumsumexp(-1).flip(-1)
        parts = [_shifted(mass_RS, -jump) for jump in range(last)] + [_shifted(after_RS, -last)]
        return (torch.stack(parts, dim=-1) + self.jumps_RSJ).logsumexp(-1)

    def best(self, mass_RS: Tensor) -> tuple[Tensor, Tensor]:
        """Returns max_i mass_i + log p(j | i) for every j, and the i that it comes from.

        >>> steps = regard.latent.moves(torch.zeros(3), torch.zeros(3, 2), torch.ones(3) > 0)
        >>> steps.best(torch.tensor([0.3, 0.5, 0.2]).log())[1]  # the third position is reached best from the second
        tensor([0, 1, 1])
        """
        *near, far = self._reach(mass_RS)
        here_S = torch.arange(mass_RS.shape[-1], device=mass_RS.device)
        far_RS, far_from_RS = far.cummax(-1)
        reached = torch.stack((*near, _shifted(far_RS, len(near))))
        origins = torch.stack(
            (*((here_S - jump).clamp_min(0).expand_as(far) for jump in range(len(near))), _shifted(far_from_RS, len(near)))
        )
        best_RS, which_RS = reached.max(0)
        return self.content_RS + best_RS, origins.gather(0, which_RS.unsqueeze(0)).squeeze(0)

    def _reach(self, mass_RS: Tensor) -> list[Tensor]:
        """Returns mass_i + jump_i for each jump, at the position that it reaches; for the longest, at the position i itself."""
        *near, far = (mass_RS.unsqueeze(-1) + self.jumps_RSJ).unbind(-1)
        return [*(_shifted(part, jump) for jump, part in enumerate(near)), far]


def moves(content_RS: Tensor, jumps_RSJ: Tensor, allow_RS: Tensor) -> Moves:
    """Returns the moves with these scores, normalised for every origin i.

    content_RS: scores of the positions. jumps_RSJ: scores of the jumps from each position. allow_RS: False at padding.

    >>> steps = regard.latent.moves(torch.zeros(3), torch.zeros(3, 2), torch.tensor([True, True, False]))
    >>> steps.forwards(regard.latent.first_position(torch.zeros(3))).exp()
    tensor([0.5000, 0.5000, 0.0000])
    """
    unnormalised = Moves(content_RS.masked_fill(~allow_RS, NEVER), jumps_RSJ)
    total_RS = unnormalised.backwards(torch.zeros_like(content_RS)).masked_fill(~allow_RS, 0.0)
    return Moves(unnormalised.content_RS, jumps_RSJ - total_RS.unsqueeze(-1))


def first_position(like_RS: Tensor) -> Tensor:
    """Returns log p(a_0): before the first token, the alignment is at the first position.

    >>> regard.latent.first_position(torch.zeros(3)).exp()
    tensor([1., 0., 0.])
    """
    rest = torch.full_like(like_RS[..., 1:], NEVER)
    return torch.cat((torch.zeros_like(like_RS[..., :1]), rest), dim=-1)


def filter_chain(
    start_RS: Tensor, steps: Sequence[Moves], overlaps: Sequence[Tensor], tokens: Sequence[Tensor]
) -> list[Tensor]:
    """Returns log p(a_t = j | y_<t) for every step: the forward algorithm, with a normalisation after each token.

    start_RS: log p(a_0). steps: p(a_t | a_{t−1}). overlaps: `log_overlap` of every step.
    tokens: `source_log_probs` of the tokens y_1, y_2, … that are known; the one of the last step need not be.

    >>> steps = regard.latent.moves(torch.zeros(2, 3), torch.zeros(2, 3, 2), torch.ones(2, 3) > 0).unbind(0)
    >>> start, overlaps, tokens = regard.latent.first_position(torch.zeros(3)), torch.zeros(2, 3), torch.zeros(2, 3)
    >>> priors = regard.latent.filter_chain(start, steps, overlaps, tokens)  # of two tokens that fit all positions
    >>> priors[1].exp()
    tensor([0.1111, 0.2778, 0.6111])
    """
    priors: list[Tensor] = []
    for number, step in enumerate(steps):
        if number:
            start_RS = after_token(priors[-1] - overlaps[number - 1], tokens[number - 1])
        priors.append(step.forwards(start_RS))
    return priors


def after_token(mixture_RS: Tensor, token_RS: Tensor) -> Tensor:
    """Returns log p(a_t = j | y_≤t), from the mixture of step t and the `source_log_probs` of y_t.

    >>> regard.latent.after_token(torch.tensor([0.5, 0.5]).log(), torch.tensor([0.1, 0.3]).log()).exp()
    tensor([0.2500, 0.7500])
    """
    return (mixture_RS + token_RS).log_softmax(-1)


def smooth_chain(priors: Sequence[Tensor], filtered: Sequence[Tensor], steps: Sequence[Moves]) -> list[Tensor]:
    """Returns log p(a_t = j | y_1 … y_T) for every step (forward-backward).

    priors: log p(a_t | y_<t). filtered: log p(a_t | y_≤t). steps: p(a_t | a_{t−1}).

    >>> steps = regard.latent.moves(torch.zeros(2, 3), torch.zeros(2, 3, 2), torch.ones(2, 3) > 0).unbind(0)
    >>> start, overlaps, tokens = regard.latent.first_position(torch.zeros(3)), torch.zeros(2, 3), torch.zeros(2, 3)
    >>> priors = regard.latent.filter_chain(start, steps, overlaps, tokens)  # of two tokens that fit all positions
    >>> last = regard.latent.first_position(torch.zeros(3))  # the second token fits the first position only
    >>> regard.latent.smooth_chain(priors, [priors[0], last], steps)[0].exp()  # so that the first came from there, too
    tensor([1., 0., 0.])
    """
    smoothed = [filtered[-1]]
    for number in reversed(range(len(filtered) - 1)):
        ratio_RS = smoothed[-1] - priors[number + 1]
        smoothed.append((filtered[number] + steps[number + 1].backwards(ratio_RS)).log_softmax(-1))
    return smoothed[::-1]


def viterbi(start_RS: Tensor, steps: Sequence[Moves], emissions: Sequence[Tensor]) -> Tensor:
    """Returns the most probable alignment a_1 … a_T, (…, T).

    emissions: log p(y_t | s_t, h_j) of every step, (…, S); anything that does not depend on j may be left out.

    >>> steps = regard.latent.moves(torch.zeros(2, 3), torch.zeros(2, 3, 2), torch.ones(2, 3) > 0).unbind(0)
    >>> emissions = torch.tensor([[0.1, 0.8, 0.1], [0.6, 0.1, 0.3]]).log()
    >>> regard.latent.viterbi(regard.latent.first_position(torch.zeros(3)), steps, emissions)  # never to the left
    tensor([1, 2])
    """
    best_RS, pointers = start_RS, []
    for step, emission_RS in zip(steps, emissions, strict=True):
        reached_RS, origin_RS = step.best(best_RS)
        best_RS = reached_RS + emission_RS
        pointers.append(origin_RS)
    path = [best_RS.argmax(-1, keepdim=True)]
    for origin_RS in reversed(pointers[1:]):
        path.append(origin_RS.gather(-1, path[-1]))
    return torch.cat(path[::-1], dim=-1)


def _shifted(x_RS: Tensor, by: int) -> Tensor:
    """Moves all entries to the right (to the left if `by` is negative); positions that become free are impossible."""
    size = x_RS.shape[-1]
    by = max(-size, min(size, by))
    if not by:
        return x_RS
    value = NEVER if x_RS.is_floating_point() else 0
    return F.pad(x_RS[..., :-by], (by, 0), value=value) if by > 0 else F.pad(x_RS[..., -by:], (0, -by), value=value)
