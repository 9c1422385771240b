from __future__ import annotations

import math

import torch

from holdover.chunks import StateErrors, state_errors
from holdover.state import SlotPool
from tests.state.build import MIXED, advance


def two_states(tokens: int = 4) -> SlotPool:
    pool = SlotPool(MIXED, 2)
    for slot in (1, 2):
        pool.reset(slot, b"model")
        advance(pool, slot, range(tokens))
    return pool


def test_one_deep_layer_is_not_averaged_away() -> None:
    pool = two_states()
    last = MIXED.layers[-1].index
    pool.temporal(last)[1].mul_(1.29)
    errors = state_errors(pool, 1, 2)
    assert list(errors.layers) == [layer.index for layer in MIXED.layers]
    assert errors.worst[0] == last
    assert math.isclose(errors.worst[1], 0.29, rel_tol=1e-5)
    assert all(error == 0 for index, error in errors.layers.items() if index != last)


def test_relative_to_the_true_state() -> None:
    pool = two_states()
    pool.temporal(0)[1].mul_(3)
    assert math.isclose(state_errors(pool, 1, 2).layers[0], 2.0, rel_tol=1e-6)
    assert math.isclose(state_errors(pool, 2, 1).layers[0], 2 / 3, rel_tol=1e-6)


def test_states_that_have_no_size() -> None:
    pool = two_states()
    pool.reset(2, b"model")
    assert state_errors(pool, 1, 2).worst[1] == math.inf
    pool.reset(1, b"model")
    assert state_errors(pool, 1, 2).worst[1] == 0


def test_what_is_not_a_number_is_the_worst() -> None:
    pool = two_states()
    pool.temporal(3)[1][0, 0, 0] = torch.nan
    assert state_errors(pool, 1, 2).worst[0] == 3
    assert StateErrors({0: math.inf, 3: math.nan, 5: 1.0}).worst[0] == 3
