"""Runs sources that were read, and yields their results in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from regard.contracts import Engine, Request
from regard.data.reader import Plan, line_of
from regard.decoding import schedule
from regard.decoding.workers import Workers
from regard.pipeline.assembly import Answer, Assembly
from regard.results import Refused, Result

Outcome = Result | Refused
Numbered = tuple[int, Outcome]
ProgressCallback = Callable[[Iterator[Numbered], int], Iterator[Numbered]]
"""Wraps the results as they arrive, in any order, for example to show a progress bar: takes an iterator of (number of the text,
result) and the number of texts, and yields the same items."""


@dataclass
class Waiting:
    """A source whose segments are being searched: its index, and the answers so far, by the id of the request."""

    index: int
    plan: Plan
    answers: dict[int, Answer | Refused] = field(default_factory=dict)

    def outcome(self, assembly: Assembly) -> Outcome:
        """Returns the result of the source, once all segments have been answered."""
        results = []
        for segment in self.plan.segments:
            answer = self.answers[segment.request.id]
            if isinstance(answer, Refused):
                return answer
            results.append(assembly.of_segment(segment, answer))
        return assembly.of_parts(self.plan.source, results)


def in_order(
    plans: Iterable[Plan | None],
    engine: Engine,
    assembly: Assembly,
    *,
    workers: Workers | None,
    progress: ProgressCallback | None,
    total: int,
) -> Iterator[Outcome]:
    """Runs sources that were read before, and yields their results in the same order; see `Translator.answer`."""
    arrived = arrivals(plans, engine, assembly, workers, max(total, schedule.WINDOW))
    if progress is not None:
        arrived = progress(arrived, total)
    early: dict[int, Outcome] = {}
    following = 0
    for number, outcome in arrived:
        early[number] = outcome
        while following in early:
            yield early.pop(following)
            following += 1


def arrivals(
    plans: Iterable[Plan | None], engine: Engine, assembly: Assembly, workers: Workers | None, window: int
) -> Iterator[Numbered]:
    """Yields (index of the plan, result) as soon as a result is ready, in any order."""
    ready: list[Numbered] = []
    waiting: dict[int, Waiting] = {}

    def requests() -> Iterator[Request | None]:
        index = 0
        for plan in plans:
            if plan is None:
                yield None
                continue
            if plan.segments:
                waiting[plan.line] = Waiting(index, plan)
                yield from (segment.request for segment in plan.segments)
            else:
                ready.append((index, Refused(plan.refused) if plan.refused else assembly.of_parts(plan.source, [])))
                if len(ready) >= schedule.WINDOW:
                    yield None  # so that these are answered, however many such sources follow
            index += 1

    for event in schedule.run(engine, requests(), workers, window=window):
        yield from ready
        ready.clear()
        if event is None:
            continue
        line = line_of(event.id)
        answered = waiting[line]
        answered.answers[event.id] = Refused(event.error) if event.error else Answer(event.hypotheses, event.seen)
        if len(answered.answers) == len(answered.plan.segments):
            del waiting[line]
            yield answered.index, answered.outcome(assembly)
    yield from ready
