"""Counters of an engine's work, for metrics and tests."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from holdover.engine.request import CacheReport
from holdover.state import Lineage


@dataclass
class EngineStats:
    """Running totals since the engine started.

    Attributes:
        prefill_forwards: forwards that ran more than one token of one sequence.
        decode_forwards: forwards that ran the next token of every decoding sequence, and drafts behind it.
        prefill_tokens: tokens computed by the former.
        decode_tokens: tokens computed by the latter, rejected drafts left out.
        prompt_tokens: prompt tokens of admitted requests.
        hit_tokens: prompt tokens that a checkpoint saved from being computed.
        finished: requests that ended by themselves.
        aborted: requests that were aborted.
        failed: requests that ended by an error.
        preemptions: times a running request gave its memory up to an older one.
        checkpoints_skipped: checkpoints not taken because no slot could be had.
        hits: requests that resumed, by the tier that they resumed from.
        approximate_hits: those of them whose state is not exact.
        losses_max: most lossy restores in the past of a resumed state.
        refresh_tokens: tokens replayed to recover omitted units.
        refresh_seconds: time that took.
        refreshes_failed: restored states that were used without the refresh that was asked for.
        composed: requests whose prompt was composed of chunks.
        chunk_tokens: prompt tokens of requests over chunks, by what was done for them: ``reused`` from chunks,
            ``recomputed`` or ``new``; what a checkpoint saved is none of them.
    """

    prefill_forwards: int = 0
    decode_forwards: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    preemptions: int = 0
    checkpoints_skipped: int = 0
    hits: Counter[str] = field(default_factory=lambda: Counter(native=0, compressed=0, host=0, disk=0))
    approximate_hits: int = 0
    losses_max: int = 0
    refresh_tokens: int = 0
    refresh_seconds: float = 0.0
    refreshes_failed: int = 0
    composed: int = 0
    chunk_tokens: Counter[str] = field(default_factory=lambda: Counter(reused=0, recomputed=0, new=0))

    def count_forward(self, sequences: int, count: int) -> None:
        """A forward ran ``count`` tokens of each of ``sequences``."""
        if count == 1:
            self.count_decode(sequences, sequences)
        else:
            self.prefill_forwards += 1
            self.prefill_tokens += count

    def count_decode(self, sequences: int, tokens: int) -> None:
        """A forward advanced ``sequences`` that decode by ``tokens`` in all."""
        self.decode_forwards += 1
        self.decode_tokens += tokens

    def count_admission(self, prompt: int, resumed: int, tier: str | None, lineage: Lineage) -> None:
        """A request of ``prompt`` tokens resumed at depth ``resumed``, from ``tier`` if it did at all."""
        self.prompt_tokens += prompt
        self.hit_tokens += resumed
        if tier is not None:
            self.hits[tier] += 1
            self.approximate_hits += not lineage.is_exact
            self.losses_max = max(self.losses_max, lineage.losses)

    def count_chunks(self, report: CacheReport) -> None:
        """A request over chunks was admitted, as ``report`` says."""
        self.composed += report.reused > 0
        self.chunk_tokens.update(reused=report.reused, recomputed=report.recomputed, new=report.new)
