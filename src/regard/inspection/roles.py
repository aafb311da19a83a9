"""What the heads of a model do, over a corpus: near, far, first, last, same word, punctuation, sink; and the share explained.

Every weight of every pair counts; nothing is sampled. The weights of a pair are dropped as soon as they are added up.
"""

# H heads  T queries  S keys  R roles

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from regard.checkpoint.files import new_file, write
from regard.contracts import Array
from regard.core import masks
from regard.data.reader import Given, GivenOutput
from regard.data.sources import FileCodec
from regard.errors import UserError
from regard.look import Kind, Look, Tap
from regard.pipeline import Translator

PAIRS_AT_A_TIME = 64
"""How many pairs are read before the model runs over them."""
KINDS: tuple[Kind, ...] = ("encoder", "decoder", "cross")
ROLES = ("first", "last", "same word", "punctuation", "near", "sink", "far")
"""The roles, the most specific first: of roles that fit equally well, the first names a head."""
EXPLAINED = tuple(role for role in ROLES if role != "far")
"""The roles whose weight is explained. What is far is whatever is not near, so it explains nothing."""
MARGIN, LEAST = 0.05, 0.2
"""A head is named by the first role whose excess is at most MARGIN below the largest; it is "mixed" if that is below LEAST."""


@dataclass(frozen=True)
class HeadRoles:
    """What one head does: the mean over all queries of the corpus.

    shares: role -> share of the weight.  uniform: the same for uniform attention of the same lengths.
    explained: the share of the weight on any role but far, each weight counted once.  distance: mean distance of the weight.
    explained_uniform, distance_uniform: the same for uniform attention.

    >>> head = regard.roles(regard.load("model"), [("cab", "C A B"), ("ad", "A D")]).heads[0]
    >>> head.kind, head.layer, head.head, head.role
    ('cross', 0, 0, 'near')
    >>> head.shares["near"] > head.uniform["near"], head.excess("near") > 0.5
    (True, True)
    """

    kind: Kind
    layer: int
    head: int
    shares: Mapping[str, float]
    uniform: Mapping[str, float]
    explained: float
    explained_uniform: float
    distance: float
    distance_uniform: float

    def excess(self, role: str) -> float:
        """How far the share lies above that of uniform attention: 0 for uniform attention, 1 if all weight has this role."""
        uniform = self.uniform[role]
        return (self.shares[role] - uniform) / (1 - uniform) if uniform < 1 else 0.0

    @property
    def role(self) -> str:
        """The role with the largest excess, or "mixed" if no role has much."""
        largest = max(map(self.excess, ROLES))
        return next((role for role in ROLES if self.excess(role) >= largest - MARGIN), "mixed") if largest >= LEAST else "mixed"


@dataclass(frozen=True)
class Roles:
    """What all heads of a model do. num_pairs: the number of pairs.  num_queries: the number of queries, by kind of attention.

    >>> found = regard.roles(regard.load("model"), [("cab", "C A B"), ("ad", "A D")])
    >>> found.num_pairs, found.num_queries
    (2, {'cross': 7})
    >>> found.kinds, len(found.distances("cross"))
    (('cross',), 1)
    >>> list(found.as_dict())
    ['num_pairs', 'num_queries', 'distances', 'heads']
    >>> found.draw("roles.svg").name, found.draw("roles.html").name
    ('roles.svg', 'roles.html')
    >>> print(found.table().splitlines()[1][:23])
    cross   0     0    near
    """

    heads: tuple[HeadRoles, ...]
    num_pairs: int
    num_queries: dict[str, int]

    def distances(self, kind: Kind) -> tuple[float, ...]:
        """Returns the mean distance of each layer, over its heads."""
        return tuple(float(np.mean([head.distance for head in heads])) for heads in self._layers(kind))

    def _layers(self, kind: Kind) -> list[list[HeadRoles]]:
        layers = sorted({head.layer for head in self.heads if head.kind == kind})
        return [[head for head in self.heads if (head.kind, head.layer) == (kind, layer)] for layer in layers]

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of attention of the model."""
        return tuple(kind for kind in KINDS if any(head.kind == kind for head in self.heads))

    def table(self) -> str:
        """Returns a table with one line per head: its role, the share of each role, and that of uniform attention behind it."""
        lines = [f"{'kind':8}{'layer':6}{'head':5}{'role':12}" + "".join(f"{role:>13}" for role in (*ROLES, "explained"))]
        lines[0] += f"{'distance':>13}"
        for head in self.heads:
            pairs = [(head.shares[role], head.uniform[role]) for role in ROLES] + [(head.explained, head.explained_uniform)]
            cells = "".join(f"{f'{share:.2f} ({uniform:.2f})':>13}" for share, uniform in pairs)
            distance = f"{f'{head.distance:.1f} ({head.distance_uniform:.1f})':>13}"
            lines.append(f"{head.kind:8}{head.layer:<6}{head.head:<5}{head.role:12}{cells}{distance}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        """Returns everything as JSON can hold it, with the role of each head and the mean distance of each layer."""
        return {
            "num_pairs": self.num_pairs,
            "num_queries": self.num_queries,
            "distances": {kind: self.distances(kind) for kind in self.kinds},
            "heads": [{**asdict(head), "role": head.role} for head in self.heads],
        }

    def draw(self, path: str | Path) -> Path:
        """Draws the shares of all heads and the mean distance by layer, and returns the path.

        path: a .png, .svg or .pdf file, or a .html page. Raises UserError as `regard.draw` does.
        """
        from regard.inspection.render import draw_roles

        path = Path(path)
        if path.suffix.lower() != ".html":
            return draw_roles(self, path)
        with new_file(path) as fresh:
            write(fresh, self._page().encode())
        return path

    def _repr_html_(self) -> str:
        """Returns the table as HTML, for notebooks."""
        names = ("kind", "layer", "head", "role", *ROLES, "explained", "distance")
        rows = ["".join(f"<th>{name}</th>" for name in names)]
        for head in self.heads:
            cells = [f"<td>{cell}</td>" for cell in (head.kind, head.layer, head.head, f"<b>{html.escape(head.role)}</b>")]
            cells += [_cell(head.shares[role], head.uniform[role], head.excess(role)) for role in ROLES]
            cells.append(_cell(head.explained, head.explained_uniform, head.explained))
            cells.append(f"<td>{head.distance:.2f} <small>{head.distance_uniform:.2f}</small></td>")
            rows.append("".join(cells))
        return "<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"

    def _page(self) -> str:
        curves = "".join(f"<h2>Mean distance by layer, {kind}</h2>{_curve(self._layers(kind))}" for kind in self.kinds)
        return _PAGE.format(pairs=f"{self.num_pairs:,}", table=self._repr_html_(), curves=curves)


def roles(model: Translator, pairs: Iterable[tuple[Given, str]]) -> Roles:
    """Measures what each head of a model does, over sources and given outputs. docs/inspection.md defines the roles.

    The pairs are read and run in batches, so a corpus of any size takes the memory of one batch.
    Raises UserError if the model reads files or has no attention, or if there are no pairs or one of them is too long.

    >>> found = regard.roles(regard.load("model"), [("cab", "C A B"), ("ad", "A D")])
    >>> [(head.kind, head.layer, head.head, head.role) for head in found.heads]
    [('cross', 0, 0, 'near')]
    """
    if isinstance(model.source, FileCodec):
        raise UserError(f"roles are about words, but this model reads {model.source.nouns}; use regard inspect instead")
    kinds = [kind for kind in KINDS if kind in model.reader.traits.attention]
    if not kinds:
        raise UserError("this model has no attention, so its heads have no roles")
    look = Look(tuple(Tap(kind, what="posterior") for kind in kinds))
    totals, number, numbered = Totals(), 0, enumerate(pairs)
    while chunk := list(islice(numbered, PAIRS_AT_A_TIME)):
        given = {line: _given(model, source, target, line) for line, (source, target) in chunk}
        requests = [replace(pair.request, look=look) for pair in given.values()]
        for forced in model.engine.force(requests, [pair.written for pair in given.values()], log_probs=False):
            if forced.error:
                raise UserError(f"pair {forced.id + 1}: {forced.error}")
            sides = _sides(model, given[forced.id])
            for seen in forced.seen:
                totals.add(seen.kind, seen.layer, seen.weights_BHTS[0], *sides[seen.kind])
        number += len(chunk)
    if not number:
        raise UserError("there are no pairs, so there is no attention to measure")
    return Roles(tuple(totals.heads()), number, totals.num_queries())


def _given(model: Translator, source: Given, target: str, line: int) -> GivenOutput:
    try:
        return model.reader.given_output(model.reader.accept(source, "roles"), target, line)
    except UserError as error:
        raise UserError(f"pair {line + 1}: {error}") from None


# --- tokens ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """The tokens of one axis. words: the number of the word that each token is a piece of; -1 if it is a word by itself."""

    tokens: tuple[str, ...]
    words: Array

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_punctuation(self) -> Array:
        """Whether each token consists of punctuation."""
        return np.array([_is_punctuation(token) for token in self.tokens], bool)


def _is_punctuation(token: str) -> bool:
    visible = token.strip().strip("▁Ġ")
    return bool(visible) and all(unicodedata.category(char).startswith("P") for char in visible)


def _sides(model: Translator, pair: GivenOutput) -> dict[Kind, tuple[Side, Side]]:
    """Returns the queries and the keys of each kind of attention."""
    reader, text = model.reader, pair.segment.source
    source_tokens = reader.labels(text, (pair.request.num_positions + 1,))
    units = reader.units(text, reader.pieces(text))
    source = Side(source_tokens, _words(() if units is None else units.of_tokens, len(source_tokens)))
    written, target_text = model.target.tokens(pair.written), model.target.normalised("".join(pair.texts))
    of_target = model.target.units(target_text, model.target.pieces(target_text)).of_tokens
    target = Side(written, _words(of_target, len(written)))
    read = Side(
        (*model.target.tokens((model.target.specials.start,)), *written[:-1]), np.concatenate(([-1], target.words[:-1]))
    )
    return {"encoder": (source, source), "decoder": (read, read), "cross": (target, source)}


def _words(of_tokens: Sequence[int | None], number: int) -> Array:
    """Returns the word of each token; tokens beyond those listed, such as <eos>, are no pieces of words."""
    words = np.full(number, -1)
    listed = [-1 if word is None else word for word in of_tokens[:number]]
    words[: len(listed)] = listed
    return words


# --- roles of one matrix -----------------------------------------------------------------------------------------------------


def distances_TS(kind: Kind, num_queries: int, num_keys: int) -> Array:
    """Returns |i − j|; for cross-attention the distance from the diagonal, |j − i (S − 1)/(T − 1)|."""
    queries = np.arange(num_queries, dtype=float)
    if kind == "cross":
        queries *= (num_keys - 1) / max(1, num_queries - 1)
    return np.abs(queries[:, None] - np.arange(num_keys))


def role_masks(kind: Kind, queries: Side, keys: Side) -> dict[str, Array]:
    """Returns which keys have which role for each query, (T, S) each; the sink depends on the weights.

    same word: another piece of the same word, or the same token elsewhere; in cross-attention, the same token in the source.
    """
    near_TS = distances_TS(kind, len(queries), len(keys)) <= 1
    same_TS = np.array(queries.tokens, object)[:, None] == np.array(keys.tokens, object)
    if kind != "cross":
        pieces_TS = (queries.words[:, None] == keys.words) & (queries.words[:, None] >= 0)
        same_TS = (same_TS | pieces_TS) & ~np.eye(len(queries), dtype=bool)
    columns = np.arange(len(keys))
    shape = near_TS.shape
    return {
        "first": np.broadcast_to(columns == 0, shape),
        "last": np.broadcast_to(columns == len(keys) - 1, shape),
        "same word": same_TS,
        "punctuation": np.broadcast_to(keys.is_punctuation, shape),
        "near": near_TS,
        "far": ~near_TS,
    }


def sums_HM(weights_HTS: Array, kind: Kind, queries: Side, keys: Side) -> Array:
    """Returns for each head the sums over its queries: the weight of each role, the weight explained, the distance, and the
    number of queries. The absolute weights of a query are scaled to 1; a query without weight does not count.

    The sink is the key that receives most weight of all queries of this pair and head.
    """
    totals_HT1 = np.abs(weights_HTS).sum(-1, keepdims=True, dtype=float)
    weights_HTS = np.abs(weights_HTS) / np.where(totals_HT1 > 0, totals_HT1, 1)
    of_roles = role_masks(kind, queries, keys)
    sink_HS = weights_HTS.sum(1)
    is_sink_HS = np.arange(len(keys)) == sink_HS.argmax(1)[:, None]
    sums = {role: (weights_HTS * mask_TS).sum((1, 2)) for role, mask_TS in of_roles.items()} | {"sink": sink_HS.max(1)}
    any_TS = np.logical_or.reduce([of_roles[role] for role in EXPLAINED if role != "sink"])
    explained_H = (weights_HTS * (any_TS | is_sink_HS[:, None])).sum((1, 2))
    distance_H = (weights_HTS * distances_TS(kind, len(queries), len(keys))).sum((1, 2))
    return np.stack([*(sums[role] for role in ROLES), explained_H, distance_H, (totals_HT1 > 0).sum((1, 2))], axis=1)


def uniform_TS(kind: Kind, num_queries: int, num_keys: int) -> Array:
    """Returns uniform attention: to all keys, or in the decoder to those that were read."""
    allow_TS = np.ones((num_queries, num_keys))
    if kind == "decoder":
        allow_TS = masks.causal(num_queries, num_keys).double().numpy()
    uniform: Array = allow_TS / allow_TS.sum(1, keepdims=True)
    return uniform


class Totals:
    """Sums over a corpus, by kind and layer: those of the heads, and those of uniform attention."""

    def __init__(self) -> None:
        self.sums_HM: dict[tuple[Kind, int], Array] = {}
        self.uniform_M: dict[tuple[Kind, int], Array] = {}

    def add(self, kind: Kind, layer: int, weights_HTS: Array, queries: Side, keys: Side) -> None:
        """Adds the weights of one pair."""
        uniform_1TS = uniform_TS(kind, len(queries), len(keys))[None]
        key = kind, layer
        self.sums_HM[key] = self.sums_HM.get(key, 0.0) + sums_HM(weights_HTS, kind, queries, keys)
        self.uniform_M[key] = self.uniform_M.get(key, 0.0) + sums_HM(uniform_1TS, kind, queries, keys)[0]

    def num_queries(self) -> dict[str, int]:
        """Returns the number of queries of each kind of attention."""
        return {kind: int(sums_M[-1]) for (kind, _), sums_M in sorted(self.uniform_M.items(), key=_order)}

    def heads(self) -> Iterator[HeadRoles]:
        """Yields the means of each head."""
        for (kind, layer), sums_HM in sorted(self.sums_HM.items(), key=_order):
            uniform_M = self.uniform_M[kind, layer]
            *uniform, explained_uniform, distance_uniform = (uniform_M[:-1] / uniform_M[-1]).tolist()
            for head, sums_M in enumerate(sums_HM):
                *shares, explained, distance = (sums_M[:-1] / max(1, sums_M[-1])).tolist()
                yield HeadRoles(
                    kind,
                    layer,
                    head,
                    dict(zip(ROLES, shares, strict=True)),
                    dict(zip(ROLES, uniform, strict=True)),
                    explained,
                    explained_uniform,
                    distance,
                    distance_uniform,
                )


def _order(item: tuple[tuple[Kind, int], Array]) -> tuple[int, int]:
    (kind, layer), _ = item
    return KINDS.index(kind), layer


# --- the page ----------------------------------------------------------------------------------------------------------------


def _cell(share: float, uniform: float, shade: float) -> str:
    colour = f"rgba(43,111,143,{min(1.0, max(0.0, shade)) * 0.6:.2f})"
    return f'<td style="background:{colour}">{share:.2f} <small>{uniform:.2f}</small></td>'


def _curve(layers: Sequence[Sequence[HeadRoles]]) -> str:
    """Returns a chart as SVG: a dot per head, a line through the means of the layers, a dashed one for uniform attention."""
    top = max(0.1, *(max(head.distance, head.distance_uniform) for heads in layers for head in heads)) * 1.05

    def x(layer: int) -> float:
        return 50 + 90 * layer

    def y(distance: float) -> float:
        return 150 - 130 * distance / top

    def line(values: Sequence[float], style: str) -> str:
        points = " ".join(f"{x(layer):.1f},{y(value):.1f}" for layer, value in enumerate(values))
        return f'<polyline points="{points}" fill="none" stroke="#1f6f8b" stroke-width="2" {style}/>'

    means = [float(np.mean([head.distance for head in heads])) for heads in layers]
    parts = [f'<svg width="{120 + 90 * len(layers)}" height="180" role="img">']
    for value in (0.0, top / 2, top):
        end = x(len(layers) - 1) + 20
        parts.append(f'<line x1="36" x2="{end}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="30" y="{y(value) + 4:.1f}" text-anchor="end">{value:.1f}</text>')
    parts.append(line([heads[0].distance_uniform for heads in layers], 'stroke-dasharray="4 4" opacity="0.5"'))
    parts.append(line(means, ""))
    for layer, heads in enumerate(layers):
        parts.append(f'<text x="{x(layer)}" y="172" text-anchor="middle">layer {heads[0].layer}</text>')
        for head in heads:
            title = f"<title>head {head.head}: {head.distance:.3f}</title>"
            parts.append(
                f'<circle cx="{x(layer)}" cy="{y(head.distance):.1f}" r="4" fill="#1f6f8b" opacity="0.5">{title}</circle>'
            )
    return "".join(parts) + "</svg>"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>What the heads do</title><style>
body {{ font: 14px/1.5 system-ui, sans-serif; margin: 24px; color: #1f2933; background: #fbfaf7; }}
table {{ border-collapse: collapse; background: #fff; }}
th, td {{ border: 1px solid #e4e1da; padding: 3px 9px; text-align: right; font-variant-numeric: tabular-nums; }}
small {{ color: #66727f; }} h2 {{ font-size: 14px; margin: 24px 0 6px; }} svg text {{ font-size: 11px; fill: #66727f; }}
</style></head><body>
<h1 style="font-size:20px;font-weight:500">What the heads do, over {pairs} pairs</h1>
<p>The share of the attention that has each role, and small behind it that of uniform attention of the same
lengths. A cell is dark if its share is far above that of uniform attention. Explained: the weight with any role but far, each
weight counted once.</p>
{table}{curves}
<p><small>A dot is a head, the line their mean, the dashed line uniform attention.</small></p>
</body></html>
"""
