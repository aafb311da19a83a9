"""Generates the list of public names in docs/api.md: `python tests/api_page.py` rewrites it."""

import ast
import importlib
import inspect
import re
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import public

import regard

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
NAMES = re.compile(r"(<!-- names -->\n).*(<!-- end -->)", re.DOTALL)


def names() -> str:
    """Returns one table per section of the public names, and one per public module."""
    sections = {section: {name: _home(home) for name, home in names.items()} for section, names in regard._HOMES.items()}
    parts = [_table(section, homes) for section, homes in sections.items()]
    for module in regard._MODULES:
        home = getattr(regard, module)
        if hasattr(home, "__all__"):
            parts.append(_table(f"`regard.{module}`", dict.fromkeys(home.__all__, home), first_sentence(home.__doc__)))
        else:
            listed = ", ".join(f"`{name}`" for name in public.listed(module))
            parts.append(f"### `regard.{module}`\n\n{first_sentence(home.__doc__)}\n\n{listed}\n")
    return "\n" + "\n".join(parts) + "\n"


def _home(path: str) -> ModuleType:
    return importlib.import_module(f"regard.{path}".rstrip("."))


def _table(title: str, homes: dict[str, ModuleType], before: str = "") -> str:
    rows = [f"| `{name}` | {meaning(name, home).replace('|', chr(92) + '|')} |" for name, home in homes.items()]
    lead = f"{before}\n\n" if before else ""
    return f"### {title}\n\n{lead}| name | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"


def meaning(name: str, home: ModuleType) -> str:
    """Returns the first sentence of the docstring of a name; that of data is the string below it."""
    value = getattr(home, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        return first_sentence(inspect.getdoc(value))
    statements = ast.parse(inspect.getsource(home)).body
    below = {target.id: after for one, after in pairwise(statements) for target in _targets(one)}
    text = below[name].value.value if isinstance(below[name], ast.Expr) else ""  # type: ignore[attr-defined]
    return first_sentence(text)


def _targets(statement: ast.stmt) -> list[ast.Name]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return [target for target in targets if isinstance(target, ast.Name)]


def first_sentence(doc: str | None) -> str:
    """Returns the first sentence of a docstring on one line."""
    text = " ".join((doc or "").partition("\n\n")[0].split())
    sentence = re.split(r"(?<=\.)\s+(?=[A-Z`])", text)[0].removesuffix(":")
    assert sentence, "no docstring"
    return sentence


def written(page: str) -> str:
    """Returns the page with an up-to-date list."""
    return NAMES.sub(lambda match: match[1] + names() + match[2], page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
