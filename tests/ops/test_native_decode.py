"""What decode runs in C, against its definitions: products of few rows, attention of one token, a recurrent layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from holdover.ops.attention import naive
from holdover.ops.attention.torch import paged_attention
from holdover.ops.conv import naive as conv
from holdover.ops.linear import gated_mlp, linear
from holdover.ops.native import library
from holdover.ops.native import linear as native
from holdover.ops.native.attention import attend_one
from holdover.ops.native.elementwise import Activation
from holdover.ops.native.mixing import Mixing
from holdover.ops.native.parameters import GatedNorm, Gating
from holdover.ops.native.recurrence import Family
from holdover.ops.recurrence.gdn import naive as gdn
from holdover.ops.recurrence.kda import naive as kda
from holdover.ops.recurrence.mamba2 import naive as mamba2
from tests.helpers import assert_close

SLOTS = torch.tensor([3, 0, 4])


@pytest.fixture
def two_counts_of_threads() -> Callable[[Callable[[], Tensor]], list[Tensor]]:
    def run(compute: Callable[[], Tensor]) -> list[Tensor]:
        before, found = torch.get_num_threads(), []
        try:
            for count in (1, 3):
                torch.set_num_threads(count)
                found.append(compute())
        finally:
            torch.set_num_threads(before)
        return found

    return run


@pytest.mark.parametrize("shape", [(1,), (2, 1), (3,), (4, 1), (7,), (2, 8)])
@pytest.mark.parametrize(("width", "outputs"), [(1, 1), (8, 3), (15, 2), (64, 24), (67, 50), (192, 25)])
def test_linear_is_its_definition(shape: tuple[int, ...], width: int, outputs: int) -> None:
    # rows that do not lie one after the other
    x, weight = torch.randn(*shape, width + 3)[..., 1 : width + 1], torch.randn(outputs, width)
    out = native.linear(x, weight)
    assert_close("product", out, x.double() @ weight.double().mT, 1e-5)


def test_a_row_does_not_depend_on_the_others() -> None:
    x, weight = torch.randn(7, 67), torch.randn(50, 67)
    assert torch.equal(native.linear(x, weight), torch.cat([native.linear(row, weight) for row in x.split(1)]))


@pytest.mark.parametrize("shape", [(1,), (3, 1), (8, 1)])
@pytest.mark.parametrize(("width", "inner", "outputs"), [(5, 3, 7), (64, 40, 64)])
def test_mlp_is_its_definition(shape: tuple[int, ...], width: int, inner: int, outputs: int) -> None:
    x, up, down = torch.randn(*shape, width), torch.randn(2 * inner, width), torch.randn(outputs, inner)
    gate, value = (x.double() @ up.double().mT).chunk(2, dim=-1)
    assert_close("mlp", native.gated_mlp(x, up, down), (F.silu(gate) * value) @ down.double().mT, 1e-5)


@pytest.mark.parametrize("rows", [native.MOST_ROWS, native.MOST_ROWS + 1])
def test_few_rows_and_many_give_the_same(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, up, down, bias = torch.randn(rows, 24), torch.randn(32, 24), torch.randn(24, 16), torch.randn(32)
    found = [linear(x, up), linear(x, up, bias), gated_mlp(x, up, down)]
    monkeypatch.setattr(library, "available", lambda: False)
    for got, ref in zip(found, [linear(x, up), linear(x, up, bias), gated_mlp(x, up, down)], strict=True):
        assert_close("product", got, ref, 1e-5)


def test_what_torch_makes_by_default_is_no_concern() -> None:
    x, weight = torch.randn(3, 24), torch.randn(8, 24)
    wanted = native.linear(x, weight)
    torch.set_default_dtype(torch.float64)
    try:
        found = native.linear(x, weight)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.dtype is torch.float32
    assert torch.equal(found, wanted)


def test_weights_of_other_widths_are_refused() -> None:
    x = torch.zeros(2, 4)
    with pytest.raises(ValueError, match="want"):
        native.linear(x, torch.zeros(3, 5))
    with pytest.raises(ValueError, match="want"):
        native.gated_mlp(x, torch.zeros(6, 4), torch.zeros(4, 4))


def cached(lengths: list[int], heads: int, d_k: int, d_v: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Planes whose rows are NaN but for those of the sequences, which lie scattered."""
    order = torch.randperm(sum(lengths) + 5)
    rows = list(order[: sum(lengths)].split(lengths))
    planes = [torch.full((len(order), heads, width), float("nan")) for width in (d_k, d_v)]
    for plane in planes:
        plane[torch.cat(rows)] = torch.randn(sum(lengths), heads, plane.shape[-1])
    return planes[0], planes[1], rows


@pytest.mark.parametrize("lengths", [[1], [5, 1, 17], [255, 256, 257, 700]])
@pytest.mark.parametrize(("heads", "group", "d_k", "d_v"), [(1, 3, 64, 64), (2, 1, 5, 7), (2, 4, 24, 16)])
def test_attention_is_its_definition(
    lengths: list[int], heads: int, group: int, d_k: int, d_v: int, two_counts_of_threads
) -> None:
    keys, values, rows = cached(lengths, heads, d_k, d_v)
    q = 4 * torch.randn(len(lengths), 1, d_k, heads * group).transpose(2, 3)
    one, three = two_counts_of_threads(lambda: attend_one(q, keys, values, rows, 0.3))
    assert torch.equal(one, three)
    assert torch.equal(one, paged_attention(q, keys, values, rows, 0.3))
    assert_close("attention", one, naive.paged_attention(q.double(), keys.double(), values.double(), rows, 0.3), 1e-5)


def test_attention_is_torch_s_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, values, rows = cached([300, 2], 2, 16, 16)
    q = torch.randn(2, 1, 4, 16)
    own = paged_attention(q, keys, values, rows, 0.3)
    monkeypatch.setattr(library, "available", lambda: False)
    assert_close("attention", own, paged_attention(q, keys, values, rows, 0.3), 1e-5)


def test_attention_refuses_what_it_would_read_elsewhere() -> None:
    keys, values, rows = cached([4, 2], 2, 8, 8)
    q = torch.randn(2, 1, 4, 8)
    for wrong in (-1, len(keys)):
        with pytest.raises(IndexError, match="not all among"):
            attend_one(q, keys, values, [rows[0], torch.tensor([wrong])], 1.0)
    with pytest.raises(ValueError, match="at least one row"):
        attend_one(q, keys, values, [rows[0], rows[1][:0]], 1.0)
    with pytest.raises(ValueError, match="at least one row"):
        attend_one(q, keys, values, rows[:1], 1.0)
    with pytest.raises(ValueError, match="want int64"):
        attend_one(q, keys, values, [x.int() for x in rows], 1.0)
    with pytest.raises(ValueError, match="multiple of the 2 KV heads"):
        attend_one(q[:, :, :3], keys, values, rows, 1.0)
    with pytest.raises(ValueError, match="want"):
        attend_one(q, keys[:-1], values, rows, 1.0)
    with pytest.raises(ValueError, match="in one piece"):
        attend_one(q[..., :4], keys[..., :4], values, rows, 1.0)


def layer(family: Family, d_k: int, d_v: int) -> tuple[Mixing, dict[str, Tensor]]:
    """A layer of 6 heads over 2 key heads (KDA: 6), and inputs of 3 sequences as views of one projection."""
    is_kda, is_mamba = family is Family.KDA, family is Family.MAMBA2
    heads, key_heads, width = 6, 6 if is_kda else 2, 4
    channels = 2 * key_heads * d_k + heads * d_v
    gating = None if is_kda else Gating(torch.randn(6), None if is_mamba else -torch.rand(6), 0.01, 1.5, 2.0)
    norm = None if is_mamba else GatedNorm(torch.randn(d_v), 1e-5, Activation.SIGMOID if is_kda else Activation.SILU)
    mixing = Mixing(
        family,
        (heads, key_heads, d_k, d_v),
        torch.randn(width, channels).mT,
        torch.randn(channels) if is_mamba else None,
        gating,
        norm,
        *((-torch.rand(6), torch.randn(6)) if is_mamba else ()),
    )
    parts = torch.randn(3, channels + heads * d_v + 2 * heads).split([channels, heads * d_v, heads, heads], dim=-1)
    inputs = {"channels": parts[0], "decay": parts[2]}
    if is_kda:
        inputs["decay"] = -torch.rand(3, heads, d_k)
    if not is_mamba:
        inputs |= {"strength": parts[3].sigmoid() if is_kda else parts[3], "gate": parts[1]}
    return mixing, inputs


def part_by_part(m: Mixing, histories: Tensor, states: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """The definition in the pools' dtype, advancing their slots."""
    (heads, key_heads, d_k, d_v), given = m.sizes, {name: x.to(states.dtype) for name, x in inputs.items()}
    keys, values = (key_heads, d_k), (heads, d_v)
    order = [values, keys, keys] if m.family is Family.MAMBA2 else [keys, keys, values]
    y, histories[SLOTS] = conv.convolution(
        histories[SLOTS], given["channels"].unsqueeze(1), m.weight.double(), _wide(m.conv_bias), "silu"
    )
    parts = y.split([a * b for a, b in order], dim=-1)
    one, two, three = (part.unflatten(-1, shape) for part, shape in zip(parts, order, strict=True))
    decay, strength = given["decay"].unsqueeze(1), given["strength"].unsqueeze(1) if "strength" in given else None
    if m.gating is not None:
        steps = F.softplus(decay + m.gating.bias).clamp(m.gating.low, m.gating.high)
        decay = steps if m.gating.rate is None else m.gating.rate * steps
        strength = None if strength is None else m.gating.scale * strength.sigmoid()
    if m.family is Family.MAMBA2:
        out, states[SLOTS] = mamba2.recurrence(states[SLOTS], one, decay, m.rate, two, three, m.skip)
        return out.flatten(1)
    family = gdn if m.family is Family.GDN else kda
    out, states[SLOTS] = family.recurrence(states[SLOTS], one, two, three, decay, strength)
    out = out / (out.square().mean(-1, keepdim=True) + m.norm.eps).sqrt() * m.norm.weight
    activation = F.silu if m.norm.activation is Activation.SILU else torch.sigmoid
    return out.flatten(1) * activation(given["gate"])


def _wide(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.double()


def pools(m: Mixing) -> tuple[Tensor, Tensor]:
    heads, _, d_k, d_v = m.sizes
    return torch.randn(5, m.weight.shape[1] - 1, len(m.weight)), torch.randn(5, heads, d_k, d_v)


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize(("d_k", "d_v"), [(5, 7), (16, 24), (64, 64)])
def test_a_layer_is_its_parts(family: Family, d_k: int, d_v: int, two_counts_of_threads) -> None:
    mixing, inputs = layer(family, d_k, d_v)
    histories, states = pools(mixing)
    wide = histories.double(), states.double()
    before = histories.clone(), states.clone()

    def step() -> Tensor:
        histories.copy_(before[0])
        states.copy_(before[1])
        return mixing.step(histories, states, SLOTS, **inputs)

    one, three = two_counts_of_threads(step)
    assert torch.equal(one, three)
    assert_close("readouts", one, part_by_part(mixing, *wide, inputs), 1e-5)
    assert_close("states", states, wide[1], 1e-5)
    assert torch.equal(histories, wide[0].float())
    for pool, old in zip((histories, states), before, strict=True):
        assert torch.equal(pool[[1, 2]], old[[1, 2]])


@pytest.mark.parametrize("raw", [-200.0, -20.0, 0.0, 19.9, 20.1, 200.0])
def test_gates_of_extreme_numbers(raw: float) -> None:
    mixing, inputs = layer(Family.GDN, 5, 7)
    mixing = replace(mixing, gating=Gating(torch.zeros(6), torch.full((6,), -1.0)))
    inputs |= {"decay": torch.full((3, 6), raw), "strength": torch.full((3, 6), raw)}
    histories, states = pools(mixing)
    wide = histories.double(), states.double()
    out = mixing.step(histories, states, SLOTS, **inputs)
    assert_close("readouts", out, part_by_part(mixing, *wide, inputs), 1e-5)


@pytest.mark.parametrize("family", Family)
def test_a_layer_refuses_what_it_would_write_elsewhere(family: Family) -> None:
    mixing, inputs = layer(family, 5, 7)
    histories, states = pools(mixing)
    kept = histories.clone(), states.clone()
    for wrong in ([3, 0, 5], [-1, 0, 4]):
        with pytest.raises(IndexError, match="not all among the 5 of the pool"):
            mixing.step(histories, states, torch.tensor(wrong), **inputs)
    for name, x in inputs.items():
        with pytest.raises(ValueError, match="want"):
            mixing.step(histories, states, SLOTS, **(inputs | {name: torch.cat([x, x], dim=-1)}))
        if name not in ("channels", "decay"):
            with pytest.raises(ValueError, match="want"):
                mixing.step(histories, states, SLOTS, **(inputs | {name: None}))
    with pytest.raises(ValueError, match="slots of the pool"):
        mixing.step(histories[:, 1:], states, SLOTS, **inputs)
    with pytest.raises(ValueError, match="slots of the pool"):
        mixing.step(histories, states[:, 1:], SLOTS, **inputs)
    assert torch.equal(histories, kept[0])
    assert torch.equal(states, kept[1])


@pytest.mark.parametrize(
    "changed",
    [
        {"sizes": (6, 4, 5, 7)},
        {"sizes": (6, 2, 5, 8)},
        {"weight": torch.zeros(62, 17)},
        {"weight": torch.zeros(62, 4)},
        {"conv_bias": torch.zeros(1)},
        {"gating": Gating(torch.zeros(1))},
        {"gating": Gating(torch.zeros(6), torch.zeros(6, dtype=torch.float64))},
        {"norm": GatedNorm(torch.zeros(1), 1e-5, Activation.SILU)},
        {"skip": torch.zeros(6)},
        {"family": Family.KDA, "sizes": (2, 2, 5, 21)},
    ],
)
def test_parameters_that_do_not_fit_are_refused(changed: dict[str, object]) -> None:
    mixing, _ = layer(Family.GDN, 5, 7)
    with pytest.raises(ValueError, match="want"):
        replace(mixing, **changed)
