"""Why a request resumed where it did, in words."""

from __future__ import annotations

from holdover.engine.request import CacheReport, Request
from holdover.prefix import Match


def explain(request: Request, match: Match) -> CacheReport:
    """Describe what the cache gave a request when it was first admitted."""
    total, kv, state = len(request.prompt), match.kv_depth, match.state_depth
    return CacheReport(
        prompt_tokens=total,
        kv_depth=kv,
        state_depth=state,
        tier=match.tier,
        lineage=str(match.header.lineage) if match.header is not None else None,
        reason=_reason(request, total, kv, state),
    )


def _reason(request: Request, total: int, kv: int, state: int) -> str:
    if not request.use_cache:
        return "miss: the request asked not to use the cache"
    if request.params.prompt_logprobs is not None:
        return "miss: prompt logprobs need every prompt token computed"
    if kv == 0:
        return "miss: no cached prompt of this tenant begins as this one does"
    if state == 0:
        return f"miss: KV is cached for {kv} of {total} tokens, but no checkpoint of the state lies at or below that"
    if state >= kv or state >= total - 1:
        return f"hit: resumed at {state} of {total} tokens"
    return (
        f"hit: resumed at {state} of {total} tokens; KV reaches {kv}, but no deeper checkpoint of the state is cached"
    )
