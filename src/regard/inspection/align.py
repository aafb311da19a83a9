"""Word alignments from attention: choosing the layer and head to read them from, Pharaoh format, alignment error rate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from regard.contracts import AlignmentHead
from regard.data.files import shorten
from regard.data.labels import label, readable
from regard.data.sources import FileCodec, num_positions
from regard.data.tokenizers.codec import Codec
from regard.errors import UserError, plural
from regard.inspection.capture import LONGEST, Inspection, Layer, inspect
from regard.pipeline import Translator

# H heads  T target positions  S source positions

Links = frozenset[tuple[int, int]]
"""(source position, target position), from 0; <eos> is never included."""


def weights_TS(head: AlignmentHead, inspection: Inspection) -> Tensor:
    """Returns the weights of an alignment head: one row per target token and one column per source token, without <eos>."""
    layers = _cross_layers(inspection)
    if layers[0].summary is not None:
        raise UserError(f"texts of more than {LONGEST} tokens are only summarised, so they cannot be aligned; split them")
    weights = [layer.numbers["weights"] for layer in layers]
    return head.weights_TS(weights, len(inspection.target) - 1, len(inspection.source) - 1)


def _cross_layers(inspection: Inspection) -> list[Layer]:
    layers = [layer for layer in inspection.layers if layer.kind == "cross"]
    if not layers:
        raise UserError("this model has no attention to its source, so there is nothing to align")
    return layers


def links(head: AlignmentHead, inspection: Inspection) -> Links:
    """Links each target token to the source token with the largest weight."""
    best = weights_TS(head, inspection).argmax(-1).tolist()
    return frozenset((source, target) for target, source in enumerate(best))


def alignment_heads(inspection: Inspection) -> list[AlignmentHead]:
    """Returns all candidates: every head, the mean of each layer and the mean of all layers, each unshifted and shifted.

    Means come before single heads, because the first of several equally good candidates is chosen.
    """
    layers = _cross_layers(inspection)
    candidates: list[AlignmentHead] = []
    for shifted in (False, True):
        if len(layers) > 1:
            candidates.append(AlignmentHead(None, None, shifted))
        for layer in reversed(layers):
            candidates.append(AlignmentHead(layer.layer, None, shifted))
            if layer.num_heads > 1:
                candidates += [AlignmentHead(layer.layer, head, shifted) for head in range(layer.num_heads)]
    return candidates


# --- links -------------------------------------------------------------------------------------------------------------------


def pharaoh(links: Iterable[tuple[int, int]]) -> str:
    """Formats links as `0-0 1-2`: source-target, in the order of the source."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def parse_pharaoh(line: str) -> tuple[Links, Links]:
    """Returns the (sure, possible) links of one line; `3-4` is sure, `3p4` or `3?4` only possible. Sure links are in both."""
    sure, possible = set(), set()
    for link in line.split():
        sign = next((sign for sign in "-p?" if sign in link), "")
        source, _, target = link.partition(sign) if sign else (link, "", "")
        if not (source.isdigit() and target.isdigit()):
            raise UserError(f"{link!r} is not a link; expected source-target such as 3-4, or 3p4 if it is only possible")
        possible.add((int(source), int(target)))
        if sign == "-":
            sure.add((int(source), int(target)))
    return frozenset(sure), frozenset(possible)


def alignment_error_rate(predicted: Sequence[Links], sure: Sequence[Links], possible: Sequence[Links] | None = None) -> float:
    """Returns 1 − (|A∩S| + |A∩P|) / (|A| + |S|) for predicted links A, sure links S and possible links P, over all sentences
    together (Och & Ney 2003, eq. 21). 0 is perfect."""
    possible = sure if possible is None else possible
    hits = links = 0
    for a, s, p in zip(predicted, sure, possible, strict=True):
        hits += len(a & s) + len(a & (p | s))
        links += len(a) + len(s)
    return 1 - hits / links if links else 0.0


def turned(links: Links) -> Links:
    """Returns the links with source and target exchanged."""
    return frozenset((target, source) for source, target in links)


# --- the best alignment head -------------------------------------------------------------------------------------------------

TextPair = tuple[str, str]


def inspect_pairs(translator: Translator, pairs: Sequence[TextPair]) -> list[Inspection]:
    """Inspects each source with its given target as the output. Raises UserError if the model reads files, or a text is too
    long."""
    if isinstance(translator.source, FileCodec):
        raise UserError(f"align links tokens, but this model reads {translator.source.nouns}; use regard inspect instead")
    outputs = [translator.target.encode(target) for _, target in pairs]
    for number, ((source, _), output) in enumerate(zip(pairs, outputs, strict=True), start=1):
        if (size := max(num_positions(translator.read(source).ids), len(output))) > translator.max_tokens:
            raise UserError(
                f"pair {number}: a text of {size:,} tokens is longer than the limit of {translator.max_tokens:,}; "
                "split it, or leave it out"
            )
    return [inspect(translator, source, output=output) for (source, _), output in zip(pairs, outputs, strict=True)]


def cut_differently(translator: Translator, pairs: Iterable[TextPair]) -> str:
    """Describes the first text whose tokens are not the units that a reader would count; returns "" if there is none.

    A reader counts words or, in a text of one word, letters; letters that are pieces of a subword vocabulary do not count.
    """
    for source, target in pairs:
        for text, codec in ((translator.read(source).text, translator.source), (target, translator.target)):
            words, tokens = text.split(), codec.pieces(text)
            are_letters = len(words) == 1 and tokens == tuple(text) and isinstance(codec, Codec) and not codec.has_pieces
            if [token.strip() for token in tokens] != words and not are_letters:
                first = " ".join(map(label, tokens[:8])) + (" …" if len(tokens) > 8 else "")
                counts = f"{plural(len(words), 'word')} but {plural(len(tokens), 'token')}"
                return f"{shorten(readable(text))!r} has {counts} ({first})"
    return ""


def _check_range(inspections: Sequence[Inspection], gold: Sequence[Links]) -> None:
    if len(inspections) != len(gold):
        raise UserError(
            f"there are {plural(len(inspections), 'pair')} but {plural(len(gold), 'line')} of alignments; expected one line "
            "per pair"
        )
    for number, (inspection, gold_links) in enumerate(zip(inspections, gold, strict=True), start=1):
        sizes = len(inspection.source) - 1, len(inspection.target) - 1
        wrong = sorted(link for link in gold_links if link[0] >= sizes[0] or link[1] >= sizes[1])
        if wrong:
            raise UserError(
                f"alignment {number} holds {wrong[0][0]}-{wrong[0][1]}, but this pair has {plural(sizes[0], 'source token')} "
                f"and {plural(sizes[1], 'target token')}, numbered from 0"
            )


def best_alignment_head(
    inspections: Sequence[Inspection], sure: Sequence[Links], possible: Sequence[Links] | None = None
) -> tuple[AlignmentHead, float]:
    """Returns the alignment head whose links match the manual ones best, and its alignment error rate.

    Raises UserError if there are no pairs, or if the manual links do not fit them.
    """
    if not inspections:
        raise UserError("there are no pairs, so no head can be chosen")
    candidates = alignment_heads(inspections[0])
    _check_range(inspections, [certain | other for certain, other in zip(sure, possible or sure, strict=True)])
    rated = [
        (alignment_error_rate([links(head, inspection) for inspection in inspections], sure, possible), head)
        for head in candidates
    ]
    error, head = min(rated, key=lambda pair: pair[0])
    return head, error


def best_agreement(forward: Sequence[Inspection], backward: Sequence[Inspection]) -> tuple[AlignmentHead, AlignmentHead, float]:
    """Returns the two alignment heads, one per direction, whose links agree best, and the error rate of one measured against
    the other. No manual alignments are needed.

    backward: inspections of the same pairs with source and target exchanged, by the model of the opposite direction.
    """
    if not forward:
        raise UserError("there are no pairs, so no head can be chosen")
    for there, back in zip(forward, backward, strict=True):
        if (len(there.source), len(there.target)) != (len(back.target), len(back.source)):
            raise UserError(
                f"the two models split {shorten(there.text)!r} into {len(there.source) - 1} and {len(back.target) - 1} tokens, "
                f"and its translation into {len(there.target) - 1} and {len(back.source) - 1}, so their links cannot be "
                "compared; train both with the same vocabularies"
            )
    forward_links = {head: [links(head, there) for there in forward] for head in alignment_heads(forward[0])}
    backward_links = {head: [turned(links(head, back)) for back in backward] for head in alignment_heads(backward[0])}
    rated = [
        (alignment_error_rate(a, b), forward_head, backward_head)
        for forward_head, a in forward_links.items()
        for backward_head, b in backward_links.items()
    ]
    error, forward_head, backward_head = min(rated, key=lambda triple: triple[0])
    return forward_head, backward_head, error
