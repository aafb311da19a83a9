"""The decoder of a Transformer, with a key-value cache (KV cache) for decoding step by step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.contracts import OWN
from regard.core import masks
from regard.core.attention import AttentionOutput
from regard.core.taps import split_hypotheses
from regard.core.window import Window
from regard.layers.attention import KeysValues, MultiHeadAttention
from regard.layers.blocks import TransformerDecoderLayer, output_and_seen
from regard.layers.dropout import Dropout
from regard.layers.embed import Output
from regard.look import Look, Seen
from regard.models.contract import Memory, Projected, State, Step
from regard.models.stack import Scores, StackSettings, last_norm, make_decoder_layer, make_embedding
from regard.models.state import BatchState, per_hypothesis, per_sentence

# B sentences  K hypotheses  N = B·K  S source positions  T target positions  R rows: T or K  C slots of the cache  H heads
# D width  d width of one head

MIN_CAPACITY = 16
"""Smallest number of slots that a cache reserves."""


@dataclass(kw_only=True)
class CacheState(BatchState):
    """A key-value cache that all hypotheses of a sentence share: (B, H, C, d) per layer, with one slot per token read.

    slots_BKT: the slots of the tokens of each hypothesis. Selecting hypotheses copies these indices, not the cache.
    used_B: number of slots in use, per sentence. positions_BC: position of the token in each slot.
    longest: number of tokens of the longest sentence. filled: largest number of slots in use.
    even: whether all sentences have the same number of tokens and of slots.
    """

    longest: int
    filled: int
    even: bool = True
    source_keys: tuple[Tensor, ...] = per_sentence(source=2)
    source_values: tuple[Tensor, ...] = per_sentence(source=2)
    allow_BS: Tensor = per_sentence(source=1)
    slots_BKT: Tensor = per_hypothesis(grows=2)
    used_B: Tensor = per_sentence()
    positions_BC: Tensor = per_sentence(grows=1)
    keys: tuple[Tensor, ...] = per_sentence(grows=2)
    values: tuple[Tensor, ...] = per_sentence(grows=2)

    def keep(self, rows_N: Tensor) -> CacheState:
        return super().keep(rows_N)._trimmed()

    def put(self, rows_N: Tensor, new: CacheState) -> CacheState:
        put = super().put(rows_N, new)
        put.even = False
        return put._trimmed()

    def _trimmed(self) -> CacheState:
        """Counts again after sentences have left, and frees memory that long ones needed."""
        if not self.even:
            counts = [(int(counts.min()), int(counts.max())) for counts in (self.lengths_B, self.used_B) if len(counts)]
            (_, self.longest), (_, self.filled) = counts or [(0, 0)] * 2
            self.even = all(least == most for least, most in counts)
            self.slots_BKT = self.slots_BKT[..., : self.longest]
        capacity = max(MIN_CAPACITY, self.filled)
        if self.keys[0].shape[2] > 4 * capacity:
            self.keys, self.values = (
                tuple(cache[:, :, :capacity].clone() for cache in layers) for layers in (self.keys, self.values)
            )
            self.positions_BC = self.positions_BC[:, :capacity].clone()
        return self

    def join(self, *others: CacheState) -> CacheState:
        joined, states = super().join(*others), (self, *others)
        joined.longest, joined.filled = max(state.longest for state in states), max(state.filled for state in states)
        joined.even = all(state.even for state in states) and len({(state.longest, state.filled) for state in states}) == 1
        return joined

    def copy(self) -> CacheState:
        copied = super().copy()
        copied.keys, copied.values = (tuple(cache.clone() for cache in layers) for layers in (self.keys, self.values))
        copied.positions_BC = self.positions_BC.clone()
        return copied


class TargetDecoder(nn.Module):
    """Embedding, a stack of decoder layers, and the output layer.

    layers: number of layers. vocab: number of target tokens. scores: the user's own score functions by name.
    cross: whether the layers have cross-attention to the Memory; if not, this is a language model, whose Memory has no
    positions.
    tied: whether the output matrix is the embedding matrix. The gain of the last norm then starts at 1/√d: before training, the
    output of the layers still resembles the embedding of the input token, whose logit would start at about √d with a gain of 1.
    causal: whether whole sequences are decoded under the look-ahead mask; if not, positions attend to all tokens but padding.
    """

    def __init__(
        self,
        settings: StackSettings,
        layers: int,
        vocab: int,
        scores: Scores,
        *,
        cross: bool,
        tied: bool,
        causal: bool = True,
    ) -> None:
        super().__init__()
        self.embedding = make_embedding(settings, vocab)
        self.layers = nn.ModuleList(make_decoder_layer(settings, scores, cross=cross) for _ in range(layers))
        self.norm = last_norm(settings)
        self.output = Output(settings.width, vocab, tied=self.embedding.width if tied else None)
        self.dropout = Dropout(settings.dropout)
        self.window, self.causal = settings.near, causal
        if tied and settings.norm != "none":
            last = self.norm if settings.norm_order == "pre" else self._layers()[-1].around_feed_forward.norm
            nn.init.constant_(cast(Tensor, last.weight), settings.width**-0.5)

    def start(self, memory: Memory, prefix_BP: Tensor | None = None, pad: int = OWN.pad) -> CacheState:
        if prefix_BP is None:
            prefix = [layer.attention.keys_values(memory.summary_BE[:, None][:, :0]) for layer in self._layers()]
        else:
            _, whole = self._decode(prefix_BP, memory, None, pad, keep=True)
            prefix = whole.kept
        num_read, device = prefix[0][0].shape[2], memory.allow_BS.device
        source = self._source(memory)
        counts_B = torch.full((len(memory.allow_BS),), num_read, dtype=torch.long, device=device)
        slots_BT = torch.arange(num_read, device=device).repeat(len(counts_B), 1)
        return CacheState(
            lengths_B=counts_B,
            longest=num_read,
            filled=num_read,
            source_keys=tuple(keys for keys, _ in source),
            source_values=tuple(values for _, values in source),
            allow_BS=memory.allow_BS,
            slots_BKT=slots_BT.unsqueeze(1),
            used_B=counts_B,
            positions_BC=slots_BT,
            keys=tuple(keys for keys, _ in prefix),
            values=tuple(values for _, values in prefix),
        )

    def step(self, ids_BK: Tensor, state: State, look: Look | None = None) -> Step:
        state = cast(CacheState, state)
        state.check_ids(ids_BK)
        state.spend()
        cache = CachedSelfAttention(state, self.window)
        x_BKD = self.dropout(self.embedding(ids_BK, state.lengths_B[:, None]))
        source = list(zip(state.source_keys, state.source_values, strict=True))
        positions = None if look is None else (state.lengths_B[:, None], masks.positions(state.allow_BS))
        x_BKD, seen = self._stack(x_BKD, cache, source, state.allow_BS, look, positions)
        return Step(self.output(x_BKD, self.embedding.tokens.weight), cache.next_state(), seen)

    def decode(self, ids_BT: Tensor, memory: Memory, look: Look | None = None, pad: int = OWN.pad) -> Projected:
        """Reads whole sequences. pad: the id of padding, which only a decoder without a look-ahead mask has to know."""
        decoded, _ = self._decode(ids_BT, memory, look, pad)
        return decoded

    def _decode(
        self, ids_BT: Tensor, memory: Memory, look: Look | None, pad: int, *, keep: bool = False
    ) -> tuple[Projected, WholeSelfAttention]:
        """Returns the output and the self-attention that computed it. keep: whether the latter keeps its keys and values."""
        num_positions, device = ids_BT.shape[1], ids_BT.device
        window = None if self.window is None else Window(self.window, causal=self.causal)
        allow = None if self.causal else masks.not_padding(ids_BT, pad)[:, None, None]
        if self.causal and window is None:
            allow = masks.causal(num_positions, device=device)
        whole = WholeSelfAttention(allow, window, causal=self.causal and window is None, keep=keep)
        x_BTD = self.dropout(self.embedding(ids_BT, torch.arange(num_positions, device=device)))
        x_BTD, seen = self._stack(x_BTD, whole, self._source(memory), memory.allow_BS, look)
        return Projected(*self.output.parts(x_BTD, self.embedding.tokens.weight), seen=seen), whole

    def _source(self, memory: Memory) -> list[KeysValues]:
        """Returns the keys and values of the memory for each layer, computed once per sentence; none in a language model."""
        crosses = [layer.cross for layer in self._layers() if layer.cross is not None]
        positions_BS = masks.positions(memory.allow_BS) if any(cross.score.by_position for cross in crosses) else None
        return [cross.keys_values(memory.values_BSE, positions_BS) for cross in crosses]

    def _layers(self) -> list[TransformerDecoderLayer]:
        return list(cast("Iterable[TransformerDecoderLayer]", self.layers))

    def _stack(
        self,
        x_BRD: Tensor,
        self_attend: WholeSelfAttention | CachedSelfAttention,
        source: list[KeysValues],
        allow_BS: Tensor,
        look: Look | None,
        positions: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, tuple[Seen[Tensor], ...]]:
        """Applies all layers to R rows: the positions of a sequence, or the hypotheses of a step.

        positions: those of the rows and of the source, if the rows are not positions 0, 1, 2, …
        """
        seen: tuple[Seen[Tensor], ...] = ()
        for number, layer in enumerate(self._layers()):
            self_look = look.at("decoder", number, len(self.layers)) if look else None
            cross_look = look.at("cross", number, len(self.layers)) if look else None
            output = layer(
                x_BRD,
                source[number] if source else None,
                memory_allow=allow_BS[:, None, None],
                positions=positions,
                self_attend=partial(self_attend, number, self_look),
                look=look and (cross_look or Look()),
            )
            x_BRD, layer_seen = output_and_seen(output)
            seen += layer_seen
        return self.norm(x_BRD), seen


class WholeSelfAttention:
    """Self-attention over a whole sequence at once.

    allow: the mask. window: the keys near each query, to which it may attend if the mask allows it too.
    causal: whether the mask is exactly the causal mask. keep: whether to keep keys and values, as the start of a cache.
    """

    def __init__(self, allow: Tensor | None, window: Window | None = None, *, causal: bool, keep: bool = False) -> None:
        self.allow, self.window, self.causal, self.keep = allow, window, causal, keep
        self.kept: list[KeysValues] = []

    def __call__(self, number: int, look: Look | None, attention: MultiHeadAttention, x_BTD: Tensor) -> AttentionOutput:
        keys, values = attention.keys_values(x_BTD)
        if self.keep:
            self.kept.append((keys, values))
        return attention.attend(
            attention.queries(x_BTD), keys, values, self.allow, look, causal=self.causal, window=self.window
        )


class CachedSelfAttention:
    """Causal self-attention of one step through a cache: each hypothesis adds one slot and attends to its own slots.

    The hypotheses of a sentence are the rows of one query, and slots of other hypotheses are masked: reading the slots of a
    sentence once for all its hypotheses costs less than keeping a separate, ordered cache for each.
    """

    def __init__(self, state: CacheState, window: int | None) -> None:
        self.state = state
        self.keys, self.values = list(state.keys), list(state.values)
        B, K, _ = state.slots_BKT.shape
        device = state.lengths_B.device
        self.longest, self.filled = state.longest + 1, state.filled + K
        self.rows_B1 = torch.arange(B, device=device)[:, None]
        self.new_BK = state.used_B[:, None] + torch.arange(K, device=device)
        self.slots_BKT = F.pad(state.slots_BKT, (0, 1))
        self.slots_BKT[self.rows_B1, torch.arange(K, device=device), state.lengths_B[:, None]] = self.new_BK
        self.positions_BC = self._writable(state.positions_BC, 1)
        self.positions_BC[self.rows_B1, self.new_BK] = state.lengths_B[:, None].expand(B, K)
        self.allow_BT = masks.first(state.lengths_B + 1, self.longest)
        if window is not None:
            self.allow_BT = masks.both(self.allow_BT, masks.starting_at(state.lengths_B - window, self.longest))
        self.allow_BKC: Tensor | None = None
        if window is not None or not state.even or self.filled > self.longest:  # otherwise all slots are allowed
            self.allow_BKC = masks.at_positions(self.slots_BKT, self.allow_BT.unsqueeze(1), self.filled)

    def __call__(self, number: int, look: Look | None, attention: MultiHeadAttention, x_BKD: Tensor) -> AttentionOutput:
        positions_B1 = self.state.lengths_B[:, None]
        key_BHKd, value_BHKd = attention.keys_values(x_BKD, positions_B1)
        self.keys[number] = self._write(self.keys[number], key_BHKd)
        self.values[number] = self._write(self.values[number], value_BHKd)
        query_BHKd = attention.queries(x_BKD, positions_B1)
        keys_BHCd, values_BHCd = (cache[:, :, : self.filled] for cache in (self.keys[number], self.values[number]))
        if look is not None and (look.edits or look.grad):
            return self._attend_in_order(look, attention, query_BHKd, keys_BHCd, values_BHCd)
        allow = None if self.allow_BKC is None else self.allow_BKC.unsqueeze(1)
        positions = positions_B1.expand(self.new_BK.shape), self.positions_BC[:, : self.filled]
        attended = attention.attend(query_BHKd, keys_BHCd, values_BHCd, allow, None, positions)
        if look is None:
            return attended
        return replace(attended, seen=self._attend_in_order(look, attention, query_BHKd, keys_BHCd, values_BHCd).seen)

    def _attend_in_order(
        self, look: Look, attention: MultiHeadAttention, query_BHKd: Tensor, keys_BHCd: Tensor, values_BHCd: Tensor
    ) -> AttentionOutput:
        """Attends with a separate cache per hypothesis, whose keys are in order of position, as a Look requires."""
        B, K, T = self.slots_BKT.shape
        keys_NHTd, values_NHTd = (
            cache[self.rows_B1.unsqueeze(-1), :, self.slots_BKT].flatten(0, 1).transpose(1, 2)
            for cache in (keys_BHCd, values_BHCd)
        )
        query_NH1d = query_BHKd.transpose(1, 2).flatten(0, 1).unsqueeze(-2)
        allow_N11T = self.allow_BT.repeat_interleave(K, dim=0)[:, None, None]
        positions_N1 = self.state.lengths_B[:, None].repeat_interleave(K, dim=0)
        positions = positions_N1, torch.arange(T, device=positions_N1.device)
        attended = attention.attend(query_NH1d, keys_NHTd, values_NHTd, allow_N11T, look.at_any_row(), positions)
        return AttentionOutput(attended.context.view(B, K, -1), seen=split_hypotheses(look, attended.seen, K))

    def _write(self, cache_BHCd: Tensor, new_BHKd: Tensor) -> Tensor:
        """Writes one new slot per hypothesis after those in use, and returns the cache."""
        cache_BHCd = self._writable(cache_BHCd, 2)
        if self.state.even:
            cache_BHCd[:, :, self.state.filled : self.filled] = new_BHKd
        else:
            cache_BHCd[self.rows_B1, :, self.new_BK] = new_BHKd.transpose(1, 2)
        return cache_BHCd

    def _writable(self, cache: Tensor, axis: int) -> Tensor:
        """Returns a cache that may be written in place, of at least twice the size if it is full. axis: axis of the slots."""
        capacity = cache.shape[axis]
        if capacity < self.filled:
            extra = max(MIN_CAPACITY, 2 * capacity, self.filled) - capacity
            return F.pad(cache, [0, 0] * (cache.dim() - 1 - axis) + [0, extra])
        if torch.is_grad_enabled() or cache.requires_grad:
            return cache.clone()  # autograd may still need the old one
        return cache

    def next_state(self) -> CacheState:
        """Returns the State after this step."""
        return replace(
            self.state,
            spent=False,
            lengths_B=self.state.lengths_B + 1,
            longest=self.longest,
            filled=self.filled,
            slots_BKT=self.slots_BKT,
            used_B=self.state.used_B + self.new_BK.shape[1],
            positions_BC=self.positions_BC,
            keys=tuple(self.keys),
            values=tuple(self.values),
        )
