"""When to take a checkpoint: policy objects, asked by the engine, that know nothing of it.

A checkpoint costs a slot and, except at the end of a request, one copy of the state. Any depth is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

# a resume at a multiple of the recurrences' chunk is bit-exact in bf16
ALIGNMENT = 64


@dataclass(frozen=True)
class Prompt:
    """What a policy may know of a prompt when it is admitted.

    Attributes:
        length: tokens of the prompt.
        resumed: depth at which it resumes.
        kv_depth: tokens whose KV was found.
        boundaries: depths up to which the next turn is sure to repeat the prompt.
        wanted: depths that the caller asked for.
    """

    length: int
    resumed: int
    kv_depth: int
    boundaries: tuple[int, ...] = ()
    wanted: tuple[int, ...] = ()


class CheckpointPolicy(Protocol):
    """Decides at which depths a sequence's state is kept."""

    def prompt_depths(self, prompt: Prompt) -> Iterable[int]:
        """Depths in ``1 .. prompt.length`` to stop at during prefill; others are ignored."""

    def during_decode(self, depth: int) -> bool:
        """Whether to keep the state at ``depth`` while decoding."""

    def at_end(self) -> bool:
        """Whether to keep the state of a sequence that ends; this needs no copy."""


@dataclass(frozen=True)
class NoCheckpoints:
    """Keep nothing. Base of the others: each overrides what it decides."""

    def prompt_depths(self, prompt: Prompt) -> Iterable[int]:
        """None."""
        return ()

    def during_decode(self, depth: int) -> bool:
        """Never."""
        return False

    def at_end(self) -> bool:
        """No."""
        return False


@dataclass(frozen=True)
class EndOfRequest(NoCheckpoints):
    """Keep the state of every finished sequence: the next turn usually extends it."""

    def at_end(self) -> bool:
        """Yes."""
        return True


@dataclass(frozen=True)
class MessageBoundaries(NoCheckpoints):
    """Keep the state at the last point that the next turn is sure to repeat, however it re-renders the reply."""

    def prompt_depths(self, prompt: Prompt) -> Iterable[int]:
        """The last boundary."""
        return prompt.boundaries[-1:]


@dataclass(frozen=True)
class PromptTail(NoCheckpoints):
    """Keep a state just below the prompt's end, so that the same prompt again computes only its last tokens."""

    def prompt_depths(self, prompt: Prompt) -> Iterable[int]:
        """The last aligned depth below the prompt's length; for a short prompt, all but its last token.

        None where the resumed state is about as good: stopping there would cost a forward and save little.
        """
        last = prompt.length - 1
        depth = last // ALIGNMENT * ALIGNMENT or last
        return () if prompt.resumed and depth - prompt.resumed < 2 * ALIGNMENT else (depth,)


@dataclass(frozen=True)
class BranchPoint(NoCheckpoints):
    """Keep the state where a prompt left tokens that others have shared, once a second prompt shows that they are."""

    def prompt_depths(self, prompt: Prompt) -> Iterable[int]:
        """The depth that KV reached and state did not."""
        return (prompt.kv_depth,) if prompt.kv_depth > prompt.resumed else ()


@dataclass(frozen=True)
class EveryN(NoCheckpoints):
    """Keep a state every ``n`` tokens of a long prefill or decode.

    Attributes:
        n: tokens between two checkpoints.
        decode: whether decoding counts too.
    """

    n: int
    decode: bool = True

    def prompt_depths(self, prompt: Prompt) -> Iterable[int]:
        """Multiples of ``n``."""
        return range(self.n, prompt.length + 1, self.n)

    def during_decode(self, depth: int) -> bool:
        """At multiples of ``n``."""
        return self.decode and depth % self.n == 0


@dataclass(frozen=True)
class Wanted(NoCheckpoints):
    """Keep the states that the caller asked for."""

    def prompt_depths(self, prompt: Prompt) -> Iterable[int]:
        """What the caller asked for."""
        return prompt.wanted


@dataclass(frozen=True)
class PromptOnly(NoCheckpoints):
    """Keep the state at the end of the prompt and nothing else (protocols that replay prompts)."""

    def prompt_depths(self, prompt: Prompt) -> Iterable[int]:
        """The prompt's length."""
        return (prompt.length,)


@dataclass(frozen=True)
class AnyOf:
    """Keep what any of several policies keeps."""

    policies: Sequence[CheckpointPolicy]

    def prompt_depths(self, prompt: Prompt) -> Iterable[int]:
        """Union."""
        return {depth for policy in self.policies for depth in policy.prompt_depths(prompt)}

    def during_decode(self, depth: int) -> bool:
        """Any."""
        return any(policy.during_decode(depth) for policy in self.policies)

    def at_end(self) -> bool:
        """Any."""
        return any(policy.at_end() for policy in self.policies)


DEFAULT_POLICY = AnyOf((EndOfRequest(), MessageBoundaries(), BranchPoint(), PromptTail(), EveryN(2048), Wanted()))
