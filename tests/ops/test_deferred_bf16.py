"""A base in bf16: reading it is exact, and a fold rounds once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from holdover.errors import ConfigError
from holdover.ops.deferred import traffic
from holdover.ops.deferred.family import FAMILIES
from holdover.ops.deferred.log import LogLayout
from tests.helpers import assert_close
from tests.ops.families import Case
from tests.ops.test_deferred import DEVICE, RTOL, Pool, each_case, each_form, small

# half a unit in the last place of a significand of 8 bits
ROUNDING = 2**-8


def assert_rounded_once(name: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    # Triton's interpreter cuts where a GPU rounds
    rounding = 2 * ROUNDING if name == "triton" and DEVICE.type == "cpu" else ROUNDING
    error, size = (found.cpu().double() - expected).abs(), expected.abs()
    assert (error <= rounding * size + RTOL * size.amax()).all()


def half(pool: Pool) -> Pool:
    layout = replace(pool.layout, base_dtype=torch.bfloat16)
    return replace(pool, layout=layout, base=pool.base.bfloat16(), log=replace(pool.log, layout=layout))


@each_case
@each_form
def test_a_cycle_reads_exactly_and_rounds_once(case: Case, name: str) -> None:
    case, slots, interval = small(case), [1, 2, 3], 4
    pool = half(Pool.make(case, name, interval, 5))
    states = pool.base[slots].float().cpu()
    arguments = case.arguments(3, interval, seed=3)
    expected, dense = case.reference(states, arguments)
    for t in range(interval):
        out = pool.step(slots, case.at(arguments, t))
        # nothing was rounded yet: not even the fold's own output
        assert_close(f"output {t}", out, expected[:, t], RTOL)
    assert pool.cursor.length.tolist()[1:4] == [0, 0, 0]
    assert_rounded_once(name, pool.base[slots], dense)


@each_case
@each_form
def test_drafts_and_copies_read_it_too(case: Case, name: str) -> None:
    case = small(case)
    pool = half(Pool.make(case, name, 8, 4))
    states = pool.base[[2]].float().cpu()
    arguments = case.arguments(1, 3, seed=4)
    expected, dense = case.reference(states, arguments)
    assert_close("outputs", pool.verify([2], arguments), expected, RTOL)
    sources, targets = (torch.tensor([slot], device=pool.base.device) for slot in (2, 3))
    pool.form.materialise(pool.base, pool.log, pool.cursor, sources, targets)
    assert_rounded_once(name, pool.base[3], dense[0])


def test_it_halves_the_traffic_and_nothing_else_is_taken() -> None:
    layout = LogLayout(FAMILIES["gdn"], 2, 2, 8, 8, 4)
    whole, narrow = (traffic.dense(replace(layout, base_dtype=d), 3) for d in (torch.float32, torch.bfloat16))
    assert whole.total == 2 * narrow.total
    with pytest.raises(ConfigError, match="fp32 or bf16"):
        replace(layout, base_dtype=torch.float16)
