"""Predictions as they are printed at the end of training."""

from unittest.mock import Mock

from regard.results import Result
from regard.training.validation import Prediction


def test_a_prediction_is_one_line_without_control_characters() -> None:
    result = Result("\x1b[2Jb", ("b",), ("a",), -1.0, -1.0, True, (), (), map_attention=Mock(), align=Mock())
    line = str(Prediction("a\tV;PST", ("\u202ec", "d"), (("c",), ("d",)), result))
    assert line == r"a [V;PST] -> \x1b[2Jb (expected \u202ec or d)"
