"""From a validated request to its answer, whole or streamed, with the client watched meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import Request, Response

from holdover.engine.async_engine import AsyncEngine
from holdover.engine.request import Output, Update
from holdover.engine.sequence import Sequence
from holdover.server.errors import ApiError, ClientGoneError, as_api_error
from holdover.server.metrics import Metrics, Outcome
from holdover.server.schemas import GenerationRequest
from holdover.server.shapes import Shape
from holdover.server.sse import DONE, EventStream, event
from holdover.server.wire import json_response, wait_for_disconnect

T = TypeVar("T")
_WORKERS = 4


class Service:
    """An engine and what the server adds to it.

    Args:
        engine: the engine.
        model_name: the name that the model is served by.
    """

    def __init__(self, engine: AsyncEngine, model_name: str) -> None:
        self.engine = engine
        self.model_name = model_name
        self.metrics = Metrics()
        # tokenizing megabytes takes seconds, in which neither the event loop nor shorter requests may wait
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="holdover-prepare")

    @property
    def token_text(self) -> Callable[[int], str]:
        """Text of one token."""
        return self.engine.engine.loaded.tokenizer.token_text

    def check_model(self, name: str) -> None:
        """Raise ApiError unless ``name`` is the model that is served."""
        if name != self.model_name:
            message = f"the model {name!r} does not exist: this server serves {self.model_name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def check_engine(self) -> None:
        """Raise ApiError unless the engine runs."""
        if not self.engine.is_healthy:
            raise ApiError(503, "the engine has stopped; the server must be restarted", code="engine_stopped")

    async def prepare(self, asked: GenerationRequest, sequence_id: str) -> Sequence:
        """The request as the engine runs it.

        Raises:
            RequestError: the engine cannot run it.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._workers, asked.sequence, self.engine, sequence_id)

    async def answer(self, request: Request, sequence: Sequence, shape: Shape, *, stream: bool) -> Response:
        """Run a sequence and answer; when the client goes away, the sequence is aborted.

        Raises:
            ClientGoneError: it did.
            Exception: the engine failed on the sequence, before a stream's first token if it is one.
        """
        updates = self._run(sequence)
        if stream:
            # a failure up to the first token still has a status of its own
            first = await _while_connected(request, anext(updates))
            return EventStream(self._events(request, first, updates, shape), source=updates)
        return json_response(shape.whole(await _while_connected(request, _last(updates))))

    def close(self) -> None:
        """Stop the engine. Blocks until its step in progress ends."""
        self._workers.shutdown(cancel_futures=True)
        self.engine.close()

    async def _run(self, sequence: Sequence) -> AsyncGenerator[Update]:
        """The engine's updates, counted."""
        outcome: Outcome = "abort"
        try:
            async with aclosing(self.engine.run(sequence)) as updates:
                async for update in updates:
                    self.metrics.count_tokens(len(update.token_ids))
                    if update.output is not None:
                        outcome = update.output.finish_reason
                        if update.output.error is not None:
                            raise update.output.error
                        self.metrics.observe(update.output)
                    yield update
        except Exception:
            outcome = "error"
            raise
        finally:
            self.metrics.count_request(outcome)

    async def _events(
        self, request: Request, first: Update, updates: AsyncGenerator[Update], shape: Shape
    ) -> AsyncGenerator[bytes]:
        try:
            for chunk in shape.chunks(first):
                yield event(chunk)
            async for update in updates:
                for chunk in shape.chunks(update):
                    yield event(chunk)
        except Exception as error:
            # the status has been sent: what is left is to say it in the stream, which then ends without [DONE]
            yield event(as_api_error(error, request.state.request_id).body)
        else:
            yield DONE


async def _last(updates: AsyncGenerator[Update]) -> Output:
    async with aclosing(updates):
        async for update in updates:
            if update.output is not None:
                return update.output
    raise RuntimeError("the engine ended a request without an output")


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
