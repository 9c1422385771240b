"""Two tiers under one order (DASC App. B.2): where a checkpoint goes, who gives way, and moves as transactions."""

from __future__ import annotations

import pytest
import torch

from holdover.errors import CapacityError, CheckpointMismatchError, OwnershipError
from holdover.state import EXACT, Lineage, SlotPool
from holdover.store import LeaseState, PackedPool
from tests.state.build import LAYOUTS, assert_state_of, bytes_of, same_bytes
from tests.store.tier_build import (
    Delayed,
    assert_holds,
    assert_lossy_state_of,
    check,
    donated,
    half,
    live,
    of,
    packed,
    tiers_of,
    whole,
)

LIVE = LeaseState.LIVE
T = [1, 2, 3]
every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
CODECS = {"half": half, "int8": lambda layout: half(layout, "int8"), "dense": whole}
every_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)


def depths(tiers):
    """Depths of the checkpoints in the order of eviction."""
    return [c.header.depth for c in tiers.order]


# insertion: compressed first


@every_layout
@every_codec
def test_a_snapshot_is_packed_and_the_live_slot_is_as_it_was(layout, codec):
    tiers = tiers_of(codec=codec(layout))
    lease = live(tiers, T)
    before = bytes_of(tiers.native.pool, lease.slot)
    checkpoint = tiers.snapshot(lease.slot)
    assert tiers.balance("compressed") == (1, 0, 1, 2), "on its way into the order it is the sequence's"
    tiers.keep(checkpoint)
    assert (checkpoint.tier, tiers.balance("native"), tiers.balance("compressed")) == (
        "compressed",
        (3, 0, 1, 4),
        (1, 1, 0, 2),
    )
    assert same_bytes(bytes_of(tiers.native.pool, lease.slot), before)
    assert tiers.native.pool.header(lease.slot).lineage == EXACT
    lease.release()
    assert_holds(tiers, checkpoint, T)


def test_a_donated_slot_is_packed_by_the_next_maintenance_and_given_back():
    mover = Delayed()
    tiers = tiers_of(mover=mover)
    lease = live(tiers, T)
    slot = lease.slot
    checkpoint = tiers.donate(lease)
    tiers.keep(checkpoint)
    assert (checkpoint.tier, checkpoint.slot) == ("native", slot), "a move, no copy"
    tiers.maintain()
    mover.jobs[0].run()
    tiers.maintain()
    assert (checkpoint.tier, tiers.native.num_free) == ("compressed", 4)
    assert_holds(tiers, checkpoint, T)
    check(tiers)


@pytest.mark.parametrize("how", ["snapshot", "donate"])
def test_what_finds_the_packed_pool_full_stays_dense_and_nothing_is_evicted(how):
    tiers = tiers_of(native=4, packed=2)
    older = [packed(tiers, T[:n]) for n in (1, 2)]
    lease = live(tiers, T)
    checkpoint = tiers.snapshot(lease.slot) if how == "snapshot" else tiers.donate(lease)
    tiers.keep(checkpoint)
    for _ in range(3):
        tiers.maintain()
    assert (checkpoint.tier, checkpoint.restored) == ("native", EXACT)
    assert list(tiers.order) == [*older, checkpoint]
    assert_holds(tiers, checkpoint, T)
    check(tiers, live=how == "snapshot")


def test_a_checkpoint_asked_to_be_dense_stays_so_although_there_is_room():
    tiers = tiers_of()
    lease = live(tiers, T)
    checkpoint = tiers.snapshot(lease.slot, dense=True)
    tiers.keep(checkpoint, dense=True)
    lease.release()
    donor = donated(tiers, T[:2], dense=True)
    for _ in range(3):
        tiers.maintain()
    assert [c.tier for c in (checkpoint, donor)] == ["native", "native"]
    assert tiers.packed.num_free == 2
    assert_holds(tiers, checkpoint, T)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("how", ["snapshot", "donate"])
def test_without_dense_spill_nothing_is_kept_dense(how, dense):
    tiers = tiers_of(packed=2, dense_spill=False)
    for n in (1, 2, 3):
        lease = live(tiers, T[:n])
        checkpoint = tiers.snapshot(lease.slot, dense=dense) if how == "snapshot" else tiers.donate(lease)
        if lease.is_held:
            lease.release()
        tiers.keep(checkpoint, dense=dense)
        assert checkpoint.tier == "compressed"
        assert tiers.balance("native") == (4, 0, 0, 4)
        check(tiers)
    # the oldest gave way
    assert depths(tiers) == [2, 3]
    assert tiers.counters["states_evicted"] == 1


@pytest.mark.parametrize("how", ["snapshot", "donate"])
def test_without_dense_spill_and_without_a_packed_slot_the_lease_stays_the_callers(how):
    """Class 19: all packed slots are pinned, so there is no checkpoint; with one more slot free there would be."""
    tiers = tiers_of(native=1, packed=1, dense_spill=False)
    checkpoint = packed(tiers, T[:1])
    checkpoint.pins += 1
    lease = live(tiers, T)
    with pytest.raises(CapacityError):
        tiers.snapshot(lease.slot) if how == "snapshot" else tiers.donate(lease)
    assert lease.is_held
    assert_state_of(tiers.native.pool, lease.slot, T)
    assert_holds(tiers, checkpoint, T[:1])
    check(tiers, live=1)


@pytest.mark.parametrize("spill", [True, False])
@pytest.mark.parametrize("how", ["snapshot", "donate"])
def test_a_slot_that_is_not_whole_is_no_checkpoint(how, spill):
    tiers = tiers_of(dense_spill=spill)
    lease = live(tiers, T)
    tiers.native.pool.begin([lease.slot])
    with pytest.raises(CheckpointMismatchError, match="not whole"):
        tiers.snapshot(lease.slot) if how == "snapshot" else tiers.donate(lease)
    assert lease.is_held
    check(tiers, live=1)


# what a restore gives


@every_layout
@every_codec
@pytest.mark.parametrize("tier", ["native", "compressed"])
def test_a_restore_gives_what_its_tier_promises(layout, codec, tier):
    tiers = tiers_of(codec=codec(layout))
    checkpoint = packed(tiers, T) if tier == "compressed" else donated(tiers, T, dense=True)
    lease = tiers.acquire(LIVE)
    tiers.restore(checkpoint, lease.slot, of(T))
    lossy = tier == "compressed" and not tiers.codec.is_lossless
    assert tiers.native.pool.header(lease.slot).lineage == checkpoint.restored
    assert checkpoint.restored == (Lineage("nr", 1) if lossy else EXACT)
    assert_lossy_state_of(tiers.native.pool, lease.slot, T, tiers.codec, [3] if lossy else [])
    if tier == "native":
        assert same_bytes(bytes_of(tiers.native.pool, lease.slot), bytes_of(tiers.native.pool, checkpoint.slot))
    # and the checkpoint is as it was
    assert_holds(tiers, checkpoint, T)


def test_losses_add_up_over_restores():
    tiers = tiers_of(native=2, packed=3)
    checkpoint = packed(tiers, T)
    for losses in (1, 2, 3):
        lease = tiers.acquire(LIVE)
        tiers.restore(checkpoint, lease.slot, of(T))
        assert tiers.native.pool.header(lease.slot).lineage == Lineage("nr", losses)
        tiers.discard(checkpoint)
        checkpoint = tiers.snapshot(lease.slot)
        tiers.keep(checkpoint)
        assert (checkpoint.header.lineage.losses, checkpoint.restored.losses) == (losses, losses + 1)
        lease.release()
    check(tiers)


@pytest.mark.parametrize("tier", ["native", "compressed"])
@pytest.mark.parametrize("expect", [of([1, 2]), of([3, 2, 1]), of([*T, 4]), of(T, b"tenant")])
def test_a_restore_of_other_tokens_writes_nothing(tier, expect):
    tiers = tiers_of()
    checkpoint = packed(tiers, T) if tier == "compressed" else donated(tiers, T, dense=True)
    lease = tiers.acquire(LIVE)
    with pytest.raises(CheckpointMismatchError):
        tiers.restore(checkpoint, lease.slot, expect)
    assert all(t.isnan().all() for t in tiers.native.pool.tensors_of(lease.slot))
    assert not tiers.native.pool.is_whole(lease.slot)


def test_an_entry_that_points_at_anothers_record_is_refused():
    tiers = tiers_of()
    ours, theirs = packed(tiers, T), packed(tiers, [3, 2, 1])
    pool = tiers.packed.pool
    pool.write(ours.slot, pool.record(theirs.slot).clone())
    with pytest.raises(CheckpointMismatchError, match="no whole checkpoint"):
        tiers.verify(ours, of(T))
    pool.commit(ours.slot, theirs.header)
    with pytest.raises(CheckpointMismatchError):
        tiers.verify(ours, of(T))


# pressure: victims by the rules of B.2

# a world as its order, oldest first: d dense, c compressed, a capital letter is pinned; its packed slots; what is left
# after one native slot was needed; how many were evicted
VICTIMS = {
    "packed-slot-free": ("dd", 1, "cd", 0),
    "packed-slot-free-oldest-is-compressed": ("cdd", 2, "ccd", 0),
    "oldest-is-pinned": ("Dd", 1, "Dc", 0),
    "both-full-oldest-is-dense": ("dcd", 1, "-cd", 1),
    "both-full-oldest-is-compressed": ("cdd", 1, "-cd", 1),
    "both-full-several-compressed-older": ("ccdd", 2, "-ccd", 1),
    "both-full-oldest-compressed-is-pinned": ("Cdcd", 2, "C-cd", 1),
    "both-full-every-compressed-is-pinned": ("CDd", 1, "CD-", 1),
    "no-packed-slot-at-all": ("dd", 0, "-d", 1),
}


def arrange(order, packed_slots, **options):
    """Tiers whose native pool is full of the dense ones of ``order``; the checkpoints in order, by depth 1, 2, 3 ..."""
    tiers = tiers_of(native=sum(kind in "dD" for kind in order) or 1, packed=packed_slots, **options)
    checkpoints = []
    # compressed ones first: packing needs a live slot
    for depth, kind in enumerate(order, start=1):
        if kind in "cC":
            checkpoints.append((depth, packed(tiers, [*range(depth)])))
    for depth, kind in enumerate(order, start=1):
        if kind in "dD":
            checkpoints.append((depth, donated(tiers, [*range(depth)], dense=True)))
    ordered = [c for _, c in sorted(checkpoints, key=lambda pair: pair[0])]
    for checkpoint, kind in zip(ordered, order, strict=True):
        tiers.order.touch(checkpoint)
        checkpoint.pins += kind.isupper()
    return tiers, ordered


@pytest.mark.parametrize(("order", "slots", "left", "evicted"), VICTIMS.values(), ids=VICTIMS)
@pytest.mark.parametrize("mover", [None, Delayed()], ids=["inline", "delayed"])
def test_who_gives_way(order, slots, left, evicted, mover):
    tiers, checkpoints = arrange(order, slots, mover=mover)
    told = []
    for checkpoint in checkpoints:
        checkpoint.on_evict = lambda depth=checkpoint.header.depth: told.append(depth)
    assert tiers.native.num_free == 0
    lease = tiers.acquire(LIVE)
    found = {c.header.depth: c.tier[0].replace("n", "d") for c in tiers.order}
    assert "".join(found.get(depth, "-") for depth in range(1, len(order) + 1)) == left.lower()
    # the order of those that are left is as it was: changing place is not a use
    assert depths(tiers) == [depth for depth, kind in enumerate(left, start=1) if kind != "-"]
    assert told == [depth for depth, kind in enumerate(left, start=1) if kind == "-"]
    assert tiers.counters["states_evicted"] == evicted
    assert tiers.counters["demotions"] == sum(a in "dD" and b == "c" for a, b in zip(order, left, strict=True))
    check(tiers, live=1)
    lease.release()
    for checkpoint in tiers.order:
        assert_holds(tiers, checkpoint, [*range(checkpoint.header.depth)])


@pytest.mark.parametrize(("order", "slots"), [("D", 1), ("DD", 2), ("cD", 1), ("ccD", 2)])
def test_with_no_dense_one_to_take_there_is_no_slot_and_nothing_is_evicted(order, slots):
    """Evicting a compressed checkpoint frees no native slot."""
    tiers, checkpoints = arrange(order, slots)
    for _ in range(2):
        with pytest.raises(CapacityError, match="live or pinned"):
            tiers.acquire(LIVE)
        assert list(tiers.order) == checkpoints
        check(tiers)


def test_live_slots_give_way_to_nobody():
    tiers = tiers_of(native=2, packed=2)
    leases = [live(tiers, T), live(tiers, T[:2])]
    with pytest.raises(CapacityError):
        tiers.acquire(LIVE)
    for lease, tokens in zip(leases, (T, T[:2]), strict=True):
        assert_state_of(tiers.native.pool, lease.slot, tokens)
    check(tiers, live=2)


@pytest.mark.parametrize("watermark", [0, 1, 2, 3])
def test_the_watermark_demotes_ahead_of_need(watermark):
    mover = Delayed()
    tiers = tiers_of(native=3, packed=3, mover=mover, watermark=watermark)
    checkpoints = [donated(tiers, T[:n], dense=True) for n in (1, 2, 3)]
    tiers.maintain()
    assert len(mover.jobs) == watermark, "what is on its way counts as free"
    tiers.maintain()
    assert len(mover.jobs) == watermark
    mover.close()
    tiers.maintain()
    assert [c.tier for c in checkpoints] == ["compressed"] * watermark + ["native"] * (3 - watermark)
    assert (tiers.native.num_free, list(tiers.order)) == (watermark, checkpoints)
    check(tiers)


def test_the_watermark_evicts_where_nothing_can_be_demoted_to():
    tiers, checkpoints = arrange("dcd", 1, watermark=1)
    tiers.maintain()
    assert list(tiers.order) == checkpoints[1:]
    assert tiers.native.num_free == 1
    check(tiers)


# a demotion is a transaction (classes 15 and 17)


def demoting(native=2, packed_slots=2, codec=None, **options):
    """A checkpoint on its way down, and the job that moves it."""
    mover = Delayed()
    tiers = tiers_of(native, packed_slots, codec, mover, **options)
    checkpoint = donated(tiers, T)
    tiers.maintain()
    assert checkpoint.demotion is not None
    return tiers, checkpoint, mover.jobs[0]


@every_layout
@every_codec
def test_until_the_commit_the_dense_bytes_are_served_and_then_the_packed_ones(layout, codec):
    tiers, checkpoint, job = demoting(codec=codec(layout))
    source = checkpoint.slot
    for step in (lambda: None, tiers.maintain, job.run):
        step()
        lease = tiers.acquire(LIVE)
        tiers.restore(checkpoint, lease.slot, of(T))
        assert_state_of(tiers.native.pool, lease.slot, T)
        assert tiers.native.pool.header(lease.slot).lineage == EXACT
        assert (checkpoint.tier, checkpoint.slot) == ("native", source)
        lease.release()
        assert tiers.balance("native") == (1, 0, 1, 2)
        assert tiers.balance("compressed") == (1, 0, 1, 2)
        check(tiers)
    tiers.maintain()
    assert (checkpoint.tier, checkpoint.is_idle, tiers.native.num_free) == ("compressed", True, 2)
    # the source is poison by now: whatever still read it would be noticed
    assert all(t.isnan().all() for t in tiers.native.pool.tensors_of(source))
    assert_holds(tiers, checkpoint, T)
    check(tiers)


def test_a_demotion_commits_only_when_no_hit_reads_the_dense_bytes():
    tiers, checkpoint, job = demoting()
    checkpoint.pins += 2
    job.run()
    for _ in range(2):
        tiers.maintain()
        assert checkpoint.tier == "native"
        checkpoint.pins -= 1
        check(tiers)
    tiers.maintain()
    assert checkpoint.tier == "compressed"
    assert_holds(tiers, checkpoint, T)


def test_demotions_commit_as_they_end_in_whatever_order():
    mover = Delayed()
    tiers = tiers_of(native=3, packed=3, mover=mover)
    checkpoints = [donated(tiers, T[:n]) for n in (1, 2, 3)]
    tiers.maintain()
    for done in (2, 0, 1):
        mover.jobs[done].run()
        tiers.maintain()
        assert checkpoints[done].tier == "compressed"
        assert list(tiers.order) == checkpoints
        check(tiers)
    for n, checkpoint in enumerate(checkpoints, start=1):
        assert_holds(tiers, checkpoint, T[:n])


def test_a_demotion_that_fails_changes_nothing():
    tiers, checkpoint, job = demoting(native=3)
    younger = donated(tiers, T[:1], dense=True)
    slot, header = checkpoint.slot, checkpoint.header
    checkpoint.pins += 1
    job.run(RuntimeError("no such kernel"))
    tiers.maintain()
    assert (checkpoint.tier, checkpoint.slot, checkpoint.header, checkpoint.restored) == ("native", slot, header, EXACT)
    assert (checkpoint.demotion, checkpoint.pins, list(tiers.order)) == (None, 1, [checkpoint, younger])
    assert (tiers.packed.num_free, tiers.counters["demotions_failed"], tiers.counters["demotions"]) == (2, 1, 0)
    checkpoint.pins -= 1
    assert_holds(tiers, checkpoint, T)
    check(tiers)


def test_a_record_whose_packing_failed_is_nobodys_state():
    tiers, checkpoint, job = demoting()
    target = checkpoint.demotion.target.slot
    job.run(RuntimeError())
    tiers.maintain()
    with pytest.raises(CheckpointMismatchError, match="no whole checkpoint"):
        tiers.packed.pool.header(target)


def test_a_request_does_not_wait_for_a_packing_that_always_fails():
    class Failing:
        def start(self, job):
            raised = Delayed().start(job)
            raised.run(RuntimeError("device lost"))
            return raised

        def close(self):
            pass

    tiers = tiers_of(native=2, packed=2, mover=Failing())
    first, second = (donated(tiers, T[:n], dense=True) for n in (1, 2))
    tiers.acquire(LIVE)
    assert list(tiers.order) == [second]
    assert tiers.counters["demotions_failed"] == 1
    assert tiers.packed.num_free == 2
    assert_holds(tiers, second, T[:2])
    check(tiers, live=1)
    with pytest.raises(OwnershipError):
        first.drop()


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_a_checkpoint_may_be_discarded_while_it_moves(ended, fails):
    tiers, checkpoint, job = demoting()
    error = RuntimeError() if fails else None
    if ended:
        job.run(error)
    tiers.discard(checkpoint)
    assert job.is_done(), "nothing may write a slot that was given back"
    assert (tiers.native.num_free, tiers.packed.num_free, len(tiers.order)) == (2, 2, 0)
    tiers.maintain()
    check(tiers)


def test_a_pinned_checkpoint_cannot_be_discarded_while_it_moves():
    tiers, checkpoint, job = demoting()
    checkpoint.pins += 1
    with pytest.raises(OwnershipError, match="pinned"):
        tiers.discard(checkpoint)
    assert checkpoint in tiers.order
    checkpoint.pins -= 1
    job.run()
    tiers.maintain()
    assert_holds(tiers, checkpoint, T)
    check(tiers)


def test_what_is_on_its_way_is_chosen_by_nobody():
    tiers, checkpoint, _ = demoting(native=2, packed_slots=1)
    other = donated(tiers, T[:1], dense=True)
    # full: the one on its way is finished first, which frees a slot, and the other stays
    lease = tiers.acquire(LIVE)
    assert (checkpoint.tier, other.tier, list(tiers.order)) == ("compressed", "native", [checkpoint, other])
    lease.release()
    check(tiers)


def test_a_slot_is_found_although_the_first_of_two_on_their_way_is_being_read():
    mover = Delayed()
    tiers = tiers_of(native=2, packed=2, mover=mover)
    first, second = (donated(tiers, T[:n]) for n in (1, 2))
    tiers.maintain()
    first.pins += 1
    tiers.acquire(LIVE)
    assert (first.tier, second.tier) == ("native", "compressed")
    check(tiers, live=1)


def test_a_checkpoint_on_its_way_may_be_taken_over():
    """A pool of one slot: what is resumed is the only thing that could make room."""
    tiers, checkpoint, _ = demoting(native=1, packed_slots=1)
    lease = tiers.take_over(checkpoint, of(T))
    assert_state_of(tiers.native.pool, lease.slot, T)
    assert (tiers.packed.num_free, len(tiers.order)) == (1, 0)
    check(tiers, live=1)


@pytest.mark.parametrize("watermark", [0, 1])
@pytest.mark.parametrize("verb", ["maintain", "acquire"])
def test_a_mover_that_cannot_start_costs_the_demotion_only(verb, watermark):
    class Refusing:
        def start(self, job):
            raise RuntimeError("no thread")

        def close(self):
            pass

    tiers = tiers_of(native=1, packed=1, mover=Refusing(), watermark=watermark)
    checkpoint = donated(tiers, T)
    if verb == "maintain":
        for _ in range(3):
            tiers.maintain()
        assert_holds(tiers, checkpoint, T)
    else:
        tiers.acquire(LIVE)
        assert checkpoint not in tiers.order
    assert tiers.counters["demotions_failed"]
    check(tiers, live=verb == "acquire")


def test_closing_waits_for_what_moves():
    tiers, checkpoint, job = demoting()
    tiers.close()
    assert job.is_done()
    assert_holds(tiers, checkpoint, T)
    assert checkpoint.tier == "compressed"


@pytest.mark.parametrize("expect", [of([1, 2]), of(T, b"tenant")])
@pytest.mark.parametrize("place", ["packed", "pinned", "dense"])
def test_only_an_idle_dense_checkpoint_of_these_tokens_is_taken_over(place, expect):
    tiers = tiers_of()
    checkpoint = packed(tiers, T) if place == "packed" else donated(tiers, T, dense=True)
    checkpoint.pins += place == "pinned"
    with pytest.raises((CapacityError, CheckpointMismatchError)):
        tiers.take_over(checkpoint, expect)
    assert checkpoint in tiers.order
    checkpoint.pins = 0
    assert_holds(tiers, checkpoint, T)


# records from elsewhere


@every_layout
@every_codec
@pytest.mark.parametrize("tier", ["native", "compressed"])
def test_a_record_that_was_encoded_is_admitted_as_the_same_checkpoint(layout, codec, tier):
    tiers = tiers_of(codec=codec(layout), packed=3)
    checkpoint = packed(tiers, T) if tier == "compressed" else donated(tiers, T, dense=True)
    header, record = tiers.encode(checkpoint)
    # what encode gave does not follow the slot
    tiers.discard(checkpoint)
    admitted = tiers.admit(record, header, of(T))
    tiers.keep(admitted)
    assert admitted.tier == "compressed"
    assert torch.equal(tiers.packed.pool.record(admitted.slot), record)
    assert_holds(tiers, admitted, T)
    check(tiers)


@pytest.mark.parametrize("spoil", ["tokens", "codec", "plan", "layout", "size"])
def test_a_record_of_something_else_is_not_admitted(spoil):
    tiers = tiers_of()
    header, record = tiers.encode(packed(tiers, T))
    before = [tiers.balance(tier) for tier in ("native", "compressed")]
    if spoil == "size":
        record = record[:-16]
    elif spoil != "tokens":
        changed = {"codec": "ragged+int8", "plan": "other", "layout": "other"}[spoil]
        header = type(header)(**{**{f: getattr(header, f) for f in header.__dataclass_fields__}, spoil: changed})
    with pytest.raises(CheckpointMismatchError):
        tiers.admit(record, header, of(T[:2] if spoil == "tokens" else T))
    assert [tiers.balance(tier) for tier in ("native", "compressed")] == before
    check(tiers)


# accounting (class 18)


@every_layout
@every_codec
@pytest.mark.parametrize("slots", [0, 1, 5])
def test_reported_bytes_are_those_of_the_tensors(layout, codec, slots):
    codec = codec(layout)
    pool = PackedPool(codec, slots)
    allocated = pool.records.untyped_storage().nbytes()
    assert pool.nbytes == allocated == PackedPool.bytes_for(codec, slots) == codec.nbytes * (slots + 1)
    native = SlotPool(layout, slots)
    assert native.nbytes == sum(t.untyped_storage().nbytes() for t in native._tensors)


def test_packed_slots_that_nobody_owns_are_poison():
    tiers = tiers_of()
    checkpoint = packed(tiers, T)
    slot = checkpoint.slot
    tiers.discard(checkpoint)
    assert tiers.packed.pool.record(slot).eq(0xAB).all()
