import pytest
import torch

from holdover.prefix import tree
from holdover.prefix.tree import Root
from holdover.state import EXACT, Lineage


def grown():
    """``1 2 3 4`` with a branch ``1 2 5`` and another root child ``6``; the row of a token is ten times the token."""
    root = Root(b"")
    trunk = tree.append(root, (1, 2), torch.tensor([10, 20]), EXACT)
    tree.append(trunk, (3, 4), torch.tensor([30, 40]), EXACT)
    tree.append(trunk, (5,), torch.tensor([50]), EXACT)
    tree.append(root, (6,), torch.tensor([60]), EXACT)
    return root


def ends(found):
    return [node.depth for node in found.nodes], found.partial and found.partial.depth, found.depth


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], ([], None, 0)),
        ([9], ([], None, 0)),
        ([1], ([], 2, 1)),
        ([1, 9], ([], 2, 1)),
        ([1, 2], ([2], None, 2)),
        ([1, 2, 9], ([2], None, 2)),
        ([1, 2, 3], ([2], 4, 3)),
        ([1, 2, 3, 9], ([2], 4, 3)),
        ([1, 2, 3, 4], ([2, 4], None, 4)),
        ([1, 2, 3, 4, 5], ([2, 4], None, 4)),
        ([1, 2, 5, 5], ([2, 3], None, 3)),
        ([6, 1], ([1], None, 1)),
    ],
)
@pytest.mark.parametrize("kind", [list, tuple])
def test_walk_follows_as_far_as_the_tokens_agree(tokens, expected, kind):
    assert ends(tree.walk(grown(), kind(tokens))) == expected


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_split_changes_no_prefix_and_keeps_the_lower_node(cut):
    root = Root(b"")
    lower = tree.append(root, (1, 2, 3, 4), torch.tensor([10, 20, 30, 40]), Lineage("nr", 2))
    below = tree.append(lower, (5,), torch.tensor([50]), EXACT)
    lower.checkpoint = marker = object()
    lower.locks = 2
    upper = tree.split(lower, cut)
    assert below.path() == [root, upper, lower, below]
    assert (upper.depth, lower.depth) == (cut, 4)
    assert [t for node in below.path() for t in node.tokens] == [1, 2, 3, 4, 5]
    assert [r for node in below.path() for r in node.rows.tolist()] == [10, 20, 30, 40, 50]
    assert (upper.locks, lower.locks) == (2, 2)
    assert (upper.checkpoint, lower.checkpoint) == (None, marker)
    assert (upper.lineage, lower.lineage, below.lineage) == (Lineage("nr", 2), Lineage("nr", 2), EXACT)
    assert below.path_lineage() == Lineage("nr", 2)


@pytest.mark.parametrize("cut", [0, 4, 5])
def test_split_outside_the_edge_is_refused(cut):
    root = Root(b"")
    node = tree.append(root, (1, 2, 3, 4), torch.arange(4), EXACT)
    with pytest.raises(AssertionError):
        tree.split(node, cut)


def test_nodes_do_not_share_row_memory_after_a_split():
    root = Root(b"")
    lower = tree.append(root, (1, 2), torch.tensor([10, 20]), EXACT)
    upper = tree.split(lower, 1)
    upper.rows[0] = 99
    assert lower.rows.tolist() == [20]


def test_leaf_with_something_below_cannot_be_removed():
    root = grown()
    trunk = root.children[1]
    with pytest.raises(AssertionError):
        tree.remove_leaf(trunk)
    tree.remove_leaf(trunk.children[5])
    assert list(trunk.children) == [3]


def test_descendants_come_parents_first_and_once():
    root = grown()
    nodes = list(tree.descendants(root))
    assert len(nodes) == len({id(node) for node in nodes}) == 4
    seen = {id(root)}
    for node in nodes:
        assert id(node.parent) in seen
        seen.add(id(node))
