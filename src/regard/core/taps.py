"""Attention with a Look: the same output, and the weights, scores, norms or summaries that its taps request.

B batch  H heads  G heads of keys and values  R rows: the positions of a sequence, or the hypotheses of a step  S keys
d width of a head's keys  v width of a head's values  D width of the output
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.core import masks
from regard.core.attention import (
    AttentionOutput,
    attend_in_window,
    attend_prepared,
    same_heads,
    scores_prepared,
    under_mask,
    weights_prepared,
)
from regard.core.mechanism import Mechanism, pick_axis, select_axis
from regard.core.summary import block_size, summarise_prepared, summarise_weights
from regard.core.weights import SAMPLED
from regard.core.window import Window
from regard.look import Edit, Look, Seen, Summary, Tap, check_positions, pick

TOP = 8
"""The number of largest weights per query in a summary, if there are as many keys."""


def attend_with_look(
    query_BHRd: Tensor,
    prepared: Tensor,
    value: Tensor,
    mechanism: Mechanism,
    look: Look | None,
    output_HvD: Tensor | None = None,
    positions_BR: Tensor | None = None,
    window: Window | None = None,
) -> AttentionOutput:
    """Computes `attend_prepared`; `seen` of the result holds what the Look requests, in the order of its taps.

    look: the taps and edits of this layer (`Look.at`). With taps only, the output comes from the same kernel as without a Look,
    and the taps consume no random numbers: they use a copy of the generator.
    output_HvD: each head's part of the output projection, W_o; norms are measured after it.
    positions_BR: the positions of the queries, which edits refer to, (B or 1, R or 1); by default 0, 1, 2, …
    window: the keys that a query may attend to, in addition to the mask. It saves time and memory where there is more than one
    block of queries, except with ALiBi, with edits and gradients of the weights, and in exported graphs.
    """
    if window is not None and not _saves(window, query_BHRd, mechanism):
        mechanism, window = under_mask(mechanism, window, query_BHRd, prepared), None

    def attend() -> AttentionOutput:
        if window is None:
            return attend_prepared(query_BHRd, prepared, value, mechanism)
        return attend_in_window(query_BHRd, prepared, value, mechanism, window)

    if look is None:
        return attend()
    masked = mechanism if window is None else under_mask(mechanism, window, query_BHRd, prepared)
    capture = Capture(query_BHRd, prepared, value, masked, output_HvD)
    if not (look.edits or look.grad):
        seen = tuple(map(capture.read, look.taps))
        return replace(attend(), seen=seen)
    touched = _all_touched(look, query_BHRd, prepared.shape[-2], positions_BR)
    mechanism = _with_cuts(masked.without_unknown(prepared), prepared, touched)
    weights = weights_prepared(query_BHRd, prepared, _copy_generator(mechanism))
    for edit, rows in touched.items():
        if not edit.masked:
            weights = _edited(weights, edit, rows, mechanism.allow, weights)
    seen = _seen(capture, look, weights, weights)
    value = same_heads(value, query_BHRd)
    if mechanism.attention in SAMPLED:
        return replace(attend_prepared(query_BHRd, prepared, value, mechanism), context=weights @ value, seen=seen)
    return AttentionOutput(mechanism.dropped(weights, mechanism.draw_seed()) @ value, seen=seen)


def _saves(window: Window, query_BHRd: Tensor, mechanism: Mechanism) -> bool:
    """Returns whether a window is computed block by block. Otherwise it is a mask: if one block holds all queries, with ALiBi,
    and in exported graphs, whose length is not known."""
    num_queries = query_BHRd.shape[-2] if window.axes is None else max(window.axes)
    return num_queries > window.block and mechanism.alibi is None and not torch.compiler.is_exporting()


def look_at_given(
    capture: Capture, look: Look, posterior: Callable[[], Tensor], positions_BR: Tensor | None = None
) -> tuple[Tensor, tuple[Seen[Tensor], ...]]:
    """Returns the weights of a capture after the edits of a Look, and what its taps request.

    posterior: computes the weights (B, H, R, S) given the whole output, for the taps that ask for them. Edits change them, too.
    positions_BR: as for `attend_with_look`.
    """
    assert capture.given_BHRS is not None
    query_BHRd, prepared, weights_BHRS = capture.query_BHRd, capture.prepared, capture.given_BHRS
    posterior_BHRS = weights_BHRS
    if any(tap.what == "posterior" for tap in look.taps):
        with torch.no_grad():
            posterior_BHRS = posterior()
    touched = _all_touched(look, query_BHRd, prepared.shape[-2], positions_BR)
    allow = _with_cuts(capture.mechanism.without_unknown(prepared), prepared, touched).allow
    for edit, rows in touched.items():
        if edit.masked:
            weights_BHRS, posterior_BHRS = (_cut(each, edit, rows) for each in (weights_BHRS, posterior_BHRS))
    for edit, rows in touched.items():
        if not edit.masked:
            both = (weights_BHRS, posterior_BHRS)
            weights_BHRS, posterior_BHRS = (_edited(each, edit, rows, allow, both[0]) for each in both)
    return weights_BHRS, _seen(capture, look, weights_BHRS, posterior_BHRS)


def _seen(capture: Capture, look: Look, weights_BHRS: Tensor, posterior_BHRS: Tensor) -> tuple[Seen[Tensor], ...]:
    """Returns what the taps of a Look request, where its edits led to these weights and this posterior."""
    edited = {"weights": weights_BHRS if look.grad else weights_BHRS.detach(), "posterior": posterior_BHRS.detach()}
    return tuple(
        capture.seen(tap, capture.picked(edited[tap.what], tap)) if tap.what in edited else capture.read(tap)
        for tap in look.taps
    )


@dataclass(frozen=True)
class Capture:
    """The inputs of one call of attention, from which its taps are computed.

    given_BHRS: the weights, if the mechanism alone does not determine them (exact hard attention).
    """

    query_BHRd: Tensor
    prepared: Tensor
    value: Tensor
    mechanism: Mechanism
    output_HvD: Tensor | None = None
    given_BHRS: Tensor | None = None

    @torch.no_grad()
    def read(self, tap: Tap) -> Seen[Tensor]:
        """Computes what one tap requests, for its heads and rows only."""
        part = self.narrowed(tap)
        if tap.what == "scores":
            return self.seen(tap, scores_prepared(part.query_BHRd, part.prepared, part.mechanism))
        given_BHRS = self.given_BHRS
        if self.mechanism.attention in SAMPLED and self.mechanism.generator is not None:
            # A sample must be drawn for all heads and rows, as the output was, even if the tap requests only some of them.
            given_BHRS = weights_prepared(self.query_BHRd, self.prepared, _copy_generator(self.mechanism))
        if tap.what == "summary":
            rows = pick("row", tap.rows, self.query_BHRd.shape[2])
            one_sequence = tap.kind != "cross" and self.query_BHRd.shape[2] == self.prepared.shape[-2]
            top, positions = min(TOP, self.prepared.shape[-2]), rows if one_sequence else None
            if given_BHRS is not None:
                summary = summarise_weights(self.picked(given_BHRS, tap), top=top, positions=positions)
            else:
                summary = summarise_prepared(
                    part.query_BHRd, part.prepared, part.mechanism, top=top, blocks=True, positions=positions
                )
            return self.seen(tap, summary.top_weights, summary)
        if given_BHRS is not None:
            weights_BHRS = self.picked(given_BHRS, tap)
        else:
            weights_BHRS = weights_prepared(part.query_BHRd, part.prepared, part.mechanism)
        if tap.what == "norms":  # ‖α v W_o‖ = |α| ‖v W_o‖
            weights_BHRS = weights_BHRS.abs() * part.value_norms_BHS().unsqueeze(-2)
        return self.seen(tap, weights_BHRS)

    def narrowed(self, tap: Tap) -> Capture:
        """Returns the inputs for the heads and rows of a tap only."""
        heads, rows = self._indices(tap)
        group_size = self.query_BHRd.shape[1] // self.prepared.shape[1]
        kv_heads = None if heads is None else [head // group_size for head in heads]
        return Capture(
            select_axis(select_axis(self.query_BHRd, -3, heads), -2, rows),
            pick_axis(self.prepared, -3, kv_heads),
            pick_axis(self.value, -3, kv_heads),
            _copy_generator(self.mechanism).picked(heads, rows),
            self.output_HvD if self.output_HvD is None else pick_axis(self.output_HvD, -3, heads),
        )

    def value_norms_BHS(self) -> Tensor:
        """Computes ‖v_j W_o‖ of every key, head by head: the products of all heads would be H times as large as the values."""
        value_BHSv = same_heads(self.value, self.query_BHRd)
        if self.output_HvD is None:
            return _norm(value_BHSv)
        value_BHSv = value_BHSv.expand(-1, len(self.output_HvD), -1, -1)  # one head may serve all
        heads = zip(value_BHSv.unbind(1), self.output_HvD.unbind(0), strict=True)
        return torch.stack([_norm(v_BSv @ W_vD) for v_BSv, W_vD in heads], dim=1)

    def picked(self, weights_BHRS: Tensor, tap: Tap) -> Tensor:
        """Selects the heads and rows of a tap."""
        heads, rows = self._indices(tap)
        return select_axis(select_axis(weights_BHRS, -3, heads), -2, rows)

    def seen(self, tap: Tap, weights_BHRS: Tensor, summary: Summary[Tensor] | None = None) -> Seen[Tensor]:
        """Returns the result of a tap with the indices of its heads and rows."""
        heads = pick("head", None if tap.head is None else (tap.head,), self.query_BHRd.shape[1])
        rows = pick("row", tap.rows, self.query_BHRd.shape[2])
        return Seen(tap.kind, tap.layer or 0, heads, rows, weights_BHRS, tap.what, summary)

    def _indices(self, tap: Tap) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
        """Returns the heads and the rows of a tap; None means all."""
        num_heads, num_rows = self.query_BHRd.shape[1:3]
        heads = None if tap.head is None else pick("head", (tap.head,), num_heads)
        return heads, None if tap.rows is None else pick("row", tap.rows, num_rows)


def _norm(x: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return norm


def _copy_generator(mechanism: Mechanism) -> Mechanism:
    """Returns the mechanism with a copy of its generator, so that the original does not advance."""
    return replace(mechanism, generator=mechanism.generator and mechanism.generator.clone_state())


def _all_touched(look: Look, query_BHRd: Tensor, num_keys: int, positions_BR: Tensor | None) -> dict[Edit, Tensor]:
    """Returns the heads and queries that each edit changes (`_touched`). positions_BR: by default 0, 1, 2, …"""
    if positions_BR is None:
        positions_BR = torch.arange(query_BHRd.shape[2], device=query_BHRd.device)[None]
    return {edit: _touched(edit, query_BHRd, num_keys, positions_BR) for edit in look.edits}


def _touched(edit: Edit, query_BHRd: Tensor, num_keys: int, positions_BR: Tensor) -> Tensor:
    """Returns (B or 1, H, R or 1, 1): True for the heads and queries that an edit changes.

    Raises UserError if there is no such head or source position. Padding is for the caller to check.
    """
    num_heads, num_rows = query_BHRd.shape[1:3]
    check_positions((edit,), num_rows if edit.kind == "fusion" else num_keys, num_keys)
    heads_H11, queries_B1R1 = torch.arange(num_heads, device=query_BHRd.device)[:, None, None], positions_BR[:, None, :, None]
    touched: Tensor = heads_H11.ge(0) & queries_B1R1.ge(0)
    if edit.head is not None:
        (head,) = pick("head", (edit.head,), num_heads)
        touched = touched & heads_H11.eq(head)
    if edit.query is not None:
        touched = touched & queries_B1R1.eq(edit.query)
    return touched


def _at_key(key: int | Tensor, num_keys: int, device: torch.device) -> Tensor:
    """Returns (S,), or (…, S) for keys (…, 1): True at one key."""
    return torch.arange(num_keys, device=device) == key


def _with_cuts(mechanism: Mechanism, prepared: Tensor, touched: Mapping[Edit, Tensor]) -> Mechanism:
    """Returns the mechanism with the links masked that edits cut. touched: the heads and queries of each edit."""
    for edit, rows in touched.items():
        if edit.masked and isinstance(edit.key, int):
            links = rows & _at_key(edit.key, prepared.shape[-2], prepared.device)
            mechanism = replace(mechanism, allow=masks.without(mechanism.allow, links), causal=False)
    return mechanism


def _cut(weights_BHRS: Tensor, edit: Edit, touched: Tensor) -> Tensor:
    """Returns given weights without the key of an edit; the others sum to 1, or to 0 if they all were 0."""
    assert isinstance(edit.key, int)
    kept_BHRS = weights_BHRS.masked_fill(_at_key(edit.key, weights_BHRS.shape[-1], weights_BHRS.device), 0.0)
    least = torch.finfo(kept_BHRS.dtype).tiny
    return torch.where(touched, kept_BHRS / kept_BHRS.sum(-1, keepdim=True).clamp_min(least), weights_BHRS)


def _edited(weights_BHRS: Tensor, edit: Edit, touched: Tensor, allow: Tensor | None, ranked_BHRS: Tensor) -> Tensor:
    """Returns the weights after an edit that switches off or forces the touched queries, if they may attend to its key.

    ranked_BHRS: the weights whose largest one names the key "largest".
    """
    num_keys = weights_BHRS.shape[-1]
    if edit.key is None:
        return weights_BHRS.masked_fill(touched, 0.0)
    if edit.key == "largest":
        allowed_BHRS = ranked_BHRS if allow is None else ranked_BHRS.masked_fill(~allow, -math.inf)
        at_key = _at_key(allowed_BHRS.argmax(-1, keepdim=True), num_keys, weights_BHRS.device)
    elif edit.key >= num_keys:
        return weights_BHRS
    else:
        at_key = _at_key(edit.key, num_keys, weights_BHRS.device)
    if allow is not None:
        touched = touched & (allow & at_key).any(-1, keepdim=True)
    return torch.where(touched, at_key.to(weights_BHRS.dtype), weights_BHRS)


# --- decoding step by step ---------------------------------------------------------------------------------------------------


def join_steps(look: Look | None, steps: Sequence[tuple[Seen[Tensor], ...]]) -> tuple[Seen[Tensor], ...]:
    """Joins what was captured in steps of one row each, with `look.at_row(step, …)`, as if one call had computed all rows."""
    if look is None:
        return ()
    by_step = []
    for number, seen in enumerate(steps):
        step_look = look.at_row(number, len(steps))
        by_step.append(dict(zip(step_look.taps if step_look else (), seen, strict=True)))
    return tuple(_stacked(tap, by_step) for tap in look.taps)


def _stacked(tap: Tap, by_step: Sequence[dict[Tap, Seen[Tensor]]]) -> Seen[Tensor]:
    """Joins the results of one tap."""
    rows = pick("row", tap.rows, len(by_step))
    parts = [by_step[row][replace(tap, rows=None)] for row in rows]
    summaries = [part.summary for part in parts if part.summary is not None]
    summary = None
    if summaries:
        blocks = torch.cat([row.blocks for row in summaries if row.blocks is not None], dim=-2)
        grouped = blocks.split(block_size(len(rows)), dim=-2)
        summary = Summary(
            torch.cat([row.top_weights for row in summaries], dim=-2),
            torch.cat([row.top_keys for row in summaries], dim=-2),
            torch.cat([row.entropy for row in summaries], dim=-1),
            torch.stack([row.mass for row in summaries]).sum(0),
            torch.cat([group.mean(-2, keepdim=True) for group in grouped], dim=-2),
        )
    return replace(parts[0], rows=rows, weights_BHTS=torch.cat([part.weights_BHTS for part in parts], dim=-2), summary=summary)


def split_hypotheses(look: Look | None, seen: Sequence[Seen[Tensor]], num_hypotheses: int) -> tuple[Seen[Tensor], ...]:
    """Rearranges what was captured with `look.at_any_row()` and queries (B·K, H, 1, d): axis R becomes the K hypotheses."""
    if look is None:
        return ()
    by_tap = dict(zip(look.at_any_row().taps, seen, strict=True))

    def split(tap: Tap) -> Seen[Tensor]:
        result, rows = by_tap[replace(tap, rows=None)], pick("row", tap.rows, num_hypotheses)

        def to_rows(tensor: Tensor) -> Tensor:
            """(B·K, H, …) -> (B, H, K, …)."""
            by_hypothesis: Tensor = tensor.unflatten(0, (-1, num_hypotheses))
            return select_axis(by_hypothesis, 1, tap.rows and rows).transpose(1, 2)

        summary = result.summary and Summary(
            to_rows(result.summary.top_weights.squeeze(-2)),
            to_rows(result.summary.top_keys.squeeze(-2)),
            to_rows(result.summary.entropy.squeeze(-1)),
            to_rows(result.summary.mass).sum(2),
            None if result.summary.blocks is None else to_rows(result.summary.blocks.squeeze(-2)),
        )
        return replace(result, rows=rows, weights_BHTS=to_rows(result.weights_BHTS.squeeze(-2)), summary=summary)

    return tuple(map(split, look.taps))
