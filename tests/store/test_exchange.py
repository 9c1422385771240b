"""The exchange moves every retained unit to its place and back, and a sharded model does not notice."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from holdover.errors import CheckpointMismatchError, ConfigError, IntegrityError
from holdover.retention import RetentionPlan
from holdover.retention.coupled import bundle_size
from holdover.retention.placement import Placement, PlacementMode, balance_storage, place
from holdover.store.exchange import Exchange
from tests.helpers import assert_close
from tests.retention import figure9
from tests.store.sharded import Results, Stack, bundled_model, plan_of, run_ranks

PLANS = ("horizons", "lopsided")
MODES: tuple[PlacementMode, ...] = ("off", "storage", "hybrid")
W_MAX = 64
# checkpoints are taken at both depths; the first is continued by other tokens than those that followed it
DEPTHS = (21, 40)
DECODED = 4
RTOL = 1e-4


def tokens_of(length: int, seed: int) -> Tensor:
    vocabulary = len(bundled_model().embedding)
    return torch.randint(vocabulary, (length,), generator=torch.Generator().manual_seed(seed))


def pieces() -> list[Tensor]:
    """The prompt, cut at the depths."""
    return list(tokens_of(DEPTHS[-1], 0).tensor_split(DEPTHS[:-1]))


@cache
def plan_named(name: str) -> RetentionPlan:
    """The model's own plan, or one that retains the first bundle of every layer: ranks then have much to exchange."""
    plan = plan_of(bundled_model(), W_MAX)
    if name == "horizons":
        return plan
    first = torch.arange(len(plan.retained[0])) < bundle_size(bundled_model().layout.layers[0])
    return replace(plan, retained=(first,) * len(plan.retained), selection=name)


def placement_of(name: str, mode: PlacementMode, ranks: int) -> Placement:
    return place(plan_named(name), bundled_model().layout, ranks, mode)


class Spy:
    """Stands before torch's all-to-all and counts what it is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.remote_bytes = 0
        self._call = dist.all_to_all_single
        monkeypatch.setattr(dist, "all_to_all_single", self)

    def __call__(self, output: Tensor, given: Tensor, receives: list[int], sends: list[int], **options: Any) -> None:
        self.calls += 1
        self.remote_bytes += given.nbytes - given.split(sends)[dist.get_rank()].nbytes
        self._call(output, given, receives, sends, **options)


@torch.no_grad()
def serve(stack: Stack, exchange: Exchange | None) -> Results:
    """Prompt, two checkpoints, one store and one load for both, and a continuation of each from a poisoned state."""
    outputs, units, histories = [], [], []
    for piece in pieces():
        outputs.append(stack.run(piece))
        units.append(stack.retained())
        histories.append(stack.history())
    taken = torch.stack(units)
    loaded = taken if exchange is None else exchange.load(exchange.store(taken))
    for seed, (restored, history) in enumerate(zip(loaded, histories, strict=True)):
        stack.poison()
        stack.restore(restored, history)
        assert torch.equal(stack.retained(), taken[seed])
        outputs += [stack.run(token) for token in tokens_of(DECODED, 1 + seed).split(1)]
    return {"outputs": torch.cat(outputs), "taken": taken, "loaded": loaded}


def serve_sharded(rank: int, ranks: int, name: str) -> Results:
    """`serve` in every mode; ``counts`` are all-to-alls, and bytes by our count and by the spy's."""
    results: Results = {}
    for mode in MODES:
        placement = placement_of(name, mode, ranks)
        exchange = Exchange(placement, rank)
        with pytest.MonkeyPatch.context() as monkeypatch:
            spy = Spy(monkeypatch)
            found = serve(Stack.shard(bundled_model(), plan_named(name), placement, rank), exchange)
        found["counts"] = torch.tensor([spy.calls, exchange.remote_bytes, spy.remote_bytes])
        results |= {f"{mode}.{key}": tensor for key, tensor in found.items()}
    return results


@cache
def served(ranks: int, name: str) -> list[Results]:
    return run_ranks(serve_sharded, ranks, name)


@cache
def reference(name: str) -> Results:
    """The same in one process in float64."""
    return serve(Stack.whole(bundled_model(), plan_named(name)), None)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("ranks", [2, 4])
class TestShardedModel:
    def test_outputs_equal_one_process(self, ranks: int, name: str, mode: PlacementMode) -> None:
        wanted = reference(name)["outputs"]
        for rank, results in enumerate(served(ranks, name)):
            assert_close(f"rank {rank}", results[f"{mode}.outputs"], wanted, RTOL)

    def test_units_come_back_bit_equal(self, ranks: int, name: str, mode: PlacementMode) -> None:
        units, placement = reference(name)["taken"], placement_of(name, mode, ranks)
        for rank, results in enumerate(served(ranks, name)):
            taken = results[f"{mode}.taken"]
            assert torch.equal(results[f"{mode}.loaded"], taken)
            assert_close(f"units of rank {rank}", taken, units[:, placement.units[rank]], RTOL)

    def test_bytes_sent_are_those_of_the_remote_units(self, ranks: int, name: str, mode: PlacementMode) -> None:
        placement, layer = placement_of(name, mode, ranks), bundled_model().layout.layers[0]
        calls, counted, seen = torch.stack([results[f"{mode}.counts"] for results in served(ranks, name)]).T
        # one for the store and one for the load of all checkpoints
        assert calls.tolist() == [2 if placement.remote_units else 0] * ranks
        assert torch.equal(counted, seen)
        assert int(seen.sum()) == 2 * len(DEPTHS) * placement.remote_units * layer.d_k * layer.d_v * 4


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_bundled_model_has_something_to_balance(ranks: int, name: str) -> None:
    """Without it the tests above would show nothing."""
    plan = plan_named(name)
    off, storage, hybrid = (placement_of(name, mode, ranks) for mode in MODES)
    assert 0 < plan.offsets[-1] < plan.units
    assert any(not torch.equal(hybrid.permutation(i), off.permutation(i)) for i in range(len(hybrid.owners)))
    assert hybrid.compute_imbalance < storage.compute_imbalance == off.imbalance
    assert hybrid.remote_units < storage.remote_units
    assert storage.imbalance < off.imbalance
    assert hybrid.remote_units == (2 if (ranks, name) == (4, "lopsided") else 0)


def painted(computed: list[int]) -> Placement:
    """A balanced placement of units that are numbered rank by rank."""
    numbers = torch.arange(sum(computed)).split(computed)
    return Placement("storage", (), tuple(numbers), balance_storage(computed))


# nobody has anything, one has all, one too many, several senders and receivers, receivers that keep nothing
COUNTS = [[0, 0, 0], [7, 0, 0], [0, 0, 1], [3, 2, 2], [2, 3, 2], [9, 1, 5], [0, 8, 5], [1, 1, 9], [4, 4, 4]]


def exchange_painted(rank: int, ranks: int) -> Results:
    """Every unit carries its own number, in several dtypes and batches."""
    results: Results = {}
    for case, computed in enumerate(COUNTS):
        placement = painted(computed)
        exchange = Exchange(placement, rank)
        numbers = placement.units[rank]
        stored = exchange.store(numbers[:, None].expand(-1, 5))
        assert torch.equal(exchange.load(stored), numbers[:, None].expand(-1, 5))
        results[str(case)] = stored
        for dtype, lead in ((torch.bfloat16, (3,)), (torch.uint8, (2, 2)), (torch.float32, (1,)), (torch.int8, (0,))):
            generator = torch.Generator().manual_seed(case)
            everything = torch.randint(0, 100, (*lead, sum(computed), 6), generator=generator).to(dtype)
            # a view whose units do not lie side by side
            mine = everything[..., numbers, ::2]
            stored = exchange.store(mine)
            assert stored.shape == (*lead, placement.slot_width, 3)
            order = results[str(case)][: placement.stored[rank], 0]
            assert torch.equal(stored[..., : len(order), :], everything[..., order, ::2])
            assert not stored[..., len(order) :, :].any()
            assert torch.equal(exchange.load(stored), mine)
    return results


def test_every_unit_is_stored_once_where_it_belongs() -> None:
    stored = run_ranks(exchange_painted, 3)
    for case, computed in enumerate(COUNTS):
        placement = painted(computed)
        for rank, units in enumerate(figure9.storage(computed)):
            got = stored[rank][str(case)]
            wanted = [int(placement.units[source][i]) for source, i in units]
            assert got[: len(wanted), 0].tolist() == wanted, f"{computed}, rank {rank}"
            assert got.eq(got[:, :1]).all()
            assert not got[len(wanted) :].any()
            assert len(got) == -(-sum(computed) // 3)


def find(checkpoints: list[int], limit: int) -> int:
    return max((depth for depth in checkpoints if depth <= limit), default=0)


def agree(rank: int, ranks: int) -> Results:
    exchange = Exchange(painted([1] * ranks), rank)
    # rank 1 has lost its checkpoint at 32, rank 2 those at 48 and 16
    checkpoints = {1: [16, 48, 64], 2: [32, 64]}.get(rank, [16, 32, 48, 64])
    answers = [exchange.agree(find(checkpoints, 63), [4, 7])]
    while True:
        answers.append(exchange.agree(find(checkpoints, answers[-1]), [4, 7]))
        if answers[-1] == answers[-2]:
            break
    for victims in ([4, 7, 9], [7, 4], []):
        with pytest.raises(IntegrityError, match=r"ranks \[2\] of 3"):
            exchange.agree(8, victims if rank == 2 else [4, 7])
    with pytest.raises(CheckpointMismatchError, match=r"computes 1 units .* \[2, 3\]"):
        exchange.store(torch.zeros(2, 3))
    with pytest.raises(ConfigError, match=f"rank {rank} of 3; the placement wants rank {rank} of 4"):
        Exchange(painted([1] * 4), rank)
    return {"answers": torch.tensor(answers)}


def test_ranks_agree_or_fail_together() -> None:
    for results in run_ranks(agree, 3):
        assert results["answers"].tolist() == [32, 16, 0, 0]


def fail_on_one(rank: int, ranks: int) -> Results:
    if rank == 1:
        raise ValueError("planted")
    dist.barrier()
    return {}


def test_a_failing_rank_fails_the_run() -> None:
    with pytest.raises(AssertionError, match="planted"):
        run_ranks(fail_on_one, 2)


def test_one_rank_needs_no_group() -> None:
    exchange = Exchange(placement_of("horizons", "hybrid", 1), 0)
    units = torch.rand(exchange.placement.computed[0], 4)
    assert torch.equal(exchange.load(exchange.store(units)), units)
    assert exchange.agree(12, [1]) == 12
    assert exchange.remote_bytes == 0
    with pytest.raises(CheckpointMismatchError, match="stores"):
        exchange.load(units[1:])
