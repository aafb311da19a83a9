"""Gives strange values to every option of every command, as listed by the program itself; runs each command through `main`."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from xml.etree import ElementTree

from hostile.area import Area, Wrong, require
from hostile.changes import STRANGE, strange_text

FROZEN = Path(__file__).parents[2] / "tests" / "frozen" / "models"
MODELS = ("transformer", "rnn-bahdanau", "rnn-features", "decoder-only", "transformer-unigram", "rnn-language-model")

NUMBERS = (
    *"0 1 2 3 -1 -0 00 7 1.5 0.0 1e-320 1e-6 1e9 1e400 nan inf -inf NaN 1_000 0x10 ١ ² 1,5 255 2147483647 2147483648".split(),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775809", "1" + "0" * 18, "9" * 5000, " 1 ", "+1", "--1"),
)
NAMES = (
    *(
        "",
        ".",
        "..",
        "/",
        "/dev/null",
        "/dev/zero",
        "/dev/stdin",
        "nowhere",
        "nowhere/deeper/x.html",
        "model",
        "model/config.json",
    ),
    *("pairs.tsv", "texts.txt", "pipe", "a" * 300, "x" * 5000, "~", "x.html", "x.svg", "x.npz", "x.png", "x.pdf", "X.HTML"),
    *(".html", "model/x.html", "pairs.tsv/x.html", "x.py:Y", "score.py:Mine", "score.py:", ":", "broken.py:X", "gold.txt"),
    *(
        "file\nname.html",
        "\x1b[31m.svg",
        "é.html",
        "C:\\x.html",
        "http://localhost/x",
        "*.tsv",
        "pairs.tsv.gz",
        "run.yaml",
        "known.db",
    ),
)
SETTINGS = (
    *("model.width=0", "model.width=-8", "model.width=9999999999", "model.width=x", "model.kind=none", "nothing", "=", "a=b=c"),
    *("train.steps=0", "train.steps=-1", "train.learning_rate=nan", "train.learning_rate=inf", "train.learning_rate=0", "=1"),
    *("data.files=[", "data.normalise=xyz", "model.dropout=1", "model.score=nothing", "train.warmup=2", "data.vocabulary=1"),
    *("data.source_unit=unigram", "data.target_unit=bpe", "data.held_out_share=1", "train.batch=0", "start.model=x", "seed=-1"),
    *(
        "model.width=8",
        "train.steps=1",
        "data.max_length=1",
        "\x1b[31m=1",
        "train.average=3",
        "train.ema=1",
        "train.patience=0",
    ),
)
OTHERS = ("auto", "cpu", "cuda", "mps", "mean", "cross", "encoder", "decoder", "fusion", "1,2", "1,1", ",", "source", "lemma,1")

TRAIN = ["train.tsv", "--out", "trained", "--threads", "1"]
SMALL = ["--set", "train.steps=1", "--set", "model.width=8"]
BASE: dict[str, list[str]] = {
    "train": [*TRAIN, *SMALL],
    "distill": ["model", "pairs.tsv", "--out", "taught", "--overwrite", "--set", "train.steps=1"],
    "translate": ["model", "--max-length", "4"],
    "evaluate": ["model", "pairs.tsv", "--max-length", "4"],
    "score": ["model", "pairs.tsv"],
    "inspect": ["model", "walk twice"],
    "describe": ["model"],
    "explain": ["model", "walk twice"],
    "align": ["model", "pairs.tsv"],
    "roles": ["model", "pairs.tsv"],
    "demo": ["--device", "nowhere"],
    "check": ["--template"],
    "cost": ["--lengths", "4", "--threads", "1", "--seconds", "1", "--memory", "0.1"],
    "doctor": [],
    "plan": ["train.tsv", "--threads", "1", *SMALL],
    "compare": ["train.tsv", "--only", "luong-dot", "--updates", "1", "--side-by-side", "1"],
    "convert": ["model", "converted"],
    "serve": ["model", "--port", "0", "--languages", "en,de", "--threads", "1"],
    "keys add": ["somebody"],
    "keys list": ["--file", "known.db"],
    "keys remove": ["known", "--file", "known.db"],
}
"""The arguments that every case starts from. The demo gets a device that does not exist, or it would train for minutes."""
SHARES = {
    "train": 1,
    "distill": 0.5,
    "translate": 8,
    "evaluate": 2,
    "score": 3,
    "inspect": 4,
    "describe": 1,
    "explain": 3,
    "align": 3,
    "roles": 1,
    "demo": 1,
    "check": 1,
    "cost": 1,
    "doctor": 0.2,
    "plan": 0.2,
    "compare": 0.2,
    "convert": 1,
    "serve": 1,
    "keys add": 0.3,
    "keys list": 0.2,
    "keys remove": 0.3,
}
MOST_CELLS = 2
"""A comparison trains so many cells; the others get an error as their result, as if they could not be trained."""


class Done(NamedTuple):
    code: int
    out: str
    err: str


def run_command(arguments: list[str], stdin: bytes = b"walk\n") -> Done:
    """Runs `regard` with these arguments in this process and in the current folder."""
    from regard.cli.main import main

    out, err, before = io.StringIO(), io.StringIO(), (sys.argv, sys.stdin)
    code: Any = 0
    with open(".stdin", "w+", newline="") as file, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        os.unlink(".stdin")
        file.buffer.write(stdin)
        file.seek(0)
        sys.argv, sys.stdin = ["regard", *arguments], file
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        finally:
            sys.argv, sys.stdin = before
    said = err.getvalue() + (f"{code}\n" if isinstance(code, str) else "")
    return Done(1 if isinstance(code, str) else int(code or 0), out.getvalue(), said)


def check_done(done: Done) -> None:
    """Raises `Wrong` if the messages of a command are not clear; raises UserError if it failed with one clear line."""
    from regard.errors import UserError

    lines = done.err.removesuffix("\n").split("\n") if done.err else []
    for line in lines:
        require(line.startswith("regard: ") or ".yaml:" in line, f"not a message of regard: {line!r:.300}")
        require(can_print(line) and len(line) <= 1100, f"{len(line)} characters, or not printable: {line!a:.300}")
    require(done.code in (0, 1, 2), f"exit code {done.code}")
    if done.code:
        require(lines, f"exit code {done.code} without a message")
        if lines[-1].startswith(("regard: out of memory", "regard: memory ran out")):
            raise MemoryError(lines[-1])
        require("Errno" not in lines[-1], lines[-1])
        raise UserError(lines[-1])


def can_print(line: str) -> bool:
    """Whether the text is one line without control or bidirectional characters. Characters that no font has are harmless."""
    bidi = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    return not any(unicodedata.category(one) in ("Cc", "Cs", "Zl", "Zp") or one in bidi for one in line)


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.data = "", ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag if dict(attrs).get("type") == "application/json" else ""

    def handle_data(self, data: str) -> None:
        self.data += data if self.inside else ""

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""


def check_written(path: Path) -> None:
    """Raises `Wrong` if a file cannot be read as the type that its name says."""
    content = path.read_bytes()
    if path.suffix.lower() == ".html":
        page = _Page()
        page.feed(content.decode())
        page.close()
        is_worksheet = b"application/json" not in content
        require(is_worksheet or isinstance(json.loads(page.data), dict), "the page holds no data")
    elif path.suffix == ".svg":
        try:
            require(ElementTree.fromstring(content).tag.endswith("svg"), "no <svg>")
        except ElementTree.ParseError as error:
            raise Wrong(f"the SVG is not XML: {error}") from None
    elif path.suffix == ".npz":
        import numpy

        for name, array in numpy.load(path, allow_pickle=False).items():
            require(array.dtype.kind not in "f" or not numpy.isnan(array).any(), f"{name} holds NaN")
    elif path.suffix == ".png":
        from PIL import Image

        Image.open(path).verify()


def options_of(command: str) -> list[Any]:
    """Returns the options of a command as the program defines them, so that new options take part."""
    return [one for one in commands()[command].params if one.opts[0].startswith("--")]


def commands() -> dict[str, Any]:
    """Returns all commands by name; those of a group as "keys add"."""
    import typer

    from regard.cli.main import app

    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found |= {f"{name} {one}": part for one, part in inner.items()} if inner else {name: command}
    return found


def shorten_commands() -> None:
    """Makes commands end soon that would measure for ten seconds, start processes, or serve until a signal."""
    import regard.serving.run
    import regard.training.plan
    from regard.comparing.crew import Crew

    regard.training.plan.SECONDS = 0.1
    regard.serving.run.run = lambda web, bound: bound.close()
    Crew.run = _train_here  # type: ignore[method-assign]


def _train_here(crew: Any, tasks: Sequence[Any]) -> None:
    from regard.comparing.cell import Cell, train_cell
    from regard.training.member import Events

    for number, task in enumerate(tasks):
        if number < MOST_CELLS:
            with open(os.devnull, "w") as nowhere:
                train_cell(task, Events(nowhere))
        else:
            cell = Cell(task.contender, task.seed, "left out")
            task.result.write_text(json.dumps(asdict(cell)))


class Commands(Area):
    """A command with strange arguments, strange values for a few of its options and strange lines on standard input."""

    longest_line = 1100

    def load_modules(self) -> None:
        import matplotlib.backends.backend_agg
        import matplotlib.backends.backend_pdf
        import matplotlib.backends.backend_svg
        import matplotlib.pyplot  # noqa: F401
        import sacrebleu.metrics.bleu
        import sacrebleu.significance  # noqa: F401

        import regard.cli.main
        import regard.inspection.explain
        import regard.inspection.render
        import regard.inspection.report
        import regard.training.run  # noqa: F401

        shorten_commands()

    def prepare(self, root: Path) -> None:
        write_workplace(root)

    def change(self, rng: Random, root: Path, folder: Path) -> str:
        command = rng.choices(list(SHARES), list(SHARES.values()))[0]
        arguments = self._arguments(command, rng)
        model = rng.choice(MODELS)
        stdin = "\n".join(strange_text(rng) for _ in range(rng.choice((0, 1, 3)))).encode()
        if rng.random() < 0.1:
            stdin = rng.randbytes(20)
        (folder / "case.json").write_text(json.dumps([command, arguments, model, stdin.hex()]))
        return f"{model}: regard {command} {' '.join(map(repr, arguments))} < {stdin!r:.100}"

    def _arguments(self, command: str, rng: Random) -> list[str]:
        typed = list(BASE[command])
        if rng.random() < 0.15 and typed:
            at = rng.randrange(len(typed))
            if typed[at][:2] != "--" and command != "demo":
                typed[at] = strange_text(rng, halves=True) if rng.random() < 0.5 else rng.choice(NAMES)
        known = [one for one in options_of(command) if (command, one.opts[0]) != ("demo", "--device")]
        for option in rng.sample(known, min(len(known), rng.choice((1, 1, 1, 2, 3)))):
            name = rng.choice([*option.opts, *option.secondary_opts])
            at = rng.choice((0, len(typed)))
            typed[at:at] = [name] if option.is_flag else [name, self._value(name, option, rng)]
        return [
            one.replace("\0", "").replace("\ud800", "\udc80").replace("\udfff", "\udcff") for one in typed
        ]  # only characters that an operating system can pass

    def _value(self, name: str, option: Any, rng: Random) -> str:
        if name == "--max-length" and rng.random() < 0.5:
            return rng.choice(("1", "5", "50"))
        if name == "--threads" and rng.random() < 0.5:
            return rng.choice(("0", "1", "2", "1025", "-1", "x"))
        if name == "--set":
            return rng.choice(SETTINGS)
        return self._strange(option, rng) if name != "--threads" else rng.choice(("1_024x", "1e3", "9" * 30, "\x1b[31m"))

    def _strange(self, option: Any, rng: Random) -> str:
        way = rng.random()
        kind = str(option.type_descriptor.annotation).lower()
        likely = NUMBERS if "int" in kind or "float" in kind else NAMES if "path" in kind else (*OTHERS, *NUMBERS)
        if way < 0.6:
            return rng.choice(likely)
        if way < 0.9:
            return rng.choice((*NUMBERS, *NAMES, *OTHERS, *STRANGE))
        return strange_text(rng, halves=True)

    def use(self, folder: Path) -> None:
        command, arguments, model, stdin = json.loads((folder / "case.json").read_text())
        root = folder.parent / "command"
        inside = folder / "inner"
        shutil.copytree(root / "workplace", inside)
        shutil.copytree(FROZEN / model, inside / "model")
        os.mkfifo(inside / "pipe")
        before = files_in(folder)
        with contextlib.chdir(inside):
            done = run_command([*command.split(), *arguments], bytes.fromhex(stdin))
        new = files_in(folder) - before
        if done.code and command not in ("train", "compare"):
            require(not new, f"left behind: {sorted(new)}; {done.err}")
        for name in new:
            require(not Path(name).name.startswith("."), f"left behind: {name}")
            if command == "inspect" and (folder / name).is_file():
                check_written(folder / name)
        if not done.code and "--json" in arguments:
            for line in done.out.removesuffix("\n").split("\n") if done.out else ():
                json.loads(line, parse_constant=_no_constant)
        check_done(done)


def _no_constant(name: str) -> None:
    raise Wrong(f"{name} is not valid JSON")


def write_workplace(root: Path) -> None:
    from regard.serving import keys

    folder = root / "workplace"
    folder.mkdir(parents=True)
    (folder / "pairs.tsv").write_text("walk twice\tWALK WALK\njump left\tLEFT JUMP\n")
    (folder / "texts.txt").write_text("walk twice\n\njump left and run\n")
    (folder / "gold.txt").write_text("0-0 1p1\n0-1\n")
    (folder / "train.tsv").write_text("".join(f"{letter}b\tX {letter.upper()}\n" for letter in "acdefghij"))
    keys.add(folder / "known.db", "known")
    (folder / "broken.py").write_text("1/0")
    (folder / "run.yaml").write_text("data:\n  files: [train.tsv]\ntrain:\n  steps: 1\n")
    (folder / "score.py").write_text("class Mine:\n    name = 'mine'\n")
