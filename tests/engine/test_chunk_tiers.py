"""Chunks through codecs and below the resident tiers: what comes back is what was kept, however it was kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from holdover.chunks import Chunk, ChunkOptions
from holdover.codec import Codec
from holdover.prefix.policies import NoCheckpoints
from holdover.state import EXACT
from tests.engine.chunk_bench import ChunkBench, chunks_of
from tests.engine.harness import RTOL, distributions, prompt_of
from tests.engine.test_compressed import NAMES, plan_for
from tests.helpers import assert_close

NAME = "qwen3_5"
TRANSITIONS = ChunkOptions(transitions=True)
CODECS = {
    "bf16": {"element": "bfloat16"},
    "int8": {"element": "int8"},
    "nr": {"plan": True, "refresh": "none", "packed_above": 0},
    "wr": {"plan": True, "refresh": "suffix"},
    "nr int8": {"plan": True, "refresh": "none", "packed_above": 0, "element": "int8"},
}
SIZES = {"state_budget": 1 << 24, "native_slots": 8, "packed_slots": 8}
SHELVES = ["host", "disk"]


def options_of(name: str, codec: str) -> dict:
    options = dict(CODECS[codec])
    return options | {"plan": plan_for(name)} if options.pop("plan", False) else options


def plain_bench(name: str = NAME, **options) -> ChunkBench:
    """Nothing that is composed is ever found again: whatever is reused comes from chunks."""
    options = {"extras": ChunkOptions(), "policy": NoCheckpoints(), **options}
    return ChunkBench(name, **options)


def below(shelf: str, folder: Path, **options) -> ChunkBench:
    place = {"host_budget": 1 << 24} if shelf == "host" else {"spill_dir": folder}
    return plain_bench(**{"state_budget": 1 << 24, "native_slots": 8, "spill_lag": 0, **place, **options})


def built(bench: ChunkBench, parts: Sequence[Chunk | tuple[int, ...]]) -> list[str]:
    """Build a prompt's chunks, and let their states move to where they belong; the tiers that they are in."""
    for part in parts:
        if isinstance(part, Chunk):
            bench.build(part)
    bench.core.settle()
    bench.check()
    return [entry.checkpoint.tier for entry in bench.store.entries.values()]


def pack_in_place(bench: ChunkBench, codec: Codec) -> None:
    """What a chunk's dense state is after the codec has had it."""
    pool = bench.cache.tiers.native.pool
    for entry in bench.store.entries.values():
        assert entry.checkpoint.tier == "native"
        record = torch.empty(1, codec.nbytes, dtype=torch.uint8)
        codec.pack(pool, [entry.checkpoint.slot], record, [0])
        codec.unpack(record, [0], pool, [entry.checkpoint.slot])
        pool.adopt(entry.checkpoint.slot, entry.chain.copy(), EXACT)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("initialiser", ["last", "exact"])
def test_what_is_composed_is_what_the_codec_gives_back(name: str, codec: str, initialiser: str) -> None:
    parts, options = [*chunks_of(19, 3), prompt_of(2, seed=4), *chunks_of(17)], options_of(name, codec)
    bench = plain_bench(name, extras=TRANSITIONS, **SIZES, **options)
    assert built(bench, parts) == ["compressed"] * 3
    output = bench.ask(parts, initialiser=initialiser, ratio=0.3)
    assert output.error is None
    assert bench.cache.counters["chunks_built"] == 3
    dense = plain_bench(name, extras=TRANSITIONS)
    exact = dense.ask(parts, initialiser=initialiser, ratio=0.3)
    pack_in_place(dense, bench.cache.tiers.codec)
    wanted = dense.ask(parts, initialiser=initialiser, ratio=0.3)
    assert_close("logprobs", distributions(output.logprobs)[:1], distributions(wanted.logprobs)[:1], RTOL)
    distance = distributions(output.logprobs)[:1] - distributions(exact.logprobs)[:1]
    assert float(distance.abs().max()) > 1e-5, "the codec loses something, or this test sees nothing"
    bench.assert_empty()


@pytest.mark.parametrize("shelf", SHELVES)
@pytest.mark.parametrize("codec", [None, *CODECS])
@pytest.mark.parametrize("name", NAMES)
def test_evicted_and_found_again_below(name: str, codec: str | None, shelf: str, tmp_path: Path) -> None:
    parts = [*chunks_of(17), prompt_of(2, seed=4), *chunks_of(16, 9)]
    options = {} if codec is None else {**SIZES, **options_of(name, codec)}
    bench = below(shelf, tmp_path, name=name, **options)
    assert built(bench, parts) == ["native" if codec is None else "compressed"] * 3
    first = bench.ask(parts, selector="seam")
    kept = {entry.key: bench.cache.kv.read_bytes(entry.rows) for entry in bench.store.entries.values()}
    assert bench.store.flush() == len(kept) == bench.cache.counters["chunks_built"]
    again = bench.ask(parts, selector="seam")
    assert again.error is None
    assert again.cache.reused == first.cache.reused
    assert bench.cache.counters["chunks_built"] == bench.cache.counters[f"chunks_fetched_{shelf}"] == len(kept)
    for entry in bench.store.entries.values():
        assert torch.equal(bench.cache.kv.read_bytes(entry.rows), kept[entry.key])
    assert torch.equal(distributions(again.logprobs), distributions(first.logprobs))
    # another tenant's are built
    bench.ask(parts, selector="seam", salt="b")
    assert bench.cache.counters["chunks_built"] == 2 * len(kept)
    bench.assert_empty()
    bench.core.close()


def test_a_restarted_engine_builds_nothing(tmp_path: Path) -> None:
    outputs = []
    for built in (2, 0):
        bench = below("disk", tmp_path)
        outputs.append(bench.ask(chunks_of(17, 9)))
        assert bench.cache.counters["chunks_built"] == built
        assert bench.cache.counters["chunks_fetched_disk"] == 2 - built
        bench.assert_empty()
        bench.core.close()
    assert torch.equal(*(distributions(output.logprobs) for output in outputs))


def test_what_is_damaged_below_is_built_again(tmp_path: Path) -> None:
    bench, parts = below("disk", tmp_path), chunks_of(17, 9)
    first = bench.ask(parts)
    bench.store.flush()
    for file in tmp_path.rglob("*.entry"):
        data = bytearray(file.read_bytes())
        data[-200] ^= 1
        file.write_bytes(data)
    again = bench.ask(parts)
    assert torch.equal(distributions(again.logprobs), distributions(first.logprobs))
    assert (bench.cache.counters["chunks_passed_over"], bench.cache.counters["chunks_built"]) == (2, 4)
    bench.assert_empty()
    bench.core.close()


@pytest.mark.parametrize("shelf", SHELVES)
def test_chunks_that_do_not_fit_together_take_turns(shelf: str, tmp_path: Path) -> None:
    bench, (a, b) = below(shelf, tmp_path, chunk_rows=20), chunks_of(13, 12)
    texts = [bench.ask([chunk]).token_ids for chunk in (a, b, a, b)]
    assert texts[:2] == texts[2:]
    counters = bench.cache.counters
    assert (counters["chunks_built"], counters[f"chunks_fetched_{shelf}"], counters["chunks_evicted"]) == (2, 2, 3)
    bench.assert_empty()
    bench.core.close()


def test_a_shelf_that_fails_costs_the_copy_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bench, (chunk,) = below("host", tmp_path), chunks_of(9)

    def fail(checkpoint: object) -> None:
        raise OSError("injected")

    monkeypatch.setattr(bench.cache.tiers, "encode", fail)
    assert bench.ask([chunk]).error is None
    assert bench.cache.counters["chunks_not_spilled"] == 1
    assert len(bench.store.entries) == 1
    bench.assert_empty()
    bench.core.close()


def test_chunks_with_extras_are_built_again(tmp_path: Path) -> None:
    bench, (chunk,) = below("host", tmp_path, extras=TRANSITIONS), chunks_of(9)
    for built in (1, 2):
        bench.ask([chunk], initialiser="exact")
        assert bench.cache.counters["chunks_built"] == built
        bench.store.flush()
    bench.assert_empty()
    bench.core.close()


def test_what_the_plan_does_not_let_be_packed_is_not_written(tmp_path: Path) -> None:
    """A chunk within the longest omitted horizon stays dense, and is not spilled."""
    plan = plan_for(NAME)
    bench, (short, long) = below("host", tmp_path, plan=plan, packed_slots=8), chunks_of(5, 19)
    assert built(bench, [short, long]) == ["native", "compressed"]
    bench.store.flush()
    bench.ask([short, long])
    assert (bench.cache.counters["chunks_fetched_host"], bench.cache.counters["chunks_built"]) == (1, 3)
    bench.assert_empty()
    bench.core.close()
