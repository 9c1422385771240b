"""Taking checkpoints while sequences run, where the policy says."""

from __future__ import annotations

import logging

from holdover.engine.residence import Residence
from holdover.engine.sequence import Sequence
from holdover.engine.stats import EngineStats
from holdover.errors import CapacityError
from holdover.prefix.policies import CheckpointPolicy, Prompt

logger = logging.getLogger(__name__)


class Checkpointer:
    """Asks the policy and takes what it wants.

    Args:
        residence: moves states into the cache.
        policy: when to take checkpoints.
        stats: counts those that were skipped.
    """

    def __init__(self, residence: Residence, policy: CheckpointPolicy, stats: EngineStats) -> None:
        self._residence = residence
        self._policy = policy
        self._stats = stats

    def plan(self, sequence: Sequence, kv_depth: int) -> None:
        """Decide at which depths a sequence that has just been admitted will stop for a checkpoint.

        Args:
            sequence: the sequence.
            kv_depth: tokens of it whose KV was found.
        """
        request = sequence.request
        sequence.checkpoint_depths = ()
        if request.use_cache:
            length = len(request.prompt)
            prompt = Prompt(length, sequence.computed, kv_depth, request.boundaries, request.checkpoint_at)
            # who asks for the prompt alone wants it in one go
            depths = prompt.wanted if request.params.max_tokens == 0 else self._policy.prompt_depths(prompt)
            sequence.checkpoint_depths = tuple(sorted({d for d in depths if sequence.computed <= d <= length}))

    def take(self, sequences: list[Sequence], counts: list[int]) -> None:
        """Keep the states of those that stand where one is wanted. A checkpoint that fails never stops a request.

        Args:
            sequences: have just been advanced.
            counts: by how many tokens each.
        """
        for sequence, count in zip(sequences, counts, strict=True):
            if not self._is_wanted(sequence, count):
                continue
            try:
                self._residence.keep_state(sequence)
            except Exception as error:
                self._stats.checkpoints_skipped += 1
                if not isinstance(error, CapacityError):
                    logger.exception(
                        "checkpoint at depth %d of request %s was not taken", sequence.computed, sequence.request.id
                    )

    def _is_wanted(self, sequence: Sequence, count: int) -> bool:
        if not sequence.request.use_cache:
            return False
        depth = sequence.computed
        is_prompt = depth <= len(sequence.request.prompt)
        # a step of several tokens may pass the depth that was asked for
        passed = range(depth - count + 1, depth + 1)
        wanted = depth in sequence.checkpoint_depths if is_prompt else any(map(self._policy.during_decode, passed))
        return wanted and not self._residence.has_state(sequence)
