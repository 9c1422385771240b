"""How far a state is from float64 after a long rollout, by the dtype of its base and the merge interval.

    python benchmarks/drift.py [--quick]

Half-lives of the heads, or of the key channels, run from one token to 1e5. Runs anywhere; a GPU only makes it faster.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

import torch
from torch import Tensor

from benchmarks import common
from benchmarks.common import Row
from holdover.ops.deferred.family import FAMILIES, Family
from holdover.ops.deferred.log import Cursor, LogLayout
from holdover.ops.forms import deferred_form

BATCH, HEADS, WIDTH = 4, 8, 64
INTERVALS = (1, 2, 4, 8, 16, 64)


@dataclass(frozen=True)
class Rollout:
    """Tokens of one family, ``[B, T, ...]``, and what the definition makes of them in float64.

    Attributes:
        arguments: of the family's dense form.
        outputs: ``[B, T, H, d_v]``.
        state: ``[B, H, d_k, d_v]``.
    """

    family: Family
    arguments: tuple[Tensor, ...]
    outputs: Tensor
    state: Tensor


def roll_out(name: str, tokens: int, device: torch.device) -> Rollout:
    arguments = _draw(name, tokens)
    naive = import_module(f"holdover.ops.recurrence.{name}.naive")
    start = torch.zeros(BATCH, HEADS, WIDTH, WIDTH, dtype=torch.float64)
    outputs, state = naive.recurrence(start, *(x.double() for x in arguments))
    return Rollout(FAMILIES[name], tuple(x.to(device) for x in arguments), outputs, state)


def _draw(name: str, tokens: int) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(0)
    key, gate = (BATCH, tokens, HEADS, WIDTH), (BATCH, tokens, HEADS)
    # what bf16 activations hold, so that only the state rounds
    q, k, v = (torch.randn(key, generator=draw).bfloat16().float() for _ in range(3))
    strength = 0.5 + torch.rand(gate, generator=draw)
    if name in ("kda", "rwkv6"):
        rates = -0.7 / torch.logspace(0, 5, HEADS * WIDTH).view(HEADS, WIDTH)
        decay = rates * strength.unsqueeze(-1)
    else:
        rates = -0.7 / torch.logspace(0, 5, HEADS)
        decay = rates * strength
    if name == "mamba2":
        return v, strength, rates, k / WIDTH**0.5, q, torch.randn(HEADS, generator=draw)
    if name == "rwkv6":
        return q, k / WIDTH**0.5, v, decay, torch.randn(HEADS, WIDTH, generator=draw)
    return q, k, v, decay, strength / 2


def drift(rollout: Rollout, base_dtype: torch.dtype, interval: int, device: torch.device) -> Row:
    family, form = rollout.family, deferred_form(device)
    layout = LogLayout(family, HEADS, HEADS, WIDTH, WIDTH, interval, base_dtype=base_dtype)
    base = torch.zeros(BATCH + 1, HEADS, WIDTH, WIDTH, dtype=base_dtype, device=device)
    log, slots = layout.allocate(BATCH + 1, device), torch.arange(1, BATCH + 1, device=device)
    length = torch.zeros(BATCH + 1, dtype=torch.int32, device=device)
    cursor = Cursor(length, torch.full_like(length, layout.capacity))
    inputs = family.pack(*rollout.arguments)
    outputs = []
    for t in range(inputs.v.shape[1]):
        outputs.append(form.step(base, log, cursor, slots, inputs.at(t)).cpu())
        form.advance(cursor, slots, layout.capacity)
    form.fold(base, log, cursor, slots)
    found, half = torch.stack(outputs, dim=1), len(outputs) // 2
    return {
        "op": family.name,
        "base_dtype": str(base_dtype).removeprefix("torch."),
        "merge_interval": interval,
        "tokens": len(outputs),
        "output_error_first_half": _error(found[:, :half], rollout.outputs[:, :half]),
        "output_error_last_half": _error(found[:, half:], rollout.outputs[:, half:]),
        "state_error": _error(base[1:].float().cpu(), rollout.state),
    }


def _error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


def show(rows: Sequence[Row]) -> None:
    columns = ["op, base", "M", "output, first half", "last half", "state"]
    lines = [
        [f"{row['op']} {row['base_dtype']}", str(row["merge_interval"])]
        + [f"{row[name]:.1e}" for name in ("output_error_first_half", "output_error_last_half", "state_error")]
        for row in rows
    ]
    common.print_table("relative errors against float64", columns, lines)


def main() -> int:
    args = common.arguments("drift", __doc__).parse_args()
    torch.set_num_threads(args.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokens, rows = 512 if args.quick else 4096, []
    cells = [(d, m) for d in (torch.float32, torch.bfloat16) for m in INTERVALS]
    with common.progress("rollouts", len(FAMILIES) * len(cells)) as advance:
        for name in FAMILIES:
            rollout = roll_out(name, tokens, device)
            for base_dtype, interval in cells:
                rows.append(drift(rollout, base_dtype, interval, device))
                advance()
    show(rows)
    common.write_results(args.out, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
