"""Every item of tests/spec.toml has a test and a mutant, except those that it lists as missing."""

import tomllib

import mutants

SPEC = tomllib.loads((mutants.ROOT / "tests" / "spec.toml").read_text())
ITEMS, MISSING, PARTLY = SPEC["items"], SPEC["missing"], SPEC["partly"]


def test_every_item_has_a_test_and_a_mutant() -> None:
    tests, with_mutant = mutants.tests_by_id(), {mutant["id"] for mutant in mutants.mutants()}
    assert [item for item in ITEMS if item not in tests] == [item for item in ITEMS if item in MISSING]
    assert [item for item in ITEMS if item not in with_mutant] == [item for item in ITEMS if item in MISSING]


def test_every_test_proves_an_item() -> None:
    assert mutants.tests_by_id().keys() <= ITEMS.keys()


def test_the_list_is_complete() -> None:
    """The items of each part are numbered without gaps; the notes fill eleven parts and 78 items."""
    numbers: dict[str, list[int]] = {}
    for item in ITEMS:
        part, number = item.split(".")
        numbers.setdefault(part, []).append(int(number))
    assert list(numbers) == [f"A{part}" for part in range(11)]
    for part, found in numbers.items():
        assert sorted(found) == list(range(1, len(found) + 1)), part
    assert len(ITEMS) == 78


def test_what_is_missing_has_a_reason() -> None:
    assert MISSING.keys() | PARTLY.keys() <= ITEMS.keys()
    assert not MISSING.keys() & PARTLY.keys()
    for text in [*ITEMS.values(), *MISSING.values(), *PARTLY.values()]:
        assert text.endswith(".")
