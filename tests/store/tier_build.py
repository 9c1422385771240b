"""Two resident tiers over tiny pools, a mover that does as it is told, and the definition of a lossy restore."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from holdover.arch.layout import StateLayout
from holdover.codec import Codec
from holdover.state import KeyChain, SlotPool
from holdover.store import Checkpoint, LeaseState, PackedPool, SlotAllocator, SlotLease, StateTiers, TierOptions
from holdover.store.mover import Mover
from tests.codec.build import plan_of
from tests.state.build import ONE, advance, assert_state_of

MODEL = b"model"
# what one token does to a unit: `advance`, in the same fp32 operations
_FACTOR, _MODULUS = 37, 65521


def half(layout: StateLayout = ONE, element: str = "full") -> Codec:
    """A codec that retains every second unit of each layer, the first one included."""
    return Codec(layout, plan_of(layout, [torch.arange(n) % 2 == 0 for n in layout.units_per_layer]), element=element)  # type: ignore[arg-type]


def whole(layout: StateLayout = ONE, element: str = "full") -> Codec:
    """A codec that retains every unit."""
    return Codec(layout, element=element)  # type: ignore[arg-type]


class Pending:
    """A job that has not run yet."""

    def __init__(self, job: Callable[[], None]) -> None:
        self._job = job
        self._done = False
        self._error: Exception | None = None

    def run(self, error: Exception | None = None) -> None:
        """Run it; with ``error`` it fails, after it has written."""
        if not self._done:
            self._done = True
            try:
                self._job()
            except Exception as raised:
                error = error or raised
            self._error = error

    def is_done(self) -> bool:
        return self._done

    def wait(self) -> None:
        self.run()
        if self._error is not None:
            raise self._error


class Delayed:
    """A mover whose jobs run when the test says so, in any order, or when somebody waits for them."""

    def __init__(self) -> None:
        self.jobs: list[Pending] = []

    def start(self, job: Callable[[], None]) -> Pending:
        self.jobs.append(Pending(job))
        return self.jobs[-1]

    def close(self) -> None:
        for job in self.jobs:
            job.run()


def tiers_of(
    native: int = 4, packed: int = 2, codec: Codec | None = None, mover: Mover | None = None, **options: object
) -> StateTiers:
    """Poisoned pools; ``packed`` slots of `half` by default."""
    codec = codec or half()
    slots = SlotAllocator(SlotPool(codec.layout, native), poison=True)
    records = SlotAllocator(PackedPool(codec, packed), "compressed", poison=True)
    return StateTiers(slots, records, mover, TierOptions(**options))  # type: ignore[arg-type]


def of(tokens: Sequence[int], namespace: bytes = MODEL) -> KeyChain:
    chain = KeyChain(namespace)
    chain.extend(tokens)
    return chain


def live(tiers: StateTiers, tokens: Sequence[int]) -> SlotLease:
    """A live slot with the state of ``tokens``."""
    lease = tiers.acquire(LeaseState.LIVE)
    tiers.native.pool.reset(lease.slot, MODEL)
    advance(tiers.native.pool, lease.slot, tokens)
    return lease


def donated(tiers: StateTiers, tokens: Sequence[int], *, dense: bool = False) -> Checkpoint:
    """A checkpoint of a finished sequence, kept."""
    checkpoint = tiers.donate(live(tiers, tokens))
    tiers.keep(checkpoint, dense=dense)
    return checkpoint


def packed(tiers: StateTiers, tokens: Sequence[int]) -> Checkpoint:
    """A kept checkpoint in the compressed tier, which has room for it."""
    lease = live(tiers, tokens)
    checkpoint = tiers.snapshot(lease.slot)
    lease.release()
    assert checkpoint.tier == "compressed"
    tiers.keep(checkpoint)
    return checkpoint


def assert_lossy_state_of(
    pool: SlotPool, slot: int, tokens: Sequence[int], codec: Codec, past: Sequence[int], salt: int = 0
) -> None:
    """Fail unless a slot is what ``tokens`` give when the state was restored from a record at each depth of ``past``.

    By definition: at each of them omitted units start again from zero and retained ones are as they were, or, for
    INT8, as they are after encoding; the conv state is never lossy.
    """
    if not past or codec.is_lossless:
        assert_state_of(pool, slot, tokens, salt)
        return
    assert pool.depth(slot) == len(tokens)
    for i, spec in enumerate(codec.layout.layers):
        state = torch.zeros(spec.units)
        for depth, token in enumerate(tokens):
            if depth in past:
                state = _restored(codec, i, state)
            state.mul_(_FACTOR).add_(token + 1 + spec.index + salt).remainder_(_MODULUS)
        if len(tokens) in past:
            state = _restored(codec, i, state)
        got = pool.temporal(spec.index)[slot].view(spec.units, -1)
        assert torch.equal(got, state[:, None].expand_as(got)), f"layer {spec.index}: not {tokens} restored at {past}"
        inputs = [0] * (spec.conv_width - 1) + [token + 1 + spec.index + salt for token in tokens]
        history = torch.tensor(inputs[len(tokens) :], dtype=pool.conv(spec.index).dtype)[:, None]
        assert pool.conv(spec.index)[slot].eq(history).all(), f"layer {spec.index}: conv state is not of {tokens}"


def assert_holds(
    tiers: StateTiers, checkpoint: Checkpoint, tokens: Sequence[int], past: Sequence[int] = (), *, chain=None, salt=0
) -> None:
    """Fail unless a checkpoint verifies as ``tokens``' state and its bytes are that, whichever tier they are in."""
    chain = chain or of(tokens)
    tiers.verify(checkpoint, chain)
    pool, slot = tiers.native.pool, checkpoint.slot
    if checkpoint.tier == "compressed":
        past = (*past, len(tokens))
        assert tiers.packed is not None
        pool = SlotPool(tiers.native.pool.layout, 1)
        pool.poison(1)
        tiers.packed.pool.unpack(slot, pool, 1, chain.copy(), checkpoint.restored)
        slot = 1
    assert_lossy_state_of(pool, slot, tokens, tiers.codec, past, salt)


def check(tiers: StateTiers, *, live: int = 0) -> None:
    """Fail unless both pools balance, with ``live`` slots in use by sequences."""
    assert tiers.packed is not None
    tiers.native.check_integrity()
    tiers.packed.check_integrity()
    moving = sum(c.demotion is not None for c in tiers.order)
    for tier, allocator in (("native", tiers.native), ("compressed", tiers.packed)):
        balance = tiers.balance(tier)  # type: ignore[arg-type]
        assert balance.free + balance.cached + balance.locked == balance.total == allocator.pool.num_slots
        assert balance.free == allocator.num_free
        busy = sum(c.tier == tier and not c.is_idle for c in tiers.order)
        assert balance.locked == busy + (live if tier == "native" else moving)
        assert len({c.slot for c in tiers.order if c.tier == tier}) == sum(c.tier == tier for c in tiers.order)


def _restored(codec: Codec, layer: int, state: torch.Tensor) -> torch.Tensor:
    """Units of one layer as they come back from a record, ``[units]``."""
    assert codec.plan is None or codec.plan.retained[layer].shape == state.shape
    kept = state if codec.plan is None else torch.where(codec.plan.retained[layer], state, 0.0)
    # Eq. 8 of a row of equal elements: each is the largest
    return kept if codec.element == "full" else 127 * (kept / 127)
