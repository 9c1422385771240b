"""From a checked request to sequences for the engine and the form of their answer. Tokenizes; safe from any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import uuid4

from holdover.engine.async_engine import AsyncEngine
from holdover.engine.chat import render_chat
from holdover.engine.chunks.conversation import Placeholders, render_composed
from holdover.engine.sampling import SamplingParams
from holdover.engine.sequence import Sequence as EngineSequence
from holdover.errors import RequestError
from holdover.server.choices import ChatChoice, CompletionChoice
from holdover.server.composing import ChunkChoice
from holdover.server.replies import ReplyPlan
from holdover.server.schemas import DEFAULT_COMPLETION_TOKENS, ChatRequest, CompletionRequest
from holdover.server.shapes import CHAT, COMPLETION, Kind, Shape


@dataclass(frozen=True)
class Job:
    """What the engine is to run, and how it is answered.

    Attributes:
        groups: the choices of each prompt.
        shape: the answer's form; its choices are those of all groups in order.
    """

    groups: tuple[tuple[EngineSequence, ...], ...]
    shape: Shape


def completion_job(asked: CompletionRequest, engine: AsyncEngine, model: str) -> Job:
    """Every prompt of a completion, as often as there are choices of it.

    Raises:
        RequestError: the engine cannot run one of them; the message says which.
    """
    tokenizer = engine.engine.loaded.tokenizer
    params = asked.sampling(
        max_tokens=DEFAULT_COMPLETION_TOKENS if asked.max_tokens is None else asked.max_tokens,
        logprobs=asked.logprobs,
        prompt_logprobs=asked.echoed_logprobs,
    )
    answer, groups, choices = _id(COMPLETION), [], []
    for number, prompt in enumerate(asked.prompt):
        ids = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        name = answer if len(asked.prompt) == 1 else f"{answer}-{number}"
        try:
            groups.append(_choices(_Prompt(ids, partial(engine.sequence, ids)), params, asked.n, name, asked.caching))
        except RequestError as error:
            raise error if len(asked.prompt) == 1 else _of_prompt(number, error) from None
        echo = None
        if asked.echo:
            echo = prompt if isinstance(prompt, str) else tokenizer.verbatim.decode(prompt)
        first = number * asked.n
        choices += [CompletionChoice(i, tokenizer, echo) for i in range(first, first + asked.n)]
    shape = Shape(COMPLETION, answer, model, choices, per_prompt=asked.n, include_usage=asked.include_usage)
    return Job(tuple(groups), shape)


def chat_job(asked: ChatRequest, engine: AsyncEngine, model: str) -> Job:
    """The rendered conversation; without a limit, as many tokens as the context has room for.

    Raises:
        RequestError: the template or the engine cannot use it.
    """
    tokenizer = engine.engine.loaded.tokenizer
    with _own_names(asked):
        plan = ReplyPlan.of(asked, tokenizer)
        prompt = _rendered(asked, engine, plan)
        in_thought = plan.is_in_thought(prompt.tokens)
        params = asked.sampling(
            max_tokens=asked.limit,
            logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
            logit_bias=asked.logit_bias + plan.bias,
            grammar=plan.grammar(engine.engine.prepare, in_thought=in_thought),
            skip_special_tokens=not plan.is_verbatim,
        )
        answer = _id(CHAT)
        group = _choices(prompt, params, asked.n, answer, asked.caching)
    choices = [ChatChoice(i, tokenizer, plan.reader(in_thought=in_thought)) for i in range(asked.n)]
    shape = Shape(CHAT, answer, model, choices, per_prompt=asked.n, include_usage=asked.include_usage)
    return Job((group,), shape)


@contextmanager
def _own_names(asked: ChatRequest) -> Iterator[None]:
    """Put the request's names of fields where the engine says its own."""
    try:
        yield
    except RequestError as error:
        names = dict.fromkeys(("prompt", "context", "query"), "messages")
        names |= {name: f"holdover.{name}" for name in ChunkChoice.model_fields}
        if asked.max_completion_tokens is not None:
            names["max_tokens"] = "max_completion_tokens"
        raise RequestError(str(error), param=names.get(error.param or "", error.param), code=error.code) from error


@dataclass(frozen=True)
class _Prompt:
    """A prompt, as often as there are choices of it.

    Attributes:
        tokens: its tokens.
        sequence: makes one choice, of how to sample and further fields of `Request`.
    """

    tokens: Sequence[int]
    sequence: Callable[..., EngineSequence]


def _rendered(asked: ChatRequest, engine: AsyncEngine, plan: ReplyPlan) -> _Prompt:
    """The conversation as its template shows it, around chunks if there are any."""
    tokenizer, prepare = engine.engine.loaded.tokenizer, engine.engine.prepare
    options, as_text = {**asked.chat_template_kwargs, **plan.options}, plan.format.takes_text
    if not asked.has_chunks:
        messages = [message.for_template(as_text=as_text) for message in asked.messages]
        ids, boundaries = render_chat(tokenizer.sharing(), messages, **options)
        return _Prompt(ids, partial(engine.sequence, ids, boundaries=boundaries))
    marks = Placeholders()
    messages = [message.for_template(as_text=as_text, chunk=marks.put) for message in asked.messages]
    chat = render_composed(tokenizer, messages, marks, prepare.chunks, **options)
    said = asked.holdover.model_dump() if asked.holdover is not None else {}
    said |= {"settings": engine.engine.options.chunks, "boundaries": chat.boundaries}
    return _Prompt(chat.tokens, partial(prepare.composed, chat.context, chat.query, **said))


def _choices(
    prompt: _Prompt, params: SamplingParams, count: int, name: str, request: dict[str, Any]
) -> tuple[EngineSequence, ...]:
    """Choices of one prompt. The first one computes it for the others, and alone reports on it."""
    if count == 1:
        return (prompt.sequence(params, id=name, **request),)
    depth = len(prompt.tokens) - 1
    first = prompt.sequence(params, id=f"{name}-0", **request, checkpoint_at=(depth,) if depth > 0 else ())
    others = (prompt.sequence(_choice_params(params, i), id=f"{name}-{i}", **request) for i in range(1, count))
    return (first, *others)


def _choice_params(params: SamplingParams, number: int) -> SamplingParams:
    seed = None if params.seed is None else params.seed + number
    return replace(params, seed=seed, prompt_logprobs=None)


def _id(kind: Kind) -> str:
    return f"{kind.id_prefix}-{uuid4().hex}"


def _of_prompt(number: int, error: RequestError) -> RequestError:
    return RequestError(f"prompt {number}: {error}", param=error.param, code=error.code)
