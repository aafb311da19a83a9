"""What a model is made of: its parts, which describe.py reads from a model, description.py prints and diagram.py draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["input", "embedding", "attention", "norm", "layer", "dense", "recurrent", "output", "stack", "other"]
"""What a part is, which decides on its colour in the diagram."""


@dataclass(frozen=True)
class ModelPart:
    """One part of a model.

    name: what it is.  formula: what it computes.  shape: of its output; B sentences, S source positions, T target positions.
    parameters: of one copy, with those of its inner parts. A matrix that two parts share counts where it is used first.
    copies: how often it occurs, each time with weights of its own.  parts: its inner parts, in the order of computation.
    gives: the name of its output, if a part elsewhere reads it: "memory".  reads: the names of what it reads from elsewhere.
    follows: whether it reads the output of the part before it.
    skips: over how many parts before it a connection leads into it, such as a residual connection.
    module: the name of the torch module, of the first copy.  role: what it is in the diagram.

    >>> encoder, decoder = regard.describe("base").parts
    >>> layer = decoder.parts[3]
    >>> layer.copies, [part.name for part in layer.parts][:4]
    (6, ['self-attention', 'Add & Norm', 'cross-attention', 'Add & Norm'])
    >>> layer.parts[2].reads, layer.parts[2].shape
    (('memory',), '(B, T, 512)')
    """

    name: str
    formula: str = ""
    shape: str = ""
    parameters: int = 0
    copies: int = 1
    parts: tuple[ModelPart, ...] = ()
    gives: str = ""
    reads: tuple[str, ...] = ()
    follows: bool = True
    skips: int = 0
    module: str = ""
    role: Role = "other"
