"""What chats say of chunks: which of their text is one, and how the prompt is composed."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict


class ChunkChoice(BaseModel):
    """How a prompt is composed of its chunks; None follows the server's settings."""

    model_config = ConfigDict(strict=True, extra="forbid")

    selector: str | None = None
    initialiser: str | None = None
    ratio: float | None = None
    window: str | None = None


@dataclass(frozen=True)
class ChunkText:
    """Text of a message that is marked as a chunk."""

    text: str


def part(value: object) -> str | ChunkText:
    """A part of a message's ``content``: text, or ``{"type": "text", "text": ..., "holdover": {"chunk": true}}``.

    Raises:
        ValueError: it is neither; the message says why.
    """
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or kind != "text":
        raise ValueError(f"only text is supported, and a part is of type {kind!r}")
    text, mark = value.get("text"), value.get("holdover")
    if not isinstance(text, str):
        raise ValueError("a text part needs a string in 'text'")
    if mark is None:
        return text
    if not isinstance(mark, dict) or mark.keys() != {"chunk"} or not isinstance(mark["chunk"], bool):
        raise ValueError("'holdover' of a text part must be {'chunk': true}")
    if mark["chunk"] and not text:
        raise ValueError("a part that is marked as a chunk needs some text")
    return ChunkText(text) if mark["chunk"] else text
