"""A restore's pin and its target outlive ticks and follow their request: two holes that were real.

The shapes are those of a published review of page-backed checkpoints; the engine there lost a pin to
a tick that built no batch, and gathered into a slot that had gone back to the free list.
"""

from statepages.compat.block_pool import BlockPool
from statepages.compat.page_unit_checkpoint import (
    READY,
    PagedStateCheckpointCoordinator,
    PagedStateCheckpointSpec,
)


class _Sequence:
    has_per_req_cache = True

    def __init__(self, slot):
        self.state_slot = slot


def _resumable(key):
    pool = BlockPool(20)
    spec = PagedStateCheckpointSpec(
        page_unit_bytes=10, slot_bytes=25, image_bytes=25, layout_id="layout-v1"
    )
    made = PagedStateCheckpointCoordinator(pool, spec, enabled=True)
    assert made.store.begin_store(key, src_slot=0) is not None
    made.complete_previous_batch()
    ((checkpoint, record),) = made.store.records.items()
    assert record.state == READY
    return pool, made, checkpoint


def test_a_tick_without_a_batch_returns_no_pin():
    pool, made, checkpoint = _resumable(7)
    assert made.begin_restore(7, dst_slot=1)
    made.complete_previous_batch()
    assert made.store.records[checkpoint].pin_count == 1
    assert not made.ensure_free_units(pool.num_free + 1), "the units are still to be read"
    _, (restore,) = made.take_checkpoint_ops()
    made.complete_previous_batch()
    assert restore.dst_slot == 1 and made.store.records[checkpoint].pin_count == 0


def test_a_released_slot_is_no_longer_written():
    _, made, checkpoint = _resumable(7)
    sequence = _Sequence(slot=4)
    assert made.begin_restore(7, dst_slot=sequence.state_slot)
    made.forget_pending(sequence)
    assert made.take_checkpoint_ops() == ((), ())
    assert made.store.records[checkpoint].pin_count == 0
