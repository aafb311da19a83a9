"""Languages that are served: their codes and names, and which models lead from one to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Generic, Protocol, TypeVar

from regard.errors import UserError
from regard.languages import Language
from regard.serving.parameters import printable
from regard.serving.refusal import Refusal

ALIASES = {"pt-br": "pb", "zh-hans": "zh", "zh-hant": "zt", "zh-cn": "zh", "zh-tw": "zt", "no": "nb"}
"""Other codes for the same language."""


class Pair(Protocol):
    """A model that is served, with two of its languages."""

    @property
    def source(self) -> Language: ...
    @property
    def target(self) -> Language: ...


P = TypeVar("P", bound=Pair)


@dataclass(frozen=True)
class Directory(Generic[P]):
    """The models by their languages.

    pairs: (source, target) -> model.  pivot: the code of a language through which pairs without a model are translated; "" if
    they are not.
    """

    pairs: Mapping[tuple[str, str], P]
    pivot: str = ""

    @classmethod
    def of(cls, models: Sequence[P], pivot: str = "") -> Directory[P]:
        """Raises UserError if two models have the same languages, or if no model knows the pivot."""
        pairs: dict[tuple[str, str], P] = {}
        for model in models:
            codes = model.source.code, model.target.code
            if codes in pairs:
                raise UserError(
                    f"two models translate from {codes[0]} to {codes[1]}; give the languages of each model, in order, such as "
                    "--languages en,de --languages de,fr"
                )
            pairs[codes] = model
        directory = cls(pairs, pivot)
        if pivot and pivot not in directory.codes:
            raise UserError(f"--pivot {pivot}: no model knows it; expected one of {', '.join(directory.codes)}")
        return directory

    @cached_property
    def names(self) -> Mapping[str, str]:
        """Code -> name."""
        sides = (side for model in self.pairs.values() for side in (model.source, model.target))
        return {side.code: side.name for side in sides}

    @property
    def codes(self) -> list[str]:
        """All codes, those of sources first."""
        return list(dict.fromkeys([*(source for source, _ in self.pairs), *(target for _, target in self.pairs)]))

    @property
    def sources(self) -> list[str]:
        """The codes of the languages that are translated."""
        return list(dict.fromkeys(source for source, _ in self.pairs))

    def code(self, given: object) -> str:
        """Returns the code that a client means. Raises Refusal if it is not served."""
        wanted = str(given).strip().lower().replace("_", "-")
        known = {code.lower(): code for code in self.codes}
        for name in (wanted, ALIASES.get(wanted, ""), wanted.partition("-")[0]):
            if name in known:
                return known[name]
        raise Refusal(400, f"{printable(str(given))} is not supported")

    def route(self, source: str, target: str) -> tuple[P, ...]:
        """Returns the models that lead from one language to another, none if they are the same. Raises Refusal if none do."""
        if source == target:
            return ()
        for codes in ((source, target), *([(source, self.pivot, target)] if self.pivot else [])):
            steps = list(pairwise(codes))
            if all(step in self.pairs for step in steps):
                return tuple(self.pairs[step] for step in steps)
        raise Refusal(
            400,
            f"{self.names[target]} ({target}) is not available as a target language from {self.names[source]} ({source})",
        )

    def listed(self) -> list[dict[str, Any]]:
        """Returns the languages as LibreTranslate lists them."""
        return [
            {"code": source, "name": self.names[source], "targets": [code for code in self.codes if self._leads(source, code)]}
            for source in self.codes
        ]

    def _leads(self, source: str, target: str) -> bool:
        try:
            self.route(source, target)
        except Refusal:
            return False
        return True
