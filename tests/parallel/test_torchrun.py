"""A server of two ranks as users start it, and what they are told when it cannot go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from holdover.arch.registry import layout_from_config
from holdover.engine.options import EngineOptions
from holdover.engine.parallel.options import options_over_ranks
from holdover.engine.parallel.shard import check_degree
from holdover.errors import ConfigError
from holdover.weights.bundled import DEFAULT_MODEL
from holdover.weights.source import resolve
from tests.cli.run import environment, error_line, invoke, until_ready

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
SIZES = ["--state-budget", "16MiB", "--kv-budget", "4MiB", "--threads", "1"]
PLACED = ["--plan", "auto", "--placement", "hybrid"]
# long enough that a killed rank is killed in the middle of it
TEXT = "The history of the town begins with a market. " * 12


@contextmanager
def serving() -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The process of torchrun, and what was printed until rank 0 was ready."""
    command = [*TORCHRUN, "-m", "holdover", "serve", DEFAULT_MODEL, "--port", "0", *SIZES, *PLACED]
    env = environment() | {"OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, env=env, text=True, **pipes) as running:  # type: ignore[call-overload]
        try:
            yield running, until_ready(running)
        finally:
            running.terminate()
            running.wait()


def test_a_server_answers_and_a_killed_rank_ends_it() -> None:
    with serving() as (running, lines):
        (ranks,) = (line for line in lines if line.startswith("ranks "))
        assert "2, each with its part of the state; placement hybrid" in ranks
        url = next(line.split()[-1] for line in lines if line.startswith("ready at"))
        body = {"model": DEFAULT_MODEL, "prompt": TEXT, "max_tokens": 8, "temperature": 0}
        first, second = (httpx.post(f"{url}/v1/completions", json=body, timeout=60).json() for _ in range(2))
        assert first["choices"][0]["text"] == second["choices"][0]["text"] != ""
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        assert httpx.post(f"{url}/v1/cache/flush", timeout=60).json()["checkpoints"] > 0
        long = body | {"stream": True, "max_tokens": 400, "ignore_eos": True}
        assert "[DONE]" not in rest_after_kill(url, long, running)
        output, _ = running.communicate(timeout=90)
        assert running.returncode != 0
        assert "rank 0 of 2 cannot go on after" in output
        assert "start all ranks again" in output


def rest_after_kill(url: str, body: dict[str, object], running: subprocess.Popen[str]) -> str:
    """Kill rank 1 once a stream has begun; what the client still got of it."""
    rest = ""
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
        chunks = response.iter_text()
        next(chunks)
        os.kill(rank_process(running.pid, 1), signal.SIGKILL)
        try:
            rest = "".join(chunks)
        except httpx.HTTPError as error:
            rest = str(error)
    return rest


def rank_process(parent: int, rank: int) -> int:
    """The process of a rank among torchrun's children."""
    (found,) = (
        int(child)
        for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        if f"RANK={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
    )
    return found


def test_degrees_that_cannot_be_are_refused_with_those_that_can() -> None:
    state = layout_from_config(resolve(DEFAULT_MODEL).config).state
    check_degree(state, 4)
    with pytest.raises(ConfigError, match=r"3 ranks cannot share .* 4 bundles .* may be 1, 2, 4$"):
        check_degree(state, 3)


def test_options_that_ranks_do_not_have_are_named(tmp_path: Path) -> None:
    options = EngineOptions(speculate="mtp", spill_dir=tmp_path, host_budget=1 << 20, plan=None)
    with pytest.raises(ConfigError, match=r"^--speculate mtp, --host-budget, --spill-dir: not with several ranks"):
        options_over_ranks(options)
    assert options_over_ranks(EngineOptions()).chunks.use == "refuse"


def test_a_placement_needs_ranks() -> None:
    result = invoke("serve", DEFAULT_MODEL, "--port", "0", "--placement", "storage")
    assert (result.exit_code, "torchrun" in error_line(result.stderr)) == (2, True)
