"""The table of mutants is complete and fits the source; whether they are caught, `make mutants` shows."""

import mutants


def test_every_proven_item_has_a_mutant_and_every_mutant_a_test() -> None:
    assert {mutant["id"] for mutant in mutants.mutants() if "tests" not in mutant} == mutants.tests_by_id().keys()


def test_every_mutant_fits_the_source() -> None:
    for mutant in mutants.mutants():
        assert (mutants.ROOT / mutant["file"]).read_text().count(mutant["old"]) == 1, mutant["id"]
        assert mutant["old"] != mutant["new"]
        path, _, test = mutant.get("tests", "tests").partition("::")
        assert (mutants.ROOT / path).exists()
        assert not test or f"def {test}(" in (mutants.ROOT / path).read_text()
