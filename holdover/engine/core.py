"""The engine's inner loop: admission, chunked prefill, batched decode, checkpoints, preemption and the end.

Each `EngineCore.step` runs at most one prefill forward (a chunk of one sequence) and one decode forward (one token of
every sequence that has just one left to compute). Forwards are rectangular, so the two alternate, and the chunk size
bounds what a prefill adds to the time per output token of the others.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Tokens
from dataclasses import dataclass

import torch

from holdover.chunks import ChunkStore
from holdover.engine.checkpoints import Checkpointer
from holdover.engine.choosing import Choice, Chooser, choose_tokens
from holdover.engine.chunks.reuse import ChunkReuse
from holdover.engine.forwards import Forwards
from holdover.engine.refresh import SuffixRefresh
from holdover.engine.report import add_chunks, explain
from holdover.engine.request import Output, Update
from holdover.engine.residence import Residence
from holdover.engine.runner import Runner
from holdover.engine.sequence import Sequence
from holdover.engine.shadow import ShadowCheck
from holdover.engine.speculation import Speculator
from holdover.engine.stats import EngineStats
from holdover.errors import CapacityError, RequestError
from holdover.prefix import Match, PrefixCache
from holdover.prefix.pins import Pin
from holdover.prefix.policies import DEFAULT_POLICY, CheckpointPolicy
from holdover.prefix.spill import Spill

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """How much the engine takes on at once.

    Attributes:
        max_running: sequences that run together.
        chunk_size: most tokens of one prefill forward while other sequences wait for their next token.
        idle_chunk_size: the same while none does.
    """

    max_running: int
    chunk_size: int
    idle_chunk_size: int


class EngineCore:
    """Owns all running sequences. One thread makes all calls.

    Args:
        runner: the model on its pools.
        cache: the prefix cache over the same pools.
        store: chunks over the same pools.
        limits: how much to take on.
        policy: when to take checkpoints.
        refresh: recovers the omitted units of restored states; None to leave them at zero.
        spill: keeps checkpoints below the resident tiers.
        max_losses: most lossy restores that a resumed state may have in its past; None for any number.
        shadow: computes some approximate hits again exactly.
        speculator: proposes drafts for decode steps.
        choose: finds the next tokens of sequences.
    """

    def __init__(
        self,
        runner: Runner,
        cache: PrefixCache,
        store: ChunkStore,
        limits: Limits,
        policy: CheckpointPolicy = DEFAULT_POLICY,
        *,
        refresh: SuffixRefresh | None = None,
        spill: Spill | None = None,
        max_losses: int | None = None,
        shadow: ShadowCheck | None = None,
        speculator: Speculator | None = None,
        choose: Chooser = choose_tokens,
    ) -> None:
        self.runner = runner
        self.cache = cache
        self.limits = limits
        self.policy = policy
        self.refresh = refresh
        self.spill = spill
        self.shadow = shadow
        self.speculator = speculator
        self.stats = EngineStats()
        self._residence = Residence(cache, spill, max_losses)
        self.chunks = ChunkReuse(runner, self._residence, store)
        self._checkpoints = Checkpointer(self._residence, policy, self.stats)
        self._forwards = Forwards(
            runner, self._residence, self._checkpoints, self.stats, speculator, self._compare, choose
        )
        self._waiting: deque[Sequence] = deque()
        # oldest first: the last one is the first to be preempted
        self._running: list[Sequence] = []

    @property
    def num_waiting(self) -> int:
        """Requests that own nothing yet."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests that own a slot."""
        return len(self._running)

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._waiting or self._running or self.chunks.builds)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Nothing is allocated yet.

        Raises:
            RequestError: a request with its id is here already.
        """
        if self.has(sequence.request.id):
            raise RequestError(f"request id {sequence.request.id} is in use", param="id")
        self._waiting.append(sequence)

    def has(self, request_id: str) -> bool:
        """Whether a request is here, waiting or running."""
        return any(sequence.request.id == request_id for sequence in [*self._waiting, *self._running])

    def abort(self, request_id: str) -> Update | None:
        """End a request now, wherever it stands; None if it is not here (it may just have ended)."""
        for sequence in [*self._waiting, *self._running]:
            if sequence.request.id == request_id:
                self.stats.aborted += 1
                return self._end(sequence, "abort")
        return None

    def step(self) -> list[Update]:
        """Advance every sequence that can be advanced; returns what was added to each.

        An error in a forward ends the sequences of that forward only, and an error in what follows it for one
        sequence (sampling, text) ends that sequence only.
        """
        # what moved between tiers since the last step, before anything looks for it
        self.cache.tiers.maintain()
        updates = list(self._admit())
        prefill = next((s for s in self._running if s.remaining > 1), None)
        if prefill is not None:
            updates += self._forward([prefill])
        else:
            self.chunks.build(self._most, may_wait=bool(self._running))
        decode = [s for s in self._running if s.remaining == 1 and s is not prefill]
        if decode:
            updates += self._forward(decode)
        self.cache.tiers.maintain()
        return updates if self.shadow is None else self.shadow.hide(updates)

    def warm_up(self) -> None:
        """Compile and capture now what would make the first requests slow."""
        if self.runner.decoder is not None:
            self.runner.decoder.warm_up()

    def flush(self) -> int:
        """Drop all that no sequence and no pin holds; how many checkpoints that were."""
        return self.cache.flush()

    def pin(self, namespace: bytes, tokens: Tokens[int]) -> Pin | None:
        """Pin a prefix whose state is cached; see `Pins.add`."""
        # the scratch slot of refreshes is the engine's own
        return self.cache.pins.add(namespace, tokens, reserved=int(self.refresh is not None))

    def unpin(self, key: bytes) -> bool:
        """Let a pinned prefix go; see `Pins.remove`."""
        return self.cache.pins.remove(key)

    def unpin_all(self) -> int:
        """Let all pinned prefixes go; how many there were."""
        return self.cache.pins.clear()

    def settle(self) -> None:
        """Finish what moves between tiers; for a moment at which nothing runs."""
        self.cache.tiers.maintain()
        self.cache.tiers.finish()

    def close(self) -> None:
        """Finish what moves between tiers and below them. Nothing may be called afterwards."""
        self.cache.tiers.close()
        if self.spill is not None:
            self.spill.close()

    def check_integrity(self) -> None:
        """Verify that every pool balances with what the running sequences own.

        Raises:
            IntegrityError: with the ids of what leaked.
        """
        places = (s.place for s in self._running)
        self._residence.check_integrity(
            places,
            scratch=(self.refresh is not None) + self.chunks.builds.is_active,
            other_rows=self.chunks.store.rows,
            other_checkpoints=self.chunks.checkpoints,
        )
        self.chunks.check_integrity()

    def _admit(self) -> Iterator[Update]:
        while self._waiting and len(self._running) < self.limits.max_running:
            sequence = self._waiting[0]
            try:
                self._residence.check_pins(sequence)
            except CapacityError as error:
                yield self._end(sequence, "error", error)
                continue
            # a composed one takes all its rows at once: whether they are there is seen then
            if self._running and not sequence.is_composed and not self._residence.has_room(sequence):
                return
            try:
                match = self._enter(sequence)
            except CapacityError as error:
                if self._running:
                    return
                if self.chunks.give_up(sequence):
                    continue
                yield self._end(sequence, "error", error)
                continue
            except Exception as error:
                # what is wrong with a request is its sender's business
                if not isinstance(error, RequestError):
                    logger.exception("request %s could not be started", sequence.request.id)
                yield self._end(sequence, "error", error)
                continue
            if match is None:
                return
            self._waiting.popleft()
            self._running.append(sequence)
            refreshed = self._recover(sequence, match)
            if sequence.cache is None:
                lineage = sequence.place.hold.lineage
                report = explain(sequence.request, match, lineage, self.cache.tiers, refreshed)
                sequence.cache = add_chunks(report, sequence.repair, lineage) if sequence.is_composed else report
                if not sequence.is_shadow:
                    prompt, tier = len(sequence.request.prompt), match.source or match.tier
                    self.stats.count_admission(prompt, match.state_depth, tier, lineage)
                    if sequence.is_composed:
                        self.stats.count_chunks(sequence.cache)
            self._checkpoints.plan(sequence, match.kv_depth)
            if sequence.computed > match.state_depth:
                # a context that was just composed may be wanted again, under another query
                self._checkpoints.take([sequence], [0])

    def _enter(self, sequence: Sequence) -> Match | None:
        """Let a sequence start; None if it has to wait for a chunk."""
        return self.chunks.enter(sequence, self._most) if sequence.is_composed else self._residence.enter(sequence)

    def _recover(self, sequence: Sequence, match: Match) -> tuple[int, float]:
        """Recover what a packed checkpoint left out, if that was asked for; tokens replayed, and seconds."""
        # a replay would give the units of an ordinary prefill, which a composed state does not have
        if self.refresh is None or match.tier != "compressed" or sequence.is_composed:
            return 0, 0.0
        return self.refresh.recover(sequence, self.stats)

    def _forward(self, sequences: list[Sequence]) -> list[Update]:
        """Run the next tokens of ``sequences`` (one that prefills, or all that decode) in one forward."""
        count = self._chunk(sequences[0])
        ready, updates = self._reserve(sequences, count)
        if not ready:
            return updates
        # neighbouring slots are advanced as one view of the pool
        ready.sort(key=lambda s: s.place.lease.slot)
        try:
            return updates + self._emit(self._forwards.run(ready, count))
        except Exception as error:
            logger.exception("forward of %d tokens failed", count)
            return updates + self._end_all(ready, error)
        except BaseException:
            self._end_all(ready)
            raise

    @property
    def _most(self) -> int:
        """Tokens of one forward for who does not run yet."""
        return self.limits.chunk_size if self._running else self.limits.idle_chunk_size

    def _chunk(self, sequence: Sequence) -> int:
        # logits of a whole prompt are many times the rest of a forward
        is_alone = len(self._running) == 1 and not self._waiting and sequence.request.params.prompt_logprobs is None
        count = min(sequence.remaining, self.limits.idle_chunk_size if is_alone else self.limits.chunk_size)
        stop = sequence.next_checkpoint()
        return count if stop is None else min(count, stop - sequence.computed)

    def _reserve(self, sequences: list[Sequence], count: int) -> tuple[list[Sequence], list[Update]]:
        """Give sequences rows for their next tokens; those that can run, and what ended on the way."""
        updates: list[Update] = []
        try:
            self._residence.grow(sequences, count)
        except Exception as error:
            if not isinstance(error, CapacityError):
                logger.exception("no rows for %d sequences together", len(sequences))
            # one by one, oldest first: it may be that only some can be served
            for sequence in sequences:
                try:
                    self._make_room(sequence, count)
                except Exception as failure:
                    logger.exception("no rows for request %s", sequence.request.id)
                    updates.append(self._end(sequence, "error", failure))
        # making room for one may have preempted another
        return [s for s in sequences if s.is_running], updates

    def _make_room(self, sequence: Sequence, count: int) -> None:
        """Give one sequence its rows, preempting the youngest, or in the end itself, to find them."""
        while sequence.is_running:
            try:
                self._residence.grow([sequence], count)
                return
            except CapacityError as error:
                if self._residence.trim(self._running) or self.chunks.give_up():
                    continue
                if self.cache.pins and self._running == [sequence]:
                    # pinned since it was let in, and nobody is left to wait for
                    raise CapacityError(f"{error}; pins hold {sum(self.cache.pins.rows.values())}") from None
                self._preempt(self._running[-1])

    def _preempt(self, sequence: Sequence) -> None:
        """Take a sequence's memory back; it will resume from what the cache still has of it by then."""
        self.stats.preemptions += 1
        self._running.remove(sequence)
        # before anything that can be interrupted: a request is always in one of the two
        self._waiting.appendleft(sequence)
        self._residence.leave(sequence, keep=sequence.request.use_cache)

    def _compare(self, sequence: Sequence, logits: torch.Tensor) -> None:
        """Let the shadow check see the logits of a sequence's first token."""
        if self.shadow is None or sequence.is_composed:
            return
        self.shadow.judge(sequence, logits)
        if self.shadow.stats.tripped:
            self._residence.max_losses = 0
        if (shadow := self.shadow.sample(sequence, logits)) is not None:
            self._waiting.append(shadow)

    def _emit(self, choices: list[Choice]) -> list[Update]:
        """Report what was chosen, and end the sequences that end with it."""
        updates = []
        for choice in choices:
            request_id, output = choice.sequence.request.id, None
            if choice.error is not None or choice.reason is not None:
                self.stats.finished += choice.error is None and not choice.sequence.is_shadow
                reason = "error" if choice.error is not None else str(choice.reason)
                output = self._end(choice.sequence, reason, choice.error).output
            updates.append(Update(request_id, choice.tokens, choice.text, choice.logprobs, output))
        return updates

    def _end_all(self, sequences: list[Sequence], error: Exception | None = None) -> list[Update]:
        """End those that have not ended yet."""
        return [self._end(s, "error", error) for s in sequences if s.is_running]

    def _end(self, sequence: Sequence, reason: str, error: Exception | None = None) -> Update:
        """Give up everything a sequence owns, wherever it stands, and describe how it ended."""
        self.chunks.forget(sequence)
        if sequence.is_running:
            self._running.remove(sequence)
            keep = sequence.request.use_cache and self.policy.at_end() and reason != "error"
            self._residence.leave(sequence, keep=keep)
        else:
            self._waiting.remove(sequence)
        sequence.text.finish()
        self.stats.failed += reason == "error"
        output: Output = sequence.output(reason, error)
        return Update(sequence.request.id, output=output)
