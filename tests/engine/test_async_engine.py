"""The engine on a thread of its own: concurrent streams, cancellation, and an end that everybody hears of."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from holdover.engine import delivery
from holdover.engine.async_engine import AsyncEngine
from holdover.engine.engine import Engine
from holdover.engine.options import EngineOptions
from holdover.engine.sampling import SamplingParams
from holdover.errors import HoldoverError, RequestError
from tests.engine.harness import TOY, assert_greedy, budgets, host_of, loaded_of, prompt_of

LONG = SamplingParams(max_tokens=400)
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def engine() -> Iterator[AsyncEngine]:
    options = EngineOptions(**budgets(host_of(TOY).layout, 12, 500), chunk_size=4, poison=True)
    made = AsyncEngine(Engine(loaded_of(TOY), options))
    yield made
    made.close()
    assert not made._thread.is_alive()
    if made._failure is None:
        assert not made.engine.core.has_work
        made.engine.core.check_integrity()


async def read(engine: AsyncEngine, prompt, params: SamplingParams = LONG, started: asyncio.Event | None = None):
    updates = []
    async for update in engine.run(engine.sequence(prompt, params)):
        updates.append(update)
        if started is not None:
            started.set()
    return updates


def test_concurrent_streams(engine: AsyncEngine) -> None:
    async def main():
        jobs = [read(engine, prompt_of(2 + i, seed=i, vocab=8), SamplingParams(max_tokens=3 + i)) for i in range(12)]
        return await asyncio.gather(*jobs)

    for i, updates in enumerate(asyncio.run(main())):
        output = updates[-1].output
        assert [update.output for update in updates[:-1]] == [None] * (2 + i)
        assert tuple(token for update in updates for token in update.token_ids) == output.token_ids
        assert_greedy(TOY, output, logprobs=False)


def test_a_step_wakes_an_event_loop_once(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe

        def counted(callback, *args, **kwargs):
            if callback is delivery.put_all:
                batches.append(len(args[0]))
            return wake(callback, *args, **kwargs)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        await asyncio.gather(
            *(read(engine, prompt_of(2, seed=i, vocab=8), SamplingParams(max_tokens=9)) for i in range(4))
        )

    asyncio.run(main())
    stats = engine.engine.core.stats
    assert sum(batches) == 4 * 9
    assert max(batches) == 4
    assert len(batches) <= stats.prefill_forwards + stats.decode_forwards


def test_several_event_loops(engine: AsyncEngine) -> None:
    """Each caller hears on its own loop."""
    outputs = []

    def caller(i: int) -> None:
        outputs.append(asyncio.run(engine.generate(prompt_of(4, seed=i, vocab=8), SamplingParams(max_tokens=5))))

    threads = [threading.Thread(target=caller, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outputs) == 6
    for output in outputs:
        assert_greedy(TOY, output, logprobs=False)


def test_a_bad_request_is_refused_at_once(engine: AsyncEngine) -> None:
    with pytest.raises(RequestError):
        asyncio.run(engine.generate([99]))


def test_an_id_in_use_is_refused_and_its_owner_goes_on(engine: AsyncEngine) -> None:
    async def main():
        first = engine.run(engine.sequence([1, 2], SamplingParams(max_tokens=40), id="one"))
        await anext(first)
        with pytest.raises(RequestError, match="one is in use"):
            await anext(engine.run(engine.sequence([3], LONG, id="one")))
        return [update async for update in first][-1].output

    assert_greedy(TOY, asyncio.run(main()), logprobs=False)


def test_cancellation_aborts(engine: AsyncEngine) -> None:
    async def main():
        started = asyncio.Event()
        task = asyncio.create_task(read(engine, [1, 2, 3], LONG, started))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # the abort was posted before this call
        assert await engine.call(lambda core: core.has_work) is False
        assert await engine.call(lambda core: core.stats.aborted) == 1

    asyncio.run(main())


def test_leaving_a_stream_early_aborts(engine: AsyncEngine) -> None:
    async def main():
        stream = engine.run(engine.sequence([1, 2, 3], LONG))
        await anext(stream)
        await stream.aclose()
        assert await engine.call(lambda core: core.has_work) is False

    asyncio.run(main())


def test_call_runs_between_two_steps(engine: AsyncEngine) -> None:
    async def main():
        task = asyncio.create_task(read(engine, [1, 2, 3]))
        for _ in range(20):
            thread, _ = await engine.call(lambda core: (threading.current_thread(), core.check_integrity()))
            assert thread is engine._thread
        with pytest.raises(ZeroDivisionError):
            await engine.call(lambda core: 1 / 0)
        assert engine.is_healthy
        task.cancel()

    asyncio.run(main())


def test_a_failed_request_raises_and_the_engine_goes_on(engine: AsyncEngine) -> None:
    async def main():
        forward = engine.engine.loaded.host.forward
        engine.engine.loaded.host.forward = lambda *_: 1 / 0
        try:
            with pytest.raises(ZeroDivisionError):
                await engine.generate([1, 2])
        finally:
            engine.engine.loaded.host.forward = forward
        return await engine.generate([1, 2], SamplingParams(max_tokens=3))

    assert_greedy(TOY, asyncio.run(main()), logprobs=False)


def test_close_with_requests_running(engine: AsyncEngine) -> None:
    async def main():
        started = [asyncio.Event() for _ in range(3)]
        tasks = [asyncio.create_task(read(engine, [i], LONG, event)) for i, event in enumerate(started)]
        await asyncio.gather(*(event.wait() for event in started))
        engine.close()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, HoldoverError)
            assert "closed" in str(result)
        for late in (engine.generate([1]), engine.call(lambda core: None)):
            with pytest.raises(HoldoverError, match="closed"):
                await late

    asyncio.run(main())
    assert not engine.is_healthy
    engine.close()


def test_a_dead_thread_is_reported_to_everyone(engine: AsyncEngine) -> None:
    """To those that run, those that wait in the inbox, and those that come later."""

    async def main():
        started = asyncio.Event()
        running = asyncio.create_task(read(engine, [1], LONG, started))
        await started.wait()
        gate = threading.Event()
        held = asyncio.create_task(engine.call(lambda core: gate.wait()))
        await asyncio.sleep(0)

        def die():
            raise RuntimeError("out of luck")

        engine.engine.core.step = die
        # posted while the thread is busy
        later = [asyncio.create_task(read(engine, [2])), asyncio.create_task(engine.call(lambda core: core.has_work))]
        await asyncio.sleep(0)
        gate.set()
        assert await held
        for task in (running, later[0]):
            with pytest.raises(HoldoverError, match="out of luck"):
                await task
        # it was either done before the end, or refused
        result = (await asyncio.gather(later[1], return_exceptions=True))[0]
        assert result is True or isinstance(result, HoldoverError)
        assert not engine.is_healthy
        with pytest.raises(HoldoverError, match="out of luck"):
            await engine.generate([3])

    asyncio.run(main())


def test_what_was_posted_and_not_read_is_refused(engine: AsyncEngine) -> None:
    async def main():
        def die():
            raise RuntimeError("out of luck")

        def post_and_die(core):
            # on the engine's thread: nothing posted here is read before the thread ends
            core.step = die
            ready.set()
            gate.wait()
            raise SystemExit

        ready, gate = threading.Event(), threading.Event()
        dying = asyncio.create_task(engine.call(post_and_die))
        while not ready.is_set():
            await asyncio.sleep(0.001)
        waiting = [asyncio.create_task(read(engine, [2])), asyncio.create_task(engine.call(lambda core: 1))]
        await asyncio.sleep(0.01)
        gate.set()
        for task in waiting:
            with pytest.raises(HoldoverError):
                await asyncio.wait_for(task, 20)
        with pytest.raises(HoldoverError):
            await asyncio.wait_for(dying, 20)

    asyncio.run(main())


def test_a_caller_whose_loop_has_closed_stops_nobody(engine: AsyncEngine) -> None:
    """What it asked for is done later, and there is no loop left to say so on."""
    gate = threading.Event()

    async def leave():
        for job in (engine.call(lambda core: gate.wait(20)), read(engine, [1, 2])):
            asyncio.get_running_loop().create_task(job)
        await asyncio.sleep(0.01)

    asyncio.run(leave())
    gate.set()
    output = asyncio.run(engine.generate([1, 2], SamplingParams(max_tokens=3)))
    assert_greedy(TOY, output, logprobs=False)
    assert engine.is_healthy


def test_leaving_after_the_end_keeps_the_reason_for_leaving(engine: AsyncEngine) -> None:
    """A cancelled task is cancelled, although its abort can no longer be posted."""

    async def main():
        stream = engine.run(engine.sequence([1, 2, 3], LONG))
        await anext(stream)
        engine.close()
        await stream.aclose()

    asyncio.run(main())
