"""run.yaml: all settings of a run in one file. A run writes it, with the reasons, and another run can read it.

regard train pairs.tsv --out m          chooses the settings and writes them to m.run/run.yaml
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
from regard.data.lines import read_lines
from regard.errors import UserError, UserErrors, plural
from regard.training.overrides import WrongSetting, check, leaves, model_tree, put, show, unknown
from regard.training.settings import RunSettings

_HOW = 'write one "key: value" per line, and indent the settings of a section by two spaces'

LONGEST = 100_000
"""The maximum length of a run file, in characters; files that a run writes have about 10,000."""
DEEPEST = 10
"""The maximum nesting depth of a run file; settings have three levels: a section, a setting, a list."""
SHOWN = 50
"""The maximum number of errors that are reported one by one."""


def read_config(
    path: Path, scores: Collection[str] = (), defaults: Mapping[str, object] | None = None, *, old_names: bool = False
) -> RunSettings:
    """Reads a run file and returns its settings; omitted settings keep their defaults.

    Raises UserErrors, which reports all errors together, each with its line number.
    scores: names of custom score functions. defaults: defaults that differ from the usual ones, such as
    {"data.normalise": "none"}. old_names: whether to accept the setting names of earlier versions, as in the file of a run that
    an earlier version started.
    """
    if path.is_file() and path.stat().st_size > 4 * LONGEST:  # a character has up to 4 bytes
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
    """Like `read_config`, for a text; `name` is the file name that error messages use."""
    root = _compose(text, name)
    lines: dict[str, int] = {}
    errors: list[tuple[int, str]] = []

    def add_error(wrong: WrongSetting) -> None:
        """Records an error; for a setting that is not in the file, at the line where its section starts."""
        line = lines.get(wrong.key) or lines.get(wrong.key.partition(".")[0], 1)
        errors.append((line, f"{wrong.key}: {wrong.in_file}"))

    nodes = _settings(root, lines, errors)
    if old_names:
        nodes = {migrate.SETTINGS.get(key, key): node for key, node in nodes.items()}
    tree: dict[str, Any] = asdict(RunSettings())
    kind = nodes.pop("model.kind", None)
    if kind is not None:
        chosen = model_tree(str(_value(kind, "")))
        if isinstance(chosen, WrongSetting):
            add_error(chosen)
            nodes = {key: node for key, node in nodes.items() if not key.startswith("model.")}  # unknown family
        else:
            tree["model"] = chosen
    known = dict(leaves(tree))
    for key, value in (defaults or {}).items():
        if key in known:
            put(tree, key, value)
    for key, node in nodes.items():
        if key in known:
            value = _value(node, known[key])
            put(tree, key, migrate.setting(key, value)[1] if old_names else value)
        else:
            add_error(unknown(key, node.value, tree))
    settings = check(tree, scores, typed=True)
    if isinstance(settings, list):
        for wrong in settings:
            add_error(wrong)
    if errors or isinstance(settings, list):
        messages = [f"{name}:{line}: {text}" for line, text in sorted(errors)]
        more = [f"{name}: and {plural(len(errors) - SHOWN, 'more error')}"] if len(errors) > SHOWN else []
        raise UserErrors([*messages[:SHOWN], *more])
    return settings


def write_config(settings: RunSettings, reasons: Mapping[str, str]) -> str:
    """Returns the text of a run file: one setting per line, with the reason for its value or, without one, its description."""
    rows: list[tuple[str, str]] = []
    about = meanings(settings)
    for key, value in leaves(asdict(settings)):
        section, _, name = key.rpartition(".")
        if section and (f"{section}:", "") not in rows:
            rows += [("", ""), (f"{section}:", "")]
        comment = "".join(
            char if char.isprintable() else "?" for char in " ".join((reasons.get(key) or about.get(key, "")).split())
        )
        rows.append((f"{'  ' if section else ''}{name}: {_scalar(value)}", comment))
    width = min(40, max(len(row) for row, _ in rows))
    body = "\n".join(f"{row:<{width}}  # {comment}" if comment else row for row, comment in rows)
    return f"# `regard train` with this file repeats the run. Omitted settings keep their defaults.\n{body}\n"


def save_config(path: Path, settings: RunSettings, reasons: Mapping[str, str]) -> None:
    """Writes a run file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, write_config(settings, reasons).encode())


# --- reading -----------------------------------------------------------------------------------------------------------------


def _compose(text: str, name: str) -> MappingNode:
    """Returns YAML as nodes with line numbers; no objects are constructed and no code runs. Raises UserError."""
    if len(text) > LONGEST:
        raise _too_long(name, len(text), "characters")
    try:
        _check_shape(YAML(typ="safe", pure=True).parse(text), name)
        root = YAML(typ="safe", pure=True).compose(text)
    except UserError:
        raise
    except Exception as error:  # several types for invalid YAML, and RecursionError for deeply nested brackets
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else text.count("\n", 0, getattr(error, "position", 0)) + 1
        parts = (getattr(error, "context", None), getattr(error, "problem", None), getattr(error, "reason", None))
        problem = " ".join((", ".join(filter(None, parts)) or str(error)).split())
        tabs = {number for number, line in enumerate(text.split("\n"), 1) if "\t" in line[: len(line) - len(line.lstrip())]}
        if r"'\t'" in problem:
            tabs.add(line)
        if tabs:
            raise UserErrors([f"{name}:{line}: got a tab, expected spaces" for line in sorted(tabs)]) from None
        raise UserError(f"{name}:{line}: this is not valid YAML: {problem}; {_HOW}") from None
    if root is None:
        raise UserError(f'{name}:1: got an empty file, expected settings, such as "seed: 7"; {_HOW}')
    if not isinstance(root, MappingNode):
        got = "plain text" if isinstance(root, ScalarNode) else "a list"
        raise UserError(f"{name}:{root.start_mark.line + 1}: got {got}, expected settings by name; {_HOW}")
    return root


def _too_long(name: str, size: int, unit: str) -> UserError:
    return UserError(f"{name}: got {size:,} {unit}, expected settings in at most {LONGEST:,} characters; is this a run file?")


def _check_shape(events: Iterable[Event], name: str) -> None:
    """Raises UserError for deep nesting and for aliases, which could expand to many nodes, before any nodes are made."""
    depth = 0
    for event in events:
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        line = event.start_mark.line + 1
        if depth > DEEPEST:
            raise UserError(f"{name}:{line}: got more than {DEEPEST} nested brackets or sections, expected settings; {_HOW}")
        if isinstance(event, AliasEvent):
            raise UserError(f"{name}:{line}: got the alias *{event.anchor}, expected a value; write out the value it refers to")


def _settings(root: MappingNode, lines: dict[str, int], errors: list[tuple[int, str]]) -> dict[str, Node]:
    """Returns {"train.steps": its node}. Adds the line number of every key to `lines`, and an error for every repeated key."""
    sections = {name for name, value in asdict(RunSettings()).items() if isinstance(value, dict)}
    nodes: dict[str, Node] = {}

    def read(mapping: MappingNode, prefix: str) -> None:
        for key_node, node in mapping.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, ScalarNode):
                errors.append((line, f"{prefix}?: got {show(_value(key_node, None))} as a key, expected the name of a setting"))
                continue
            key = prefix + (key_node.value if key_node.value.isprintable() else repr(key_node.value))
            if key in lines:
                errors.append((line, f"{key}: got a second value, expected one; the first is on line {lines[key]}"))
                continue
            lines[key] = line
            if key not in sections:
                nodes[key] = node
            elif isinstance(node, MappingNode):
                read(node, f"{key}.")
            elif (value := _value(node, None)) is not None:  # a section may be empty
                errors.append((line, f"{key}: got {show(value)}, expected the settings of this section, indented below it"))

    read(root, "")
    return nodes


def _value(node: Node, default: object) -> Any:
    """Returns the value of a node. If the default is a string or a list of strings, `2` and `no` are strings, too."""
    if isinstance(node, MappingNode):
        return {}
    expects_text = isinstance(default, str | tuple)
    if not isinstance(node, ScalarNode):
        return [
            _value(item, "") if isinstance(item, ScalarNode) else {} if isinstance(item, MappingNode) else []
            for item in node.value
        ]
    kind = str(node.tag).rpartition(":")[2]
    value: Any = node.value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # "\ud83d\ude00" is one character
    if kind == "null":
        value = None
    elif not expects_text and kind in ("int", "float", "bool"):
        with suppress(ValueError):  # `!!int many`
            number = YAML(typ="safe", pure=True).constructor.construct_object(node)
            str(number)  # raises for thousands of digits, which can be written in another base, such as 0xff
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


def meanings(settings: RunSettings) -> dict[str, str]:
    """Returns {"train.steps": its description}."""
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
    """Returns the string below each field in the source, with the values that are allowed."""
    descriptions: dict[str, str] = {}
    for parent in reversed(classes):
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(parent))).body[0].body  # type: ignore[attr-defined]
        except OSError:  # installed without its source
            continue
        for field, below in pairwise(body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    descriptions[name] = words
    for name, hint in get_type_hints(classes[0]).items():
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        text = descriptions.get(name, "")
        if not all(choice in text for choice in choices[1:]):
            descriptions[name] = f"{text} One of {', '.join(choices)}."
    return descriptions
