"""Word alignments out of attention: which layer and head to read, found out by the model itself; Pharaoh format; error rate."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.checkpoint.files import replace_file
from regard.checkpoint.folder import read_config, read_settings
from regard.contracts import AlignmentHead
from regard.data.documents import mapping, validated
from regard.data.files import shorten
from regard.data.labels import label, readable
from regard.data.sources import FileCodec, num_positions
from regard.data.tokenizers.codec import Codec
from regard.errors import UserError, plural, shown
from regard.inspection.capture import LONGEST, Inspection, Layer, inspect
from regard.models.build import ModelSettings
from regard.models.transformer import TransformerSettings
from regard.pipeline import Translator

# H heads  T target places  S source places

Links = frozenset[tuple[int, int]]
"""(source place, target place), from 0; <eos> is never among them."""


def weights_TS(head: AlignmentHead, seen: Inspection) -> Tensor:
    """One row per target token and one column per source token, without <eos>."""
    layers = _cross(seen)
    if layers[0].summary is not None:
        raise UserError(f"texts of more than {LONGEST} tokens are only summarised, so they cannot be aligned; split them")
    return head.weights_TS([one.numbers["weights"] for one in layers], len(seen.target) - 1, len(seen.source) - 1)


def _cross(seen: Inspection) -> list[Layer]:
    layers = [one for one in seen.layers if one.kind == "cross"]
    if not layers:
        raise UserError("this model does not look at its source, so there is nothing to align")
    return layers


def links(head: AlignmentHead, seen: Inspection) -> Links:
    """Each target token with the source token that it looks at most."""
    best = weights_TS(head, seen).argmax(-1).tolist()
    return frozenset((source, target) for target, source in enumerate(best))


def alignment_heads(seen: Inspection) -> list[AlignmentHead]:
    """Every head, the mean of every layer and the mean of all, each both ways. The first of equals counts: the plainest."""
    layers = _cross(seen)
    found: list[AlignmentHead] = []
    for shifted in (False, True):
        if len(layers) > 1:
            found.append(AlignmentHead(None, None, shifted))
        for one in reversed(layers):
            found.append(AlignmentHead(one.layer, None, shifted))
            if one.num_heads > 1:
                found += [AlignmentHead(one.layer, head, shifted) for head in range(one.num_heads)]
    return found


# --- links -------------------------------------------------------------------------------------------------------------------


def pharaoh(links: Iterable[tuple[int, int]]) -> str:
    """`0-0 1-2`: source-target, in the order of the source."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def parse_pharaoh(line: str) -> tuple[Links, Links]:
    """(sure, possible) links of one line; `3-4` is sure, `3p4` or `3?4` only possible. Sure ones are possible too."""
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


def alignment_error_rate(found: Sequence[Links], sure: Sequence[Links], possible: Sequence[Links] | None = None) -> float:
    """1 − (|A∩S| + |A∩P|) / (|A| + |S|), over all sentences together (Och & Ney 2003, eq. 21). 0 is perfect."""
    possible = sure if possible is None else possible
    hits = links = 0
    for a, s, p in zip(found, sure, possible, strict=True):
        hits += len(a & s) + len(a & (p | s))
        links += len(a) + len(s)
    return 1 - hits / links if links else 0.0


def turned(links: Links) -> Links:
    """The same with the sides exchanged."""
    return frozenset((target, source) for source, target in links)


# --- which place is best -----------------------------------------------------------------------------------------------------

TextPair = tuple[str, str]


def inspect_pairs(translator: Translator, pairs: Sequence[TextPair]) -> list[Inspection]:
    if isinstance(translator.source, FileCodec):
        raise UserError(f"align links tokens, and this model reads {translator.source.nouns}; look at it with regard inspect")
    outputs = [translator.target.encode(target) for _, target in pairs]
    for number, ((source, _), output) in enumerate(zip(pairs, outputs, strict=True), start=1):
        if (size := max(num_positions(translator.read(source).ids), len(output))) > translator.room:
            raise UserError(
                f"pair {number}: a text of {size:,} tokens is longer than the {translator.room:,} that are looked at at once; "
                "split it, or leave it out"
            )
    return [inspect(translator, source, output=output) for (source, _), output in zip(pairs, outputs, strict=True)]


def cut_differently(translator: Translator, pairs: Iterable[TextPair]) -> str:
    """For people: the first text whose tokens are not what people count, and its tokens. Nothing where all of them are.

    People count words, or letters where a text is one word; a letter that is a piece of a word is none of these.
    """
    for source, target in pairs:
        text = translator.read(source).text
        for one, codec in ((text, translator.source), (target, translator.target)):
            words, tokens = one.split(), codec.pieces(one)
            are_letters = len(words) == 1 and tokens == tuple(one) and isinstance(codec, Codec) and not codec.has_pieces
            if [token.strip() for token in tokens] != words and not are_letters:
                some = " ".join(map(label, tokens[:8])) + (" …" if len(tokens) > 8 else "")
                counts = f"{plural(len(words), 'word')} but {plural(len(tokens), 'token')}"
                return f"{shorten(readable(one))!r} has {counts} ({some})"
    return ""


def _check_range(seen: Sequence[Inspection], gold: Sequence[Links]) -> None:
    if len(seen) != len(gold):
        raise UserError(
            f"there are {plural(len(seen), 'pair')} but {plural(len(gold), 'line')} of alignments; expected one for each"
        )
    for number, (one, wanted) in enumerate(zip(seen, gold, strict=True), start=1):
        sizes = len(one.source) - 1, len(one.target) - 1
        wrong = sorted(link for link in wanted if link[0] >= sizes[0] or link[1] >= sizes[1])
        if wrong:
            raise UserError(
                f"alignment {number} holds {wrong[0][0]}-{wrong[0][1]}, but this pair has {plural(sizes[0], 'source token')} "
                f"and {plural(sizes[1], 'target token')}, numbered from 0"
            )


def best_alignment_head(
    seen: Sequence[Inspection], sure: Sequence[Links], possible: Sequence[Links] | None = None
) -> tuple[AlignmentHead, float]:
    """The place whose links come nearest to those of people, and its alignment error rate."""
    if not seen:
        raise UserError("there are no pairs, so no head can be chosen")
    found = alignment_heads(seen[0])
    _check_range(seen, [one | other for one, other in zip(sure, possible or sure, strict=True)])
    rated = [(alignment_error_rate([links(head, one) for one in seen], sure, possible), head) for head in found]
    error, head = min(rated, key=lambda one: one[0])
    return head, error


def best_agreement(forward: Sequence[Inspection], backward: Sequence[Inspection]) -> tuple[AlignmentHead, AlignmentHead, float]:
    """The two places, one in each direction, whose links agree best; nobody has to align anything by hand.

    Gives the error rate of the one measured by the other. `backward` holds the same pairs with the sides exchanged.
    """
    if not forward:
        raise UserError("there are no pairs, so no head can be chosen")
    for one, other in zip(forward, backward, strict=True):
        if (len(one.source), len(one.target)) != (len(other.target), len(other.source)):
            raise UserError(
                f"the two models cut {shorten(one.text)!r} into {len(one.source) - 1} and {len(other.target) - 1} tokens, and "
                f"its translation into {len(one.target) - 1} and {len(other.source) - 1}, so their links cannot be compared; "
                "train both with the same vocabularies"
            )
    ahead = {head: [links(head, one) for one in forward] for head in alignment_heads(forward[0])}
    back = {head: [turned(links(head, one)) for one in backward] for head in alignment_heads(backward[0])}
    rated = [(alignment_error_rate(a, b), here, there) for here, a in ahead.items() for there, b in back.items()]
    error, here, there = min(rated, key=lambda found: found[0])
    return here, there, error


# --- kept in the model folder ------------------------------------------------------------------------------------------------


def write_alignment_head(folder: Path, head: AlignmentHead, **facts: Any) -> None:
    """Writes into config.json where this model's alignments are to be read, and how that was found out."""
    path = folder / "config.json"
    config = json.loads(path.read_bytes())
    config["alignment"] = {**asdict(head), **facts}
    try:
        replace_file(path, json.dumps(config, indent=2, ensure_ascii=False).encode())
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror or error}; copy the model to a folder of your own"
        ) from None


def read_alignment_head(folder: Path) -> AlignmentHead:
    """What `write_alignment_head` wrote; else the mean of the last layer."""
    config = read_config(folder)
    if config.get("alignment") is None:
        return AlignmentHead()
    try:
        given, names = mapping(config["alignment"], "alignment"), AlignmentHead.__dataclass_fields__
        if missing := names.keys() - given.keys():
            raise UserError(f"alignment lacks {', '.join(sorted(missing))}")
        head = validated(AlignmentHead, {name: given[name] for name in names}, "alignment")
        _check_exists(head, read_settings(folder, config["model"]))
    except UserError as error:
        raise UserError(
            f"{folder / 'config.json'}: {error}; find the place again with regard align --gold or --backward"
        ) from None
    return head


def _check_exists(head: AlignmentHead, settings: ModelSettings) -> None:
    """Whether a model of these settings attends there. Of a Transformer every layer of the decoder does, with all heads."""
    layers, heads = (settings.decoder_layers, settings.heads) if isinstance(settings, TransformerSettings) else (1, 1)
    if head.layer is not None and not -layers <= head.layer < layers:
        raise UserError(f"alignment: layer is {shown(head.layer)}, but the model has {plural(layers, 'layer')}")
    if head.head is not None and not 0 <= head.head < heads:
        raise UserError(f"alignment: head is {shown(head.head)}, but a layer has {plural(heads, 'head')}")
