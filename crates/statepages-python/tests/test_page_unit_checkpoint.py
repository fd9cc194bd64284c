"""Page-unit checkpoints of `statepages.compat`: every behaviour that the interface documents."""

import copy
import dataclasses
import pickle
import random
import threading

import pytest

from statepages.compat.block_pool import BlockPool
from statepages.compat.page_unit_checkpoint import (
    COPYING,
    EVICTING,
    READY,
    CheckpointRecord,
    CheckpointRestoreOp,
    CheckpointStoreOp,
    PagedStateCheckpointCoordinator,
    PagedStateCheckpointSpec,
    PageUnitCheckpointStore,
)

SPEC = PagedStateCheckpointSpec(page_unit_bytes=10, slot_bytes=40, layout_id="layout-v1", image_bytes=25)


class Seq:
    def __init__(self, slot=0, stateful=True):
        self.state_slot = slot
        self.has_per_req_cache = stateful

    def __eq__(self, other):
        return True, "identity counts, not equality"

    __hash__ = None


def make(blocks=20, cls=PageUnitCheckpointStore, **pool):
    pool = BlockPool(blocks, **pool)
    return pool, cls(pool, SPEC)


def ready(store, *hashes):
    ids = []
    for h in hashes:
        assert store.begin_store(h, src_slot=0) is not None
        store.complete_inflight()
        ids.append(store.lookup(h))
    return ids


def coordinator(blocks=20, enabled=True):
    pool = BlockPool(blocks)
    made = PagedStateCheckpointCoordinator(pool, SPEC, enabled)
    pool.on_evict = made.unindex
    return pool, made


# The spec


def test_spec_derives_units_and_travels():
    assert SPEC.units_per_checkpoint == 3
    assert dataclasses.replace(SPEC, image_bytes=30).units_per_checkpoint == 3
    wire = SPEC.to_wire()
    assert wire == {"page_unit_bytes": 10, "slot_bytes": 40, "image_bytes": 25, "layout_id": "layout-v1"}
    assert PagedStateCheckpointSpec.from_wire(wire) == SPEC
    assert hash(SPEC) == hash(copy.deepcopy(SPEC)) and pickle.loads(pickle.dumps(SPEC)) == SPEC
    assert "units" not in wire
    with pytest.raises(dataclasses.FrozenInstanceError):
        SPEC.slot_bytes = 1


@pytest.mark.parametrize("field", ["page_unit_bytes", "slot_bytes", "image_bytes"])
@pytest.mark.parametrize("value", [0, -1, True, 1.5, "8", None])
def test_spec_wants_positive_integers(field, value):
    with pytest.raises(ValueError, match=f"{field} must be a positive integer"):
        dataclasses.replace(SPEC, **{field: value})


def test_spec_refuses_other_nonsense():
    with pytest.raises(ValueError, match="exceeds the 40 a slot holds"):
        dataclasses.replace(SPEC, image_bytes=41)
    for layout in ("", None, 3):
        with pytest.raises(ValueError, match="non-empty layout id"):
            dataclasses.replace(SPEC, layout_id=layout)


@pytest.mark.parametrize("change", [{"extra": 1}, {"layout_id": None}])
def test_spec_from_wire_is_strict(change):
    wire = SPEC.to_wire() | change
    if change.get("layout_id", 1) is None:
        del wire["layout_id"]
    with pytest.raises(ValueError, match="expected="):
        PagedStateCheckpointSpec.from_wire(wire)


@pytest.mark.parametrize("wire", [None, [1], "x", 3])
def test_spec_from_wire_wants_a_mapping(wire):
    with pytest.raises(TypeError, match="mapping"):
        PagedStateCheckpointSpec.from_wire(wire)


# Values


@pytest.mark.parametrize(
    "cls,slot", [(CheckpointStoreOp, "src_slot"), (CheckpointRestoreOp, "dst_slot")]
)
def test_ops_are_frozen_values(cls, slot):
    op = cls(4, (0, 1, 2), 25, "layout-v1")
    twin = cls(unit_ids=(0, 1, 2), layout_id="layout-v1", total_bytes=25, **{slot: 4})
    assert op == twin and hash(op) == hash(twin) and op in {twin}
    assert op != cls(4, (0, 2, 1), 25, "layout-v1") and op != (4, (0, 1, 2), 25, "layout-v1")
    assert repr(op) == f"{cls.__name__}({slot}=4, unit_ids=(0, 1, 2), total_bytes=25, layout_id='layout-v1')"
    assert pickle.loads(pickle.dumps(op)) == op and copy.deepcopy(op) == op
    assert dataclasses.is_dataclass(op) and [f.name for f in dataclasses.fields(op)][0] == slot
    assert dataclasses.replace(op, total_bytes=24).total_bytes == 24
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field"):
        op.total_bytes = 1
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field"):
        del op.total_bytes
    with pytest.raises(TypeError):
        op < twin  # noqa: B015


def test_store_and_restore_ops_differ():
    assert CheckpointStoreOp(1, (), 1, "l") != CheckpointRestoreOp(1, (), 1, "l")


def test_a_record_by_itself():
    record = CheckpointRecord(7, (1, 2))
    assert (record.prefix_hash, record.unit_ids, record.state, record.pin_count) == (7, (1, 2), COPYING, 0)
    assert record == CheckpointRecord(7, (1, 2)) != CheckpointRecord(7, (1, 2), READY, 1)


# The life of a record


def test_copying_is_invisible_and_published_by_the_tick():
    pool, store = make()
    op = store.begin_store(7, src_slot=4)
    assert op == CheckpointStoreOp(4, (0, 1, 2), 25, "layout-v1")
    assert (store.lookup(7), store.contains(7), store.contains_or_pending(7)) == (-1, False, True)
    record = store.records[0]
    assert (record.state, record.pin_count, record.prefix_hash) == (COPYING, 0, 7)
    assert store.begin_store(7, 5) is None, "the same key is being written"
    store.complete_inflight()
    assert (store.lookup(7), record.state) == (0, READY) and store.contains_or_pending(7)
    assert store.begin_store(7, 5) is None, "the same key is READY"
    assert pool.num_used == 3 and store.units_per_checkpoint == 3 and store.spec is SPEC and store.pool is pool


def test_units_need_not_be_adjacent():
    pool, store = make(6)
    ids = [pool.pop() for _ in range(6)]
    for block_id in (ids[5], ids[1], ids[3]):
        pool.allocate(block_id)
        pool.free(block_id)
    assert store.begin_store(7, 0).unit_ids == (1, 3, 5)


def test_ids_are_never_reused_and_a_refusal_takes_none():
    _, store = make(5)
    assert ready(store, 1) == [0]
    assert store.begin_store(2, 0) is not None and list(store.records) == [1]
    assert store.begin_store(3, 0) is None, "the one record is being written"
    store.complete_inflight()
    assert store.begin_store(3, 0) and list(store.records) == [2]


def test_live_views_are_mappings():
    _, store = make()
    assert store.records == {} and store.hash_to_checkpoint == {} and len(store.records) == 0
    records, ready_ids = store.records, store.hash_to_checkpoint
    ready(store, 7, -3)
    store.begin_store(8, 0)
    assert list(records) == [0, 1, 2] and len(records) == 3 and 2 in records and 9 not in records
    assert ready_ids == {7: 0, -3: 1} and ready_ids.get(8, -1) == -1 and "x" not in ready_ids
    assert {r.prefix_hash for r in records.values()} == {7, -3, 8}
    assert records[0].unit_ids == (0, 1, 2) and "READY" in repr(records)
    with pytest.raises(KeyError):
        records[9]
    with pytest.raises(TypeError):
        records[0] = None


def test_a_restore_pins_from_queueing_to_its_tick():
    _, store = make()
    ready(store, 7)
    op = store.begin_restore(7, dst_slot=2)
    assert op == CheckpointRestoreOp(2, (0, 1, 2), 25, "layout-v1")
    assert op.unit_ids is op.unit_ids == store.begin_restore(7, 3).unit_ids and store.records[0].pin_count == 2
    store.complete_inflight()
    assert store.records[0].pin_count == 2, "nothing has ridden a batch"
    assert [o.dst_slot for o in store.take_restore_ops()] == [2, 3]
    assert store.take_restore_ops() == () and store.records[0].pin_count == 2
    store.complete_inflight()
    assert store.records[0].pin_count == 0
    assert store.begin_restore(8, 0) is None


def test_a_cancelled_restore_returns_its_pin_and_no_other():
    _, store = make()
    ready(store, 7)
    for slot in (1, 2, 1):
        store.begin_restore(7, slot)
    store.cancel_queued_restore(1)
    assert store.records[0].pin_count == 1
    assert [op.dst_slot for op in store.take_restore_ops()] == [2]
    store.cancel_queued_restore(2)
    assert store.records[0].pin_count == 1, "it has left the queue"


def test_victims_go_least_recently_used_and_whole():
    pool, store = make(9)
    ready(store, 1, 2, 3)
    store.begin_restore(1, 0)
    store.take_restore_ops()
    store.complete_inflight()
    assert store.ensure_free_units(1)
    assert (store.contains(2), store.evictions, pool.num_free) == (False, 1, 3)
    assert store.ensure_free_units(3) and store.evictions == 1, "free units are taken first"
    assert store.ensure_free_units(4) and store.contains(1) and not store.contains(3)


def test_recency_is_of_the_restores_begin():
    _, store = make(9)
    ready(store, 1, 2)
    store.begin_restore(1, 0)
    store.take_restore_ops()
    ready(store, 3)  # its tick also returns the pin of 1
    for expected in (2, 1, 3):
        assert store.contains(expected)
        assert store.ensure_free_units(store.pool.num_free + 1)
        assert not store.contains(expected)


def test_pinned_and_copying_records_are_not_victims():
    pool, store = make(9)
    ready(store, 1, 2)
    store.begin_restore(1, 0)
    store.begin_store(3, 0)
    assert store.has_available_units(3) and not store.has_available_units(4)
    assert store.ensure_free_units(3) and store.contains(1) and not store.contains(2)
    assert not store.ensure_free_units(4) and store.evictions == 1
    assert pool.num_free == 3


def test_a_gate_protects_what_is_about_to_be_read():
    _, store = make(6)
    ready(store, 1, 2)
    assert store.has_available_units(6) and not store.has_available_units(7)
    assert store.has_available_units(3, protected_hash=1)
    assert not store.has_available_units(4, protected_hash=1)
    assert store.has_available_units(6, protected_hash=99), "nothing is protected by an absent key"
    assert store.has_available_units(0) and store.has_available_units(-1)


def test_the_gate_is_what_eviction_reaches():
    pool, store = make(60)
    draw = random.Random(4)
    for h in range(200):
        store.begin_store(h, 0)
        if draw.random() < 0.7:
            store.complete_inflight()
        if draw.random() < 0.4:
            store.begin_restore(draw.randrange(h + 1), draw.randrange(9))
        if draw.random() < 0.3:
            store.take_restore_ops()
        if draw.random() < 0.2:
            store.cancel_queued_restore(draw.randrange(9))
        records = store.records
        spendable = sum(
            len(r.unit_ids) for r in records.values() if r.state == READY and r.pin_count == 0
        )
        limit = pool.num_free + spendable
        assert store.has_available_units(limit) and not store.has_available_units(limit + 1)
    pool._check()


def test_an_impossible_count_evicts_nothing():
    _, store = make(9)
    ready(store, 1, 2, 3)
    assert not store.ensure_free_units(10) and store.evictions == 0 and len(store.hash_to_checkpoint) == 3


# Losing a key


def test_unindexing_frees_at_once_or_with_the_last_user():
    pool, store = make()
    ready(store, 1)
    assert store.unindex(1) and pool.num_free == 20 and not store.unindex(1)

    store.begin_store(2, 0)
    record = store.records[1]
    assert store.unindex(2) and record.state == EVICTING and pool.num_free == 17
    assert not store.contains_or_pending(2)
    store.complete_inflight()
    assert store.lookup(2) == -1 and pool.num_free == 20 and record.state == EVICTING

    ready(store, 3)
    store.begin_restore(3, 0)
    store.begin_restore(3, 1)
    assert store.unindex(3) and store.records[2].state == EVICTING
    store.take_restore_ops()
    store.complete_inflight()
    assert pool.num_free == 20 and store.records == {}


def test_the_last_cancelled_reader_releases_an_evicting_record():
    pool, store = make()
    ready(store, 1)
    store.begin_restore(1, 5)
    store.unindex(1)
    assert pool.num_free == 17
    store.cancel_queued_restore(5)
    assert pool.num_free == 20


def test_a_key_lost_while_copying_may_be_stored_anew():
    pool, store = make()
    store.begin_store(7, 0)
    store.unindex(7)
    assert store.begin_store(7, 1) is not None
    store.complete_inflight()
    assert store.hash_to_checkpoint == {7: 1} and list(store.records) == [1] and pool.num_free == 17


def test_clear_leaves_operations_in_flight_valid():
    pool, store = make()
    ready(store, 1, 2)
    store.begin_store(3, 0)
    store.begin_restore(2, 9)
    store.clear()
    assert store.hash_to_checkpoint == {} and not store.contains_or_pending(3)
    assert {r.state for r in store.records.values()} == {EVICTING} and pool.num_free == 14
    assert [op.dst_slot for op in store.take_restore_ops()] == [9]
    store.complete_inflight()
    assert store.records == {} and pool.num_free == 20 and store.evictions == 0
    pool._check()


# A policy of one's own


def test_a_subclass_chooses_victims():
    class Newest(PageUnitCheckpointStore):
        def _next_victim(self, protected=-1):
            spendable = [i for i, r in self.records.items() if r.state == READY and r.pin_count == 0]
            return max(spendable, default=-1)

    _, store = make(9, Newest)
    ready(store, 1, 2, 3)
    assert store.ensure_free_units(6) and store.hash_to_checkpoint == {1: 0}
    ready(store, 4, 5)
    assert store.begin_store(6, 0) is not None and not store.contains(5)


def test_a_policy_that_declines_costs_nothing():
    class Stingy(PageUnitCheckpointStore):
        def _next_victim(self, protected=-1):
            found = super()._next_victim(protected)
            return found if found != 1 else -1

    pool, store = make(9, Stingy)
    ready(store, 1, 2, 3)
    assert store.has_available_units(9), "eligibility does not change with the order"
    assert not store.ensure_free_units(6)
    assert store.evictions == 0 and store.records[0].pin_count == 0 and len(store.records) == 3
    assert store.ensure_free_units(3)
    store.begin_store(4, 0)
    assert store.begin_store(5, 0) is None and pool.num_free == 0
    store.complete_inflight()
    store.unindex(2)
    assert store.begin_store(5, 0) is not None and list(store.records)[-1] == 4, "no id was taken"


@pytest.mark.parametrize("answer", [7, 1])
def test_a_policy_that_answers_nonsense_is_a_bug(answer):
    class Wrong(PageUnitCheckpointStore):
        def _next_victim(self, protected=-1):
            return answer

    _, store = make(6, Wrong)
    ready(store, 1, 2)
    store.begin_restore(2, 0)
    with pytest.raises(AssertionError, match="_next_victim"):
        store.ensure_free_units(1)
    assert store.records[0].pin_count == 0 and len(store.records) == 2


def test_a_policy_that_raises_costs_nothing():
    class Broken(PageUnitCheckpointStore):
        def _next_victim(self, protected=-1):
            raise KeyError("policy")

    _, store = make(3, Broken)
    ready(store, 1)
    with pytest.raises(KeyError):
        store.begin_store(2, 0)
    assert store.records[0].pin_count == 0


def test_a_policy_may_unindex_while_it_chooses():
    class Unindexing(PageUnitCheckpointStore):
        def _next_victim(self, protected=-1):
            found = super()._next_victim(protected)
            self.unindex(self.records[found].prefix_hash)
            return super()._next_victim(protected)

    pool, store = make(9, Unindexing)
    ready(store, 1, 2, 3)
    assert store.ensure_free_units(6)
    pool._check()


def test_a_subclass_may_have_its_own_arguments():
    class Named(PageUnitCheckpointStore):
        def __init__(self, pool, spec, name):
            super().__init__(pool, spec)
            self.name = name

    assert Named(BlockPool(4), SPEC, "n").name == "n"
    with pytest.raises(TypeError):
        PageUnitCheckpointStore(BlockPool(4), SPEC, "n")


def test_base_next_victim_protects():
    _, store = make()
    assert store._next_victim() == -1
    ready(store, 1, 2)
    assert store._next_victim() == 0 and store._next_victim(0) == 1 and store._next_victim(protected=1) == 0


# Eviction of KV under the store


def test_a_store_takes_vacant_pages_first_then_cached_kv():
    evicted = []
    pool, store = make(4, on_evict=evicted.append)
    ids = [pool.pop() for _ in range(4)]
    for block_id in ids:
        pool.allocate(block_id)
        pool.publish(block_id, 100 + block_id, [block_id])
    for block_id in (2, 0, 3):
        pool.free(block_id)
    assert store.begin_store(7, 0).unit_ids == (2, 0, 3)
    assert evicted == [102, 100, 103]


def test_a_store_whose_own_key_goes_is_given_back():
    pool, made = coordinator(3)
    block_id = pool.pop()
    pool.allocate(block_id)
    pool.publish(block_id, 7, [])
    seq = Seq(slot=1)
    made.checkpoint(seq, 1, 7)
    pool.free(block_id)
    assert made.take_checkpoint_ops() == ((), ())
    assert made.checkpoint_fates() == {
        "checkpoints_kept": 0,
        "checkpoints_dropped": 0,
        "checkpoints_evicted": 0,
        "checkpoints_orphaned": 1,
    }
    made.complete_previous_batch()
    assert made.store.records == {} and pool.num_free == 3 and not made.store.contains(7)
    pool._check()


def test_a_pending_boundary_lost_during_the_drain_is_not_stored():
    pool, made = coordinator(6)
    for h in (7, 8):
        block_id = pool.pop()
        pool.allocate(block_id)
        pool.publish(block_id, h, [])
    first, second = Seq(1), Seq(2)
    pool.reserve_units(2, "fill")
    made.checkpoint(first, 1, 7)
    made.checkpoint(second, 1, 8)
    pool.free(pool.lookup(8))
    stores, _ = made.take_checkpoint_ops()
    assert [op.src_slot for op in stores] == [1] and made.checkpoints_orphaned == 1


CALLS = {
    "lookup": lambda m: m.store.lookup(1),
    "contains": lambda m: m.store.contains_or_pending(1),
    "records": lambda m: dict(m.store.records),
    "ready": lambda m: dict(m.store.hash_to_checkpoint),
    "gate": lambda m: m.has_available_units(3, 1),
    "ensure": lambda m: m.ensure_free_units(1),
    "begin_store": lambda m: m.store.begin_store(55, 0),
    "begin_restore": lambda m: m.begin_restore(1, 8),
    "take_restore_ops": lambda m: m.store.take_restore_ops(),
    "cancel": lambda m: m.store.cancel_queued_restore(8),
    "complete": lambda m: m.complete_previous_batch(),
    "unindex": lambda m: m.unindex(1),
    "clear": lambda m: m.clear_index(),
    "checkpoint": lambda m: m.checkpoint(Seq(3), 1, 56),
    "forget": lambda m: m.forget_pending(Seq(3)),
    "drain": lambda m: m.take_checkpoint_ops(),
    "fates": lambda m: m.checkpoint_fates(),
    "hit": lambda m: m.resumable_hit(Seq(), 1, [1]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_on_evict_may_call_every_method(call):
    told = []
    pool = BlockPool(14)
    made = PagedStateCheckpointCoordinator(pool, SPEC, True)

    def on_evict(h):
        made.unindex(h)
        told.append(h)
        if len(told) == 1:
            call(made)

    pool.on_evict = on_evict
    ready(made.store, 1)
    for h in range(100, 110):
        block_id = pool.pop()
        pool.allocate(block_id)
        pool.publish(block_id, h, [])
        pool.free(block_id)
    filing = [Seq(slot) for slot in range(3)]
    for slot, seq in enumerate(filing):
        made.checkpoint(seq, 1, 200 + slot)
    stores, _ = made.take_checkpoint_ops()
    assert told and all(len(set(op.unit_ids)) == 3 for op in stores)
    for _ in range(2):
        made.complete_previous_batch()
        made.take_checkpoint_ops()
    used = [unit for record in made.store.records.values() for unit in record.unit_ids]
    assert len(used) == len(set(used)) and all(pool.is_used(unit) for unit in used)
    pool._check()


def test_threads_share_a_coordinator():
    pool, made = coordinator(60)
    failures = []

    def serve(thread):
        try:
            seq = Seq(slot=thread)
            for n in range(200):
                h = thread * 1000 + n % 20
                block_id = pool.pop()
                pool.allocate(block_id)
                pool.publish(block_id, h, [n])
                made.checkpoint(seq, 1, h)
                made.take_checkpoint_ops()
                made.begin_restore(h, thread)
                made.complete_previous_batch()
                made.forget_pending(seq)
                pool.free(block_id)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=serve, args=(n,)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    made.take_checkpoint_ops()
    made.complete_previous_batch()
    made.clear_index()
    pool.clear_index()
    pool._check()
    assert pool.num_free == 60 and made.store.records == {}


# The coordinator


def test_coordinator_constants_and_midstep():
    _, made = coordinator()
    assert made.successor_room == 0.0 and made.readable_midstep is False
    assert PagedStateCheckpointCoordinator.successor_room == 0.0
    assert made.reserve_midstep(Seq(), [(1, 2)]) == []
    assert made.publish_midstep([], seq=None) is None and made.publish_midstep([]) is None
    assert made.cancel_midstep([]) is None
    assert made.enabled is True and isinstance(made.store, PageUnitCheckpointStore)


def test_what_it_applies_to():
    _, made = coordinator()
    _, off = coordinator(enabled=False)
    assert made.applies(Seq()) and not made.applies(Seq(stateful=False)) and not off.applies(Seq())


def test_resumable_hit():
    _, made = coordinator()
    ready(made.store, 11, 13)
    made.store.begin_store(14, 0)
    hashes = [10, 11, 12, 13, 14]
    assert [made.resumable_hit(Seq(), hit, hashes) for hit in range(6)] == [0, 0, 2, 2, 4, 4]
    assert made.resumable_hit(Seq(), 5, hashes, assume_checkpointed=True) == 5
    assert made.resumable_hit(Seq(stateful=False), 5, hashes) == 5
    _, off = coordinator(enabled=False)
    assert off.resumable_hit(Seq(), 5, hashes) == 5, "its input unchanged"


def test_a_filed_boundary_is_stored_by_the_next_drain():
    _, made = coordinator()
    seq = Seq(slot=3)
    made.checkpoint(seq, boundary_blocks=4, h=7)
    seq.state_slot = 5
    stores, restores = made.take_checkpoint_ops()
    assert [op.src_slot for op in stores] == [5] and restores == (), "the slot is read at the drain"
    assert made.take_checkpoint_ops() == ((), ())
    made.complete_previous_batch()
    assert made.store.contains(7) and made.checkpoints_kept == 1


def test_what_is_not_filed():
    _, made = coordinator()
    for seq in (Seq(slot=-1), Seq(stateful=False)):
        made.checkpoint(seq, 1, 7)
    assert made.take_checkpoint_ops() == ((), ())
    gone = Seq(slot=1)
    made.checkpoint(gone, 1, 7)
    gone.state_slot = -1
    assert made.take_checkpoint_ops() == ((), ()) and made.checkpoint_fates()["checkpoints_dropped"] == 0


def test_the_newer_boundary_of_a_sequence_wins_and_the_older_is_dropped():
    _, made = coordinator()
    seq, other = Seq(slot=1), Seq(slot=2)
    made.checkpoint(seq, 1, 7)
    made.checkpoint(other, 1, 9)
    made.checkpoint(seq, 2, 8)
    assert made.checkpoints_dropped == 1
    stores, _ = made.take_checkpoint_ops()
    assert [op.src_slot for op in stores] == [2, 1]
    made.complete_previous_batch()
    assert [made.store.contains(h) for h in (7, 8, 9)] == [False, True, True]


def test_filing_again_replaces_and_counts_nothing():
    _, made = coordinator()
    seq = Seq(slot=1)
    made.checkpoint(seq, 1, 7)
    made.checkpoint(seq, 1, 7)
    stores, _ = made.take_checkpoint_ops()
    assert len(stores) == 1 and made.checkpoints_dropped == 0 and made.checkpoints_kept == 1


def test_one_hash_of_two_sequences_is_stored_once():
    _, made = coordinator()
    a, b = Seq(1), Seq(2)
    made.checkpoint(a, 1, 7)
    made.checkpoint(b, 1, 7)
    stores, _ = made.take_checkpoint_ops()
    assert [op.src_slot for op in stores] == [1] and made.checkpoints_dropped == 0


def test_a_store_without_room_is_dropped():
    pool, made = coordinator(4)
    pool.reserve_units(2, "fill")
    made.checkpoint(Seq(1), 1, 7)
    kept_alive = Seq(1)
    made.checkpoint(kept_alive, 1, 8)
    made.take_checkpoint_ops()
    assert made.checkpoints_kept == 0 and made.checkpoints_dropped == 2


def test_forgetting_drops_boundary_and_queued_restore():
    _, made = coordinator()
    ready(made.store, 7)
    seq = Seq(slot=4)
    made.checkpoint(seq, 1, 8)
    assert made.begin_restore(7, dst_slot=4) and made.begin_restore(7, 5) and not made.begin_restore(9, 6)
    made.forget_pending(seq)
    stores, restores = made.take_checkpoint_ops()
    assert stores == () and [op.dst_slot for op in restores] == [5]
    assert made.checkpoints_dropped == 0


def test_unindexing_counts_a_key_once():
    _, made = coordinator()
    a, b = Seq(1), Seq(2)
    made.checkpoint(a, 1, 7)
    made.checkpoint(b, 1, 7)
    made.unindex(7)
    assert made.checkpoints_orphaned == 1 and made.take_checkpoint_ops() == ((), ())
    made.unindex(7)
    assert made.checkpoints_orphaned == 1
    ready(made.store, 8)
    made.unindex(8)
    assert made.checkpoints_orphaned == 2 and not made.store.contains(8)


def test_a_reset_moves_no_fate():
    _, made = coordinator()
    ready(made.store, 7)
    before = made.checkpoint_fates()
    seq = Seq(1)
    made.checkpoint(seq, 1, 8)
    made.clear_index()
    assert made.checkpoint_fates() == before and made.take_checkpoint_ops() == ((), ())
    assert not made.store.contains(7)


def test_fates():
    _, made = coordinator(3)
    seq = Seq(1)
    for h in (1, 2):
        made.checkpoint(seq, 1, h)
        made.take_checkpoint_ops()
        made.complete_previous_batch()
    made.unindex(2)
    assert made.checkpoint_fates() == {
        "checkpoints_kept": 2,
        "checkpoints_dropped": 0,
        "checkpoints_evicted": 1,
        "checkpoints_orphaned": 1,
    }
    assert made.has_available_units(3) and made.ensure_free_units(3) and not made.ensure_free_units(4)


def test_a_store_of_another_class_can_be_put_in():
    class Refusing(PageUnitCheckpointStore):
        def _next_victim(self, protected=-1):
            return -1

    pool, made = coordinator(3)
    made.store = Refusing(pool, SPEC)
    first, second = Seq(1), Seq(2)
    made.checkpoint(first, 1, 1)
    made.take_checkpoint_ops()
    made.complete_previous_batch()
    made.checkpoint(second, 1, 2)
    assert made.take_checkpoint_ops() == ((), ()) and made.checkpoints_dropped == 1
    assert made.store.contains(1)
