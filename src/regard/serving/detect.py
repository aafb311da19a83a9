"""Which of the served languages a text is in, by py3langid: pure Python, with its model inside, so it downloads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regard.serving.document import is_written
from regard.serving.refusal import Refusal


@dataclass(frozen=True)
class Detected:
    """A language that a text may be in, and how probable that is in percent."""

    language: str
    confidence: float

    def as_dict(self) -> dict[str, Any]:
        return {"confidence": self.confidence, "language": self.language}


class Detector:
    """Detects languages among some codes. It is loaded when it is needed first."""

    def __init__(self, codes: Sequence[str]) -> None:
        self.codes = tuple(codes)
        self._identifier: Any = None

    def detect(self, text: str) -> list[Detected]:
        """Returns the languages of a text, the most probable first. A text without letters is in none: LibreTranslate's answer
        is the first language, with a confidence of 0.

        Raises Refusal if there are several languages and py3langid is missing, or knows less than two of them.
        """
        if not is_written(text):
            return [Detected("en" if "en" in self.codes else self.codes[0], 0.0)]
        if len(self.codes) == 1:
            return [Detected(self.codes[0], 100.0)]
        if self._identifier is None:
            self._identifier = _load(self.codes)
        ranked = self._identifier.rank(text)
        return [Detected(code, round(100 * share, 1)) for code, share in ranked if share >= 0.005] or [
            Detected(ranked[0][0], 0.0)
        ]


def _load(codes: Sequence[str]) -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise Refusal(
            501, "this server cannot detect languages: py3langid is missing; give the source, or: pip install py3langid"
        ) from None
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    known = [code for code in codes if code in identifier.labels]
    if len(known) < 2:
        raise Refusal(501, f"this server cannot detect its languages ({', '.join(codes)}); give the source")
    identifier.set_languages(known)
    return identifier
