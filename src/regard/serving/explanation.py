"""What the model did for a translation: its words and their sources, its probabilities, its attention, its alternatives."""

# T target tokens  S source positions  V vocabulary

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from regard.contracts import Array, Hypothesis
from regard.data.reader import Segment
from regard.data.source_text import flat
from regard.look import Look, Tap
from regard.serving.alignment import can_align, force, run_alignment, word_links
from regard.serving.extras import Extras
from regard.serving.refusal import Refusal
from regard.serving.runner import Runner
from regard.serving.translation import Leg, Served, answers_of

CHOICES = 6
"""How many words `alternatives_at` offers."""

REPEATED = 3
"""An output repeats itself if the same words occur so many times one after the other, more often than in the source."""

COVERED = 0.25
"""A source word is covered if the words of the output together give it at least so much attention."""
UNCOVERED = 0.4
"""An output leaves out a part of its source if it does not cover more than this share of the words of a sentence, ..."""
MOST_UNCOVERED = 2
"""... and more words than these."""
IMPROBABLE = -2.6
"""An output leaves its source if the mean log-probability of the tokens of a sentence is less than this."""

Run = tuple[Segment, Hypothesis]


async def explain(runner: Runner, wanted: Extras, legs: Sequence[Leg]) -> dict[str, Any]:
    """Returns the fields that a request wants, about the best output of one text.

    legs: the text as it was translated. Raises Refusal if the models cannot give a field.
    """
    leg = legs[-1]
    runs = [(segment, outputs[0]) for part in leg.parts for segment, outputs in zip(part.segments, part.outputs, strict=True)]
    found: dict[str, Any] = {}
    if len(legs) > 1 and (name := wanted.needs_one_model):
        raise Refusal(409, f"Invalid request: {name} explains one model, but this translation runs through two")
    if (wanted.alignment or wanted.coverage) and not all(can_align(each.model) for each in legs):
        raise Refusal(409, "Invalid request: this model does not attend to its source, so it has no alignment")
    if wanted.alignment:
        found["alignment"] = await alignment(runner, legs)
    if wanted.tokens:
        found["tokens"] = [tokens(leg.model, hypothesis) for _, hypothesis in runs]
    if wanted.attention is not None:
        found["attention"] = await attention(runner, leg.model, runs, wanted.attention)
    if wanted.repetition:
        found["repetition"] = any(repeats(flat(segment.source), leg.model.decode(output)) for segment, output in runs)
    if wanted.coverage:
        found["coverage"] = await coverage(runner, leg.model, runs)
    if wanted.alternatives_at is not None:
        found["alternatives_at"] = await alternatives_at(runner, leg.model, runs, wanted.alternatives_at)
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


async def attention(runner: Runner, model: Served, runs: Sequence[Run], tap: Tap) -> list[dict[str, Any]]:
    """Returns, for each segment, the tokens of both axes and the weights, one row for each token of the output."""
    reader, codec = model.translator.reader, model.translator.target
    found = []
    for (segment, hypothesis), forced in zip(runs, await force(runner, model, runs, Look((tap,))), strict=True):
        if not forced.seen:
            raise Refusal(409, f"Invalid request: this model has no {tap.kind} attention")
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
    """Returns the share of the source words that the output covers, the least mean log-probability of a sentence, and the two
    flags that follow from them."""
    covered = total = 0
    leaves_out, least = False, 0.0
    for (segment, hypothesis), forced in zip(runs, await run_alignment(runner, model, runs), strict=True):
        mass = source_mass(model, segment, hypothesis, [layer.weights_BHTS[0] for layer in forced.seen])
        covered += int((mass >= COVERED).sum())
        total += len(mass)
        leaves_out = leaves_out or leaves_words_out(mass)
        least = min(least, mean_log_prob(hypothesis.token_log_probs))
    return {
        "share": round(covered / total, 4) if total else 1.0,
        "leaves_out": leaves_out,
        "log_prob": round(least, 4),
        "leaves_source": least < IMPROBABLE,
    }


def leaves_words_out(mass: Array) -> bool:
    """Whether an output leaves out a part of a sentence. mass: see `source_mass`."""
    uncovered = int((mass < COVERED).sum())
    return uncovered > max(MOST_UNCOVERED, UNCOVERED * len(mass))


def mean_log_prob(log_probs: Sequence[float]) -> float:
    """Returns the mean log-probability of the tokens of an output; 0 if it has none."""
    return sum(log_probs) / len(log_probs) if log_probs else 0.0


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
        raise Refusal(409, f"Invalid request: alternatives_at is for one sentence, but this text has {len(runs)}")
    ((segment, hypothesis),) = runs
    codec = model.translator.target
    words = codec.units(codec.decode(hypothesis.ids), codec.tokens(hypothesis.ids), pieces=False)
    if word >= words.number:
        raise Refusal(409, f"Invalid request: alternatives_at is {word}, but the output has {words.number} words, from 0")
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
