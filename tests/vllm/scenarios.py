"""What the tests watch an engine do, one process for each: ``python -m tests.vllm.scenarios NAME FOLDER``."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.kv_transfer import get_kv_transfer_group

from holdover.codec import Codec
from holdover.integrations.vllm.connector.connector import HoldoverConnector
from holdover.integrations.vllm.connector.worker import TierWorker
from holdover.retention import RetentionPlan
from holdover.retention.plan_file import BESIDE, PLAN_NAME, read_plan, write_plan
from holdover.state import SlotPool
from holdover.weights.bundled import bundled_path
from tests.vllm.served import BLOCK, Served, prompt

# three blocks and a rest, two blocks and a rest, less than one block
LONG, MIDDLE, SHORT = prompt(0, 3 * BLOCK + 348), prompt(1, 2 * BLOCK + 100), prompt(2, 200)
# prompts that end before a boundary, which their answers cross; with a log of 15 entries a block has 512 tokens
EDGES, CROSSING = [prompt(10, BLOCK - 8), prompt(11, BLOCK - 8), prompt(12, 504), prompt(13, 504)], 40
BUDGET = 100 << 20


def stock(folder: Path) -> dict[str, Any]:
    """vLLM alone: the answers that the others are compared with. So does the plug-in where nothing asks for it."""
    served = Served(folder)
    cold = served.generate([LONG, MIDDLE, SHORT])
    return {"cold": cold, "crossing": served.generate(EDGES, tokens=CROSSING)}


def plain(folder: Path) -> dict[str, Any]:
    """Deferred decode without prefix caching, in fewer blocks than the requests want at once."""
    served = Served(folder, {"decode": {"interval": 16}}, prefix_caching=False, num_gpu_blocks_override=13)
    crossing = served.generate(EDGES, tokens=CROSSING)
    return {"crossing": crossing, "decoded": served.decoded(), "preemptions": served.preemptions()}


def lossless(folder: Path) -> dict[str, Any]:
    """Both tiers, a plan that omits nothing, deferred decode; vLLM's cache is lost and comes back."""
    write_plan(_plan(retained=True), folder / "all.safetensors")
    settings = {"host_budget": BUDGET, "spill_dir": str(folder / "spill"), "spill_budget": BUDGET}
    served = Served(folder, settings | {"plan": str(folder / "all.safetensors"), "decode": {"interval": 8}})
    cold, before = served.generate([LONG, MIDDLE, SHORT]), served.cached_pages()
    served.forget()
    restored, after = served.generate([LONG, MIDDLE, SHORT]), served.cached_pages()
    # the next turn of a conversation: its entry continues the first
    turn = LONG + cold[0]["tokens"] + prompt(3, BLOCK)
    first = served.generate([turn])
    served.forget()
    again = served.generate([turn])
    events, decoded = served.events(), served.decoded()
    # a prompt that ends before a boundary, which its answer crosses; then the next turn
    edge = served.generate(EDGES[:1])[0]
    turn = EDGES[0] + edge["tokens"] + prompt(6, 50)
    crossing = served.generate(EDGES, tokens=CROSSING)
    reaching = served.generate([turn])
    served.forget()
    reached = served.generate([turn])
    served.close()
    names = [file.name.split("-") for file in (folder / "spill").rglob("*.entry")]
    return {
        **{"cold": cold, "restored": restored, "before": before, "after": after, "events": events},
        **{"reaching": reaching, "reached": reached, "crossing": crossing},
        **{"decoded": decoded},
        **{"first": first, "again": again, "chain": sorted([int(name[0]), int(name[2])] for name in names)},
    }


def restarted(folder: Path) -> dict[str, Any]:
    """Another process on the same directory, of which one entry is damaged; then the directory is lost."""
    damaged = next(file for file in (folder / "spill").rglob("*.entry") if file.name.startswith(f"{2 * BLOCK}-"))
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    settings = {"spill_dir": str(folder / "spill"), "spill_budget": BUDGET, "plan": str(folder / "all.safetensors")}
    # few blocks; and vLLM keeps every boundary's state, also those that decoding reaches
    changes = {"num_gpu_blocks_override": 24, "prefix_cache_retention_interval": None}
    served = Served(folder, settings | {"decode": {"interval": 2}}, **changes)
    warm = served.generate([LONG, MIDDLE])
    events = served.events()
    crossing, decoded, preemptions = served.generate(EDGES, tokens=CROSSING), served.decoded(), served.preemptions()
    # the next turn, from the state that decoding left at a boundary, and from the same tokens in a prefill
    turn = EDGES[1] + crossing[1]["tokens"] + prompt(6, 50)
    served.forget()
    reached, kept = served.generate([turn]), SlotPool(_worker()._setup.codec.layout, 1)
    _fill(kept, served)
    served.forget()
    apart, computed = served.generate([turn], salt="apart"), SlotPool(kept.layout, 1)
    _fill(computed, served)
    shutil.rmtree(folder / "spill")
    (folder / "spill").write_text("in the way")
    lost = served.generate([prompt(4, BLOCK + 1)])
    after = served.events()
    served.close()
    return {
        **{"warm": warm, "events": events, "lost": lost, "after": after},
        **{"crossing": crossing, "decoded": decoded, "preemptions": preemptions},
        **{"reached": reached, "apart": apart, "drift": _drift(kept, computed)},
    }


def packed(folder: Path) -> dict[str, Any]:
    """Host memory, the bundled plan and INT8: what is kept is what the core packs, and exact requests never see it."""
    plan = _plan()
    write_plan(plan, folder / "some.safetensors")
    settings = {"host_budget": BUDGET, "plan": str(folder / "some.safetensors"), "element": "int8"}
    served = Served(folder, settings)
    cold = served.generate([LONG])
    worker = _worker()
    layout = worker._setup.codec.layout
    codec = Codec(layout, plan, element="int8")
    pool, record = SlotPool(layout, 1), torch.empty(1, codec.nbytes, dtype=torch.uint8)
    _fill(pool, served)
    codec.pack(pool, [1], record, [0])
    (name,) = worker._host.names()
    kept = worker._host.get(name)
    served.forget()
    restored, seen = served.generate([LONG]), SlotPool(layout, 1)
    _fill(seen, served)
    codec.unpack(record, [0], pool, [1])
    same = all(torch.equal(a, b) for a, b in zip(pool.tensors_of(1), seen.tensors_of(1), strict=True))
    exact = served.generate([LONG], salt="exact")
    served.forget()
    again = served.generate([LONG], salt="exact")
    events = served.events()
    served.close()
    return {
        **{"cold": cold, "restored": restored, "exact": exact, "again": again, "events": events},
        **{"record": bool(torch.equal(kept.state, record[0])), "bytes": [codec.nbytes, layout.checkpoint_bytes]},
        "unpacked": same,
    }


def _plan(*, retained: bool = False) -> RetentionPlan:
    source = bundled_path("tiny-gdn")
    assert source is not None
    plan = read_plan(source / BESIDE / PLAN_NAME)
    if not retained:
        return plan
    return replace(plan, retained=tuple(torch.ones_like(mask) for mask in plan.retained), quality=None)


def _worker() -> TierWorker:
    connector = get_kv_transfer_group()
    assert isinstance(connector, HoldoverConnector)
    return connector.worker


def _fill(pool: SlotPool, served: Served) -> None:
    """Copy the one cached state out of vLLM's pages as its CPU kernels keep it."""
    blocks = served.state_blocks()
    for layer in pool.layout.layers:
        conv, temporal = (pages[blocks[layer.index]] for pages in served.state_pages(layer.index))
        pool.conv(layer.index)[1] = conv if conv.shape[0] == layer.conv_width - 1 else conv.T
        pool.temporal(layer.index)[1] = temporal.reshape(layer.heads, layer.d_k, layer.d_v)


def _drift(got: SlotPool, want: SlotPool) -> float:
    """Relative error of the state in the first slot; of the worst tensor."""
    pairs = zip(got.tensors_of(1), want.tensors_of(1), strict=True)
    return max(float((a.float() - b.float()).norm() / b.float().norm()) for a, b in pairs)


SCENARIOS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "stock": stock,
    "off": stock,
    "plain": plain,
    "lossless": lossless,
    "restarted": restarted,
    "packed": packed,
}

if __name__ == "__main__":
    name, place = sys.argv[1], Path(sys.argv[2])
    seen = SCENARIOS[name](place)
    (place / f"{name}.json").write_text(json.dumps(seen))
