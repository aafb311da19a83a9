"""The one exception that is meant for people: commands print its text as one line, without a traceback."""


class UserError(ValueError):
    """Something the user can put right. The text says what came, what was expected and what to do."""


def did_you_mean(word: str, choices: list[str]) -> str:
    """A suggestion for a mistyped word, ready to be appended to an error: '; did you mean "steps"?' or nothing."""
    from difflib import get_close_matches

    close = get_close_matches(word, choices, n=1)
    return f'; did you mean "{close[0]}"?' if close else ""


def check_numbers(settings: object) -> None:
    """For the settings of a model: every whole number is a size and at least 1, and dropout is a share."""
    for name, value in vars(settings).items():
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            raise ValueError(f"{name} is {value}, expected 1 or more")
        if name == "dropout" and not 0 <= value < 1:
            raise ValueError(f"dropout is {value}, expected a share from 0 up to, but not, 1")
