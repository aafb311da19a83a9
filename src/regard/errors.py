"""The one exception that is meant for people: commands print its text as one line, without a traceback."""


class UserError(ValueError):
    """Something the user can put right. The text says what came, what was expected and what to do."""


def did_you_mean(word: str, choices: list[str]) -> str:
    """A suggestion for a mistyped word, ready to be appended to an error: '; did you mean "steps"?' or nothing."""
    from difflib import get_close_matches

    close = get_close_matches(word, choices, n=1)
    return f'; did you mean "{close[0]}"?' if close else ""


def check_sizes(**sizes: int) -> None:
    """Raises a ValueError that names the first size below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} is {size}, expected 1 or more")


def check_dropout(dropout: float) -> None:
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout is {dropout}, expected a share from 0 up to, but not, 1")
