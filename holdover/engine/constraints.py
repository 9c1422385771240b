"""Grammars followed by llguidance, a library that is loaded when the first request asks for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import torch

from holdover.engine.grammar import Constraint, Grammar
from holdover.errors import RequestError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# JSON as Python's `json.dumps` and the `tojson` of chat templates write it: a reply reads the same when it comes back,
# and nobody waits for a model that has found out that blanks are allowed
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_KEPT = 32
_MESSAGE = 300


class Vocabulary(Protocol):
    """The part of a tokenizer that grammars need."""

    @property
    def serialized(self) -> str:
        """The tokenizer in the format of the ``tokenizers`` library."""


class Guidance:
    """Makes constraints over one vocabulary. Safe from any thread.

    Args:
        tokenizer: the model's tokenizer.
        vocab_size: length of the model's logits.
        end_tokens: tokens that end a text.
    """

    def __init__(self, tokenizer: Vocabulary, *, vocab_size: int, end_tokens: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_tokens = sorted(end_tokens)
        self._loading = threading.Lock()
        self._loaded: LLTokenizer | None = None
        self._matcher = lru_cache(_KEPT)(self._compile)

    def constraint(self, grammar: Grammar) -> Constraint:
        """A constraint of a new sequence.

        Raises:
            RequestError: the grammar is not valid or not supported, or llguidance is not installed.
        """
        return _Follower(self._matcher(grammar).deep_copy(), grammar.param)

    def _compile(self, grammar: Grammar) -> LLMatcher:
        library, vocabulary = _library(grammar), self._vocabulary(grammar)
        limits = library.LLParserLimits(verbose_errors=False)
        matcher: LLMatcher = library.LLMatcher(vocabulary, _source(library, grammar), log_level=0, limits=limits)
        # some faults show only at the first token
        trial = matcher.deep_copy()
        trial.compute_logit_bias()
        if trial.is_error():
            why = self._locate(library, grammar) or trial.get_error()
            raise RequestError(f"{grammar.param} cannot be used: {_one_line(why)}", param=grammar.param)
        return matcher

    def _vocabulary(self, grammar: Grammar) -> LLTokenizer:
        library = _library(grammar)
        with self._loading:
            if self._loaded is None:
                ends = self._end_tokens or None
                self._loaded = library.LLTokenizer(self._tokenizer.serialized, self._vocab_size, ends)
            return self._loaded

    def _locate(self, library: ModuleType, grammar: Grammar) -> str:
        """Which part of a schema is at fault; the library says only what is wrong with it."""
        if grammar.kind != "json":
            return ""
        schema = json.loads(grammar.text)
        shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
        found, where, part = "", "", schema
        while True:
            for name, inner in _parts(part):
                source = _source(library, Grammar("json", json.dumps(inner | shared)))
                if why := library.LLMatcher.validate_grammar(source, self._loaded):
                    found, where, part = why, f"{where}.{name}" if where else name, inner
                    break
            else:
                return f"at {where[-_MESSAGE // 2 :]}: {found}" if where else ""


class _Follower:
    """A constraint by one matcher."""

    def __init__(self, matcher: LLMatcher, param: str) -> None:
        self._matcher = matcher
        self._param = param

    @property
    def is_complete(self) -> bool:
        return self._matcher.is_stopped()

    def forbidden(self) -> torch.Tensor:
        allowed = torch.frombuffer(bytearray(self._matcher.compute_logit_bias()), dtype=torch.uint8)
        self._check()
        return allowed == 0

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            why = _one_line(self._matcher.get_error())
            raise RequestError(f"{self._param} could not be followed: {why}", param=self._param)


def _library(grammar: Grammar) -> ModuleType:
    try:
        import llguidance
    except ImportError:
        raise RequestError(
            f'{grammar.param} needs the library llguidance on the server: pip install "holdover[structured]"',
            param=grammar.param,
            code="unsupported_parameter",
        ) from None
    return llguidance


def _source(library: ModuleType, grammar: Grammar) -> str:
    """The grammar as the library takes it."""
    parts = [{"name": name, **_part(library, part)} for name, part in grammar.parts]
    return json.dumps({"grammars": [_part(library, grammar), *parts]})


def _part(library: ModuleType, grammar: Grammar) -> dict[str, Any]:
    if grammar.kind == "json":
        return {"json_schema": json.loads(grammar.text) | {"x-guidance": JSON_STYLE}}
    if grammar.kind == "regex":
        made: dict[str, Any] = json.loads(library.LLMatcher.grammar_from_regex(grammar.text))["grammars"][0]
        return {"lark_grammar": made["lark_grammar"]}
    return {"lark_grammar": grammar.text}


def _parts(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Schemas within a schema, with their path below it."""
    for keyword in ("properties", "$defs", "definitions", "patternProperties"):
        inner = schema.get(keyword)
        if isinstance(inner, dict):
            yield from ((f"{keyword}.{name}", one) for name, one in inner.items() if isinstance(one, dict))
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        inner = schema.get(keyword)
        if isinstance(inner, list):
            yield from ((f"{keyword}.{i}", one) for i, one in enumerate(inner) if isinstance(one, dict))
    for keyword in ("items", "additionalProperties", "not"):
        if isinstance(inner := schema.get(keyword), dict):
            yield keyword, inner


def _one_line(text: str) -> str:
    # the library's name for a grammar that no text fits, and a remark on its own settings
    text = text.replace("NoExtensionBias", "nothing can match it").replace("<non-verbose/>", "")
    return " ".join(text.split())[:_MESSAGE]
