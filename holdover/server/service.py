"""From a validated request to its answer, whole or streamed, with the client watched meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request, Response

from holdover.engine.async_engine import AsyncEngine
from holdover.engine.request import Output, Update
from holdover.server.errors import ApiError, ClientGoneError, as_api_error
from holdover.server.jobs import Job
from holdover.server.metrics import Metrics
from holdover.server.shapes import Shape
from holdover.server.sse import DONE, EventStream, event
from holdover.server.wire import json_response, wait_for_disconnect

if TYPE_CHECKING:
    from holdover.server.tracing import Tracing

T = TypeVar("T")
Asked = TypeVar("Asked")
MakeJob = Callable[[Asked, AsyncEngine, str], Job]
_WORKERS = 4


class Service:
    """An engine and what the server adds to it.

    Args:
        engine: the engine.
        model_name: the name that the model is served by.
        tracing: told how requests ran; None for no traces.
    """

    def __init__(self, engine: AsyncEngine, model_name: str, tracing: Tracing | None = None) -> None:
        self.engine = engine
        self.model_name = model_name
        self.metrics = Metrics()
        self._tracing = tracing
        # tokenizing megabytes takes seconds, in which neither the event loop nor shorter requests may wait
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="holdover-prepare")

    def check_model(self, name: str) -> None:
        """Raise ApiError unless ``name`` is the model that is served."""
        if name != self.model_name:
            message = f"the model {name!r} does not exist: this server serves {self.model_name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def check_engine(self) -> None:
        """Raise ApiError unless the engine runs."""
        if not self.engine.is_healthy:
            raise ApiError(503, "the engine has stopped; the server must be restarted", code="engine_stopped")

    async def prepare(self, make: MakeJob[Asked], asked: Asked) -> Job:
        """The request as the engine runs it.

        Raises:
            RequestError: the engine cannot run it.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._workers, make, asked, self.engine, self.model_name)

    async def answer(self, request: Request, job: Job, *, stream: bool) -> Response:
        """Run a job and answer; when the client goes away, it is aborted.

        Raises:
            ClientGoneError: it did.
            Exception: the engine failed on one of the sequences, before a stream's first token if it is one.
        """
        updates = self._run(job)
        if stream:
            # a failure up to the first token still has a status of its own
            first = await _while_connected(request, anext(updates))
            return EventStream(self._events(request, first, updates, job.shape), source=updates)
        return json_response(job.shape.whole(await _while_connected(request, _all(updates))))

    def close(self) -> None:
        """Stop the engine. Blocks until its step in progress ends."""
        self._workers.shutdown(cancel_futures=True)
        self.engine.close()
        if self._tracing is not None:
            self._tracing.close()

    async def _run(self, job: Job) -> AsyncGenerator[tuple[int, Update]]:
        """The engine's updates, counted. Every choice counts as a request of its own."""
        running = set(range(sum(map(len, job.groups))))
        firsts = set(accumulate(map(len, job.groups), initial=0))
        failed = False
        try:
            async with aclosing(self.engine.run_together(job.groups)) as updates:
                async for number, update in updates:
                    self.metrics.count_tokens(len(update.token_ids))
                    if (output := update.output) is not None:
                        if self._tracing is not None:
                            self._tracing.record(
                                output, model=self.model_name, choice=number, is_first=number in firsts
                            )
                        if output.error is not None:
                            raise output.error
                        running.remove(number)
                        self.metrics.count_request(output.finish_reason)
                        self.metrics.observe(output)
                    yield number, update
        except Exception as error:
            failed = True
            if self._tracing is not None:
                self._tracing.fail(error)
            raise
        finally:
            for _ in running:
                self.metrics.count_request("error" if failed else "abort")

    async def _events(
        self, request: Request, first: tuple[int, Update], updates: AsyncGenerator[tuple[int, Update]], shape: Shape
    ) -> AsyncGenerator[bytes]:
        try:
            for chunk in shape.chunks(*first):
                yield event(chunk)
            async for number, update in updates:
                for chunk in shape.chunks(number, update):
                    yield event(chunk)
        except Exception as error:
            # the status has been sent: what is left is to say it in the stream, which then ends without [DONE]
            yield event(as_api_error(error, request.state.request_id).body)
        else:
            yield DONE


async def _all(updates: AsyncGenerator[tuple[int, Update]]) -> list[Output]:
    outputs: dict[int, Output] = {}
    async with aclosing(updates):
        async for number, update in updates:
            if update.output is not None:
                outputs[number] = update.output
    return [outputs[number] for number in sorted(outputs)]


async def _while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Run ``work``, cancelled when the client goes away.

    Raises:
        ClientGoneError: it did.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(wait_for_disconnect(request))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)
