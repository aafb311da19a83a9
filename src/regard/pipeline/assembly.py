"""Makes results of what a search found: of one segment, and of a text that was split into several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from regard.contracts import Array, Hypothesis, SourceText
from regard.data.reader import Reader, Segment
from regard.look import Seen
from regard.results import Alternative, Inspector, Result


@dataclass(frozen=True)
class Answer:
    """What a search found for one segment: its n-best outputs, and the attention captured while the best was written."""

    hypotheses: tuple[Hypothesis, ...]
    seen: tuple[Seen[Array], ...] = ()


@dataclass(frozen=True)
class Assembly:
    """Makes results.

    reader: read the sources.  inspector: computes what a result does not hold.
    """

    reader: Reader
    inspector: Inspector

    def of_segment(self, segment: Segment, answer: Answer) -> Result:
        """Returns the result of one segment from its n-best hypotheses."""
        n_best = tuple(map(self._alternative, answer.hypotheses))
        best, look = n_best[0], segment.request.look
        return Result(
            text=best.text,
            tokens=best.tokens,
            source=segment.source,
            source_tokens=self.reader.pieces(segment.source),
            log_prob=best.log_prob,
            rank_score=best.rank_score,
            finished=best.finished,
            n_best=n_best,
            unknown=self.reader.unknown(segment.source),
            ids=best.ids,
            edits=look.edits if look else (),
        ).made_by(self.inspector, joined(answer.seen))

    def _alternative(self, hypothesis: Hypothesis) -> Alternative:
        return Alternative(
            self.reader.target.decode(hypothesis.ids),
            self.reader.target.tokens(hypothesis.ids),
            hypothesis.log_prob,
            hypothesis.rank_score,
            hypothesis.finished,
            hypothesis.token_log_probs,
            hypothesis.ids,
        )

    def of_parts(self, source: SourceText, parts: list[Result]) -> Result:
        """Returns the result of a whole text from those of its segments: one, several if it was split, none if it is empty."""
        if len(parts) == 1:
            return parts[0]
        whole = Alternative(
            " ".join(part.text for part in parts),
            tuple(token for part in parts for token in part.tokens),
            sum((part.log_prob for part in parts), 0.0),
            sum((part.rank_score for part in parts), 0.0),
            all(part.finished for part in parts),
            tuple(log_prob for part in parts for log_prob in part.n_best[0].token_log_probs),
            tuple(token for part in parts for token in part.ids),
        )
        return Result(
            text=whole.text,
            tokens=whole.tokens,
            source=self.reader.normalised(source),
            source_tokens=tuple(token for part in parts for token in part.source_tokens),
            log_prob=whole.log_prob,
            rank_score=whole.rank_score,
            finished=whole.finished,
            n_best=(whole,),
            unknown=tuple(symbol for part in parts for symbol in part.unknown),
            parts=tuple(parts),
            ids=whole.ids,
            edits=parts[0].edits if parts else (),
        ).made_by(self.inspector)


def joined(seen: Sequence[Seen[Array]]) -> tuple[Seen[Array], ...]:
    """Joins what was captured token by token: one `Seen` per tap and layer, with a row for each token. A key that was not
    written yet has the weight 0, or the score −∞."""
    groups: dict[tuple[object, ...], list[Seen[Array]]] = {}
    for one in seen:
        groups.setdefault((one.kind, one.layer, one.heads, one.what), []).append(one)

    def join(parts: Sequence[Seen[Array]]) -> Seen[Array]:
        num_keys = max(part.weights_BHTS.shape[-1] for part in parts)
        missing = -np.inf if parts[0].what == "scores" else 0.0
        rows = [
            np.pad(part.weights_BHTS, [(0, 0)] * 3 + [(0, num_keys - part.weights_BHTS.shape[-1])], constant_values=missing)
            for part in parts
        ]
        return replace(
            parts[0], rows=tuple(row for part in parts for row in part.rows), weights_BHTS=np.concatenate(rows, axis=2)
        )

    return tuple(map(join, groups.values()))
