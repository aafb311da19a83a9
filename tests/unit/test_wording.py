"""Messages in Python name arguments where those of a command name options."""

import ast
import re
from pathlib import Path

import pytest

import regard
from regard.errors import UserError, UserErrors
from regard.wording import in_python, python_words

PACKAGE = Path(regard.__file__).parent


def messages() -> list[str]:
    """Returns every text in the modules that `regard.train` uses, apart from docstrings; "x" stands for what is filled in."""
    texts = []
    for folder in ("checkpoint", "core", "data", "layers", "training"):
        for path in (PACKAGE / folder).rglob("*.py"):
            tree = ast.parse(path.read_text())
            inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                    inside.add(id(node.value))
            for node in ast.walk(tree):
                if isinstance(node, ast.JoinedStr):
                    texts.append("".join(part.value if isinstance(part, ast.Constant) else "x" for part in node.values))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                    texts.append(node.value)
    return texts


def test_no_option_is_left() -> None:
    options = [text for text in messages() if re.search(r"--[a-z]{2}", text) and not text.startswith("--")]
    assert len(options) > 20
    for text in options:
        if "regard align" not in text:  # only the command chooses a head
            assert not re.search(r"--[a-z]|same command", in_python(text)), text


@pytest.mark.parametrize(
    ("command", "python"),
    [
        ("choose another --out, or use --overwrite", "choose another out, or use overwrite=True"),
        ("add --set train.warmup=0.25. To", "add warmup=0.25. To"),
        ("use --set data.source_unit=characters", 'use source_unit="characters"'),
        ("--set train.steps: 0 is too small", "train.steps: 0 is too small"),
        ("e.g. --from 1 --to 2, or --from 1,3 --to de", 'e.g. source=1 target=2, or source=(1, 3) target="de"'),
        ("choose others with --from and --to", "choose others with source and target"),
        ("if it is data, use --no-header", 'if it is data, use header="no"'),
        ("name its model with --encoder-from", "name its model with encoder_from"),
        ("Run the same command; then run the same command", "Make the same call; then make the same call"),
        ("further, type: regard train a --out b. To continue", "further, type: regard train a --out b. To continue"),
    ],
)
def test_options_become_arguments(command: str, python: str) -> None:
    assert in_python(command) == python


def test_errors_are_reworded() -> None:
    with pytest.raises(UserError, match=r"^data:3: use overwrite=True") as caught, python_words({"/tmp/x/data.jsonl": "data"}):
        raise UserError("/tmp/x/data.jsonl:3: use --overwrite", details="more")
    assert caught.value.details == "more"
    with pytest.raises(UserErrors) as several, python_words():
        raise UserErrors(["a --out", "b --to"])
    assert several.value.lines == ["a out", "b target"]
    assert str(several.value) == "a out\nb target"
