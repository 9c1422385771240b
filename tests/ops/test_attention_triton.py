"""Decode attention in Triton against the definition in float64.

The kernels run on the GPU where there is one and in Triton's interpreter elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from holdover.errors import ConfigError
from holdover.ops.attention import naive
from tests.helpers import assert_close
from tests.interpreter import require_triton

RTOL = 1e-5
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

require_triton()

from holdover.ops.attention import triton as attention  # noqa: E402
from holdover.ops.attention.kernels.tiling import MOST_PARTS, Shapes, Tiling, choose  # noqa: E402

# a few tokens make several blocks and several parts, and some sequences more parts than others
SMALL = Tiling(block=16, rows=16, parts=3, longest=32, warps=4, stages=3)
# around one block and one part; 0 is a padding row
LENGTHS = [1, 15, 0, 16, 17, 70]
NOBODY = 2**40


def rounding(dtype: torch.dtype) -> float:
    """Weights and outputs are rounded to the inputs' dtype, in the interpreter outputs only."""
    return RTOL if dtype == torch.float32 else torch.finfo(dtype).eps


@dataclass
class Places:
    """Which rows sequences have: scattered ones, in a table whose other entries are no rows at all."""

    rows: list[Tensor]
    table: Tensor
    seats: Tensor
    lengths: Tensor

    @classmethod
    def draw(cls, lengths: Sequence[int], capacity: int | None = None) -> Places:
        capacity = capacity or max(lengths) + 5
        rows = list((torch.randperm(2 * sum(lengths) + 5)[: sum(lengths)] + 1).split(list(lengths)))
        table = torch.randint(-(2**31), 2**31 - 1, (len(lengths) + 3, capacity)).int()
        seats = torch.randperm(len(table))[: len(lengths)]
        for seat, sequence in zip(seats, rows, strict=True):
            table[seat, : len(sequence)] = sequence.int()
        # a padding row's seat is nowhere
        seats = torch.where(torch.tensor(lengths) > 0, seats, NOBODY)
        return cls(rows, table.to(DEVICE), seats.to(DEVICE), torch.tensor(lengths, dtype=torch.int32, device=DEVICE))

    def plane(self, heads: int, width: int, dtype: torch.dtype) -> Tensor:
        """A strided plane whose rows are NaN but for those that a sequence has."""
        owned = torch.cat(self.rows)
        x = torch.full((2 * len(owned) + 6, 2, heads, width), float("nan"), dtype=dtype)[:, 1]
        x[owned] = torch.randn(len(owned), heads, width).to(dtype)
        return x

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.table, self.seats, self.lengths


def on_device(x: Tensor) -> Tensor:
    """A copy with the same strides and NaN between its elements."""
    moved = torch.full((x.untyped_storage().size() // x.itemsize,), float("nan"), dtype=x.dtype, device=DEVICE)
    return moved.as_strided(x.shape, x.stride(), x.storage_offset()).copy_(x)


def check(
    tokens: int,
    lengths: Sequence[int],
    heads: tuple[int, int] = (4, 2),
    widths: tuple[int, int] = (16, 16),
    window: int | None = None,
    dtypes: tuple[torch.dtype, torch.dtype] = (torch.float32, torch.float32),
    tiling: Tiling | None = SMALL,
    rtol: float | None = None,
) -> None:
    places = Places.draw(lengths)
    keys, values = (places.plane(heads[1], width, dtypes[1]) for width in widths)
    q = torch.randn(len(lengths), heads[0], tokens, widths[0]).to(dtypes[0]).transpose(1, 2)
    moved = on_device(q), on_device(keys), on_device(values)
    out = attention.paged_attention(*moved, *places.arguments, 0.3, window, tiling)
    assert out.dtype == q.dtype
    expected = naive.paged_attention(q.double(), keys.double(), values.double(), places.rows, 0.3, window)
    assert_close("attention", out.cpu(), expected, rtol or max(map(rounding, dtypes)))
    assert all((out[i] == 0).all() for i, length in enumerate(lengths) if not length)


def check_latent(
    tokens: int,
    lengths: Sequence[int],
    heads: int = 3,
    latent_width: int = 20,
    dtype: torch.dtype = torch.float32,
    tiling: Tiling | None = SMALL,
) -> None:
    d_n, d_r, d_v = 16, 8, 12
    places = Places.draw(lengths)
    latent, rope = places.plane(1, latent_width, dtype), places.plane(1, d_r, dtype)
    q_nope, q_rope = torch.randn(len(lengths), tokens, heads, d_n + d_r).to(dtype).split([d_n, d_r], dim=-1)
    w_k = torch.randn(heads, d_n, latent_width).to(dtype)
    w_v = torch.randn(heads, d_v, latent_width).to(dtype)
    queries, planes = (q_nope.to(DEVICE), q_rope.to(DEVICE)), (latent.to(DEVICE), rope.to(DEVICE))
    out = attention.paged_latent_attention(
        *queries, *planes, *places.arguments, w_k.to(DEVICE), w_v.to(DEVICE), 0.05, tiling
    )
    assert out.dtype == dtype
    doubles = q_nope.double(), q_rope.double(), latent.double(), rope.double()
    expected = naive.paged_latent_attention(*doubles, places.rows, w_k.double(), w_v.double(), 0.05)
    # absorbed queries and mixed latents are rounded too
    assert_close("latent attention", out.cpu(), expected, 2 * rounding(dtype))


def at_least(tokens: int) -> list[int]:
    return [length and length + tokens - 1 for length in LENGTHS]


@pytest.mark.parametrize(("tokens", "tiling"), [(1, SMALL), (3, SMALL), (1, None), (4, None)])
def test_equals_definition(tokens: int, tiling: Tiling | None) -> None:
    check(tokens, at_least(tokens), tiling=tiling)


@pytest.mark.parametrize(("heads", "tokens"), [((1, 1), 3), ((3, 3), 1), ((12, 2), 1), ((24, 1), 1), ((12, 1), 3)])
def test_groups_of_heads(heads: tuple[int, int], tokens: int) -> None:
    """One tile of queries is padded, several share keys."""
    check(tokens, [tokens, tokens + 20, 0], heads, tiling=replace(SMALL, rows=16 if tokens == 1 else 32))


@pytest.mark.parametrize("widths", [(16, 24), (17, 16), (24, 40), (80, 80), (192, 128), (31, 16)])
def test_any_width(widths: tuple[int, int]) -> None:
    check(2, [2, 0, 50], widths=widths)


def test_many_new_tokens() -> None:
    check(9, [9, 30, 0])


@pytest.mark.parametrize(("tokens", "window"), [(1, 1), (1, 17), (1, 1000), (4, 2), (4, 16), (4, 40)])
def test_window(tokens: int, window: int) -> None:
    check(tokens, at_least(tokens)[-3:], window=window)


@pytest.mark.parametrize(("parts", "longest"), [(1, 16), (2, 48), (5, 16), (5, 1024)])
def test_any_number_of_parts(parts: int, longest: int) -> None:
    check(2, [0, 17, 18, 70], tiling=replace(SMALL, parts=parts, longest=longest))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 4])
def test_low_precision(dtype: torch.dtype, tokens: int) -> None:
    check(tokens, at_least(tokens), widths=(24, 40), dtypes=(dtype, dtype), tiling=None)


@pytest.mark.parametrize(
    "dtypes", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32), (torch.bfloat16, torch.float16)]
)
def test_planes_of_another_dtype(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    """Products are in the common dtype: fp32 queries see all that bf16 planes hold."""
    check(1, [30, 5], dtypes=dtypes, rtol=rounding(dtypes[0]))


@pytest.mark.parametrize(("tokens", "tiling"), [(1, SMALL), (2, SMALL), (4, None)])
def test_latent_equals_expansion(tokens: int, tiling: Tiling | None) -> None:
    check_latent(tokens, at_least(tokens), tiling=tiling)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_latent_of_many_heads(dtype: torch.dtype) -> None:
    check_latent(3, [3, 70, 0], heads=12, latent_width=32, dtype=dtype, tiling=None)


@settings(max_examples=10)
@given(
    tokens=st.integers(1, 5),
    past=st.lists(st.none() | st.integers(0, 40), min_size=1, max_size=2),
    window=st.none() | st.integers(1, 70),
    parts=st.integers(1, 6),
    longest=st.sampled_from([16, 32, 1024]),
)
def test_unequal_lengths(tokens: int, past: list[int | None], window: int | None, parts: int, longest: int) -> None:
    lengths = [0 if n is None else tokens + n for n in past]
    with torch.inference_mode():
        check(tokens, lengths, window=window, tiling=replace(SMALL, parts=parts, longest=longest))


def test_only_padding() -> None:
    places = Places.draw([4])
    lengths, nowhere = torch.zeros(3, dtype=torch.int32, device=DEVICE), torch.full((3,), NOBODY, device=DEVICE)
    plane = torch.full((9, 2, 16), float("nan"), device=DEVICE)
    q = torch.full((3, 1, 4, 16), float("nan"), device=DEVICE)
    for tiling in (SMALL, replace(SMALL, parts=1, longest=1024)):
        out = attention.paged_attention(q, plane, plane, places.table, nowhere, lengths, 1.0, tiling=tiling)
        assert (out == 0).all()


SHAPES = Shapes(batch=1, kv_heads=2, queries=8, span=4096, key_columns=128, value_columns=128, shared=False, itemsize=2)


def test_every_choice_covers_its_shapes() -> None:
    for batch, queries, columns, span, itemsize in product(
        [1, 3, 16, 64, 256], [1, 8, 72, 576], [16, 128, 256, 512, 1024], [1, 100, 4096, 1 << 20], [2, 4]
    ):
        shapes = replace(SHAPES, batch=batch, queries=queries, span=span, itemsize=itemsize)
        tiling = choose(replace(shapes, key_columns=columns, value_columns=columns))
        assert all(getattr(tiling, field.name) > 0 for field in fields(tiling))
        assert tiling.longest % tiling.block == 0
        assert span <= tiling.splits(span) * tiling.longest
        assert tiling.splits(span) <= MOST_PARTS


def test_kernels_refuse_what_they_cannot_read() -> None:
    places = Places.draw([4])
    table, seats, lengths = places.arguments
    q, plane = torch.randn(1, 1, 4, 16, device=DEVICE), torch.randn(12, 2, 16, device=DEVICE)
    for match, arguments in {
        "strides": (q, plane.mT, plane, table, seats, lengths),
        "float64": (q, plane.double(), plane.double(), table, seats, lengths),
        "query heads": (q[:, :, :3], plane, plane, table, seats, lengths),
        "int64": (q, plane, plane, table.long(), seats, lengths),
    }.items():
        with pytest.raises(ConfigError, match=match):
            attention.paged_attention(*arguments, 1.0)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(16, 2, 256), (32, 8, 128)])
@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_model_shapes(shape: tuple[int, int, int], tokens: int, dtype: torch.dtype) -> None:
    heads, kv_heads, width = shape
    check(tokens, [tokens, 0, 1000, 2049], (heads, kv_heads), (width, width), None, (dtype, dtype), None)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_model_latents(tokens: int, dtype: torch.dtype) -> None:
    check_latent(tokens, [tokens, 0, 1000, 2049], heads=32, latent_width=512, dtype=dtype, tiling=None)


@pytest.mark.gpu
def test_one_graph_serves_every_length() -> None:
    """Captured once at one set of lengths, seats and rows; replayed at others, as decode does."""
    q = torch.randn(3, 1, 4, 32, device="cuda")
    first, second = Places.draw([7, 0, 400], 500), Places.draw([500, 33, 1], 500)
    keys, values = (torch.full((2000, 2, 32), float("nan"), device="cuda") for _ in range(2))
    table, seats, lengths = (x.clone() for x in first.arguments)
    attention.paged_attention(q, keys, values, table, seats, lengths, 0.3)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention.paged_attention(q, keys, values, table, seats, lengths, 0.3)
    for places in (second, first):
        for target, source in zip((table, seats, lengths), places.arguments, strict=True):
            target.copy_(source)
        for plane in (keys, values):
            plane.fill_(float("nan"))
            owned = torch.cat(places.rows).to("cuda")
            plane[owned] = torch.randn(len(owned), 2, 32, device="cuda")
        graph.replay()
        doubles = q.double().cpu(), keys.double().cpu(), values.double().cpu()
        expected = naive.paged_attention(*doubles, places.rows, 0.3)
        assert_close("replayed", out.cpu(), expected, RTOL)
