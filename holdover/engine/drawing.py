"""Drawing tokens at random, for all sequences of a forward together.

A draw inverts the cumulative distribution at one number in [0, 1). That number follows from the sequence's seed and
the token's index alone, whatever the device, the company and the number of drafts.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch

from holdover.engine.sampling import SamplingParams

# rows whose distributions are on the device at a time
_TOGETHER = 64


class Uniforms:
    """A number in [0, 1) for each token that a sequence generates.

    Args:
        seed: makes them the same again; None for others every time.
    """

    def __init__(self, seed: int | None) -> None:
        # a negative seed is not the same as its positive
        self._random = random.Random(None if seed is None else seed & 0xFFFF_FFFF_FFFF_FFFF)
        self._known: list[float] = []

    def __getitem__(self, index: int) -> float:
        """Number of the token at ``index``."""
        while len(self._known) <= index:
            self._known.append(self._random.random())
        return self._known[index]


class Wanted(NamedTuple):
    """One draw.

    Attributes:
        params: how; its temperature is not 0.
        uniform: where the cumulative distribution is inverted, in [0, 1).
    """

    params: SamplingParams
    uniform: float


def draw(logits: torch.Tensor, wanted: Sequence[Wanted]) -> list[int]:
    """A token from each row of ``logits [n, vocabulary]`` (fp32); any token where a row is not finite.

    A row's token does not depend on the others.
    """
    groups: dict[tuple[int, bool], list[int]] = defaultdict(list)
    for row, (params, _) in enumerate(wanted):
        kept = params.top_k or 0
        is_cut = params.top_p is not None and params.top_p < 1.0
        groups[kept if kept < logits.shape[-1] else 0, is_cut].append(row)
    tokens = [0] * len(wanted)
    for (top_k, is_cut), members in groups.items():
        for start in range(0, len(members), _TOGETHER):
            rows = members[start : start + _TOGETHER]
            own = logits if len(rows) == len(wanted) else logits[rows]
            drawn = _draw(own, [wanted[row] for row in rows], top_k, is_cut=is_cut)
            for row, token in zip(rows, drawn.tolist(), strict=True):
                tokens[row] = token
    return tokens


def _draw(logits: torch.Tensor, wanted: list[Wanted], top_k: int, *, is_cut: bool) -> torch.Tensor:
    def column(values: list[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=logits.device).unsqueeze(1)

    # differences to the largest cannot overflow upwards, however low the temperature; denormals would divide as zero
    tiny = torch.finfo(torch.float32).tiny
    temperature = column([max(params.temperature or 0.0, tiny) for params, _ in wanted])
    scores, ids = (logits - logits.amax(dim=-1, keepdim=True)) / temperature, None
    if top_k:
        scores, ids = scores.topk(top_k)
    elif is_cut:
        scores, ids = scores.sort(descending=True)
    probabilities = scores.softmax(dim=-1)
    if any(params.min_p for params, _ in wanted):
        least = column([params.min_p or 0.0 for params, _ in wanted]) * probabilities.amax(dim=-1, keepdim=True)
        probabilities = probabilities * (probabilities >= least)
    if is_cut:
        # a token stays if the mass before it is short of top_p; the most probable one always does
        before = probabilities.cumsum(dim=-1) - probabilities
        top_p = column([params.top_p or 0.0 for params, _ in wanted])
        keep = before < top_p * probabilities.sum(dim=-1, keepdim=True)
        keep[:, 0] = True
        probabilities = probabilities * keep
    mass = probabilities.cumsum(dim=-1, dtype=torch.float64)
    total = mass[:, -1:]
    # short of the total, which their product may be rounded up to: what has no probability is never drawn
    at = torch.minimum(column([u for _, u in wanted], torch.float64) * total, total.nextafter(torch.zeros_like(total)))
    # a row that is not finite has no such place
    chosen = torch.searchsorted(mass, at, right=True).clamp_(max=mass.shape[-1] - 1)
    return (chosen if ids is None else ids.gather(1, chosen)).squeeze(1)
