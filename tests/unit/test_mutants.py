"""The table of mutants is complete and fits the source; whether they are caught, `make mutants` shows."""

import mutants


def test_every_proven_item_has_a_mutant_and_every_mutant_a_test() -> None:
    by_id = mutants.tests_by_id()
    assert by_id.keys() <= {mutant["id"] for mutant in mutants.mutants()}
    for mutant in mutants.mutants():
        known = by_id.get(mutant["id"], [])
        assert "tests" in mutant or known, mutant["id"]
        if known:  # an item of the specification must be caught by a test that carries its id
            assert mutant.get("tests", known[0]) in known, mutant["id"]


def test_every_mutant_fits_the_source() -> None:
    for mutant in mutants.mutants():
        assert (mutants.ROOT / mutant["file"]).read_text().count(mutant["old"]) == 1, mutant["id"]
        assert mutant["old"] != mutant["new"]
        path, _, test = mutant.get("tests", "tests").partition("::")
        assert (mutants.ROOT / path).exists()
        assert not test or f"def {test}(" in (mutants.ROOT / path).read_text()
