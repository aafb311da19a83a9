"""Generates the tables of settings in docs/training.md: `python tests/settings_tables.py` rewrites them."""

import re
from dataclasses import asdict
from pathlib import Path

from regard.models.build import FAMILIES
from regard.training.config import meanings
from regard.training.overrides import leaves
from regard.training.settings import RunSettings

PAGE = Path(__file__).parents[1] / "docs" / "training.md"
TABLES = re.compile(r"(<!-- settings -->\n).*(<!-- end -->)", re.DOTALL)


def tables() -> str:
    """Returns one table per section of a run file and one per model family."""
    sections = {section: RunSettings() for section in ("", "data", "train", "start")}
    families = {f"model, {kind}": RunSettings(model=family.settings()) for kind, family in FAMILIES.items()}
    parts = []
    for title, settings in {**sections, **families}.items():
        section, descriptions = title.partition(",")[0], meanings(settings)
        rows = [
            f"| `{key}` | {_cell(descriptions.get(key, ''))} | {_value(value)} |"
            for key, value in leaves(asdict(settings))
            if key.rpartition(".")[0] == section
        ]
        heading = f"### `{title.replace('model, ', 'model.kind=')}`\n\n" if title else ""
        parts.append(f"{heading}| setting | meaning | default |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    return "\n" + "\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _value(value: object) -> str:
    if value in ("", (), [], None):
        return "–"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def written(page: str) -> str:
    """Returns the page with up-to-date tables."""
    return TABLES.sub(lambda match: match[1] + tables() + match[2], page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
