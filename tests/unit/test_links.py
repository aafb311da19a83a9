"""Links: Pharaoh format, both directions joined, the error rate, all by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import UserError
from regard.links import Links, alignment_error_rate, parse_pharaoh, pharaoh, symmetrised, turned, word_of_each


def test_error_rate_by_hand() -> None:
    sure, possible = frozenset({(0, 0), (1, 2)}), frozenset({(0, 0), (1, 2), (1, 1)})
    found = frozenset({(0, 0), (1, 1), (2, 2)})
    assert alignment_error_rate([found], [sure], [possible]) == pytest.approx(1 - (1 + 2) / (3 + 2))
    assert alignment_error_rate([sure], [sure], [possible]) == 0.0
    assert alignment_error_rate([found, sure], [sure, sure]) == pytest.approx(1 - (1 + 1 + 2 + 2) / (3 + 2 + 2 + 2))
    assert alignment_error_rate([frozenset()], [frozenset()]) == 0.0


def test_pharaoh() -> None:
    links = frozenset({(10, 0), (0, 3), (0, 2)})
    assert pharaoh(links) == "0-2 0-3 10-0"
    assert parse_pharaoh(pharaoh(links)) == (links, links)
    assert parse_pharaoh("0-0 1p2 3?4") == (frozenset({(0, 0)}), frozenset({(0, 0), (1, 2), (3, 4)}))
    assert parse_pharaoh("0-0:0.75 1-2:P 3-4:S") == (frozenset({(0, 0), (3, 4)}), frozenset({(0, 0), (1, 2), (3, 4)}))
    assert parse_pharaoh("1-1 2p3", first=1) == (frozenset({(0, 0)}), frozenset({(0, 0), (1, 2)}))
    assert turned(links) == frozenset({(0, 10), (3, 0), (2, 0)})
    for wrong in ("0-", "a-1", "12", "1-2:", "²-1", "1-2-3"):
        with pytest.raises(UserError, match=rf"'{wrong}' is not a link; expected source-target such as 3-4"):
            parse_pharaoh(f"0-0 {wrong}")
    with pytest.raises(UserError, match="the link 0-1 contains 0, but words are counted from 1; leave out --one-based"):
        parse_pharaoh("1-1 0-1", first=1)


def test_both_directions_are_joined_by_hand() -> None:
    """Worked by hand from the description of Koehn et al. 2005.

    forward 0-0 1-1 1-2 3-3 5-5, backward 0-0 1-1 2-1 3-4 4-4 6-2: both have 0-0 and 1-1. Next to 1-1, 2-1 reaches source 2
    and 1-2 reaches target 2. Next to 1-2 and 2-1 there is nothing else of the union. At the end, 3-3 and 5-5 (forward) have two
    words without links; then 4-4 (backward) does, but 3-4 does not (source 3 is linked), nor 6-2 (target 2 is linked).
    """
    forward = frozenset({(0, 0), (1, 1), (1, 2), (3, 3), (5, 5)})
    backward = frozenset({(0, 0), (1, 1), (2, 1), (3, 4), (4, 4), (6, 2)})
    assert symmetrised(forward, backward, "intersection") == {(0, 0), (1, 1)}
    assert symmetrised(forward, backward, "union") == forward | backward
    grown = {(0, 0), (1, 1), (1, 2), (2, 1), (3, 3), (4, 4), (5, 5)}
    assert symmetrised(forward, backward, "grow-diag-final-and") == grown
    # a diagonal neighbour grows further: 1-1 and 2-2, each next to the link before it
    assert symmetrised(frozenset({(0, 0), (1, 1)}), frozenset({(0, 0), (2, 2)}), "grow-diag-final-and") == {
        (0, 0),
        (1, 1),
        (2, 2),
    }
    with pytest.raises(UserError, match=r"cannot symmetrise by 'both'; expected one of intersection, union, grow-diag"):
        symmetrised(forward, backward, "both")  # type: ignore[arg-type]


ANY_LINKS = st.frozensets(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12)


@given(forward=ANY_LINKS, backward=ANY_LINKS)
def test_grown_links_lie_between_the_intersection_and_the_union(forward: Links, backward: Links) -> None:
    grown = symmetrised(forward, backward, "grow-diag-final-and")
    assert forward & backward <= grown <= forward | backward
    sources, targets = {source for source, _ in grown}, {target for _, target in grown}
    for source, target in forward | backward:  # at the end, no link of two words without links is left
        assert source in sources or target in targets


def test_words_of_parts() -> None:
    assert word_of_each("ab  cd e", ["a", "b", " ", " cd", " ", "e"]) == [0, 0, None, 1, None, 2]
    assert word_of_each("é a", ["é", "", " a"]) == [0, 0, 1]  # the second token is the second byte of é
    assert word_of_each("cat.", ["cat", "."]) == [0, 0]
    assert word_of_each("", []) == []
