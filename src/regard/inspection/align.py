"""Word alignments from attention: choosing the layer and head to read them from, Pharaoh format, alignment error rate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from regard.contracts import AlignmentHead, Forced, SourceText
from regard.data.labels import label, readable
from regard.data.reader import GivenOutput
from regard.data.source_text import flat
from regard.data.sources import FileCodec
from regard.data.tokenizers.codec import Codec
from regard.errors import UserError, plural, shorten
from regard.look import Look, Tap
from regard.pipeline import Translator

PAIRS_AT_A_TIME = 512
"""How many pairs are run through the model before their weights are dropped; only the links are kept."""

Links = frozenset[tuple[int, int]]
"""(source position, target position), from 0; <eos> is never included."""


@dataclass(frozen=True)
class AlignedPair:
    """The source token that each target token attends to most, for some alignment heads.

    text: the source.  num_sources, num_targets: the number of tokens, without <eos>.
    best: alignment head -> the index of a source token for each target token.
    """

    text: str
    num_sources: int
    num_targets: int
    best: Mapping[AlignmentHead, tuple[int, ...]]

    def links(self, head: AlignmentHead) -> Links:
        """Links each target token to the source token with the largest weight."""
        return frozenset((source, target) for target, source in enumerate(self.best[head]))


def alignment_heads(translator: Translator) -> list[AlignmentHead]:
    """Returns all candidates: every head, the mean of each layer and the mean of all layers, each unshifted and shifted.

    Means come before single heads, because the first of several equally good candidates is chosen.
    """
    num_layers, num_heads = _cross_attention(translator)
    candidates: list[AlignmentHead] = []
    for shifted in (False, True):
        if num_layers > 1:
            candidates.append(AlignmentHead(None, None, shifted))
        for layer in reversed(range(num_layers)):
            candidates.append(AlignmentHead(layer, None, shifted))
            if num_heads > 1:
                candidates += [AlignmentHead(layer, head, shifted) for head in range(num_heads)]
    return candidates


def _cross_attention(translator: Translator) -> tuple[int, int]:
    """Returns the numbers of layers and heads. Raises UserError if the model cannot align texts."""
    if isinstance(translator.source, FileCodec):
        raise UserError(f"align links tokens, but this model reads {translator.source.nouns}; use regard inspect instead")
    if "cross" not in translator.reader.traits.attention:
        raise UserError("this model has no attention to its source, so there is nothing to align")
    return translator.reader.traits.attention["cross"]


def align_pairs(
    translator: Translator, pairs: Iterable[TextPair], heads: Sequence[AlignmentHead] | None = None
) -> list[AlignedPair]:
    """Runs the model over each source with its given target as the output, and keeps where the heads attend to.

    heads: the alignment heads to keep; all candidates by default. Raises UserError if the model reads files or has no attention
    to its source, or if a text is too long.
    """
    candidates = alignment_heads(translator)
    chosen = candidates if heads is None else heads
    layers = {head.layer for head in chosen}
    look = Look((Tap("cross", layers.pop() if len(layers) == 1 else None, what="posterior"),))
    aligned: list[AlignedPair] = []
    numbered = enumerate(pairs)
    while chunk := list(islice(numbered, PAIRS_AT_A_TIME)):
        read = {number: _read(translator, source, target, number) for number, (source, target) in chunk}
        requests = [replace(pair.request, look=look) for pair in read.values()]
        results = {
            forced.id: _aligned(read[forced.id], forced, chosen)
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


def _aligned(pair: GivenOutput, forced: Forced, heads: Sequence[AlignmentHead]) -> AlignedPair:
    if forced.error:
        raise UserError(f"pair {forced.id + 1}: {forced.error}")
    num_sources, num_targets = pair.request.num_positions, len(pair.written) - 1
    layers_HTS = [layer.weights_BHTS[0] for layer in forced.seen]
    best = {head: tuple(head.weights_TS(layers_HTS, num_targets, num_sources).argmax(-1).tolist()) for head in heads}
    return AlignedPair(flat(pair.segment.source), num_sources, num_targets, best)


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

TextPair = tuple[SourceText, str]


def cut_differently(translator: Translator, pairs: Iterable[TextPair]) -> str:
    """Describes the first text whose tokens are not the units that a reader would count; returns "" if there is none.

    A reader counts words or, in a text of one word, letters; letters that are pieces of a subword vocabulary do not count.
    """
    for source, target in pairs:
        for text, codec in ((flat(translator.reader.normalised(source)), translator.source), (target, translator.target)):
            words, tokens = text.split(), codec.pieces(text) if isinstance(codec, Codec) else ()
            are_letters = len(words) == 1 and tokens == tuple(text) and isinstance(codec, Codec) and not codec.has_pieces
            if [token.strip() for token in tokens] != words and not are_letters:
                first = " ".join(map(label, tokens[:8])) + (" …" if len(tokens) > 8 else "")
                counts = f"{plural(len(words), 'word')} but {plural(len(tokens), 'token')}"
                return f"{shorten(readable(text))!r} has {counts} ({first})"
    return ""


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
                f"alignment {number} holds {wrong[0][0]}-{wrong[0][1]}, but this pair has "
                f"{plural(pair.num_sources, 'source token')} and {plural(pair.num_targets, 'target token')}, numbered from 0"
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
    rated = [(alignment_error_rate([pair.links(head) for pair in aligned], sure, possible), head) for head in aligned[0].best]
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
    for there, back in zip(forward, backward, strict=True):
        if (there.num_sources, there.num_targets) != (back.num_targets, back.num_sources):
            raise UserError(
                f"the two models split {shorten(there.text)!r} into {there.num_sources} and {back.num_targets} tokens, "
                f"and its translation into {there.num_targets} and {back.num_sources}, so their links cannot be "
                "compared; train both with the same vocabularies"
            )
    forward_links = {head: [there.links(head) for there in forward] for head in forward[0].best}
    backward_links = {head: [turned(back.links(head)) for back in backward] for head in backward[0].best}
    rated = [
        (alignment_error_rate(a, b), forward_head, backward_head)
        for forward_head, a in forward_links.items()
        for backward_head, b in backward_links.items()
    ]
    error, forward_head, backward_head = min(rated, key=lambda triple: triple[0])
    return forward_head, backward_head, error
