"""Between the tree and the shelves below it: writing checkpoints through, and bringing them up again.

Every checkpoint that is published is also given to the shelves, so eviction from a resident tier loses nothing and
has nothing to move. A lookup asks the shelves before it asks the tree: where they reach deeper, the entry's KV rows
and its packed state are published as if a sequence had just computed them, and the lookup finds them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import NamedTuple

import torch

from holdover.errors import CapacityError, CheckpointMismatchError, SpillError
from holdover.prefix import tree
from holdover.prefix.cache import PrefixCache
from holdover.prefix.hold import Hold
from holdover.prefix.tree import Node, Root
from holdover.state import EXACT, KeyChain, Lineage
from holdover.store.spill import Entry, EntryName, Shelf
from holdover.store.writer import SpillWriter

logger = logging.getLogger(__name__)


class _Found(NamedTuple):
    """An entry of the tokens looked up."""

    shelf: Shelf
    name: EntryName
    chain: KeyChain

    @property
    def lineage(self) -> Lineage:
        """As good as state and rows of the entry are, and all that it continues."""
        return Lineage("nr", self.name.losses) if self.name.losses else EXACT


class Spill:
    """Moves checkpoints between a prefix cache and shelves. Used by the engine thread only.

    Args:
        cache: the prefix cache.
        shelves: where entries are kept, the fastest first and the one that lasts longest last.
        writer: puts entries there.
    """

    def __init__(self, cache: PrefixCache, shelves: Sequence[Shelf], writer: SpillWriter) -> None:
        self.cache = cache
        self.shelves = shelves
        self.writer = writer
        names = ("not_spilled", "passed_over", "no_room", *(f"fetched_{shelf.tier}" for shelf in shelves))
        self.counters: Counter[str] = Counter(dict.fromkeys(names, 0))

    def store(self, node: Node) -> None:
        """Write the checkpoint at a node through to the shelves, with the rows above the entry that it continues.

        Waits while more entries than the writer's lag are unwritten. A failure costs the copy, not the request.
        """
        checkpoint = node.checkpoint
        tiers = self.cache.tiers
        # an entry is packed: where that is not allowed, there is none
        if checkpoint is None or (tiers.packed is not None and not tiers.is_packable(node.depth)):
            return
        losses = checkpoint.header.lineage.worst(node.path_lineage()).losses
        if node.spilled is not None and node.spilled.losses <= losses and self._is_kept(node.spilled):
            return
        try:
            entry = self._entry(node, losses)
            self.writer.submit(entry)
            node.spilled = entry.name
        except Exception:
            self.counters["not_spilled"] += 1
            logger.exception("checkpoint at depth %d was not spilled", node.depth)

    def fetch(self, namespace: bytes, tokens: Sequence[int], *, max_losses: int | None = None) -> str | None:
        """Bring up the deepest acceptable entry that reaches deeper than the tree does, or as deep with fewer losses.

        Mutates the tree and the pools; may evict. What cannot be read, or has no room, is passed over.

        Returns:
            The tier that it came from, or None.
        """
        match = self.cache.match(namespace, tokens, max_losses=max_losses)
        for found in self._candidates(namespace, tokens, match.state_depth):
            losses = self.cache.tiers.restored(found.lineage, found.name.depth).losses
            is_better = found.name.depth > match.state_depth or losses < match.lineage.losses
            if not is_better or (max_losses is not None and losses > max_losses):
                continue
            try:
                self._bring_up(found, namespace, tokens)
            except (SpillError, CheckpointMismatchError) as error:
                self.counters["passed_over"] += 1
                logger.warning("a spilled checkpoint at depth %d cannot be used: %s", found.name.depth, error)
            except CapacityError:
                self.counters["no_room"] += 1
                return None
            else:
                self.counters[f"fetched_{found.shelf.tier}"] += 1
                return found.shelf.tier
        return None

    def totals(self) -> dict[str, int]:
        """What became of entries so far, by name: those of the writer, and those brought up or passed over."""
        return {**asdict(self.writer.counters), **self.counters}

    def close(self) -> None:
        """Write what is pending and stop."""
        self.writer.close()

    def _entry(self, node: Node, losses: int) -> Entry:
        checkpoint = node.checkpoint
        assert checkpoint is not None
        path = node.path()
        parent = next((n for n in reversed(path[:-1]) if n.spilled is not None and self._is_kept(n.spilled)), path[0])
        rows = torch.cat([n.rows for n in path[path.index(parent) + 1 :]])
        header, record = self.cache.tiers.encode(checkpoint)
        root = path[0]
        assert isinstance(root, Root)
        parent_key = parent.spilled.key if parent.spilled is not None else KeyChain(root.namespace).key()
        name = EntryName(node.depth, header.key, parent.depth, parent_key, losses)
        return Entry(name, header, node.path_lineage(), record, self.cache.kv.read_bytes(rows))

    def _is_kept(self, name: EntryName) -> bool:
        """Whether the last shelf has an entry, or will have it: what continues one must not outlive it."""
        return self.writer.is_pending(name) or self.shelves[-1].find(name.depth, name.key) is not None

    def _find(self, depth: int, key: bytes) -> tuple[Shelf, EntryName] | None:
        for shelf in self.shelves:
            name = shelf.find(depth, key)
            if name is not None:
                return shelf, name
        return None

    def _candidates(self, namespace: bytes, tokens: Sequence[int], above: int) -> Iterator[_Found]:
        """Entries of prefixes of ``tokens`` at ``above`` or deeper, deepest first."""
        depths = {depth for shelf in self.shelves for depth in shelf.depths()}
        chain, found = KeyChain(namespace), []
        for depth in sorted(depth for depth in depths if above <= depth < len(tokens)):
            chain.extend(tokens[chain.depth : depth])
            place = self._find(depth, chain.key())
            if place is not None:
                found.append(_Found(*place, chain.copy()))
        return reversed(found)

    def _bring_up(self, found: _Found, namespace: bytes, tokens: Sequence[int]) -> None:
        cache = self.cache
        root = cache.roots.setdefault(namespace, Root(namespace))
        # rows of the tree that are worse than the entry's are read again, and replaced
        nodes = [
            node
            for node in tree.walk(root, tokens[: found.name.depth]).nodes
            if not found.lineage.is_better(node.path_lineage())
        ]
        node = nodes[-1] if nodes else root
        hold = Hold(node, node.path_lineage())
        try:
            entries = self._chain(found, hold.depth)
            self._publish(hold, entries, found, tokens)
            hold.node.spilled = found.name
        finally:
            cache.release(hold)

    def _chain(self, found: _Found, above: int) -> list[Entry]:
        """The entry, and those that it continues down to depth ``above`` (rows only), the shallowest first."""
        entries = [found.shelf.get(found.name)]
        while (name := entries[-1].name).parent_depth > above:
            place = self._find(name.parent_depth, name.parent_key)
            if place is None:
                raise SpillError(f"the entry at depth {name.parent_depth} that it continues is gone")
            shelf, parent = place
            entries.append(shelf.get(parent, with_state=False))
        return entries[::-1]

    def _publish(self, hold: Hold, entries: list[Entry], found: _Found, tokens: Sequence[int]) -> None:
        """Put the rows of every entry into the tree, each with its own lineage, and the state of the last."""
        cache, last, start = self.cache, entries[-1], hold.depth
        fresh = cache.rows.allocate(last.name.depth - start)
        try:
            for entry in entries:
                first = max(start, entry.name.parent_depth)
                rows = fresh[first - start : entry.name.depth - start]
                cache.kv.write_bytes(rows, entry.kv[first - entry.name.parent_depth :])
            checkpoint = cache.tiers.admit(last.state, last.header, found.chain)
        except BaseException:
            cache.kv.free(fresh)
            raise
        try:
            for entry in entries:
                depth = entry.name.depth
                hold.lineage = hold.lineage.worst(entry.kv_lineage)
                rows = torch.cat([hold.rows(), fresh[hold.depth - start : depth - start]])
                cache.publish(hold, tokens[:depth], rows, checkpoint if entry is last else None)
        except BaseException:
            cache.tiers.abandon(checkpoint)
            cache.kv.free(fresh[hold.depth - start :])
            raise
