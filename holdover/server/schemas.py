"""What requests may say.

A field does what it says or is refused: unknown fields are errors, as at OpenAI, because one that is misspelt and
ignored changes the answer in silence (a misspelt ``cache_salt`` would even share a tenant's cache). Known fields of
the API that are not implemented are refused unless they ask for nothing; fields that cannot change an answer, such as
``user``, are accepted and ignored. Types are strict: ``"5"`` is no number.

Beside OpenAI's fields there are ``top_k``, ``min_p``, ``stop_token_ids``, ``ignore_eos`` and, for completions,
``prompt_logprobs``, as other servers have them, and three of Holdover's own: ``cache_salt`` (requests of different
salts never share cached state), ``use_cache`` (false to neither resume from the cache nor leave anything in it) and
``exact`` (true to resume only from states that no lossy restore has touched).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from holdover.engine.async_engine import AsyncEngine
from holdover.engine.sampling import SamplingParams
from holdover.engine.sequence import Sequence
from holdover.errors import RequestError

MAX_LOGPROBS = 20
MAX_STOPS = 4
DEFAULT_COMPLETION_TOKENS = 16

# parts of a message, as clients send replies back to us
_UNSUPPORTED_IN_MESSAGE = frozenset({"annotations", "audio", "function_call", "refusal", "tool_call_id", "tool_calls"})


def _stops(value: object) -> object:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(isinstance(stop, str) for stop in stops):
        raise ValueError(f"must be a string or a list of at most {MAX_STOPS} strings")
    return stops


def _prompt(value: object) -> object:
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        # as clients send a batch; they may send one of one
        if len(value) > 1:
            raise ValueError("several prompts in one request are not supported: send one request for each")
        value = value[0]
    if isinstance(value, str) or (isinstance(value, list) and all(type(item) is int for item in value)):
        return value
    raise ValueError("must be a string or a list of token ids")


def _content(value: object) -> object:
    if isinstance(value, str):
        return value
    if value is None or not isinstance(value, list):
        raise ValueError("must be a string or a list of text parts")
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise ValueError(f"only text is supported, and a part is of type {kind!r}")
        if not isinstance(part.get("text"), str):
            raise ValueError("a text part needs a string in 'text'")
    return "".join(part["text"] for part in value)


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class Message(_Strict):
    """One message; parts of text are joined."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_content)]
    name: str | None = None

    @model_validator(mode="after")
    def _refuse_what_would_be_lost(self) -> Message:
        for name, value in (self.model_extra or {}).items():
            if name not in _UNSUPPORTED_IN_MESSAGE:
                raise ValueError(f"unknown field: {name}")
            if value:
                raise ValueError(f"{name} is not supported")
        return self

    def for_template(self) -> dict[str, str]:
        """The message as chat templates know it; ``developer`` is OpenAI's newer word for ``system``."""
        role = "system" if self.role == "developer" else self.role
        named = {"name": self.name} if self.name is not None else {}
        return {"role": role, "content": self.content, **named}


class StreamOptions(_Strict):
    """What a stream carries beside the text."""

    include_usage: bool = False
    # padding against traffic analysis, which this server does not send
    include_obfuscation: bool | None = None


class GenerationRequest(_Strict, ABC):
    """What both endpoints have in common. None follows the model's generation defaults."""

    model: str
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: Annotated[list[str], BeforeValidator(_stops)] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    use_cache: bool = True
    exact: bool = False

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def check(self) -> None:
        """Check what no field shows alone.

        Raises:
            RequestError: two fields contradict each other.
        """
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options is only allowed with stream", param="stream_options")

    @abstractmethod
    def sequence(self, engine: AsyncEngine, sequence_id: str) -> Sequence:
        """The request as the engine runs it. Tokenizes; safe from any thread.

        Raises:
            RequestError: the engine cannot run it.
        """

    def _sampling(
        self, *, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None = None
    ) -> SamplingParams:
        """The engine's form of how to sample."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            # other servers write "all" as -1
            top_k=0 if self.top_k == -1 else self.top_k,
            min_p=self.min_p,
            seed=self.seed,
            stop=tuple(self.stop),
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )

    def _caching(self) -> dict[str, Any]:
        """The engine's form of what may be shared."""
        return {"salt": self.cache_salt or "", "use_cache": self.use_cache, "exact": self.exact}


class ChatRequest(GenerationRequest):
    """Body of ``POST /v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    def check(self) -> None:
        """Check what no field shows alone."""
        super().check()
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs is only allowed with logprobs", param="top_logprobs")
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise RequestError(
                "max_tokens and max_completion_tokens differ: give one of them", param="max_completion_tokens"
            )

    def sequence(self, engine: AsyncEngine, sequence_id: str) -> Sequence:
        """The rendered conversation; without a limit, as many tokens as the context has room for."""
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        params = self._sampling(max_tokens=self.max_completion_tokens or self.max_tokens, logprobs=logprobs)
        messages = [message.for_template() for message in self.messages]
        try:
            return engine.chat_sequence(messages, params, id=sequence_id, **self._caching())
        except RequestError as error:
            # the engine names its own fields
            names = {"prompt": "messages"}
            if self.max_completion_tokens is not None:
                names["max_tokens"] = "max_completion_tokens"
            raise RequestError(str(error), param=names.get(error.param or "", error.param), code=error.code) from error


class CompletionRequest(GenerationRequest):
    """Body of ``POST /v1/completions``."""

    prompt: Annotated[str | list[int], BeforeValidator(_prompt)]
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    def check(self) -> None:
        """Check what no field shows alone."""
        super().check()
        if self.prompt_logprobs is not None and self.stream:
            raise RequestError("prompt_logprobs cannot be streamed", param="prompt_logprobs")

    def sequence(self, engine: AsyncEngine, sequence_id: str) -> Sequence:
        """The prompt."""
        params = self._sampling(
            max_tokens=self.max_tokens or DEFAULT_COMPLETION_TOKENS,
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
        )
        return engine.sequence(self.prompt, params, id=sequence_id, **self._caching())
