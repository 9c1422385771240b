"""A conversation in one combination, through the engine and its cache, compared with its exact run at every reply.

A turn's checkpoint is taken where it ends, from base and log; the next turn resumes from it, all but the last token of
the reply. Replies are forced, so that every arm goes through the same tokens. With drafts, those are verified that
prompt lookup proposes, and the ones that the reply has are accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

from holdover.engine.engine import Engine
from holdover.engine.hf.loader import Loaded
from holdover.engine.request import Output
from holdover.engine.sampling import SamplingParams
from holdover.errors import ConfigError, IntegrityError
from holdover.evaluation.journal import Journal
from holdover.evaluation.protocols.combinations.arms import Combination
from holdover.evaluation.protocols.combinations.conversation import Conversation
from holdover.evaluation.protocols.combinations.exact import Exact
from holdover.evaluation.protocols.combinations.exact import run as run_exact
from holdover.evaluation.protocols.combinations.listener import Listener
from holdover.evaluation.protocols.divergence import agreeing, divergences
from holdover.state import SlotPool
from holdover.store import KVPool


@dataclass(frozen=True)
class Reply:
    """What an arm made of one reply.

    Attributes:
        losses: lossy restores in the past of the state that it resumed from.
        resumed: tokens that were resumed; 0 at the first turn.
        kl: KL(exact || arm) in nats before each token of the reply.
        same: tokens before which the most probable token is the same.
    """

    losses: int
    resumed: int
    kl: tuple[float, ...]
    same: int


@dataclass(frozen=True)
class Work:
    """What an engine did.

    Attributes:
        loads: turns that resumed from a packed checkpoint.
        logged: decode forwards with a log.
        folded: those of them that folded it.
        verified: those that verified drafts.
        drafted: drafts that were verified.
        accepted: those of them that the reply had.
    """

    loads: int
    logged: int
    folded: int
    verified: int
    drafted: int
    accepted: int


NOTHING = Work(0, 0, 0, 0, 0, 0)


@dataclass(frozen=True)
class Talk:
    """What an arm made of one conversation.

    Attributes:
        conversation: its id.
        replies: one a turn.
        checkpoint_bytes: bytes of one checkpoint.
        slot_bytes: bytes of a running sequence's state, its log included.
        merge_interval: M of the log; None without one.
        work: what the engine did for it.
    """

    conversation: str
    replies: tuple[Reply, ...]
    checkpoint_bytes: int
    slot_bytes: int
    merge_interval: int | None
    work: Work


def run(
    loaded: Loaded,
    arms: Sequence[Combination],
    conversations: Sequence[Conversation],
    merge_interval: int | None,
    journal: Journal,
) -> Iterator[dict[Combination, Talk]]:
    """Hold every conversation in every arm: yields one conversation at a time; the journal's are not held again.

    Args:
        loaded: the model.
        arms: the combinations.
        conversations: what is said.
        merge_interval: M of the logs; None for the engine's own choice.
        journal: talks by arm and conversation.

    Raises:
        ConfigError: a conversation does not fit into the context.
        IntegrityError: a turn did not resume from the checkpoint that its arm is about, or a log or drafts that an arm
            is about were not used.
    """
    longest = max(map(len, conversations))
    if longest > loaded.host.layout.max_context:
        raise ConfigError(
            f"a conversation of {longest} tokens does not fit into the context of {loaded.host.layout.max_context}: "
            "lower --prefix, --following or --restores"
        )
    counts = dict.fromkeys(arms, NOTHING)
    benches: dict[Combination, _Bench] = {}
    with ExitStack() as stack:
        for conversation in conversations:
            keys = {arm: f"{arm.name}/{conversation.id}" for arm in arms}
            missing = [arm for arm, key in keys.items() if key not in journal]
            exact = run_exact(loaded.host, conversation) if missing else []
            for arm in missing:
                if arm not in benches:
                    benches[arm] = _Bench(loaded, arm, longest, merge_interval)
                    stack.callback(benches[arm].engine.close)
                journal.add({keys[arm]: asdict(benches[arm].hold(conversation.id, exact))})
            found = {arm: _talk(journal[key]) for arm, key in keys.items()}
            counts = {arm: add(counts[arm], talk.work) for arm, talk in found.items()}
            yield found
    for arm, work in counts.items():
        check(arm, work)


def check(arm: Combination, work: Work) -> None:
    """Check that an arm did what it is about, over all conversations.

    Raises:
        IntegrityError: it did not.
    """
    if arm.is_lossy and not work.loads:
        raise IntegrityError(f"arm {arm.name} made no compressed load")
    if arm.decode == "deferred" and not work.logged > work.folded > 0:
        raise IntegrityError(f"arm {arm.name}: of {work.logged} forwards with a log {work.folded} folded it")
    if arm.speculate != "off" and not work.verified:
        raise IntegrityError(f"arm {arm.name} verified no drafts: the replies repeat nothing; choose longer ones")


class _Bench:
    """An engine for one arm."""

    def __init__(self, loaded: Loaded, arm: Combination, longest: int, merge_interval: int | None) -> None:
        layout = loaded.host.layout
        self._arm = arm
        self._listener = Listener(loaded.host)
        # a conversation's rows, as many for drafts and what a decoder needs, and those of the past restored once
        budget = KVPool.bytes_for(layout.kv, 3 * longest)
        self.engine = Engine(replace(loaded, host=self._listener), arm.options(longest, merge_interval, budget))
        self._pool = self.engine.core.runner.slots

    def hold(self, name: str, turns: Sequence[Exact]) -> Talk:
        """Hold a conversation from its start."""
        before = self._work()
        self.engine.core.cache.flush()
        # the last token of a reply is not run before the next turn
        depths = [0, *(len(turn.prompt) + len(turn.reply) - 1 for turn in turns)]
        replies = tuple(
            self._reply(number, depth, turn) for number, (depth, turn) in enumerate(zip(depths, turns, strict=False))
        )
        size = self.engine.core.cache.tiers.checkpoint_bytes("compressed" if self._arm.is_lossy else "native")
        layout, log = self._pool.layout, self._pool.deferred
        interval = None if log is None else log.capacity + 1
        slot = SlotPool.bytes_for(layout, 1, interval) - SlotPool.bytes_for(layout, 0, interval)
        logged = interval if self._arm.decode == "deferred" else None
        return Talk(name, replies, size, slot, logged, _difference(self._work(), before))

    def _reply(self, number: int, depth: int, turn: Exact) -> Reply:
        start, length = len(turn.prompt) - 1, len(turn.reply)
        if depth and self._arm.once:
            self._compute(turn.prompt[:depth])
        self._listener.want(range(start, start + length))
        params = SamplingParams(max_tokens=length, temperature=0.0, forced=turn.reply, ignore_eos=True)
        output = self.engine.generate([turn.prompt], params)[0]
        if depth:
            self._expect(output, number, depth)
        found, losses = self._listener.heard(), self._arm.lineage(number).losses if number else 0
        return Reply(losses, depth, divergences(turn.logits, found), agreeing(turn.logits, found))

    def _compute(self, tokens: Sequence[int]) -> None:
        """Leave nothing in the cache but the exact state of these tokens, kept as the arm keeps it."""
        self.engine.core.cache.flush()
        self.engine.generate([tokens], SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True))

    def _expect(self, output: Output, number: int, depth: int) -> None:
        cache, arm = output.cache, self._arm
        wanted = (depth, arm.checkpoint.tier, str(arm.lineage(number)))
        if (found := (cache.state_depth, cache.tier, cache.lineage)) != wanted:
            raise IntegrityError(
                f"arm {arm.name}: turn {number + 1} resumed {found[0]} tokens, {found[2]}, from tier {found[1]}, and "
                f"not {wanted[0]}, {wanted[2]}, from {wanted[1]}: {cache.reason}"
            )

    def _work(self) -> Work:
        core = self.engine.core
        logged = folded = verified = drafted = accepted = 0
        if core.runner.decoder is not None:
            steps = core.runner.decoder.stats
            logged, folded = steps.forwards["defer"] + steps.forwards["draft"], steps.folds
        if core.speculator is not None:
            drafts = core.speculator.stats
            verified, drafted, accepted = drafts.verifications, drafts.drafted, drafts.accepted
        return Work(core.stats.hits["compressed"], logged, folded, verified, drafted, accepted)


def add(first: Work, second: Work) -> Work:
    """What two pieces of work are together."""
    return Work(**{name: count + vars(second)[name] for name, count in vars(first).items()})


def _difference(after: Work, before: Work) -> Work:
    return Work(**{name: count - vars(before)[name] for name, count in vars(after).items()})


def _talk(entry: dict[str, Any]) -> Talk:
    replies = tuple(Reply(**{**one, "kl": tuple(one["kl"])}) for one in entry["replies"])
    return Talk(**{**entry, "replies": replies, "work": Work(**entry["work"])})
