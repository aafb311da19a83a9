"""Links between the words of a text and those of its translation, through all of its sentences and models."""

# T target tokens  S source tokens  U target units  V source units

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from regard.contracts import AlignmentHead, Forced, Hypothesis
from regard.data.reader import Segment
from regard.data.source_text import flat
from regard.errors import UserError
from regard.links import Units, strongest, word_spans
from regard.look import Look
from regard.serving.document import Document, Span
from regard.serving.runner import Runner
from regard.serving.translation import Leg, Served

ScoredLinks = dict[tuple[int, int], float]
"""(source word, target word) -> the share of the attention of the target word that goes to the source word."""


def can_align(model: Served) -> bool:
    """Whether a model attends to a text that it reads."""
    reader = model.translator.reader
    return "cross" in reader.traits.attention and not reader.traits.continues_text


async def word_links(runner: Runner, legs: Sequence[Leg]) -> ScoredLinks:
    """Returns the links of a text that was translated. Those of two models are joined at the words between them."""
    joined: ScoredLinks | None = None
    for leg in legs:
        links = await _leg_links(runner, leg)
        if joined is None:
            joined = links
            continue
        onward: dict[int, list[tuple[int, float]]] = {}
        for (middle, target), score in links.items():
            onward.setdefault(middle, []).append((target, score))
        joined = {
            (source, target): score * other
            for (source, middle), score in joined.items()
            for target, other in onward.get(middle, ())
        }
    return joined or {}


async def _leg_links(runner: Runner, leg: Leg) -> ScoredLinks:
    text, spans = leg.filled()
    source_words, target_words = _Words(leg.document.text), _Words(text)
    num_prefix = len(leg.model.target.prefix.split())
    links = _unchanged(leg.document, spans, source_words, target_words)
    runs = [(segment, outputs[0]) for part in leg.parts for segment, outputs in zip(part.segments, part.outputs, strict=True)]
    forced = iter(await run_alignment(runner, leg.model, runs))
    for part, source_span, target_span in zip(leg.parts, leg.document.spans, spans, strict=True):
        own_sources = [
            source_words.at(source_span[0] + start) for start, _ in word_spans(leg.document.text[slice(*source_span)])
        ]
        own_targets = [target_words.at(target_span[0] + start) for start, _ in word_spans(text[slice(*target_span)])]
        num_sources, num_targets = -num_prefix, 0
        for segment, outputs in zip(part.segments, part.outputs, strict=True):
            found = segment_links(leg.model, segment, outputs[0], next(forced))
            for (source, target), score in found.items():
                if num_sources + source < 0:
                    continue  # the prefix that says which language to write
                pair = own_sources[num_sources + source], own_targets[num_targets + target]
                links[pair] = max(score, links.get(pair, 0.0))
            num_sources += len(flat(segment.source).split())
            num_targets += len(leg.model.decode(outputs[0]).split())
    return links


class _Words:
    """The words of a text, found by the position of a character."""

    def __init__(self, text: str) -> None:
        self.starts = [start for start, _ in word_spans(text)]

    def at(self, position: int) -> int:
        return max(0, bisect_right(self.starts, position) - 1)

    def within(self, start: int, end: int) -> range:
        return range(bisect_right(self.starts, start - 1), bisect_right(self.starts, end - 1))


def _unchanged(document: Document, spans: Sequence[Span], sources: _Words, targets: _Words) -> ScoredLinks:
    """Returns the links between the words that were not translated, and are in the output as they were."""
    links: ScoredLinks = {}
    position = target_position = 0
    end = len(document.text)
    for (start, stop), (_, target_stop) in zip([*document.spans, (end, end)], [*spans, (0, 0)], strict=True):
        gap = start - position
        own = sources.within(position, start), targets.within(target_position, target_position + gap)
        links |= dict.fromkeys(zip(*own, strict=False), 1.0)
        position, target_position = stop, target_stop
    return links


async def run_alignment(runner: Runner, model: Served, runs: Sequence[tuple[Segment, Hypothesis]]) -> list[Forced]:
    """Runs the model over outputs, and returns the weights of its alignment head for each. Raises UserError if it has none."""
    head: AlignmentHead = model.translator.alignment_head
    return await force(runner, model, runs, Look((head.tap,)))


async def force(
    runner: Runner, model: Served, runs: Sequence[tuple[Segment, Hypothesis]], look: Look, *, distributions: bool = False
) -> list[Forced]:
    """Runs the model over outputs between two steps of the search. Returns what was captured of each, in order."""
    requests = [replace(segment.request, id=index, look=look) for index, (segment, _) in enumerate(runs)]
    eos = model.translator.target.specials.eos
    outputs = [(*hypothesis.ids, eos) for _, hypothesis in runs]
    engine = model.lane.engine
    found = await runner.call(
        lambda: {
            forced.id: forced
            for forced in engine.force(requests, outputs, log_probs=distributions, distributions=distributions)
        }
    )
    for forced in found.values():
        if forced.error:
            raise UserError(forced.error)
    return [found[index] for index in range(len(runs))]


def segment_links(
    model: Served, segment: Segment, hypothesis: Hypothesis, forced: Forced, *, pieces: bool | None = False
) -> ScoredLinks:
    """Returns the links of a segment, each with its score."""
    sources, targets = units(model, segment, hypothesis, pieces)
    if not (sources.of_tokens and targets.of_tokens):
        return {}
    layers_HTS = [layer.weights_BHTS[0] for layer in forced.seen]
    head = model.translator.alignment_head
    weights_TS = head.weights_TS(layers_HTS, len(targets.of_tokens), len(sources.of_tokens))
    weights_UV = targets.pooled(sources.pooled(weights_TS, -1), -2)
    totals_U = weights_UV.sum(-1)
    return {
        (source, target): float(weights_UV[target, source] / totals_U[target])
        for target, source in enumerate(strongest(weights_TS, sources, targets).tolist())
        if source >= 0
    }


def units(model: Served, segment: Segment, hypothesis: Hypothesis, pieces: bool | None) -> tuple[Units, Units]:
    """Returns what the links of a segment count: its words, or its tokens."""
    reader = model.translator.reader
    target, ids = model.translator.target, hypothesis.ids
    sources = reader.units(segment.source, reader.pieces(segment.source), pieces=pieces)
    return sources or Units.tokens(0), target.units(target.decode(ids), target.tokens(ids), pieces=pieces)
