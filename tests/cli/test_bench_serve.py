"""``holdover bench serve`` against real servers on this machine: a whole run, and what ends one early."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdover.engine.hf.tokenizer import Tokenizer
from holdover.evaluation.serve import endpoint
from holdover.evaluation.traces import Conversation, Turn
from holdover.evaluation.traces.build import Preset, build_trace
from holdover.evaluation.traces.sources import BUNDLED
from holdover.evaluation.traces.trace import read_trace, write_trace
from holdover.weights.bundled import DEFAULT_MODEL, bundled_path
from tests.cli.run import error_line, invoke
from tests.server.live import NAME, Live, running

CONVERSATIONS, TURNS = 2, 3
# short: every step of a poisoned server is slow
SHORT = Preset("short", CONVERSATIONS, TURNS, shortest=16, longest=256, context=512, reply=4)


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Live]:
    with running(model, max_running=2) as live:
        yield live


@pytest.fixture(scope="module")
def trace(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = [f"the cat number {i} sat on the mat and " * 4 for i in range(CONVERSATIONS)]
    recorded = [
        Conversation(f"c{i}", tuple(Turn(role, f"{text} {n}") for n in range(TURNS) for role in ("user", "assistant")))
        for i, text in enumerate(texts)
    ]
    tokenizer = Tokenizer(model)
    made = build_trace(recorded, SHORT, tokenizer, tokenizer.end_tokens, model="tiny", source="made up", seeds=(1, 2))
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    write_trace(made, path)
    return path


def bench(url: str, trace: Path, output: Path, *flags: str) -> tuple[Any, dict[str, Any]]:
    ran = invoke("bench", "serve", url, "--trace", str(trace), "-o", str(output), "--clients", "2", *flags)
    return ran, json.loads(output.read_text())


def test_all_requests_of_all_runs_are_counted(server: Live, trace: Path, tmp_path: Path) -> None:
    ran, facts = bench(server.url, trace, tmp_path / "out.json", "--arm", "dense", "--server-limit", "2")
    assert ran.exit_code == 0, ran.output
    assert facts["complete"]
    assert len(facts["requests"]) == 2 * CONVERSATIONS * TURNS
    for row in facts["rows"]:
        own = [one for one in facts["requests"] if one["seed"] == row["seed"]]
        assert row["requests"] == len(own) == CONVERSATIONS * TURNS
        assert row["ttft_mean_ms"] == pytest.approx(sum(one["ttft_ms"] for one in own) / len(own))
        assert row["hit"] == sum(one["cached_tokens"] for one in own) / sum(one["prompt_tokens"] for one in own)
        assert (row["arm"], row["concurrency"], row["server_limit"]) == ("dense", 2, 2)
        assert row["slots"] > 0
        assert sum(row["restores"].values()) == sum(one["cached_tokens"] > 0 for one in own)
    means = [row["e2e_p95_ms"] for row in facts["rows"]]
    assert facts["mean"]["e2e_p95_ms"] == pytest.approx(sum(means) / 2)
    assert all(one["is_as_frozen"] for one in facts["requests"] if one["turn"] == 0)
    assert "note:" not in ran.output


def test_a_later_prompt_goes_on_from_the_models_own_reply(server: Live, trace: Path, tmp_path: Path) -> None:
    _, facts = bench(server.url, trace, tmp_path / "out.json", "--seeds", "7", "--temperature", "0")
    frozen = [json.loads(line) for line in trace.read_text().splitlines()[1:]]
    asked = {one["id"]: one["turns"] for one in frozen}
    messages = [{"role": "user", "content": asked["c0"][0]["text"]}]
    limit = asked["c0"][0]["max_tokens"]
    reply = server.chat(messages, max_tokens=limit, extra_body={"ignore_eos": True}).choices[0].message.content
    messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": asked["c0"][1]["text"]}]
    wanted = server.chat(messages, max_tokens=1).usage.prompt_tokens
    found = next(one for one in facts["requests"] if (one["dialogue"], one["turn"]) == ("c0", 1))
    assert found["prompt_tokens"] == wanted
    assert found["cached_tokens"] > 0


def test_the_same_run_twice_asks_for_the_same(server: Live, trace: Path, tmp_path: Path) -> None:
    def counts() -> set[tuple[Any, ...]]:
        _, facts = bench(server.url, trace, tmp_path / "out.json", "--seeds", "3", "--clients", "1")
        names = ("dialogue", "turn", "prompt_tokens", "cached_tokens", "completion_tokens")
        return {tuple(one[name] for name in names) for one in facts["requests"]}

    assert counts() == counts()


def test_a_refusal_is_said_in_the_servers_words(server: Live, trace: Path, tmp_path: Path) -> None:
    ran, facts = bench(server.url, trace, tmp_path / "out.json", "--model", "nobody")
    assert ran.exit_code == 2
    assert "refused with status 404" in error_line(ran.stderr)
    assert not facts["complete"]
    assert facts["rows"] == []


def chunk(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


WORD = chunk(choices=[{"delta": {"content": "a "}}])
END = chunk(choices=[{"delta": {}, "finish_reason": "length"}])
USAGE = chunk(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 1})
DONE = b"data: [DONE]\n\n"


def _request(connection: socket.socket) -> str:
    """A whole request: a socket that is closed with bytes unread takes back what was sent."""
    with connection.makefile("rb") as lines:
        head = list(iter(lines.readline, b"\r\n"))
        length = next((int(line.split(b":")[1]) for line in head if line.lower().startswith(b"content-length:")), 0)
        lines.read(length)
    return head[0].decode()


@contextmanager
def scripted(*replies: list[bytes], promised: str = "") -> Iterator[str]:
    """A server that gives each chat the next of ``replies``: the bytes of a stream, cut off where a list ends.

    The last reply's connection stays open, without a byte more, if it does not end with ``DONE``. Each part of a reply
    is sent alone. ``promised`` is the length that every reply is said to have, if any.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    kept: list[socket.socket] = []
    left = iter(replies)
    length = f"Content-Length: {promised}\r\n" if promised else ""

    def answer(connection: socket.socket) -> None:
        asked = _request(connection)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if "/v1/chat/completions" not in asked:
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            connection.close()
            return
        reply = next(left)
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n{length}\r\n"
        for part in (head.encode(), *reply):
            connection.sendall(part)
        if reply is replies[-1] and reply[-1] != DONE:
            kept.append(connection)
        else:
            connection.close()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            answer(connection)

    thread = threading.Thread(target=serve, name="scripted")
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for connection in kept:
            connection.close()


FLAGS = ("--model", "m", "--seeds", "1", "--clients", "1", "--stall", "1")
WHOLE = [WORD, END, USAGE, DONE]


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ([WORD], "sent nothing for 1 seconds"),
        ([chunk(error={"message": "out of memory"}), DONE], "out of memory"),
        ([WORD, chunk(error={"message": "out of memory"})], "broke a reply off: out of memory"),
        ([b"data: {\n\n", DONE], "not JSON"),
    ],
)
def test_what_was_measured_before_a_server_fails_is_kept(
    trace: Path, tmp_path: Path, last: list[bytes], said: str
) -> None:
    with scripted(WHOLE, WHOLE, last) as url:
        ran, facts = bench(url, trace, tmp_path / "out.json", *FLAGS)
    assert ran.exit_code == 2
    assert said in error_line(ran.stderr)
    assert said in facts["failure"]
    assert [one["turn"] for one in facts["requests"]] == [0, 1]
    assert facts["rows"][0]["requests"] == 2
    assert facts["rows"][0]["hit"] is None
    assert "hits are unknown" in ran.stderr


def test_a_stream_that_breaks_off_is_no_reply(trace: Path, tmp_path: Path) -> None:
    with scripted(WHOLE, [WORD], WHOLE) as url:
        ran, facts = bench(url, trace, tmp_path / "out.json", *FLAGS)
    assert "before its reply was whole" in error_line(ran.stderr)
    assert len(facts["requests"]) == 1


def test_an_error_is_said_though_the_connection_is_cut_behind_it(trace: Path, tmp_path: Path) -> None:
    error = chunk(error={"message": "out of memory"})
    with scripted([WORD, error], WHOLE, promised="1000") as url:
        ran, _ = bench(url, trace, tmp_path / "out.json", *FLAGS)
    assert "broke a reply off: out of memory" in error_line(ran.stderr)


def test_a_server_without_usage_is_measured_all_the_same(trace: Path, tmp_path: Path) -> None:
    with scripted(*[[WORD, END, DONE]] * (CONVERSATIONS * TURNS)) as url:
        ran, facts = bench(url, trace, tmp_path / "out.json", *FLAGS)
    assert ran.exit_code == 0, ran.output
    assert "sends no usage" in ran.stderr
    assert facts["rows"][0]["requests"] == CONVERSATIONS * TURNS


def test_a_server_that_is_not_there_is_named(trace: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    ran = invoke("bench", "serve", url, "--trace", str(trace))
    assert ran.exit_code == 2
    assert f"{url}/v1/models cannot be reached" in error_line(ran.stderr)


def test_a_server_that_takes_no_connection_does_not_stall(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_CONNECT", 0.5)
    # whose queue is full: further ones are not answered
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.socket() as first, socket.socket() as second:
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        ran = invoke("bench", "serve", url, "--trace", str(trace))
    assert ran.exit_code == 2
    assert "cannot be reached within 0.5 seconds" in error_line(ran.stderr)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two short conversations of the bundled recording."""
    short = [one for one in json.loads(BUNDLED.read_text(encoding="utf-8")) if "-short-" in one["id"]]
    path = tmp_path_factory.mktemp("recording") / "recorded.json"
    path.write_text(json.dumps(short[:2]))
    return path


def freeze(url: str, recording: Path, output: Path, *flags: str) -> tuple[Any, dict[str, Any]]:
    given = ("--preset", "tiny", "--recording", str(recording), "--seeds", "1", "--clients", "2")
    ran = invoke("bench", "serve", url, *given, "-o", str(output), *flags)
    assert ran.exit_code == 0, ran.output
    return ran, json.loads(output.read_text())


def test_a_recording_is_frozen_for_the_bundled_model_that_is_served(recording: Path, tmp_path: Path) -> None:
    path = bundled_path(DEFAULT_MODEL)
    assert path is not None
    with running(path, max_running=2, state_budget=2**24, kv_budget=2**23, poison=False) as live:
        ran, facts = freeze(live.url, recording, tmp_path / "out.json")
    assert facts["complete"]
    assert facts["preset"] == "tiny"
    assert len(facts["requests"]) == 2 * 4
    assert [one["is_as_frozen"] for one in facts["requests"] if one["turn"] == 0] == [True, True]
    assert f"warning: {recording} has only 2 of 24 conversations that fit" in ran.stderr
    # the same work as that of a trace in a file
    frozen = invoke("trace", str(recording), DEFAULT_MODEL, "--preset", "tiny", "-o", str(tmp_path / "trace.jsonl"))
    assert f"digest {facts['trace']}" in frozen.stdout


def test_prompts_are_counted_by_the_tokenizer_that_is_named(server: Live, model: Path, tmp_path: Path) -> None:
    # words that this model has tokens for: others would not fit
    said = [{"from": ("human", "gpt")[n % 2], "value": "the cat sat on the mat " * 12 + str(n)} for n in range(8)]
    (tmp_path / "recorded.json").write_text(json.dumps([{"id": "c", "conversations": said}]))
    ran, facts = freeze(server.url, tmp_path / "recorded.json", tmp_path / "out.json", "--tokenizer", str(model))
    assert [one["is_as_frozen"] for one in facts["requests"] if one["turn"] == 0] == [True]
    assert "first prompts have other lengths" not in ran.stderr


def test_without_flags_the_bundled_recording_is_sent_at_the_small_scale(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    ran = invoke("bench", "serve", url, "--model", DEFAULT_MODEL, "-o", str(tmp_path / "out.json"))
    assert "cannot be reached" in error_line(ran.stderr)
    facts = json.loads((tmp_path / "out.json").read_text())
    # that of the published results
    assert (facts["preset"], facts["trace"]) == ("small", "7c7bba2d893c5045")


def test_a_model_of_unknown_tokenizer_is_not_looked_for(tmp_path: Path) -> None:
    ran = invoke("bench", "serve", "--model", str(tmp_path), "--preset", "tiny")
    assert ran.exit_code == 2
    assert f"the model is called '{tmp_path}'" in error_line(ran.stderr)
    assert "--tokenizer MODEL" in error_line(ran.stderr)


@pytest.mark.parametrize("flags", [(), ("--model", NAME)])
def test_requests_longer_than_the_servers_context_are_not_begun(
    server: Live, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    ran = invoke("bench", "serve", server.url, *flags, "-o", str(tmp_path / "out.json"))
    assert ran.exit_code == 2
    assert "is served with a context of 1,024: take a smaller --preset" in error_line(ran.stderr)
    assert not (tmp_path / "out.json").exists()


def test_a_frozen_trace_can_only_be_frozen_smaller(server: Live, trace: Path, tmp_path: Path) -> None:
    frozen = read_trace(trace)
    first, *others = frozen.dialogues
    endless = replace(first, turns=(replace(first.turns[0], max_tokens=2000), *first.turns[1:]))
    write_trace(replace(frozen, dialogues=(endless, *others)), tmp_path / "long.jsonl")
    ran = invoke("bench", "serve", server.url, "--trace", str(tmp_path / "long.jsonl"))
    assert "with a context of 1,024: freeze a smaller trace" in error_line(ran.stderr)


@pytest.mark.parametrize("output", ["", "missing/out.json", "file/out.json", "x" * 300])
def test_results_that_could_not_be_written_are_not_measured(trace: Path, tmp_path: Path, output: str) -> None:
    (tmp_path / "file").touch()
    with socket.create_server(("127.0.0.1", 0)) as unasked:
        url = f"http://127.0.0.1:{unasked.getsockname()[1]}"
        ran = invoke("bench", "serve", url, "--trace", str(trace), "-o", str(tmp_path / output))
    assert ran.exit_code == 2
    assert f"-o is {tmp_path / output}, where no file can be written" in error_line(ran.stderr)


@pytest.mark.parametrize(("last", "failure"), [(WHOLE, ""), ([chunk(error="out of memory"), DONE], "out of memory")])
def test_what_was_measured_is_shown_though_it_cannot_be_written(trace: Path, last: list[bytes], failure: str) -> None:
    replies = [WHOLE] * (CONVERSATIONS * TURNS - 1) + [last]
    with scripted(*replies) as url:
        ran = invoke("bench", "serve", url, "--trace", str(trace), *FLAGS, "--json", "-o", "/dev/full")
    assert ran.exit_code == 2
    assert "/dev/full cannot be written: No space left on device" in error_line(ran.stderr)
    assert failure in error_line(ran.stderr)
    assert json.loads(ran.stdout)["rows"][0]["requests"] == sum(reply is WHOLE for reply in replies)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--trace", "t", "--preset", "tiny"), "--trace is frozen already: pass either it or --preset"),
        (("--trace", "t", "--recording", "r", "--tokenizer", "m"), "pass either it or --recording and --tokenizer"),
        (("--recording", "r"), "--recording needs the scale"),
        (("--preset", "huge"), "wanted one of paper, small, tiny"),
        (("--preset", "tiny", "--seeds", "x"), "--seeds is 'x'"),
        (("--preset", "tiny", "--recording", "missing.json"), "trace missing.json cannot be read"),
        (("--preset", "tiny", "--recording", __file__), "is not ShareGPT JSON"),
        (("--preset", "tiny", "--tokenizer", "http://somewhere/model"), "is an address"),
    ],
)
def test_flags_that_cannot_be_followed(flags: tuple[str, ...], said: str) -> None:
    ran = invoke("bench", "serve", "--model", DEFAULT_MODEL, *flags)
    assert ran.exit_code == 2
    assert said in error_line(ran.stderr)


def test_an_address_without_a_scheme_is_refused(trace: Path) -> None:
    ran = invoke("bench", "serve", "localhost:8000", "--trace", str(trace))
    assert "http://127.0.0.1:8000" in error_line(ran.stderr)
