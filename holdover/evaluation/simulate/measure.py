"""Measure what a model costs on this machine, on a running engine with nothing cached."""

from __future__ import annotations

import platform
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch

from holdover.codec import Codec
from holdover.engine.engine import Engine
from holdover.engine.sampling import SamplingParams
from holdover.errors import HoldoverError
from holdover.evaluation.simulate.costs import Costs, ForwardCost, pairs_of
from holdover.store import LeaseState, PackedPool

_REPEATS = 3
_STEPS = 8
LENGTHS = (32, 256, 1024, 4096)
_CONTEXTS = (16, 512)
_COPIES = 32
# as the requests of a trace are
SAMPLED = SamplingParams(temperature=1.0, seed=1, ignore_eos=True)


@dataclass(frozen=True)
class Observed:
    """Time of some work.

    Attributes:
        forwards: forwards that it took.
        tokens: tokens that they ran.
        pairs: pairs of tokens that they attended over.
        ms: milliseconds.
    """

    forwards: int
    tokens: int
    pairs: int
    ms: float


def measure(engine: Engine, machine: str | None = None) -> Costs:
    """Measure prefill, decode and restores. Mutates the engine's cache by nothing.

    Args:
        engine: of the model, idle.
        machine: what to call the machine; the processor's or the GPU's name if None.

    Raises:
        HoldoverError: the engine's context is too short for any length that is tried.
    """
    device = engine.loaded.host.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    copy_ms, unpack_ms = _restores(engine)
    return Costs(
        model=engine.loaded.name,
        machine=machine or name,
        dtype=engine.loaded.dtype,
        prefill=fit(list(_prefills(engine))),
        decode=fit(list(_decodes(engine))),
        copy_ms=copy_ms,
        unpack_ms=unpack_ms,
        chunk_size=engine.core.limits.chunk_size,
    )


def fit(observed: Sequence[Observed]) -> ForwardCost:
    """Costs that make the least relative error, none of them negative.

    Raises:
        HoldoverError: nothing was observed.
    """
    if not observed:
        raise HoldoverError("no forward could be measured: the engine's context is too short")
    rows = [[float(o.forwards), float(o.tokens), float(o.pairs)] for o in observed]
    return ForwardCost(*least(rows, [o.ms for o in observed]))


def least(amounts: Sequence[Sequence[float]], times: Sequence[float]) -> list[float]:
    """What one of each column costs, so that the relative error is least and nothing costs less than 0.

    Args:
        amounts: a row for each time, of what was done in it.
        times: all above 0.
    """
    chosen = list(range(len(amounts[0])))
    rows = torch.tensor(amounts, dtype=torch.float64) / torch.tensor(times, dtype=torch.float64)[:, None]
    while True:
        # columns differ by many powers of ten
        part = rows[:, chosen]
        scale = part.norm(dim=0)
        wanted = torch.ones(len(rows), 1, dtype=torch.float64)
        found = (torch.linalg.lstsq(part / scale, wanted).solution[:, 0] / scale).tolist()
        if len(chosen) == 1 or min(found) >= 0:
            break
        del chosen[found.index(min(found))]
    values = dict(zip(chosen, found, strict=True))
    return [max(0.0, values.get(column, 0.0)) for column in range(len(amounts[0]))]


def _prefills(engine: Engine) -> Iterator[Observed]:
    most, chunk = engine.prepare.max_context - 1, engine.core.limits.idle_chunk_size
    for length in (n for n in LENGTHS if n <= most):
        parts = [(start, min(chunk, length - start)) for start in range(0, length, chunk)]
        params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
        # the first one finds caches cold that the others find warm
        times = [_first_token(engine, _prompt(engine, length), params) for _ in range(1 + _REPEATS)][1:]
        pairs = sum(pairs_of(start, count) for start, count in parts)
        yield Observed(len(parts), length, pairs, median(times))


def _first_token(engine: Engine, prompt: list[int], params: SamplingParams) -> float:
    output = engine.generate([prompt], params, use_cache=False)[0]
    assert output.timing.first_token is not None
    return 1e3 * output.timing.first_token


def _decodes(engine: Engine) -> Iterator[Observed]:
    limits, rows = engine.core.limits, engine.core.cache.kv.num_rows
    for batch in sorted({1, min(8, limits.max_running), limits.max_running}):
        for length in _CONTEXTS:
            tokens = decoded(engine, batch, length, _STEPS)
            if length + tokens <= engine.prepare.max_context and batch * (length + tokens) <= rows:
                yield decode_steps(engine, batch, length, _STEPS)


def decoded(engine: Engine, batch: int, length: int, steps: int) -> int:
    """Tokens that each of so many sequences needs for all to decode together so often."""
    # prefills alternate with the decode of those that are ready, which must not end meanwhile
    return batch * (length // engine.core.limits.chunk_size + 2) + steps


def decode_steps(engine: Engine, batch: int, length: int, steps: int) -> Observed:
    """Let so many sequences decode together, on the thread that runs the engine.

    Args:
        engine: idle.
        batch: sequences.
        length: tokens of each one's prompt.
        steps: steps whose time is taken.
    """
    core = engine.core
    params = replace(SAMPLED, max_tokens=decoded(engine, batch, length, steps))
    sequences = [engine.prepare.sequence(_prompt(engine, length), params, use_cache=False) for _ in range(batch)]
    for sequence in sequences:
        core.add(sequence)
    try:
        while not all(sequence.is_running and sequence.remaining == 1 for sequence in sequences):
            core.step()
        start, pairs = time.perf_counter(), 0
        for _ in range(steps):
            pairs += sum(len(sequence.tokens) for sequence in sequences)
            core.step()
        return Observed(steps, batch * steps, pairs, 1e3 * (time.perf_counter() - start))
    finally:
        for sequence in sequences:
            core.abort(sequence.request.id)


def _restores(engine: Engine) -> tuple[float, float]:
    """Milliseconds a byte of copying a dense checkpoint and of unpacking a packed one."""
    tiers = engine.core.cache.tiers
    pool, codec = tiers.native.pool, Codec(tiers.native.pool.layout)
    packed = PackedPool(codec, 1, pool.device)
    leases = [tiers.acquire(LeaseState.LIVE) for _ in range(2)]
    try:
        source, target = (lease.slot for lease in leases)
        pool.reset(source, b"measured")
        packed.pack(pool, source, 1)
        copied = _timed(lambda: pool.copy(source, target), pool.device)
        unpacked = _timed(lambda: codec.unpack(packed.records, [1], pool, [target]), pool.device)
    finally:
        for lease in leases:
            lease.release()
    return copied / pool.layout.checkpoint_bytes, unpacked / codec.nbytes


def _timed(work: Callable[[], None], device: torch.device) -> float:
    times = []
    for _ in range(_COPIES):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(1e3 * (time.perf_counter() - start))
    return median(times)


def _prompt(engine: Engine, length: int) -> list[int]:
    avoided = engine.loaded.end_tokens
    ids = [token for token in range(engine.loaded.host.layout.vocab_size) if token not in avoided]
    return random.choices(ids, k=length)
