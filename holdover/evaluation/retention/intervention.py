"""What is lost when one part of a cached prefix is set to zero before it is resumed (DASC §3.2, Table 1a)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from holdover.engine.engine import Engine
from holdover.engine.hf.loader import Loaded
from holdover.engine.options import EngineOptions
from holdover.engine.request import Output
from holdover.engine.sampling import SamplingParams
from holdover.errors import IntegrityError
from holdover.evaluation.retention.needles import Needle, make_needle
from holdover.prefix import PrefixCache
from holdover.prefix.policies import EndOfRequest
from holdover.state import SlotPool
from holdover.store import KVPool

Arm = Literal["baseline", "zero-full-kv", "zero-linear", "zero-both"]
ARMS: tuple[Arm, ...] = get_args(Arm)
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)

_ANSWER_TOKENS = 16
# the running sequence's, the cached one's, and room for both to change places
_SLOTS = 4


@dataclass
class Score:
    """Answers of one arm.

    Attributes:
        arm: what was set to zero.
        right: right answers at each depth of the needle.
        asked: questions at each depth.
        resumed: tokens of prompts that were resumed from the cache.
        prompt: tokens of prompts.
    """

    arm: Arm
    right: dict[float, int] = field(default_factory=dict)
    asked: dict[float, int] = field(default_factory=dict)
    resumed: int = 0
    prompt: int = 0

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return sum(self.right.values()) / sum(self.asked.values())

    def add(self, needle: Needle, output: Output) -> None:
        """Count one answer."""
        self.right[needle.depth] = self.right.get(needle.depth, 0) + (needle.answer in output.text)
        self.asked[needle.depth] = self.asked.get(needle.depth, 0) + 1
        self.resumed += output.cache.state_depth
        self.prompt += output.cache.prompt_tokens


def draw_needles(loaded: Loaded, length: int, per_depth: int, seed: int = 0) -> list[Needle]:
    """Prompts for every depth of the needle; the same seed gives the same ones.

    Raises:
        RequestError: the model has no chat template.
    """
    rng = random.Random(seed)
    return [make_needle(loaded.tokenizer, rng, depth, length) for depth in DEPTHS for _ in range(per_depth)]


def intervene(loaded: Loaded, needles: Sequence[Needle]) -> Iterator[list[Score]]:
    """Ask every question in every arm, through the engine and its cache; the scores so far after each.

    For every question and arm, the prefix is computed and cached, a part of the cache is set to zero, and the whole
    prompt is asked: so all arms resume the same cached tokens and differ in nothing but that part.

    Raises:
        IntegrityError: a question did not resume where its prefix ends.
    """
    longest = max(len(needle.tokens) for needle in needles) + _ANSWER_TOKENS
    layout = loaded.host.layout
    options = EngineOptions(
        state_budget=SlotPool.bytes_for(layout.state, _SLOTS),
        kv_budget=KVPool.bytes_for(layout.kv, 2 * longest),
        max_context=longest,
        max_running=1,
        policy=EndOfRequest(),
    )
    scores = [Score(arm) for arm in ARMS]
    with Engine(loaded, options) as engine:
        for needle in needles:
            for score in scores:
                score.add(needle, _ask(engine, needle, score.arm))
            yield scores


def _ask(engine: Engine, needle: Needle, arm: Arm) -> Output:
    cache = engine.core.cache
    cache.flush()
    engine.generate([needle.tokens[: needle.shared]], SamplingParams(max_tokens=1, temperature=0.0))
    _zero(cache, arm)
    output = engine.generate([needle.tokens], SamplingParams(max_tokens=_ANSWER_TOKENS, temperature=0.0))[0]
    if output.cache.state_depth != needle.shared:
        raise IntegrityError(f"{arm}: wanted a hit at {needle.shared} tokens; {output.cache.reason}")
    return output


def _zero(cache: PrefixCache, arm: Arm) -> None:
    """Set a part of everything cached to zero. It stays in place, so that it is resumed like any other."""
    if arm in ("zero-full-kv", "zero-both"):
        for layer in cache.kv.layout.layers:
            for plane in cache.kv.planes(layer.index):
                plane.zero_()
    if arm in ("zero-linear", "zero-both"):
        for checkpoint in cache.tiers.order:
            for tensor in cache.tiers.native.pool.tensors_of(checkpoint.slot):
                tensor.zero_()
