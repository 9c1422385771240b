"""Random conversations for engines on tiny models, and costs that mean nothing."""

from __future__ import annotations

import random

from holdover.evaluation.simulate.costs import Costs, ForwardCost
from holdover.evaluation.traces.exchanges import Exchange

COSTS = Costs("tiny", "nowhere", "float32", ForwardCost(1.0, 0.5, 0.001), ForwardCost(2.0, 0.25, 0.002), 1e-6, 2e-6)


def conversations(count: int, turns: int, vocabulary: int, seed: int = 0) -> list[list[Exchange]]:
    """Conversations that begin alike in groups of three, each turn going on from the one before and its reply."""
    draw = random.Random(seed)

    def tokens(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw.randrange(vocabulary) for _ in range(draw.randint(low, high)))

    found = []
    for number in range(count):
        shared = tuple(random.Random(number // 3).randrange(vocabulary) for _ in range(24))
        prompt, dialogue = shared + tokens(5, 40), []
        for _ in range(turns):
            exchange = Exchange(prompt, (len(prompt) - 1,), tokens(1, 12))
            dialogue.append(exchange)
            prompt = (*exchange.prompt, *exchange.reply, *tokens(2, 20))
        found.append(dialogue)
    return found
