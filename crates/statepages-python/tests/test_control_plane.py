"""The native control plane: admission, batches, affine values, refusals, batches of calls."""

import gc
import threading
import warnings

import numpy as np
import pytest

import statepages as sp
from conftest import BLOCK, DOMAIN, keep, prompt, run

TOKENS = range(1, 11)


def test_a_repeated_prompt_is_resumed(plane):
    keys = prompt(*TOKENS)
    assert plane.probe(keys) == (0, 0)
    keep(plane, 1, keys, 8)
    assert plane.probe(keys) == (8, 8) and plane.checkpoints.ready == 1
    assert (plane.index.found(keys), plane.checkpoints.resumable(keys)) == (8, 8)
    admitted = plane.try_admit(2, keys)
    assert admitted and (admitted.full, admitted.kv, admitted.resumed) == (10, 8, 8)
    assert sum(admitted.losses.values()) == 2 and admitted.demand is None
    assert plane.checkpoints.queued_restores == 1
    (record,) = plane.checkpoints.records()
    assert (record.state, record.pins, record.boundary, len(record.units)) == ("READY", 1, 8, 4)
    assert record.key == keys.key_at(8)
    batch = run(plane, admitted.residency, keys, 10)
    assert batch.ops.restore_slots.tolist() == [admitted.residency.slot]
    assert batch.ops.restore_units.tolist() == [record.units.tolist()]
    assert batch.ops.restore_boundaries.tolist() == [8] and batch.ops.restore_checkpoints.tolist() == [record.id]
    assert plane.checkpoints.records()[0].pins == 0
    plane.release(admitted.residency)
    plane.check()


def test_the_ops_of_a_store(plane):
    keys = prompt(*TOKENS)
    residency = plane.try_admit(1, keys).residency
    run(plane, residency, keys, 8)
    plane.file(residency, keys, 8, "grid")
    batch = plane.begin_batch()
    ops = batch.ops
    assert ops.store_slots.tolist() == [residency.slot] and ops.store_units.shape == (1, 4)
    assert ops.store_units.dtype == np.uint32 and ops.store_boundaries.tolist() == [8]
    assert ops.restore_slots.size == 0 and ops.relocations.shape == (0, 2) and not ops.empty
    assert plane.checkpoints.copying == 1 and plane.probe(keys) == (8, 0), "COPYING is invisible"
    plane.settle(batch)
    assert plane.probe(keys) == (8, 8)
    plane.release(residency)


def test_a_failed_batch_publishes_nothing(plane):
    keys = prompt(*TOKENS)
    residency = plane.try_admit(1, keys).residency
    run(plane, residency, keys, 8)
    plane.file(residency, keys, 8, "grid")
    batch = plane.begin_batch()
    plane.settle(batch, done=False)
    assert plane.counters()["failed"] == 1 and plane.probe(keys) == (8, 0) and plane.pool.raw == 0
    plane.release(residency)


def test_refusals_are_values(plane):
    held = [plane.try_admit(n, prompt(n, n)).residency for n in range(4)]
    refused = plane.try_admit(9, prompt(1))
    assert not refused and isinstance(refused, sp.Refused) and refused.reason == "no_slot"
    assert repr(refused) == 'Refused("no_slot")'
    assert plane.relocate(held[0]).reason == "no_slot"
    for residency in held:
        plane.release(residency)
    assert plane.try_admit(9, prompt(*range(1000))).reason == "no_room"
    last = plane.try_admit(9, prompt(*range(255))).residency
    assert plane.append_block(last) is None and len(last.pages) == 64
    assert plane.retire_top([last]).reason == "busy"
    plane.release(last)
    assert plane.gauges()["pages_vacant"] == 64


def test_a_lost_checkpoint_is_an_error_and_takes_nothing(plane):
    keys = prompt(*TOKENS)
    before = plane.gauges()
    with pytest.raises(sp.LostCheckpoint, match="expected a checkpoint"):
        plane.try_admit(1, keys, gated=8)
    assert plane.gauges() == before


def test_consumed_values_raise(plane):
    residency = plane.try_admit(1, prompt(1, 2)).residency
    assert (residency.request, residency.slot, residency.released) == (1, 0, False)
    assert plane.release(residency) == "free" and residency.released
    for use in (
        lambda: plane.release(residency),
        lambda: plane.computed(residency),
        lambda: plane.append_block(residency),
        lambda: residency.slot,
    ):
        with pytest.raises(sp.ConsumedError, match="Residency: used after its end"):
            use()
    batch = plane.begin_batch()
    plane.settle(batch)
    with pytest.raises(sp.ConsumedError, match="Receipt"):
        plane.settle(batch)
    keeper = plane.try_admit(2, prompt(*TOKENS)).residency
    scratch = plane.reserve_scratch(keeper, 4)
    assert (scratch.slot, scratch.boundary) == (1, 4) and plane.release_scratch(scratch) == "free"
    with pytest.raises(sp.ConsumedError, match="Scratch"):
        plane.file_scratch(scratch, prompt(*TOKENS), "grid")
    plane.release(keeper)


def test_a_dropped_residency_is_released_with_a_warning(plane):
    with pytest.warns(ResourceWarning, match="Residency dropped"):
        plane.try_admit(1, prompt(*TOKENS))
        gc.collect()
    assert plane.slots.free == 4 and plane.pool.live == 0
    plane.check()


def test_a_dropped_batch_is_settled_as_failed_with_a_warning(plane):
    keys = prompt(*TOKENS)
    residency = plane.try_admit(1, keys).residency
    run(plane, residency, keys, 8)
    plane.file(residency, keys, 8, "anchor")
    with pytest.warns(ResourceWarning, match="settled as failed"):
        plane.begin_batch()
        gc.collect()
    assert plane.counters()["failed"] == 1 and plane.checkpoints.copying == 0
    plane.release(residency)


def test_a_dropped_scratch_slot_is_released_with_a_warning(plane):
    residency = plane.try_admit(1, prompt(*TOKENS)).residency
    with pytest.warns(ResourceWarning, match="Scratch dropped"):
        plane.reserve_scratch(residency, 4)
        gc.collect()
    assert plane.slots.free == 3
    plane.release(residency)


def test_values_outlive_the_name_of_their_plane(runtime):
    made = sp.ControlPlane(pages=8, slots=1, runtime=runtime, block_size=BLOCK)
    residency = made.try_admit(1, prompt(1)).residency
    del made
    gc.collect()
    assert residency.slot == 0
    with pytest.warns(ResourceWarning):
        del residency
        gc.collect()


def test_values_of_another_plane_are_refused(plane, runtime):
    other = sp.ControlPlane(pages=8, slots=1, runtime=runtime, block_size=BLOCK)
    residency = other.try_admit(1, prompt(1)).residency
    with pytest.raises(ValueError, match="another control plane"):
        plane.release(residency)
    other.release(residency)


def test_a_bug_raises_and_breaks_the_plane(plane, capfd):
    residency = plane.try_admit(1, prompt(*TOKENS)).residency
    batch = plane.begin_batch()
    with pytest.raises(AssertionError, match="need"):
        plane.join(batch, residency, 1000)
    with pytest.raises(AssertionError, match="earlier call"):
        plane.gauges()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del residency, batch
        gc.collect()
    capfd.readouterr()


@pytest.mark.parametrize(
    "change,message",
    [
        ({"slots": 0}, "slots"),
        ({"pages": 3}, "pages"),
        ({"pages_max": 2}, "pages"),
        ({"block_size": 0}, "block_size"),
        ({"interval": -2}, "interval"),
        ({"interval": 3}, "interval"),
        ({"pipeline_stages": 2}, "pipeline"),
        ({"separate_schedulers": True}, "schedulers"),
    ],
)
def test_bad_configurations_are_named(runtime, change, message):
    config = {"pages": 64, "slots": 4, "runtime": runtime, "block_size": 4, "interval": 4} | change
    with pytest.raises(ValueError, match=message):
        sp.ControlPlane(**config)


def test_bad_arguments_are_named(plane):
    keys = prompt(*TOKENS)
    with pytest.raises(ValueError, match="blocks of 4 tokens, got 8"):
        plane.try_admit(1, sp.PromptKeys(DOMAIN, 8, [1]))
    with pytest.raises(ValueError, match="at least one token"):
        plane.probe(prompt())
    residency = plane.try_admit(1, keys).residency
    with pytest.raises(ValueError, match="boundary"):
        plane.file(residency, keys, 9, "grid")
    with pytest.raises(ValueError, match="reason"):
        plane.file(residency, keys, 8, "whim")
    with pytest.raises(ValueError, match="to: expected 1 entries, got 2"):
        batch = plane.begin_batch()
        try:
            plane.join_many(batch, [residency], [1, 2])
        finally:
            plane.settle(batch)
    plane.release(residency)


def test_without_checkpoints_a_hit_is_zero(runtime):
    made = sp.ControlPlane(pages=64, slots=4, runtime=runtime, block_size=BLOCK, interval=0)
    keys = prompt(*TOKENS)
    residency = made.try_admit(1, keys).residency
    run(made, residency, keys, 10)
    assert made.file(residency, keys, 8, "anchor") == "off"
    made.release(residency)
    assert made.probe(keys) == (8, 0)


def test_the_interval_is_snapped(runtime):
    made = sp.ControlPlane(pages=64, slots=4, runtime=runtime, block_size=4, interval=11)
    assert made.interval == 8 and made.block_size == 4


def test_placement(plane):
    assert plane.chunk_end(0, 10, 10) == 4 and plane.chunk_end(8, 10, 10) == 10
    assert plane.keep(4, 10, last_kept=0) == "grid" and plane.keep(8, 10, last_kept=4) == "anchor"
    assert plane.keep(8, 8, last_kept=4) == "prompt_end" and plane.keep(5, 10, last_kept=0) is None
    assert plane.keep(12, 8, last_kept=8) == "decode_spacing"
    assert plane.keep(12, 8, last_kept=8, more=False) is None


def test_a_chunk_must_be_one(plane):
    for start, end, prompt in ((4, 4, 8), (5, 4, 8), (0, 9, 8)):
        with pytest.raises(ValueError, match="chunk"):
            plane.chunk_end(start, end, prompt)


def test_policies(runtime):
    for policy in ("reference", "statepages"):
        made = sp.ControlPlane(
            pages=64, slots=4, runtime=runtime, block_size=BLOCK, interval=BLOCK, policy=policy
        )
        for n in range(40):
            keys = prompt(*range(n % 7 * 20, n % 7 * 20 + 19))
            admitted = made.try_admit(n, keys)
            residency, at, kept = admitted.residency, admitted.resumed, admitted.resumed
            place = {"demand": admitted.demand, "scope": admitted.scope}
            while at < 19:
                end = made.chunk_end(at, 19, 19, **place)
                run(made, residency, keys, end)
                reason = made.keep(end, 19, last_kept=kept, **place)
                if reason:
                    made.file(residency, keys, end, reason)
                    kept = end
                at = end
            made.release(residency)
        assert made.counters()["kept"] > 0 and "Scope(" in repr(place["scope"])
        made.check()
    with pytest.raises(ValueError, match="policy"):
        sp.ControlPlane(pages=64, slots=4, runtime=runtime, policy="luck")


def test_scratch_slots_keep_interior_states(plane):
    keys = prompt(*TOKENS)
    residency = plane.try_admit(1, keys).residency
    scratch = plane.reserve_scratch(residency, 4)
    batch = plane.begin_batch()
    plane.join(batch, residency, 10)
    plane.join_scratch(batch, scratch)
    plane.settle(batch)
    plane.advance(residency, keys, 10)
    assert plane.file_scratch(scratch, keys, "grid") == "pending"
    batch = plane.begin_batch()
    assert batch.ops.store_slots.tolist() == [1]
    plane.settle(batch)
    assert plane.probe(keys) == (8, 4)
    plane.release(residency)


def test_relocation_rides_the_next_batch(plane):
    keys = prompt(*TOKENS)
    first, second = plane.try_admit(1, keys).residency, plane.try_admit(2, prompt(9)).residency
    plane.release(first)
    assert plane.relocate(second) == (1, 0) and second.slot == 0
    batch = plane.begin_batch()
    assert batch.ops.relocations.tolist() == [[1, 0]]
    plane.settle(batch)
    plane.release(second)


def test_remote_loads_rewinds_and_resets(plane):
    keys = prompt(*TOKENS)
    residency = plane.try_admit(1, keys).residency
    plane.accept_load(residency, keys, 8)
    assert plane.computed(residency) == 8 and len(plane.index) == 2
    batch = plane.begin_batch()
    plane.join(batch, residency, 10)
    assert plane.scheduled(residency) == 10 and plane.in_flight(residency) == 1
    plane.rewind(residency, 9)
    plane.settle(batch)
    assert plane.scheduled(residency) == 9 and plane.in_flight(residency) == 0
    plane.reset()
    assert plane.file(residency, keys, 8, "anchor") == "stale" and len(plane.index) == 0
    events, lost = plane.events()
    assert [event[0] for event in events] == ["stored", "stored", "cleared"] and lost == 0
    assert events[0][1] == keys.key_at(4) and events[1][2] == keys.key_at(4)
    assert events[0][3].tolist() == [1, 2, 3, 4]
    plane.release(residency)


def test_the_pool_grows_and_shrinks(runtime):
    made = sp.ControlPlane(pages=8, pages_max=10, slots=1, runtime=runtime, block_size=BLOCK)
    assert made.pool.extend(5) == 2 and made.pool.total == 10
    residency = made.try_admit(1, prompt(*range(40))).residency
    made.release(residency)
    low = made.try_admit(1, prompt(1)).residency
    assert made.pool.retire_top([low]) == (9, None) and made.pool.total == 9
    made.release(low)


def test_calls_in_batches(plane):
    prompts = [prompt(*range(n, n + 9)) for n in (10, 20, 30)]
    admitted = plane.admit_many(np.arange(3), prompts)
    held = [a.residency for a in admitted]
    batch = plane.begin_batch()
    plane.join_many(batch, held, np.full(3, 8))
    plane.settle(batch)
    plane.advance_many(held, prompts, np.full(3, 8, np.uint32))
    assert plane.file_many(held, prompts, [8, 8, 4], "anchor") == ["pending"] * 3
    batch = plane.begin_batch()
    assert batch.ops.store_units.shape == (2, 4), "the third had moved on"
    plane.settle(batch)
    plane.release_many(held)
    assert plane.fates() == {"kept": 2, "dropped": 1, "evicted": 0, "orphaned": 0}
    again = plane.admit_many([7, 8], prompts[:2])
    assert [a.resumed for a in again] == [8, 8]
    plane.release_many([a.residency for a in again])
    assert plane.counters()["restores_cancelled"] == 2
    plane.check()


def test_keys_and_domains():
    keys = sp.PromptKeys(DOMAIN, 4)
    keys.extend([1, 2, 3])
    keys.extend(np.array([4, 5], np.int32))
    assert len(keys) == 5 and keys.key_at(4) == prompt(1, 2, 3, 4).key_at(4)
    assert keys.key_at(0) is None and keys.key_at(3) is None and keys.key_at(8) is None
    others = [
        sp.Domain("other"),
        sp.Domain("tests", tenant_salt=b""),
        sp.Domain("tests", adapter="a"),
        sp.Domain("tests", media=b"m"),
        sp.Domain("tests", layout_id="l"),
    ]
    tags = {d.tag for d in [DOMAIN, *others]}
    assert len(tags) == 6 and sp.Domain("tests") == DOMAIN and hash(sp.Domain("tests")) == hash(DOMAIN)
    own = sp.PromptKeys.with_keys(DOMAIN, 4, [1, 2, 3, 4, 5], [2**127 + 1])
    assert own.key_at(4) == 2**127 + 1
    with pytest.raises(ValueError, match="keys"):
        sp.PromptKeys.with_keys(DOMAIN, 4, [1, 2, 3, 4], [])
    for bad in ([-1], [2**32], np.array([-1]), "x", [1.5], np.array([1.5])):
        with pytest.raises(ValueError, match="tokens"):
            sp.PromptKeys(DOMAIN, 4, bad)


def test_threads_share_a_plane(plane):
    """Requests of several threads at once: everything comes back, nothing is lost."""
    failures = []

    def serve(thread):
        try:
            for n in range(60):
                keys = prompt(*range(thread * 100, thread * 100 + 9))
                admitted = plane.try_admit(thread * 1000 + n, keys)
                if not admitted:
                    continue
                residency = admitted.residency
                batch = plane.begin_batch()
                plane.join(batch, residency, 9)
                plane.settle(batch)
                plane.advance(residency, keys, 9)
                plane.release(residency)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=serve, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    plane.check()
    assert plane.slots.free == 4 and plane.pool.live == 0
