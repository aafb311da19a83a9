"""The parameters of a translation that LibreTranslate does not have: what to explain of it, and what to change."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from regard.look import Edit, Tap
from regard.serving.limits import Limits
from regard.serving.parameters import NO, YES, Parameters, flag, number, text
from regard.serving.refusal import Refusal

MOST_WORDS = 100_000
"""The largest number of a word that `alternatives_at` may name."""
MOST_EDITS = 64
"""How many heads a request may switch off."""

TAP = 'attention is not one of a layer and head; expected "cross", or "cross.1.0"'
EDITS = f'heads_off is not a list of at most {MOST_EDITS} heads, such as [["cross", 1, 0]], of kind, layer, head'


@dataclass(frozen=True)
class Extras:
    """The optional parameters of a request. The answer has fields of the names of the first six.

    beam: of the search; 0 is that of the server.  prefix: what the output starts with.  heads_off: heads that are switched off.
    """

    alignment: bool = False
    tokens: bool = False
    attention: Tap | None = None
    alternatives_at: int | None = None
    repetition: bool = False
    coverage: bool = False
    beam: int = 0
    prefix: str = ""
    heads_off: tuple[Edit, ...] = ()

    @classmethod
    def of(cls, given: Parameters, limits: Limits) -> Extras:
        """Raises Refusal for the first parameter that is wrong."""
        word = number(given, "alternatives_at", -1, MOST_WORDS)
        return cls(
            alignment=flag(given, "alignment"),
            tokens=flag(given, "tokens"),
            attention=parse_tap(given.get("attention")),
            alternatives_at=None if word < 0 else word,
            repetition=flag(given, "repetition"),
            coverage=flag(given, "coverage"),
            beam=number(given, "beam", 0, limits.beam),
            prefix=text(given, "prefix"),
            heads_off=parse_edits(given.get("heads_off")),
        )

    @property
    def needs_one_model(self) -> str:
        """The name of a field that explains one model; "" if no such field is wanted."""
        names = ("tokens", "attention", "alternatives_at", "repetition", "coverage")
        return next((name for name in names if getattr(self, name) not in (None, False)), "")


NO_EXTRAS = Extras()


def parse_tap(given: Any) -> Tap | None:
    """Returns the attention that a request names: {"kind": "cross", "layer": -1, "head": 0}, or "cross.-1.0"; True is "cross".
    Without a head it is the mean of all. Raises Refusal if it is something else."""
    parts: list[Any] = ["cross"]
    if isinstance(given, dict):
        parts = [given.get("kind", "cross"), given.get("layer", -1), given.get("head")]
    elif isinstance(given, str) and given.strip().lower() not in (*YES, *NO):
        parts = list(given.split("."))
    elif not flag({"attention": given}, "attention"):
        return None
    try:
        kind, layer, head = parts + [-1, None][len(parts) - 1 :]
        return Tap(kind, _whole(layer), None if head is None else _whole(head), what="posterior")
    except (TypeError, ValueError):
        raise Refusal(400, f"Invalid request: {TAP}") from None


def parse_edits(given: Any) -> tuple[Edit, ...]:
    """Returns the heads that a request switches off: [["cross", 1, 0], …], of kind, layer and head. Raises Refusal if it is
    something else."""
    if given is None or given == "":
        return ()
    try:
        if not isinstance(given, list) or len(given) > MOST_EDITS:
            raise ValueError
        return tuple(Edit.off(kind, layer=_whole(layer), head=_whole(head)) for kind, layer, head in given)
    except (TypeError, ValueError):
        raise Refusal(400, f"Invalid request: {EDITS}") from None


def _whole(value: Any) -> int:
    """Returns a whole number, which a text may hold. Raises ValueError if it is something else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch("-?[0-9]{1,4}", value):
        return int(value)
    raise ValueError
