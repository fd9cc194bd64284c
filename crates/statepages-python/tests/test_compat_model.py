"""Pool, store and coordinator of `statepages.compat` in lockstep with a naive twin."""

import random

import pytest

from statepages.compat.block_pool import BlockPool
from statepages.compat.page_unit_checkpoint import (
    PagedStateCheckpointCoordinator,
    PagedStateCheckpointSpec,
)

UNITS = 3
SPEC = PagedStateCheckpointSpec(10, 40, "l", 25)


class Sequence:
    has_per_req_cache = True

    def __init__(self, slot):
        self.state_slot = slot


class Twin:
    """The interface's rules in lists and dictionaries, slow and obvious."""

    def __init__(self, blocks):
        self.vacant, self.cached = set(range(blocks)), []
        self.refs, self.hashes, self.index, self.owner = {}, {}, {}, {}
        self.records, self.lru = {}, []  # id -> [hash, units, state, pins]
        self.writing, self.queued, self.reading = [], [], []
        self.pending = {}  # sequence -> hash
        self.ids, self.kept, self.dropped, self.evicted, self.orphaned = 0, 0, 0, 0, 0

    # Pool

    def free(self):
        return len(self.vacant) + len(self.cached)

    def take(self):
        """A page without content, and the hash that no longer leads to it."""
        if self.vacant:
            page = min(self.vacant)
            self.vacant.remove(page)
            return page, None
        page = self.cached.pop(0)
        h = self.hashes.pop(page)
        if self.index.get(h) != page:
            return page, None
        del self.index[h]
        return page, h

    def allocate(self):
        page, gone = self.take()
        self.refs[page] = 1
        if gone is not None:
            self.unindex(gone)
        return page

    def publish(self, page, h):
        old = self.hashes.get(page)
        if old is not None and self.index.get(old) == page:
            del self.index[old]
        self.hashes[page], self.index[h] = h, page

    def claim(self, page):
        if page in self.cached:
            self.cached.remove(page)
        self.refs[page] = self.refs.get(page, 0) + 1

    def release(self, page):
        self.refs[page] -= 1
        if self.refs[page] == 0:
            del self.refs[page]
            if page in self.hashes:
                self.cached.append(page)
            else:
                self.vacant.add(page)

    # Store

    def state_of(self, h, *states):
        return next((i for i, r in self.records.items() if r[0] == h and r[2] in states), None)

    def spendable(self):
        return [i for i in self.lru if self.records[i][3] == 0]

    def room(self, count):
        return count <= self.free() + UNITS * len(self.spendable())

    def end(self, record):
        self.vacant.update(self.records.pop(record)[1])

    def make_room(self, count):
        if not self.room(count):
            return False
        while self.free() < count:
            victim = self.spendable()[0]
            self.lru.remove(victim)
            self.end(victim)
            self.evicted += 1
        return True

    def begin_store(self, h):
        if self.state_of(h, "READY", "COPYING") is not None or not self.make_room(UNITS):
            return None
        taken = [self.take() for _ in range(UNITS)]
        record, self.ids = self.ids, self.ids + 1
        self.records[record] = [h, [page for page, _ in taken], "COPYING", 0]
        self.writing.append(record)
        for _, gone in taken:
            if gone is not None:
                self.unindex(gone)
        if self.records[record][2] != "COPYING":
            self.writing.remove(record)
            self.end(record)
            return "orphaned"
        return self.records[record][1]

    def begin_restore(self, h, slot):
        record = self.state_of(h, "READY")
        if record is None:
            return None
        self.records[record][3] += 1
        self.lru.remove(record)
        self.lru.append(record)
        self.queued.append((record, slot))
        return self.records[record][1]

    def unpin(self, record):
        self.records[record][3] -= 1
        if self.records[record][2] == "EVICTING" and self.records[record][3] == 0:
            self.end(record)

    def cancel(self, slot):
        gone = [entry for entry in self.queued if entry[1] == slot]
        self.queued = [entry for entry in self.queued if entry[1] != slot]
        for record, _ in gone:
            self.unpin(record)

    def complete(self):
        writing, self.writing = self.writing, []
        for record in writing:
            if self.records[record][2] == "EVICTING" or self.state_of(self.records[record][0], "READY") is not None:
                self.end(record)
            else:
                self.records[record][2] = "READY"
                self.lru.append(record)
        reading, self.reading = self.reading, []
        for record in reading:
            self.unpin(record)

    def take_away(self, record):
        state = self.records[record]
        state[2] = "EVICTING"
        if record in self.lru:
            self.lru.remove(record)
        if record not in self.writing and state[3] == 0:
            self.end(record)

    # Coordinator

    def checkpoint(self, sequence, h):
        if self.pending.get(sequence, h) != h:
            del self.pending[sequence]
            self.dropped += 1
        self.pending[sequence] = h

    def drain(self):
        stores = []
        while self.pending:
            sequence = next(iter(self.pending))
            h = self.pending.pop(sequence)
            if self.state_of(h, "READY", "COPYING") is not None:
                continue
            units = self.begin_store(h)
            if units is None:
                self.dropped += 1
            elif units != "orphaned":
                self.kept += 1
                stores.append((sequence.state_slot, tuple(units)))
        restores = [(slot, tuple(self.records[record][1])) for record, slot in self.queued]
        self.reading += [record for record, _ in self.queued]
        self.queued = []
        return stores, restores

    def unindex(self, h):
        stale = [sequence for sequence, other in self.pending.items() if other == h]
        for sequence in stale:
            del self.pending[sequence]
        record = self.state_of(h, "READY")
        record = self.state_of(h, "COPYING") if record is None else record
        if record is not None:
            self.take_away(record)
        self.orphaned += record is not None or bool(stale)

    def clear(self):
        self.pending.clear()
        for record in list(self.records):
            if self.records[record][2] != "EVICTING":
                self.take_away(record)


def compare(pool, made, twin):
    assert (pool.num_free, pool.num_indexed) == (twin.free(), len(twin.index))
    assert {i: (r.prefix_hash, list(r.unit_ids), r.state, r.pin_count) for i, r in made.store.records.items()} == {
        i: tuple(r) for i, r in twin.records.items()
    }
    assert made.store.hash_to_checkpoint == {r[0]: i for i, r in twin.records.items() if r[2] == "READY"}
    assert made.checkpoint_fates() == {
        "checkpoints_kept": twin.kept,
        "checkpoints_dropped": twin.dropped,
        "checkpoints_evicted": twin.evicted,
        "checkpoints_orphaned": twin.orphaned,
    }


def shown(ops, slot):
    return [(getattr(op, slot), op.unit_ids) for op in ops]


@pytest.mark.parametrize("seed", range(12))
def test_a_thousand_events(seed):
    draw = random.Random(seed)
    blocks = draw.randint(6, 40)
    pool = BlockPool(blocks)
    made = PagedStateCheckpointCoordinator(pool, SPEC, True)
    pool.on_evict = made.unindex
    twin, sequences = Twin(blocks), [Sequence(slot) for slot in range(5)]

    def block():
        if not twin.free():
            return
        page = pool.pop()
        pool.allocate(page)
        assert page == twin.allocate()
        if draw.random() < 0.8:
            h = draw.randrange(30)
            pool.publish(page, h, [h])
            twin.publish(page, h)

    def release():
        if twin.refs:
            page = draw.choice(sorted(twin.refs))
            pool.free(page)
            twin.release(page)

    def claim():
        h = draw.randrange(30)
        page = pool.lookup(h)
        assert page == twin.index.get(h, -1)
        if page >= 0:
            pool.claim(page)
            twin.claim(page)

    def file():
        sequence, h = draw.choice(sequences), draw.randrange(30)
        made.checkpoint(sequence, 1, h)
        twin.checkpoint(sequence, h)

    def restore():
        h, slot = draw.randrange(30), draw.randrange(5)
        assert made.begin_restore(h, slot) == (twin.begin_restore(h, slot) is not None)

    def drain():
        stores, restores = made.take_checkpoint_ops()
        assert (shown(stores, "src_slot"), shown(restores, "dst_slot")) == twin.drain()

    def tick():
        made.complete_previous_batch()
        twin.complete()

    def forget():
        sequence = draw.choice(sequences)
        made.forget_pending(sequence)
        twin.pending.pop(sequence, None)
        twin.cancel(sequence.state_slot)

    def lose():
        h = draw.randrange(30)
        made.unindex(h)
        twin.unindex(h)

    def gate():
        count = draw.randint(0, blocks + 1)
        assert made.has_available_units(count) == twin.room(count)
        if draw.random() < 0.3:
            assert made.ensure_free_units(count) == twin.make_room(count)

    def clear():
        if draw.random() < 0.05:
            made.clear_index()
            twin.clear()

    events = [block, block, block, release, release, claim, file, file, restore, drain, tick, forget, lose, gate, clear]
    for _ in range(1_000):
        draw.choice(events)()
        compare(pool, made, twin)
    pool._check()
    assert twin.kept > 5 and twin.evicted + twin.orphaned > 5
