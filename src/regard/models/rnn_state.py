"""What a recurrent decoder carries from one step to the next."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from regard.models.state import BatchState, per_hypothesis, per_sentence

# B sentences  K hypotheses  S source positions  L layers  E memory width  D decoder width  A score width  I embedding
# X width of a state (D; for an LSTM 2D)  V vocabulary  J jumps  F features


@dataclass(kw_only=True)
class RnnState(BatchState):
    """The state of a recurrent decoder. Fields that a decoder does not use have size 0.

    prepared_BSA, values_BSE, allow_BS: prepared keys, values and mask of the source. fixed_BE: C, if it is part of every input.
    hidden_BKLX: recurrent states. fed_BKD: the attentional state s̃ of the last step, for input feeding.
    Exact hard attention: source_BSV: log-probabilities of the tokens by each source position alone. jumps_BSJ: the part of
    the source in the scores of jumps. mixture_BKS: the mixture (see core/latent.py) that the next token comes from.
    Copying: tokens_BS: the token x_j at each position. gates_BS: the part of the source in the log-odds of g_tj.
    copied_BKS, state_BKV: as in `Mixture`, for the next token. features_BFI: the vectors of the features, 0 for padding.
    """

    prepared_BSA: Tensor = per_sentence(source=1)
    values_BSE: Tensor = per_sentence(source=1)
    allow_BS: Tensor = per_sentence(source=1)
    fixed_BE: Tensor = per_sentence()
    hidden_BKLX: Tensor = per_hypothesis()
    fed_BKD: Tensor = per_hypothesis()
    source_BSV: Tensor = per_sentence(source=1)
    jumps_BSJ: Tensor = per_sentence(source=1)
    mixture_BKS: Tensor = per_hypothesis(source=2)
    tokens_BS: Tensor = per_sentence(source=1)
    gates_BS: Tensor = per_sentence(source=1)
    copied_BKS: Tensor = per_hypothesis(source=2)
    state_BKV: Tensor = per_hypothesis()
    features_BFI: Tensor = per_sentence(grows=1)
