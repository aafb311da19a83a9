"""What a model wrote, as people see it at the end of a training."""

from unittest.mock import Mock

from regard.contracts import Result
from regard.training.predictions import Prediction


def test_an_answer_is_a_line_that_no_terminal_obeys() -> None:
    result = Result("\x1b[2Jb", ("b",), ("a",), -1.0, -1.0, True, (), (), map_attention=Mock(), align=Mock())
    line = str(Prediction("a\tV;PST", ("\u202ec", "d"), (("c",), ("d",)), result))
    assert line == r"a [V;PST] -> \x1b[2Jb (expected \u202ec or d)"
