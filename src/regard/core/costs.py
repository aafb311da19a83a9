"""The cost of self-attention compared with the layers that it replaced (Vaswani et al. 2017, table 1).

Two forms: "notes", counted as in the lecture notes, and "exact", counted for Regard's layers without bias.
docs/costs.md explains each difference.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from regard.errors import check_sizes, did_you_mean, shown


@dataclass(frozen=True)
class Cost:
    """The cost of one layer on one sequence.

    operations: multiply-adds of matrix products; softmax, tanh and scaling are not counted.
    sequential_steps: the number of steps that cannot run in parallel, up to a constant factor.

    >>> regard.cost("dense", 10, 4, 4)
    Cost(operations=1600, parameters=1600, sequential_steps=1)
    """

    operations: int
    parameters: int
    sequential_steps: int


# L length  d width of the input  v width of the values (or the state)  q width of queries and keys  k kernel size
Formula = Callable[[int, int, int, int, int], Cost]
CostedLayer = Literal["self_attention", "recurrent", "convolution", "dense"]
Form = Literal["notes", "exact"]

COSTS: dict[CostedLayer, dict[Form, Formula]] = {
    "self_attention": {
        "notes": lambda L, d, v, q, k: Cost(L * L * q, d * q + d * q + d * v, 1),
        "exact": lambda L, d, v, q, k: Cost(L * L * (q + v) + L * d * (2 * q + v), d * (2 * q + v), 1),
    },
    "recurrent": {
        "notes": lambda L, d, v, q, k: Cost(L * d * v, d * v + v * v, L),
        "exact": lambda L, d, v, q, k: Cost(L * (d * v + v * v), d * v + v * v, L),
    },
    "convolution": {
        "notes": lambda L, d, v, q, k: Cost(L * k * d * v, k * d * v, 1),
        "exact": lambda L, d, v, q, k: Cost(L * k * d * v, k * d * v, 1),
    },
    "dense": {
        "notes": lambda L, d, v, q, k: Cost(L * L * d * v, L * d * v, 1),
        "exact": lambda L, d, v, q, k: Cost(L * L * d * v, L * L * d * v, 1),
    },
}
"""Layer -> form -> formula."""

SHARED = ("length", "width", "value_width")
"""The sizes that every layer requires."""

NEEDS = {"self_attention": "key_width", "convolution": "kernel"}
"""Layer -> the size that only this layer requires. The other layers ignore it, so the same sizes can be passed for all four."""


def cost(
    layer: CostedLayer,
    length: int,
    width: int,
    value_width: int,
    *,
    key_width: int | None = None,
    kernel: int | None = None,
    form: Form = "exact",
) -> Cost:
    """Returns the cost of a layer, such as `cost("recurrent", 50, 512, 512).operations`.

    layer, form: the keys of `COSTS`.
    length, width, value_width: length of the sequence, width of the input and of the values (or of the recurrent state).
    key_width: width of queries and keys; required for self_attention.
    kernel: number of positions under the kernel, 2 · reach + 1; required for convolution.
    Raises ValueError for an unknown layer or form, and for missing or wrong sizes.

    >>> regard.cost("recurrent", 50, 512, 512).sequential_steps
    50
    >>> regard.cost("self_attention", 50, 512, 512, key_width=64).operations
    17824000
    """
    _check_name("layer", layer, [*COSTS])
    _check_name("form", form, [*COSTS[layer]])
    sizes = {"length": length, "width": width, "value_width": value_width, "key_width": key_width, "kernel": kernel}
    needed = NEEDS.get(layer)
    if needed and sizes[needed] is None:
        raise ValueError(f"the cost of {layer} depends on {needed}, which is missing; pass {needed}=…")
    check_sizes(**{name: size for name, size in sizes.items() if size is not None or name in SHARED})
    return COSTS[layer][form](length, width, value_width, key_width or 0, kernel or 0)


def _check_name(what: str, name: str, known: list[str]) -> None:
    if name not in known:
        raise ValueError(f"there is no {what} {shown(name)}; expected one of {', '.join(known)}{did_you_mean(name, known)}")
