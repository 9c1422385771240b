"""Spans of one forward as the tensors that a host runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from holdover.engine.step import Advance, KVMode, Span, Step, Tap
from holdover.state import SlotPool
from holdover.store import KVPool


def inputs_of(spans: Sequence[Span], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and their positions, int64 ``[B, T]`` each."""
    tokens = torch.tensor([list(span.tokens) for span in spans], device=device)
    return tokens, torch.tensor([list(span.places) for span in spans], device=device)


def step_of(
    spans: Sequence[Span],
    slots: SlotPool,
    kv_pool: KVPool,
    *,
    kv: KVMode = KVMode.APPEND,
    advance: Advance = Advance.WRITE,
    tap: Tap | None = None,
) -> Step:
    """The step that runs ``spans`` with each one's rows handed over as they are.

    Args:
        spans: equally many tokens each.
        slots: the recurrent state.
        kv_pool: the attention rows.
        kv: what becomes of the keys and values computed.
        advance: how recurrent state is advanced.
        tap: see `Step`.
    """
    device = slots.device
    rows, length = [span.rows[: span.end].to(device) for span in spans], len(spans[0].tokens)
    written = kv is not KVMode.DISCARD and bool(kv_pool.layout.layers)
    places = None
    if not all(span.is_consecutive for span in spans):
        places = torch.tensor([list(span.places) for span in spans], device=device)
    own = [r[-length:] for r in rows] if places is None else [r[p] for r, p in zip(rows, places, strict=True)]
    return Step(
        slot_pool=slots,
        kv_pool=kv_pool,
        slots=torch.tensor([span.slot for span in spans], device=device),
        rows=rows,
        new_rows=torch.cat(own) if written else None,
        advance=advance,
        tap=tap,
        positions=places,
    )
