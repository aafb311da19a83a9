"""An ensemble: several models write one output together. The probability of a token is the mean of what they give it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from math import log
from typing import Any, Self, TypeVar, cast

import torch
from torch import Tensor, nn

from regard.contracts import Traits
from regard.core.source import Source
from regard.errors import UserError
from regard.look import Edit, Kind, Look, Seen, Summary, Tap, pick
from regard.models.contract import Decoded, Memory, Model, Seq2Seq, State, Step

# B sentences  K hypotheses  T target positions  S source positions  H heads  V vocabulary

Request = TypeVar("Request", Tap, Edit)


@dataclass(frozen=True, eq=False)
class EnsembleMemory(Memory):
    """The memories of all members. Its own fields are those of the first; `seen` holds the attention of all."""

    members: tuple[Memory, ...] = ()


@dataclass
class EnsembleState:
    """The States of all members."""

    members: tuple[State, ...]

    def __post_init__(self) -> None:
        self.lengths_B = self.members[0].lengths_B

    @property
    def nbytes(self) -> int:
        """The size of all tensors in bytes."""
        return sum(member.nbytes for member in self.members)

    def spend(self) -> None:
        """Marks the States of all members as used."""
        for member in self.members:
            member.spend()

    def select(self, parents_BK: Tensor) -> Self:
        """Returns the surviving hypotheses."""
        return self._each(lambda member: member.select(parents_BK))

    def keep(self, rows_N: Tensor) -> Self:
        """Returns these sentences only, in this order."""
        return self._each(lambda member: member.keep(rows_N))

    def join(self, *others: Self) -> Self:
        """Returns the sentences of all States, those of this one first."""
        rest = zip(*(other.members for other in others), strict=True) if others else ((),) * len(self.members)
        return replace(self, members=tuple(member.join(*same) for member, same in zip(self.members, rest, strict=True)))

    def put(self, rows_N: Tensor, new: Self) -> Self:
        """Returns these sentences with those in some rows replaced by the sentences of another State."""
        pairs = zip(self.members, new.members, strict=True)
        return replace(self, members=tuple(member.put(rows_N, other) for member, other in pairs))

    def copy(self) -> Self:
        """Returns an independent State that can be continued separately."""
        return self._each(lambda member: member.copy())

    def _each(self, change: Callable[[State], State]) -> Self:
        return replace(self, members=tuple(map(change, self.members)))


@dataclass(frozen=True, eq=False, kw_only=True)
class EnsembleDecoded(Decoded):
    """The outputs of all members for whole target sequences."""

    members: tuple[Decoded, ...]

    def distribution(self) -> Tensor:
        return log_mean([member.distribution() for member in self.members])

    def log_probs(self, targets_BT: Tensor) -> Tensor:
        return log_mean([member.log_probs(targets_BT) for member in self.members])


class Ensemble(nn.Module, Seq2Seq):
    """Several models as one. They must have the same vocabularies; their architectures may differ.

    In its attention, a layer has the heads of all members, those of the first member first. So the mean over the heads is the
    mean over the members, and each head can be seen and switched off by itself. Kinds of attention in which the members have
    different numbers of layers are not available.
    """

    def __init__(self, members: Sequence[Model]) -> None:
        """Raises UserError if the members cannot write one output together."""
        super().__init__()
        self.members = nn.ModuleList(members)
        self.traits = joint_traits([member.traits for member in members])

    @property
    def models(self) -> list[Model]:
        """The members."""
        return cast(list[Model], list(self.members))

    def encode(self, source: Source, look: Look | None = None) -> EnsembleMemory:
        memories = tuple(model.encode(source, own) for model, own in zip(self.models, self._looks(look), strict=True))
        first = {field.name: getattr(memories[0], field.name) for field in fields(Memory)}
        return EnsembleMemory(**{**first, "seen": self._joined(look, memories)}, members=memories)

    def start(self, memory: Memory, prefix_BP: Tensor | None = None) -> State:
        memories = cast(EnsembleMemory, memory).members
        return EnsembleState(tuple(model.start(own, prefix_BP) for model, own in zip(self.models, memories, strict=True)))

    def step(self, ids_BK: Tensor, state: State, look: Look | None = None) -> Step:
        own = zip(self.models, cast(EnsembleState, state).members, self._looks(look), strict=True)
        steps = [model.step(ids_BK, own_state, own_look) for model, own_state, own_look in own]
        logits_BKV = log_mean([step.logits_BKV.log_softmax(-1) for step in steps])
        return Step(logits_BKV, EnsembleState(tuple(step.state for step in steps)), self._joined(look, steps))

    def decode(self, ids_BT: Tensor, memory: Memory, look: Look | None = None) -> EnsembleDecoded:
        own = zip(self.models, cast(EnsembleMemory, memory).members, self._looks(look), strict=True)
        decoded = tuple(model.decode(ids_BT, own_memory, own_look) for model, own_memory, own_look in own)
        return EnsembleDecoded(members=decoded, seen=self._joined(look, decoded))

    # --- taps and edits: from the heads of the ensemble to those of its members, and back

    def _looks(self, look: Look | None) -> list[Look | None]:
        """Returns the taps and edits of each member."""
        if look is None:
            return [None] * len(self.members)
        taps = [self._for_members(tap) for tap in self._taps(look)]
        edits = [self._for_members(edit) for edit in look.edits]
        return [
            replace(
                look,
                taps=tuple(own[number] for own in taps if number in own),
                edits=tuple(own[number] for own in edits if number in own),
            )
            for number in range(len(self.members))
        ]

    def _taps(self, look: Look) -> tuple[Tap, ...]:
        """Returns the different taps of kinds that the members share, with heads counted from 0."""
        shared = self.traits.attention
        taps = [tap for tap in look.taps if tap.kind in shared]
        if look.grad:  # weights with a gradient have all heads
            taps = [replace(tap, head=None) if tap.what == "weights" else tap for tap in taps]
        return tuple(dict.fromkeys(replace(tap, head=self._head(tap)) for tap in taps))

    def _head(self, request: Tap | Edit) -> int | None:
        """Returns the head that a tap or an edit concerns, counted from 0; None for all. Raises UserError if there is none."""
        if request.head is None:
            return None
        return pick("head", (request.head,), self.traits.attention[_kinds(request)[0]][1])[0]

    def _for_members(self, request: Request) -> dict[int, Request]:
        """Returns the same tap or edit for each member that it concerns, by the number of the member."""
        shared = [kind for kind in _kinds(request) if kind in self.traits.attention]
        if not shared:
            raise UserError(f"this ensemble has no {request.kind} attention that all its models share, so it cannot be edited")
        head, first, own = self._head(request), 0, dict[int, Request]()
        for number, model in enumerate(self.models):
            num_heads = model.traits.attention[shared[0]][1]
            if head is None:
                own[number] = request
            elif first <= head < first + num_heads:
                own[number] = replace(request, head=head - first)
            first += num_heads
        return own

    def _joined(self, look: Look | None, parts: Sequence[Memory | Step | Decoded]) -> tuple[Seen[Tensor], ...]:
        """Joins what the members captured: for each layer and each tap, the heads of all members."""
        if look is None:
            return ()
        captured = [iter(part.seen) for part in parts]
        layers = dict.fromkeys((seen.kind, seen.layer) for part in parts for seen in part.seen)
        joined = []
        for kind, layer in layers:
            of_layer = replace(look, taps=self._taps(look), edits=()).at(kind, layer, self.traits.attention[kind][0])
            for tap in of_layer.taps if of_layer else ():
                joined.append(_join_heads([next(captured[number]) for number in self._for_members(tap)], tap.head))
        return tuple(joined)


def _kinds(request: Tap | Edit) -> tuple[Kind, ...]:
    """Returns the kinds of attention that a tap or an edit concerns."""
    return request.kinds if isinstance(request, Edit) else (request.kind,)


def _join_heads(parts: Sequence[Seen[Tensor]], head: int | None) -> Seen[Tensor]:
    """Joins what several members captured in one layer. head: the number of the only head, if it is one."""
    sizes = {part.weights_BHTS.shape[-1] for part in parts}
    if len(sizes) > 1:
        raise UserError(
            "the models of this ensemble divide the source into different positions; look at each of them by itself"
        )
    weights_BHTS = torch.cat([part.weights_BHTS for part in parts], dim=1)
    heads = tuple(range(weights_BHTS.shape[1])) if head is None else (head,)
    summaries = [part.summary for part in parts if part.summary is not None]
    return replace(parts[0], heads=heads, weights_BHTS=weights_BHTS, summary=_join_summaries(summaries) if summaries else None)


def _join_summaries(summaries: Sequence[Summary[Tensor]]) -> Summary[Tensor]:
    values: dict[str, Any] = {}
    for field in fields(Summary):
        column = [getattr(summary, field.name) for summary in summaries]
        values[field.name] = None if column[0] is None else torch.cat(column, dim=1)
    return Summary(**values)


def log_mean(log_probs: Sequence[Tensor]) -> Tensor:
    """Returns the logarithm of the mean of probabilities that are given as logarithms."""
    return torch.stack(list(log_probs)).logsumexp(0) - log(len(log_probs))


def joint_traits(members: Sequence[Traits]) -> Traits:
    """Returns the traits of an ensemble. Raises UserError if the members cannot write one output together."""
    if not members:
        raise UserError("an ensemble has at least one model, got none")
    first = members[0]
    for number, other in enumerate(members[1:], start=2):
        if other.continues_text != first.continues_text:
            raise UserError(f"model {number} and model 1 cannot work together: only one of them is a language model")
        if (other.frontend == "tokens") != (first.frontend == "tokens"):
            raise UserError(
                f"model {number} and model 1 cannot work together: one reads {other.frontend}, the other {first.frontend}"
            )
    layers = {kind: {member.attention.get(kind, (0, 0))[0] for member in members} for kind in first.attention}
    attention = {
        kind: (first.attention[kind][0], sum(member.attention[kind][1] for member in members))
        for kind, numbers in layers.items()
        if len(numbers) == 1
    }
    limits = [member.max_positions for member in members if member.max_positions is not None]
    return replace(
        first,
        max_positions=min(limits, default=None),
        attention=attention,
        soft_cross_attention=all(member.soft_cross_attention for member in members),
        sampled_attention=any(member.sampled_attention for member in members),
        score=first.score if len({member.score for member in members}) == 1 else None,
        shares_vocabulary=any(member.shares_vocabulary for member in members),
    )
