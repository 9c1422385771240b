"""An engine core with chunks, on tiny models."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from holdover.chunks import Chunk, ChunkOptions
from holdover.engine.chunks.settings import ChunkSettings
from holdover.engine.request import Output
from holdover.engine.sampling import SamplingParams
from tests.arch.table import VOCAB
from tests.engine.harness import Bench, prompt_of

EVERYTHING = ChunkOptions(transitions=True, bodies=True, inputs=True)
QUERY = prompt_of(5, seed=99)


def chunks_of(*lengths: int) -> list[Chunk]:
    """A chunk of random tokens for each length."""
    return [Chunk(prompt_of(length, seed=10 + i)) for i, length in enumerate(lengths)]


def tokens_of(parts: Sequence[Chunk | Sequence[int]], query: Sequence[int] = ()) -> tuple[int, ...]:
    """All tokens of a prompt."""
    return tuple(itertools.chain(*(p.tokens if isinstance(p, Chunk) else p for p in parts), query))


class ChunkBench(Bench):
    """A bench that also takes requests over chunks, which report whole distributions like all others."""

    def __init__(
        self, name: str, *, extras: ChunkOptions = EVERYTHING, chunk_rows: int | None = None, **options
    ) -> None:
        self.settings = ChunkSettings(rows=chunk_rows, extras=extras)
        super().__init__(name, chunks=self.settings, **options)

    def want(self, parts, query=QUERY, tokens: int = 4, *, params: dict | None = None, **request) -> str:
        """Queue a request over chunks; returns its id."""
        sampling = SamplingParams(**{"max_tokens": tokens, "logprobs": VOCAB, **(params or {})})
        sequence = self.prepare.composed(parts, query, sampling, self.settings, **request)
        self.core.add(sequence)
        return sequence.request.id

    def ask(self, parts, query=QUERY, tokens: int = 4, **request) -> Output:
        """Run one request over chunks alone."""
        request_id = self.want(parts, query, tokens, **request)
        return self.run(self.steps + 2000)[request_id]

    def build(self, chunk: Chunk, salt: str = "") -> None:
        """Build a chunk that no request asks for."""
        job = self.core.chunks.builds.want(self.prepare.namespace(salt), chunk.tokens)
        self.run(self.steps + 2000)
        assert job.is_done
        assert job.error is None, job.error

    @property
    def store(self):
        return self.core.chunks.store

    def assert_empty(self) -> None:
        """As of all benches; chunks go with the rest."""
        super().assert_empty()
        assert not self.store.entries
        assert not self.core.chunks._holds
