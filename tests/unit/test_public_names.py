"""The public names: one table, and all that must agree with it."""

import ast
import importlib

import mutants
import pytest

import regard

HOMES = {name: home for names in regard._HOMES.values() for name, home in names.items()}


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
    not_public = {"ScoreMaker"}  # for annotations in the file itself
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
