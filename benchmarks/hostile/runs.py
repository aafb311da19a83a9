"""Damaged run files and strange values for --set."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from random import Random

from hostile.area import Area, require
from hostile.changes import change_bytes, hostile, strange_text
from hostile.commands import NAMES, NUMBERS, OTHERS

BOMBS = (
    "a: &a [1]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    "[" * 3000,
    "{a: " * 500,
    "a: !!python/object/apply:os.system [ls]\n",
    "<<: *x\n",
    "%YAML 1.2\n---\n",
    "--- 1\n--- 2\n",
    "data: {files: !!binary AAAA}\n",
    "train: {steps: 2001-01-01}\n",
    "train: {steps: 0x10, steps: 7}\n",
    "? [a]\n: b\n",
    "\ttrain: 1\n",
    "train:\n  steps: |\n    5\n",
    "model: {kind: [], width: {}}\n",
)


class RunFiles(Area):
    """A run file is refused, or its settings stay the same when they are written to a file and read again."""

    longest_line = 1001

    def load_modules(self) -> None:
        import regard.training.run  # noqa: F401

    def prepare(self, root: Path) -> None:
        from dataclasses import replace

        from regard.models.rnn_seq2seq import RnnSettings
        from regard.models.transformer import TransformerSettings
        from regard.training.config import write_config
        from regard.training.settings import DEMO, DataSettings, RunSettings

        kinds = {"demo": DEMO, "rnn": RunSettings(model=RnnSettings()), "transformer": RunSettings(model=TransformerSettings())}
        for name, settings in kinds.items():
            settings = replace(settings, data=replace(DataSettings(), files=("pairs.tsv",)))
            (root / f"{name}.yaml").write_text(write_config(settings, {"train.steps": "many"}))

    def change(self, rng: Random, root: Path, folder: Path) -> str:
        path = rng.choice(sorted(root.iterdir()))
        content = path.read_bytes()
        ways = []
        for _ in range(rng.choice((0, 0, 1, 1, 3))):
            content, way = self._changed(content, rng)
            ways.append(way)
        (folder / "run.yaml").write_bytes(content)
        keys = [line.partition(":")[0].strip() for line in path.read_text().splitlines() if ":" in line]
        sections = ("", "train.", "train.", "data.", "model.", "start.", "nothing.")
        changes = [
            rng.choice(sections) + rng.choice(keys) + rng.choice(("=", "=", "=", " = ", "", "==")) + self._text(rng)
            for _ in range(rng.choice((0, 1, 1, 3)))
        ]
        (folder / "case.json").write_text(json.dumps(changes))
        return f"{path.name}: {'; '.join(ways)}; --set {changes!r:.200}"

    def _text(self, rng: Random) -> str:
        way = rng.random()
        if way < 0.5:
            return rng.choice(
                (*NUMBERS, *NAMES, *OTHERS, "true", "no", "null", "~", "[]", "[1, 2]", "{}", "adam", "rnn", "bpe")
            )
        if way < 0.7:
            return json.dumps(hostile(rng))
        return strange_text(rng, halves=True)

    def _changed(self, content: bytes, rng: Random) -> tuple[bytes, str]:
        way = rng.random()
        if way < 0.2:
            return change_bytes(content, rng)
        lines = content.decode(errors="replace").split("\n")
        at = rng.randrange(len(lines))
        if way < 0.75 and ":" in lines[at]:
            lines[at] = f"{lines[at].partition(':')[0]}: {self._text(rng)}"
        elif way < 0.85:
            lines.insert(at, lines[at])
        elif way < 0.93:
            lines.insert(at, rng.choice(BOMBS))
        else:
            lines = rng.choice(BOMBS).split("\n")
        return "\n".join(lines).encode(errors="surrogatepass"), f"line {at + 1}: {lines[min(at, len(lines) - 1)]!r:.60}"

    def use(self, folder: Path) -> None:
        from regard.cli.main import printable
        from regard.errors import UserError
        from regard.training.config import read_config, save_config
        from regard.training.overrides import override

        try:
            settings = read_config(folder / "run.yaml")
            changed = override(settings, json.loads((folder / "case.json").read_text()))
        except UserError as error:
            lines = printable(str(error)).split("\n")  # one per error
            require(len(lines) <= 51, f"{len(lines)} lines")
            raise UserError(max(lines, key=len)) from None
        save_config(folder / "again.yaml", changed, {})
        again = read_config(folder / "again.yaml")
        require(again == changed, f"{asdict(changed)} became {asdict(again)}")
