"""Chunks that are kept: a pool of entries over the same rows and slots as everything else.

An entry owns rows of the KV pool and a checkpoint in the resident tiers, so one pair of budgets holds for prefixes and
chunks. Two limits are the chunks' own: how many rows they may have at most, and how many bytes of extras. What no
request reads may be evicted: by the store for a new chunk, least recently used first; by the tiers for a slot, and then
the whole entry goes. Used by the engine thread only.

Who owns a chunk's rows and state::

    begin ........ finish ................. hold ..... release ........ gone
    the build's | the entry's, evictable | pinned    | evictable again
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from holdover.chunks.assembly import check_chunk
from holdover.chunks.entry import ChunkEntry
from holdover.chunks.extras import ChunkOptions, Extras
from holdover.chunks.key import chunk_namespace
from holdover.errors import CapacityError, CheckpointMismatchError, OwnershipError
from holdover.state import EXACT, CheckpointHeader, KeyChain
from holdover.state.key import chain_of
from holdover.store import LRU, Checkpoint, KVPool, SlotLease, StateTiers


@dataclass(frozen=True, eq=False, slots=True)
class Build:
    """A chunk that is being prefilled. Ended by `ChunkStore.finish` or `ChunkStore.abandon`, once.

    Attributes:
        tokens: its tokens.
        tenant: namespace of the model and the tenant that they belong to.
        namespace: what the slot that it is prefilled in has to be reset to.
        chain: running key of the tokens.
        rows: where its KV goes, int64 ``[n]``; owned by the build.
        extra_bytes: room that is reserved for its extras.
    """

    tokens: tuple[int, ...]
    tenant: bytes
    namespace: bytes
    chain: KeyChain
    rows: torch.Tensor
    extra_bytes: int


class Hold:
    """A request's claim on the chunks that it reads: none of them can go. Released exactly once."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Sequence[ChunkEntry]) -> None:
        self._entries: tuple[ChunkEntry, ...] | None = tuple(entries)

    @property
    def entries(self) -> tuple[ChunkEntry, ...]:
        """The chunks in the order of the prompt.

        Raises:
            OwnershipError: the hold was released.
        """
        if self._entries is None:
            raise OwnershipError("hold on chunks used after it was released")
        return self._entries

    def drop(self) -> tuple[ChunkEntry, ...]:
        """Give the claim up; returns what was claimed.

        Raises:
            OwnershipError: it was released already.
        """
        entries, self._entries = self.entries, None
        return entries


class ChunkStore:
    """Entries by content.

    Args:
        tiers: where their checkpoints are.
        kv: where their rows are.
        options: which extras every entry has.
        max_rows: most rows that entries and builds may own together.
        max_extra_bytes: most bytes of extras, likewise.
        allocate: takes rows of the pool, making room as it may; the pool's own by default.
    """

    def __init__(
        self,
        tiers: StateTiers,
        kv: KVPool,
        options: ChunkOptions | None = None,
        *,
        max_rows: int,
        max_extra_bytes: int = 0,
        allocate: Callable[[int], torch.Tensor] | None = None,
    ) -> None:
        self.tiers = tiers
        self.kv = kv
        self.options = options or ChunkOptions()
        self.max_rows = max_rows
        self.max_extra_bytes = max_extra_bytes
        self.counters = tiers.counters
        # the store's only source of eviction order; every entry stands in it once
        self.order: LRU[ChunkEntry] = LRU()
        self.entries: dict[bytes, ChunkEntry] = {}
        self.building: dict[bytes, Build] = {}
        self._allocate = allocate or kv.allocate

    @property
    def owners(self) -> list[ChunkEntry | Build]:
        """Everything that owns rows."""
        return [*self.entries.values(), *self.building.values()]

    @property
    def rows(self) -> int:
        """Rows that entries and builds own."""
        return sum(len(owner.rows) for owner in self.owners)

    @property
    def reclaimable(self) -> int:
        """Rows of entries that no request reads."""
        return sum(len(entry) for entry in self.entries.values() if not entry.pins)

    @property
    def extra_bytes(self) -> int:
        """Bytes of extras, those reserved for builds included."""
        return sum(owner.extra_bytes for owner in self.owners)

    def find(self, namespace: bytes, tokens: Sequence[int]) -> ChunkEntry | None:
        """The entry of exactly these tokens, or None. Mutates nothing."""
        return self.entries.get(self.chain(namespace, tokens).key())

    def is_building(self, namespace: bytes, tokens: Sequence[int]) -> bool:
        """Whether someone is prefilling exactly these tokens: then wait for them instead of beginning."""
        return self.chain(namespace, tokens).key() in self.building

    def chain(self, namespace: bytes, tokens: Sequence[int]) -> KeyChain:
        """Running key of a chunk's tokens."""
        return chain_of(self._inner(namespace), tokens)

    def begin(self, namespace: bytes, tokens: Sequence[int]) -> Build:
        """Claim the prefill of a chunk, and the room that it takes. Mutates the pools; may evict chunks.

        Args:
            namespace: model and tenant that the tokens belong to.
            tokens: the chunk, at least one token.

        Raises:
            RequestError: the chunk is empty.
            OwnershipError: it is there already, or is being built.
            CapacityError: there is no room for it; nothing was taken, and, unless rows ran out that others hold,
                nothing was evicted.
        """
        check_chunk(tokens)
        chain = self.chain(namespace, tokens)
        if chain.key() in self.entries or chain.key() in self.building:
            raise OwnershipError(f"a chunk of {len(tokens)} tokens was begun that is there, or is being built, already")
        size = Extras.bytes_for(self.tiers.native.pool.layout, self.options, len(tokens))
        self._make_room(len(tokens), size)
        build = Build(tuple(tokens), namespace, self._inner(namespace), chain, self._take(len(tokens)), size)
        self.building[chain.key()] = build
        return build

    def finish(self, build: Build, lease: SlotLease, extras: Extras) -> ChunkEntry:
        """Turn a build into an entry. Mutates the tiers; the lease's slot becomes the entry's checkpoint.

        Args:
            build: whose rows are all written.
            lease: live slot that was reset to the build's namespace and has seen exactly its tokens.
            extras: what the options ask for.

        Raises:
            OwnershipError: the build has ended.
            CheckpointMismatchError: the slot holds another state, or the extras are not those that were reserved.
            CapacityError: no slot can be had for the checkpoint.
                On any error build and lease are as they were, and still the caller's to end.
        """
        # before the lease is looked at: it ended with the build
        self._expect_open(build)
        self._expect(build, self.tiers.native.pool.header(lease.slot), extras)
        entry = self._enter(build, self.tiers.donate(lease), extras)
        self.counters["chunks_built"] += 1
        return entry

    def admit(self, build: Build, record: torch.Tensor, header: CheckpointHeader) -> ChunkEntry:
        """Turn a build into an entry without extras, from a packed state that was kept elsewhere. Mutates the tiers.

        Args:
            build: whose rows are all written.
            record: packed state, uint8 ``[codec.nbytes]``.
            header: what it claims to be.

        Raises:
            OwnershipError: the build has ended.
            CheckpointMismatchError: the record is another state or of another codec, or extras were reserved.
            CapacityError: no slot can be had for the checkpoint.
                On any error the build is as it was, and still the caller's to end.
        """
        self._expect(build, header, Extras())
        return self._enter(build, self.tiers.admit(record, header, build.chain), Extras())

    def abandon(self, build: Build) -> None:
        """Give a build's rows back; nothing is kept of it. The lease is the caller's.

        Raises:
            OwnershipError: it has ended.
        """
        self._expect_open(build)
        del self.building[build.chain.key()]
        self.kv.free(build.rows)

    def hold(self, entries: Sequence[ChunkEntry]) -> Hold:
        """Claim a prompt's chunks and make them the most recently used. Mutates pins and both orders.

        Args:
            entries: in the order of the prompt; one may be there several times.

        Raises:
            OwnershipError: one of them is gone; nothing was claimed.
        """
        if any(self.entries.get(entry.key) is not entry for entry in entries):
            raise OwnershipError("a chunk was claimed that is not kept any more")
        for entry in entries:
            entry.checkpoint.pins += 1
            self.order.touch(entry)
            self.tiers.order.touch(entry.checkpoint)
        return Hold(entries)

    def release(self, hold: Hold) -> None:
        """Give a claim back. Mutates pins.

        Raises:
            OwnershipError: it was released already.
        """
        for entry in hold.drop():
            entry.checkpoint.pins -= 1

    def remove(self, entry: ChunkEntry) -> None:
        """Drop an entry.

        Raises:
            OwnershipError: a request reads it, or it is not kept any more.
        """
        if entry.pins or self.entries.get(entry.key) is not entry:
            raise OwnershipError(f"a chunk of {len(entry)} tokens is pinned {entry.pins} times, or gone")
        self.tiers.discard(entry.checkpoint)
        self._forget(entry)

    def reclaim(self, rows: int) -> int:
        """Drop least recently used entries until ``rows`` rows came free, or none is left that may go; how many did."""
        freed = 0
        while freed < rows and (oldest := self._oldest()) is not None:
            freed += len(oldest)
            self._evict(oldest)
        return freed

    def flush(self) -> int:
        """Drop every entry that no request reads. Returns how many were."""
        dropped = [entry for entry in self.order if not entry.pins]
        for entry in dropped:
            self.remove(entry)
        return len(dropped)

    def _expect(self, build: Build, header: CheckpointHeader, extras: Extras) -> None:
        """Compare what a build shall become with what was claimed for it."""
        self._expect_open(build)
        if extras.nbytes != build.extra_bytes:
            raise CheckpointMismatchError(f"extras of {extras.nbytes} bytes; {build.extra_bytes} were reserved")
        header.expect(len(build.tokens), build.chain.key(), self.tiers.native.pool.layout.digest)
        if header.lineage != EXACT:
            raise CheckpointMismatchError(f"a chunk's state must be exact, not {header.lineage}")

    def _enter(self, build: Build, checkpoint: Checkpoint, extras: Extras) -> ChunkEntry:
        entry = ChunkEntry(build.tokens, build.chain, build.rows, checkpoint, extras, build.tenant)
        checkpoint.on_evict = partial(self._lose, entry)
        del self.building[entry.key]
        self.entries[entry.key] = entry
        self.order.touch(entry)
        self.tiers.keep(checkpoint)
        return entry

    def _make_room(self, rows: int, extra_bytes: int) -> None:
        """Evict until both limits allow so much more; if they never could, evict nothing."""
        held = [owner for owner in self.owners if isinstance(owner, Build) or owner.pins]
        held_rows, held_bytes = sum(len(owner.rows) for owner in held), sum(owner.extra_bytes for owner in held)
        if held_rows + rows > self.max_rows or held_bytes + extra_bytes > self.max_extra_bytes:
            raise CapacityError(
                f"a chunk of {rows} tokens and {extra_bytes} bytes of extras; chunks may have {self.max_rows} rows and "
                f"{self.max_extra_bytes} bytes, of which {held_rows} and {held_bytes} are in use"
            )
        while self.rows + rows > self.max_rows or self.extra_bytes + extra_bytes > self.max_extra_bytes:
            self._evict_oldest()

    def _take(self, count: int) -> torch.Tensor:
        while True:
            try:
                return self._allocate(count)
            except CapacityError:
                if self._oldest() is None:
                    raise
                self._evict_oldest()

    def _oldest(self) -> ChunkEntry | None:
        return self.order.oldest(lambda entry: not entry.pins)

    def _evict_oldest(self) -> None:
        oldest = self._oldest()
        assert oldest is not None
        self._evict(oldest)

    def _evict(self, entry: ChunkEntry) -> None:
        self.remove(entry)
        self.counters["chunks_evicted"] += 1

    def _lose(self, entry: ChunkEntry) -> None:
        """The tiers have taken an entry's checkpoint: without its state it is no entry."""
        self._forget(entry)
        self.counters["chunks_evicted"] += 1

    def _forget(self, entry: ChunkEntry) -> None:
        del self.entries[entry.key]
        self.order.discard(entry)
        self.kv.free(entry.rows)

    def _expect_open(self, build: Build) -> None:
        if self.building.get(build.chain.key()) is not build:
            raise OwnershipError(f"the build of a chunk of {len(build.tokens)} tokens has ended already")

    def _inner(self, namespace: bytes) -> bytes:
        return chunk_namespace(namespace, self.tiers.native.pool.layout, self.kv.layout, self.options)
