import pytest

from holdover.errors import CheckpointMismatchError
from holdover.state import EXACT, CheckpointHeader, Lineage

HEADER = CheckpointHeader(depth=3, key=b"\1\2", layout="abc")


@pytest.mark.parametrize(
    ("lineage", "text", "exact"),
    [
        (EXACT, "exact", True),
        (Lineage("nr", 2), "nr(2)", False),
        (Lineage("wr", 1), "wr(1)", False),
        (Lineage("composed", salt="s1"), "composed(s1)", False),
    ],
)
def test_lineage_says_how_a_state_came_to_be(lineage, text, exact):
    assert str(lineage) == text
    assert lineage.is_exact is exact


def test_lineages_compare_by_value():
    assert Lineage() == EXACT
    assert len({Lineage("nr", 1), Lineage("nr", 1), Lineage("nr", 2), Lineage("wr", 1)}) == 3


def test_header_of_the_state_wanted_is_accepted():
    HEADER.expect(3, b"\1\2", "abc")


@pytest.mark.parametrize(
    "wanted",
    [(2, b"\1\2", "abc"), (4, b"\1\2", "abc"), (3, b"\1\3", "abc"), (3, b"", "abc"), (3, b"\1\2", "abd")],
)
def test_header_of_another_state_is_refused_with_both_values(wanted):
    with pytest.raises(CheckpointMismatchError) as error:
        HEADER.expect(*wanted)
    depth, key, layout = wanted
    assert f"wanted depth {depth}, key {key.hex()}, layout {layout}" in str(error.value)
    assert "holds depth 3, key 0102, layout abc" in str(error.value)


def test_headers_are_frozen():
    with pytest.raises(AttributeError):
        HEADER.depth = 4
