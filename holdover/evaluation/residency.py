"""Which checkpoints an evaluation keeps, so that what is scored is what was to be measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from holdover.engine.options import EngineOptions
from holdover.prefix.policies import AnyOf, BranchPoint, NoCheckpoints, Prompt


@dataclass(frozen=True)
class AllButLast(NoCheckpoints):
    """Keep the state of all of a prompt but its last token: the deepest that the same prompt can resume from."""

    def prompt_depths(self, prompt: Prompt) -> Iterable[int]:
        """The prompt's length less one."""
        return (prompt.length - 1,)


def replayable(options: EngineOptions) -> EngineOptions:
    """Options under which a prompt that was run once is resumed, the second time, from all but its last token.

    Where checkpoints are packed, all of them are (DASC App. C.2, compressed-only caching): at any depth, and never
    dense for want of room, so that no hit goes past what is measured. Prefixes that prompts share by chance are
    resumed only where checkpoints are dense, and so exact.
    """
    if not options.is_compressed:
        return replace(options, policy=AnyOf((AllButLast(), BranchPoint())))
    return replace(options, policy=AllButLast(), dense_spill=False, packed_above=0)
