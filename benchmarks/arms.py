"""The engines under comparison behind one interface: prompts in, the time of every token out."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from holdover import Engine, SamplingParams
from holdover.engine.request import Output
from holdover.evaluation.traces.exchanges import Exchange

MIB = 1 << 20


@dataclass(frozen=True)
class Timed:
    """Tokens of a batch and when they were there.

    Attributes:
        tokens: tokens generated, by sequence.
        start: when the call was made, in seconds of the performance counter.
        stamps: when each token of all sequences was there.
    """

    tokens: list[list[int]]
    start: float
    stamps: list[float]

    @property
    def first(self) -> float:
        """Seconds until the first token."""
        return self.stamps[0] - self.start

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first."""
        return len(self.tokens) * (len(self.stamps) - 1) / (self.stamps[-1] - self.stamps[0])


@dataclass(frozen=True)
class Answered:
    """One exchange as an arm served it.

    Attributes:
        first: seconds until the first token.
        total: seconds until the last.
        hit: prompt tokens that were not computed.
    """

    first: float
    total: float
    hit: int


class Answering(Protocol):
    """What serves conversations."""

    def answer(self, exchange: Exchange, conversation: str) -> Answered:
        """Serve one exchange of a conversation, with the recorded reply forced token by token."""


class Arm(Answering, Protocol):
    """An engine with its settings."""

    def first_token(self, prompt: Sequence[int]) -> Timed:
        """Compute a prompt from nothing and generate one token."""

    def decode(self, prompts: Sequence[Sequence[int]], steps: int) -> Timed:
        """Generate one token and ``steps`` more for every prompt, all in one batch."""


class HoldoverArm:
    """Holdover's engine.

    Args:
        engine: the engine; arms may share one.
        use_cache: whether exchanges may resume from the cache and leave something in it.
    """

    def __init__(self, engine: Engine, *, use_cache: bool) -> None:
        self.engine = engine
        self.use_cache = use_cache

    def first_token(self, prompt: Sequence[int]) -> Timed:
        start = time.perf_counter()
        output = self.engine.generate([prompt], SamplingParams(max_tokens=1, ignore_eos=True), use_cache=False)[0]
        return Timed([list(output.token_ids)], start, [time.perf_counter()])

    def decode(self, prompts: Sequence[Sequence[int]], steps: int) -> Timed:
        # prefill alternates with the decode of those that are ready: time what follows, when all are
        core, start = self.engine.core, time.perf_counter()
        params = SamplingParams(max_tokens=2 * (steps + len(prompts) * 8), ignore_eos=True)
        sequences = [self.engine.prepare.sequence(prompt, params, use_cache=False) for prompt in prompts]
        for sequence in sequences:
            core.add(sequence)
        try:
            while not all(sequence.is_running and sequence.remaining == 1 for sequence in sequences):
                core.step()
            stamps = [time.perf_counter()]
            for _ in range(steps):
                core.step()
                stamps.append(time.perf_counter())
            return Timed([list(sequence.generated[: steps + 1]) for sequence in sequences], start, stamps)
        finally:
            for sequence in sequences:
                core.abort(sequence.request.id)

    def answer(self, exchange: Exchange, conversation: str) -> Answered:
        def complete(prompt: Sequence[int], params: SamplingParams, **request: Any) -> Output:
            return self.engine.generate([prompt], params, **request)[0]

        return forced_answer(complete, exchange, conversation, use_cache=self.use_cache)


def forced_answer(
    complete: Callable[..., Output], exchange: Exchange, conversation: str, *, use_cache: bool
) -> Answered:
    """Serve one exchange through ``complete(prompt, params, **request)``, the reply forced and the tenant its own."""
    params = SamplingParams(max_tokens=len(exchange.reply), forced=exchange.reply, ignore_eos=True)
    output = complete(exchange.prompt, params, use_cache=use_cache, salt=conversation, boundaries=exchange.boundaries)
    assert output.token_ids == exchange.reply
    assert output.timing.first_token is not None
    return Answered(output.timing.first_token, output.timing.total, output.cache.state_depth)


class TransformersArm:
    """An unmodified model and its ``generate``.

    Args:
        path: the model's directory.
    """

    def __init__(self, path: str) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self.model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        # every run generates as many tokens as it is asked for
        self.model.generation_config.eos_token_id = None
        self.model.generation_config.do_sample = False

    def first_token(self, prompt: Sequence[int]) -> Timed:
        return self._generate([prompt], 1)

    def decode(self, prompts: Sequence[Sequence[int]], steps: int) -> Timed:
        return self._generate(prompts, steps + 1)

    def answer(self, exchange: Exchange, conversation: str) -> Answered:
        timed = self._generate([exchange.prompt], len(exchange.reply), exchange.reply)
        assert timed.tokens == [list(exchange.reply)]
        return Answered(timed.first, timed.stamps[-1] - timed.start, 0)

    def _generate(self, prompts: Sequence[Sequence[int]], count: int, forced: Sequence[int] = ()) -> Timed:
        clock = _clock()
        start = time.perf_counter()
        longest = max(map(len, prompts))
        # `generate` wants padding on the left
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = self.model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=count,
                pad_token_id=0,
                streamer=clock,
                logits_processor=[_force(forced, longest)] if forced else [],
            )
        # the first stamp is of the prompt, which `generate` hands to the streamer too
        return Timed(out[:, longest:].tolist(), start, clock.stamps[1:])


def _clock() -> Any:
    from transformers.generation.streamers import BaseStreamer

    class Clock(BaseStreamer):
        """Notes when each token of the batch is there."""

        def __init__(self) -> None:
            self.stamps: list[float] = []

        def put(self, value: torch.Tensor) -> None:
            self.stamps.append(time.perf_counter())

        def end(self) -> None:
            pass

    return Clock()


def _force(tokens: Sequence[int], start: int) -> Any:
    def process(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, tokens[ids.shape[1] - start]] = torch.inf
        return scores

    return process


def holdover_engine(model: str, **options: Any) -> Engine:
    """An engine with pools large enough that nothing measured here is ever evicted."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    budgets = {"state_budget": 96 * MIB, "kv_budget": 96 * MIB}
    return Engine.from_pretrained(model, dtype="float32", device="cpu", **(budgets | options))
