"""The block pool of `statepages.compat`: every behaviour that its interface documents."""

import dataclasses
import gc
import pickle
import weakref

import pytest

from statepages.compat.block_pool import Block, BlockPool, BlockRetirement


def live(pool, h=None, tokens=()):
    """A live block, published under `h` where it is given."""
    block_id = pool.pop()
    pool.allocate(block_id)
    if h is not None:
        pool.publish(block_id, h, list(tokens))
    return block_id


def cached(pool, h):
    block_id = live(pool, h)
    pool.free(block_id)
    return block_id


@pytest.mark.parametrize("sizes", [(-1, None), (3, 2), (0, -1)])
def test_sizes_are_checked(sizes):
    with pytest.raises(ValueError, match="num_blocks"):
        BlockPool(sizes[0], max_blocks=sizes[1])


def test_attributes_and_counts():
    pool = BlockPool(4, max_blocks=6)
    assert (pool.num_blocks, pool.max_blocks, BlockPool(4).max_blocks) == (4, 6, 4)
    a = live(pool, 7, [1, 2])
    held = pool.pop()
    assert (pool.num_free, pool.num_used, pool.num_indexed) == (2, 1, 1)
    assert pool.is_used(a) and not pool.is_used(held) and not pool.is_used(3)
    assert pool.has_free(2) and not pool.has_free(3) and pool.has_free(0)
    assert BlockPool(0).num_free == 0
    with pytest.raises(TypeError):
        BlockPool(4, surplus=1)


def test_a_block_shows_what_is():
    pool = BlockPool(2)
    block = pool.block(0)
    assert (block.block_id, block.ref_count, block.hash, block.token_ids) == (0, 0, -1, [])
    live(pool, 7, [1, 2])
    assert (block.ref_count, block.hash, block.token_ids) == (1, 7, [1, 2])
    assert pool.blocks[0] == block and len(pool.blocks) == 2 and pool.blocks[-1].block_id == 1
    assert [b.block_id for b in pool.blocks] == [0, 1] and [b.block_id for b in pool.blocks[:1]] == [0]
    assert pool.blocks[0] != pool.blocks[1] and hash(pool.blocks[0]) == hash(block)
    with pytest.raises(TypeError):
        pool.blocks[0] = block
    with pytest.raises(AttributeError):
        block.ref_count = 3
    for missing in (2, -1):
        with pytest.raises(AssertionError, match="block id"):
            pool.block(missing)


def test_a_block_updates_and_resets():
    for block in (Block(5), None):
        if block is None:
            pool = BlockPool(1)
            block = pool.block(live(pool))
        block.update(9, [4])
        assert (block.hash, block.token_ids) == (9, [4])
        block.reset()
        assert (block.ref_count, block.hash, block.token_ids) == (1, -1, [])
    assert Block(5).block_id == 5 and "block_id=5" in repr(Block(5))


def test_minus_one_is_no_hash():
    pool = BlockPool(1)
    block = pool.block(live(pool))
    block.update(-1, [4, 5])
    assert (block.hash, block.token_ids) == (-1, [4, 5])
    pool.free(0)
    assert pool.pop() == 0 and pool.allocate(0).token_ids == []
    with pytest.raises(ValueError, match="means none"):
        pool.publish(0, -1, [])


def test_tokens_that_call_the_pool_when_they_go():
    class Tokens(list):
        def __del__(self):
            ends.append(pool.num_free)

    ends = []
    pool = BlockPool(4)
    for end in (
        lambda: pool.reserve_units(pool.num_free, "me"),
        lambda: pool.clear_index(),
        lambda: [pool.allocate(pool.pop()) for _ in range(pool.num_free)],
        lambda: [pool.retire_top() for _ in range(pool.num_blocks)],
    ):
        before = len(ends)
        block_id = pool.pop()
        pool.allocate(block_id)
        pool.publish(block_id, 7, Tokens([1]))
        pool.free(block_id)
        end()
        assert len(ends) == before + 1
        pool = BlockPool(4)


def test_lookup_publish_and_the_newer_block_wins():
    pool = BlockPool(4)
    assert pool.lookup(7) == -1
    old, new = live(pool, 7), live(pool, 7)
    assert pool.lookup(7) == new and pool.num_indexed == 1
    assert pool.block(old).hash == 7, "the older block keeps its content"
    pool.free(old)
    assert pool.lookup(7) == new
    pool.free(new)
    assert pool.lookup(7) == new, "cached blocks are found"


@pytest.mark.parametrize("h", [0, 2**63, 2**64 - 1, -5, -(2**63), 2**64, 2**127 + 3])
def test_hashes_are_any_integer_of_128_bits(h):
    evicted = []
    pool = BlockPool(1, on_evict=evicted.append)
    block_id = cached(pool, h)
    assert pool.lookup(h) == block_id and pool.block(block_id).hash == h
    pool.allocate(pool.pop())
    assert evicted == [h]


@pytest.mark.parametrize("h,error", [("x", TypeError), (2**128, OverflowError), (-(2**64), OverflowError)])
def test_other_hashes_are_refused(h, error):
    with pytest.raises(error, match="hash"):
        BlockPool(1).lookup(h)


def test_vacant_before_cached_lowest_first_then_longest_free():
    pool = BlockPool(5)
    ids = [live(pool, h) for h in range(4)]
    for block_id in (ids[2], ids[0], ids[3]):
        pool.free(block_id)
    assert [pool.pop() for _ in range(4)] == [4, 2, 0, 3]
    with pytest.raises(AssertionError, match="no free block"):
        pool.pop()


def test_a_claimed_block_returns_to_the_end_of_the_order():
    pool = BlockPool(3)
    a, b, c = (cached(pool, h) for h in range(3))
    pool.claim(a)
    pool.free(a)
    assert [pool.pop() for _ in range(3)] == [b, c, a]


def test_claim_shares_live_and_cached_content():
    pool = BlockPool(2)
    a = live(pool, 7, [3])
    assert pool.claim(a).ref_count == 2
    pool.free(a)
    pool.free(a)
    revived = pool.claim(a)
    assert (revived.ref_count, revived.hash, revived.token_ids) == (1, 7, [3])
    assert pool.lookup(7) == a
    with pytest.raises(AssertionError, match="no content"):
        pool.claim(1)


def test_allocate_gives_fresh_content_and_tells_of_its_own_entry_only():
    evicted = []
    pool = BlockPool(2, on_evict=evicted.append)
    old = cached(pool, 7)
    new = live(pool, 7)
    assert pool.pop() == old
    block = pool.allocate(old)
    assert evicted == [] and pool.lookup(7) == new, "the entry pointed at the newer block"
    assert (block.ref_count, block.hash, block.token_ids) == (1, -1, [])
    pool.free(new)
    pool.allocate(pool.pop())
    assert evicted == [7] and pool.lookup(7) == -1
    with pytest.raises(AssertionError, match="in use"):
        pool.allocate(old)


def test_free_by_state():
    pool = BlockPool(3)
    plain, hashed = live(pool), live(pool, 7)
    pool.free(plain)
    pool.free(hashed)
    assert pool.pop() == plain, "without a hash it is vacant"
    with pytest.raises(AssertionError, match="not live"):
        pool.free(hashed)
    (unit,) = pool.reserve_units(1, "me")
    with pytest.raises(AssertionError, match="reserved unit"):
        pool.free(unit)


def test_clear_index_keeps_live_contents():
    told = []
    pool = BlockPool(3, on_evict=told.append)
    kept, gone = live(pool, 1, [5]), cached(pool, 2)
    pool.clear_index()
    assert (pool.num_indexed, pool.lookup(1), pool.lookup(2), told) == (0, -1, -1, [])
    assert (pool.block(kept).hash, pool.block(kept).token_ids) == (1, [5])
    assert pool.pop() == gone and pool.block(gone).hash == -1


def test_reserve_is_all_or_nothing_and_in_the_order_of_pop():
    evicted = []
    pool = BlockPool(4, on_evict=evicted.append)
    first = cached(pool, 7)
    assert pool.reserve_units(5, "me") is None and evicted == [] and pool.num_free == 4
    units = pool.reserve_units(4, "me")
    assert units == [1, 2, 3, first] and evicted == [7]
    assert all(pool.is_used(u) and pool.block(u).ref_count == 1 for u in units)
    assert pool.reserve_units(0, "me") == []


def test_reserve_refuses_bad_arguments():
    pool = BlockPool(2)
    with pytest.raises(ValueError, match="count"):
        pool.reserve_units(-1, "me")
    with pytest.raises(ValueError, match="owner"):
        pool.reserve_units(1, None)
    with pytest.raises(TypeError):
        pool.reserve_units(1, [])


def test_release_checks_everything_first():
    pool = BlockPool(6)
    mine = pool.reserve_units(3, ("a", 1))
    other = pool.reserve_units(1, "b")
    with pytest.raises(ValueError, match="distinct"):
        pool.release_units([mine[0], mine[0]], ("a", 1))
    for units, owner in [
        (mine, "b"),
        (mine, "nobody"),
        ([mine[1], mine[0], mine[2]], ("a", 1)),
        ([mine[0], other[0]], ("a", 1)),
        ([5], ("a", 1)),
        ([99], ("a", 1)),
    ]:
        with pytest.raises(AssertionError):
            pool.release_units(units, owner)
    assert pool.num_free == 2
    pool.release_units(tuple(mine), ("a", 1))
    pool.release_units(other, "b")
    assert pool.num_free == 6
    pool._check()


def test_owners_compare_by_value_and_are_forgotten():
    class Owner:
        def __init__(self, n):
            self.n = n

        def __eq__(self, other):
            return isinstance(other, Owner) and self.n == other.n

        def __hash__(self):
            return hash(self.n)

    pool = BlockPool(2)
    owner = Owner(1)
    gone = weakref.ref(owner)
    units = pool.reserve_units(2, owner)
    assert pool.reserve_units(1, Owner(2)) is None
    del owner
    gc.collect()
    assert gone() is not None
    pool.release_units(units, Owner(1))
    gc.collect()
    assert gone() is None


def test_extend_and_retire():
    pool = BlockPool(2, max_blocks=4)
    assert pool.extend(9) == 2 and pool.num_blocks == 4 and pool.extend(1) == 0
    assert pool.retire_top() == BlockRetirement(retired=3, moved_to=-1)
    assert [pool.retire_top().retired for _ in range(3)] == [2, 1, 0]
    assert pool.retire_top() is None


def test_retiring_a_cached_block_tells_of_it():
    evicted = []
    pool = BlockPool(1, on_evict=evicted.append)
    top = cached(pool, 9)
    assert pool.retire_top() == BlockRetirement(top, -1) and evicted == [9]


def test_a_live_block_moves_with_all_it_has():
    pool = BlockPool(2)
    low, top = live(pool), live(pool, 7, [1, 2])
    pool.claim(top)
    assert pool.retire_top() is None, "nothing is free to move into"
    pool.free(low)
    assert pool.retire_top() == BlockRetirement(1, low)
    moved = pool.block(low)
    assert (moved.ref_count, moved.hash, moved.token_ids, pool.lookup(7)) == (2, 7, [1, 2], low)


def test_a_live_block_moves_onto_a_cached_one():
    evicted = []
    pool = BlockPool(2, on_evict=evicted.append)
    low, top = live(pool, 3), live(pool, 7)
    pool.free(low)
    assert pool.retire_top() == BlockRetirement(top, low)
    assert evicted == [3] and pool.lookup(7) == low and pool.lookup(3) == -1


def test_a_raw_unit_does_not_retire():
    pool = BlockPool(1)
    pool.reserve_units(1, "me")
    assert pool.retire_top() is None and pool.num_blocks == 1


def test_retirement_is_a_frozen_value():
    value = BlockRetirement(3, -1)
    assert value == BlockRetirement(3, -1) != BlockRetirement(3, 0)
    assert hash(value) == hash(BlockRetirement(3, -1)) and value != (3, -1)
    assert repr(value) == "BlockRetirement(retired=3, moved_to=-1)"
    assert pickle.loads(pickle.dumps(value)) == value
    assert dataclasses.asdict(value) == {"retired": 3, "moved_to": -1}
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.retired = 4


CALLS = {
    "lookup": lambda pool: pool.lookup(7),
    "has_free": lambda pool: pool.has_free(1),
    "is_used": lambda pool: pool.is_used(0),
    "block": lambda pool: pool.block(0).hash,
    "blocks": lambda pool: [b.ref_count for b in pool.blocks],
    "publish": lambda pool: pool.publish(live(pool), 99, []),
    "clear_index": lambda pool: pool.clear_index(),
    "pop": lambda pool: pool.allocate(pool.pop()),
    "claim": lambda pool: pool.claim(0),
    "free": lambda pool: pool.free(0),
    "reserve_units": lambda pool: pool.reserve_units(2, "inner"),
    "release_units": lambda pool: pool.release_units(pool.reserve_units(1, "inner"), "inner"),
    "extend": lambda pool: pool.extend(1),
    "retire_top": lambda pool: pool.retire_top(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("by", ["allocate", "reserve_units", "retire_top"])
def test_on_evict_may_call_everything(call, by):
    told = []

    def on_evict(h):
        told.append(h)
        if len(told) == 1:
            call(pool)

    pool = BlockPool(6, on_evict=on_evict, max_blocks=8)
    kept = live(pool, 5)
    for h in range(10, 14):
        cached(pool, h)
    if by == "allocate":
        pool.reserve_units(pool.num_free - 4, "fill")
        pool.allocate(pool.pop())
    elif by == "reserve_units":
        units = pool.reserve_units(3, "outer")
        assert units is not None and len(units) == 3
        assert all(pool.is_used(unit) for unit in units)
        pool.release_units(units, "outer")
    else:
        while pool.retire_top():
            if told:
                break
    assert told, "something was evicted"
    assert kept == 0
    pool._check()


def test_an_exception_of_on_evict_takes_nothing():
    def on_evict(h):
        raise KeyError(h)

    pool = BlockPool(2, on_evict=on_evict)
    cached(pool, 7)
    with pytest.raises(KeyError):
        pool.reserve_units(2, "me")
    assert pool.num_free == 2
    pool.on_evict = None
    assert len(pool.reserve_units(2, "me")) == 2


def test_a_pool_in_a_cycle_is_collected():
    class Owner:
        pass

    owner = Owner()
    owner.pool = BlockPool(1, on_evict=lambda h: owner)
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None
