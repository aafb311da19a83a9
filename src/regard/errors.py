"""The one exception that is meant for people: commands print its text as one line, without a traceback."""


class UserError(ValueError):
    """Something the user can put right. The text says what came, what was expected and what to do."""


def did_you_mean(word: str, choices: list[str]) -> str:
    """A suggestion for a mistyped word, ready to be appended to an error: '; did you mean "steps"?' or nothing."""
    from difflib import get_close_matches

    close = get_close_matches(word, choices, n=1)
    return f'; did you mean "{close[0]}"?' if close else ""
