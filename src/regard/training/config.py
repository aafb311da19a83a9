"""run.yaml: all settings of a run in one file, which a run writes, with the reasons, and another run reads.

regard train pairs.tsv --out m          chooses the settings and writes m.run/run.yaml
regard train m.run/run.yaml --out m2    repeats the run
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ruamel.yaml import YAML
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, Event
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode

from regard.checkpoint import migrate
from regard.checkpoint.files import replace_file
from regard.data.corpus import read_lines
from regard.errors import Mistakes, UserError, plural
from regard.training.settings import Mistake, RunSettings, check, leaves, model_tree, put, show, unknown

_HOW = 'write one "key: value" on a line, and the settings of a section below it, two spaces to the right'

LONGEST = 100_000
"""Characters of a run file; what a run writes has some 10,000."""
DEEPEST = 10
"""Levels of a run file; settings have three: a section, a setting, a list."""
SHOWN = 50
"""Mistakes that are reported one by one."""


def read_config(
    path: Path, scores: Collection[str] = (), defaults: Mapping[str, object] | None = None, *, old_names: bool = False
) -> RunSettings:
    """Reads a run file; what it does not say keeps its default. All mistakes are reported at once, a line for each.

    `scores`: names of the user's own. defaults: {"data.normalise": "none"} where these are others than usual.
    old_names: whether settings may have the names of earlier versions, as in the file of a run that was begun with one.
    """
    if path.is_file() and path.stat().st_size > 4 * LONGEST:  # bytes of a character
        raise _too_long(str(path), path.stat().st_size, "bytes")
    return parse_config("\n".join(read_lines(path)), str(path), scores, defaults, old_names=old_names)


def parse_config(
    text: str,
    name: str,
    scores: Collection[str] = (),
    defaults: Mapping[str, object] | None = None,
    *,
    old_names: bool = False,
) -> RunSettings:
    """`read_config` for a text; `name` is what the mistakes call it."""
    root = _compose(text, name)
    lines: dict[str, int] = {}
    found: list[tuple[int, str]] = []

    def complain(mistake: Mistake) -> None:
        """Settings that are not in the file are complained about where their section begins."""
        line = lines.get(mistake.key) or lines.get(mistake.key.partition(".")[0], 1)
        found.append((line, f"{mistake.key}: {mistake.in_file}"))

    nodes = _settings(root, lines, found)
    if old_names:
        nodes = {migrate.SETTINGS.get(key, key): node for key, node in nodes.items()}
    tree: dict[str, Any] = asdict(RunSettings())
    for key, value in (defaults or {}).items():
        put(tree, key, value)
    kind = nodes.pop("model.kind", None)
    if kind is not None:
        chosen = model_tree(str(_value(kind, "")))
        if isinstance(chosen, Mistake):
            complain(chosen)
            nodes = {key: node for key, node in nodes.items() if not key.startswith("model.")}  # whose they are is unknown
        else:
            tree["model"] = chosen
    known = dict(leaves(tree))
    for key, node in nodes.items():
        if key in known:
            value = _value(node, known[key])
            put(tree, key, migrate.setting(key, value)[1] if old_names else value)
        else:
            complain(unknown(key, node.value, tree))
    settings = check(tree, scores, typed=True)
    if isinstance(settings, list):
        for mistake in settings:
            complain(mistake)
    if found or isinstance(settings, list):
        complaints = [f"{name}:{line}: {text}" for line, text in sorted(found)]
        more = [f"{name}: and {plural(len(found) - SHOWN, 'more mistake')}"] if len(found) > SHOWN else []
        raise Mistakes([*complaints[:SHOWN], *more])
    return settings


def write_config(settings: RunSettings, reasons: Mapping[str, str]) -> str:
    """The text of a run file: every setting on a line with the reason for it or, lacking one, what it means."""
    rows: list[tuple[str, str]] = []
    about = _meanings(settings)
    for key, value in leaves(asdict(settings)):
        section, _, name = key.rpartition(".")
        if section and (f"{section}:", "") not in rows:
            rows += [("", ""), (f"{section}:", "")]
        comment = "".join(
            one if one.isprintable() else "?" for one in " ".join((reasons.get(key) or about.get(key, "")).split())
        )
        rows.append((f"{'  ' if section else ''}{name}: {_scalar(value)}", comment))
    width = min(40, max(len(row) for row, _ in rows))
    body = "\n".join(f"{row:<{width}}  # {comment}" if comment else row for row, comment in rows)
    return f"# `regard train` with this file repeats the run. What is left out keeps its default.\n{body}\n"


def save_config(path: Path, settings: RunSettings, reasons: Mapping[str, str]) -> None:
    """Writes a run file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, write_config(settings, reasons).encode())


# --- reading -----------------------------------------------------------------------------------------------------------------


def _compose(text: str, name: str) -> MappingNode:
    """YAML as nodes, which know their lines; nothing is constructed and no code is run."""
    if len(text) > LONGEST:
        raise _too_long(name, len(text), "characters")
    try:
        _check_shape(YAML(typ="safe", pure=True).parse(text), name)
        root = YAML(typ="safe", pure=True).compose(text)
    except UserError:
        raise
    except Exception as error:  # the library has several for what is not YAML, and Python one for brackets too deep
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else text.count("\n", 0, getattr(error, "position", 0)) + 1
        parts = (getattr(error, "context", None), getattr(error, "problem", None), getattr(error, "reason", None))
        problem = " ".join((", ".join(filter(None, parts)) or str(error)).split())
        tabs = {number for number, line in enumerate(text.split("\n"), 1) if "\t" in line[: len(line) - len(line.lstrip())]}
        if r"'\t'" in problem:
            tabs.add(line)
        if tabs:
            raise Mistakes([f"{name}:{line}: got a tab, expected spaces" for line in sorted(tabs)]) from None
        raise UserError(f"{name}:{line}: this is not YAML: {problem}; {_HOW}") from None
    if root is None:
        raise UserError(f'{name}:1: got an empty file, expected settings, such as "seed: 7"; {_HOW}')
    if not isinstance(root, MappingNode):
        got = "a text" if isinstance(root, ScalarNode) else "a list"
        raise UserError(f"{name}:{root.start_mark.line + 1}: got {got}, expected settings by name; {_HOW}")
    return root


def _too_long(name: str, size: int, unit: str) -> UserError:
    return UserError(f"{name}: got {size:,} {unit}, expected settings in at most {LONGEST:,} characters; is this a run file?")


def _check_shape(events: Iterable[Event], name: str) -> None:
    """Raises where nodes would be too deep, or stand for many others, before there are any."""
    depth = 0
    for event in events:
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        line = event.start_mark.line + 1
        if depth > DEEPEST:
            raise UserError(f"{name}:{line}: got brackets or sections more than {DEEPEST} deep, expected settings; {_HOW}")
        if isinstance(event, AliasEvent):
            raise UserError(f"{name}:{line}: got the alias *{event.anchor}, expected a value; write out what it stands for")


def _settings(root: MappingNode, lines: dict[str, int], found: list[tuple[int, str]]) -> dict[str, Node]:
    """{"train.steps": its node}. Notes the line of every key; the second of two equal keys is a mistake."""
    sections = {name for name, value in asdict(RunSettings()).items() if isinstance(value, dict)}
    nodes: dict[str, Node] = {}

    def read(mapping: MappingNode, prefix: str) -> None:
        for key_node, node in mapping.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, ScalarNode):
                found.append((line, f"{prefix}?: got {show(_value(key_node, None))} as a name, expected the name of a setting"))
                continue
            key = prefix + (key_node.value if key_node.value.isprintable() else repr(key_node.value))
            if key in lines:
                found.append((line, f"{key}: got it a second time, expected it once; the first is in line {lines[key]}"))
                continue
            lines[key] = line
            if key not in sections:
                nodes[key] = node
            elif isinstance(node, MappingNode):
                read(node, f"{key}.")
            elif (value := _value(node, None)) is not None:  # a section may be empty
                found.append((line, f"{key}: got {show(value)}, expected the settings of this section below it"))

    read(root, "")
    return nodes


def _value(node: Node, default: object) -> Any:
    """What a node says. Where the default is a text, or a list of them, `2` and `no` are texts too."""
    if isinstance(node, MappingNode):
        return {}
    texts = isinstance(default, str | tuple)
    if not isinstance(node, ScalarNode):
        return [
            _value(one, "") if isinstance(one, ScalarNode) else {} if isinstance(one, MappingNode) else [] for one in node.value
        ]
    kind = str(node.tag).rpartition(":")[2]
    value: Any = node.value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # "\ud83d\ude00" is one character
    if kind == "null":
        value = None
    elif not texts and kind in ("int", "float", "bool"):
        with suppress(ValueError):  # `!!int many`
            number = YAML(typ="safe", pure=True).constructor.construct_object(node)
            str(number)  # raises for thousands of digits, which can be written in other systems, such as 0xff
            value = number
    return [value] if isinstance(default, tuple) and value is not None else value


# --- writing -----------------------------------------------------------------------------------------------------------------


def _scalar(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_scalar, value))}]"
    if isinstance(value, str):
        plain = re.fullmatch(r"[A-Za-z][\w./-]*", value, re.ASCII) and value.lower() != "null"
        return value if plain else '"' + "".join(map(_escape, value)) + '"'
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


def _escape(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"


def _meanings(settings: RunSettings) -> dict[str, str]:
    """{"train.steps": what it means}."""
    groups = {
        "": settings,
        "data.": settings.data,
        "model.": settings.model,
        "train.": settings.train,
        "start.": settings.start,
    }
    return {prefix + name: text for prefix, group in groups.items() for name, text in _texts(type(group).__mro__[:-1]).items()}


@cache
def _texts(classes: tuple[type, ...]) -> dict[str, str]:
    """What stands under each field in the source, and the words that it may be set to."""
    found: dict[str, str] = {}
    for parent in reversed(classes):
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(parent))).body[0].body  # type: ignore[attr-defined]
        except OSError:  # installed without its source
            continue
        for field, below in pairwise(body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    found[name] = words
    for name, hint in get_type_hints(classes[0]).items():
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        text = found.get(name, "")
        if not all(choice in text for choice in choices[1:]):
            found[name] = f"{text} One of {', '.join(choices)}."
    return found
