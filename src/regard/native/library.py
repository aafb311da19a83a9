"""Loads the native library and says whether it is there. It needs neither torch nor numpy.

The environment variable REGARD_NATIVE switches it off (0) or chooses an instruction set (avx512, avx2, portable).
"""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass
from pathlib import Path

from regard.errors import UserError

ABI = 3
"""The number of the interface below, as `REGARD_ABI` in abi.h."""

FOLDER = Path(__file__).parent
FILE = FOLDER / "regard_native.so"
SOURCES = FOLDER / "CMakeLists.txt"
CHOICES = ("0", "1", "avx512", "avx2", "portable")

COST = (
    "without it, additive attention over long inputs takes about twenty times as long, recurrent models train and Transformers "
    "translate at about half the speed; results are the same"
)


@dataclass(frozen=True)
class Loaded:
    """The native library, or why there is none."""

    functions: ctypes.CDLL | None
    reason: str = ""

    @property
    def instruction_set(self) -> str:
        """The instruction set in use: avx512, avx2 or portable."""
        return "" if self.functions is None else str(self.functions.regard_instruction_set().decode())


class AdditiveProblem(ctypes.Structure):
    """`regard_additive` of abi.h; pointers are addresses, 0 for none."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("leads", "num_queries", "num_keys", "width", "value_width")),
        *((name, ctypes.c_int64) for name in ("key_leads", "value_leads")),
        *((name, ctypes.c_void_p) for name in ("query", "key", "v", "value")),
        *((name, ctypes.c_void_p) for name in ("query_of", "key_of", "value_of", "allow_of", "allow")),
        *((name, ctypes.c_int64) for name in ("allow_lead", "allow_row", "allow_column")),
        ("seed", ctypes.c_uint64),
        ("dropout", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("context", "weights", "log_sum", "context_gradient")),
        *((name, ctypes.c_void_p) for name in ("query_gradient", "key_gradient", "value_gradient", "v_gradient")),
    )


class RecurrentProblem(ctypes.Structure):
    """`regard_recurrent` of abi.h; pointers are addresses, 0 for none."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("cell", "rows", "steps", "input_width", "width", "directions")),
        *((name, ctypes.c_void_p) for name in ("input", "weight", "recurrent", "bias", "recurrent_bias", "first", "lengths")),
        *((name, ctypes.c_void_p) for name in ("states", "last", "kept", "states_gradient", "last_gradient")),
        *((name, ctypes.c_void_p) for name in ("input_gradient", "weight_gradient", "recurrent_gradient")),
        *((name, ctypes.c_void_p) for name in ("bias_gradient", "recurrent_bias_gradient", "first_gradient")),
    )


class BahdanauProblem(ctypes.Structure):
    """`regard_bahdanau` of abi.h; pointers are addresses, 0 for none."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "steps", "num_keys", "width", "memory_width", "score_width")),
        *((name, ctypes.c_void_p) for name in ("input", "context_weight", "recurrent", "recurrent_bias", "query_weight", "v")),
        *((name, ctypes.c_void_p) for name in ("key", "value", "first", "allow", "states", "contexts", "weights", "kept")),
        *((name, ctypes.c_void_p) for name in ("states_gradient", "contexts_gradient", "input_gradient")),
        *((name, ctypes.c_void_p) for name in ("context_weight_gradient", "recurrent_gradient", "recurrent_bias_gradient")),
        *((name, ctypes.c_void_p) for name in ("query_weight_gradient", "v_gradient", "key_gradient", "value_gradient")),
        ("first_gradient", ctypes.c_void_p),
    )


def library() -> ctypes.CDLL | None:
    """Returns the functions of the native library, or None if torch has to serve."""
    return load().functions


@functools.cache
def load() -> Loaded:
    """Loads the native library once; raises UserError if REGARD_NATIVE is not one of `CHOICES`."""
    choice = os.environ.get("REGARD_NATIVE", "1")
    if choice not in CHOICES:
        raise UserError(
            f"REGARD_NATIVE is {choice!r}, expected one of {', '.join(CHOICES)}; leave it out to use what fits best"
        )
    if choice == "0":
        return Loaded(None, "switched off by REGARD_NATIVE=0")
    if not FILE.exists():
        return Loaded(None, f"not built; {how_to_build()}")
    try:
        functions = declare(ctypes.CDLL(str(FILE)))
    except (OSError, AttributeError) as error:
        return Loaded(None, f"{FILE.name} cannot be loaded ({error}); {how_to_build()}")
    if (number := functions.regard_abi()) != ABI:
        return Loaded(None, f"{FILE.name} was built from other sources (interface {number}, expected {ABI}); {how_to_build()}")
    if choice != "1" and functions.regard_choose(choice.encode()):
        return Loaded(None, f"this processor has no {choice}, which REGARD_NATIVE asks for; use REGARD_NATIVE=portable")
    return Loaded(functions)


def declare(functions: ctypes.CDLL) -> ctypes.CDLL:
    """Declares the functions of abi.h; raises AttributeError if one is missing."""
    functions.regard_abi.restype = ctypes.c_int
    functions.regard_instruction_set.restype = ctypes.c_char_p
    functions.regard_choose.argtypes = (ctypes.c_char_p,)
    functions.regard_set_threads.argtypes = (ctypes.c_int,)
    functions.regard_set_threads.restype = None
    functions.regard_threads.restype = ctypes.c_int
    functions.regard_use_team.argtypes = (ctypes.c_void_p,)
    functions.regard_use_team.restype = None
    for kind, problem in (("additive", AdditiveProblem), ("recurrent", RecurrentProblem), ("bahdanau", BahdanauProblem)):
        for direction in ("forward", "backward"):
            function = getattr(functions, f"regard_{kind}_{direction}")
            function.argtypes = (ctypes.POINTER(problem),)
            function.restype = None
    return functions


def how_to_build() -> str:
    """Returns the command that builds the library for this installation."""
    if SOURCES.exists():
        return f"install a C++ compiler such as g++, and run `make native` in {FOLDER.parents[2]}"
    return "install a C++ compiler such as g++, and install regard again with `pip install --force-reinstall --no-deps`"


def report() -> str:
    """Returns one line for `regard doctor`: which instruction set is used, or what is missing and what it costs."""
    loaded = load()
    if loaded.functions is None:
        return f"no: {loaded.reason} ({COST})"
    stale = SOURCES.exists() and any(path.stat().st_mtime > FILE.stat().st_mtime for path in FOLDER.glob("*.[ch]*"))
    advice = "; it is older than its sources: run `make native`" if stale else ""
    return f"yes, {loaded.instruction_set} instructions{advice}"
