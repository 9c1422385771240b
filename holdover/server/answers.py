"""Forms of the answers, for the API's description. They are written by others, not through these."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Finish = Literal["stop", "length", "tool_calls"]
Status = Literal["ok", "draining"]


class Answer(BaseModel):
    """Base of them: nothing is in an answer but what is described."""

    model_config = ConfigDict(extra="forbid")


class ErrorBody(Answer):
    """What is wrong and what to do."""

    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None
    code: str | None


class Error(Answer):
    """Every answer that is no success."""

    error: ErrorBody


class PromptDetails(Answer):
    """Tokens of the prompt that were not computed."""

    cached_tokens: int


class Usage(Answer):
    """Tokens. A prompt counts once, however many choices there are."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Times(Answer):
    """Milliseconds since the request was submitted."""

    queued_ms: float
    first_token_ms: float | None
    total_ms: float


class Explanation(Answer):
    """What the cache gave the request, and how long it took."""

    cache: dict[str, Any]
    timing: Times


class Alternative(Answer):
    """A token with its log probability; ``bytes`` may be those of a part of a character."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatToken(Alternative):
    """A generated token."""

    top_logprobs: list[Alternative]


class ChatLogprobs(Answer):
    """Log probabilities of a chat's answer."""

    content: list[ChatToken]
    refusal: None


class CalledFunction(Answer):
    """What is called; ``arguments`` are JSON, as the model wrote it."""

    name: str
    arguments: str


class Call(Answer):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class Reply(Answer):
    """The assistant's message."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str = ""
    tool_calls: list[Call] = []


class ChatAnswer(Answer):
    """One choice."""

    index: int
    message: Reply
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    holdover: Explanation | None = None


class ChatCompletion(Answer):
    """Answer of ``POST /v1/chat/completions``."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatAnswer]
    usage: Usage
    holdover: Explanation


class TextLogprobs(Answer):
    """Log probabilities of a completion; null for the first token of a prompt that is echoed."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptToken(Answer):
    """A token that could stand in the prompt; without a rank where it is none of the best."""

    logprob: float
    rank: int | None
    decoded_token: str


class TextAnswer(Answer):
    """One choice."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Finish
    prompt_logprobs: list[dict[str, PromptToken] | None] = []
    holdover: Explanation | None = None


class Completion(Answer):
    """Answer of ``POST /v1/completions``."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextAnswer]
    usage: Usage
    holdover: Explanation


class Model(Answer):
    """The model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class Models(Answer):
    """All of them."""

    object: Literal["list"]
    data: list[Model]


class Health(Answer):
    """Whether requests are taken."""

    status: Status
