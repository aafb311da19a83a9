"""Run files and --set."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from random import Random

from hostile.area import Area, right
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
    """What a run file says is refused, or is what a run file says again that is written from it."""

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

    def change(self, chance: Random, root: Path, place: Path) -> str:
        path = chance.choice(sorted(root.iterdir()))
        content = path.read_bytes()
        ways = []
        for _ in range(chance.choice((0, 0, 1, 1, 3))):
            content, way = self._changed(content, chance)
            ways.append(way)
        (place / "run.yaml").write_bytes(content)
        keys = [line.partition(":")[0].strip() for line in path.read_text().splitlines() if ":" in line]
        sections = ("", "train.", "train.", "data.", "model.", "start.", "nothing.")
        changes = [
            chance.choice(sections) + chance.choice(keys) + chance.choice(("=", "=", "=", " = ", "", "==")) + self._text(chance)
            for _ in range(chance.choice((0, 1, 1, 3)))
        ]
        (place / "case.json").write_text(json.dumps(changes))
        return f"{path.name}: {'; '.join(ways)}; --set {changes!r:.200}"

    def _text(self, chance: Random) -> str:
        way = chance.random()
        if way < 0.5:
            return chance.choice(
                (*NUMBERS, *NAMES, *OTHERS, "true", "no", "null", "~", "[]", "[1, 2]", "{}", "adam", "rnn", "bpe")
            )
        if way < 0.7:
            return json.dumps(hostile(chance))
        return strange_text(chance, halves=True)

    def _changed(self, content: bytes, chance: Random) -> tuple[bytes, str]:
        way = chance.random()
        if way < 0.2:
            return change_bytes(content, chance)
        lines = content.decode(errors="replace").split("\n")
        at = chance.randrange(len(lines))
        if way < 0.75 and ":" in lines[at]:
            lines[at] = f"{lines[at].partition(':')[0]}: {self._text(chance)}"
        elif way < 0.85:
            lines.insert(at, lines[at])
        elif way < 0.93:
            lines.insert(at, chance.choice(BOMBS))
        else:
            lines = chance.choice(BOMBS).split("\n")
        return "\n".join(lines).encode(errors="surrogatepass"), f"line {at + 1}: {lines[min(at, len(lines) - 1)]!r:.60}"

    def use(self, place: Path) -> None:
        from regard.cli.main import printable
        from regard.errors import UserError
        from regard.training.config import read_config, save_config
        from regard.training.settings import override

        try:
            settings = read_config(place / "run.yaml")
            changed = override(settings, json.loads((place / "case.json").read_text()))
        except UserError as error:
            lines = printable(str(error)).split("\n")  # one for each mistake
            right(len(lines) <= 51, f"{len(lines)} lines")
            raise UserError(max(lines, key=len)) from None
        save_config(place / "again.yaml", changed, {})
        again = read_config(place / "again.yaml")
        right(again == changed, f"{asdict(changed)} became {asdict(again)}")
