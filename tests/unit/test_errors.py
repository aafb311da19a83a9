from regard.errors import plural


def test_a_count_has_the_right_form_of_its_noun() -> None:
    assert [plural(n, "pair") for n in (0, 1, 2000)] == ["0 pairs", "1 pair", "2,000 pairs"]
    assert (plural(1, "entry", "entries"), plural(3, "entry", "entries")) == ("1 entry", "3 entries")
