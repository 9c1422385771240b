"""The worker's half: packs states out of vLLM's pages, and brings entries back into them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch
from vllm.logger import init_logger

from holdover.errors import CheckpointMismatchError, SpillError
from holdover.integrations.vllm.connector.metadata import Load, Save, StepPlan, StepReport
from holdover.integrations.vllm.connector.pages import Pages
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
        self._host = HostShelf(setup.config.host_budget) if setup.config.host_budget is not None else None
        self._shelves = _shelves(setup, self._host)
        self._writer = SpillWriter(self._shelves, lag=setup.config.spill_lag)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="holdover-load")
        self._reading: dict[str, tuple[Load, Future[_Read]]] = {}
        self._unsettled: list[EntryName] = []
        self._unusable: list[EntryName] = []
        self._on_host: frozenset[EntryName] = frozenset()
        self._counters: Counter[str] = Counter()
        self._written: Counter[str] = Counter()

    def register(self, caches: Mapping[str, torch.Tensor]) -> None:
        """Take vLLM's caches.

        Raises:
            ConfigError: they are not those of the model's layout.
        """
        setup = self._setup
        self._pages = Pages(caches, setup.groups, setup.codec.layout)
        self._pool = SlotPool(setup.codec.layout, 1, self._pages.device)
        plan = setup.codec.plan
        logger.info(
            "holdover: checkpoint tier for %d recurrent and %d attention layers on %s; blocks of %d tokens; %s records "
            "of %d bytes%s, %d bytes of rows per token; host %s, disk %s",
            *(len(setup.groups.recurrent), len(setup.groups.attention), self._pages.device, setup.groups.block_size),
            *(setup.codec.name, setup.codec.nbytes, "" if plan is None else f" (W_max {plan.w_max})"),
            self._pages.token_bytes,
            *("off" if setup.config.host_budget is None else setup.config.host_budget,),
            *("off" if setup.config.spill_dir is None else f"{setup.config.spill_budget} in {setup.config.spill_dir}",),
        )

    def save(self, plan: StepPlan) -> None:
        """Pack what the step left and have it written. A failure costs the entry, not the request."""
        for save in plan.saves:
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

    def finish(self) -> tuple[set[str], set[str]]:
        """Bring what was read into its blocks.

        Returns:
            Requests whose load has ended, and those of them whose load failed.
        """
        ended = {request for request, (_, future) in self._reading.items() if future.done()}
        failed = {request for request in ended if not self._bring(*self._reading.pop(request))}
        return ended, failed

    def report(self) -> StepReport | None:
        """What happened since the last report, or None."""
        settled = [name for name in self._unsettled if not self._writer.is_pending(name)]
        self._unsettled = [name for name in self._unsettled if name not in settled]
        before = self._on_host
        # nothing else changes what is there
        if settled and self._host is not None:
            self._on_host = frozenset(self._host.names())
        arrived, left = self._on_host - before, before - self._on_host
        unusable, self._unusable = self._unusable, []
        return StepReport(settled, list(arrived), list(left), unusable) or None

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
        self._pages.read_state(save.blocks, self._pool, _SLOT)
        codec.pack(self._pool, [_SLOT], record, [0])
        plan = codec.plan.digest if codec.plan is not None else None
        header = CheckpointHeader(name.depth, name.key, codec.layout.digest, save.lineage, codec.name, plan)
        return Entry(name, header, save.lineage, record[0].cpu(), self._pages.read_rows(save.blocks))

    def _read(self, load: Load) -> _Read:
        """Read an entry, and those that it continues down to the rows that are there."""
        entry, tier = self._get(load.name.depth, load.name.key, with_state=True)
        entries = [entry]
        while (name := entries[-1].name).parent_depth > load.above:
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
        plan = codec.plan.digest if codec.plan is not None else None
        if (last.header.codec, last.header.plan) != (codec.name, plan):
            raise CheckpointMismatchError(f"the record is {last.header.codec}; this tier reads {codec.name}")
        size = self._setup.groups.block_size
        for entry in entries:
            first = max(load.above, entry.name.parent_depth)
            places = slice((first - load.above) // size, (entry.name.depth - load.above) // size)
            blocks = {group: ids[places] for group, ids in load.blocks.rows.items()}
            self._pages.write_rows(entry.kv[first - entry.name.parent_depth :], blocks)
        codec.unpack(last.state.to(self._pages.device)[None], [0], self._pool, [_SLOT])
        self._pages.write_state(self._pool, _SLOT, load.blocks)
        self._counters["restored_bytes"] += sum(entry.nbytes for entry in entries)


def _shelves(setup: Setup, host: HostShelf | None) -> list[Shelf]:
    shelves: list[Shelf] = [] if host is None else [host]
    if setup.config.spill_dir is not None:
        shelves.append(Directory(setup.config.spill_dir, budget=setup.config.spill_budget, identity=setup.identity))
    return shelves
