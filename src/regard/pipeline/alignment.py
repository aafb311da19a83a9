"""Reads the links between source and target words from the alignment head, for results that may have several parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from regard.contracts import AlignmentHead, Engine, Forced
from regard.data.reader import Reader
from regard.errors import UserError
from regard.links import Links, Units, links_of, strongest
from regard.pipeline.forced import WrittenOutput, force_all, reason_for_none
from regard.results import Result


@dataclass(frozen=True)
class Aligner:
    """Reads links from an alignment head.

    reader, engine: read and run the results.  head: the layer and head.  pieces: whether tokens count instead of words.
    """

    reader: Reader
    engine: Engine
    head: AlignmentHead
    pieces: bool | None

    def links(self, results: Iterable[Result]) -> list[tuple[tuple[int, int], ...]]:
        """Returns the links (source word, target word) of each result, computed in batches; see `Translator.alignments`."""
        whole = list(results)
        parts = (part for result in whole for part in (result.parts or (result,)) if part.tokens)
        eos = self.reader.target.specials.eos
        outputs = (WrittenOutput(part.source, (*part.ids, eos), part.edits) for part in parts)
        runs = (forced for _, _, forced in force_all(outputs, self.head.tap, self.reader, self.engine))
        return [self._of_result(result, runs) for result in whole]

    def _of_result(self, result: Result, runs: Iterator[Forced]) -> tuple[tuple[int, int], ...]:
        """Returns the links of a result. runs: the forced passes of its parts, and of those of the results after it."""
        source = self.reader.units(result.source, result.source_tokens, pieces=self.pieces)
        target = self.reader.target.units(result.text, result.tokens, pieces=self.pieces)
        links: set[tuple[int, int]] = set()
        sources = targets = 0
        for part in result.parts or (result,):
            next_sources, next_targets = sources + len(part.source_tokens), targets + len(part.tokens)
            if part.tokens:
                own = source and source.of(sources, next_sources), target.of(targets, next_targets)
                links |= self._of_part(next(runs), *own)
            sources, targets = next_sources, next_targets
        return tuple(sorted(links))

    def _of_part(self, forced: Forced, source: Units | None, target: Units) -> Links:
        """Returns the links of a part that was translated in one go. source: None for a file, whose positions are counted."""
        if reason := reason_for_none(forced, "cross"):
            raise UserError(reason)
        layers_HTS = [layer.weights_BHTS[0] for layer in forced.seen]
        source = source or Units.tokens(layers_HTS[0].shape[-1])
        weights_TS = self.head.weights_TS(layers_HTS, len(target.of_tokens), len(source.of_tokens))
        return links_of(strongest(weights_TS, source, target))
