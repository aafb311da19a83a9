"""Words that were retired do not come back: CONTRIBUTING.md has a glossary of those that replace them."""

import re
import subprocess

import mutants
import pytest

RETIRED = {  # identifiers, and what they are called now
    "classes": "Attended Answered LookBack Material Nearness Place Placed Rule Scene Supervisor Tally Watch",
    "functions and constants": (
        "HANDFUL alike at_its_best badness best_place beside_size by_place check_front check_place choice_entropy_BT "
        "choice_log_prob_BT choice_loss choices_last choose_gates choose_one encoder_batch inspect_pairs is_language_model "
        "join_columns judged keep_place kept_place known_places known_positions look_at look_at_pairs make_front map_attention "
        "nearness num_places place_of score_rows spell_line split_source summarise_rule unevenness watched"
    ),
    "modules": "fronts seeing",
    "settings": "max_places",
}
"""`git grep -w` finds none of these outside `HISTORY`. Settings whose old names are ordinary words are in `SETTINGS`."""

SETTINGS = r"model\.(choice|front|join|order)\b|\b(choice|front)=|word_error_rate"
HISTORY = (
    "CHANGELOG.md",
    "docs/LOG.md",
    "src/regard/checkpoint/migrate.py",
    "tests/frozen",
    "tests/unit/test_migrate.py",
    "tests/unit/test_words.py",
    "benchmarks/*.txt",
)

WORDS = {  # in prose as well: in src, docs (the log apart), tests, benchmarks, README and CONTRIBUTING
    "place": "position, grid cell, slot, index, folder, destination: what it is",
    "places": "positions, …",
    "placed": "…",
    "beside": "auxiliary; next to",
    "besides": "apart from",
    "told": "reported, printed",
    "tells": "reports, says",
    "alike": "similar, equal",
    "handful": "chunk",
    "learnt": "trained on, learned",
}
PHRASES = (
    "seen from the folder",
    "told at once",
    "worked off",
    "came of attention",
    "the less the better",
    "without a word",
    "in the hand",
)
ALLOWED = re.compile(r"\bin place\b|\bin-place\b", re.IGNORECASE)


def grep(*arguments: str) -> list[str]:
    command = ["git", "grep", "-nI", *arguments]
    return subprocess.run(command, cwd=mutants.ROOT, capture_output=True, text=True).stdout.splitlines()


def is_a_clone() -> bool:
    return (mutants.ROOT / ".git").exists()


@pytest.mark.skipif(not is_a_clone(), reason="needs a git clone")
@pytest.mark.parametrize("kind", RETIRED)
def test_retired_identifiers_do_not_come_back(kind: str) -> None:
    excluded = [f":!{path}" for path in HISTORY]
    patterns = [word for name in RETIRED[kind].split() for word in ("-e", name)]
    assert grep("-w", *patterns, "--", *excluded) == []


@pytest.mark.skipif(not is_a_clone(), reason="needs a git clone")
def test_settings_have_their_new_names() -> None:
    excluded = [f":!{path}" for path in HISTORY]
    assert grep("-P", "-e", SETTINGS, "--", *excluded) == []


def test_retired_words_do_not_come_back() -> None:
    words = re.compile(rf"\b({'|'.join(WORDS)})\b|{'|'.join(PHRASES)}", re.IGNORECASE)
    files = [
        path
        for folder, endings in (("src", "py html"), ("docs", "md"), ("tests", "py"), ("benchmarks", "py"))
        for ending in endings.split()
        for path in (mutants.ROOT / folder).rglob(f"*.{ending}")
        if path.name not in ("LOG.md", "migrate.py", "test_migrate.py", "test_words.py") and "frozen" not in path.parts
    ]
    found = [
        f"{path.relative_to(mutants.ROOT)}:{number}: {line.strip()}"
        for path in sorted([*files, mutants.ROOT / "README.md", mutants.ROOT / "CONTRIBUTING.md"])
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if words.search(ALLOWED.sub("", line))
    ]
    assert found == []


def test_the_glossary_names_things_that_exist() -> None:
    """Every identifier in its last column occurs in the source."""
    text = (mutants.ROOT / "CONTRIBUTING.md").read_text().partition("## Glossary")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ") and "---" not in line][1:]
    assert len(rows) >= 30
    source = "\n".join(path.read_text() for path in (mutants.ROOT / "src").rglob("*.py"))
    for term, meaning, _, names in rows:
        assert meaning.strip(), term
        for name in re.findall(r"`([^`]+)`", names):
            word = re.split(r"[.(=]", name.removeprefix("regard."))
            assert all(re.search(rf"\b{part}\b", source) for part in word if part.isidentifier()), f"{term}: {name}"
