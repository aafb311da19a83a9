"""The native engine of engine_abi.h: a Transformer with packed weights, and the States of its decoder. It needs neither torch
nor numpy: arrays are addresses.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

from regard.native.library import load

NO_SUCH_TOKEN, NO_MEMORY, TOO_FEW_POSITIONS = -1, -2, -3
"""The results of a call that are errors; 0 is success."""


class Linear(ctypes.Structure):
    """`regard_linear` of engine_abi.h; without a weight there is no such layer."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
    )


class Norm(ctypes.Structure):
    """`regard_norm`."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("kind", ctypes.c_int64),
        ("eps", ctypes.c_float),
    )


class Attention(ctypes.Structure):
    """`regard_attention`."""

    _fields_ = (
        *((name, Linear) for name in ("query", "key", "value", "output")),
        *((name, ctypes.c_int64) for name in ("heads", "kv_heads", "key_width", "value_width", "rotary")),
        ("slopes", ctypes.c_void_p),
        ("scale", ctypes.c_float),
    )


class Layer(ctypes.Structure):
    """`regard_layer`. `self` is a field of C, which Python calls `own`."""

    _fields_ = (
        ("own", Attention),
        ("cross", Attention),
        *((name, Norm) for name in ("own_norm", "cross_norm", "feed_norm")),
        ("inner", Linear),
        ("outer", Linear),
        ("activation", ctypes.c_int64),
    )


class Stack(ctypes.Structure):
    """`regard_stack`."""

    _fields_ = (
        ("layers", ctypes.POINTER(Layer)),
        ("num_layers", ctypes.c_int64),
        ("tokens", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("vocab", "token_width", "position_width", "window")),
        ("token_scale", ctypes.c_float),
        ("embedding_norm", Norm),
        ("last_norm", Norm),
    )


class Transformer(ctypes.Structure):
    """`regard_transformer`."""

    _fields_ = (
        ("encoder", Stack),
        ("decoder", Stack),
        ("project", Linear),
        ("output", Linear),
        *((name, ctypes.c_int64) for name in ("width", "pre_norm", "residual")),
    )


class Positions(ctypes.Structure):
    """`regard_positions`."""

    _fields_ = (*((name, ctypes.c_void_p) for name in ("vectors", "sines", "cosines")), ("count", ctypes.c_int64))


@functools.cache
def functions() -> ctypes.CDLL:
    """Returns the functions of engine_abi.h, declared. Raises RuntimeError without the native library."""
    loaded = load()
    if loaded.functions is None:
        raise RuntimeError(f"there is no native library: {loaded.reason}")
    declared: Any = loaded.functions
    address, number = ctypes.c_void_p, ctypes.c_int64
    signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "engine_new": (address, (ctypes.POINTER(Transformer),)),
        "engine_free": (None, (address,)),
        "engine_nbytes": (number, (address,)),
        "engine_encode": (ctypes.c_int, (address, address, address, number, ctypes.POINTER(Positions), address, address)),
        "engine_start": (address, (address, address, address, number)),
        "engine_step": (ctypes.c_int, (address, address, address, ctypes.POINTER(Positions), address, address, address)),
        "state_sizes": (None, (address, address)),
        "state_lengths": (None, (address, address)),
        "state_nbytes": (number, (address,)),
        "state_select": (address, (address, address, number)),
        "state_keep": (address, (address, address, number)),
        "state_join": (address, (ctypes.POINTER(address), number)),
        "state_free": (None, (address,)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(declared, f"regard_{name}")
        function.restype, function.argtypes = result, arguments
    return loaded.functions


class Handle:
    """An object of the library, freed with this one."""

    def __init__(self, address: int | None, free: Callable[[int], None]) -> None:
        if not address:
            raise MemoryError("the native engine found no memory; use a smaller batch, a smaller beam or shorter texts")
        self.address, self._free = address, free

    def __del__(self) -> None:
        if address := getattr(self, "address", None):
            self._free(address)


class Packed(Handle):
    """A model whose weights were packed. kept: the arrays that the engine reads later, too."""

    def __init__(self, model: Transformer, kept: object) -> None:
        library = functions()
        super().__init__(library.regard_engine_new(ctypes.byref(model)), library.regard_engine_free)
        self.kept = kept

    @property
    def nbytes(self) -> int:
        """The size of the packed weights in bytes."""
        return int(functions().regard_engine_nbytes(self.address))

    def encode(self, ids: int, lengths: int, sentences: int, positions: Positions, states: int, weights: int = 0) -> None:
        """Calls `regard_engine_encode`."""
        table = ctypes.byref(positions)
        _check(functions().regard_engine_encode(self.address, ids, lengths, sentences, table, states, weights))

    def start(self, states: int, lengths: int, sentences: int) -> Rows:
        """Calls `regard_engine_start`."""
        return Rows(functions().regard_engine_start(self.address, states, lengths, sentences))

    def step(
        self, rows: Rows, ids: int, positions: Positions, logits: int, self_weights: int = 0, cross_weights: int = 0
    ) -> None:
        """Calls `regard_engine_step`, which changes the rows."""
        code = functions().regard_engine_step(
            self.address, rows.address, ids, ctypes.byref(positions), logits, self_weights, cross_weights
        )
        _check(code)


class Rows(Handle):
    """A `regard_state`: the hypotheses of a batch of sentences, and their caches."""

    def __init__(self, address: int | None) -> None:
        super().__init__(address, functions().regard_state_free)

    def sizes(self) -> tuple[int, int, int, int]:
        """Returns the numbers of sentences and of hypotheses, and the lengths of the longest target and of the longest
        source."""
        sizes = (ctypes.c_int64 * 4)()
        functions().regard_state_sizes(self.address, sizes)
        return (sizes[0], sizes[1], sizes[2], sizes[3])

    def lengths(self, into: int) -> None:
        """Writes the number of tokens of each sentence."""
        functions().regard_state_lengths(self.address, into)

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return int(functions().regard_state_nbytes(self.address))

    def select(self, parents: int, hypotheses: int) -> Rows:
        """Calls `regard_state_select`; the caller has checked the parents."""
        return Rows(functions().regard_state_select(self.address, parents, hypotheses))

    def keep(self, sentences: int, count: int) -> Rows:
        """Calls `regard_state_keep`; the caller has checked the sentences."""
        return Rows(functions().regard_state_keep(self.address, sentences, count))

    @staticmethod
    def join(all_rows: Sequence[Rows]) -> Rows:
        """Calls `regard_state_join`."""
        addresses = (ctypes.c_void_p * len(all_rows))(*(rows.address for rows in all_rows))
        return Rows(functions().regard_state_join(addresses, len(all_rows)))


def _check(code: int) -> None:
    if code == NO_SUCH_TOKEN:
        raise IndexError("the ids hold a token that the vocabulary of the model has not")
    if code == TOO_FEW_POSITIONS:
        raise ValueError("the table of positions is shorter than the longest row")
    if code == NO_MEMORY:
        raise MemoryError("the native engine found no memory; use a smaller batch, a smaller beam or shorter texts")
