"""The decoder half of a Transformer, with caches for decoding step by step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.contracts import Decoded, Look, Memory, Seen, State, Step
from regard.core import masks
from regard.core.attention import Attended
from regard.core.looking import split_hypotheses
from regard.layers.attention import KeysValues, MultiHeadAttention
from regard.layers.blocks import DecoderLayer
from regard.layers.dropout import Dropout
from regard.layers.embed import Output
from regard.models.stack import Scores, StackSettings, last_norm, make_decoder_layer, make_embedding
from regard.models.state import Rows, per_hypothesis, per_sentence

# B sentences  K hypotheses  N = B·K  S source places  T target places  R rows: T or K  C places in the cache  H heads
# D width  d width of one head

FIRST_ROOM = 16


@dataclass(kw_only=True)
class CacheState(Rows):
    """Caches are (B, K, H, C, d), one per layer, with room for C tokens; row b holds `lengths_B[b]` of them."""

    longest: int
    source_keys: tuple[Tensor, ...] = per_sentence(grows=2)
    source_values: tuple[Tensor, ...] = per_sentence(grows=2)
    allow_BS: Tensor = per_sentence(grows=1)
    keys: tuple[Tensor, ...] = per_hypothesis(grows=3)
    values: tuple[Tensor, ...] = per_hypothesis(grows=3)

    def keep(self, rows_N: Tensor) -> CacheState:
        kept = super().keep(rows_N)
        kept.longest = int(kept.lengths_B.max()) if len(rows_N) else 0
        room = max(FIRST_ROOM, kept.longest)
        if kept.keys[0].shape[3] > 4 * room:  # the long sentences have left: give their room back
            kept.keys, kept.values = (
                tuple(cache[..., :room, :].clone() for cache in both) for both in (kept.keys, kept.values)
            )
        return kept

    def join(self, other: CacheState) -> CacheState:
        joined = super().join(other)
        joined.longest = max(self.longest, other.longest)
        return joined


class TransformerDecoder(nn.Module):
    """With `cross`, it attends to a Memory; without, it is a language model, and the Memory has no places.

    tied: the output matrix is the embedding's. Then the gain of the last norm starts at 1/√d: what comes out of the layers
    still resembles the token that went in, and at gain 1 the logit of that token would start at about √d.
    """

    def __init__(self, settings: StackSettings, layers: int, vocab: int, scores: Scores, *, cross: bool, tied: bool) -> None:
        super().__init__()
        self.embedding = make_embedding(settings, vocab)
        self.layers = nn.ModuleList(make_decoder_layer(settings, scores, cross=cross) for _ in range(layers))
        self.norm = last_norm(settings)
        self.output = Output(settings.width, vocab, tied=self.embedding.width if tied else None)
        self.dropout = Dropout(settings.dropout)
        self.window = settings.window
        if tied:
            last = self.norm if settings.order == "pre" else self._layers()[-1].around_feed_forward.norm
            nn.init.constant_(cast(Tensor, last.weight), settings.width**-0.5)

    def start(self, memory: Memory, prefix_BP: Tensor | None = None) -> CacheState:
        if prefix_BP is None:
            own = [layer.attention.keys_values(memory.summary_BE[:, None][:, :0]) for layer in self._layers()]
        else:
            _, looking = self._read(prefix_BP, memory, None)
            own = looking.kept
        num_read = 0 if prefix_BP is None else prefix_BP.shape[1]
        source = self._source(memory)
        return CacheState(
            lengths_B=torch.full((len(memory.allow_BS),), num_read, dtype=torch.long, device=memory.allow_BS.device),
            longest=num_read,
            source_keys=tuple(keys for keys, _ in source),
            source_values=tuple(values for _, values in source),
            allow_BS=memory.allow_BS,
            keys=tuple(keys.unsqueeze(1) for keys, _ in own),
            values=tuple(values.unsqueeze(1) for _, values in own),
        )

    def step(self, ids_BK: Tensor, state: State, look: Look | None = None) -> Step:
        state = cast(CacheState, state)
        state.check_ids(ids_BK)
        state.spend()
        cache = Cached(state, self.window)
        x_BKD = self.dropout(self.embedding(ids_BK, state.lengths_B[:, None]))
        source = list(zip(state.source_keys, state.source_values, strict=True))
        x_BKD, seen = self._stack(x_BKD, cache, source, state.allow_BS, look)
        return Step(self.output(x_BKD, self.embedding.tokens.weight), cache.following(), seen)

    def decode(self, ids_BT: Tensor, memory: Memory, look: Look | None = None) -> Decoded:
        decoded, _ = self._read(ids_BT, memory, look)
        return decoded

    def _read(self, ids_BT: Tensor, memory: Memory, look: Look | None) -> tuple[Decoded, Causal]:
        num_places, device = ids_BT.shape[1], ids_BT.device
        allow_TT = masks.causal(num_places, device=device)
        if self.window is not None:
            allow_TT = masks.both(allow_TT, masks.window(num_places, width=self.window, device=device))
        looking = Causal(allow_TT)
        x_BTD = self.dropout(self.embedding(ids_BT, torch.arange(num_places, device=device)))
        x_BTD, seen = self._stack(x_BTD, looking, self._source(memory), memory.allow_BS, look)
        return Decoded(*self.output.parts(x_BTD, self.embedding.tokens.weight), seen=seen), looking

    def _source(self, memory: Memory) -> list[KeysValues]:
        """The keys and values of the memory for each layer, computed once per sentence; none in a language model."""
        crosses = [layer.cross for layer in self._layers() if layer.cross is not None]
        places_BS = masks.places(memory.allow_BS) if any(cross.score.by_place for cross in crosses) else None
        return [cross.keys_values(memory.values_BSE, places_BS) for cross in crosses]

    def _layers(self) -> list[DecoderLayer]:
        return list(cast("Iterable[DecoderLayer]", self.layers))

    def _stack(
        self,
        x_BRD: Tensor,
        look_back: Causal | Cached,
        source: list[KeysValues],
        allow_BS: Tensor,
        look: Look | None,
    ) -> tuple[Tensor, tuple[Seen, ...]]:
        """All layers for R rows: the places of a sequence, or the hypotheses of a step."""
        seen: tuple[Seen, ...] = ()
        for number, layer in enumerate(self._layers()):
            own = look.at("decoder", number, len(self.layers)) if look else None
            cross = look.at("cross", number, len(self.layers)) if look else None
            x_BRD, found = layer(
                x_BRD, partial(look_back, number, own), source[number] if source else None, allow_BS[:, None, None], cross
            )
            seen += found
        return self.norm(x_BRD), seen


class Causal:
    """Looks back over a whole sequence at once, and keeps the keys and values, from which a cache can go on."""

    def __init__(self, allow_TT: Tensor) -> None:
        self.allow_TT = allow_TT
        self.kept: list[KeysValues] = []

    def __call__(self, number: int, look: Look | None, attention: MultiHeadAttention, x_BTD: Tensor) -> Attended:
        keys, values = attention.keys_values(x_BTD)
        self.kept.append((keys, values))
        return attention.attend(attention.queries(x_BTD), keys, values, self.allow_TT, look)


class Cached:
    """Looks back through the caches of a State: each hypothesis adds one place to its own cache and attends to all of it."""

    def __init__(self, state: CacheState, window: int | None) -> None:
        self.state = state
        self.keys, self.values = list(state.keys), list(state.values)
        self.rows_B = torch.arange(len(state.lengths_B), device=state.lengths_B.device)
        self.num_places = state.longest + 1
        self.allow_BC = masks.first(state.lengths_B + 1, self.num_places)
        if window is not None:
            self.allow_BC = masks.both(self.allow_BC, masks.behind(state.lengths_B - window, self.num_places))

    def __call__(self, number: int, look: Look | None, attention: MultiHeadAttention, x_BKD: Tensor) -> Attended:
        places_B1 = self.state.lengths_B[:, None]
        key_BHKd, value_BHKd = attention.keys_values(x_BKD, places_B1)
        self.keys[number] = self._write(self.keys[number], key_BHKd)
        self.values[number] = self._write(self.values[number], value_BHKd)
        keys_NHCd = self.keys[number][..., : self.num_places, :].flatten(0, 1)
        values_NHCd = self.values[number][..., : self.num_places, :].flatten(0, 1)
        B, K, _ = x_BKD.shape
        query_NH1d = attention.queries(x_BKD, places_B1).transpose(1, 2).flatten(0, 1).unsqueeze(-2)
        allow_N11C = self.allow_BC.repeat_interleave(K, dim=0)[:, None, None]
        places = places_B1.repeat_interleave(K, dim=0), torch.arange(self.num_places, device=x_BKD.device)
        anywhere = look.at_any_row() if look else None
        attended = attention.attend(query_NH1d, keys_NHCd, values_NHCd, allow_N11C, anywhere, places)
        return Attended(attended.context.view(B, K, -1), seen=split_hypotheses(look, attended.seen, K))

    def _write(self, cache_BKHCd: Tensor, new_BHKd: Tensor) -> Tensor:
        """Puts one place per row behind those it holds; where the room is used up, twice as much is made."""
        room = cache_BKHCd.shape[3]
        if room < self.num_places:
            cache_BKHCd = F.pad(cache_BKHCd, (0, 0, 0, max(FIRST_ROOM, 2 * room, self.num_places) - room))
        elif torch.is_grad_enabled() or cache_BKHCd.requires_grad:
            cache_BKHCd = cache_BKHCd.clone()  # autograd may still need the old one
        cache_BKHCd[self.rows_B, :, :, self.state.lengths_B] = new_BHKd.transpose(1, 2)
        return cache_BKHCd

    def following(self) -> CacheState:
        return replace(
            self.state,
            spent=False,
            lengths_B=self.state.lengths_B + 1,
            longest=self.num_places,
            keys=tuple(self.keys),
            values=tuple(self.values),
        )
