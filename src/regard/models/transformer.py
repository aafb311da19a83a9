"""The Transformer (Vaswani et al. 2017), pre-norm, with any positions and a cache for decoding step by step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.contracts import Decoded, Look, Memory, Seen, Source, State, Step
from regard.core import masks
from regard.core.attention import Attended
from regard.core.looking import record
from regard.core.positions import Layout
from regard.errors import check_numbers
from regard.layers.attention import KeysValues, MultiHeadAttention
from regard.layers.blocks import DecoderLayer, EncoderLayer
from regard.layers.embed import Positions, TokenEmbedding, check_positions
from regard.layers.scores import ScoreMaker, make_score
from regard.models.state import Rows, per_hypothesis, per_sentence

# B sentences  K hypotheses  N = B·K  S source places  T target places  R rows: T or K  C places in the cache  H heads
# D width  d = D/H

FIRST_ROOM = 16


@dataclass(frozen=True, kw_only=True)
class TransformerSettings:
    kind: Literal["transformer"] = "transformer"
    width: int = 128
    heads: int = 4
    feed_forward: int = 512
    encoder_layers: int = 2
    decoder_layers: int = 2
    score: str = "scaled_dot"
    score_width: int = 32
    dropout: float = 0.1
    positions: Positions = "sinusoidal"
    join: Literal["added", "appended"] = "added"
    """How positions join the tokens. Appended ones take `position_width` of the width; the tokens have the rest."""
    position_width: int = 32
    layout: Layout = "interleaved"
    max_places: int = 256
    """How many places learned positions and the location score know."""
    beyond: Literal["error", "ignore"] = "error"
    """What the location score does with more."""
    key_dim: int | None = None
    """Width of one head; by default width / heads."""

    def __post_init__(self) -> None:
        check_numbers(self)
        check_positions(self.positions, self.width, self.appended)
        if self.key_dim is None and self.width % self.heads:
            unit = math.lcm(2, self.heads)  # sinusoids come in pairs
            better = -(-self.width // unit) * unit
            raise ValueError(f"width {self.width} does not split into {self.heads} heads; try width={better}, or give key_dim")
        if self.positions == "rotary" and self.head_width % 2:
            raise ValueError(f"rotary positions turn pairs, but a head has width {self.head_width}; make key_dim even")

    @property
    def appended(self) -> int:
        return self.position_width if self.join == "appended" else 0

    @property
    def head_width(self) -> int:
        return self.key_dim or self.width // self.heads


@dataclass(kw_only=True)
class TransformerState(Rows):
    """Caches are (B, K, H, C, d), one per layer, with room for C tokens; row b holds `lengths_B[b]` of them."""

    longest: int
    source_keys: tuple[Tensor, ...] = per_sentence(grows=2)
    source_values: tuple[Tensor, ...] = per_sentence(grows=2)
    allow_BS: Tensor = per_sentence(grows=1)
    keys: tuple[Tensor, ...] = per_hypothesis(grows=3)
    values: tuple[Tensor, ...] = per_hypothesis(grows=3)

    def keep(self, rows_N: Tensor) -> TransformerState:
        kept = super().keep(rows_N)
        kept.longest = int(kept.lengths_B.max()) if len(rows_N) else 0
        room = max(FIRST_ROOM, kept.longest)
        if kept.keys[0].shape[3] > 4 * room:  # the long sentences have left: give their room back
            kept.keys, kept.values = (
                tuple(cache[..., :room, :].clone() for cache in both) for both in (kept.keys, kept.values)
            )
        return kept

    def join(self, other: TransformerState) -> TransformerState:
        joined = super().join(other)
        joined.longest = max(self.longest, other.longest)
        return joined


class Transformer(nn.Module):
    def __init__(
        self,
        settings: TransformerSettings,
        source_vocab: int,
        target_vocab: int,
        scores: Mapping[str, ScoreMaker] | None = None,
    ) -> None:
        super().__init__()
        width, inner, dropout = settings.width, settings.feed_forward, settings.dropout
        embedding = partial(
            TokenEmbedding,
            width=width,
            positions=settings.positions,
            appended=settings.appended,
            max_places=settings.max_places,
            layout=settings.layout,
        )
        self.source_embedding, self.target_embedding = embedding(source_vocab), embedding(target_vocab)
        self.encoder = nn.ModuleList(
            EncoderLayer(width, inner, dropout, attention=_attention(settings, scores)) for _ in range(settings.encoder_layers)
        )
        self.decoder = nn.ModuleList(
            DecoderLayer(
                width, inner, dropout, attention=_attention(settings, scores), cross=_attention(settings, scores, cross=True)
            )
            for _ in range(settings.decoder_layers)
        )
        self.encoder_norm = nn.LayerNorm(width)
        self.decoder_norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, target_vocab)
        self.dropout = nn.Dropout(dropout)

    def encode(self, source: Source, look: Look | None = None) -> Memory:
        places_S = torch.arange(source.values.shape[1], device=source.values.device)
        x_BSD = self.dropout(self.source_embedding(source.values, places_S))
        places_BS = self._places(source.allow)
        seen: tuple[Seen, ...] = ()
        for number, layer in enumerate(self.encoder):
            here = look.at("encoder", number, len(self.encoder)) if look else None
            x_BSD, weights = layer(x_BSD, source.allow[:, None, None], places_BS, here)
            seen += record(weights, here, "encoder", number)
        x_BSD = self.encoder_norm(x_BSD)
        real_BS1 = source.allow.unsqueeze(-1)
        summary_BD = (x_BSD * real_BS1).sum(1) / real_BS1.sum(1).clamp(min=1)
        return Memory(x_BSD, source.allow, summary_BD, axes=(x_BSD.shape[1],), seen=seen)

    def start(self, memory: Memory, prefix_BP: Tensor | None = None) -> TransformerState:
        if prefix_BP is None:
            own = [layer.attention.keys_values(memory.values_BSE[:, :0]) for layer in self._decoder_layers()]
        else:
            _, looking = self._read(prefix_BP, memory, None)
            own = looking.kept
        num_read = 0 if prefix_BP is None else prefix_BP.shape[1]
        source = self._source(memory)
        return TransformerState(
            lengths_B=torch.full((len(memory.allow_BS),), num_read, dtype=torch.long, device=memory.allow_BS.device),
            longest=num_read,
            source_keys=tuple(keys for keys, _ in source),
            source_values=tuple(values for _, values in source),
            allow_BS=memory.allow_BS,
            keys=tuple(keys.unsqueeze(1) for keys, _ in own),
            values=tuple(values.unsqueeze(1) for _, values in own),
        )

    def step(self, ids_BK: Tensor, state: State, look: Look | None = None) -> Step:
        state = cast(TransformerState, state)
        state.check_ids(ids_BK)
        state.spend()
        cache = Cached(state)
        x_BKD = self.dropout(self.target_embedding(ids_BK, state.lengths_B[:, None]))
        source = list(zip(state.source_keys, state.source_values, strict=True))
        logits_BKV, seen = self._decoder_stack(x_BKD, cache, source, state.allow_BS, look)
        return Step(logits_BKV, cache.following(), seen)

    def decode(self, ids_BT: Tensor, memory: Memory, look: Look | None = None) -> Decoded:
        decoded, _ = self._read(ids_BT, memory, look)
        return decoded

    def _read(self, ids_BT: Tensor, memory: Memory, look: Look | None) -> tuple[Decoded, Causal]:
        num_places, device = ids_BT.shape[1], ids_BT.device
        looking = Causal(masks.causal(num_places, device=device))
        x_BTD = self.dropout(self.target_embedding(ids_BT, torch.arange(num_places, device=device)))
        logits_BTV, seen = self._decoder_stack(x_BTD, looking, self._source(memory), memory.allow_BS, look)
        return Decoded(logits_BTV, seen=seen), looking

    def _source(self, memory: Memory) -> list[KeysValues]:
        places_BS = self._places(memory.allow_BS)
        return [layer.cross.keys_values(memory.values_BSE, places_BS) for layer in self._decoder_layers()]

    def _places(self, allow_BS: Tensor) -> Tensor | None:
        """Where only real places count, their numbers; else None, which counts all: padding stands at the end."""
        return masks.places(allow_BS) if next(self._decoder_layers()).cross.score.by_place else None

    def _decoder_layers(self) -> Iterator[DecoderLayer]:
        return iter(cast("Iterable[DecoderLayer]", self.decoder))

    def _decoder_stack(
        self, x_BRD: Tensor, look_back: Causal | Cached, source: list[KeysValues], allow_BS: Tensor, look: Look | None
    ) -> tuple[Tensor, tuple[Seen, ...]]:
        """All decoder layers for R rows: the places of a sequence, or the hypotheses of a step. Gives logits."""
        seen: tuple[Seen, ...] = ()
        for number, layer in enumerate(self._decoder_layers()):
            own = look.at("decoder", number, len(self.decoder)) if look else None
            cross = look.at("cross", number, len(self.decoder)) if look else None
            x_BRD, own_weights, cross_weights = layer(
                x_BRD, partial(look_back, number, own), source[number], allow_BS[:, None, None], cross
            )
            seen += record(own_weights, own, "decoder", number) + record(cross_weights, cross, "cross", number)
        return self.output(self.decoder_norm(x_BRD)), seen


def _attention(
    settings: TransformerSettings, scores: Mapping[str, ScoreMaker] | None, *, cross: bool = False
) -> MultiHeadAttention:
    """Rotary positions and ALiBi speak of distances within one sequence: they have no place in cross-attention."""
    score = make_score(
        settings.score,
        scores,
        query_width=settings.head_width,
        key_width=settings.head_width,
        width=settings.score_width,
        max_source=settings.max_places,
        beyond=settings.beyond,
    )
    return MultiHeadAttention(
        settings.width,
        settings.heads,
        score=score,
        key_dim=settings.key_dim,
        rotary=settings.layout if settings.positions == "rotary" and not cross else None,
        alibi=settings.positions == "alibi" and not cross,
    )


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

    def __init__(self, state: TransformerState) -> None:
        self.state = state
        self.keys, self.values = list(state.keys), list(state.values)
        self.rows_B = torch.arange(len(state.lengths_B), device=state.lengths_B.device)
        self.num_places = state.longest + 1
        self.allow_BC = masks.first(state.lengths_B + 1, self.num_places)

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
        attended = attention.attend(query_NH1d, keys_NHCd, values_NHCd, allow_N11C, look, places)
        weights = attended.weights
        weights_BHKC = None if weights is None else weights.squeeze(-2).unflatten(0, (B, K)).transpose(1, 2)
        return Attended(attended.context.view(B, K, -1), weights=weights_BHKC)

    def _write(self, cache_BKHCd: Tensor, new_BHKd: Tensor) -> Tensor:
        """Puts one place per row behind those it holds; where the room is used up, twice as much is made."""
        room = cache_BKHCd.shape[3]
        if room < self.num_places:
            cache_BKHCd = F.pad(cache_BKHCd, (0, 0, 0, max(FIRST_ROOM, 2 * room, self.num_places) - room))
        elif torch.is_grad_enabled() or cache_BKHCd.requires_grad:
            cache_BKHCd = cache_BKHCd.clone()  # autograd may still need the old one
        cache_BKHCd[self.rows_B, :, :, self.state.lengths_B] = new_BHKd.transpose(1, 2)
        return cache_BKHCd

    def following(self) -> TransformerState:
        return replace(
            self.state,
            spent=False,
            lengths_B=self.state.lengths_B + 1,
            longest=self.num_places,
            keys=tuple(self.keys),
            values=tuple(self.values),
        )
