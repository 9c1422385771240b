"""Keeping a prefix in the cache: what of it is not there yet is computed first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from holdover.engine.async_engine import AsyncEngine
from holdover.engine.chat import Template, render_chat
from holdover.engine.core import EngineCore
from holdover.engine.sampling import SamplingParams
from holdover.errors import CapacityError, RequestError
from holdover.prefix.pins import Pin

_PROBES = ("x", "7.")


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
        # the scratch slot of refreshes is the engine's own
        return core.cache.pins.add(namespace, tokens, reserved=int(core.refresh is not None))

    pinned = await engine.call(attempt)
    if pinned is None:
        await engine.generate(list(tokens), SamplingParams(max_tokens=1), salt=salt, checkpoint_at=(len(tokens),))
        pinned = await engine.call(attempt)
    if pinned is None:
        raise CapacityError(f"no state slot was left for the checkpoint at depth {len(tokens)}: ask again later")
    return pinned


def prefix_of(template: Template, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Tokens that every conversation begins with which goes on from ``messages``, as the template renders it.

    Raises:
        RequestError: the template refuses the messages, or what follows changes all of it.
    """
    if messages[-1]["role"] == "user":
        ids, boundaries = render_chat(template, messages)
        tokens = ids[: boundaries[-1]] if boundaries else ids
    else:
        first, second = (template.render([*messages, {"role": "user", "content": probe}]) for probe in _PROBES)
        tokens = [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))]
    if not tokens:
        raise RequestError("what follows these messages changes how they are rendered from the start", param="messages")
    return tokens
