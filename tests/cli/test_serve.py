import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from holdover.cli.serve import listen
from holdover.errors import ConfigError
from tests.cli.run import COMMAND, environment, error_line, invoke, process, until_ready

SMALL = ("--state-budget", "1MiB", "--kv-budget", "2MB", "--threads", "1")


@contextmanager
def serving(*arguments: str, limits: tuple[str, ...] = SMALL) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A server's process and what it printed until it was ready."""
    command = [*COMMAND, "serve", *arguments, *limits]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment(), text=True, **pipes) as running:  # type: ignore[call-overload]
        try:
            yield running, until_ready(running)
        finally:
            running.kill()


def field(lines: list[str], name: str) -> str:
    (found,) = (line.removeprefix(name).strip() for line in lines if line.startswith(f"{name} "))
    return found


def test_the_printed_line_works_and_ctrl_c_ends(model: Path) -> None:
    decoding = ("--decode", "deferred", "--merge-interval", "6", "--speculate", "ngram", "--draft-tokens", "2")
    with serving(str(model), "--port", "0", "--served-name", 'it\'s "mine"', *decoding) as (running, lines):
        assert lines[0] == f"loading {model}"
        assert field(lines, "model").endswith("(qwen3_5, float32, cpu)")
        assert field(lines, "context").startswith("1,024 ")
        assert "slots" in field(lines, "state")
        assert field(lines, "decode") == "deferred, a state is written every 6 tokens; ngram drafts 2 tokens"
        assert "rows" in field(lines, "KV")
        line = field(lines, "try")
        assert line.startswith(f"curl {field(lines, 'ready at')}/v1/chat/completions ")
        done = subprocess.run(["bash", "-c", f"{line} -fsS"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert '"chat.completion"' in done.stdout
        running.send_signal(signal.SIGINT)
        out, err = running.communicate()
        assert (running.returncode, err) == (0, ""), out


@pytest.mark.parametrize(
    "options", [("--merge-interval", "65"), ("--merge-interval", "0"), ("--draft-tokens", "16"), ("--decode", "eager")]
)
def test_decode_options_out_of_range(options: tuple[str, str]) -> None:
    result = invoke("serve", "/no/such/model", *options)
    assert result.exit_code == 2
    assert options[0] in result.stderr


def test_sigterm_ends_with_a_stream_open(model: Path, free_signals: None) -> None:
    with listen("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    started = threading.Event()

    def client() -> None:
        body = {"model": "tiny-model", "prompt": "the cat", "max_tokens": 900, "ignore_eos": True, "stream": True}
        url = f"http://127.0.0.1:{port}/v1/completions"
        # it listens from early on, so that only the first connections can come too soon
        http = httpx.Client(transport=httpx.HTTPTransport(retries=8), timeout=60)
        with http, http.stream("POST", url, json=body) as response:
            chunks = response.iter_raw()
            next(chunks)
            started.set()
            os.kill(os.getpid(), signal.SIGTERM)
            # the rest, or a connection cut off after the time that requests are given
            with suppress(httpx.RemoteProtocolError):
                list(chunks)

    thread = threading.Thread(target=client)
    thread.start()
    result = invoke("serve", str(model), "--port", str(port), *SMALL)
    thread.join()
    assert started.is_set()
    assert (result.exit_code, result.exception) == (0, None), result.stderr


@pytest.fixture
def free_signals() -> Iterator[None]:
    """What the server does to the process's signals is undone."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


def test_signal_while_loading_ends(tmp_path: Path) -> None:
    # a pipe in place of the configuration: the load waits there until somebody writes
    os.mkfifo(tmp_path / "config.json")
    command = [*COMMAND, "serve", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith(b"loading ")
        running.send_signal(signal.SIGTERM)
        assert (running.wait(), running.stderr and running.stderr.read()) == (0, b"")


def test_port_in_use_is_known_before_loading() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = invoke("serve", "/no/such/model", "--port", str(port))
    assert result.exit_code == 2
    line = error_line(result.stderr)
    assert f"port {port} of 127.0.0.1 is in use" in line
    assert "--port" in line


def test_two_servers_starting_at_once_do_not_both_get_the_port() -> None:
    with listen("127.0.0.1", 0) as first, pytest.raises(ConfigError, match="in use"):
        listen("127.0.0.1", first.getsockname()[1])


def test_host_that_is_not_here() -> None:
    for host in ("192.0.2.1", "no.such.host.invalid", "a" * 300):
        result = invoke("serve", "/no/such/model", "--host", host, "--port", "0")
        assert result.exit_code == 2
        assert "--host" in error_line(result.stderr)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("--state-budget", "1KiB"), "raise --state-budget"),
        (("--kv-budget", "10"), "raise --kv-budget"),
        (("--state-budget", "lots"), "'lots' is no size"),
        (("--max-running", "0"), "max_running must be at least 1"),
        (("--chunk-size", "0"), "chunk_size must be at least 1"),
        (("--max-context", "0"), "max_context must be at least 1"),
        (("--dtype", "int3"), "int3"),
        (("--device", "toaster"), "toaster"),
        (("--decode", "dense", "--speculate", "ngram"), "choose --decode deferred or auto"),
        (("--decode", "dense", "--merge-interval", "4"), "choose --decode deferred or auto"),
        (("--speculate", "ngram", "--merge-interval", "4"), "draft at most 2"),
    ],
)
def test_options_that_cannot_be(model: Path, options: tuple[str, ...], part: str) -> None:
    result = invoke("serve", str(model), "--port", "0", *options)
    assert result.exit_code == 2
    assert part in error_line(result.stderr)


def test_unknown_model() -> None:
    done = process("serve", "/no/such/model", "--port", "0")
    assert done.returncode == 2
    assert "/no/such/model" in error_line(done.stderr.decode())


def test_truncated_weights(model: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(model, tmp_path / "broken")
    weights = broken / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 100)
    done = process("serve", str(broken), "--port", "0")
    assert done.returncode == 2
    assert "truncated" in error_line(done.stderr.decode())
    assert done.stdout.decode() == f"loading {broken}\n"
