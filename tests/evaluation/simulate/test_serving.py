"""What a server adds: how it is fitted and measured, and what a simulation makes of it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from holdover.engine.options import EngineOptions
from holdover.errors import HoldoverError
from holdover.evaluation.simulate.ask import Asked, asking
from holdover.evaluation.simulate.costs import ServingCost, pairs_of
from holdover.evaluation.simulate.host import Clock
from holdover.evaluation.simulate.replay import replay
from holdover.evaluation.simulate.serving import fit_requests
from holdover.evaluation.simulate.simulate import VirtualTime, build, simulate
from holdover.evaluation.traces.exchanges import Exchange
from tests.arch.table import VOCAB
from tests.engine.harness import budgets, host_of
from tests.evaluation.simulate.traffic import COSTS, conversations

LAYOUT = host_of("small-qwen3_5").layout
SERVED = replace(COSTS, serving=ServingCost(request=10.0, prompt_token=1.0, token=0.5))
SIZES: dict[str, Any] = budgets(LAYOUT, 9, 700)
OPTIONS = EngineOptions(chunk_size=16, idle_chunk_size=16, decode="dense", **SIZES)


def prefill(start: int, count: int) -> float:
    return COSTS.prefill.ms(count, pairs_of(start, count))


def decode(*contexts: int) -> float:
    """A step of as many sequences, each with so many tokens, and what the server does for theirs."""
    return COSTS.decode.ms(len(contexts), sum(contexts)) + 0.5 * len(contexts)


def test_requests_are_read_one_after_another_and_tokenised_together() -> None:
    timer = VirtualTime(Clock(), SERVED)
    assert [timer.sent(prompt) for prompt in (20, 4, 1)] == [10 + 20, 20 + 4, 30 + 1]
    timer.wait(24)
    # the third one is still read
    assert timer.sent(3) == 6 + 10 + 3
    timer.wait(100)
    assert timer.sent(3) == 10 + 3


def test_a_request_comes_late_while_others_run() -> None:
    long, short = Exchange(tuple(range(20)), (), (1, 2, 3)), Exchange((30, 31, 32, 33), (), tuple(range(10)))
    again = Exchange((40, 41, 42, 43), (), (9,))
    simulated = build(LAYOUT, OPTIONS, SERVED)
    served = replay(simulated.core, simulated.prepare, [[short, again], [long]], 2, simulated.timer)
    simulated.core.close()
    # nothing runs until the short one is there, at 10 + 4; the last token of a prompt is decoded
    # until 20 the long one is read, which holds up this step
    now = 14 + prefill(0, 3) + 6
    first = now + decode(4)
    now = first + sum(decode(context) for context in (5, 6, 7, 8, 9))
    # the long one comes at 20 + 20, within this step
    assert now < 40 < now + decode(10)
    now += decode(10)
    now += prefill(0, 16) + decode(11)
    now += prefill(16, 3) + decode(12)
    both = now + decode(20, 13)
    # the short one's client sends its next turn, which is read while the long one's next token is made
    end = both + decode(21) + 10 + decode(22)
    assert end - decode(22) < both + 10 + 4 < end
    last = end + prefill(0, 3) + decode(4) - both
    assert [(one.dialogue, one.turn, one.hit) for one in served] == [(0, 0, 0), (1, 0, 0), (0, 1, 0)]
    assert [one.ttft_ms for one in served] == pytest.approx([first, both, last])
    assert [one.e2e_ms for one in served] == pytest.approx([both, end, last])


def test_one_client_pays_for_each_of_its_requests() -> None:
    dialogue = [[Exchange(tuple(range(20)), (), (1, 2, 3)), Exchange(tuple(range(25)), (), (4, 5))]]
    plain = simulate(LAYOUT, OPTIONS, dialogue, clients=1, costs=COSTS)
    served = simulate(LAYOUT, OPTIONS, dialogue, clients=1, costs=SERVED)
    assert 2 * (served.ttft_mean_ms - plain.ttft_mean_ms) == pytest.approx(2 * 10 + (20 + 25) + 2 * 0.5)
    assert 2 * (served.e2e_mean_ms - plain.e2e_mean_ms) == pytest.approx(2 * 10 + (20 + 25) + 5 * 0.5)
    assert served.hit == plain.hit > 0


def test_every_request_is_served_however_late_it_comes() -> None:
    dialogues = conversations(9, 3, VOCAB)
    slow = replace(COSTS, serving=ServingCost(request=1e4))
    found = build(LAYOUT, OPTIONS, slow)
    served = replay(found.core, found.prepare, dialogues, 4, found.timer)
    found.core.check_integrity()
    found.core.close()
    assert len(served) == 27
    assert all(one.ttft_ms > 1e4 for one in served)


def asked(prompt: int, before: float) -> Asked:
    engine = random.uniform(1, 100)
    return Asked(wall_ms=500.0, ttft_ms=engine + before, engine_ms=engine, prompt_tokens=prompt)


def test_requests_are_fitted_by_the_lengths_of_their_prompts() -> None:
    wanted = ServingCost(request=2.5, prompt_token=0.01)
    assert fit_requests([asked(n, wanted.before_ms(n)) for n in (40, 300, 1100)]) == pytest.approx((2.5, 0.01))
    # longer prompts that are ready sooner are noise
    request, token = fit_requests([asked(n, 3.0 - 0.001 * n) for n in (40, 300, 1100)])
    assert token == 0
    assert 1.9 < request < 3


def test_a_server_that_is_not_there_is_said() -> None:
    chat = {"messages": [{"role": "user", "content": "hello"}]}
    with asking("http://127.0.0.1:1", 1) as ask:
        with pytest.raises(HoldoverError, match="cannot be reached"):
            ask([chat])
        # more than a pipe holds
        with pytest.raises(HoldoverError, match="the client process ended"):
            ask([chat] * 10_000)
