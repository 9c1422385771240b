"""Transitions against their definition by token, and exact composition against one long run."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from holdover.arch.layout import RecurrentLayer
from holdover.chunks import naive
from holdover.chunks.transition import Affine, affine, carry, tokens_of, transition_shape
from tests.chunks.first_layer import family_of
from tests.helpers import assert_close
from tests.ops.families import CASES, RWKV6, Case

# lengths on both sides of the kernels' chunks, and of the chunks that documents are cut into
LENGTHS = [1, 2, 31, 32, 33, 70, 513]
_NAMES: dict[str, tuple[str, ...]] = {
    "gdn": ("q", "k", "v", "log_decay", "beta"),
    "kda": ("q", "k", "v", "log_decay", "beta"),
    "mamba2": ("x", "dt", "a", "b", "c", "d"),
    "rwkv6": ("r", "k", "v", "log_decay", "bonus"),
}
each_case = pytest.mark.parametrize("case", [*CASES, RWKV6], ids=lambda case: case.name)


def layer_of(case: Case) -> RecurrentLayer:
    return RecurrentLayer(0, family_of(case), case.heads, case.key_heads, case.d_k, case.d_v, "head", 8, 4)


def draw(case: Case, tokens: int, seed: int = 0) -> dict[str, Tensor]:
    """Inputs of one sequence by name; half-lives reach far beyond it."""
    arguments = case.arguments(1, tokens, seed)
    named = zip(_NAMES[family_of(case)], arguments, strict=True)
    return {name: x if i in case.constant else x[0] for i, (name, x) in enumerate(named)}


def state_after(case: Case, inputs: dict[str, Tensor], state: Tensor | None = None) -> Tensor:
    """The definition's state, in float64, ``[H, d_k, d_v]``."""
    start = torch.zeros(1, case.heads, case.d_k, case.d_v, dtype=torch.float64) if state is None else state[None]
    batched = [x if i in case.constant else x[None] for i, x in enumerate(inputs.values())]
    return case.reference(start, tuple(batched))[1][0]


def as_matrix(transition: Tensor, d_k: int) -> Tensor:
    return carry(transition.double(), torch.eye(d_k, dtype=torch.float64).expand(len(transition), d_k, d_k))


@each_case
@pytest.mark.parametrize("tokens", LENGTHS)
def test_equals_the_definition(case: Case, tokens: int) -> None:
    inputs = draw(case, tokens, seed=tokens)
    got = affine(layer_of(case), inputs)
    assert got.transition.shape == transition_shape(layer_of(case))
    wanted = naive.transition(family_of(case), case.heads, case.d_k, inputs)
    offset = state_after(case, inputs)
    for head in range(case.heads):
        # a head that forgets at once has nothing to compare relatively
        scale = max(float(wanted[head].norm()), 1e-6)
        error = float((as_matrix(got.transition, case.d_k)[head] - wanted[head]).norm())
        assert error <= 1e-5 * scale, f"head {head}: {error / scale:.1e}"
        assert_close(f"offset of head {head}", got.offset[head], offset[head], 1e-5)


@each_case
def test_applies_to_any_state(case: Case) -> None:
    inputs = draw(case, 90)
    entering = torch.randn(case.heads, case.d_k, case.d_v)
    wanted = state_after(case, inputs, entering.double())
    assert_close("state", affine(layer_of(case), inputs).apply(entering), wanted, 1e-5)


@each_case
def test_nothing_is_the_identity(case: Case) -> None:
    nothing = affine(layer_of(case), tokens_of(draw(case, 3), slice(0, 0)))
    state = torch.randn(case.heads, case.d_k, case.d_v)
    assert torch.equal(nothing.apply(state), state)


@each_case
@pytest.mark.parametrize("cuts", [(1,), (3, 4, 70), (32, 64, 96), (64, 127)])
def test_composition_equals_one_run(case: Case, cuts: tuple[int, ...]) -> None:
    """Eq. 6: however the tokens are cut, and whichever neighbours are composed first."""
    inputs = draw(case, 128)
    edges = [0, *cuts, 128]
    maps = [affine(layer_of(case), tokens_of(inputs, slice(*edge))) for edge in itertools.pairwise(edges)]
    forward, backward = maps[0], maps[-1]
    for later in maps[1:]:
        forward = later.after(forward)
    for earlier in maps[-2::-1]:
        backward = backward.after(earlier)
    wanted = state_after(case, inputs)
    for composed in (forward, backward):
        for head in range(case.heads):
            assert_close(f"head {head}", composed.offset[head], wanted[head], 1e-5)


@pytest.mark.parametrize("case", [c for c in CASES if family_of(c) in ("gdn", "kda")], ids=lambda c: c.name)
def test_a_transposed_transition_is_noticed(case: Case) -> None:
    """On heads that remember; one that forgets within a few tokens hides it."""
    inputs = draw(case, 128)
    first, second = (affine(layer_of(case), tokens_of(inputs, part)) for part in (slice(0, 64), slice(64, 128)))
    wrong = Affine(second.transition.mT, second.offset).after(first).offset
    wanted = state_after(case, inputs)
    errors = (wrong - wanted).flatten(1).norm(dim=1) / wanted.flatten(1).norm(dim=1)
    assert float(errors.max()) > 0.02
    order = second.transition @ first.transition - first.transition @ second.transition
    assert float(order.norm()) > 0.1 * float(first.transition.norm())
