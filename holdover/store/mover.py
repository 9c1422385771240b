"""Moving leased bytes without holding the engine up: at once, on a worker thread, or on a CUDA stream of its own.

A mover runs jobs that read one slot and write another, both leased by whoever started the job. Nothing is decided
here: whether the source may be released is the owner's business once the job is done (DASC B.2, transactional
demotion).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch

Job = Callable[[], None]


class Transfer(Protocol):
    """A job that was started."""

    def is_done(self) -> bool:
        """Whether it has ended, well or not."""

    def wait(self) -> None:
        """Block until it has ended; raises what it raised."""


class Mover(Protocol):
    """Runs jobs in the order in which they were started."""

    def start(self, job: Job) -> Transfer:
        """Start a job. Raises only if nothing was started."""

    def close(self) -> None:
        """Wait for all jobs and stop."""


class Ended:
    """A job that has ended already, or could not be started."""

    def __init__(self, error: BaseException | None) -> None:
        self._error = error

    def is_done(self) -> bool:
        """Yes."""
        return True

    def wait(self) -> None:
        """Raise what the job raised."""
        if self._error is not None:
            raise self._error


class Inline:
    """Runs each job before `start` returns."""

    def start(self, job: Job) -> Transfer:
        """Run it."""
        try:
            job()
        except Exception as error:
            return Ended(error)
        return Ended(None)

    def close(self) -> None:
        """Nothing is pending."""


class _Awaited:
    """A job on the worker."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def is_done(self) -> bool:
        """Whether the worker has ended it."""
        return self._future.done()

    def wait(self) -> None:
        """Block until it has."""
        self._future.result()


class Worker:
    """Runs jobs on one thread of its own: copies between tensors let go of the interpreter."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdover-mover")

    def start(self, job: Job) -> Transfer:
        """Queue it."""
        return _Awaited(self._executor.submit(_without_grad, job))

    def close(self) -> None:
        """Wait for the queue to run dry."""
        self._executor.shutdown(wait=True)


class _Recorded:
    """Kernels on a side stream, up to an event."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def is_done(self) -> bool:
        """Whether the device has passed the event."""
        return bool(self._event.query())

    def wait(self) -> None:
        """Block until it has."""
        self._event.synchronize()


class Stream:
    """Queues jobs' kernels on a background CUDA stream, after all that was queued on the current one.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def start(self, job: Job) -> Transfer:
        """Queue its kernels and record an event behind them."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        event = torch.cuda.Event()
        with torch.cuda.stream(self._stream):
            try:
                job()
            except Exception as error:
                return Ended(error)
            event.record(self._stream)
        return _Recorded(event)

    def close(self) -> None:
        """Wait for the stream."""
        self._stream.synchronize()


def mover_for(device: torch.device) -> Mover:
    """The mover that keeps the engine running on ``device``."""
    return Stream(device) if device.type == "cuda" else Worker()


def _without_grad(job: Job) -> None:
    with torch.inference_mode():
        job()
