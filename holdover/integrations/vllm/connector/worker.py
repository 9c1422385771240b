"""The worker's half: packs states out of vLLM's pages, and brings entries back into them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch
from vllm.logger import init_logger

from holdover.errors import CheckpointMismatchError, SpillError
from holdover.integrations.vllm.connector.metadata import (
    Load,
    RankReport,
    Save,
    StepPlan,
    StepReport,
)
from holdover.integrations.vllm.connector.pages import Logged, Pages, by_token
from holdover.integrations.vllm.connector.setup import Setup
from holdover.state import CheckpointHeader, SlotPool
from holdover.store.directory import Directory
from holdover.store.host import HostShelf
from holdover.store.spill import Entry, EntryName, Shelf
from holdover.store.writer import SpillWriter

# vLLM prints what is logged below its own name
logger = init_logger("vllm.holdover")

# the one slot that states pass through
_SLOT = 1


class _Read(NamedTuple):
    """An entry, then those that it continues (rows only), the deepest first, and the tier that the first came from."""

    entries: list[Entry]
    tier: str


class TierWorker:
    """Moves bytes as the scheduler's half decided. Used by the model runner's thread; reads and writes have their own.

    Args:
        setup: the tier.

    Raises:
        ConfigError: the spill directory cannot be used.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._host = HostShelf(setup.host_budget) if setup.host_budget is not None else None
        self._shelves = _shelves(setup, self._host)
        self._writer = SpillWriter(self._shelves, lag=setup.config.spill_lag)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="holdover-load")
        self._reading: dict[str, tuple[Load, Future[_Read]]] = {}
        self._read_ends: set[str] = set()
        self._unsettled: list[EntryName] = []
        self._settled: list[EntryName] = []
        self._unusable: list[EntryName] = []
        self._on_host: frozenset[EntryName] = frozenset()
        self._counters: Counter[str] = Counter()
        self._written: Counter[str] = Counter()

    @property
    def rank(self) -> int:
        """Which of the workers this is."""
        return self._setup.rank

    def register(self, caches: Mapping[str, torch.Tensor], logs: Mapping[str, Logged]) -> None:
        """Take vLLM's caches, and the layers that keep a log in theirs, by name.

        Raises:
            ConfigError: they are not those of the model's layout.
        """
        setup = self._setup
        self._pages = Pages(caches, setup.groups, setup.codec.layout, logs)
        self._pool = SlotPool(setup.codec.layout, 1, self._pages.device)
        plan = setup.codec.plan
        logger.info(
            "holdover: checkpoint tier%s for %d recurrent and %d attention layers on %s; blocks of %d tokens; %s "
            "records of %d bytes%s, %d bytes of rows per token; host %s, disk %s",
            f" of rank {setup.rank} of {setup.ranks}" if setup.ranks > 1 else "",
            *(len(setup.groups.recurrent), len(setup.groups.attention), self._pages.device, setup.groups.block_size),
            *(setup.codec.name, setup.codec.nbytes, "" if plan is None else f" (W_max {plan.w_max})"),
            self._pages.token_bytes,
            *("off" if setup.host_budget is None else setup.host_budget,),
            *("off" if setup.config.spill_dir is None else f"{setup.config.spill_budget} in {setup.config.spill_dir}",),
        )

    def save(self, plan: StepPlan) -> None:
        """Pack what the step left and have it written. A failure costs the entry, not the request."""
        for save in plan.saves:
            if save.ended is not None:
                self._read_ends.add(save.ended)
            self._unsettled.append(save.name)
            try:
                self._writer.submit(self._entry(save))
            except Exception:
                self._counters["save_failed"] += 1
                logger.exception("holdover: the state at depth %d was not kept", save.name.depth)

    def start(self, plan: StepPlan) -> None:
        """Begin to read the entries that requests wait for."""
        for load in plan.loads:
            self._reading[load.request] = load, self._reader.submit(self._read, load)

    def finish(self) -> tuple[set[str], set[str], set[str]]:
        """Bring what was read into its blocks, and see what is written.

        Returns:
            Requests that ended and whose blocks are needed no more; those whose load has ended; those of the latter
            whose load failed.
        """
        ended = {request for request, (_, future) in self._reading.items() if future.done()}
        failed = {request for request in ended if not self._bring(*self._reading.pop(request))}
        # vLLM takes the counters next and the report last, and may then stop stepping: what it is told of is counted
        self._settled += [name for name in self._unsettled if not self._writer.is_pending(name)]
        self._unsettled = [name for name in self._unsettled if name not in self._settled]
        read, self._read_ends = self._read_ends, set()
        return read, ended, failed

    def report(self) -> StepReport | None:
        """What happened since the last report, or None."""
        settled, self._settled = self._settled, []
        before = self._on_host
        # nothing else changes what is there
        if settled and self._host is not None:
            self._on_host = frozenset(self._host.names())
        arrived, left = self._on_host - before, before - self._on_host
        unusable, self._unusable = self._unusable, []
        report = RankReport(settled, list(arrived), list(left), unusable)
        return StepReport({self.rank: report}) if report else None

    def take_counters(self) -> Counter[str]:
        """Counts since the last call."""
        now = self._writer.counters
        names = ("written", "refused", "failed", "written_bytes")
        written = Counter(dict(zip(names, (now.written, now.refused, now.failed, now.bytes), strict=True)))
        counters, self._counters = self._counters + (written - self._written), Counter()
        self._written = written
        return counters

    def close(self) -> None:
        """Write what is pending and end the threads."""
        self._writer.close()
        self._reader.shutdown()

    def _entry(self, save: Save) -> Entry:
        codec, name = self._setup.codec, save.name
        record = torch.empty(1, codec.nbytes, dtype=torch.uint8, device=self._pages.device)
        self._pages.read_state(save.blocks, name.depth, self._pool, _SLOT)
        codec.pack(self._pool, [_SLOT], record, [0])
        plan = codec.plan.digest if codec.plan is not None else None
        shard = self.rank, self._setup.ranks
        header = CheckpointHeader(name.depth, name.key, codec.layout.digest, save.lineage, codec.name, plan, *shard)
        rows = by_token(self._pages.read_rows(save.blocks), name.depth - name.parent_depth)
        return Entry(name, header, save.lineage, record[0].cpu(), rows)

    def _read(self, load: Load) -> _Read:
        """Read an entry, and those that it continues down to the blocks that are there."""
        entry, tier = self._get(load.name.depth, load.name.key, with_state=True)
        entries, size = [entry], self._setup.groups.block_size
        while (name := entries[-1].name).parent_depth // size > load.above // size:
            entries.append(self._get(name.parent_depth, name.parent_key, with_state=False)[0])
        return _Read(entries, tier)

    def _get(self, depth: int, key: bytes, *, with_state: bool) -> tuple[Entry, str]:
        errors = []
        for shelf in self._shelves:
            name = shelf.find(depth, key)
            if name is not None:
                try:
                    return shelf.get(name, with_state=with_state), shelf.tier
                except SpillError as error:
                    errors.append(str(error))
        raise SpillError("; ".join(errors) or f"the entry at depth {depth} is gone")

    def _bring(self, load: Load, future: Future[_Read]) -> bool:
        try:
            read = future.result()
            self._write(load, read.entries)
        except (SpillError, CheckpointMismatchError) as error:
            logger.warning("holdover: the entry at depth %d cannot be used: %s", load.name.depth, error)
        except Exception:
            logger.exception("holdover: the entry at depth %d was not restored", load.name.depth)
        else:
            self._counters[f"restored_{read.tier}"] += 1
            return True
        self._counters["load_failed"] += 1
        self._unusable.append(load.name)
        return False

    def _write(self, load: Load, entries: Sequence[Entry]) -> None:
        codec, last = self._setup.codec, entries[0]
        last.header.expect(load.name.depth, load.name.key, codec.layout.digest)
        plan, shard = codec.plan.digest if codec.plan is not None else None, (self._setup.rank, self._setup.ranks)
        if (last.header.codec, last.header.plan) != (codec.name, plan):
            raise CheckpointMismatchError(f"the record is {last.header.codec}; this tier reads {codec.name}")
        if (last.header.rank, last.header.world) != shard:
            raise CheckpointMismatchError(f"the record is of rank {last.header.rank} of {last.header.world}")
        size, end = self._setup.groups.block_size, -(-load.name.depth // self._setup.groups.block_size)
        for entry in entries:
            start = entry.name.parent_depth // size
            first = max(load.above // size, start)
            rows = self._pages.by_block(entry.kv, -(-entry.name.depth // size) - start)[first - start : end - start]
            places = slice(first - load.above // size, end - load.above // size)
            self._pages.write_rows(rows, {group: ids[places] for group, ids in load.blocks.rows.items()})
            # of a block that two entries share, the deeper one has more
            end = first
        codec.unpack(last.state.to(self._pages.device)[None], [0], self._pool, [_SLOT])
        self._pages.write_state(self._pool, _SLOT, load.blocks, load.name.depth)
        self._counters["restored_bytes"] += sum(entry.nbytes for entry in entries)


def _shelves(setup: Setup, host: HostShelf | None) -> list[Shelf]:
    shelves: list[Shelf] = [] if host is None else [host]
    if setup.config.spill_dir is not None:
        folder = setup.folder(setup.rank)
        shelves.append(Directory(setup.config.spill_dir, budget=setup.config.spill_budget, identity=folder))
    return shelves
