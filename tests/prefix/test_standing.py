"""Where checkpoints stand: what every change of the tree keeps up, against a definition that walks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdover.prefix import tree
from holdover.prefix.integrity import Standing, standings
from holdover.prefix.tree import Node, Root
from holdover.state import EXACT
from holdover.store import Checkpoint
from tests.store.tier_build import donated, tiers_of


@dataclass(eq=False)
class Entry:
    """As much of a checkpoint as the tree looks at."""

    hits: int = 0
    saved: int = 0
    branches: int = 0


def put(*nodes: Node, hits: int = 1) -> None:
    for node in nodes:
        tree.put_state(node, cast(Checkpoint, Entry(hits)))


def append(node: Node, *tokens: int) -> Node:
    return tree.append(node, tokens, torch.arange(len(tokens)), EXACT)


def grown(*lengths: int) -> list[Node]:
    """A path of nodes below a fresh root."""
    nodes: list[Node] = [Root(b"")]
    for i, length in enumerate(lengths):
        nodes.append(append(nodes[-1], *(i,) * length))
    return nodes


def standing(one: Node | Checkpoint | None) -> Standing:
    assert one is not None
    return Standing(one.saved, one.branches)


def by_definition(node: Node) -> Standing:
    """Walks up to the next checkpoint, and down to the next ones."""
    above = node.parent
    while above is not None and above.checkpoint is None:
        above = above.parent
    found, rest = 0, [node]
    while rest:
        top = rest.pop()
        found += top.is_leaf
        for child in top.children.values():
            if child.checkpoint is None:
                rest.append(child)
            else:
                found += child.is_leaf and not child.checkpoint.hits
    return Standing(node.depth - (above.depth if above is not None else 0), found)


def test_standing_counts_what_has_no_nearer_checkpoint() -> None:
    _, top, middle, low = grown(5, 5, 5)
    other = append(top, 9, 9)
    assert standing(low) == Standing(15, 1)
    put(top)
    assert (standing(top), standing(low)) == (Standing(5, 2), Standing(10, 1))
    put(low)
    assert standing(top) == Standing(5, 1)
    put(middle)
    assert (standing(middle), standing(low), standing(other)) == (Standing(5, 0), Standing(5, 1), Standing(2, 1))
    tree.take_state(top)
    assert (standing(middle), standing(low), standing(other)) == (Standing(10, 0), Standing(5, 1), Standing(7, 1))


def test_a_checkpoint_follows_its_node() -> None:
    _, top, low = grown(5, 5)
    put(low)
    assert standing(low.checkpoint) == Standing(10, 1)
    put(top)
    append(low, 9)
    append(low, 8)
    assert standing(low.checkpoint) == standing(low) == Standing(5, 2)


def test_standing_in_a_conversation_of_thousands_of_turns() -> None:
    nodes = grown(*[1] * 5_000)
    put(nodes[1])
    assert (standing(nodes[1]), standing(nodes[-1])) == (Standing(1, 1), Standing(4_999, 1))


def test_an_end_that_nobody_came_back_to_supersedes_nothing() -> None:
    _, boundary, end = grown(50, 5)
    put(boundary, end, hits=0)
    assert (standing(boundary), standing(end)) == (Standing(50, 1), Standing(5, 1))
    assert end.checkpoint is not None
    tree.count_hit(end, end.checkpoint)
    assert end.checkpoint.hits == 1
    assert (standing(boundary), standing(end)) == (Standing(50, 0), Standing(5, 1))


def test_an_end_that_goes_on_is_none_any_more() -> None:
    _, boundary, end = grown(50, 5)
    put(boundary, end, hits=0)
    turn = append(end, 7)
    assert (boundary.branches, end.branches) == (0, 1)
    tree.remove_leaf(turn)
    assert (boundary.branches, end.branches) == (1, 1)


def test_a_checkpoint_that_nobody_placed_stands_for_itself() -> None:
    assert standing(donated(tiers_of(native=2), [1, 2, 3])) == Standing(3, 1)


WHICH = st.integers(0, 30)


class Trees(RuleBasedStateMachine):
    """A tree that grows, is cut and shrinks, and whose checkpoints come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Root(b"")

    @property
    def nodes(self) -> list[Node]:
        return list(tree.descendants(self.root))

    def pick(self, which: int, *, with_state: bool | None = None) -> Node | None:
        nodes = [n for n in self.nodes if with_state is None or (n.checkpoint is not None) is with_state]
        return nodes[which % len(nodes)] if nodes else None

    @rule(which=WHICH, length=st.integers(1, 4))
    def append(self, which: int, length: int) -> None:
        parent = [self.root, *self.nodes][which % (len(self.nodes) + 1)]
        # a token that no other child begins with
        append(parent, *[max(parent.children, default=0) + 1] * length)

    @precondition(lambda self: self.nodes)
    @rule(which=WHICH, cut=st.integers(1, 3))
    def split(self, which: int, cut: int) -> None:
        node = self.pick(which)
        if node is not None and cut < len(node.tokens):
            tree.split(node, node.depth - len(node.tokens) + cut)

    @precondition(lambda self: self.nodes)
    @rule(which=WHICH)
    def remove(self, which: int) -> None:
        leaves = [node for node in self.nodes if node.is_leaf]
        leaf = leaves[which % len(leaves)]
        if leaf.checkpoint is not None:
            tree.take_state(leaf)
        tree.remove_leaf(leaf)

    @rule(which=WHICH)
    def put(self, which: int) -> None:
        node = self.pick(which, with_state=False)
        if node is not None:
            put(node, hits=0)

    @rule(which=WHICH)
    def take(self, which: int) -> None:
        node = self.pick(which, with_state=True)
        if node is not None:
            tree.take_state(node)

    @rule(which=WHICH)
    def hit(self, which: int) -> None:
        node = self.pick(which, with_state=True)
        if node is not None and node.checkpoint is not None:
            tree.count_hit(node, node.checkpoint)

    @invariant()
    def kept_up(self) -> None:
        wanted = {node: by_definition(node) for node in [self.root, *self.nodes]}
        assert {node: standing(node) for node in wanted} == wanted == standings(self.root)
        assert all(standing(node.checkpoint) == wanted[node] for node in wanted if node.checkpoint is not None)


TestTrees = Trees.TestCase
