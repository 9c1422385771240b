"""Why a request resumed where it did, in words."""

from __future__ import annotations

from dataclasses import replace

from holdover.chunks import Repair
from holdover.engine.request import CacheReport, Request
from holdover.prefix import Match
from holdover.state import Lineage
from holdover.store import StateTiers


def explain(
    request: Request, match: Match, lineage: Lineage, tiers: StateTiers, refreshed: tuple[int, float] = (0, 0.0)
) -> CacheReport:
    """Describe what the cache gave a request when it was first admitted.

    Args:
        request: the request.
        match: what was found.
        lineage: what the resumed state is, its refresh included.
        tiers: where it was.
        refreshed: tokens replayed to recover omitted units, and the seconds that took.
    """
    total, kv, state = len(request.prompt), match.kv_depth, match.state_depth
    return CacheReport(
        prompt_tokens=total,
        kv_depth=kv,
        state_depth=state,
        reason=_reason(request, total, kv, state),
        tier=match.tier,
        source=match.source,
        lineage=str(lineage) if match.node is not None else None,
        checkpoint_bytes=0 if match.tier is None else tiers.checkpoint_bytes(match.tier),
        omitted=tiers.codec.omitted if match.tier == "compressed" else 0.0,
        refresh_tokens=refreshed[0],
        refresh_seconds=refreshed[1],
    )


def add_chunks(report: CacheReport, repair: Repair | None, lineage: Lineage) -> CacheReport:
    """Say of a request over chunks what was taken from them and what was run, once it was admitted."""
    assert repair is not None
    if repair.is_full:
        # an ordinary request: what it did not find in the cache was run
        recomputed = sum(position >= report.state_depth for position in repair.assembly.cached)
        return replace(report, recomputed=recomputed, new=report.prompt_tokens - report.state_depth - recomputed)
    if report.state_depth:
        return replace(report, new=report.prompt_tokens - report.state_depth)
    reused, recomputed, new = repair.usage
    reason = f"composed: {reused} of {report.prompt_tokens} tokens taken from chunks, {recomputed} of theirs run again"
    return replace(report, reason=reason, lineage=str(lineage), reused=reused, recomputed=recomputed, new=new)


def _reason(request: Request, total: int, kv: int, state: int) -> str:
    outcome, composition = _outcome(request, total, kv, state), request.composition
    if composition is None or not composition.why:
        return outcome
    return f"{outcome}; chunks were prefilled as part of the prompt: {composition.why}"


def _outcome(request: Request, total: int, kv: int, state: int) -> str:
    if not request.use_cache:
        return "miss: the request asked not to use the cache"
    if request.params.prompt_logprobs is not None:
        return "miss: prompt logprobs need every prompt token computed"
    if kv == 0:
        return "miss: no cached prompt of this tenant begins as this one does"
    if state == 0:
        kind = "exact checkpoint" if request.exact else "checkpoint"
        return f"miss: KV is cached for {kv} of {total} tokens, but no {kind} of the state lies at or below that"
    if state >= kv or state >= total - 1:
        return f"hit: resumed at {state} of {total} tokens"
    kind = "exact checkpoint" if request.exact else "checkpoint that may be resumed"
    limit = f"KV reaches {kv}, but no deeper {kind} lies below the last token"
    return f"hit: resumed at {state} of {total} tokens; {limit}"
