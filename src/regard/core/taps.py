"""Attention under a Look: the same output, and what somebody wants to see of it.

B batch  H heads  G heads of keys and values  R rows: the places of a sequence, or the hypotheses of a step  S keys
d, v width of a head's keys, of its values  D width of the output
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.contracts import Edit, Look, Seen, Summary, Tap, pick
from regard.core.attention import AttentionOutput, attend_prepared, same_heads, scores_prepared, weights_prepared
from regard.core.mechanism import Mechanism, pick_axis
from regard.core.summary import block_size, summarise_prepared, summarise_weights
from regard.core.weights import HARD

TOP = 8
"""How many links of each query a summary keeps, if there are as many keys."""


def attend_with_look(
    query_BHRd: Tensor,
    prepared: Tensor,
    value: Tensor,
    mechanism: Mechanism,
    look: Look | None,
    output_HvD: Tensor | None = None,
) -> AttentionOutput:
    """`mix`, and what a Look asks for; `seen` follows the order of its taps.

    `look` is already narrowed to this place (`Look.at`). Read-only taps leave the output to the very same kernel, and they
    consume no random numbers: they draw from a twin of the generator. output_HvD: what each head's mixture is multiplied by
    on its way out; norms are measured behind it.
    """
    if look is None:
        return attend_prepared(query_BHRd, prepared, value, mechanism)
    capture = Capture(query_BHRd, prepared, value, mechanism, output_HvD)
    if not (look.edits or look.grad):
        seen = tuple(map(capture.read, look.taps))
        return replace(attend_prepared(query_BHRd, prepared, value, mechanism), seen=seen)
    weights = weights_prepared(query_BHRd, prepared, _twin(mechanism))
    for edit in look.edits:
        weights = _edited(weights, edit, mechanism.without_unknown(prepared).allow)
    used = weights if look.grad else weights.detach()
    seen = tuple(
        capture.seen(tap, capture.picked(used, tap)) if tap.what == "weights" else capture.read(tap) for tap in look.taps
    )
    value = same_heads(value, query_BHRd)
    if mechanism.attention in HARD:
        return replace(attend_prepared(query_BHRd, prepared, value, mechanism), context=weights @ value, seen=seen)
    return AttentionOutput(mechanism.dropped(weights, mechanism.draw_seed()) @ value, seen=seen)


@dataclass(frozen=True)
class Capture:
    """All that goes into one attention."""

    query_BHRd: Tensor
    prepared: Tensor
    value: Tensor
    mechanism: Mechanism
    output_HvD: Tensor | None = None

    @torch.no_grad()
    def read(self, tap: Tap) -> Seen:
        """What one tap asks for, computed for its heads and rows alone."""
        part = self.part(tap)
        if tap.what == "scores":
            return self.seen(tap, scores_prepared(part.query_BHRd, part.prepared, part.mechanism))
        drawn = self.mechanism.attention in HARD and self.mechanism.generator is not None  # all rows of a draw belong together
        if tap.what == "summary":
            rows = pick("row", tap.rows, self.query_BHRd.shape[2])
            within = tap.kind != "cross" and self.query_BHRd.shape[2] == self.prepared.shape[-2]
            top, positions = min(TOP, self.prepared.shape[-2]), rows if within else None
            if drawn:
                found = summarise_weights(self.drawn_BHRS(tap), top=top, positions=positions)
            else:
                found = summarise_prepared(
                    part.query_BHRd, part.prepared, part.mechanism, top=top, blocks=True, positions=positions
                )
            return self.seen(tap, found.top_weights, found)
        weights_BHRS = self.drawn_BHRS(tap) if drawn else weights_prepared(part.query_BHRd, part.prepared, part.mechanism)
        if tap.what == "norms":  # ‖α v W‖ = |α| ‖v W‖
            weights_BHRS = weights_BHRS.abs() * part.lengths_BHS().unsqueeze(-2)
        return self.seen(tap, weights_BHRS)

    def drawn_BHRS(self, tap: Tap) -> Tensor:
        return self.picked(weights_prepared(self.query_BHRd, self.prepared, _twin(self.mechanism)), tap)

    def part(self, tap: Tap) -> Capture:
        """Only the heads and rows of a tap."""
        heads, rows = self._numbers(tap)
        groups = self.query_BHRd.shape[1] // self.prepared.shape[1]
        serving = None if heads is None else [head // groups for head in heads]
        return Capture(
            pick_axis(pick_axis(self.query_BHRd, -3, heads), -2, rows),
            pick_axis(self.prepared, -3, serving),
            pick_axis(self.value, -3, serving),
            _twin(self.mechanism).picked(heads, rows),
            self.output_HvD if self.output_HvD is None else pick_axis(self.output_HvD, -3, heads),
        )

    def lengths_BHS(self) -> Tensor:
        """‖v_j W‖ of every key, head by head: the products of all heads would be H times as large as the values."""
        value_BHSv = same_heads(self.value, self.query_BHRd)
        if self.output_HvD is None:
            return _length(value_BHSv)
        each = zip(value_BHSv.unbind(1), self.output_HvD.unbind(0), strict=True)
        return torch.stack([_length(v_BSv @ W_vD) for v_BSv, W_vD in each], dim=1)

    def picked(self, weights_BHRS: Tensor, tap: Tap) -> Tensor:
        heads, rows = self._numbers(tap)
        return pick_axis(pick_axis(weights_BHRS, -3, heads), -2, rows)

    def seen(self, tap: Tap, weights_BHRS: Tensor, summary: Summary | None = None) -> Seen:
        heads = pick("head", None if tap.head is None else (tap.head,), self.query_BHRd.shape[1])
        rows = pick("row", tap.rows, self.query_BHRd.shape[2])
        return Seen(tap.kind, tap.layer or 0, heads, rows, weights_BHRS, tap.what, summary)

    def _numbers(self, tap: Tap) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
        """The heads and the rows of a tap; None for all."""
        num_heads, num_rows = self.query_BHRd.shape[1:3]
        heads = None if tap.head is None else pick("head", (tap.head,), num_heads)
        return heads, None if tap.rows is None else pick("row", tap.rows, num_rows)


def _length(x: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return length


def _twin(mechanism: Mechanism) -> Mechanism:
    return replace(mechanism, generator=mechanism.generator and mechanism.generator.clone_state())


def _edited(weights_BHTS: Tensor, edit: Edit, allow: Tensor | None) -> Tensor:
    forced = torch.zeros_like(weights_BHTS)
    if edit.key is not None and edit.key < forced.shape[-1]:
        forced[..., edit.key] = 1.0
    if allow is not None:
        forced = forced.masked_fill(~allow, 0.0)
    if edit.head is None:
        return forced
    (head,) = pick("head", (edit.head,), weights_BHTS.shape[1])
    edited = weights_BHTS.clone()
    edited[:, head] = forced[:, head]
    return edited


# --- queries that come one at a time -----------------------------------------------------------------------------------------


def join_steps(look: Look | None, steps: Sequence[tuple[Seen, ...]]) -> tuple[Seen, ...]:
    """What was seen in steps of one row each, under `look.at_row(step, …)`, as if the rows had come together."""
    if look is None:
        return ()
    found = []
    for number, seen in enumerate(steps):
        here = look.at_row(number, len(steps))
        found.append(dict(zip(here.taps if here else (), seen, strict=True)))
    return tuple(_stacked(tap, found) for tap in look.taps)


def _stacked(tap: Tap, found: Sequence[dict[Tap, Seen]]) -> Seen:
    rows = pick("row", tap.rows, len(found))
    parts = [found[row][replace(tap, rows=None)] for row in rows]
    summaries = [part.summary for part in parts if part.summary is not None]
    summary = None
    if summaries:
        blocks = torch.cat([one.blocks for one in summaries if one.blocks is not None], dim=-2)
        grouped = blocks.split(block_size(len(rows)), dim=-2)
        summary = Summary(
            torch.cat([one.top_weights for one in summaries], dim=-2),
            torch.cat([one.top_keys for one in summaries], dim=-2),
            torch.cat([one.entropy for one in summaries], dim=-1),
            torch.stack([one.mass for one in summaries]).sum(0),
            torch.cat([group.mean(-2, keepdim=True) for group in grouped], dim=-2),
        )
    return replace(parts[0], rows=rows, weights_BHTS=torch.cat([one.weights_BHTS for one in parts], dim=-2), summary=summary)


def split_hypotheses(look: Look | None, seen: Sequence[Seen], num_hypotheses: int) -> tuple[Seen, ...]:
    """What was seen under `look.at_any_row()` with queries (B·K, H, 1, d): axis R becomes the K hypotheses."""
    if look is None:
        return ()
    found = dict(zip(look.at_any_row().taps, seen, strict=True))

    def split(tap: Tap) -> Seen:
        one, rows = found[replace(tap, rows=None)], pick("row", tap.rows, num_hypotheses)

        def turn(tensor: Tensor) -> Tensor:
            """(B·K, H, …) -> (B, H, K, …)."""
            by_hypothesis: Tensor = tensor.unflatten(0, (-1, num_hypotheses))
            return pick_axis(by_hypothesis, 1 - by_hypothesis.dim(), tap.rows and rows).transpose(1, 2)

        summary = one.summary and Summary(
            turn(one.summary.top_weights.squeeze(-2)),
            turn(one.summary.top_keys.squeeze(-2)),
            turn(one.summary.entropy.squeeze(-1)),
            turn(one.summary.mass).sum(2),
            None if one.summary.blocks is None else turn(one.summary.blocks.squeeze(-2)),
        )
        return replace(one, rows=rows, weights_BHTS=turn(one.weights_BHTS.squeeze(-2)), summary=summary)

    return tuple(map(split, look.taps))
