"""Layouts and the traffic model, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from holdover.errors import ConfigError
from holdover.ops.deferred import traffic
from holdover.ops.deferred.family import FAMILIES, GDN, KDA, MAMBA2, RWKV6, Family
from holdover.ops.deferred.log import LogLayout
from holdover.ops.deferred.tiling import choose, choose_fold, choose_verify

STATE = 128 * 128 * 4


def layout(family: Family, merge_interval: int, heads: int = 32, key_heads: int = 32) -> LogLayout:
    return LogLayout(family, heads, key_heads, 128, 128, merge_interval)


@pytest.mark.parametrize(
    ("family", "entry"),
    # key bf16, value fp32 for the delta rule and bf16 otherwise, decay fp32 per head or channel, factor fp32
    [(GDN, 256 + 512 + 4 + 4), (KDA, 256 + 512 + 512 + 4), (RWKV6, 256 + 256 + 512), (MAMBA2, 256 + 256 + 4 + 4)],
    ids=lambda x: getattr(x, "name", ""),
)
def test_entry_bytes(family: Family, entry: int) -> None:
    assert layout(family, 8).entry_bytes == 32 * entry
    assert layout(family, 8).slot_bytes == 7 * 32 * entry
    assert layout(family, 1).slot_bytes == 0


def test_grouped_heads_share_their_keys() -> None:
    assert layout(GDN, 8, 32, 16).entry_bytes == 16 * 256 + 32 * (512 + 4 + 4)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
@pytest.mark.parametrize("merge_interval", [1, 2, 9, 64])
def test_layout_counts_what_is_allocated(family: Family, merge_interval: int) -> None:
    log = replace(layout(family, merge_interval), heads=4, key_heads=2).allocate(3)
    tensors = [x for x in (log.keys, log.values, log.decays, log.scales) if x is not None]
    assert sum(x.numel() * x.element_size() for x in tensors) == 3 * log.layout.slot_bytes
    assert log.decays.dtype == torch.float32
    assert log.values.dtype == (torch.float32 if family.delta else torch.bfloat16)


def test_dense_reads_and_writes_the_state() -> None:
    assert traffic.dense(layout(GDN, 8), 4) == traffic.Traffic(4 * 32 * STATE, 4 * 32 * STATE)
    assert traffic.deferred(layout(GDN, 1), 4) == traffic.dense(layout(GDN, 1), 4)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
@pytest.mark.parametrize("merge_interval", [1, 2, 8, 64])
def test_average_is_that_of_a_cycle(family: Family, merge_interval: int) -> None:
    x = layout(family, merge_interval)
    steps = [traffic.at_fill(x, 3, fill) for fill in range(merge_interval)]
    average = traffic.deferred(x, 3)
    assert average.read == pytest.approx(sum(step.read for step in steps) / merge_interval)
    assert average.written == pytest.approx(sum(step.written for step in steps) / merge_interval)
    with pytest.raises(ValueError, match="fill"):
        traffic.at_fill(x, 3, merge_interval)


def test_writes_of_the_paper() -> None:
    """GDN at M = 8 writes 7.39 times less than a dense step by bytes."""
    dense, ours = traffic.dense(layout(GDN, 8), 128), traffic.deferred(layout(GDN, 8), 128)
    assert dense.written / ours.written == pytest.approx(7.39, abs=0.01)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_best_interval_is_a_minimum(family: Family) -> None:
    best = traffic.best_interval(layout(family, 1))
    totals = {m: traffic.deferred(layout(family, m), 7).total for m in range(1, 65)}
    assert totals[best] == min(totals.values())
    # balance of a fold's write against the log's reads: M ~ sqrt(2 state / entry)
    assert best == pytest.approx((2 * STATE / (layout(family, 8).entry_bytes / 32)) ** 0.5, abs=1.5)


def test_a_log_that_costs_more_than_the_state_never_pays() -> None:
    assert traffic.best_interval(LogLayout(KDA, 1, 1, 2, 2, 8)) == 1


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
@pytest.mark.parametrize("merge_interval", [1, 2, 8, 64])
def test_tiles_cut_the_state_evenly(family: Family, merge_interval: int) -> None:
    for d_k, d_v in ((128, 128), (128, 64), (16, 24), (8, 8)):
        x = replace(layout(family, merge_interval), d_k=d_k, d_v=d_v)
        for batch in (1, 64, 1024):
            drafts = choose_verify(x, batch)
            # tensor cores sum over 16 and more: fewer channels are padded
            assert d_k % drafts.channels == 0 or d_k < drafts.channels == 16
            for tiling in (choose(x, batch), choose_fold(x, batch)):
                assert all(n & (n - 1) == 0 for n in (tiling.entries, tiling.fold_entries))
            for columns in (choose(x, batch).columns, choose_fold(x, batch).columns, drafts.columns):
                assert d_v % columns == columns & (columns - 1) == 0
        assert choose_fold(x, 1).columns <= choose_fold(x, 1024).columns


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"merge_interval": 0}, "merge interval is 0, want 1 to 64"),
        ({"merge_interval": 65}, "want 1 to 64"),
        ({"key_heads": 5}, "32 value heads are no multiple of 5"),
        ({"d_k": 96}, "d_k is 96, want a power of two"),
    ],
)
def test_refusals(change: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(layout(GDN, 8), **change)
