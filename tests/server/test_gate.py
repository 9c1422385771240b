"""Limits: what finds no room is told when to come back, and what runs is not disturbed."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from holdover.errors import ConfigError
from holdover.server.auth import Keys
from holdover.server.errors import ApiError
from holdover.server.gate import DrainRate, Gate
from holdover.server.options import ServerOptions
from tests.server.live import NAME, Live, running
from tests.server.test_errors import error_of

LONG = {"max_tokens": 900, "extra_body": {"ignore_eos": True}}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_rate_is_that_of_the_last_ends() -> None:
    clock = Clock()
    rate = DrainRate(clock)
    assert rate.seconds_for(5) == 1
    rate.start()
    clock.now = 3
    # none has ended: it takes each at least as long as it has taken
    assert rate.seconds_for(2) == 6
    for _ in range(4):
        clock.now += 3
        rate.end(is_last=False)
    assert rate.seconds_for(1) == 4
    assert rate.seconds_for(4) == 15
    for _ in range(200):
        clock.now += 0.5
        rate.end(is_last=False)
    assert rate.seconds_for(20) == 10
    # and where none ends any more, it falls
    clock.now += 1000
    assert rate.seconds_for(20) > 300
    assert rate.seconds_for(10**6) == 600


def test_time_without_requests_does_not_count() -> None:
    clock = Clock()
    rate = DrainRate(clock)
    for start in (0, 10_000):
        clock.now = start
        rate.start()
        clock.now += 2
        rate.end(is_last=True)
    clock.now = 50_000
    rate.start()
    assert rate.seconds_for(3) == 6


def refusal(gate: Gate, client: str | None = None) -> ApiError:
    with pytest.raises(ApiError) as caught, gate.admitted(client):
        pass
    return caught.value


def test_gate_counts_in_and_out() -> None:
    clock = Clock()
    gate = Gate(running=1, waiting=2, per_client=2, clock=clock)
    with ExitStack() as inside:
        for client in ("a", "a"):
            inside.enter_context(gate.admitted(client))
        error = refusal(gate, "a")
        assert (error.status, error.code) == (429, "rate_limit_exceeded")
        inside.enter_context(gate.admitted("b"))
        clock.now = 7
        error = refusal(gate, "b")
        assert (error.status, error.code, error.headers) == (429, "queue_full", {"retry-after": "14"})
        assert gate.num_open == 3
    assert gate.num_open == 0
    with pytest.raises(ZeroDivisionError), gate.admitted("a"):
        raise ZeroDivisionError
    assert gate.num_open == 0


def test_drain_waits_for_the_last_or_the_time() -> None:
    clock = Clock()
    gate = Gate(running=1, waiting=0, clock=clock)
    with gate.admitted(None):
        assert not gate.is_draining
        gate.drain(10)
        assert (gate.is_draining, gate.is_drained) == (True, False)
        clock.now = 7.5
        error = refusal(gate)
        assert (error.status, error.code, error.headers) == (503, "draining", {"retry-after": "3"})
        clock.now = 10
        assert gate.is_drained
        assert refusal(gate).headers == {"retry-after": "1"}
    clock.now = 0
    assert gate.is_drained


@pytest.mark.parametrize("options", [{"max_waiting": -1}, {"max_body": 0}, {"max_per_key": 0}])
def test_limits_that_cannot_be(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"at least"):
        ServerOptions(**options)  # type: ignore[arg-type]


@contextmanager
def streaming(server: Live, **options: Any) -> Iterator[Iterator[Any]]:
    """A long request that has begun to answer."""
    client = server.openai.with_options(**options)
    with client.completions.create(model=NAME, prompt="the cat", stream=True, **LONG) as stream:  # type: ignore[call-overload]
        chunks = iter(stream)
        next(chunks)
        yield chunks


def test_full_queue_refuses_and_loses_nothing(model: Path) -> None:
    with running(model, ServerOptions(max_waiting=1), max_running=1) as server:
        before = server.http.get("/metrics").text
        with streaming(server) as first:
            # the second one waits, until the first one ends
            waiting = threading.Thread(target=lambda: texts.append(server.complete("the dog").choices[0].text))
            texts: list[str] = []
            waiting.start()
            while server.gate.num_open < 2:
                pass
            response = server.http.post("/v1/completions", json={"model": NAME, "prompt": "hi"})
            error = error_of(response)
            assert (response.status_code, error["type"], error["code"]) == (429, "rate_limit_error", "queue_full")
            assert int(response.headers["retry-after"]) >= 1
            with pytest.raises(openai.RateLimitError):
                server.complete("hi")
            # reading is not limited
            assert server.http.get("/v1/models").status_code == server.http.get("/health").status_code == 200
            assert list(first)[-1].choices[0].finish_reason == "length"
        waiting.join()
        assert texts[0] == server.complete("the dog").choices[0].text
        after = server.http.get("/metrics").text
        server.check()
    assert 'holdover_requests_total{outcome="rejected"} 0.0' in before
    assert 'holdover_requests_total{outcome="rejected"} 2.0' in after
    assert 'holdover_requests_total{outcome="length"} 3.0' in after


def test_one_key_cannot_take_all(model: Path) -> None:
    treatment = ServerOptions(Keys(["mine", "yours"]), max_per_key=1)
    with running(model, treatment, key="mine", max_running=4) as server:
        with streaming(server):
            with pytest.raises(openai.RateLimitError) as caught:
                server.complete("hi")
            assert caught.value.code == "rate_limit_exceeded"
            assert server.openai.with_options(api_key="yours").completions.create(model=NAME, prompt="hi", max_tokens=2)
        # left early: its place is free when the server has noticed
        while server.gate.num_open:
            pass
        assert server.complete("hi").choices[0].text
        server.check()


def test_body_limit(model: Path) -> None:
    with running(model, ServerOptions(max_body=100)) as server:
        for size, status in ((100, 400), (101, 413), (5000, 413)):
            response = server.http.post("/v1/completions", content=b" " * size)
            assert response.status_code == status
        assert "100 bytes" in error_of(response)["message"]


def test_draining_server_answers_but_takes_nothing(model: Path) -> None:
    with running(model) as server:
        with streaming(server) as chunks:
            server.gate.drain(1000)
            response = server.http.post("/v1/completions", json={"model": NAME, "prompt": "hi"})
            assert (response.status_code, error_of(response)["code"]) == (503, "draining")
            assert 900 < int(response.headers["retry-after"]) <= 1000
            for method, path in (("POST", "/v1/cache/flush"), ("POST", "/v1/cache/pins"), ("DELETE", "/v1/cache/pins")):
                assert server.http.request(method, path).status_code == 503
            assert server.http.get("/v1/cache/entries").status_code == 200
            health = server.http.get("/health")
            assert (health.status_code, health.json()) == (503, {"status": "draining"})
            assert server.http.get("/metrics").status_code == 200
            assert list(chunks)[-1].choices[0].finish_reason == "length"
        server.settle()
        assert server.gate.is_drained
