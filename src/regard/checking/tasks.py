"""The functions that `regard check` knows: their names and parameters, the cases that they run on, and the mistakes that are
possible in each.

A case is a set of arguments. Sizes are distinct, so that a swapped axis shows, except in the cases named "square" and "equal",
where more mistakes give a result at all. The case "small" has small integers and is the one that reports show.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.checking import formulas
from regard.checking.formulas import Array, Values

SEED = 20170612
"""Of the cases: the same ones in every check."""


@dataclass(frozen=True)
class Case:
    """arguments: name in the contract -> array, number or None. needs: parameters without which the case is skipped."""

    name: str
    arguments: Mapping[str, Any]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """A function that a student may write.

    names: what it may be called; the first is its name.  signature, describes: how it is called, and what it computes.
    parameters: name in the contract -> other names for it.
    order: the parameters when they are passed by order.  required: those needed when passed by name.  optional: more by order.
    plain, masked: groups of switches; of each group at most one applies. The cases with a mask come after those without.
    first: cases to try first, when it is found out how the function can be called.
    by_row: the parameter that may also be passed one row at a time, if any; row_names: names of a parameter for one row.
    weights: parameters that may be transposed.  batched: parameters that may have batch axes.
    returns_weights: whether the weights may be a second result.  normalises: whether there is a softmax in it.
    """

    names: tuple[str, ...]
    signature: str
    describes: str
    parameters: Mapping[str, tuple[str, ...]]
    order: tuple[str, ...]
    formula: Callable[..., Values]
    cases: tuple[Case, ...]
    first: tuple[str, ...]
    plain: tuple[tuple[str, ...], ...]
    masked: tuple[tuple[str, ...], ...] = ()
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    by_row: str = ""
    row_names: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    batched: tuple[str, ...] = ("query", "key", "value", "mask", "x")
    returns_weights: bool = False
    normalises: bool = False

    @property
    def name(self) -> str:
        return self.names[0]


QUERY = ("q", "queries", "Q", "s", "state", "states", "decoder_state")
KEY = ("k", "keys", "K", "h", "memory", "annotations", "encoder_states")
VALUE = ("v", "values", "V")
MASK = ("allow", "attn_mask", "attention_mask", "m")
ROW = ("row", "vector", "scores_row")

SOFTMAX = ("softmax_queries", "softmax_all", "no_softmax", "no_exp", "not_normalised", "argmax", "sigmoid", "log_softmax")
SCALE = ("no_scale", "scale_d", "scale_multiplied", "scale_keys", "scale_twice", "cosine")
SCALE_OF_ALL = (*SCALE, "scale_queries", "scale_values", "scale_after")
INPUT = ("swapped", "queries_only", "keys_only", "not_transposed")
SMALL = tuple(f"{formulas.SMALL}{how} {number}" for number in (1000, 100, 5, 9, 10, 20) for how in ("fill", "add"))
MASKS = (
    "mask_ignored",
    "mask_inverted",
    "mask_after",
    "mask_zero",
    "mask_added",
    "mask_transposed",
    "mask_one_row",
    *SMALL,
    f"{formulas.SMALL}fill 1",
)
MASKED_VALUES = (f"{formulas.VALUES}some", f"{formulas.VALUES}all")
PROJECTIONS = tuple(f"{formulas.PROJECTED}{' '.join(two)}" for two in itertools.permutations(("W_q", "W_k", "W_v"), 2))
CAUSAL = ("sees_next", "hides_itself", "sees_future", "misaligned", "causal_ignored")


def _random() -> Callable[..., Array]:
    generator = np.random.default_rng(SEED)
    return lambda *shape: generator.normal(size=shape)


# A mask with something allowed and something hidden in each row and each column.
ALLOW = np.array([[1, 0, 1, 0, 1], [0, 1, 1, 1, 0], [1, 1, 0, 1, 0]], dtype=bool)
SQUARE_ALLOW = np.array([[1, 0, 1, 0], [1, 1, 0, 1], [0, 1, 1, 1], [0, 0, 1, 1]], dtype=bool)
PADDING = np.array([[1, 1, 1, 0, 0]] * 3, dtype=bool)
EMPTY = np.array([[1, 1, 0, 0, 1], [0, 0, 0, 0, 0], [1, 0, 1, 1, 1]], dtype=bool)

SMALL_CASE = {
    "query": np.array([[2.0, 0.0], [0.0, 1.0]]),
    "key": np.array([[1.0, 1.0], [0.0, 2.0], [1.0, 0.0]]),
    "value": np.array([[3.0, 0.0], [0.0, 3.0], [6.0, 6.0]]),
}
SMALL_MASK = np.array([[1, 1, 0], [0, 1, 1]], dtype=bool)


def _extreme(width: int = 7) -> dict[str, Array]:
    """Queries and keys whose scores, divided by √width, are ±10,000 and thousands apart."""
    query, key = np.zeros((3, width)), np.zeros((5, width))
    query[:, 0] = np.array([1.0, -1.0, 1.0]) * np.sqrt(width)
    key[:, 0] = [10000.0, 9000.0, 12000.0, 8000.0, 11000.0]
    return {"query": query, "key": key, "value": _random()(5, 2)}


def _deep(width: int = 7) -> dict[str, Array]:
    """Allowed keys have scores below −100,000, hidden keys about 1: numbers above that do not hide them."""
    query, key = np.zeros((3, width)), np.zeros((5, width))
    query[:, 0] = np.sqrt(width)
    key[:, 0] = [-101000.0, -102000.0, -103000.0, 1.0, 2.0]
    return {"query": query, "key": key, "value": _random()(5, 2), "mask": PADDING}


def _attention_cases() -> tuple[Case, ...]:
    number = _random()
    distinct = {"query": number(3, 7), "key": number(5, 7), "value": number(5, 2)}
    square = {"query": number(4, 7), "key": number(4, 7), "value": number(4, 2)}
    equal = {"query": number(4, 4), "key": number(4, 4), "value": number(4, 4)}
    order = [3, 0, 4, 2, 1]
    hidden = {name: np.where(PADDING[:1].T, distinct[name], number(*distinct[name].shape)) for name in ("key", "value")}
    few = {**distinct, "query": np.concatenate([distinct["query"][:1], number(2, 7)])}
    return (
        Case("small", SMALL_CASE),
        Case("distinct", distinct),
        Case("square", square),
        Case("equal", equal),
        Case("identity", {**distinct, "value": np.eye(5)}),
        Case("repeated", distinct),
        Case("extreme", _extreme()),
        Case("permuted", {**distinct, "key": distinct["key"][order], "value": distinct["value"][order]}),
        Case("other queries", few),
        Case("double values", {**distinct, "value": 2 * distinct["value"]}),
        Case("small, masked", {**SMALL_CASE, "mask": SMALL_MASK}, ("mask",)),
        Case("masked", {**distinct, "mask": ALLOW}, ("mask",)),
        Case("square, masked", {**square, "mask": SQUARE_ALLOW}, ("mask",)),
        Case("padded", {**distinct, "mask": PADDING}, ("mask",)),
        Case("other padding", {**distinct, **hidden, "mask": PADDING}, ("mask",)),
        Case("deep", _deep(), ("mask",)),
        Case("empty row", {**distinct, "mask": EMPTY}, ("mask",)),
        Case("causal", {**square, "causal": True}, ("causal",)),
        Case("causal, more keys", {**distinct, "causal": True}, ("causal",)),
    )


def _causal_cases() -> tuple[Case, ...]:
    """The cases of attention with a look-ahead mask, for a function that always has one."""
    names = ("small", "distinct", "square", "equal", "identity", "repeated", "extreme", "deep")
    arguments = {case.name: case.arguments for case in _attention_cases()}
    arguments["small"] = {**SMALL_CASE, "query": np.concatenate([SMALL_CASE["query"], [[1.0, 1.0]]])}
    return tuple(Case(name, {**arguments[name], "causal": True}) for name in names)


def _score_cases() -> tuple[Case, ...]:
    keep = {"small", "distinct", "square", "equal", "repeated"}
    return tuple(
        Case(case.name, {name: case.arguments[name] for name in ("query", "key")})
        for case in _attention_cases()
        if case.name in keep
    )


def _softmax_cases() -> tuple[Case, ...]:
    number = _random()
    x = number(3, 5)
    return (
        Case("small", {"x": np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 1.0]])}),
        Case("distinct", {"x": x}),
        Case("repeated", {"x": x}),
        Case("equal", {"x": number(4, 4)}),
        Case("extreme", {"x": np.array([[10000.0, 9000.0, 12000.0], [-10000.0, -9000.0, -12000.0]])}),
    )


def _multi_head_cases() -> tuple[Case, ...]:
    number = _random()

    def case(name: str, x: Array, columns: int, heads: int) -> Case:
        d = x.shape[-1]
        matrices = {"W_q": number(d, columns), "W_k": number(d, columns), "W_v": number(d, columns), "W_o": number(columns, d)}
        return Case(name, {"x": x, "query": x, "key": x, "value": x, **matrices, "heads": heads})

    x = np.array([[1.0, 0.0, 2.0, 1.0], [0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 3.0]])
    small = {**case("", x, 4, 2).arguments, **dict.fromkeys(("W_q", "W_k", "W_v", "W_o"), np.eye(4))}
    apart = np.array([[400.0, 0.0, 400.0, 0.0], [-400.0, 0.0, -400.0, 0.0]])
    deep = {**small, **dict.fromkeys(("x", "query", "key", "value"), apart), "mask": ~np.eye(2, dtype=bool)}
    distinct, equal = case("distinct", number(5, 6), 12, 3), case("equal", number(4, 8), 8, 2)
    return (
        Case("small", small),
        distinct,
        equal,
        Case("repeated", distinct.arguments),
        Case("masked", {**distinct.arguments, "mask": np.concatenate([ALLOW, ~ALLOW[:2]])}, ("mask",)),
        Case("equal, masked", {**equal.arguments, "mask": SQUARE_ALLOW}, ("mask",)),
        Case("deep", deep, ("mask",)),
    )


def _additive_cases() -> tuple[Case, ...]:
    number = _random()

    def case(name: str, Lq: int, Lk: int, dq: int, dk: int, a: int) -> Case:
        arrays = {"query": number(Lq, dq), "key": number(Lk, dk), "W_q": number(dq, a), "W_k": number(dk, a), "v": number(a)}
        return Case(name, arrays)

    small = {
        "query": np.array([[1.0, 0.0]]),
        "key": np.array([[0.0, 1.0], [1.0, 1.0]]),
        "W_q": np.array([[1.0, 0.0], [0.0, 1.0]]),
        "W_k": np.array([[0.0, 1.0], [1.0, 0.0]]),
        "v": np.array([1.0, 2.0]),
    }
    distinct = case("distinct", 3, 5, 2, 7, 11)
    return (
        Case("small", small),
        distinct,
        case("same widths", 3, 5, 4, 4, 7),
        case("equal", 4, 4, 4, 4, 4),
        Case("repeated", distinct.arguments),
    )


TASKS: tuple[Task, ...] = (
    Task(
        names=("softmax",),
        signature="softmax(x)",
        describes="the softmax of each row of the matrix x; or softmax(row), of one row",
        parameters={"x": (*ROW, "scores", "z", "logits", "s", "a", "matrix", "values")},
        order=("x",),
        required=("x",),
        formula=formulas.softmax,
        cases=_softmax_cases(),
        first=("distinct", "equal"),
        plain=(SOFTMAX,),
        by_row="x",
        row_names=ROW,
        normalises=True,
    ),
    Task(
        names=("scaled_dot_scores", "scaled_scores", "dot_scores", "attention_scores", "scores"),
        signature="scaled_dot_scores(query, key)",
        describes="query · key / √d for every query and key: one row per query, one column per key",
        parameters={"query": QUERY, "key": KEY},
        order=("query", "key"),
        required=("query", "key"),
        formula=formulas.scores,
        cases=_score_cases(),
        first=("distinct", "square", "equal"),
        plain=(("softmax_applied",), (*SCALE, "scale_queries"), INPUT),
    ),
    Task(
        names=("attention", "scaled_dot_product_attention", "scaled_dot_attention", "dot_product_attention", "attend"),
        signature="attention(query, key, value, mask=None)",
        describes="softmax(query keyᵀ / √d) value; mask[i, j] is True where query i may attend to key j",
        parameters={
            "query": QUERY,
            "key": KEY,
            "value": VALUE,
            "mask": MASK,
            "causal": ("is_causal", "look_ahead"),
        },
        order=("query", "key", "value"),
        required=("query", "key", "value"),
        optional=("mask",),
        formula=formulas.attention,
        cases=_attention_cases(),
        first=("distinct", "square", "equal"),
        plain=(
            SOFTMAX,
            SCALE_OF_ALL,
            (*INPUT, "shared_rows"),
            ("values_are_keys",),
            ("returns_weights", "returns_scores", "returns_values", "weights_transposed", "output_transposed"),
        ),
        masked=((*MASKS, *MASKED_VALUES), CAUSAL),
        returns_weights=True,
        normalises=True,
    ),
    Task(
        names=("causal_attention", "masked_attention", "causal_self_attention"),
        signature="causal_attention(query, key, value)",
        describes="attention in which query i sees no key after it; if there are more keys, the queries are the last ones",
        parameters={"query": QUERY, "key": KEY, "value": VALUE},
        order=("query", "key", "value"),
        required=("query", "key", "value"),
        formula=formulas.attention,
        cases=_causal_cases(),
        first=("distinct", "square", "equal"),
        plain=(CAUSAL, MASKS[1:], SOFTMAX, SCALE_OF_ALL, (*INPUT, "shared_rows")),
        returns_weights=True,
        normalises=True,
    ),
    Task(
        names=("multi_head", "multi_head_attention", "multihead", "multihead_attention", "mha"),
        signature="multi_head(x, W_q, W_k, W_v, W_o, heads, mask=None)",
        describes="self-attention with several heads; each matrix is used as x @ W; or multi_head(query, key, value, heads)",
        parameters={
            "x": ("X", "inputs", "hidden"),
            "W_q": ("Wq", "WQ", "w_query"),
            "W_k": ("Wk", "WK", "w_key"),
            "W_v": ("Wv", "WV", "w_value"),
            "W_o": ("Wo", "WO", "w_out", "w_output"),
            "heads": ("num_heads", "n_heads", "h", "n_head", "H"),
            "mask": MASK,
            "query": ("q", "Q"),
            "key": ("k", "K"),
            "value": ("v", "V"),
        },
        order=("x", "W_q", "W_k", "W_v", "W_o", "heads"),
        required=("heads",),
        optional=("mask",),
        formula=formulas.multi_head,
        cases=_multi_head_cases(),
        first=("distinct", "equal"),
        plain=(
            ("head_view", "head_interleaved", "heads_ignored", "head_repeated", "heads_share_weights"),
            ("join_view", "join_interleaved", "join_reversed", "heads_mean", "heads_sum"),
            (*SCALE, "scale_width", "scale_after"),
            (*SOFTMAX, "softmax_heads"),
            PROJECTIONS,
            ("no_output_projection",),
            ("swapped",),
        ),
        masked=(MASKS,),
        weights=("W_q", "W_k", "W_v", "W_o"),
        normalises=True,
    ),
    Task(
        names=("additive_scores", "additive_score", "additive", "bahdanau_scores", "bahdanau_score", "bahdanau"),
        signature="additive_scores(query, key, W_q, W_k, v)",
        describes="vᵀ tanh(W_q q + W_k k) for every query and key; query may also be one state, for a list of scores",
        parameters={
            "query": QUERY,
            "key": KEY,
            "W_q": ("Wq", "W_b", "W_s", "W_a", "W", "W1", "W_1"),
            "W_k": ("Wk", "W_c", "W_h", "U_a", "U", "W2", "W_2"),
            "v": ("v_a", "va", "V"),
        },
        order=("query", "key", "W_q", "W_k", "v"),
        required=("query", "key", "W_q", "W_k"),
        formula=formulas.additive_scores,
        cases=_additive_cases(),
        first=("distinct", "same widths", "equal"),
        plain=(
            ("v_forgotten", "v_mean"),
            ("tanh_forgotten", "tanh_each", "tanh_last", "product", "sigmoid_for_tanh", "relu_for_tanh"),
            ("matrices_swapped", "query_forgotten", "key_forgotten"),
            ("softmax_applied",),
            ("scaled_too",),
            ("output_transposed",),
        ),
        by_row="query",
        row_names=("s", "state", "decoder_state"),
        weights=("W_q", "W_k"),
    ),
    Task(
        names=("causal_mask", "look_ahead_mask", "lookahead_mask", "subsequent_mask"),
        signature="causal_mask(n) or causal_mask(queries, keys)",
        describes="the look-ahead mask: True where query i may attend to key j, that is j ≤ i + (keys − queries)",
        parameters={
            "queries": ("n", "length", "size", "L", "T", "num_queries", "Lq", "n_q", "seq_len"),
            "keys": ("m", "num_keys", "Lk", "n_k", "S"),
        },
        order=("queries",),
        required=("queries",),
        optional=("keys",),
        formula=formulas.causal_mask,
        cases=(
            Case("small", {"queries": 3, "keys": 3}),
            Case("distinct", {"queries": 5, "keys": 5}),
            Case("more keys", {"queries": 3, "keys": 5}, ("keys",)),
        ),
        first=("distinct",),
        plain=((*CAUSAL, "mask_inverted"),),
    ),
    Task(
        names=("positions", "positional_encoding", "position_encoding", "sinusoidal", "sinusoidal_positions"),
        signature="positions(length, width)",
        describes="the sinusoidal position encoding: row i holds sin(ω_k i), cos(ω_k i), ω_k = 10000^(−2k/width), i from 0",
        parameters={
            "length": ("n", "L", "max_len", "seq_len", "num_positions", "positions"),
            "width": ("d", "d_model", "dim", "D", "depth"),
        },
        order=("length", "width"),
        required=("length", "width"),
        formula=formulas.positions,
        cases=(
            Case("small", {"length": 3, "width": 4}),
            Case("distinct", {"length": 7, "width": 10}),
            Case("repeated", {"length": 7, "width": 10}),
        ),
        first=("distinct",),
        plain=(
            ("starts_at_one",),
            ("halves",),
            ("sin_cos_swapped",),
            ("exponent_index", "exponent_half", "exponent_double", "frequency_inverted"),
            ("base_1000",),
            ("output_transposed",),
        ),
    ),
)
"""In the order in which they are checked."""


def find(function: str) -> Task | None:
    """Returns the task of a function with this name, whatever its case and underscores."""

    def plain(name: str) -> str:
        return name.replace("_", "").lower()

    return next((task for task in TASKS if plain(function) in map(plain, task.names)), None)
