"""How many questions are answered right over composed contexts, of those that a full prefill answers (LinearKV, §4).

Answers are greedy, and right if they are the right one's tokens with an end token behind them. So they need not be
generated: greedy decoding gives exactly these tokens if each is the most likely one behind those before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from holdover.engine.chunks.gate import extras_for
from holdover.engine.chunks.request import SEAMS, Window
from holdover.engine.host import Host
from holdover.evaluation.chunks.bench import Workbench
from holdover.evaluation.chunks.case import Case
from holdover.evaluation.retention.statistics import bootstrap_ratio

# what needs no initialiser is said to have this one
ALONE = "-"


@dataclass
class Answers:
    """Answers of one arm, an entry a prompt.

    Attributes:
        selector: which tokens of chunks were recomputed.
        initialiser: which recurrent state prompts began with.
        right: whether the answer was.
        recomputed: share of the chunks' tokens that was run again, seams included.
    """

    selector: str
    initialiser: str
    right: list[bool] = field(default_factory=list)
    recomputed: list[float] = field(default_factory=list)

    def add(self, is_right: bool, recomputed: float) -> None:
        """Count one answer."""
        self.right.append(is_right)
        self.recomputed.append(recomputed)


def score(
    host: Host,
    cases: Sequence[Case],
    selectors: Sequence[str],
    initialisers: Sequence[str],
    ratio: float,
    end_tokens: frozenset[int],
    window: Window = "stream",
) -> Iterator[list[Answers]]:
    """Ask every question in every arm; yields all answers so far after each prompt.

    The first arm is a full prefill, the second ``all``, which recomputes everything by the way of a composition. A
    selector's positions are chosen once a prompt and are the same for all initialisers.

    Args:
        host: the model.
        cases: prompts, each followed by the right answer and an end token.
        selectors: as a request names them.
        initialisers: likewise.
        ratio: share of the chunks' tokens to recompute.
        end_tokens: each of them ends an answer.
        window: what recomputed tokens see in their conv windows.
    """
    bench = Workbench(host, cases, extras_for(initialisers, [window]))
    full, everything = Answers("full", ALONE), Answers("all", ALONE)
    arms = {selector: [Answers(selector, initialiser) for initialiser in initialisers] for selector in selectors}
    for number, case in enumerate(cases):
        bench.open(case, number)
        full.add(is_right(bench.exact(), case, end_tokens), 1.0)
        everything.add(*_ask(bench, case, bench.choose("all", 1.0), "last", window, end_tokens))
        for selector, answers in arms.items():
            positions = bench.choose(selector, ratio)
            for arm in answers:
                arm.add(*_ask(bench, case, positions, arm.initialiser, window, end_tokens))
        yield [full, everything, *(one for answers in arms.values() for one in answers)]


def percent_of_full(arm: Answers, full: Answers, seed: int = 0) -> tuple[float, float, float]:
    """Right answers of an arm in percent of those of a full prefill, with the ends of a 95 % interval.

    Prompts are resampled, each with both answers (a paired bootstrap); samples in which the full prefill answers
    nothing are left out.
    """
    found, wanted = torch.tensor([arm.right, full.right], dtype=torch.float64)
    low, high = bootstrap_ratio(100 * found, wanted, seed=seed)
    return 100 * sum(arm.right) / sum(full.right), low, high


def _ask(
    bench: Workbench,
    case: Case,
    positions: Sequence[int],
    initialiser: str,
    window: Window,
    end_tokens: frozenset[int],
) -> tuple[bool, float]:
    """Whether the answer over a composed context is right, and the share of the context that was run again."""
    repair = bench.compose(positions, initialiser, "stream" if initialiser == SEAMS else window)
    return is_right(bench.composed(), case, end_tokens), repair.ratio


def is_right(logits: torch.Tensor, case: Case, end_tokens: frozenset[int]) -> bool:
    """Whether greedy decoding gives what follows: logits ``[following, V]`` after the query and each token of it."""
    said = logits.argmax(-1).tolist()
    return tuple(said[:-1]) == case.following[:-1] and said[-1] in end_tokens
