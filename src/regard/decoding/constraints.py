"""Constraints on outputs: functions that set the scores of forbidden continuations to −∞.

All of them modify `scores_BKV` in place. `ids_BKT` holds the tokens that each hypothesis has written so far, the newest one
last; shorter outputs are padded on the left with <pad>, which is never written.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.contracts import Specials
from regard.options import SearchOptions

# B sentences  K hypotheses  V vocabulary  T tokens written  W windows of n tokens

NEVER = float("-inf")


def constrain(
    log_probs_BKV: Tensor, ids_BKT: Tensor, lengths: Sequence[int], options: SearchOptions, specials: Specials
) -> Tensor:
    """Returns the scores that the search ranks continuations by: log-probabilities with forbidden tokens at −∞ and repeated
    tokens penalised.

    lengths: the number of tokens in the hypotheses of each sentence.  specials: those of the outputs.

    Without a repetition penalty it modifies and returns `log_probs_BKV` itself; the tokens that are still allowed keep their
    log-probabilities.
    """
    scores_BKV = log_probs_BKV
    if options.repetition_penalty != 1.0:
        scores_BKV = penalise_repetition(log_probs_BKV.clone(), ids_BKT, options.repetition_penalty)
    if specials.never:
        scores_BKV[..., list(specials.never)] = NEVER
    if specials.never_first:
        rows = [row for row, length in enumerate(lengths) if length == len(specials.prefix)]
        for number in specials.never_first:
            scores_BKV[rows, :, number] = NEVER
    if options.min_length:
        scores_BKV[[row for row, length in enumerate(lengths) if length < options.min_length], :, specials.eos] = NEVER
    if options.no_repeat:
        forbid_repeats(scores_BKV, ids_BKT, options.no_repeat)
    for sequence in options.banned:
        forbid_sequence(scores_BKV, ids_BKT, sequence)
    return scores_BKV


def penalise_repetition(scores_BKV: Tensor, ids_BKT: Tensor, penalty: float) -> Tensor:
    """Multiplies the log-probabilities of tokens already written by the penalty (Keskar et al. 2019, 4.1, who use logits)."""
    written_BKT = scores_BKV.gather(-1, ids_BKT)
    return scores_BKV.scatter_(-1, ids_BKT, written_BKT * penalty)


def forbid_repeats(scores_BKV: Tensor, ids_BKT: Tensor, size: int) -> Tensor:
    """Prevents repeated n-grams of `size` tokens: forbids every token that followed an earlier occurrence of the last
    size − 1 tokens."""
    length = ids_BKT.shape[-1]
    if length < size:
        return scores_BKV
    windows_BKWn = ids_BKT.unfold(-1, size, 1)
    last_BKn = ids_BKT[..., length - size + 1 :]
    again_BKW = (windows_BKWn[..., :-1] == last_BKn.unsqueeze(-2)).all(-1)
    limits_BKW = torch.where(again_BKW, NEVER, -NEVER).to(scores_BKV.dtype)
    return scores_BKV.scatter_reduce_(-1, windows_BKWn[..., -1], limits_BKW, "amin")


def forbid_sequence(scores_BKV: Tensor, ids_BKT: Tensor, sequence: tuple[int, ...]) -> Tensor:
    """Forbids the last token of the sequence wherever a hypothesis has just written all the tokens before it."""
    *before, last = sequence
    if len(before) > ids_BKT.shape[-1]:
        return scores_BKV
    written_BKn = ids_BKT[..., ids_BKT.shape[-1] - len(before) :]
    complete_BK = (written_BKn == torch.tensor(before, dtype=torch.long, device=ids_BKT.device)).all(-1)
    scores_BKV[..., last] = scores_BKV[..., last].masked_fill(complete_BK, NEVER)
    return scores_BKV
