"""The engine on a thread of its own, for servers: many concurrent requests, each an asynchronous stream."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import ExitStack, aclosing, suppress
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from holdover.engine.chat import render_chat
from holdover.engine.core import EngineCore
from holdover.engine.delivery import Sink, Updates, deliver, send
from holdover.engine.engine import Engine, Prompt
from holdover.engine.origin import remembered
from holdover.engine.request import Output, Update
from holdover.engine.sampling import SamplingParams
from holdover.engine.sequence import Sequence as EngineSequence
from holdover.errors import EngineClosedError, HoldoverError
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
        self._inbox: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        # used by the engine's thread only
        self._sinks: dict[str, Sink] = {}
        self._thread = threading.Thread(target=self._loop, name="holdover-engine", daemon=True)
        self._failure: BaseException | None = None
        self._closed = False
        # guards the end: what is posted is either done or refused, never forgotten
        self._ending = threading.Lock()
        self._ended = False
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

    async def run(self, sequence: EngineSequence) -> AsyncGenerator[Update]:
        """Run a sequence, yielding updates; the last one carries the output.

        Leaving the iteration early, or cancelling the task, aborts the request.

        Raises:
            HoldoverError: the engine's thread has ended.
        """
        async with aclosing(self.run_together([[sequence]])) as updates:
            async for _, update in updates:
                yield update

    async def run_together(self, groups: Sequence[Sequence[EngineSequence]]) -> AsyncGenerator[tuple[int, Update]]:
        """Run sequences, yielding each update with the number of its sequence, counted over all groups.

        The first sequence of a group starts at once and the others when it has a token, so that those of one prompt
        find in the cache what the first one computed.

        Leaving the iteration early, or cancelling the task, aborts what has not ended.

        Raises:
            HoldoverError: the engine's thread has ended.
        """
        loop = asyncio.get_running_loop()
        updates: Updates = asyncio.Queue()
        running: dict[int, str] = {}
        followers: dict[int, Sequence[tuple[int, EngineSequence]]] = {}

        def start(number: int, sequence: EngineSequence) -> None:
            sink = Sink(loop, updates, number)
            names.enter_context(remembered(sequence.request.id))
            self._post(_Work(lambda: self._start(sequence, sink), sink.put))
            running[number] = sequence.request.id

        with ExitStack() as names:
            try:
                numbered = enumerate(sequence for group in groups for sequence in group)
                for (number, first), *others in [list(islice(numbered, len(group))) for group in groups]:
                    followers[number] = others
                    start(number, first)
                while running:
                    number, update = await updates.get()
                    if isinstance(update, Exception):
                        del running[number]
                        raise update
                    if update.output is not None:
                        del running[number]
                    if update.output is None or update.output.error is None:
                        for follower in followers.pop(number, ()):
                            start(*follower)
                    yield number, update
            finally:
                # an engine that has ended has aborted them already, and the reason for leaving must not be replaced
                with suppress(HoldoverError):
                    for request_id in running.values():
                        self._post(_Work(partial(self._abort, request_id)))

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
        """Run ``function`` on the engine's thread between two steps and return its result.

        Raises:
            HoldoverError: the engine's thread has ended.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def resolve(result: T | None, error: Exception | None) -> None:
            if not future.done():
                future.set_exception(error) if error else future.set_result(result)  # type: ignore[arg-type]

        def refuse(error: Exception) -> None:
            loop.call_soon_threadsafe(resolve, None, error)

        def work() -> None:
            try:
                result = function(self.engine.core)
            except Exception as error:
                send(refuse, error)
            except BaseException as error:
                send(refuse, HoldoverError(f"the engine stopped: {error!r}"))
                raise
            else:
                send(lambda value: loop.call_soon_threadsafe(resolve, value, None), result)

        self._post(_Work(work, refuse))
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

    def _post(self, work: _Work) -> None:
        with self._ending:
            if self._closed or self._ended:
                raise self._why()
            self._inbox.put(work)

    def _why(self) -> HoldoverError:
        if self._failure is None:
            return EngineClosedError("the engine is not running: it was closed")
        return HoldoverError(f"the engine is not running: {self._failure}")

    def _start(self, sequence: EngineSequence, sink: Sink) -> None:
        try:
            self.engine.core.add(sequence)
        except HoldoverError as error:
            send(sink.put, error)
            return
        self._sinks[sequence.request.id] = sink

    def _abort(self, request_id: str) -> None:
        self._sinks.pop(request_id, None)
        self.engine.core.abort(request_id)

    def _loop(self) -> None:
        core = self.engine.core
        try:
            while self._drain(block=not core.has_work):
                self._deliver(core.step())
                if not core.has_work:
                    # after the answers are out, and before anybody asks again
                    core.settle()
        except BaseException as error:
            logger.exception("the engine stopped")
            self._failure = error
        with self._ending:
            self._ended = True
        # everyone is told before anything else can go wrong
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            send(sink.put, self._why())
        while not self._inbox.empty():
            if (work := self._inbox.get()) is not None and work.refuse is not None:
                send(work.refuse, self._why())
        for request_id in sinks:
            try:
                core.abort(request_id)
            except Exception:
                logger.exception("request %s could not be ended", request_id)
        try:
            core.close()
        except Exception:
            logger.exception("what was moving between tiers could not be finished")

    def _drain(self, *, block: bool) -> bool:
        """Do what was posted; wait for something if there is nothing else to do. False when asked to end."""
        while True:
            try:
                work = self._inbox.get(block=block)
            except queue.Empty:
                return True
            if work is None:
                return False
            work.do()
            block = False

    def _deliver(self, updates: Sequence[Update]) -> None:
        waited = []
        for update in updates:
            sink = self._sinks.get(update.request_id)
            if sink is not None:
                if update.output is not None:
                    del self._sinks[update.request_id]
                waited.append((sink, update))
        deliver(waited)


class _Work(NamedTuple):
    """Something posted to the engine's thread.

    Attributes:
        do: does it.
        refuse: tells whoever posted it that it will not be done, if anybody waits for it.
    """

    do: Callable[[], None]
    refuse: Callable[[Exception], None] | None = None
