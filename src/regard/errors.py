"""UserError, the exception whose text commands print as one line without a traceback, and helpers for error messages."""

import reprlib
from collections.abc import Sequence
from math import inf, isfinite
from numbers import Integral, Real
from typing import Any

LARGEST_SIZE = 2**31 - 1
"""Maximum of any size in a model; with larger sizes, arithmetic overflows inside torch."""

_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxlong, _REPR.maxother = 2, 60, 40, 60
_REPR.maxdict = _REPR.maxlist = _REPR.maxtuple = 4


class UserError(ValueError):
    """An error that the user can fix, a ValueError. The text says in one line what was found, what was expected and what to do.

    details: the full information, which commands print on request and tracebacks show as a note.

    >>> try:
    ...     regard.SearchOptions(beam=0)
    ... except regard.UserError as error:
    ...     print(error)
    beam is 0, expected a whole number from 1 to 1,000
    """

    def __init__(self, text: str = "", details: str = "") -> None:
        super().__init__(text)
        self.details = details
        if details:
            self.add_note(details)


class UserErrors(UserError):
    """Several errors at once, one per line."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def one_line(text: object, most: int = 200) -> str:
    """Returns a text, such as the message of another library, as one line of at most `most` printable characters."""
    line = "".join(char if char.isprintable() else "\ufffd" for char in " ".join(str(text).split()))
    return shorten(line, most)


def shorten(text: str, width: int = 60) -> str:
    """Returns the text, cut to `width` characters with an ellipsis if it is longer."""
    return text if len(text) <= width else text[: width - 1] + "…"


def shown(value: object, most: int = 80) -> str:
    """Returns the repr of a value for an error message, as one line of at most `most` characters."""
    try:
        return one_line(_REPR.repr(value), most)
    except ValueError:
        return "a number of more than 4,300 digits"  # Python refuses to print it


def did_you_mean(word: object, choices: list[str]) -> str:
    """Returns a suggestion for a mistyped word, to append to a message: '; did you mean "steps"?', or an empty string."""
    from difflib import get_close_matches

    if not isinstance(word, str):
        return ""
    close = get_close_matches(word, choices, n=1)
    return f'; did you mean "{one_line(close[0], 60)}"?' if close else ""


def is_utf_8(text: str) -> bool:
    """Whether the text can be encoded as UTF-8. Text that was typed or read in another encoding may contain lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def plural(number: int, noun: str, nouns: str = "") -> str:
    """Returns a count with its noun: "1 pair", "2,000 pairs". nouns: the plural, if it is not the singular plus s."""
    return f"{number:,} {noun if number == 1 else nouns or f'{noun}s'}"


class WrongNumbers(ValueError):
    """Numbers that are out of range. wrong: name -> (number, expected range)."""

    def __init__(self, wrong: dict[str, tuple[float, str]]) -> None:
        super().__init__("; ".join(f"{name} is {number}, expected {expected}" for name, (number, expected) in wrong.items()))
        self.wrong = wrong


def check_numbers(settings: object) -> None:
    """Checks the settings of a model: whole numbers are sizes from 1 to 2³¹ − 1, other numbers are finite, dropout is a
    probability below 1, and norm_eps is not negative. Raises WrongNumbers."""
    wrong: dict[str, tuple[float, str]] = {}
    for name, value in vars(settings).items():
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            wrong[name] = value, "1 or more"
        if isinstance(value, int) and value > LARGEST_SIZE:
            wrong[name] = value, f"{LARGEST_SIZE:,} or less"
        if name == "dropout" and not 0 <= value < 1:
            wrong[name] = value, "a probability from 0 up to, but not including, 1"
        if isinstance(value, float) and not isfinite(value):
            wrong[name] = value, "a finite number"
        elif name == "norm_eps" and value < 0:
            wrong[name] = value, "0 or more"
    if wrong:
        raise WrongNumbers(wrong)


def check_whole(name: str, number: Any, least: int = 1) -> None:
    """Raises ValueError unless the argument is a whole number from `least` to LARGEST_SIZE."""
    if isinstance(number, bool) or not isinstance(number, Integral) or number < least:
        raise ValueError(f"{name} is {shown(number)}, expected a whole number, {least} or more")
    if int(number) > LARGEST_SIZE:
        raise ValueError(f"{name} is {shown(number)}, expected at most {LARGEST_SIZE:,}")


def check_flags(**flags: Any) -> None:
    """Raises ValueError for an argument that has no truth value."""
    for name, flag in flags.items():
        try:
            bool(flag)
        except (RuntimeError, ValueError):  # a tensor with several elements
            raise ValueError(f"{name} is {shown(flag)}, expected True or False") from None


def check_sizes(**sizes: Any) -> None:
    """Raises ValueError for an argument that is not a whole number from 1 to LARGEST_SIZE."""
    for name, size in sizes.items():
        check_whole(name, size)


def check_positive(name: str, number: Any, expected: str = "a number above 0") -> None:
    """Raises ValueError unless the argument is a finite number above 0."""
    real = isinstance(number, Real) and not isinstance(number, bool)
    if not real or not 0 < number < inf:
        raise ValueError(f"{name} is {shown(number)}, expected {expected}")
