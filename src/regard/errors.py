"""The one exception that is meant for people: commands print its text as one line, without a traceback."""

import reprlib
from collections.abc import Sequence
from math import inf, isfinite
from numbers import Integral, Real
from typing import Any

LARGEST_SIZE = 2**31 - 1
"""No size of a model is larger; beyond it, arithmetic on sizes overflows inside torch."""

_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxlong, _REPR.maxother = 2, 60, 40, 60
_REPR.maxdict = _REPR.maxlist = _REPR.maxtuple = 4


class UserError(ValueError):
    """Something the user can put right. The text says what came, what was expected and what to do, in one line.

    details: all that the line leaves out, for those who ask; a traceback shows it as a note.
    """

    def __init__(self, text: str = "", details: str = "") -> None:
        super().__init__(text)
        self.details = details
        if details:
            self.add_note(details)


class Mistakes(UserError):
    """Several at once, a line for each."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def one_line(text: object, most: int = 200) -> str:
    """What another library says, for an error of ours: one line of printable characters, cut where it is long."""
    line = "".join(char if char.isprintable() else "\ufffd" for char in " ".join(str(text).split()))
    return line if len(line) <= most else line[: most - 1] + "…"


def shown(value: object, most: int = 80) -> str:
    """A value that came from elsewhere, for an error: its repr in one line, cut where it is long."""
    try:
        return one_line(_REPR.repr(value), most)
    except ValueError:
        return "a number of more than 4,300 digits"  # which Python does not print


def did_you_mean(word: object, choices: list[str]) -> str:
    """A suggestion for a mistyped word, ready to be appended to an error: '; did you mean "steps"?' or nothing."""
    from difflib import get_close_matches

    if not isinstance(word, str):
        return ""
    close = get_close_matches(word, choices, n=1)
    return f'; did you mean "{one_line(close[0], 60)}"?' if close else ""


def is_utf_8(text: str) -> bool:
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
    """For the settings of a model: every whole number is a size from 1 to 2³¹ − 1, others are finite, dropout is a share, and
    what a norm adds to the variance is not negative."""
    wrong: dict[str, tuple[float, str]] = {}
    for name, value in vars(settings).items():
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            wrong[name] = value, "1 or more"
        if isinstance(value, int) and value > LARGEST_SIZE:
            wrong[name] = value, f"{LARGEST_SIZE:,} or less"
        if name == "dropout" and not 0 <= value < 1:
            wrong[name] = value, "a share from 0 up to, but not, 1"
        if isinstance(value, float) and not isfinite(value):
            wrong[name] = value, "a finite number"
        elif name == "norm_eps" and value < 0:
            wrong[name] = value, "0 or more"
    if wrong:
        raise WrongNumbers(wrong)


def check_whole(name: str, number: Any, least: int = 1) -> None:
    """For arguments that count something."""
    if isinstance(number, bool) or not isinstance(number, Integral) or number < least:
        raise ValueError(f"{name} is {shown(number)}, expected a whole number, {least} or more")
    if int(number) > LARGEST_SIZE:
        raise ValueError(f"{name} is {shown(number)}, expected at most {LARGEST_SIZE:,}")


def check_flags(**flags: Any) -> None:
    """For arguments that are true or false."""
    for name, flag in flags.items():
        try:
            bool(flag)
        except (RuntimeError, ValueError):  # a tensor of several numbers
            raise ValueError(f"{name} is {shown(flag)}, expected True or False") from None


def check_sizes(**sizes: Any) -> None:
    for name, size in sizes.items():
        check_whole(name, size)


def check_positive(name: str, number: Any, expected: str = "a number above 0") -> None:
    """For arguments that something is divided by."""
    real = isinstance(number, Real) and not isinstance(number, bool)
    if not real or not 0 < number < inf:
        raise ValueError(f"{name} is {shown(number)}, expected {expected}")
