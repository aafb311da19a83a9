"""Attention under a Look: the same output, and the weights that somebody wants to see."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from regard.contracts import Edit, Kind, Look, Seen
from regard.core.attention import Attended, mix, same_heads, weigh
from regard.core.rule import Rule
from regard.core.weights import HARD


def watched(query: Tensor, prepared: Tensor, value: Tensor, rule: Rule, look: Look | None) -> Attended:
    """`mix`, and the weights that a Look asks for.

    `look` is already narrowed to this place (`Look.at`). Read-only taps leave the output to the very same kernel, and they
    consume no random numbers: they draw from a twin of the generator.
    """
    if look is None:
        return mix(query, prepared, value, rule)
    twin = replace(rule, generator=rule.generator and rule.generator.clone_state())
    if not (look.edits or look.grad):
        with torch.no_grad():
            weights = weigh(query, prepared, twin)
        return replace(mix(query, prepared, value, rule), weights=weights)
    weights = weigh(query, prepared, twin)
    for edit in look.edits:
        weights = _edited(weights, edit, rule.without_unknown(prepared).allow)
    seen = weights if look.grad else weights.detach()
    if rule.choice in HARD:
        decided = mix(query, prepared, value, rule)
        return replace(decided, context=weights @ same_heads(value, query), weights=seen)
    return Attended(rule.dropped(weights, rule.draw_seed()) @ same_heads(value, query), weights=seen)


def _edited(weights_BHTS: Tensor, edit: Edit, allow: Tensor | None) -> Tensor:
    forced = torch.zeros_like(weights_BHTS)
    if edit.place is not None and edit.place < forced.shape[-1]:
        forced[..., edit.place] = 1.0
    if allow is not None:
        forced = forced.masked_fill(~allow, 0.0)
    if edit.head is None:
        return forced
    edited = weights_BHTS.clone()
    edited[:, edit.head] = forced[:, edit.head]
    return edited


def record(weights_BHTS: Tensor | None, look: Look | None, kind: Kind, layer: int) -> tuple[Seen, ...]:
    """The weights as `Seen`, one per tap, with only the heads and rows that the tap wants.

    Under `grad` everything comes as the one tensor that the output was computed from: only that one has a gradient.
    """
    if weights_BHTS is None or look is None:
        return ()
    heads, rows = (tuple(range(size)) for size in weights_BHTS.shape[1:3])
    wanted = dict.fromkeys(
        (
            heads if tap.head is None or look.grad else (heads[tap.head],),
            rows if tap.rows is None or look.grad else tuple(rows[row] for row in tap.rows),
        )
        for tap in look.taps
    )
    return tuple(Seen(kind, layer, *part, _pick(_pick(weights_BHTS, 1, part[0]), 2, part[1])) for part in wanted)


def _pick(tensor: Tensor, axis: int, numbers: tuple[int, ...]) -> Tensor:
    if numbers == tuple(range(tensor.shape[axis])):
        return tensor
    return torch.cat([tensor.narrow(axis, number, 1) for number in numbers], dim=axis)
