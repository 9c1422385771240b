"""What decode is compared with computes what our definition says; in small shapes, kernels interpreted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.interpreter import require_triton

require_triton()
# a source distribution comes without the benchmarks
arms = pytest.importorskip("benchmarks.decode_arms")

from benchmarks.peers.compiled import plain_step  # noqa: E402
from benchmarks.peers.peer import Peer, Token, check, layerwise, peer_arm  # noqa: E402
from benchmarks.peers.sglang import sglang, sglang_replay  # noqa: E402
from benchmarks.peers.staged import Staged, staged  # noqa: E402
from benchmarks.peers.vllm import vllm, vllm_replay  # noqa: E402
from holdover.ops.deferred import torch as plain  # noqa: E402
from holdover.ops.deferred.family import FAMILIES  # noqa: E402
from holdover.ops.deferred.log import Cursor  # noqa: E402

DELTA = ("gdn", "kda")
on_device = {"device": arms.DEVICE}


def shape_of(name: str, key_heads: int = 2, width: int = 16) -> Any:
    return arms.Shape(FAMILIES[name], 2, 1 if name == "mamba2" else key_heads, width, width)


def errors(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", FAMILIES)
def test_plain_step_is_the_definition(name: str) -> None:
    shape = shape_of(name, key_heads=1)
    token = Token.draw(shape, 3, seed=1)
    states = torch.randn(3, shape.heads, shape.d_k, shape.d_v, **on_device)
    expected, after = arms.dense_definition(shape)(states.double(), token.arguments)
    out = plain_step(shape)(states, *token.arguments)
    assert errors(out, expected) < 5e-3  # bf16 outputs
    assert errors(states, after) < 1e-6


@pytest.mark.parametrize("name", DELTA)
@pytest.mark.parametrize("key_heads", [1, 2])
def test_staged_in_mixed_phases(name: str, key_heads: int) -> None:
    shape, interval, slots = shape_of(name, key_heads), 4, torch.tensor([3, 0, 1, 2], **on_device)
    layout = shape.layout(interval)
    base, log = torch.randn(5, shape.heads, shape.d_k, shape.d_v, **on_device), layout.allocate(5, arms.DEVICE)
    base[[0, 4]] = torch.nan
    for tensor in (log.keys, log.values, log.decays, log.scales):
        tensor.fill_(torch.nan)
    length = torch.zeros(5, dtype=torch.int32, **on_device)
    cursor = Cursor(length, torch.full_like(length, layout.capacity))
    method, definition = Staged(log, len(slots)), arms.dense_definition(shape)
    active = slots != 0

    def step(now: torch.Tensor, seed: int) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        arguments = Token.draw(shape, len(slots), seed).arguments
        out = method.step(base, cursor, now, arguments)
        plain.advance(cursor, now, layout.capacity)
        return out, arguments

    for t in range(interval):  # sequences join one after the other
        step(torch.where(slots > t, slots, 0), seed=100 + t)
    assert cursor.length[1:4].tolist() == [1, 2, 3]
    state = plain.logical(base, log, cursor, slots[active]).double()
    for t in range(interval + 2):
        out, arguments = step(slots, seed=t)
        expected, state = definition(state, tuple(x[active] for x in arguments))
        assert errors(out[active], expected) < 5e-3
        assert not out[~active].any()
        assert errors(plain.logical(base, log, cursor, slots[active]), state) < 1e-6
    assert base[[0, 4]].isnan().all()


@pytest.mark.parametrize("name", DELTA)
def test_staged_agrees_after_a_cycle(name: str) -> None:
    shape = shape_of(name)
    assert check(staged(shape, 4), shape, batch=2) < 5e-3


def test_a_wrong_method_is_not_timed() -> None:
    shape = shape_of("gdn")

    def layer(base: torch.Tensor, cursor: Cursor) -> Any:
        return lambda token: (plain_step(shape)(base[1:], *token.arguments) * 1.1, base[1:])

    with pytest.raises(LookupError, match="off by"):
        peer_arm(arms.Cell.make(shape, 2, span=0), Peer("scaled", layerwise(layer)))


# they are compiled or nothing: the interpreter knows neither names that stand for `tl.exp` nor products in bf16
@pytest.mark.gpu
@pytest.mark.parametrize(
    ("module", "make", "name"),
    [
        ("vllm", vllm, "gdn"),
        ("vllm", vllm, "kda"),
        ("vllm", vllm, "mamba2"),
        ("vllm", lambda shape: vllm_replay(shape, 4), "mamba2"),
        ("sglang", lambda shape: sglang(shape, cuda=False), "gdn"),
        ("sglang", lambda shape: sglang(shape, cuda=False), "kda"),
        ("sglang", lambda shape: sglang_replay(shape, 4), "gdn"),
        ("sglang", lambda shape: sglang_replay(shape, 4), "kda"),
    ],
)
def test_kernels_of_others_are_called_as_they_want(module: str, make: Any, name: str) -> None:
    pytest.importorskip(module)
    shape = shape_of(name, width=32)
    assert check(make(shape), shape, batch=2) < 1e-2
