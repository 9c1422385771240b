import math

import pytest
import torch

from tests.helpers import assert_close
from tests.ops.families import RWKV6, painted_pool

SLOTS = torch.tensor([4, 1])
RTOL = 5e-6


def random_pool() -> torch.Tensor:
    pool = painted_pool(RWKV6)
    return pool.copy_(torch.randn(pool.shape, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("tokens", [1, 2, 40])
def test_sequence_equals_definition(tokens: int) -> None:
    pool, arguments = random_pool(), RWKV6.arguments(2, tokens, seed=tokens)
    before = pool.clone()
    out_ref, state_ref = RWKV6.reference(pool[SLOTS], arguments)
    out = RWKV6.ops.sequence(pool, SLOTS, *arguments)
    assert_close("outputs", out, out_ref, RTOL)
    assert_close("state", pool[SLOTS], state_ref, RTOL)
    assert torch.equal(pool[[0, 2, 3, 5]], before[[0, 2, 3, 5]])


def test_output_is_read_before_the_update() -> None:
    """From an empty state only the token itself is seen, through its bonus; the decay plays no part."""
    r, k, v, log_decay, bonus = RWKV6.arguments(2, 1)
    for decay in (log_decay, torch.full_like(log_decay, -50.0)):
        pool = torch.zeros_like(painted_pool(RWKV6))
        out = RWKV6.ops.sequence(pool, SLOTS, r, k, v, decay, bonus)
        assert_close("outputs", out, (r * bonus * k).sum(-1, keepdim=True) * v, RTOL)
        assert_close("state", pool[SLOTS], k[:, 0, :, :, None] * v[:, 0, :, None, :], RTOL)


def test_sequence_by_hand() -> None:
    """One channel: half-life of one token, so every number can be followed."""
    r, k, v = (torch.tensor(x).view(1, 3, 1, 1) for x in ([1.0, 1.0, 2.0], [1.0, 2.0, 4.0], [8.0, 1.0, 1.0]))
    log_decay, bonus = torch.full((1, 3, 1, 1), -math.log(2)), torch.tensor([[10.0]])
    out, state = RWKV6.naive.recurrence(torch.tensor([[[[4.0]]]]), r, k, v, log_decay, bonus)
    # states before each token: 4, 4/2 + 8 = 10, 10/2 + 2 = 7; after the last one 7/2 + 4
    assert_close("outputs", out.flatten(), torch.tensor([4.0 + 80.0, 10.0 + 20.0, 2 * (7.0 + 40.0)]), 1e-6)
    assert_close("state", state.flatten(), torch.tensor([7.5]), 1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_inputs_lose_only_their_own_rounding(dtype: torch.dtype) -> None:
    pool, arguments = random_pool(), tuple(x.to(dtype) for x in RWKV6.arguments(2, 9))
    out_ref, state_ref = RWKV6.reference(pool[SLOTS], arguments)
    out = RWKV6.ops.sequence(pool, SLOTS, *arguments)
    assert out.dtype == dtype
    assert_close("outputs", out, out_ref, torch.finfo(dtype).eps)
    assert_close("state", pool[SLOTS], state_ref, RTOL)
