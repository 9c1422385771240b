"""What requests may say.

A field does what it says or is refused: unknown fields are errors, as at OpenAI, because one that is misspelt and
ignored changes the answer in silence (a misspelt ``cache_salt`` would even share a tenant's cache). Known fields of
the API that are not implemented are refused unless they ask for nothing; fields that cannot change an answer, such as
``user``, are accepted and ignored. Types are strict: ``"5"`` is no number.

Beside OpenAI's fields there are, as other servers have them, ``top_k``, ``min_p``, ``repetition_penalty``,
``stop_token_ids``, ``ignore_eos``, ``guided_regex`` and ``guided_grammar`` (Lark, as llguidance reads it), for
completions ``prompt_logprobs`` and for chats ``chat_template_kwargs``; and four of Holdover's own: ``cache_salt``
(requests of different salts never share cached state), ``use_cache`` (false to neither resume from the cache nor leave
anything in it), ``exact`` (true to resume only from states that no lossy restore has touched) and, in chats with parts
that are marked as chunks, ``holdover`` (how the prompt is composed of them).

``logprobs`` are the model's own, before penalties, biases, grammars and temperature. Of several choices the first has
the request's ``seed``, the next one that and one more, and so on.
"""

from __future__ import annotations

from abc import ABC
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from holdover.engine.grammar import Grammar
from holdover.engine.sampling import SamplingParams
from holdover.errors import RequestError
from holdover.server import fields
from holdover.server.composing import ChunkChoice
from holdover.server.forms import Biases, Prompts, ResponseFormat, Stops
from holdover.server.messages import ChatMessage
from holdover.server.tools.definitions import NamedChoice, Tool, ToolChoice, repeated

MAX_LOGPROBS = 20
MAX_CHOICES = 128
DEFAULT_COMPLETION_TOKENS = 16

# what decides how conversations are rendered, not what is in them
_RESERVED = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)


class StreamOptions(_Strict):
    """What a stream carries beside the text."""

    include_usage: bool = False
    # padding against traffic analysis, which this server does not send
    include_obfuscation: bool | None = None


class GenerationRequest(_Strict, ABC):
    """What both endpoints have in common. None follows the model's generation defaults."""

    model: str
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Annotated[
        tuple[tuple[int, float], ...], BeforeValidator(fields.logit_bias, json_schema_input_type=Biases)
    ] = ()
    guided_regex: str | None = None
    guided_grammar: str | None = None
    seed: int | None = None
    stop: Annotated[list[str], BeforeValidator(fields.stops, json_schema_input_type=Stops)] = []
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

    @property
    def grammar(self) -> Grammar | None:
        """What the answer must match."""
        return next(iter(self._grammars()), None)

    @property
    def caching(self) -> dict[str, Any]:
        """The engine's form of what may be shared."""
        return {"salt": self.cache_salt or "", "use_cache": self.use_cache, "exact": self.exact}

    def check(self) -> None:
        """Check what no field shows alone.

        Raises:
            RequestError: two fields contradict each other.
        """
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options is only allowed with stream", param="stream_options")
        if len(grammars := self._grammars()) > 1:
            names = " and ".join(grammar.param.partition(".")[0] for grammar in grammars)
            raise RequestError(f"{names} each say what the answer must match: give one", param=grammars[-1].param)

    def sampling(self, **further: Any) -> SamplingParams:
        """The engine's form of how to sample; ``further`` are fields of `SamplingParams` that differ."""
        own = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            # other servers write "all" as -1
            "top_k": 0 if self.top_k == -1 else self.top_k,
            "min_p": self.min_p,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "repetition_penalty": self.repetition_penalty,
            "logit_bias": self.logit_bias,
            "grammar": self.grammar,
            "seed": self.seed,
            "stop": tuple(self.stop),
            "stop_token_ids": tuple(self.stop_token_ids),
            "ignore_eos": self.ignore_eos,
        }
        return SamplingParams(**(own | further))

    def _grammars(self) -> list[Grammar]:
        found = []
        if self.guided_regex is not None:
            found.append(Grammar("regex", self.guided_regex, "guided_regex"))
        if self.guided_grammar is not None:
            found.append(Grammar("lark", self.guided_grammar, "guided_grammar"))
        return found


class ChatRequest(GenerationRequest):
    """Body of ``POST /v1/chat/completions``."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    response_format: Annotated[
        Grammar | None, BeforeValidator(fields.response_format, json_schema_input_type=ResponseFormat)
    ] = None
    tools: list[Tool] = []
    tool_choice: Annotated[ToolChoice, BeforeValidator(fields.tool_choice, json_schema_input_type=ToolChoice)] = "auto"
    parallel_tool_calls: bool = True
    chat_template_kwargs: dict[str, Any] = {}
    holdover: ChunkChoice | None = None

    @field_validator("chat_template_kwargs")
    @classmethod
    def _keep_reserved(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := _RESERVED & value.keys():
            raise ValueError(f"{min(taken)} is not the client's to say")
        return value

    @property
    def limit(self) -> int | None:
        """Most tokens to generate."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def has_chunks(self) -> bool:
        """Whether texts of its messages are marked as chunks."""
        return any(message.has_chunks for message in self.messages)

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
        if self.holdover is not None and not self.has_chunks:
            raise RequestError(
                "holdover says how a prompt is composed of chunks, and no part of these messages is marked as one",
                param="holdover",
            )
        self._check_tools()

    def _check_tools(self) -> None:
        names = [tool.name for tool in self.tools]
        if twice := repeated(names):
            raise RequestError(f"two tools are called {twice!r}", param="tools")
        if self.tool_choice not in ("none", "auto") and not self.tools:
            raise RequestError("tool_choice is only allowed with tools", param="tool_choice")
        if isinstance(self.tool_choice, NamedChoice) and self.tool_choice.function.name not in names:
            raise RequestError(
                f"tool_choice names {self.tool_choice.function.name[:80]!r}, which is not among the tools",
                param="tool_choice",
            )

    def _grammars(self) -> list[Grammar]:
        return super()._grammars() + ([self.response_format] if self.response_format is not None else [])


class CompletionRequest(GenerationRequest):
    """Body of ``POST /v1/completions``."""

    prompt: Annotated[list[str | list[int]], BeforeValidator(fields.prompts, json_schema_input_type=Prompts)]
    max_tokens: int | None = Field(None, ge=0)
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    @property
    def echoed_logprobs(self) -> int | None:
        """How many alternatives to report with each token of the prompt, in either form."""
        return self.logprobs if self.echo and self.logprobs is not None else self.prompt_logprobs

    def check(self) -> None:
        """Check what no field shows alone."""
        super().check()
        self._check_prompt_alone()
        if self.prompt_logprobs is not None and self.stream:
            raise RequestError("prompt_logprobs cannot be streamed", param="prompt_logprobs")
        if self.echo and self.logprobs is not None:
            if self.stream:
                raise RequestError("echo with logprobs cannot be streamed", param="echo")
            if self.prompt_logprobs is not None:
                raise RequestError("echo reports the prompt's logprobs already", param="prompt_logprobs")
        if (count := len(self.prompt) * self.n) > MAX_CHOICES:
            raise RequestError(
                f"{len(self.prompt)} prompts, {self.n} choices of each, are {count}: ask for at most {MAX_CHOICES}",
                param="prompt",
            )

    def _check_prompt_alone(self) -> None:
        if self.max_tokens != 0:
            return
        if not self.echo:
            message = "max_tokens must be at least 1; with echo, 0 asks for the prompt alone"
            raise RequestError(message, param="max_tokens")
        for name, value in (("n", self.n > 1), ("stream", self.stream)):
            if value:
                raise RequestError(f"{name} is of no use with max_tokens 0: leave it out", param=name)
