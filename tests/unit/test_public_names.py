"""The public names: one table, and all that must agree with it."""

import ast
import importlib
import inspect
import re

import mutants
import public
import pytest
from public import HOMES

import regard

UNTYPED = {  # public function or method -> why its signature says Any
    "Result.as_dict": "JSON",
    "Comparison.as_dict": "JSON",
    "Row.as_dict": "JSON",
    "Result.from_dict": "JSON",
    "Explanation.as_dict": "JSON",
    "ExplanationLine.as_dict": "JSON",
    "Translator.__init__": "the section `training` of config.json",
    "Translator.of_model": "the section `training` of config.json",
    "Translator.of_saved": "the section `training` of config.json",
}


def imported_for_type_checkers() -> dict[str, str]:
    """Returns the names that `regard/__init__.py` imports under TYPE_CHECKING, with the modules that they come from."""
    tree = ast.parse((mutants.ROOT / "src/regard/__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module).removeprefix("regard").lstrip(".") for node in imports for alias in node.names}


def test_table_list_and_imports_agree() -> None:
    assert sum(map(len, regard._HOMES.values())) == len(HOMES), "a name is in two sections"
    assert sorted(regard.__all__) == sorted([*HOMES, *regard._MODULES])
    modules = {name: path.rpartition(".")[0] for name, path in regard._MODULES.items()}
    elsewhere = {name: home for name, home in HOMES.items() if home}
    not_public = {"EngineName", "ScoreMaker"}  # for annotations in the file itself
    imported = {name: home for name, home in imported_for_type_checkers().items() if name not in not_public}
    assert imported == {**elsewhere, **modules}


@pytest.mark.parametrize("name", sorted(regard.__all__))
def test_every_name_is_what_its_home_defines(name: str) -> None:
    if name in regard._MODULES:
        assert getattr(regard, name) is importlib.import_module(f"regard.{regard._MODULES[name]}")
    else:
        home = importlib.import_module(f"regard.{HOMES[name]}".rstrip("."))
        assert getattr(regard, name) is vars(home)[name]
        assert getattr(vars(home)[name], "__module__", home.__name__) in (home.__name__, "typing")


def test_other_names_are_not_public() -> None:
    assert dir(regard) == sorted(regard.__all__)
    for name, suggestion in {"attendd": '; did you mean "attend"?', "zebra": ""}.items():
        with pytest.raises(AttributeError) as error:
            getattr(regard, name)
        assert str(error.value) == f"module 'regard' has no attribute {name!r}{suggestion}"


def public_functions() -> dict[str, object]:
    """Returns all public functions, and the methods and properties of public classes."""
    found = {}
    for owner, value in public.names().items():
        if inspect.isclass(value):
            members = public.methods(value)
            if str(getattr(value.__init__, "__module__", "")).startswith("regard."):
                members["__init__"] = value.__init__
            found |= {f"{owner}.{name}": public.function(member) for name, member in members.items()}
        elif inspect.isfunction(value):
            found[owner] = value
    return found


def test_signatures_say_their_types() -> None:
    untyped = set()
    for name, function in public_functions().items():
        signature = inspect.signature(function)  # type: ignore[arg-type]
        parameters = [parameter for parameter in signature.parameters.values() if parameter.name not in ("self", "cls")]
        types = [parameter.annotation for parameter in parameters]
        types += [] if name.endswith("__init__") else [signature.return_annotation]
        assert inspect.Signature.empty not in types, name
        if any(re.search(r"\bAny\b", str(annotation)) for annotation in types):
            untyped.add(name)
    assert untyped == set(UNTYPED)
