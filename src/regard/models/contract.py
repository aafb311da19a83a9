"""What every model keeps: the types that carry tensors between data, models, search, training and inspection.

`encode` turns a `Source` into a `Memory`; `start` turns the Memory into a `State`; each `step` consumes a State and returns a
`Step` (logits, the next State, captured attention). Training reads the whole target at once: `decode` returns `Decoded`.

Capital letters at the end of a tensor's name are its axes:

    B sentences   K hypotheses of one sentence   S source positions   T target positions   H heads
    V vocabulary  E width of the memory          D width of the decoder
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.contracts import Traits
from regard.equality import ByValue
from regard.look import Look, Seen


@dataclass(frozen=True, eq=False)
class Source(ByValue):
    """A batch of inputs, padded to the same size, with its padding mask.

    values: token ids (B, S), sound frames (B, S, features) or pictures (B, channels, height, width).
    allow: key padding mask, False at padding, which is at the end: (B, S); for pictures (B, height, width).
    auxiliary: token ids of a second source, a text that accompanies the first; its length is independent of the first.
    """

    values: Tensor
    allow: Tensor
    auxiliary: Source | None = None

    @property
    def num_sentences(self) -> int:
        """The number of sentences, B."""
        return self.values.shape[0]

    def to(self, device: torch.device | str) -> Source:
        """Returns this batch on another device."""
        auxiliary = None if self.auxiliary is None else self.auxiliary.to(device)
        return Source(self.values.to(device), self.allow.to(device), auxiliary)


@dataclass(frozen=True, eq=False)
class Memory(ByValue):
    """The output of the encoder, h_1 … h_S. It has the same form for text, pictures and sound.

    values_BSE: one vector for each source position.   allow_BS: False at padding.
    summary_BE: one vector for the whole source.       axes: (S,), or (rows, columns) where the positions form a grid.
    seen: the encoder attention that a Look requested.
    """

    values_BSE: Tensor
    allow_BS: Tensor
    summary_BE: Tensor
    axes: tuple[int, ...]
    seen: tuple[Seen[Tensor], ...] = ()


class State(Protocol):
    """Everything a decoder carries from one target position to the next, for B sentences with K hypotheses each.

    It holds recurrent states or a key-value cache (KV cache). A step *spends* its State: it may write into the cache in place,
    so using a spent State raises RuntimeError; call `copy()` first to continue from it twice.
    """

    lengths_B: Tensor
    """The number of tokens read for each sentence. Rows may differ, because sentences can join a running batch."""

    def spend(self) -> None:
        """Marks this State as used; raises RuntimeError the second time."""

    def select(self, parents_BK: Tensor) -> Self:
        """Returns the surviving hypotheses: new hypothesis k of sentence b continues old hypothesis parents[b, k]."""
        ...

    def keep(self, rows_N: Tensor) -> Self:
        """Returns these sentences only, in this order."""
        ...

    def join(self, *others: Self) -> Self:
        """Returns the sentences of all States, those of this one first."""
        ...

    def copy(self) -> Self:
        """Returns an independent State that can be continued separately."""
        ...

    @property
    def nbytes(self) -> int:
        """The size of all tensors in bytes."""
        ...


@dataclass(frozen=True)
class Step:
    """The result of one decoder step: a logit for every token of the vocabulary, the next State, and what a Look requested."""

    logits_BKV: Tensor
    state: State
    seen: tuple[Seen[Tensor], ...] = ()


@dataclass(frozen=True, eq=False)
class Decoded(ByValue):
    """The result of decoding whole target sequences (teacher forcing): logits = states · weightᵀ + bias, computed on first use.

    The logits are by far the largest tensor; core.losses.projected_loss computes the loss without them.
    attention_log_prob, attention_entropy (B, T): of the choices of hard or gated attention; None for other types.
    affects_later_steps: whether such a choice also affects later tokens, not only the token of its own step.
    """

    states_BTD: Tensor
    weight_VD: Tensor
    bias_V: Tensor
    attention_log_prob_BT: Tensor | None = None
    attention_entropy_BT: Tensor | None = None
    affects_later_steps: bool = True
    seen: tuple[Seen[Tensor], ...] = ()

    @cached_property
    def logits_BTV(self) -> Tensor:
        """states · weightᵀ + bias."""
        return F.linear(*self.projection)

    def log_probs(self, targets_BT: Tensor) -> Tensor:
        """Returns the log-probability of each target, (B, T)."""
        return self.distribution().gather(-1, targets_BT.unsqueeze(-1)).squeeze(-1)

    def distribution(self) -> Tensor:
        """Returns the log-probability of every token of the vocabulary at every step, (B, T, V)."""
        return self.logits_BTV.log_softmax(-1)

    @property
    def projection(self) -> tuple[Tensor, Tensor, Tensor]:
        """(states, weight, bias), the arguments of F.linear and core.losses.projected_loss."""
        return self.states_BTD, self.weight_VD, self.bias_V


class Seq2Seq(Protocol):
    """The interface of every model. Search, training and inspection use nothing else."""

    @property
    def traits(self) -> Traits:
        """What the model is, as far as others need to know."""
        ...

    def encode(self, source: Source, look: Look | None = None) -> Memory:
        """Runs the encoder."""
        ...

    def start(self, memory: Memory, prefix_BP: Tensor | None = None) -> State:
        """Returns the first State, with one hypothesis per sentence, after reading the prefix, if any, in one pass.

        Computes once what depends on the source only.
        """
        ...

    def step(self, ids_BK: Tensor, state: State, look: Look | None = None) -> Step:
        """Reads one token per hypothesis and returns logits for the next one.

        The K hypotheses of a sentence are K query rows, so the source is not repeated for each of them.
        """
        ...

    def decode(self, ids_BT: Tensor, memory: Memory, look: Look | None = None) -> Decoded:
        """Reads whole target sequences that start with <sos> (teacher forcing); position t depends on the tokens up to t."""
        ...
