"""What the model did for a translation: its words and their sources, its probabilities, its attention, its alternatives."""

# T target tokens  S source positions  V vocabulary

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast, get_args

import numpy as np

from regard.contracts import Array, Hypothesis
from regard.data.reader import Segment
from regard.data.source_text import flat
from regard.look import Edit, Kind, Look, Tap
from regard.serving.alignment import can_align, force, run_alignment, word_links
from regard.serving.parameters import Parameters, flag, number
from regard.serving.refusal import Refusal
from regard.serving.runner import Runner
from regard.serving.translation import Leg, Served, answers_of

FIELDS = ("alignment", "tokens", "attention", "alternatives_at", "repetition", "coverage")
"""The optional fields of a request; the answer has fields of the same names."""

CHOICES = 6
"""How many words `alternatives_at` offers."""

REPEATED = 3
"""An output repeats itself if the same words occur so many times one after the other, more often than in the source."""

COVERED = 0.25
"""A source word is covered if the words of the output together give it at least so much attention."""
UNCOVERED = 0.5
"""An output leaves its source if it does not cover more than this share of the source words."""

Run = tuple[Segment, Hypothesis]


async def explain(runner: Runner, given: Parameters, legs: Sequence[Leg]) -> dict[str, Any]:
    """Returns the fields that a request asks for, about the best output of one text.

    legs: the text as it was translated. Raises Refusal if the models cannot give a field.
    """
    leg = legs[-1]
    runs = [(segment, outputs[0]) for part in leg.parts for segment, outputs in zip(part.segments, part.outputs, strict=True)]
    found: dict[str, Any] = {}
    wanted = [name for name in FIELDS if given.get(name) not in (None, False, "", "false", "0")]
    if len(legs) > 1 and set(wanted) - {"alignment"}:
        raise Refusal(400, f"Invalid request: {wanted[-1]} explains one model, but this translation runs through two")
    if {"alignment", "coverage"} & set(wanted) and not all(can_align(each.model) for each in legs):
        raise Refusal(400, "Invalid request: this model does not attend to its source, so it has no alignment")
    if flag(given, "alignment"):
        found["alignment"] = await alignment(runner, legs)
    if flag(given, "tokens"):
        found["tokens"] = [tokens(leg.model, hypothesis) for _, hypothesis in runs]
    if "attention" in wanted:
        found["attention"] = await attention(runner, leg.model, runs, parse_tap(given["attention"]))
    if flag(given, "repetition"):
        found["repetition"] = any(repeats(flat(segment.source), leg.model.decode(output)) for segment, output in runs)
    if flag(given, "coverage"):
        found["coverage"] = await coverage(runner, leg.model, runs)
    if given.get("alternatives_at") not in (None, ""):
        found["alternatives_at"] = await alternatives_at(runner, leg.model, runs, number(given, "alternatives_at", 0, 100_000))
    return found


async def alignment(runner: Runner, legs: Sequence[Leg]) -> dict[str, Any]:
    """Returns the words of both texts, and links (source word, target word, score), all counted from 0."""
    links = await word_links(runner, legs)
    return {
        "source": legs[0].document.text.split(),
        "target": legs[-1].text.split(),
        "links": [[source, target, round(score, 4)] for (source, target), score in sorted(links.items())],
    }


def tokens(model: Served, hypothesis: Hypothesis) -> list[dict[str, Any]]:
    """Returns the tokens of an output with their log-probabilities, and <eos> if it ended."""
    codec = model.translator.target
    ids = (*hypothesis.ids, codec.specials.eos) if hypothesis.finished else hypothesis.ids
    return [
        {"token": token, "log_prob": round(log_prob, 5)}
        for token, log_prob in zip(codec.tokens(ids), hypothesis.token_log_probs, strict=True)
    ]


# --- attention ---------------------------------------------------------------------------------------------------------------


def parse_tap(given: Any) -> Tap:
    """Returns the attention that a request names: {"kind": "cross", "layer": -1, "head": 0}, or "cross.-1.0". Without a head
    it is the mean of all."""
    if isinstance(given, dict):
        kind, layer, head = given.get("kind", "cross"), given.get("layer", -1), given.get("head")
    else:
        text = "cross" if flag({"on": given}, "on") else str(given)
        kind, layer, head = (*text.split("."), -1, None)[:3] if text.count(".") == 0 else (*text.split("."), None)[:3]
    try:
        layer, head = int(layer), None if head is None else int(head)
    except (TypeError, ValueError):
        kind = None
    if kind not in get_args(Kind):
        raise Refusal(400, 'Invalid request: attention is not one of a layer and head; expected "cross", or "cross.1.0"')
    return Tap(cast(Kind, kind), layer, head, what="posterior")


async def attention(runner: Runner, model: Served, runs: Sequence[Run], tap: Tap) -> list[dict[str, Any]]:
    """Returns, for each segment, the tokens of both axes and the weights, one row for each token of the output."""
    reader, codec = model.translator.reader, model.translator.target
    found = []
    for (segment, hypothesis), forced in zip(runs, await force(runner, model, runs, Look((tap,))), strict=True):
        if not forced.seen:
            raise Refusal(400, f"Invalid request: this model has no {tap.kind} attention")
        (seen, *_) = forced.seen
        written = codec.tokens((*hypothesis.ids, codec.specials.eos))
        source = reader.labels(segment.source, forced.axes)
        read = (*codec.tokens((codec.specials.start,)), *written[:-1])
        found.append(
            {
                "kind": seen.kind,
                "layer": seen.layer,
                "rows": source if seen.kind in ("encoder", "fusion") else written,
                "columns": read if seen.kind == "decoder" else source,
                "weights": np.round(seen.weights_BHTS[0].mean(0), 4).tolist(),
            }
        )
    return found


def parse_edits(given: Any) -> tuple[Edit, ...]:
    """Returns the heads that a request switches off: [["cross", 1, 0], …], of kind, layer and head."""
    if not given:
        return ()
    try:
        return tuple(Edit.off(kind, layer=int(layer), head=int(head)) for kind, layer, head in list(given)[:64])
    except (TypeError, ValueError) as error:
        raise Refusal(
            400, f'Invalid request: heads_off is a list such as [["cross", 1, 0]], of kind, layer, head: {error}'
        ) from None


# --- what went wrong ---------------------------------------------------------------------------------------------------------


def repeats(source: str, target: str) -> bool:
    """Whether an output goes round in circles: one to four words occur three times or more in a row, and more often than any
    do in the source."""
    return most_repeated(target) >= max(REPEATED, most_repeated(source) + 1)


def most_repeated(text: str) -> int:
    """Returns how often the same words (one to four of them) occur one after the other, at most."""
    words = text.lower().split()
    most = min(1, len(words))
    for size in range(1, 5):
        for start in range(len(words)):
            count, phrase = 1, words[start : start + size]
            while words[start + count * size : start + (count + 1) * size] == phrase:
                count += 1
            most = max(most, count if len(phrase) == size else 1)
    return most


async def coverage(runner: Runner, model: Served, runs: Sequence[Run]) -> dict[str, Any]:
    """Returns the share of the source words that the output covers, and whether it leaves its source."""
    covered = total = 0
    for (segment, hypothesis), forced in zip(runs, await run_alignment(runner, model, runs), strict=True):
        mass = source_mass(model, segment, hypothesis, [layer.weights_BHTS[0] for layer in forced.seen])
        covered += int((mass >= COVERED).sum())
        total += len(mass)
    share = covered / total if total else 1.0
    return {"share": round(share, 4), "leaves_source": share < 1 - UNCOVERED}


def source_mass(model: Served, segment: Segment, hypothesis: Hypothesis, layers_HTS: Sequence[Array]) -> Array:
    """Returns how much attention the words of the output give to each word of the source, 1 for a word of the output each."""
    reader = model.translator.reader
    sources = reader.units(segment.source, reader.pieces(segment.source), pieces=False)
    assert sources is not None
    weights_TS = model.translator.alignment_head.weights_TS(layers_HTS, len(hypothesis.ids), len(sources.of_tokens))
    mass: Array = sources.pooled(weights_TS, -1).sum(0)
    return mass


# --- alternatives ------------------------------------------------------------------------------------------------------------


async def alternatives_at(runner: Runner, model: Served, runs: Sequence[Run], word: int) -> dict[str, Any]:
    """Returns other words in the position of one word of the output, each with how the output goes on after it.

    The output up to the word is forced; the next tokens are the most probable ones, and the search goes on from each of them.
    """
    if len(runs) != 1:
        raise Refusal(400, f"Invalid request: alternatives_at is for one sentence, but this text has {len(runs)}")
    ((segment, hypothesis),) = runs
    codec = model.translator.target
    words = codec.units(codec.decode(hypothesis.ids), codec.tokens(hypothesis.ids), pieces=False)
    if word >= words.number:
        raise Refusal(400, f"Invalid request: alternatives_at is {word}, but the output has {words.number} words, from 0")
    at = words.of_tokens.index(word)
    (forced,) = await force(runner, model, runs, Look(), distributions=True)
    assert forced.log_probs_TV is not None
    log_probs_V = forced.log_probs_TV[at]
    best = [int(token) for token in np.argsort(-log_probs_V) if int(token) not in codec.specials.never][:CHOICES]
    before, request = hypothesis.ids[:at], segment.request
    requests = [replace(request, prefix=(*before, token)) for token in best if token != codec.specials.eos]
    outputs = await answers_of(runner, model, requests)
    texts = {token: output[0] for token, output in zip((t for t in best if t != codec.specials.eos), outputs, strict=True)}
    choices = []
    for token in best:
        text = model.decode(texts[token]) if token in texts else codec.decode(before)
        written = text.split()
        choices.append(
            {
                "word": written[word] if word < len(written) else "",
                "probability": round(float(np.exp(log_probs_V[token])), 5),
                "text": text,
            }
        )
    return {"word": codec.decode(hypothesis.ids).split()[word], "choices": choices}
