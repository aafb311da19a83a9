"""The models of a server: which folders they come from, their languages, and loading them again while others wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from regard.errors import UserError
from regard.languages import UNKNOWN, Languages
from regard.pipeline import Translator
from regard.serving.languages import Directory
from regard.serving.runner import Lane
from regard.serving.translation import Served


@dataclass(frozen=True)
class Fleet:
    """The folders of the models that are served.

    folders: one for each model.  languages: of each model; those of the last ones may be missing, if the folders say them.
    load: loads a folder.  pivot: see `Directory`.
    """

    folders: Sequence[Path]
    languages: Sequence[Languages]
    load: Callable[[Path], Translator]
    pivot: str = ""

    def open(self) -> Directory[Served]:
        """Loads all models. Raises UserError if one of them cannot be loaded."""
        models = []
        for number, folder in enumerate(self.folders):
            translator = self.load(folder)
            known = self.languages[number] if number < len(self.languages) else translator.languages
            lane = Lane(translator.engine)
            models += [
                Served(folder, source, target, translator, lane)
                for source, target in product(known.source or UNKNOWN[:1], known.target or UNKNOWN[1:])
            ]
        return Directory.of(models, self.pivot)


def parse_languages(given: Sequence[str], num_models: int) -> list[Languages]:
    """Returns the languages of models as typed, such as "en,de". Raises UserError if there are more than models."""
    if len(given) > num_models:
        raise UserError(f"--languages was given {len(given)} times for {num_models} models; give it once for each, in order")
    return [Languages.parse(text.split(",")) for text in given]
