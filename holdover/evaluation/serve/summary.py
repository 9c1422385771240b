"""What a run's requests say together: over all of them, hits and misses, and over runs (DASC App. C.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from holdover.evaluation.latency import mean, percentile
from holdover.evaluation.serve.drive import Measured


@dataclass(frozen=True)
class Summary:
    """Statistics of one run, or their means over several.

    Attributes:
        requests: requests that were answered.
        ttft_mean_ms: time to the first text.
        ttft_p95_ms: its 95th percentile within the run.
        e2e_mean_ms: time to the end.
        e2e_p95_ms: its 95th percentile within the run.
        hit: share of all prompt tokens that were not computed; None if the server does not say.
    """

    requests: float
    ttft_mean_ms: float
    ttft_p95_ms: float
    e2e_mean_ms: float
    e2e_p95_ms: float
    hit: float | None


def summarise(measured: Sequence[Measured]) -> Summary:
    """Statistics of at least one request."""
    first, whole = [one.ttft_ms for one in measured], [one.e2e_ms for one in measured]
    return Summary(
        requests=len(measured),
        ttft_mean_ms=mean(first),
        ttft_p95_ms=percentile(first, 95),
        e2e_mean_ms=mean(whole),
        e2e_p95_ms=percentile(whole, 95),
        hit=_hit(measured),
    )


def mean_of(summaries: Sequence[Summary]) -> Summary:
    """Each statistic averaged over runs: requests of different runs are never pooled."""
    columns = ([getattr(one, field.name) for one in summaries] for field in fields(Summary))
    return Summary(*(None if None in column else mean(column) for column in columns))  # type: ignore[arg-type]


def _hit(measured: Sequence[Measured]) -> float | None:
    prompts = [one.prompt_tokens for one in measured if one.prompt_tokens is not None]
    cached = [one.cached_tokens for one in measured if one.cached_tokens is not None]
    is_known = len(prompts) == len(cached) == len(measured) and sum(prompts) > 0
    return sum(cached) / sum(prompts) if is_known else None
