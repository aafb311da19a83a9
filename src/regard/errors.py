"""The one exception that is meant for people: commands print its text as one line, without a traceback."""

from collections.abc import Iterable
from math import isfinite
from unicodedata import category


class UserError(ValueError):
    """Something the user can put right. The text says what came, what was expected and what to do."""


def did_you_mean(word: str, choices: list[str]) -> str:
    """A suggestion for a mistyped word, ready to be appended to an error: '; did you mean "steps"?' or nothing."""
    from difflib import get_close_matches

    close = get_close_matches(word, choices, n=1)
    return f'; did you mean "{close[0]}"?' if close else ""


def plural(number: int, noun: str, nouns: str = "") -> str:
    """A count with its noun: "1 pair", "2,000 pairs"; `nouns` where the plural has no simple s."""
    return f"{number:,} {noun if number == 1 else nouns or f'{noun}s'}"


def visible(symbols: Iterable[str]) -> str:
    """A list of symbols for people, with those that print as nothing or on their neighbour: ' ' for a space, U+0301 for an
    accent without its letter."""
    return " ".join(symbol if _can_be_seen(symbol) else _code(symbol) for symbol in symbols)


def _can_be_seen(symbol: str) -> bool:
    shown = all(char.isprintable() and (char == " " or not char.isspace()) for char in symbol)
    return bool(symbol.strip()) and symbol == symbol.strip() and shown and not category(symbol[0]).startswith("M")


def _code(symbol: str) -> str:
    return repr(symbol) if not symbol.strip(" ") else " ".join(f"U+{ord(char):04X}" for char in symbol)


class WrongNumbers(ValueError):
    """Numbers out of their range: name -> (number, what was expected)."""

    def __init__(self, wrong: dict[str, tuple[float, str]]) -> None:
        super().__init__("; ".join(f"{name} is {number}, expected {expected}" for name, (number, expected) in wrong.items()))
        self.wrong = wrong


def check_numbers(settings: object) -> None:
    """For the settings of a model: every whole number is a size and at least 1, others are finite, and dropout is a share."""
    wrong: dict[str, tuple[float, str]] = {}
    for name, value in vars(settings).items():
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            wrong[name] = value, "1 or more"
        if isinstance(value, float) and not isfinite(value):
            wrong[name] = value, "a finite number"
        if name == "dropout" and not 0 <= value < 1:
            wrong[name] = value, "a share from 0 up to, but not, 1"
    if wrong:
        raise WrongNumbers(wrong)
