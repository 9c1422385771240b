"""Conversations as token ids, and the depths up to which the next turn is sure to repeat them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from holdover.engine.alike import alike
from holdover.errors import RequestError


class Template(Protocol):
    """The part of a tokenizer that renders conversations."""

    def render(self, messages: Sequence[Mapping[str, Any]], /, **options: Any) -> list[int]:
        """Token ids of a conversation, ready for the assistant's next turn."""


# two texts that share no beginning, so that what both leave alone does not depend on the text
_PROBES = ("x", "7.")


def render_chat(
    template: Template, messages: Sequence[Mapping[str, Any]], /, **options: Any
) -> tuple[list[int], tuple[int, ...]]:
    """Render a conversation.

    Templates may re-render earlier turns (drop thinking, rewrite tool calls), so the end of a generation need not
    recur. The boundary is found by asking the template itself: it is where the prompt and its own continuation by
    a reply and a further question begin to differ. After the result of a call the next turn is taken to be another
    call: a further question might drop all that was thought since the one before, where that one's boundary is.

    Returns:
        Token ids, and the boundaries within them in ascending order (empty if the template refuses to go on).

    Raises:
        RequestError: the template refuses the messages.
    """
    ids = template.render(messages, **options)
    try:
        continued = [template.render([*messages, *_next_turn(messages, probe)], **options) for probe in _PROBES]
    except RequestError:
        return ids, ()
    boundary = min(alike(ids, other) for other in continued)
    return ids, (boundary,) if boundary else ()


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
        tokens = first[: alike(first, second)]
    if not tokens:
        raise RequestError("what follows these messages changes how they are rendered from the start", param="messages")
    return tokens


def _next_turn(messages: Sequence[Mapping[str, Any]], probe: str) -> list[Mapping[str, Any]]:
    """A reply that begins with ``probe``, and what follows it."""
    call = max((i for i, message in enumerate(messages) if message.get("tool_calls")), default=None)
    if messages[-1]["role"] != "tool" or call is None:
        return [{"role": "assistant", "content": probe}, {"role": "user", "content": probe}]
    # the same again, in the form that this template can read
    return [{**messages[call], "content": probe, "reasoning_content": probe}, *messages[call + 1 :]]
