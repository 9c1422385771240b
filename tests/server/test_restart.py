"""A conversation on the bundled model with its own gated plan: compressed in memory, and found again after a crash."""

import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdover.weights.bundled import DEFAULT_MODEL, bundled_path
from tests.cli.test_serve import field, serving

LIMITS = ("--state-budget", "24MiB", "--kv-budget", "16MB", "--threads", "1")
STORY = "The keeper of the lighthouse wrote down every ship that passed. " * 24


def ask(url: str, messages: list[dict[str, str]]) -> Any:
    body = {"model": DEFAULT_MODEL, "messages": messages, "max_tokens": 8, "temperature": 0}
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.timeout(180)
def test_second_turn_is_compressed_and_so_it_is_after_a_crash(tmp_path: Path) -> None:
    model = bundled_path(DEFAULT_MODEL)
    assert model is not None
    arguments = (DEFAULT_MODEL, "--plan", "auto", "--port", "0", "--spill-dir", str(tmp_path / "spill"))
    messages = [{"role": "user", "content": STORY + "What did the keeper write down?"}]
    with serving(*arguments, limits=LIMITS) as (running, lines):
        url = field(lines, "ready at")
        assert "within the budget" in field(lines, "quality")
        reply = ask(url, messages)["choices"][0]["message"]["content"]
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "Why?"}]
        before = check_compressed(ask(url, messages), source=None)
        # a crash may lose the newest checkpoint only: this one
        ask(url, [{"role": "user", "content": "Hello"}])
        running.send_signal(signal.SIGKILL)
        running.wait()
    with serving(*arguments, limits=LIMITS) as (_, lines):
        url = field(lines, "ready at")
        after = check_compressed(ask(url, messages), source="disk")
        assert 'holdover_hits_total{tier="disk"} 1.0' in httpx.get(f"{url}/metrics").text
    # the same checkpoint was resumed, so the same text follows
    assert before == after


def check_compressed(answer: Any, source: str | None) -> str:
    """Fail unless most of the prompt was resumed from a compressed checkpoint; returns the text."""
    cache, usage = answer["holdover"]["cache"], answer["usage"]
    assert (cache["tier"], cache["source"]) == ("compressed", source)
    assert cache["lineage"] != "exact"
    assert cache["omitted"] >= 0.2
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 0.9 * usage["prompt_tokens"]
    text: str = answer["choices"][0]["message"]["content"]
    return text
