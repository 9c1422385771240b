"""Budgets: what is planned is what is allocated, and what is too small says what it needs."""

import pytest
import torch

from holdover.arch.registry import layout_from_config
from holdover.engine.build import build_core
from holdover.engine.memory import free_memory, parse_bytes, plan_memory
from holdover.engine.options import EngineOptions
from holdover.errors import ConfigError
from holdover.state import SlotPool
from holdover.store import KVPool
from tests.arch.table import ARCHITECTURES
from tests.engine.harness import TOY, host_of

DTYPES = ["float32", "bfloat16", "float16", "float64"]


def layout_of(name: str, dtype: str = "float32"):
    return layout_from_config(ARCHITECTURES[name]().to_dict(), dtype=dtype)


def plan(layout, **budgets):
    defaults = {"state_budget": None, "kv_budget": None, "free_bytes": 1 << 30, "max_context": 512}
    return plan_memory(layout, **{**defaults, **budgets})


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_plan_is_what_is_allocated(name: str, dtype: str) -> None:
    layout = layout_of(name, dtype)
    budgets = {"state_budget": 1_234_567, "kv_budget": 345_678}
    memory = plan(layout, **budgets)
    assert SlotPool(layout.state, memory.num_slots).nbytes == memory.state_bytes <= budgets["state_budget"]
    assert KVPool(layout.kv, memory.num_rows).nbytes == memory.kv_bytes <= budgets["kv_budget"]
    # and one more of either would not fit
    assert SlotPool.bytes_for(layout.state, memory.num_slots + 1) > budgets["state_budget"]
    assert KVPool.bytes_for(layout.kv, memory.num_rows + 1) > budgets["kv_budget"]


def test_exact_budgets() -> None:
    layout = layout_of("qwen3_5")
    for slots, rows in ((1, 2), (2, 3), (17, 100)):
        state, kv = SlotPool.bytes_for(layout.state, slots), KVPool.bytes_for(layout.kv, rows)
        exact = plan(layout, state_budget=state, kv_budget=kv)
        assert (exact.num_slots, exact.num_rows) == (slots, rows)
        more = plan(layout, state_budget=state + 1, kv_budget=kv + 1)
        assert (more.num_slots, more.num_rows) == (slots, rows)


def test_a_state_budget_too_small_names_the_need() -> None:
    layout = layout_of("qwen3_5")
    need = SlotPool.bytes_for(layout.state, 1)
    with pytest.raises(ConfigError, match=rf"{need - 1} bytes is too small.* {need} bytes.*--state-budget"):
        plan(layout, state_budget=need - 1)
    with pytest.raises(ConfigError, match=f"{need} bytes"):
        plan(layout, free_bytes=1000)


def test_a_kv_budget_too_small_names_the_need() -> None:
    layout = layout_of("qwen3_5")
    need = KVPool.bytes_for(layout.kv, 2)
    with pytest.raises(ConfigError, match=f"{need} bytes; raise --kv-budget"):
        plan(layout, kv_budget=need - 1)


def test_shares_of_what_is_free() -> None:
    layout = layout_of("qwen3_5")
    free = 8 * SlotPool.bytes_for(layout.state, 1)
    memory = plan(layout, free_bytes=free)
    assert memory.state_bytes <= 0.2 * free
    assert memory.kv_bytes <= 0.2 * free
    # with plenty, no more than can be of use
    memory = plan(layout, free_bytes=1 << 50)
    assert (memory.num_slots, memory.num_rows) == (512, 64 * 512)


def test_free_memory_is_plausible() -> None:
    assert 2**20 < free_memory(torch.device("cpu")) < 2**50


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1048576", 2**20),
        ("512MiB", 512 * 2**20),
        ("2GB", 2 * 10**9),
        ("2 gb", 2 * 10**9),
        (" 1.5GiB ", 3 * 2**29),
        ("3kb", 3000),
        ("3KiB", 3072),
        ("7b", 7),
        ("1e3", 1000),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "12XB", "1 2 TB", "-1", "0", "0.2", "nan", "inf", "1GBB", "1G"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match="bytes"):
        parse_bytes(text)


@pytest.mark.parametrize(
    "name", ["max_running", "chunk_size", "idle_chunk_size", "max_context", "state_budget", "kv_budget"]
)
@pytest.mark.parametrize("value", [0, -1])
def test_options_below_one_are_refused(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be at least 1, got {value}"):
        EngineOptions(**{name: value})


@pytest.mark.parametrize(
    ("rows", "wanted", "context"), [(40, None, 40), (40, 30, 30), (600, None, 512), (600, 10**6, 512)]
)
def test_the_context_is_the_least_of_three(rows: int, wanted: int | None, context: int) -> None:
    host = host_of(TOY)
    options = EngineOptions(state_budget=1 << 10, kv_budget=KVPool.bytes_for(host.layout.kv, rows), max_context=wanted)
    assert build_core(host, options)[1] == context


def test_no_more_run_than_there_are_slots() -> None:
    host = host_of(TOY)
    options = EngineOptions(state_budget=SlotPool.bytes_for(host.layout.state, 3), kv_budget=1 << 12)
    assert build_core(host, options)[0].limits.max_running == 3
