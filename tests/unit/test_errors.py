from dataclasses import dataclass

import pytest

from regard.cli import main
from regard.errors import UserError, WrongNumbers, check_numbers, did_you_mean, one_line, plural, shown


def test_a_count_has_the_right_form_of_its_noun() -> None:
    assert [plural(n, "pair") for n in (0, 1, 2000)] == ["0 pairs", "1 pair", "2,000 pairs"]
    assert (plural(1, "entry", "entries"), plural(3, "entry", "entries")) == ("1 entry", "3 entries")


def test_a_suggestion_is_one_line() -> None:
    assert did_you_mean("target", ["ta\ufeffrget"]) == '; did you mean "ta\ufffdrget"?'
    assert did_you_mean(5, ["5"]) == ""


def test_messages_of_libraries_become_one_short_line() -> None:
    assert one_line("two\n  lines\x1b[31m") == "two lines\ufffd[31m"
    assert one_line("x" * 1000) == "x" * 199 + "…"
    assert shown("a\nb") == r"'a\nb'"
    assert len(shown({str(number): list(range(1000)) for number in range(1000)})) <= 80


@dataclass(frozen=True)
class Sizes:
    width: int = 8
    norm_eps: float = 1e-5


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"width": 0}, "width is 0, expected 1 or more"),
        ({"width": 2**31}, "width is 2147483648, expected 2,147,483,647 or less"),
        ({"norm_eps": -1e-5}, "norm_eps is -1e-05, expected 0 or more"),
        ({"norm_eps": float("nan")}, "norm_eps is nan"),
    ],
)
def test_sizes_of_a_model_are_checked_for_their_ranges(sizes: dict[str, float], words: str) -> None:
    with pytest.raises(WrongNumbers, match=words):
        check_numbers(Sizes(**sizes))  # type: ignore[arg-type]
    check_numbers(Sizes(width=2**31 - 1, norm_eps=0.0))


def test_details_are_printed_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise UserError("three tensors are wrong", details="one\ntwo\nthree")

    monkeypatch.setattr(main, "app", fail)
    for arguments, expected in (
        (["translate"], "regard: three tensors are wrong"),
        (["--details", "translate"], "one\ntwo\nthree"),
    ):
        monkeypatch.setattr("sys.argv", ["regard", *arguments])
        with pytest.raises(SystemExit) as caught:
            main.main()
        assert str(caught.value) == expected if arguments[0] == "translate" else str(caught.value).endswith(expected)
