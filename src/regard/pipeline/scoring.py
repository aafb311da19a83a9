"""Scores given outputs: the log-probability of texts, and the probability of each label."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from regard.contracts import Engine, SourceText
from regard.data.reader import GivenOutput, Reader, Segment
from regard.errors import UserError, shown
from regard.look import Edit, Look
from regard.results import Refused, Scored


def score_each(
    sources: Sequence[SourceText],
    targets: Iterable[str],
    reader: Reader,
    engine: Engine,
    edits: Edit | Sequence[Edit] = (),
) -> list[Scored | Refused]:
    """Returns the log-probability of each output; see `Translator.score_each`."""
    outputs = _texts(targets)
    if len(sources) != len(outputs):
        raise ValueError(
            "score takes two lists of texts of the same length, sources and outputs, "
            f"got {len(sources):,} sources and {len(outputs):,} outputs"
        )
    scored: dict[int, Scored | Refused] = {}
    pairs: dict[int, GivenOutput] = {}
    for number, (source, output) in enumerate(zip(sources, outputs, strict=True)):
        try:
            pairs[number] = reader.given_output(source, output, number)
        except UserError as error:
            scored[number] = Refused(str(error))
    look = Look.of(None, edits)
    requests = [replace(pair.request, look=look) for pair in pairs.values()]
    for forced in engine.force(requests, [pair.written for pair in pairs.values()]):
        if forced.error:
            scored[forced.id] = Refused(forced.error)
            continue
        texts, log_probs = pairs[forced.id].texts, forced.token_log_probs
        scored[forced.id] = Scored(
            sum(log_probs),
            tuple(piece for text in texts for piece in reader.target.pieces(text)),
            log_probs,
            tuple(symbol for text in texts for symbol in reader.target.unknown(text)),
        )
    return [scored[number] for number in range(len(sources))]


def label_probabilities(segment: Segment, reader: Reader, engine: Engine) -> list[dict[str, float]]:
    """Returns how probable each label is at each position that has one; see `Translator.probabilities`."""
    traits, target, row = reader.traits, reader.target, segment.request.source
    specials = target.specials
    number = 1 if traits.learns_from == "labels" else segment.request.num_positions
    (forced,) = engine.force([segment.request], [(specials.unk,) * number], log_probs=False, distributions=True)
    if forced.error:
        raise UserError(forced.error)
    assert forced.log_probs_TV is not None
    wanted = [at for at in range(number) if not traits.mask or (isinstance(row, list) and row[at] == specials.unk)]
    names = target.tokens(range(len(target)))
    labels = [label for label in range(len(target)) if label not in specials.ids]
    return [
        {names[label]: float(probs_V[label]) for label in sorted(labels, key=lambda label: -probs_V[label])}
        for probs_V in np.exp(forced.log_probs_TV[wanted])
    ]


def _texts(targets: Iterable[str]) -> list[str]:
    """Returns given outputs as a list. Raises TypeError unless they are a list of texts."""
    if isinstance(targets, Iterable) and not isinstance(targets, str):
        texts = list(targets)
        if all(isinstance(text, str) for text in texts):
            return texts
    raise TypeError(f"score takes lists of texts, got {shown(targets, 60)}; put a single text into a list too")
