"""How far two engines' greedy answers to the same prompts agree."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.common import Row


def compare(reference: Sequence[Row], other: Sequence[Row]) -> Row:
    """Compare answers up to and including the first token that differs: behind it the inputs are others.

    Args:
        reference: of each prompt, ``ids``, and ``logprobs`` of the likeliest tokens at each position, by id.
        other: the same prompts' from another engine.

    Returns:
        ``positions`` that were compared, those that ``differ`` (at most one a prompt), the largest ``gap`` there
        between the reference's log probabilities of both choices, ``unlisted`` differences whose other choice is not
        among its likeliest, and ``drift``, ``drift_max``: median and maximum difference of log probabilities of equal
        choices.
    """
    positions, gaps, unlisted, drifts = 0, list[float](), 0, list[float]()
    for ours, theirs in zip(reference, other, strict=True):
        for i, (a, b) in enumerate(zip(ours["ids"], theirs["ids"], strict=True)):
            positions += 1
            before, after = ours["logprobs"][i], theirs["logprobs"][i]
            if a == b:
                drifts.append(abs(before[str(a)] - after[str(b)]))
                continue
            if str(b) in before:
                gaps.append(before[str(a)] - before[str(b)])
            else:
                unlisted += 1
            break
    ordered = sorted(drifts)
    return {
        "positions": positions,
        "differ": len(gaps) + unlisted,
        "gap": max(gaps, default=None),
        "unlisted": unlisted,
        "drift": ordered[len(ordered) // 2] if ordered else None,
        "drift_max": ordered[-1] if ordered else None,
    }
