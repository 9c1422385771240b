"""A request in the engine: its tokens, and everything it owns while it runs."""

from __future__ import annotations

import time
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from functools import cached_property

import torch

from holdover.chunks import Repair
from holdover.engine.drawing import Uniforms
from holdover.engine.grammar import Constraint
from holdover.engine.request import CacheReport, Output, Request, Timing
from holdover.engine.rows import RowTable
from holdover.engine.sampling import TokenLogprob
from holdover.engine.text import TextStream
from holdover.errors import OwnershipError
from holdover.prefix import Hold, Opened
from holdover.store import SlotLease


@dataclass
class Place:
    """What a running sequence owns: a live slot, a claim on cached rows, and rows of its own above it.

    Attributes:
        lease: live slot; its depth is how many tokens were computed.
        hold: claim on the tree's path.
        rows: all rows; those below ``hold.depth`` are the tree's.
    """

    lease: SlotLease
    hold: Hold
    rows: RowTable

    @classmethod
    def of(cls, opened: Opened) -> Place:
        """Place of a sequence that was just opened."""
        return cls(opened.lease, opened.hold, RowTable(opened.hold.rows()))

    @property
    def owned_rows(self) -> int:
        """Rows that the sequence owns itself."""
        return len(self.rows) - self.hold.depth


class Sequence:
    """One request from submission to its end.

    Args:
        request: what was asked.
        namespace: model and tenant of its tokens.
        text: stream that turns its tokens into text.
        end_tokens: tokens that end it.
        max_tokens: most tokens it may generate.
        constraint: follows its tokens through the grammar that they must match; None for any tokens.
    """

    def __init__(
        self,
        request: Request,
        namespace: bytes,
        text: TextStream,
        end_tokens: frozenset[int],
        max_tokens: int,
        constraint: Constraint | None = None,
    ) -> None:
        self.request = request
        self.namespace = namespace
        # a composed sequence gets a namespace of its composition
        self.tenant = namespace
        self.repair: Repair | None = None
        self.text = text
        self.end_tokens = end_tokens
        self.max_tokens = max_tokens
        self.constraint = constraint
        self.tokens: list[int] = list(request.prompt)
        self._prompt_length = len(request.prompt)
        self.computed = 0
        self.checkpoint_depths: tuple[int, ...] = ()
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs: list[TokenLogprob | None] = [None]
        self.cache: CacheReport | None = None
        self.uniforms = Uniforms(request.params.seed)
        # nobody asked for it and nobody is told of it
        self.is_shadow = False
        self._place: Place | None = None
        self._submitted = time.perf_counter()
        self._admitted: float | None = None
        self._first_token: float | None = None

    def shadow(self, request: Request) -> Sequence:
        """A sequence for the engine's own use, of the same tenant, that nobody is told of."""
        shadow = Sequence(request, self.namespace, self.text.fresh(), frozenset(), 1)
        shadow.is_shadow = True
        return shadow

    @property
    def place(self) -> Place:
        """What it owns.

        Raises:
            OwnershipError: it is not running.
        """
        if self._place is None:
            raise OwnershipError(f"request {self.request.id} owns nothing: it is not running")
        return self._place

    @property
    def is_running(self) -> bool:
        """Whether it owns a slot."""
        return self._place is not None

    @property
    def is_composed(self) -> bool:
        """Whether its prompt is composed of chunks."""
        return self.request.composition is not None

    @property
    def chosen(self) -> Repair:
        """What of its chunks is recomputed.

        Raises:
            OwnershipError: nobody has chosen yet.
        """
        if self.repair is None:
            raise OwnershipError(
                f"request {self.request.id} is over no chunks, or none of their tokens were chosen yet"
            )
        return self.repair

    @property
    def may_resume(self) -> bool:
        """Whether it may start from a cached state: prompt logprobs need every prompt token computed."""
        return self.request.use_cache and self.request.params.prompt_logprobs is None

    @property
    def remaining(self) -> int:
        """Tokens known but not computed; 1 while decoding."""
        return len(self.tokens) - self.computed

    @cached_property
    def prompt_tokens(self) -> torch.Tensor:
        """The prompt's tokens, int64 ``[n]``."""
        return torch.tensor(self.request.prompt, dtype=torch.int64)

    @property
    def generated(self) -> Tokens[int]:
        """Tokens generated so far."""
        return self.tokens[len(self.request.prompt) :]

    @property
    def num_generated(self) -> int:
        """Number of tokens generated so far."""
        return len(self.tokens) - self._prompt_length

    def enter(self, place: Place) -> None:
        """Start, or start again after a preemption, with what ``place`` holds computed."""
        self._place = place
        self.computed = place.hold.depth
        self._admitted = self._admitted or time.perf_counter()

    def leave(self) -> Place:
        """Stop running; what it owned is now the caller's."""
        place, self._place, self.computed = self.place, None, 0
        return place

    def next_checkpoint(self) -> int | None:
        """Smallest wanted depth above what is computed."""
        return next((depth for depth in self.checkpoint_depths if depth > self.computed), None)

    def take(self, token: int) -> str:
        """Add a generated token; return the text that is certain by now."""
        if self._first_token is None:
            self._first_token = time.perf_counter()
        self.tokens.append(token)
        if self.constraint is not None:
            self.constraint.accept(token)
        return "" if token in self.end_tokens else self.text.push(token)

    def finish_reason(self) -> str | None:
        """Why it should end now: ``stop``, ``length`` or not at all."""
        count = self.num_generated
        if self.text.stopped or (count and self.tokens[-1] in self.end_tokens):
            return "stop"
        if count and self.constraint is not None and self.constraint.is_complete:
            return "stop"
        return "length" if count >= self.max_tokens else None

    def output(self, reason: str, error: Exception | None = None) -> Output:
        """The whole, as it ended."""
        params = self.request.params
        now = time.perf_counter()
        return Output(
            request_id=self.request.id,
            prompt_token_ids=self.request.prompt,
            token_ids=tuple(self.generated),
            text=self.text.text,
            finish_reason=reason,  # type: ignore[arg-type]
            cache=self.cache or _not_started(self.request),
            timing=Timing(
                queued=(self._admitted or now) - self._submitted,
                first_token=self._first_token - self._submitted if self._first_token else None,
                total=now - self._submitted,
            ),
            logprobs=tuple(self.logprobs) if params.logprobs is not None else None,
            prompt_logprobs=tuple(self.prompt_logprobs) if params.prompt_logprobs is not None else None,
            error=error,
        )


def _not_started(request: Request) -> CacheReport:
    return CacheReport(len(request.prompt), 0, 0, "the request ended before it was looked up")
