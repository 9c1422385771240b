"""What is pinned leaves room for some requests and not for others; which is known before they run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdover import Engine, SamplingParams
from holdover.engine.core import EngineCore
from holdover.errors import CapacityError
from tests.server import tiny


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """With a prefix pinned that takes half of the KV rows."""
    with Engine.from_pretrained(str(tiny.save(tmp_path)), state_budget=2**18, kv_budget=2**18) as engine:
        prefix = [5] * (engine.core.cache.kv.num_rows // 2)
        (output,) = engine.generate([prefix], SamplingParams(max_tokens=0), checkpoint_at=(len(prefix),))
        assert (output.token_ids, output.finish_reason) == ((), "length")
        assert engine.core.cache.pins.add(engine.prepare.namespace(""), prefix) is not None
        yield engine


def rows_left(core: EngineCore) -> int:
    return core.cache.kv.num_rows - sum(core.cache.pins.rows.values())


def test_refusal_does_not_wait_for_those_that_run(engine: Engine) -> None:
    left = rows_left(engine.core)
    long = SamplingParams(max_tokens=left, ignore_eos=True)
    runs, fits = (engine.prepare.sequence([6, 7], SamplingParams(max_tokens=40, ignore_eos=True)) for _ in range(2))
    engine.core.add(runs)
    engine.core.step()
    refused = engine.prepare.sequence([7, 8], long)
    engine.core.add(refused)
    engine.core.add(fits)
    ended = [update.output for update in engine.core.step() if update.output is not None]
    assert [output.request_id for output in ended] == [refused.request.id]
    assert isinstance(ended[0].error, CapacityError)
    assert f"a prompt of 2 tokens can have {left - 1} more" in str(ended[0].error)
    assert engine.core.num_running == 2
    for sequence in (runs, fits):
        engine.core.abort(sequence.request.id)
    engine.core.check_integrity()


@pytest.mark.parametrize("over", [0, 1])
def test_the_last_row_can_be_used(engine: Engine, over: int) -> None:
    params = SamplingParams(max_tokens=rows_left(engine.core) - 7 + over, ignore_eos=True)
    if over:
        with pytest.raises(CapacityError, match="pins hold"):
            engine.generate([[6] * 8], params)
    else:
        (output,) = engine.generate([[6] * 8], params)
        assert len(output.token_ids) == params.max_tokens
    engine.core.check_integrity()


def test_pinned_while_it_runs(engine: Engine) -> None:
    # what was let in before there were pins fails when nothing else can be given up, and says so
    engine.core.cache.pins.clear()
    total = engine.core.cache.kv.num_rows
    sequence = engine.prepare.sequence([6] * 8, SamplingParams(max_tokens=total - 20, ignore_eos=True))
    engine.core.add(sequence)
    engine.core.step()
    prefix = [5] * (total // 2)
    assert engine.core.cache.pins.add(engine.prepare.namespace(""), prefix) is not None
    updates = []
    while engine.core.has_work:
        updates += engine.core.step()
    output = updates[-1].output
    assert output is not None
    assert f"pins hold {total // 2}" in str(output.error)
    engine.core.check_integrity()
