"""The planner of `statepages.compat.paged_state_copy` against a walk byte by byte."""

import random

import numpy as np
import pytest

from statepages.compat.paged_state_copy import plan_segmented_copy


def walk(sizes, total):
    where = [(segment, offset) for segment, size in enumerate(sizes) for offset in range(size)]
    return where[:total]


@pytest.mark.parametrize("seed", range(30))
def test_spans_move_every_byte_once_and_in_order(seed):
    draw = random.Random(seed)
    src = [draw.randint(1, 40) for _ in range(draw.randint(1, 12))]
    dst = [draw.randint(1, 40) for _ in range(draw.randint(1, 12))]
    total = draw.randint(0, min(sum(src), sum(dst)))
    plan = plan_segmented_copy(src, dst, total)
    moved = [
        ((ss, so + i), (ds, do + i))
        for ss, so, ds, do, length in zip(
            plan.src_seg, plan.src_off, plan.dst_seg, plan.dst_off, plan.length, strict=True
        )
        for i in range(length)
    ]
    assert moved == list(zip(walk(src, total), walk(dst, total), strict=True))
    assert plan.num_spans == len(plan.length) <= len(src) + len(dst)
    assert all(a.dtype == np.int64 for a in (plan.src_seg, plan.src_off, plan.dst_seg, plan.dst_off, plan.length))


def test_tiles_are_4096_bytes_and_a_tail():
    plan = plan_segmented_copy(np.array([10_000, 4096, 3]), (20_000,), 14_099)
    assert plan.length.tolist() == [10_000, 4096, 3] and plan.num_tiles == 5
    assert plan.span_of_tile.tolist() == [0, 0, 0, 1, 2] and plan.span_of_tile.dtype == np.int32
    assert plan.tile_start.tolist() == [0, 4096, 8192, 0, 0] and plan.tile_start.dtype == np.int64


@pytest.mark.parametrize(
    "src,dst,total,message",
    [
        ([5], [5], -1, "non-negative"),
        ([5], [9], 6, "source segmented stream is shorter"),
        ([9], [5], 6, "destination segmented stream is shorter"),
        ([5, 0], [5], 5, "cannot contain empty segments"),
        ([5], [5, 0], 5, "cannot contain empty segments"),
        ([5], [5, -1], 5, "cannot contain empty segments"),
    ],
)
def test_bad_streams_are_refused(src, dst, total, message):
    with pytest.raises(ValueError, match=message):
        plan_segmented_copy(src, dst, total)


def test_plans_compare_by_identity():
    plan, twin = plan_segmented_copy([5], [5], 5), plan_segmented_copy([5], [5], 5)
    assert plan == plan and plan != twin and len({plan, twin}) == 2


def test_descriptors_forward_and_back():
    plan = plan_segmented_copy([5, 5], [3, 7], 10)
    src = np.array([[1000, 2000], [5000, 6000]], dtype=np.int64)
    dst = np.array([[100, 200], [300, 400]], dtype=np.int64)
    out = np.full((6, 3), -1, dtype=np.int64)
    plan.write_descriptor(out, src, dst)
    assert out.tolist() == [
        [1000, 100, 3], [1003, 200, 2], [2000, 202, 5],
        [5000, 300, 3], [5003, 400, 2], [6000, 402, 5],
    ]  # fmt: skip
    back = np.empty_like(out)
    plan.write_descriptor(back, src, dst, forward=False)
    assert (back[:, [1, 0, 2]] == out).all()
    plan.write_descriptor(np.empty((0, 3), dtype=np.int64), src[:0], dst[:0])


@pytest.mark.parametrize(
    "change,message",
    [
        ({"out": np.zeros((2, 3), np.int64)}, "out"),
        ({"out": np.zeros((3, 4), np.int64)}, "out"),
        ({"out": np.zeros((3, 3), np.int32)}, "out"),
        ({"out": np.zeros(9, np.int64)}, "out"),
        ({"src_bases": np.zeros((1, 1), np.int64)}, "src_bases"),
        ({"src_bases": np.zeros((1, 2), np.float64)}, "src_bases"),
        ({"dst_bases": np.zeros((2, 2), np.int64)}, "dst_bases"),
        ({"dst_bases": [[1, 2]]}, "dst_bases"),
    ],
)
def test_descriptor_shapes_are_strict(change, message):
    plan = plan_segmented_copy([5, 5], [3, 7], 10)
    given = {
        "out": np.zeros((3, 3), np.int64),
        "src_bases": np.zeros((1, 2), np.int64),
        "dst_bases": np.zeros((1, 2), np.int64),
    }
    with pytest.raises(ValueError, match=message):
        plan.write_descriptor(**(given | change))


def test_a_read_only_descriptor_is_refused():
    plan = plan_segmented_copy([5], [5], 5)
    out = np.zeros((1, 3), np.int64)
    out.flags.writeable = False
    base = np.zeros((1, 1), np.int64)
    with pytest.raises(ValueError, match="out"):
        plan.write_descriptor(out, base, base)
