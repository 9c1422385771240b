"""A server that is told to go: what runs may end, what comes is sent away, and the second signal ends all."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.cli.test_serve import field, serving

BODY = {"model": "tiny-model", "prompt": "the cat", "max_tokens": 900, "ignore_eos": True, "temperature": 0}


@contextmanager
def streaming(url: str, **headers: str) -> Iterator[Iterator[str]]:
    """A long request that has begun to answer."""
    body = BODY | {"stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, headers=headers, timeout=60) as response:
        lines = (line.removeprefix("data: ") for line in response.iter_lines() if line)
        next(lines)
        yield lines


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_runs_may_end(model: Path, number: signal.Signals) -> None:
    with serving(str(model), "--port", "0", "--grace", "120", "--log-level", "info") as (running, lines):
        url = field(lines, "ready at")
        whole = httpx.post(f"{url}/v1/completions", json=BODY, timeout=60).json()["choices"][0]["text"]
        with streaming(url) as chunks:
            running.send_signal(number)
            # it still listens; the signal is noticed within a moment
            while (health := httpx.get(f"{url}/health")).status_code == 200:
                pass
            assert (health.status_code, health.json()) == (503, {"status": "draining"})
            refused = httpx.post(f"{url}/v1/completions", json=BODY)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
            assert 100 <= int(refused.headers["retry-after"]) <= 120
            events = list(chunks)
        assert events[-1] == "[DONE]"
        assert whole.endswith(json.loads(events[-3])["choices"][0]["text"])
        assert json.loads(events[-2])["choices"][0]["finish_reason"] == "length"
        _, err = running.communicate()
    assert running.returncode == 0
    assert "draining: 1 requests have 120 seconds to end" in err


def test_after_the_grace_requests_are_ended_and_states_written(model: Path, tmp_path: Path) -> None:
    spill = ("--spill-dir", str(tmp_path / "spill"), "--state-budget", "1MiB", "--kv-budget", "2MB", "--threads", "1")
    with serving(str(model), "--port", "0", "--grace", "0", limits=spill) as (running, lines):
        with streaming(field(lines, "ready at")) as chunks:
            running.send_signal(signal.SIGTERM)
            events = list(chunks)
        error = json.loads(events[-1])["error"]
        assert (error["type"], error["code"]) == ("server_error", "draining")
        _, err = running.communicate()
    assert running.returncode == 0
    assert "1 requests are ended: their time is up" in err
    assert "Traceback" not in err
    # the state that the request had reached was written before the end
    assert list((tmp_path / "spill").glob("*/*.entry"))


def test_second_signal_ends_at_once(model: Path) -> None:
    with serving(str(model), "--port", "0", "--grace", "1000") as (running, lines):
        url = field(lines, "ready at")
        with suppress(httpx.RemoteProtocolError), streaming(url) as chunks:
            running.send_signal(signal.SIGTERM)
            while httpx.get(f"{url}/health").status_code == 200:
                pass
            running.send_signal(signal.SIGTERM)
            list(chunks)
        running.wait()
    assert running.returncode == -signal.SIGTERM


def test_keys_limits_and_json_logs_by_flag(model: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sk-from-a-file\n")
    flags = ("--api-key", "sk-from-a-flag", "--api-key-file", str(keys), "--max-per-key", "1", "--max-body", "200")
    logs = ("--log-format", "json", "--log-level", "info")
    with serving(str(model), "--port", "0", *flags, *logs) as (running, lines):
        url = field(lines, "ready at")
        assert field(lines, "try").endswith('-H "Authorization: Bearer $HOLDOVER_API_KEY"')
        statuses = [
            httpx.post(
                f"{url}/v1/completions",
                json={"model": "tiny-model", "prompt": "a" * size, "max_tokens": 1},
                headers={"authorization": f"Bearer {key}", "x-request-id": f"mine-{key[-4:]}-{size}"},
            ).status_code
            for key, size in [("sk-from-a-file", 1), ("sk-from-a-flag", 1), ("wrong", 1), ("sk-from-a-flag", 300)]
        ]
        assert statuses == [200, 200, 401, 413]
        running.send_signal(signal.SIGTERM)
        out, err = running.communicate()
    logged = [json.loads(line) for line in err.splitlines()]
    access = [line for line in logged if line["logger"] == "holdover.access"]
    found = {line["request"]: (line["status"], line["client"]) for line in access}
    assert found == {
        "mine-file-1": (200, "key-2"),
        "mine-flag-1": (200, "key-1"),
        "mine-rong-1": (401, None),
        "mine-flag-300": (413, "key-1"),
    }
    assert not any(secret in text for secret in ("from-a-f", "rong ") for text in (*lines, out, err))
