"""A Transformer whose encoder and steps run natively: the same interface, and the same numbers but for rounding.

A number never depends on the rest of the batch: sentences are computed without padding, each row in an order of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, cast

import torch
from torch import Tensor

from regard.core import masks
from regard.core.positions import sinusoidal
from regard.core.source import Source
from regard.layers.embed import IN_ATTENTION, TokenEmbedding
from regard.look import Kind, Look, Seen, Tap, pick
from regard.models.contract import Decoded, Memory, Seq2Seq, State, Step
from regard.models.encoder import masked_mean
from regard.models.evaluation import in_evaluation
from regard.models.native_weights import NativeModel, beyond_native, encodes, pack
from regard.models.stack import StackSettings
from regard.models.transformer import Transformer
from regard.native import engine
from regard.native.library import library

# B sentences  K hypotheses  S source positions  N positions of all sentences, without padding  D width  H heads

FEWEST_POSITIONS = 64
TAPPED = ("weights", "posterior")


class NativeSteps(Seq2Seq):
    """A model with native `encode`, `start` and `step`. `decode`, and what the native engine does not do, are torch's."""

    def __init__(self, model: NativeModel) -> None:
        """Packs the weights of a model that `beyond_native` accepts; later changes of them have no effect."""
        self.model = in_evaluation(model)
        self.traits, self.packed = model.traits, pack(model)
        self.vocab = len(model.decoder.output.bias)
        self.reads_tokens = encodes(model)
        self.decoder_positions = Positions(model, model.decoder.embedding)
        self.encoder_positions = self.decoder_positions
        if self.reads_tokens and isinstance(embedding := cast(Transformer, model).encoder.embedding, TokenEmbedding):
            self.encoder_positions = Positions(model, embedding)

    def serves(self, look: Look | None) -> bool:
        """Returns whether it captures what a Look requests: weights of whole rows, and no changes of them."""
        if look is None:
            return True
        if look.edits or look.grad or not (self.reads_tokens or self.traits.continues_text):
            return False
        return all(tap.what in TAPPED and tap.rows is None and tap.kind in self.traits.attention for tap in look.taps)

    @torch.no_grad()
    def encode(self, source: Source, look: Look | None = None) -> Memory:
        lengths_B = source.allow.sum(-1) if self.reads_tokens else source.allow
        B, S = source.allow.shape[:2]
        if not self.reads_tokens or not bool((source.allow == masks.first(lengths_B, S)).all()):
            return self.model.encode(source, look)
        ids_N = source.values[source.allow].contiguous()
        states_ND = torch.empty(len(ids_N), self.model.settings.width)
        layers, heads = self.traits.attention["encoder"]
        kept = _layer_looks(look, "encoder", layers)
        longest = int(lengths_B.max()) if B else 0
        weights_LBHSS = torch.zeros(layers, B, heads, longest, longest) if any(kept) else None
        self._share_threads()
        self.packed.encode(
            ids_N.data_ptr(),
            lengths_B.contiguous().data_ptr(),
            B,
            self.encoder_positions.up_to(max(1, S)),
            states_ND.data_ptr(),
            0 if weights_LBHSS is None else weights_LBHSS.data_ptr(),
        )
        values_BSD = states_ND.new_zeros(B, S, states_ND.shape[1])
        values_BSD[source.allow] = states_ND
        seen = [] if weights_LBHSS is None else _seen(kept, weights_LBHSS, padded_to=(S, S))
        return Memory(values_BSD, source.allow, masked_mean(values_BSD, source.allow), (S,), seen=tuple(seen))

    @torch.no_grad()
    def start(self, memory: Memory, prefix_BP: Tensor | None = None) -> NativeState:
        states_ND = memory.values_BSE[memory.allow_BS].contiguous()
        lengths_B = memory.allow_BS.sum(-1)
        self._share_threads()
        rows = self.packed.start(states_ND.data_ptr(), lengths_B.data_ptr(), len(lengths_B))
        state = NativeState(rows)
        for ids_B in () if prefix_BP is None else prefix_BP.unbind(1):
            state = self._read(ids_B[:, None], state, wants_logits=False).state
        return state

    @torch.no_grad()
    def step(self, ids_BK: Tensor, state: State, look: Look | None = None) -> NativeStep:
        return self._read(ids_BK, cast(NativeState, state), look)

    def _read(self, ids_BK: Tensor, state: NativeState, look: Look | None = None, *, wants_logits: bool = True) -> NativeStep:
        """Takes one step. wants_logits: whether to compute them; they are empty otherwise."""
        rows = state.take(ids_BK)
        B, K, longest_target, longest_source = rows.sizes()
        ids_BK = ids_BK.contiguous()
        logits_BKV = torch.empty(B, K, self.vocab if wants_logits else 0)
        layers, heads = self.traits.attention["decoder"]
        kept = {kind: _layer_looks(look, kind, layers) for kind in ("decoder", "cross")}
        longest = {"decoder": longest_target + 1, "cross": longest_source}
        weights = {kind: torch.zeros(layers, B, heads, K, longest[kind]) for kind in kept if any(kept[kind])}
        self._share_threads()
        self.packed.step(
            rows,
            ids_BK.data_ptr(),
            self.decoder_positions.up_to(longest_target + 1),
            logits_BKV.data_ptr() if wants_logits else 0,
            *(weights[kind].data_ptr() if kind in weights else 0 for kind in kept),
        )
        seen = [one for kind in weights for one in _seen(kept[kind], weights[kind])]
        return NativeStep(logits_BKV, NativeState(rows), tuple(sorted(seen, key=lambda one: one.layer)))

    def decode(self, ids_BT: Tensor, memory: Memory, look: Look | None = None) -> Decoded:
        return self.model.decode(ids_BT, memory, look)

    def _share_threads(self) -> None:
        """Sets the number of threads: as many as torch has."""
        if (functions := library()) is not None:
            functions.regard_set_threads(torch.get_num_threads())


class NativeStep(Step):
    """A Step whose State is native."""

    state: NativeState


class NativeState:
    """A State of the native engine. Selected, kept and joined ones share the caches until a step writes into them."""

    def __init__(self, rows: engine.Rows) -> None:
        self._rows: engine.Rows | None = rows
        self.lengths_B = torch.empty(rows.sizes()[0], dtype=torch.long)
        rows.lengths(self.lengths_B.data_ptr())

    @property
    def rows(self) -> engine.Rows:
        """The rows. Raises RuntimeError if this State is spent."""
        if self._rows is None:
            raise RuntimeError(
                "this State was already used by an earlier step, which may have modified it; call copy() before that step"
            )
        return self._rows

    def spend(self) -> None:
        """Marks this State as used. Raises RuntimeError if it already is."""
        if self.rows:
            self._rows = None

    def take(self, ids_BK: Tensor) -> engine.Rows:
        """Spends this State and returns its rows. Raises ValueError unless there is one id for each hypothesis."""
        rows = self.rows
        expected = rows.sizes()[:2]
        if tuple(ids_BK.shape) != expected:
            raise ValueError(f"ids have shape {tuple(ids_BK.shape)}, expected (sentences, hypotheses) = {expected}")
        self.spend()
        return rows

    def select(self, parents_BK: Tensor) -> Self:
        """Returns a State in which hypothesis k of sentence b continues hypothesis parents_BK[b, k] of this State."""
        B, K, _, _ = self.rows.sizes()
        if len(parents_BK) != B:
            raise ValueError(f"parents has {len(parents_BK)} rows, expected {B}, one per sentence")
        _check_indices("hypothesis", parents_BK, K)
        parents_BK = parents_BK.contiguous()
        return type(self)(self.rows.select(parents_BK.data_ptr(), parents_BK.shape[1]))

    def keep(self, rows_N: Tensor) -> Self:
        """Returns a State with only these sentences, in this order."""
        _check_indices("sentence", rows_N, self.rows.sizes()[0])
        rows_N = rows_N.contiguous()
        return type(self)(self.rows.keep(rows_N.data_ptr(), len(rows_N)))

    def join(self, *others: Self) -> Self:
        """Returns a State with the sentences of all States, those of this one first."""
        all_rows = [state.rows for state in (self, *others)]
        if len({rows.sizes()[1] for rows in all_rows}) > 1:
            raise ValueError("cannot join States with different numbers of hypotheses")
        return type(self)(engine.Rows.join(all_rows))

    def put(self, rows_N: Tensor, new: Self) -> Self:
        """Returns these sentences with those in some rows replaced by the sentences of another State, in order."""
        size = self.rows.sizes()[0]
        _check_indices("sentence", rows_N, size)
        order_B = torch.arange(size)
        order_B[rows_N] = torch.arange(len(rows_N)) + size
        return self.join(new).keep(order_B)

    def copy(self) -> Self:
        """Returns a copy that can be stepped independently of this State."""
        return self.keep(torch.arange(self.rows.sizes()[0]))

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.rows.nbytes


class Positions:
    """The position vectors of one stack, and the rotations of rotary positions, for as many positions as were asked for."""

    def __init__(self, model: NativeModel, embedding: TokenEmbedding) -> None:
        self.embedding = embedding
        self.most = model.traits.max_positions
        settings = cast(StackSettings, model.settings)
        self.rotated = settings.head_width if settings.positions == "rotary" else 0
        self._table = _Table(engine.Positions(), ())

    def up_to(self, number: int) -> engine.Positions:
        """Returns at least this many positions. Raises UserError if the model has not as many."""
        table = self._table
        if table.positions.count < number:
            ahead = max(FEWEST_POSITIONS, 2 * number)
            size = number if self.most is not None and number > self.most else min(ahead, self.most or ahead)
            table = self._table = self._make(size)  # another thread may still read the old one
        return table.positions

    def _make(self, size: int) -> _Table:
        positions_S = torch.arange(size)
        vectors = sines = cosines = None
        if self.embedding.encoding not in IN_ATTENTION:
            with torch.no_grad():
                vectors = self.embedding.position_vectors(positions_S, torch.float32).contiguous()
        if self.rotated:
            sines, cosines = (part.contiguous() for part in sinusoidal(positions_S, self.rotated, layout="halves").chunk(2, -1))
        kept = (vectors, sines, cosines)
        return _Table(engine.Positions(*(0 if part is None else part.data_ptr() for part in kept), size), kept)


@dataclass(frozen=True)
class _Table:
    """Addresses, and the tensors that they belong to."""

    positions: engine.Positions
    kept: tuple[Tensor | None, ...]


class NativeCopy:
    """The native steps of a model: made when they are first asked for, and again when its weights have changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: tuple[tuple[object, ...], NativeSteps | None] | None = None

    def of(self, model: Seq2Seq) -> NativeSteps | None:
        """Returns the native steps of a model with its present weights; None if the native engine cannot run it."""
        with self._lock:
            versions = _versions(model)
            if self._made is None or self._made[0] != versions:
                self._made = versions, None if beyond_native(model) else NativeSteps(cast(NativeModel, model))
            return self._made[1]


def _versions(model: object) -> tuple[object, ...]:
    """Returns what differs after any change: torch counts the changes of a tensor in place. Hooks are a change, too."""
    found: list[object] = []
    if isinstance(model, torch.nn.Module):
        _add_versions(model, found)
    return tuple(found)


def _add_versions(module: torch.nn.Module, found: list[object]) -> None:
    """Adds the versions of a module and of those inside it. (`modules` and `parameters` of torch take ten times as long.)"""
    found.append(bool(module._forward_hooks or module._forward_pre_hooks))
    for parameter in module._parameters.values():
        if parameter is not None:
            found += (parameter.data_ptr(), parameter._version, parameter.dtype)
    for child in module._modules.values():
        if child is not None:
            _add_versions(child, found)


def _check_indices(name: str, numbers: Tensor, size: int) -> None:
    if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < size:
        raise IndexError(f"there is no {name} {int(numbers.max())}: they are numbered 0 to {size - 1}")


def _layer_looks(look: Look | None, kind: Kind, num_layers: int) -> list[tuple[Tap, ...]]:
    """Returns the taps of each layer."""
    looks = [None if look is None else look.at(kind, number, num_layers) for number in range(num_layers)]
    return [() if one is None else one.taps for one in looks]


def _seen(
    taps: Sequence[tuple[Tap, ...]], weights_LBHTS: Tensor, padded_to: tuple[int, int] | None = None
) -> list[Seen[Tensor]]:
    """Returns what the taps of each layer captured. padded_to: the last two sizes, if they are larger."""
    found = []
    for layer_taps, weights_BHTS in zip(taps, weights_LBHTS.unbind(0), strict=True):
        if padded_to is not None:
            missing = [size - have for size, have in zip(padded_to, weights_BHTS.shape[-2:], strict=True)]
            weights_BHTS = torch.nn.functional.pad(weights_BHTS, (0, missing[1], 0, missing[0]))
        for tap in layer_taps:
            heads = pick("head", None if tap.head is None else (tap.head,), weights_BHTS.shape[1])
            rows = tuple(range(weights_BHTS.shape[2]))
            found.append(Seen(tap.kind, tap.layer or 0, heads, rows, weights_BHTS[:, list(heads)], tap.what))
    return found
