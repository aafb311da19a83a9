"""The one exception that is meant for people: commands print its text as one line, without a traceback."""

from math import isfinite


class UserError(ValueError):
    """Something the user can put right. The text says what came, what was expected and what to do."""


def did_you_mean(word: str, choices: list[str]) -> str:
    """A suggestion for a mistyped word, ready to be appended to an error: '; did you mean "steps"?' or nothing."""
    from difflib import get_close_matches

    close = get_close_matches(word, choices, n=1)
    return f'; did you mean "{close[0]}"?' if close else ""


def is_whole(text: str) -> bool:
    """Whether it can be written as UTF-8: what was typed or read in another encoding may hold halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def plural(number: int, noun: str, nouns: str = "") -> str:
    """A count with its noun: "1 pair", "2,000 pairs"; `nouns` where the plural has no simple s."""
    return f"{number:,} {noun if number == 1 else nouns or f'{noun}s'}"


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
