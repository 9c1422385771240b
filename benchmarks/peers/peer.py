"""What the methods of others have in common: a token as they take it, a check against the definition, and an arm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import softplus

from benchmarks.decode_arms import DEVICE, Arm, Cell, Shape, dense_definition, draw, phases
from holdover.ops.deferred import triton as deferred
from holdover.ops.deferred.log import Cursor

# beyond this a kernel is wrong, or called in a wrong way; bf16 products stay well below
WRONG = 1e-2
# sequences of a check that takes a whole cycle
FEW = 16


@dataclass(frozen=True)
class Token:
    """One token of B sequences, both as arguments of the dense definition and as models hand it to their kernels.

    Attributes:
        arguments: of the definition's step, decay and write strength worked out of what follows.
        packed: q, k and v side by side ``[B, 2 * Hk * d_k + H * d_v]`` bf16.
        gate: what the decay is made of ``[B, H]`` bf16, or ``[B, H, d_k]`` per key channel.
        bias: is added to the gate before its softplus ``[H]`` or ``[H, d_k]`` fp32.
        a_log: logarithm of a head's rate ``[H]`` fp32.
        strength: write strength before its sigmoid ``[B, H]`` bf16.
    """

    arguments: tuple[Tensor, ...]
    packed: Tensor
    gate: Tensor
    bias: Tensor
    a_log: Tensor
    strength: Tensor

    @classmethod
    def draw(cls, shape: Shape, batch: int, seed: int) -> Token:
        """Normal gates around half-lives from one to 1e5 tokens."""
        normal = partial(torch.randn, generator=torch.Generator(DEVICE).manual_seed(seed), device=DEVICE)
        width = (shape.d_k,) if shape.family.per_key else ()
        gate = normal(batch, shape.heads, *width).bfloat16()
        bias, strength = normal(shape.heads, *width), normal(batch, shape.heads).bfloat16()
        a_log = torch.logspace(0, -5, shape.heads, device=DEVICE).mul(0.7).log()
        opened, rate = softplus(gate.float() + bias), -a_log.exp()
        drawn = draw(shape, (batch,), seed)
        if shape.family.name == "mamba2":
            v, _, _, k, q, skip = drawn
            arguments: tuple[Tensor, ...] = (v, opened, rate, k, q, skip)
        else:
            q, k, v, _, last = drawn
            log_decay = opened * (rate.unsqueeze(-1) if width else rate)
            arguments = (q, k, v, log_decay, strength.float().sigmoid() if shape.family.delta else last)
        packed = torch.cat([x.flatten(1) for x in (q, k, v)], dim=1)
        return cls(arguments, packed, gate, bias, a_log, strength)


# what a step gives: outputs [B, H, d_v], and states [B, H, d_k, d_v] as they are in memory after it
Result = tuple[Tensor, Tensor]
Step = Callable[[Token], Result]
# one token of every layer
Run = Callable[[Sequence[Token]], list[Result]]


@dataclass(frozen=True)
class Peer:
    """Another method.

    Attributes:
        method: its name in result files.
        build: makes it ready for layers' states ``[B + 1, H, d_k, d_v]``, slot 0 being the sink. The cursor's lengths
            are how many tokens a state in memory is behind; the caller moves it.
        interval: tokens from one write of a state to the next.
        transposed: it keeps ``[H, d_v, d_k]`` in the same memory.
    """

    method: str
    build: Callable[[Sequence[Tensor], Cursor], Run]
    interval: int = 1
    transposed: bool = False


def layerwise(layer: Callable[[Tensor, Cursor], Step]) -> Callable[[Sequence[Tensor], Cursor], Run]:
    """``Peer.build`` of a method whose layers share nothing but the cursor."""

    def build(bases: Sequence[Tensor], cursor: Cursor) -> Run:
        steps = [layer(base, cursor) for base in bases]
        return lambda tokens: [step(token) for step, token in zip(steps, tokens, strict=True)]

    return build


def check(peer: Peer, shape: Shape, batch: int) -> float:
    """Largest relative error of a cycle's outputs and of the state at its end, against float64; NaN stays NaN."""
    slots = torch.arange(1, batch + 1, device=DEVICE)
    base = torch.randn(batch + 1, shape.heads, shape.d_k, shape.d_v, device=DEVICE)
    base[0] = torch.nan
    cursor = phases(batch, peer.interval, fill=0)
    run = peer.build([base], cursor)
    state = (base.view(-1, shape.heads, shape.d_v, shape.d_k).mT if peer.transposed else base)[1:].double()
    errors, definition = [], dense_definition(shape)
    for t in range(peer.interval):
        token = Token.draw(shape, batch, seed=t)
        [(out, after)] = run([token])
        deferred.advance(cursor, slots, peer.interval - 1)
        expected, state = definition(state, token.arguments)
        errors.append((out.double() - expected).norm() / expected.norm())
    errors.append((after.double() - state).norm() / state.norm())
    return float(torch.stack(errors).max())


def peer_arm(cell: Cell, peer: Peer) -> Arm:
    """An arm of a method whose result was compared with the definition.

    Raises:
        LookupError: the result is another one.
    """
    # one token tells whether a kernel is right at the batch size that is timed
    error = check(peer, cell.shape, cell.batch if peer.interval == 1 else min(cell.batch, FEW))
    if not error < WRONG:
        raise LookupError(f"its result is off by {error:.1e}")
    cursor, capacity = phases(cell.batch, peer.interval, fill=None), peer.interval - 1
    run = peer.build(cell.bases, cursor)
    tokens = [Token.draw(cell.shape, cell.batch, seed=i) for i in range(cell.layers)]

    def step() -> None:
        run(tokens)
        if capacity:
            deferred.advance(cursor, cell.slots, capacity)

    fields = {"merge_interval": peer.interval if capacity else None, "fill": None, "error": error}
    return Arm(peer.method, step, fields)
