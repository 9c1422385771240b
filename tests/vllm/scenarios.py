"""What the tests watch an engine do, one process for each: ``python -m tests.vllm.scenarios NAME FOLDER``.

A scenario yields what it saw; what it does after that is for the next one to find.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from holdover.codec import Codec
from holdover.retention import RetentionPlan
from holdover.retention.decay import read_decay
from holdover.retention.plan_file import write_plan
from holdover.state import SlotPool
from holdover.weights.source import resolve
from tests.vllm.served import Served, model_folder, prompt
from tests.vllm.watch import tier_worker

Seen = Iterator[dict[str, Any]]

BUDGET = 100 << 20
CROSSING = 40
# a block of each model, and the same with the longest log here
BLOCK = {"tiny-gdn": 384, "qwen3-next": 128}
WIDEST = {"tiny-gdn": 512, "qwen3-next": 128}
# kills its parent as soon as an entry is being written
KILLER = """
import os, pathlib, signal, sys
while not any(pathlib.Path(sys.argv[1]).rglob("*.tmp")):
    pass
os.kill(int(sys.argv[2]), signal.SIGKILL)
"""


def prompts(model: str) -> list[list[int]]:
    """Three blocks and a rest, two blocks and a rest, less than one block."""
    block = BLOCK[model]
    return [prompt(0, 3 * block + block * 9 // 10), prompt(1, 2 * block + block // 4), prompt(2, block // 2)]


def edges(model: str) -> list[list[int]]:
    """Prompts that end before a boundary, which their answers cross."""
    short, wide = BLOCK[model] - 8, WIDEST[model] - 8
    return [prompt(10, short), prompt(11, short), prompt(12, wide), prompt(13, wide)]


def stock(folder: Path, model: str = "tiny-gdn", **changes: Any) -> Seen:
    """vLLM alone: the answers that the others are compared with. So does the plug-in where nothing asks for it."""
    served = Served(folder, model=model, **changes)
    yield {"cold": served.generate(prompts(model)), "crossing": served.generate(edges(model), tokens=CROSSING)}


def plain(folder: Path, model: str = "tiny-gdn", interval: int = 16) -> Seen:
    """Deferred decode without prefix caching, in fewer blocks than the requests want at once."""
    settings = {"decode": {"interval": interval}}
    served = Served(folder, settings, model=model, prefix_caching=False, num_gpu_blocks_override=13)
    crossing = served.generate(edges(model), tokens=CROSSING)
    yield {"crossing": crossing, "decoded": served.decoded(), "preemptions": served.preemptions()}


def lossless(folder: Path, model: str = "tiny-gdn", interval: int = 8, **changes: Any) -> Seen:
    """Both tiers, a plan that omits nothing, deferred decode; vLLM's cache is lost and comes back. Ends by SIGKILL."""
    plan, home = _plan(model, folder), _home(model, folder)
    everything = replace(plan, retained=tuple(torch.ones_like(mask) for mask in plan.retained))
    write_plan(everything, home / "all.safetensors")
    settings = {"host_budget": BUDGET, "spill_dir": str(home / "spill"), "spill_budget": BUDGET}
    settings |= {"plan": str(home / "all.safetensors"), "decode": {"interval": interval}}
    served = Served(folder, settings, model=model, **changes)
    cold, before = served.generate(prompts(model)), served.cached_pages()
    served.forget()
    restored, after = served.generate(prompts(model)), served.cached_pages()
    events = served.events()
    # the next turn of a conversation resumes from where the first ended
    turn = prompts(model)[0] + cold[0]["tokens"] + prompt(3, served.block)
    first = served.generate([turn])
    fresh = served.generate([turn], salt="apart")
    served.forget()
    again = served.generate([turn])
    chain = [file.name.split("-") for file in (home / "spill").rglob("*.entry")]
    # a prompt that ends before a boundary, which its answer crosses; then the next turn
    edge = served.generate(edges(model)[:1])[0]
    turn = edges(model)[0] + edge["tokens"] + prompt(6, 50)
    crossing = served.generate(edges(model), tokens=CROSSING)
    reaching = served.generate([turn], salt="apart")
    served.forget()
    reached = served.generate([turn])
    with _full_disk():
        full = served.generate([prompt(7, served.block + 1)])
    missed = served.events()
    yield {
        **{"cold": cold, "restored": restored, "before": before, "after": after, "events": events, "missed": missed},
        **{"first": first, "fresh": fresh, "again": again, "reaching": reaching, "reached": reached, "full": full},
        **{"chain": sorted([int(name[0]), int(name[2])] for name in chain), "crossing": crossing},
        **{"decoded": served.decoded(), "block": served.block},
    }
    subprocess.Popen([sys.executable, "-c", KILLER, str(home / "spill"), str(os.getpid())])
    for seed in range(100, 160):
        served.generate([prompt(seed, served.block + 1)])


def restarted(folder: Path, model: str = "tiny-gdn", interval: int = 2, **changes: Any) -> Seen:
    """Another process on what a killed one left; one entry is damaged, another's parent is gone; then the directory."""
    block, home = BLOCK[model], _home(model, folder)
    spill = home / "spill"
    first = json.loads((folder / f"{'next_' * (model != 'tiny-gdn')}lossless.json").read_text())
    torn = len(list(spill.rglob("*.tmp")))
    _damage(spill, 2 * block)
    settings = {"spill_dir": str(spill), "spill_budget": BUDGET, "plan": str(home / "all.safetensors")}
    # few blocks; and vLLM keeps every boundary's state, also those that decoding reaches, and the tier no other
    settings |= {"ends": False, "decode": {"interval": interval}}
    changes |= {"num_gpu_blocks_override": 24, "prefix_cache_retention_interval": None}
    served = Served(folder, settings, model=model, **changes)
    left = len(list(spill.rglob("*.tmp")))
    warm, events = served.generate(prompts(model)[:2]), served.events()
    turn = prompts(model)[0] + first["cold"][0]["tokens"] + prompt(3, first["block"])
    (parent,) = spill.rglob(f"{len(prompts(model)[0]) + len(first['cold'][0]['tokens']) - 1}-*.entry")
    parent.unlink()
    # what vLLM had itself would do without it
    served.forget()
    orphan, orphaned = served.generate([turn]), served.events()
    # under a salt, since the process before kept the ends of the same requests
    crossing = served.generate(edges(model), "own", CROSSING)
    decoded, preemptions = served.decoded(), served.preemptions()
    # the next turn, from the state that decoding left at a boundary, and from the same tokens in a prefill
    turn = edges(model)[1] + crossing[1]["tokens"] + prompt(6, 50)
    served.forget()
    reached, kept = served.generate([turn], "own"), SlotPool(tier_worker()._setup.codec.layout, 1)
    _fill(kept, served)
    served.forget()
    apart, computed = served.generate([turn], "apart"), SlotPool(kept.layout, 1)
    _fill(computed, served)
    shutil.rmtree(spill)
    spill.write_text("in the way")
    lost = served.generate([prompt(4, block + 1)])
    yield {
        **{"torn": torn, "left": left, "warm": warm, "events": events, "orphan": orphan, "orphaned": orphaned},
        **{"crossing": crossing, "decoded": decoded, "preemptions": preemptions},
        **{"reached": reached, "apart": apart, "drift": _drift(kept, computed)},
        **{"lost": lost, "after": served.events()},
    }
    served.close()


def packed(folder: Path) -> Seen:
    """Host memory, a real W_max and INT8: what is kept is what the core packs, and exact requests never see it."""
    model = "qwen3-next"
    plan = _plan(model, folder)
    write_plan(plan, folder / "some.safetensors")
    settings = {"host_budget": BUDGET, "plan": str(folder / "some.safetensors"), "element": "int8"}
    served = Served(folder, settings | {"decode": {"interval": 16}}, model=model)
    long = prompts(model)[:1]
    cold = served.generate(long)
    worker = tier_worker()
    layout = worker._setup.codec.layout
    codec = Codec(layout, plan, element="int8")
    pool, record = SlotPool(layout, 1), torch.empty(1, codec.nbytes, dtype=torch.uint8)
    _fill(pool, served)
    codec.pack(pool, [1], record, [0])
    (name,) = (name for name in worker._host.names() if name.depth == 3 * served.block)
    kept = worker._host.get(name)
    served.forget()
    restored, seen = served.generate(long), SlotPool(layout, 1)
    _fill(seen, served)
    codec.unpack(record, [0], pool, [1])
    same = all(torch.equal(a, b) for a, b in zip(pool.tensors_of(1), seen.tensors_of(1), strict=True))
    exact = served.generate(long, salt="exact")
    served.forget()
    again = served.generate(long, salt="exact")
    yield {
        **{"cold": cold, "restored": restored, "exact": exact, "again": again, "events": served.events()},
        **{"record": bool(torch.equal(kept.state, record[0])), "bytes": [codec.nbytes, layout.checkpoint_bytes]},
        **{"unpacked": same, "decoded": served.decoded(), "omitted": plan.units - plan.offsets[-1]},
    }
    served.close()


def units(folder: Path) -> Seen:
    """Hits within blocks: vLLM's unit is shorter than its block, and the tier keeps what ends at one."""
    settings = {"spill_dir": str(folder / "units"), "decode": {"interval": 8}}
    served = Served(folder, settings, model="qwen3-next", prefix_match_unit=32)
    long = prompts("qwen3-next")[:1]
    cold, stocked = served.generate(long), served.generate(long)
    served.forget()
    restored = served.generate(long)
    yield {"length": len(long[0]), "cold": cold, "stocked": stocked, "restored": restored, "events": served.events()}
    served.close()


def parallel(folder: Path, *, again: bool = False) -> Seen:
    """Two ranks. The second time, one of them finds its part of an entry damaged."""
    spill, model = folder / "parallel", "qwen3-next"
    if again:
        _damage(next(spill.glob("*-1-of-2")), 2 * BLOCK[model])
    settings = {"spill_dir": str(spill), "decode": {"interval": 8}} | ({} if again else {"host_budget": BUDGET})
    served = Served(folder, settings, model=model, tensor_parallel_size=2)
    cold, before = served.generate(prompts(model)), served.cached_pages()
    events = served.events()
    served.forget()
    restored, after = served.generate(prompts(model)), served.cached_pages()
    crossing = served.generate(edges(model), tokens=CROSSING)
    yield {
        **{"cold": cold, "restored": restored, "before": before, "after": after, "events": events},
        **{"later": served.events(), "crossing": crossing, "decoded": served.decoded()},
        "folders": sorted(folder.name.partition("-")[2] for folder in spill.iterdir() if folder.is_dir()),
    }
    served.close()


def _home(model: str, folder: Path) -> Path:
    """Where a model's scenarios leave what the next one finds."""
    home = folder / f"{model}-home"
    home.mkdir(exist_ok=True)
    return home


def _plan(model: str, folder: Path) -> RetentionPlan:
    return RetentionPlan.of(read_decay(resolve(str(model_folder(model, folder)))), 64)


def _damage(spill: Path, depth: int) -> None:
    """Change a byte of the entry at a depth."""
    damaged = next(spill.rglob(f"{depth}-*.entry"))
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)


@contextmanager
def _full_disk() -> Iterator[None]:
    """No file of this process may be longer than any entry."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


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


NEXT = "qwen3-next"
SCENARIOS: dict[str, Callable[[Path], Seen]] = {
    "stock": stock,
    "off": stock,
    "lossless": lossless,
    "restarted": restarted,
    "packed": packed,
    "plain": plain,
    "next_stock": partial(stock, model=NEXT),
    "next_plain": partial(plain, model=NEXT, interval=2),
    "next_lossless": partial(lossless, model=NEXT, interval=8),
    "next_restarted": partial(restarted, model=NEXT, interval=16),
    "units": units,
    "parallel": parallel,
    "parallel_again": partial(parallel, again=True),
}

if __name__ == "__main__":
    name, place = sys.argv[1], Path(sys.argv[2])
    for seen in SCENARIOS[name](place):
        (place / f"{name}.json").write_text(json.dumps(seen))
