"""Keeping a prefix in the cache: what of it is not there yet is computed first."""

from __future__ import annotations

from collections.abc import Sequence

from holdover.engine.async_engine import AsyncEngine
from holdover.engine.core import EngineCore
from holdover.engine.sampling import SamplingParams
from holdover.errors import CapacityError
from holdover.prefix.pins import Pin


async def pin(engine: AsyncEngine, tokens: Sequence[int], *, salt: str = "") -> Pin:
    """Pin a prefix, computing its state if the cache has none.

    Args:
        engine: the engine.
        tokens: the prefix.
        salt: tenant that it belongs to.

    Raises:
        RequestError: it is empty or too long, or pins would take more than half of a budget.
        CapacityError: running requests leave no slot for its state.
    """
    namespace = engine.engine.prepare.namespace(salt)

    def attempt(core: EngineCore) -> Pin | None:
        return core.pin(namespace, tokens)

    pinned = await engine.call(attempt)
    if pinned is None:
        await engine.generate(list(tokens), SamplingParams(max_tokens=0), salt=salt, checkpoint_at=(len(tokens),))
        pinned = await engine.call(attempt)
    if pinned is None:
        raise CapacityError(f"no state slot was left for the checkpoint at depth {len(tokens)}: ask again later")
    return pinned
