"""Chunks that are wanted and not there yet: built one at a time, each once however many want it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from holdover.chunks import ChunkEntry, ChunkSpill, ChunkStore
from holdover.engine.chunks.prefill import ChunkPrefill
from holdover.engine.runner import Runner
from holdover.errors import CapacityError

logger = logging.getLogger(__name__)


class BuildJob:
    """A chunk that somebody waits for.

    Attributes:
        namespace: model and tenant of the tokens.
        tokens: the chunk.
        is_done: whether it was built, or cannot be.
        error: why it cannot be.
    """

    def __init__(self, namespace: bytes, tokens: Sequence[int]) -> None:
        self.namespace = namespace
        self.tokens = tuple(tokens)
        self.is_done = False
        self.error: Exception | None = None

    def end(self, error: Exception | None = None) -> None:
        """Built, or given up with ``error``."""
        self.is_done, self.error = True, error


class Builds:
    """The queue of builds. Used by the engine thread only.

    Args:
        runner: the model on its pools.
        store: where chunks go.
        spill: keeps chunks below the resident tiers; None if nothing does.
    """

    def __init__(self, runner: Runner, store: ChunkStore, spill: ChunkSpill | None = None) -> None:
        self._runner, self._store, self._spill = runner, store, spill
        self._jobs: dict[tuple[bytes, tuple[int, ...]], BuildJob] = {}
        self._active: ChunkPrefill | None = None

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def is_active(self) -> bool:
        """Whether a build owns rows and a live slot."""
        return self._active is not None

    def find(self, namespace: bytes, tokens: Sequence[int]) -> ChunkEntry | None:
        """The chunk if it is there, brought up from below if need be; None if it has to be built.

        Raises:
            CapacityError: there is no room to bring it up.
        """
        found = self._store.find(namespace, tokens)
        if found is None and self._spill is not None and not self._store.is_building(namespace, tokens):
            found = self._spill.fetch(namespace, tokens)
        return found

    def want(self, namespace: bytes, tokens: Sequence[int]) -> BuildJob:
        """The job that builds a chunk: one for all who want it."""
        key = (namespace, tuple(tokens))
        return self._jobs.setdefault(key, BuildJob(*key))

    def advance(self, most: int, *, may_wait: bool) -> None:
        """Run up to ``most`` tokens of the first chunk in the queue; a failure ends its job.

        Args:
            most: tokens.
            may_wait: whether room may come free by itself, so that a lack of it is no failure.
        """
        key, job = next(iter(self._jobs.items()))
        try:
            entry = self._advance(job, most)
        except Exception as error:
            self._active = None
            if isinstance(error, CapacityError) and may_wait:
                return
            logger.exception("a chunk of %d tokens was not built", len(job.tokens))
            job.end(error)
            del self._jobs[key]
        except BaseException:
            self._active = None
            raise
        else:
            if entry is not None:
                self._active = None
                job.end()
                del self._jobs[key]

    def interrupt(self) -> bool:
        """Give back what the build under way owns; it begins again later. Whether there was one."""
        if self._active is None:
            return False
        active, self._active = self._active, None
        active.cancel()
        return True

    def _advance(self, job: BuildJob, most: int) -> ChunkEntry | None:
        if self._active is None:
            if (found := self.find(job.namespace, job.tokens)) is not None:
                return found
            self._active = ChunkPrefill(self._runner, self._store, job.namespace, job.tokens)
        entry = self._active.advance(most)
        if entry is not None and self._spill is not None:
            self._spill.put(entry)
        return entry
