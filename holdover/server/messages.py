"""Messages of a conversation, as clients send them and as chat templates know them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from holdover.errors import RequestError
from holdover.server import fields
from holdover.server.composing import ChunkText
from holdover.server.forms import Content
from holdover.server.tools.definitions import PastCall

# what replies have in some clients' types, and no template of ours shows a model
_UNSUPPORTED = frozenset({"annotations", "audio", "function_call", "refusal"})


def _refuse_chunk(_: str) -> str:
    raise RequestError("text can be marked as a chunk in chats only: leave 'holdover' out", param="messages")


def _describe(schema: dict[str, Any]) -> None:
    """Say what is refused only after the fields were read."""
    schema["additionalProperties"] = False
    nothing: dict[str, list[Any]] = {"enum": [None, False, 0, "", [], {}]}
    schema["properties"] |= dict.fromkeys(sorted(_UNSUPPORTED), nothing)


class ChatMessage(BaseModel):
    """One message; its content is text, and texts that are chunks."""

    model_config = ConfigDict(strict=True, extra="allow", json_schema_extra=_describe)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    name: str | None = None
    tool_calls: list[PastCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    # last: whether it may be missing depends on the others
    content: tuple[str | ChunkText, ...] = Field((), validate_default=True)

    @field_validator("content", mode="before", json_schema_input_type=Content)
    @classmethod
    def _read_content(cls, value: object, info: ValidationInfo) -> tuple[str | ChunkText, ...]:
        # a reply that only calls tools has none
        return () if not value and info.data.get("tool_calls") else fields.content(value)

    @model_validator(mode="before")
    @classmethod
    def _need_content(cls, value: Any) -> Any:
        # left out is the same as null
        return {"content": None} | value if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _refuse_what_would_be_lost(self) -> ChatMessage:
        for name, value in (self.model_extra or {}).items():
            if name not in _UNSUPPORTED:
                raise ValueError(f"unknown field: {name}")
            if value:
                raise ValueError(f"{name} is not supported")
        if self.role != "assistant" and (self.tool_calls or self.reasoning_content):
            what = "tool_calls" if self.tool_calls else "reasoning_content"
            raise ValueError(f"{what} is only allowed in messages of the assistant")
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise ValueError("tool_call_id must be in messages of the role tool, and in no others")
        return self

    @property
    def has_chunks(self) -> bool:
        """Whether some of its text is marked as a chunk."""
        return any(isinstance(part, ChunkText) for part in self.content)

    def for_template(self, *, as_text: bool, chunk: Callable[[str], str] = _refuse_chunk) -> dict[str, Any]:
        """The message as chat templates know it; ``developer`` is OpenAI's newer word for ``system``.

        Args:
            as_text: whether the template takes the arguments of calls as they were written.
            chunk: what the template is given for the text of a chunk; called in order.

        Raises:
            RequestError: it does not, and they are not JSON; or there are chunks, and nothing is said of them.
        """
        content = "".join(part if isinstance(part, str) else chunk(part.text) for part in self.content)
        message: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": content}
        further = {
            "name": self.name,
            "tool_call_id": self.tool_call_id,
            "reasoning_content": self.reasoning_content,
            "tool_calls": [call.for_template(as_text=as_text) for call in self.tool_calls or ()] or None,
        }
        return message | {name: value for name, value in further.items() if value is not None}
