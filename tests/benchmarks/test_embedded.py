"""While a replay runs behind a port, its cache can be listed from outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdover.cli.serve import listen
from holdover.errors import ConfigError
from tests.cli.run import invoke
from tests.engine.harness import prompt_of
from tests.server import tiny

# a source distribution comes without the benchmarks
arms = pytest.importorskip("benchmarks.arms")
embedded = pytest.importorskip("benchmarks.embedded")


def test_the_cached_arm_is_the_same_behind_a_port(tmp_path: Path) -> None:
    model = str(tiny.save(tmp_path / "model"))
    engine = arms.holdover_engine(model)
    # a port that is free, most likely
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    found, listed = [], []
    first = embedded.Exchange(prompt_of(90), (), prompt_of(4, seed=1))
    turns = [first, embedded.Exchange((*first.prompt, *first.reply, 5), (), prompt_of(3, seed=2))]
    for at in (None, port):
        with embedded.cached_arm(engine, model, at) as arm:
            for exchange in turns:
                found.append(arm.answer(exchange, "conversation").hit)
                if at is not None:
                    shown = invoke("cache", "ls", "--json", HOLDOVER_URL=f"http://127.0.0.1:{port}")
                    listed.append([entry["depth"] for entry in json.loads(shown.stdout)])
    assert found[0] == 0 < found[1]
    assert found[2:] == found[:2]
    assert found[1] in listed[0]
    assert set(listed[0]) < set(listed[1])
    engine.core.close()


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    model = str(tiny.save(tmp_path / "model"))
    engine = arms.holdover_engine(model)
    with (
        listen("127.0.0.1", 0) as taken,
        pytest.raises(ConfigError, match="--port"),
        embedded.cached_arm(engine, model, taken.getsockname()[1]),
    ):
        pass
    engine.core.close()
