"""Putting an engine together: pools within their budgets, the runner, the cache and the loop."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from holdover.chunks import ChunkStore
from holdover.codec import Codec
from holdover.engine.chunks.settings import ChunkSettings
from holdover.engine.core import EngineCore, Limits
from holdover.engine.decode import Decoder, EagerDecoder, GraphDecoder
from holdover.engine.decode.plan import DecodePlan, plan_decode
from holdover.engine.host import Host
from holdover.engine.memory import MemoryPlan, StateNeeds, free_memory, plan_memory
from holdover.engine.options import CHUNK_SIZE, CHUNK_SIZE_ON_GPU, EngineOptions
from holdover.engine.parallel.follower import FollowedChoice
from holdover.engine.parallel.host import JointHost
from holdover.engine.parallel.leader import LeaderCore
from holdover.engine.parallel.shard import Shard
from holdover.engine.refresh import SuffixRefresh
from holdover.engine.runner import Runner
from holdover.engine.shadow import ShadowCheck
from holdover.engine.speculation import HeadDrafts, PromptLookup, Proposer, Speculator
from holdover.errors import ConfigError
from holdover.prefix import PrefixCache
from holdover.prefix.eviction import EVICTIONS
from holdover.prefix.spill import Spill
from holdover.state import SlotPool
from holdover.store import KVPool, PackedPool, SlotAllocator, StateTiers, TierOptions
from holdover.store.directory import Directory
from holdover.store.host import HostShelf
from holdover.store.mover import Inline, mover_for
from holdover.store.spill import Shelf
from holdover.store.writer import SpillWriter

_IDLE_FACTOR = 4


def build_core(
    host: Host, options: EngineOptions, identity: str = "", shard: Shard | None = None
) -> tuple[EngineCore, int]:
    """Allocate the pools and build the engine's loop on them.

    Args:
        host: the model.
        options: how to set the engine up.
        identity: names the model's weights and dtype in the spill directory.
        shard: what this rank has of the model, and the group; None where one process has all of it.

    Returns:
        The loop, and the longest sequence that it can run.

    Raises:
        ConfigError: a budget is too small for one sequence, or the spill directory cannot be used.
    """
    options.check_whole()
    if shard is not None:
        host = JointHost(host, shard.ranks)
    layout = host.layout
    max_context = min(layout.max_context, options.max_context or layout.max_context)
    codec = _codec(host, options, shard)
    decode = plan_decode(
        layout.state,
        host.device,
        options.decode,
        merge_interval=options.merge_interval,
        drafts=options.draft_tokens if options.speculate != "off" else 0,
        use_graphs=options.cuda_graphs,
    )
    refreshes = options.refresh == "suffix" and codec is not None and codec.omits
    spills = options.spill_dir is not None or options.host_budget is not None
    buffers = GraphDecoder.bytes_for(options.max_running, 1 + decode.drafts, max_context) if decode.on_device else 0
    needs = StateNeeds(
        codec=codec,
        running=options.max_running,
        scratch=int(refreshes),
        # those that wait or are being written, and one that is made, on the device and on its way from there
        staging=options.spill_lag + 2 if spills else 0,
        working=0 if codec is None else codec.staging_bytes,
        native_slots=options.native_slots,
        packed_slots=options.packed_slots,
        merge_interval=decode.merge_interval,
        decode_bytes=buffers,
    )
    memory = _memory(host, options, max_context, needs, shard)
    tiers = _tiers(host, options, codec, memory, decode, shard)
    kv = KVPool(layout.kv, memory.num_rows, host.device, poison=options.poison)
    cache = PrefixCache(tiers, kv)
    decoder = _decoder(host, tiers.native.pool, kv, options, decode, max_context)
    max_context = min(max_context, memory.num_rows)
    runner = Runner(host, tiers.native.pool, kv, decoder)
    refresh = SuffixRefresh(runner, tiers, options.plan) if refreshes and options.plan is not None else None
    running = min(options.max_running, memory.num_slots - int(refreshes))
    chunk_size = options.chunk_size or (CHUNK_SIZE_ON_GPU if host.device.type == "cuda" else CHUNK_SIZE)
    idle_chunk_size = options.idle_chunk_size or _IDLE_FACTOR * chunk_size
    core = _core_type(shard)(
        runner,
        cache,
        _store(cache, options.chunks),
        Limits(running, chunk_size, idle_chunk_size),
        options.policy,
        refresh=refresh,
        spill=_spill(cache, options, identity) if spills else None,
        max_losses=options.max_losses,
        shadow=ShadowCheck(options.shadow_share, options.shadow_gate) if options.shadow_share else None,
        speculator=Speculator(_proposer(runner, options), decode.drafts, max_context) if decode.drafts else None,
    )
    return core, max_context


def _store(cache: PrefixCache, settings: ChunkSettings) -> ChunkStore:
    store = ChunkStore(
        cache.tiers,
        cache.kv,
        settings.extras,
        max_rows=cache.kv.num_rows // 2 if settings.rows is None else settings.rows,
        max_extra_bytes=settings.extra_bytes,
        allocate=cache.rows.allocate,
    )
    cache.rows.lender = store
    return store


def _decoder(
    host: Host, slots: SlotPool, kv: KVPool, options: EngineOptions, decode: DecodePlan, max_context: int
) -> Decoder | None:
    if decode.merge_interval is None:
        return None
    if not decode.on_device:
        return EagerDecoder(host, slots, kv)
    return GraphDecoder(
        host,
        slots,
        kv,
        max_batch=options.max_running,
        max_tokens=1 + decode.drafts,
        max_context=max_context,
        dense_below=decode.dense_below,
        use_graphs=decode.use_graphs,
    )


def _proposer(runner: Runner, options: EngineOptions) -> Proposer:
    if options.speculate == "ngram":
        return PromptLookup()
    if (head := runner.host.head) is None:
        raise ConfigError("the model was loaded without an MTP head to draft with: choose another way to speculate")
    return HeadDrafts(head, runner.slots, runner.kv)


def _core_type(shard: Shard | None) -> Callable[..., EngineCore]:
    if shard is None:
        return EngineCore
    if shard.ranks.leads:
        return partial(LeaderCore, ranks=shard.ranks)
    return partial(EngineCore, choose=FollowedChoice(shard.ranks))


def _codec(host: Host, options: EngineOptions, shard: Shard | None) -> Codec | None:
    if not options.is_compressed:
        return None
    if shard is not None:
        return shard.codec(host.layout.state, options.element)
    return Codec(host.layout.state, options.plan, options.arrangement, options.element)


def _memory(host: Host, options: EngineOptions, max_context: int, needs: StateNeeds, shard: Shard | None) -> MemoryPlan:
    """Sizes of the pools. Records of ranks differ in size: all have as many slots as the one with the fewest."""
    free_bytes = free_memory(host.device) if shard is None else shard.free_memory(host.device)
    with nullcontext() if shard is None else shard.ranks.agreed():
        memory = plan_memory(
            host.layout,
            state_budget=options.state_budget,
            kv_budget=options.kv_budget,
            free_bytes=free_bytes,
            max_context=max_context,
            needs=needs,
        )
    if shard is None:
        return memory
    native, packed = (shard.ranks.least(number) for number in (memory.num_slots, memory.num_packed))
    return memory.with_slots(host.layout, needs, native, packed)


def _tiers(
    host: Host,
    options: EngineOptions,
    codec: Codec | None,
    memory: MemoryPlan,
    decode: DecodePlan,
    shard: Shard | None,
) -> StateTiers:
    pool = SlotPool(host.layout.state, memory.num_slots, host.device, merge_interval=decode.merge_interval)
    native = SlotAllocator(pool, poison=options.poison)
    packed = None
    if codec is not None:
        packed_pool = PackedPool(codec, memory.num_packed, host.device)
        packed = SlotAllocator(packed_pool, "compressed", poison=options.poison)
    tiers = TierOptions(options.dense_spill, options.watermark, _packed_above(options))
    # what ends when it ends would be seen at different steps of different ranks
    mover = mover_for(host.device) if shard is None else Inline()
    return StateTiers(native, packed, mover, tiers, EVICTIONS[options.eviction]())


def _packed_above(options: EngineOptions) -> int:
    """Depth up to which packing would leave out what is not forgotten yet, and nothing would recover it."""
    if options.packed_above is not None:
        return options.packed_above
    has_gaps = options.plan is not None and options.refresh == "none"
    return options.plan.replay_window(sys.maxsize) if has_gaps and options.plan is not None else 0


def _spill(cache: PrefixCache, options: EngineOptions, identity: str) -> Spill:
    shelves: list[Shelf] = []
    if options.host_budget is not None:
        shelves.append(HostShelf(options.host_budget))
    if options.spill_dir is not None:
        least = cache.tiers.codec.nbytes + cache.kv.layout.bytes_per_token
        if options.spill_budget < least:
            raise ConfigError(
                f"a spill budget of {options.spill_budget} bytes cannot hold one checkpoint of {least}; nothing in "
                f"{options.spill_dir} was touched. Raise --spill-budget"
            )
        # entries of another model, dtype or codec are another's: they are never looked at
        parts = (identity, cache.kv.layout.digest, cache.tiers.codec.digest)
        name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
        shelves.append(Directory(Path(options.spill_dir), budget=options.spill_budget, identity=name))
    return Spill(cache, shelves, SpillWriter(shelves, lag=options.spill_lag))
