"""An engine as a model of the LM evaluation harness (lm-eval)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from holdover.engine.engine import Engine
from holdover.engine.sampling import SamplingParams
from holdover.errors import ConfigError
from holdover.evaluation.harness.answers import Asker, Question

_DEFAULT_NEW_TOKENS = 256
_LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens")


class HarnessModel(TemplateLM):  # type: ignore[misc]
    """Answers the harness's three kinds of requests.

    A continuation is scored by decoding it from the state after its context, so that choices about one context share
    that state, and a cache that approximates it shows. Text without a context is scored in one pass, without the cache.

    Args:
        engine: the model.
        asker: asks it, and keeps what it answers.
        chat: whether prompts come rendered by the chat template, which spells out every special token.

    Raises:
        ConfigError: the model has no end token.
    """

    def __init__(self, engine: Engine, asker: Asker, *, chat: bool = False) -> None:
        super().__init__()
        if not engine.loaded.end_tokens:
            raise ConfigError("this model has no end token, which the harness puts before a text that has no context")
        self._tokenizer = engine.loaded.tokenizer
        self._end = min(engine.loaded.end_tokens)
        self._max_context = engine.prepare.max_context
        self._name = engine.loaded.name
        self._asker = asker
        self._chat = chat

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return self._end

    @property
    def tokenizer_name(self) -> str:
        """The model's name."""
        return self._name

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Text of the model's template, for the record; None if none is used."""
        return self._tokenizer.chat_template() if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Render a conversation; without a generation prompt, its last message is an answer to be continued."""
        if add_generation_prompt:
            return self._tokenizer.render_text(chat_history)
        *before, begun = chat_history
        return self._tokenizer.render_text(before) + begun["content"]

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids of a text; by default with special tokens around it unless the template put them there."""
        special = not self._chat if add_special_tokens is None else add_special_tokens
        return self._tokenizer.encode(string) if special else self._tokenizer.encode_part(string)

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Texts that follow the contexts of ``requests``."""
        questions = [
            Question(tuple(self.tok_encode(context)), sampling(options, seed))
            for seed, (context, options) in enumerate(request.args for request in requests)
        ]
        return [answer.text for answer in self._asker.ask(questions)]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts, each with as much of it before every token as the context holds."""
        windows = [list(self._windows(text)) for (text,) in (request.args for request in requests)]
        params = SamplingParams(max_tokens=0, prompt_logprobs=0)
        answers = iter(
            self._asker.ask(
                [Question((*before, *scored), params, len(scored)) for one in windows for before, scored in one]
            )
        )
        return [sum(next(answers).logprob for _ in one) for one in windows]

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        answers = self._asker.ask([Question(tuple(before), forcing(after)) for _, before, after in requests])
        return [(answer.logprob, answer.is_greedy) for answer in answers]

    def _windows(self, text: str) -> Iterable[tuple[list[int], list[int]]]:
        tokens = self.tok_encode(text, add_special_tokens=False)
        # what is predicted last is one token more
        spans = get_rolling_token_windows(tokens, self.prefix_token_id, self._max_context - 1, 1)
        return map(make_disjoint_window, spans)


def forcing(tokens: Sequence[int]) -> SamplingParams:
    """Sampling that takes ``tokens``, whatever they are, and says how likely each of them was."""
    return SamplingParams(max_tokens=len(tokens), temperature=0.0, forced=tuple(tokens), ignore_eos=True, logprobs=1)


def sampling(options: dict[str, Any], seed: int) -> SamplingParams:
    """The harness's generation options as ours: greedy unless a task wants otherwise."""
    until = options.get("until") or []
    temperature = float(options.get("temperature") or 0.0)
    if not options.get("do_sample", temperature > 0):
        temperature = 0.0
    elif not temperature:
        temperature = 1.0
    limit = next((options[name] for name in _LIMITS if options.get(name) is not None), _DEFAULT_NEW_TOKENS)
    return SamplingParams(
        max_tokens=int(limit),
        temperature=temperature,
        top_p=float(options.get("top_p", 1.0)),
        top_k=int(options.get("top_k", 0)),
        seed=seed if temperature else None,
        stop=tuple(text for text in ([until] if isinstance(until, str) else until) if text),
    )
