"""Word alignments of given pairs, and the search for the layer and head to read them from."""

# N alignment heads  U target units  V source units

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from regard.contracts import AlignmentHead, Array, Forced, SourceText
from regard.data.reader import GivenOutput
from regard.data.source_text import flat
from regard.data.sources import FileCodec
from regard.equality import ByValue
from regard.errors import UserError, plural, shorten
from regard.links import Links, Units, alignment_error_rate, links_of, strongest
from regard.look import Look, Tap
from regard.pipeline import Translator

PAIRS_AT_A_TIME = 512
"""How many pairs are run through the model before their weights are dropped; only the links are kept."""

TextPair = tuple[SourceText, str]


@dataclass(frozen=True, eq=False)
class AlignedPair(ByValue):
    """The source unit (a word; see `Codec.units`) that each target unit attends to most, for some alignment heads.

    text: the source.  num_sources, num_targets: the number of units.
    best_NU: the index of a source unit for each head and target unit; -1 if there is none.
    """

    text: str
    num_sources: int
    num_targets: int
    heads: tuple[AlignmentHead, ...]
    best_NU: Array

    def links(self, head: AlignmentHead) -> Links:
        """Links each target unit to the source unit with the largest weight."""
        return links_of(self.best_NU[self.heads.index(head)])

    def links_NUV(self) -> Array:
        """Returns the links of all heads as 1 and 0."""
        return np.equal.outer(self.best_NU, np.arange(self.num_sources)).astype(np.float32)


def alignment_heads(translator: Translator) -> list[AlignmentHead]:
    """Returns all candidates: every head, the mean of each layer and the mean of all layers, of the weights and of the norms,
    each unshifted and shifted.

    Weights come before norms and means before single heads, because the first of several equally good candidates is chosen.
    """
    num_layers, num_heads = _cross_attention(translator)
    candidates: list[AlignmentHead] = []
    for norms in (False, True):
        for shifted in (False, True):
            if num_layers > 1:
                candidates.append(AlignmentHead(None, None, shifted, norms))
            for layer in reversed(range(num_layers)):
                candidates.append(AlignmentHead(layer, None, shifted, norms))
                if num_heads > 1:
                    candidates += [AlignmentHead(layer, head, shifted, norms) for head in range(num_heads)]
    return candidates


def _cross_attention(translator: Translator) -> tuple[int, int]:
    """Returns the numbers of layers and heads. Raises UserError if the model cannot align texts."""
    if isinstance(translator.source, FileCodec):
        raise UserError(f"align links words, but this model reads {translator.source.nouns}; use regard inspect instead")
    if "cross" not in translator.reader.traits.attention:
        raise UserError("this model has no attention to its source, so there is nothing to align")
    return translator.reader.traits.attention["cross"]


def align_pairs(
    translator: Translator,
    pairs: Iterable[TextPair],
    heads: Sequence[AlignmentHead] | None = None,
    *,
    pieces: bool | None = None,
) -> list[AlignedPair]:
    """Runs the model over each source with its given target as the output, and keeps where the heads attend to.

    heads: the alignment heads to keep; all candidates by default.  pieces: what links count; see `Result.alignment`.
    Raises UserError if the model reads files or has no attention to its source, or if a text is too long.
    """
    chosen = tuple(alignment_heads(translator) if heads is None else heads)
    _cross_attention(translator)
    layers = {head.layer for head in chosen}
    layer = layers.pop() if len(layers) == 1 else None
    look = Look(tuple(dict.fromkeys(Tap("cross", layer, what=head.tap.what) for head in chosen)))
    aligned: list[AlignedPair] = []
    numbered = enumerate(pairs)
    while chunk := list(islice(numbered, PAIRS_AT_A_TIME)):
        read = {number: _read(translator, source, target, number) for number, (source, target) in chunk}
        requests = [replace(pair.request, look=look) for pair in read.values()]
        results = {
            forced.id: _aligned(read[forced.id], forced, chosen, *_units(translator, read[forced.id], pieces))
            for forced in translator.engine.force(requests, [pair.written for pair in read.values()])
        }
        aligned += [results[number] for number in read]
    return aligned


def _read(translator: Translator, source: SourceText, target: str, number: int) -> GivenOutput:
    try:
        pair = translator.reader.given_output(source, target, number)
        if not pair.request.num_positions:
            raise UserError("the source is empty, so there is nothing to align")
        return pair
    except UserError as error:
        raise UserError(f"pair {number + 1}: {error}") from None


def _units(translator: Translator, pair: GivenOutput, pieces: bool | None) -> tuple[Units, Units]:
    """Returns what is counted in the source and in the target of a pair."""
    reader, source, target = translator.reader, pair.segment.source, translator.target.normalised(pair.texts[-1])
    units = reader.units(source, reader.pieces(source), pieces=pieces)
    assert units is not None  # the source is no file
    return units, translator.target.units(target, translator.target.pieces(target), pieces=pieces)


def _aligned(pair: GivenOutput, forced: Forced, heads: tuple[AlignmentHead, ...], source: Units, target: Units) -> AlignedPair:
    if forced.error:
        raise UserError(f"pair {forced.id + 1}: {forced.error}")
    layers = {what: [seen.weights_BHTS[0] for seen in forced.seen if seen.what == what] for what in ("weights", "norms")}
    sizes = len(target.of_tokens), len(source.of_tokens)
    weights_NTS = np.stack([head.weights_TS(layers[head.tap.what], *sizes) for head in heads])
    best_NU = strongest(weights_NTS, source, target).astype(np.int32)
    return AlignedPair(flat(pair.segment.source), source.number, target.number, heads, best_NU)


# --- the best alignment head -------------------------------------------------------------------------------------------------


def _check_range(aligned: Sequence[AlignedPair], gold: Sequence[Links]) -> None:
    if len(aligned) != len(gold):
        raise UserError(
            f"there are {plural(len(aligned), 'pair')} but {plural(len(gold), 'line')} of alignments; expected one line per "
            "pair"
        )
    for number, (pair, gold_links) in enumerate(zip(aligned, gold, strict=True), start=1):
        wrong = sorted(link for link in gold_links if link[0] >= pair.num_sources or link[1] >= pair.num_targets)
        if wrong:
            raise UserError(
                f"alignment {number} holds {wrong[0][0]}-{wrong[0][1]}, but this pair counts from 0-0 to "
                f"{pair.num_sources - 1}-{pair.num_targets - 1}; if the alignments count from 1, add --one-based"
            )


def best_alignment_head(
    aligned: Sequence[AlignedPair], sure: Sequence[Links], possible: Sequence[Links] | None = None
) -> tuple[AlignmentHead, float]:
    """Returns the alignment head whose links match the manual ones best, and its alignment error rate.

    Raises UserError if there are no pairs, or if the manual links do not fit them.
    """
    if not aligned:
        raise UserError("there are no pairs, so no head can be chosen")
    _check_range(aligned, [certain | other for certain, other in zip(sure, possible or sure, strict=True)])
    rated = [(alignment_error_rate([pair.links(head) for pair in aligned], sure, possible), head) for head in aligned[0].heads]
    error, head = min(rated, key=lambda pair: pair[0])
    return head, error


def best_agreement(
    forward: Sequence[AlignedPair], backward: Sequence[AlignedPair]
) -> tuple[AlignmentHead, AlignmentHead, float]:
    """Returns the two alignment heads, one per direction, whose links agree best, and the error rate of one measured against
    the other. No manual alignments are needed.

    backward: the same pairs with source and target exchanged, aligned by the model of the opposite direction.
    """
    if not forward:
        raise UserError("there are no pairs, so no head can be chosen")
    hits_NM = np.zeros((len(forward[0].heads), len(backward[0].heads)))
    links_NM = np.zeros_like(hits_NM)
    for there, back in zip(forward, backward, strict=True):
        if (there.num_sources, there.num_targets) != (back.num_targets, back.num_sources):
            raise UserError(
                f"the two models count {there.num_sources} and {back.num_targets} units in {shorten(there.text)!r}, and "
                f"{there.num_targets} and {back.num_sources} in its translation, so their links cannot be compared; "
                "add --words to count words"
            )
        there_NUV, back_MVU = there.links_NUV(), back.links_NUV()
        hits_NM += there_NUV.reshape(len(there_NUV), -1) @ back_MVU.swapaxes(1, 2).reshape(len(back_MVU), -1).T
        links_NM += np.add.outer(there_NUV.sum((1, 2)), back_MVU.sum((1, 2)))
    disagreement_NM = 1 - 2 * hits_NM / np.maximum(links_NM, 1)
    n, m = np.unravel_index(disagreement_NM.argmin(), disagreement_NM.shape)
    return forward[0].heads[n], backward[0].heads[m], float(disagreement_NM[n, m])
