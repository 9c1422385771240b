"""How one problem is answered in every arm: whether rightly, how surely, and how far from a full prefill."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from holdover.evaluation.chunks.bench import Workbench
from holdover.evaluation.chunks.case import Case
from holdover.evaluation.chunks.score import is_right
from holdover.evaluation.protocols.composed.design import ALL, FULL, Arm, Design
from holdover.evaluation.retention.points import kl_divergence


@dataclass(frozen=True)
class Answer:
    """One arm's answer.

    Attributes:
        right: whether greedy decoding gives the right answer and ends there.
        nll: mean negative log-likelihood of the right answer's tokens and of its end, in nats.
        kl: KL in nats from the full prefill's distribution of the first token.
        recomputed: |U| / N, share of the chunks' tokens that was run again.
    """

    right: bool
    nll: float
    kl: float
    recomputed: float


def ask(bench: Workbench, case: Case, number: int, design: Design, end_tokens: frozenset[int]) -> dict[str, Any]:
    """Answers by the arm's name, as JSON takes them. Positions are chosen once for all initial states.

    Args:
        bench: takes the case.
        case: the problem.
        number: seed of the initialiser ``random``.
        design: the arms.
        end_tokens: each of them ends an answer.
    """
    bench.open(case, number)
    exact = bench.exact()
    found = {}
    for selection, arms in groupby(design.scored, lambda arm: arm.selection):
        positions = () if selection == FULL else selection.choose(bench)
        for arm in arms:
            logits, recomputed = exact, 1.0
            if selection != FULL:
                repair = bench.compose(positions, *_way(arm, design))
                logits, recomputed = bench.composed(), repair.ratio
            found[arm.name] = asdict(_answer(exact, logits, case, end_tokens, recomputed))
    return found


def _way(arm: Arm, design: Design) -> tuple[str, Any]:
    """Initial state and conv window; where everything is run again, both are nothing's."""
    return ("zero", "stream") if arm.selection == ALL else (arm.initialiser, design.conv_window)


def _answer(exact: Tensor, logits: Tensor, case: Case, end_tokens: frozenset[int], recomputed: float) -> Answer:
    log_p = logits.log_softmax(-1)
    said = [log_p[i, token] for i, token in enumerate(case.following[:-1])]
    # whichever token ends the answer
    ended = log_p[-1, sorted(end_tokens)].logsumexp(-1)
    nll = -float(torch.stack([*said, ended]).mean())
    return Answer(is_right(logits, case, end_tokens), nll, float(kl_divergence(exact[0], logits[0])), recomputed)
