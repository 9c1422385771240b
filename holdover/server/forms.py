"""Forms in which some fields may be sent, for the API's description. What is sent is checked by `fields`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Prompts = str | list[int] | list[str | list[int]]
Stops = str | list[str]
Biases = dict[Annotated[str, Field(pattern="^[0-9]+$")], float]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SchemaFormat(_Closed):
    """A JSON schema that answers must match."""

    name: str
    definition: dict[str, Any] = Field(alias="schema")
    description: Any = None
    strict: Any = None


class ResponseFormat(_Closed):
    """What answers must match."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None


class ChunkMark(_Closed):
    """Whether a text is a chunk."""

    chunk: bool


class TextPart(BaseModel):
    """A part of a message's content."""

    type: Literal["text"]
    text: str
    holdover: ChunkMark | None = None


Content = str | list[TextPart] | None
