"""The engine on a thread of its own, for servers: many concurrent requests, each an asynchronous stream."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar

from holdover.engine.chat import render_chat
from holdover.engine.core import EngineCore
from holdover.engine.engine import Engine, Prompt
from holdover.engine.request import Output, Update
from holdover.engine.sampling import SamplingParams
from holdover.engine.sequence import Sequence as EngineSequence
from holdover.errors import HoldoverError
from holdover.weights.bundled import DEFAULT_MODEL

logger = logging.getLogger(__name__)
T = TypeVar("T")


class AsyncEngine:
    """Drives an `Engine` from its own thread, which alone touches the pools.

    Args:
        engine: the engine; it must not be used directly any more.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # used by the engine's thread only
        self._sinks: dict[str, Callable[[Update | Exception], None]] = {}
        self._thread = threading.Thread(target=self._loop, name="holdover-engine", daemon=True)
        self._failure: BaseException | None = None
        self._closed = False
        self._thread.start()

    @classmethod
    def from_pretrained(cls, model: str = DEFAULT_MODEL, **options: Any) -> AsyncEngine:
        """Load a model; see `Engine.from_pretrained`."""
        return cls(Engine.from_pretrained(model, **options))

    @property
    def is_healthy(self) -> bool:
        """Whether the engine's thread is running."""
        return self._thread.is_alive() and self._failure is None

    def sequence(self, prompt: Prompt, params: SamplingParams, **request: Any) -> EngineSequence:
        """Validate a request without starting it; see `Preparer.sequence`. Safe from any thread."""
        return self.engine.prepare.sequence(prompt, params, **request)

    def chat_sequence(
        self, messages: Sequence[Mapping[str, Any]], params: SamplingParams, **request: Any
    ) -> EngineSequence:
        """Render and validate a conversation without starting it. Safe from any thread."""
        ids, boundaries = render_chat(self.engine.loaded.tokenizer, messages)
        return self.sequence(ids, params, boundaries=boundaries, **request)

    async def run(self, sequence: EngineSequence) -> AsyncIterator[Update]:
        """Run a sequence, yielding updates; the last one carries the output.

        Leaving the iteration early, or cancelling the task, aborts the request.

        Raises:
            HoldoverError: the engine's thread has ended.
        """
        loop = asyncio.get_running_loop()
        updates: asyncio.Queue[Update | Exception] = asyncio.Queue()
        request_id, done = sequence.request.id, False

        def sink(update: Update | Exception) -> None:
            loop.call_soon_threadsafe(updates.put_nowait, update)

        self._post(lambda: self._start(sequence, sink))
        try:
            while not done:
                update = await updates.get()
                if isinstance(update, Exception):
                    done = True
                    raise update
                done = update.output is not None
                yield update
        finally:
            if not done:
                self._post(lambda: self._abort(request_id))

    async def generate(self, prompt: Prompt, params: SamplingParams | None = None, **request: Any) -> Output:
        """Complete one prompt.

        Raises:
            RequestError: the request is invalid.
        """
        return await self._whole(self.sequence(prompt, params or SamplingParams(), **request))

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], params: SamplingParams | None = None, **request: Any
    ) -> Output:
        """Answer a conversation.

        Raises:
            RequestError: the request is invalid.
        """
        return await self._whole(self.chat_sequence(messages, params or SamplingParams(), **request))

    async def call(self, function: Callable[[EngineCore], T]) -> T:
        """Run ``function`` on the engine's thread between two steps and return its result."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def resolve(result: T | None, error: Exception | None) -> None:
            if not future.done():
                future.set_exception(error) if error else future.set_result(result)  # type: ignore[arg-type]

        def work() -> None:
            try:
                loop.call_soon_threadsafe(resolve, function(self.engine.core), None)
            except Exception as error:
                loop.call_soon_threadsafe(resolve, None, error)

        self._post(work)
        return await future

    def close(self) -> None:
        """Abort every request and end the thread."""
        if not self._closed:
            self._closed = True
            self._inbox.put(None)
            self._thread.join()

    async def _whole(self, sequence: EngineSequence) -> Output:
        output = None
        async for update in self.run(sequence):
            output = update.output
        assert output is not None
        if output.error is not None:
            raise output.error
        return output

    def _post(self, work: Callable[[], None]) -> None:
        if self._closed or not self.is_healthy:
            raise HoldoverError(f"the engine is not running: {self._failure or 'it was closed'}")
        self._inbox.put(work)

    def _start(self, sequence: EngineSequence, sink: Callable[[Update | Exception], None]) -> None:
        if sequence.request.id in self._sinks:
            sink(HoldoverError(f"request id {sequence.request.id} is in use"))
            return
        self._sinks[sequence.request.id] = sink
        self.engine.core.add(sequence)

    def _abort(self, request_id: str) -> None:
        self._sinks.pop(request_id, None)
        self.engine.core.abort(request_id)

    def _loop(self) -> None:
        core = self.engine.core
        try:
            while self._drain(block=not core.has_work):
                for update in core.step():
                    self._deliver(update)
        except BaseException as error:
            logger.exception("the engine stopped")
            self._failure = error
        for request_id, sink in list(self._sinks.items()):
            core.abort(request_id)
            _send(sink, HoldoverError(f"the engine stopped: {self._failure or 'it was closed'}"))
        self._sinks.clear()

    def _drain(self, *, block: bool) -> bool:
        """Do what was posted; wait for something if there is nothing else to do. False when asked to end."""
        while True:
            try:
                work = self._inbox.get(block=block)
            except queue.Empty:
                return True
            if work is None:
                return False
            work()
            block = False

    def _deliver(self, update: Update) -> None:
        sink = self._sinks.get(update.request_id)
        if sink is not None:
            if update.output is not None:
                del self._sinks[update.request_id]
            _send(sink, update)


def _send(sink: Callable[[Update | Exception], None], update: Update | Exception) -> None:
    try:
        sink(update)
    except RuntimeError:
        # the caller's event loop has closed: nobody is left to tell
        logger.debug("an update found its event loop closed")
