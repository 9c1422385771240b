"""Random layouts, plans and pools that codecs are tested on, and the bytes of slots and records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor

from holdover.arch.layout import RecurrentLayer, StateLayout
from holdover.codec import Arrangement, Codec
from holdover.retention import Element, RetentionPlan
from holdover.state import SlotPool

# the tensors are tiny: threads would only cost
torch.set_num_threads(1)

W_MAX = 16
LONG, SHORT = 100.0, 5.0


def layer(
    index: int, unit: str = "channel", heads: int = 2, d_k: int = 4, d_v: int = 8, channels: int = 6, width: int = 4
) -> RecurrentLayer:
    family = "kda" if unit == "channel" else "gdn"
    return RecurrentLayer(index, family, heads, heads, d_k, d_v, unit, channels, width)  # type: ignore[arg-type]


def plan_of(layout: StateLayout, masks: Sequence[Tensor]) -> RetentionPlan:
    """A plan that retains exactly the units of the masks."""
    horizons = [torch.where(mask, LONG, SHORT) for mask in masks]
    return RetentionPlan.select(
        horizons, W_MAX, model="m", layout=layout, gate="softplus", gate_input=-0.3, epsilon=1e-3
    )


def random_plan(layout: StateLayout, seed: int, share: float) -> RetentionPlan:
    generator = torch.Generator().manual_seed(seed)
    return plan_of(layout, [torch.rand(n, generator=generator) < share for n in layout.units_per_layer])


@st.composite
def layouts(draw: st.DrawFn) -> StateLayout:
    """Layouts of one to four layers, of equal shapes or mixed, in any dtypes."""
    small = st.integers(1, 5)
    shapes = draw(
        st.lists(
            st.tuples(st.sampled_from(["head", "channel"]), small, small, st.integers(1, 9), small, st.integers(1, 4)),
            min_size=1,
            max_size=4,
        )
    )
    if draw(st.booleans()):
        shapes = [shapes[0]] * len(shapes)
    temporal = draw(st.sampled_from(["float32", "float32", "float64", "bfloat16", "float16"]))
    conv = draw(st.sampled_from(["bfloat16", "float32"]))
    return StateLayout(tuple(layer(2 * i, *shape) for i, shape in enumerate(shapes)), conv, temporal)


@st.composite
def codecs(draw: st.DrawFn) -> Codec:
    """Codecs of every arrangement and element, with any share of the units retained, none and all included."""
    layout = draw(layouts())
    share = draw(st.sampled_from([None, 0, 0.4, 0.9, 1]))
    plan = None if share is None else random_plan(layout, draw(st.integers(0, 2**31)), share)
    assume(plan is None or plan.offsets[-1] or layout.conv_bytes)
    return Codec(layout, plan, draw(st.sampled_from(get_args(Arrangement))), draw(st.sampled_from(get_args(Element))))


def random_pool(layout: StateLayout, seed: int = 0, slots: int = 3, device: str = "cpu") -> SlotPool:
    """A pool whose slots hold different random states; magnitudes differ from row to row, and some rows are zero."""
    pool = SlotPool(layout, slots, device)
    generator = torch.Generator().manual_seed(seed)
    for spec in layout.layers:
        shape = (slots + 1, spec.heads, spec.d_k)
        size = 10 ** (6 * torch.rand(shape, generator=generator) - 4) * (torch.rand(shape, generator=generator) > 0.1)
        state = torch.randn(*shape, spec.d_v, generator=generator) * size[..., None]
        pool.temporal(spec.index).copy_(state)
        conv = pool.conv(spec.index)
        conv.copy_(torch.randn(conv.shape, generator=generator))
    return pool


def poisoned(codec: Codec, count: int = 3, device: str = "cpu") -> Tensor:
    """Records of which every byte is 0xAB."""
    return torch.full((count, codec.nbytes), 0xAB, dtype=torch.uint8, device=device)


def bytes_of(pool: SlotPool, slot: int) -> Tensor:
    """Every byte of a slot, uint8, on the CPU."""
    return torch.cat([x.contiguous().flatten().view(torch.uint8).cpu() for x in pool.tensors_of(slot)])


def is_finite(pool: SlotPool, slot: int) -> bool:
    return all(bool(x.isfinite().all()) for x in pool.tensors_of(slot))
