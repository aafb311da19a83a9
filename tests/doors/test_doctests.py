"""`help()` of every public name says what it does, with an example, and all examples run.

The examples use `regard` and `torch`, the file pairs.tsv, and a model folder "model" that learned from it to spell words:
"cab" becomes "C A B".
"""

import doctest
import inspect
import random
import re
from pathlib import Path

import public
import pytest
import torch

import regard
from regard.cli.main import app

NAMES = {name: value for name, value in public.names().items() if not name.startswith("reference.")}
"""The functions of `regard.reference` are single formulas, to be read; the module has an example."""

NOT_SHOWN = {  # public method or property -> why no example shows it
    "Translator.answer": "runs plans of the Reader; commands call it",
    "Translator.answer_all": "runs plans of the Reader; commands call it",
    "Translator.at": "only matters for models that read files",
    "Translator.of_saved": "`regard.load` calls it",
    "Translator.normalisation": "how training normalises pairs; commands read it",
    "Translator.torch_engine": "the engine is for those who write one",
    "Translator.workers": "depends on the number of cores; commands call it",
    "Result.made_by": "the Translator calls it",
    "MultiHeadAttention.extra_repr": "`print(layer)` calls it",
    "MultiHeadAttention.check_sequence": "layers that contain it call it",
    "MultiHeadAttention.mask_for_heads": "layers that contain it call it",
    "MultiHeadAttention.key_positions": "layers that contain it call it",
    "TransformerEncoderLayer.feed": "a part of its forward pass",
    "TransformerDecoderLayer.feed": "a part of its forward pass",
    "TransformerEncoderLayer.torch_options": "`to_torch` calls it",
    "TransformerDecoderLayer.torch_options": "`to_torch` calls it",
}


def documented() -> dict[str, str]:
    """Returns all docstrings with examples, by the name that a user asks help for."""
    docs = {name: inspect.getdoc(value) or "" for name, value in NAMES.items() if not is_data(value)}
    for owner, value in NAMES.items():
        for name, member in public.methods(value).items():
            docs[f"{owner}.{name}"] = public.function(member).__doc__ or ""
    for module in regard._MODULES:
        docs[module] = getattr(regard, module).__doc__ or ""
    return {name: doc for name, doc in docs.items() if ">>>" in doc}


def is_data(value: object) -> bool:
    """Whether a public name is data or a type alias, which have no docstring; docs/api.md describes them."""
    return not inspect.isclass(value) and not inspect.isfunction(value)


EXAMPLES = documented()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pairs.tsv, and with the model that the examples load."""
    where, rng = tmp_path_factory.mktemp("doctests"), random.Random(7)
    words = sorted({"".join(rng.choices("abcdefgh", k=rng.randint(1, 6))) for _ in range(600)})
    (where / "pairs.tsv").write_text("".join(f"{word}\t{' '.join(word.upper())}\n" for word in words))
    model = "model.kind=rnn model.width=32 model.embedding=16 model.dropout=0"
    train = "train.steps=200 train.batch_tokens=512 train.learning_rate=0.01 train.label_smoothing=0"
    settings = [word for setting in f"{model} {train}".split() for word in ("--set", setting)]
    app(["train", str(where / "pairs.tsv"), "--out", str(where / "model"), "--threads", "1", *settings], standalone_mode=False)
    return where


def check(name: str) -> None:
    """Runs the examples of one name, as a user would type them after `import regard, torch`."""
    test = doctest.DocTestParser().get_doctest(EXAMPLES[name], {"regard": regard, "torch": torch}, name, None, None)
    reports: list[str] = []
    failed, tried = doctest.DocTestRunner().run(test, out=reports.append)
    assert tried
    assert not failed, "".join(reports)


def is_slow(name: str) -> bool:
    """Whether an example loads the model, reads the pairs or trains."""
    return bool(re.search(r'"model"|"pairs\.tsv"|regard\.train\(', EXAMPLES[name]))


@pytest.mark.parametrize("name", [name for name in EXAMPLES if not is_slow(name)])
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some write pictures
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXAMPLES if is_slow(name)])
def test_examples_with_a_model_run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    check(name)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_help_and_an_example(name: str) -> None:
    value = NAMES[name]
    if is_data(value):
        return
    assert name in EXAMPLES, "add an example to its docstring"
    code = "".join(code_of(key) for owner in bases(value) for key in EXAMPLES if f"{key}.".startswith(f"{owner}."))
    for method in public.methods(value):
        assert inspect.getdoc(getattr(value, method)), f"{name}.{method} has no docstring"
        is_shown = method in ("__call__", "forward") or f".{method}" in code or f"{name}.{method}" in NOT_SHOWN
        assert is_shown, f"no example shows {name}.{method}"


def code_of(name: str) -> str:
    """Returns the code of the examples of one name."""
    return "".join(example.source for example in doctest.DocTestParser().get_examples(EXAMPLES[name]))


def bases(value: object) -> list[str]:
    """Returns the public names of a class and its bases, or that of a function."""
    classes = inspect.getmro(value) if inspect.isclass(value) else (value,)
    return [name for name, other in NAMES.items() if other in classes]


def test_exceptions_are_needed() -> None:
    for name in NOT_SHOWN:
        owner, _, method = name.rpartition(".")
        assert method in public.methods(NAMES[owner])
        assert name not in EXAMPLES
