"""State runtimes on the wire, layouts, plans and geometry."""

import pickle

import numpy as np
import pytest

import statepages as sp


def test_the_wire_form_is_versioned_nested_and_strict(runtime, layout):
    wire = runtime.to_wire()
    assert wire == {
        "version": 1,
        "transfer": {"kind": "copy", "fork_tokens": 0, "paged_layout_id": "tests-1"},
        "checkpoint_spec": {"page_unit_bytes": 48, "slot_bytes": 192, "image_bytes": 160, "layout_id": "tests-1"},
    }
    assert sp.StateRuntime.from_wire(wire) == runtime == pickle.loads(pickle.dumps(runtime))
    for broken, error in [
        (None, sp.WireError),
        ([1], TypeError),
        ({**wire, "more": 1}, sp.WireError),
        ({**wire, "version": 2}, sp.WireError),
        ({**wire, "version": True}, sp.WireError),
        ({**wire, "checkpoint_spec": None}, sp.WireError),
        ({**wire, "transfer": {**wire["transfer"], "paged_layout_id": "drifted"}}, sp.WireError),
        ({**wire, "checkpoint_spec": {**wire["checkpoint_spec"], "image_bytes": 1.5}}, TypeError),
    ]:
        with pytest.raises(error):
            sp.StateRuntime.from_wire(broken)


def test_runtimes_agree_or_name_both_sides(runtime, layout):
    runtime.agree(sp.StateRuntime.from_wire(runtime.to_wire()))
    spec = sp.CheckpointSpec(page_unit_bytes=64, slot_bytes=192, image_bytes=160, layout_id="tests-1")
    with pytest.raises(sp.WireError, match="48.*64"):
        runtime.agree(sp.StateRuntime(sp.StateTransfer.copy("tests-1"), spec))
    with pytest.raises(sp.WireError, match="spec"):
        sp.StateRuntime(sp.StateTransfer.none(), spec)
    assert sp.StateTransfer.fork(3).successor_room == 3 and sp.StateTransfer.none().successor_room is None
    for value in (spec, *(sp.StateTransfer.copy("x"), sp.StateTransfer.fork(2), sp.StateTransfer.none())):
        assert pickle.loads(pickle.dumps(value)) == value
    assert (spec.units_per_checkpoint, layout.spec().units_per_checkpoint) == (3, 4)


@pytest.mark.parametrize(
    "change,message",
    [
        ({"page_unit_bytes": 0}, "page_unit_bytes"),
        ({"image_bytes": 200}, "image_bytes"),
        ({"layout_id": ""}, "layout_id"),
    ],
)
def test_specs_are_checked(change, message):
    given = {"page_unit_bytes": 48, "slot_bytes": 192, "image_bytes": 160, "layout_id": "x"} | change
    with pytest.raises(ValueError, match=message):
        sp.CheckpointSpec(**given)


def test_layouts(layout):
    assert (layout.page_unit_bytes, layout.slot_bytes, layout.image_bytes) == (48, 192, 160)
    assert layout.units_per_checkpoint == 4 and layout.rule == "whole" and "tests-1" in repr(layout)
    whole = sp.StateLayout("w", regions=[("kv", 32)], planes=[("a", 64), ("b", 16)])
    assert whole.image_bytes == 80 and whole.rows_before_boundary == 0
    for change, message in [
        ({"regions": [("kv", 30)]}, "kv"),
        ({"planes": []}, "planes"),
        ({"segments": [(0, 0, 4096)]}, "plane"),
        ({"segments": [1]}, "segments"),
        ({"rule": "half"}, "rule"),
    ]:
        given = {"regions": [("kv", 32)], "planes": [("a", 64)]} | change
        with pytest.raises((ValueError, TypeError), match=message):
            sp.StateLayout("bad", **given)


def test_plans(layout):
    plan = sp.CopyPlan(layout)
    segment, at, unit, region, into, length = plan.spans()
    assert length.sum() == 160 and plan.num_spans == len(length) and unit.max() == 3
    assert all(column.dtype == np.int64 for column in plan.spans())
    span, start, size = plan.tiles(32)
    assert size.sum() == 160 and size.max() == 32 and (start % 32 == 0).all() and span.max() == plan.num_spans - 1
    assert (segment[0], at[0], region[0], into[0]) == (0, 0, 0, 0)
    with pytest.raises(ValueError, match="tile"):
        plan.tiles(0)


def test_geometry_of_published_models():
    made = sp.Dsv4Geometry("v4-pro", kv="fp8", indexer="fp8")
    layout = made.layout
    assert (layout.page_unit_bytes, layout.slot_bytes, layout.units_per_checkpoint) == (1521920, 25395200, 17)
    assert made.ring == 128 and sp.CopyPlan(layout).num_spans == 515
    assert sp.Dsv4Geometry("v4-pro", draft_tokens=1).layout.units_per_checkpoint == 18
    capacity = made.capacity(80 << 30, 256)
    assert capacity["slots"] == 256 and capacity["images"] == capacity["pages"] // 17
    config = {
        "num_hidden_layers": 61, "num_nextn_predict_layers": 1, "compress_ratios": [],
        "head_dim": 512, "qk_rope_head_dim": 64, "index_head_dim": 128,
    }  # fmt: skip
    with pytest.raises(ValueError, match="sliding_window"):
        sp.Dsv4Geometry(config)
    for change, message in [({"model": "v5"}, "model"), ({"kv": "int3"}, "kv"), ({"image": "x"}, "rule")]:
        with pytest.raises(ValueError, match=message):
            sp.Dsv4Geometry(**({"model": "v4-pro"} | change))
    with pytest.raises(ValueError, match="memory"):
        made.capacity(1 << 20, 256)


def test_ops_from_arrays(layout):
    ops = sp.MaintenanceOps.of(
        layout,
        relocations=[(0, 3)],
        store_slots=[1],
        store_units=np.arange(4, dtype=np.uint32).reshape(1, 4),
        restore_slots=np.array([2]),
        restore_units=[[9, 8, 7, 6]],
        restore_boundaries=[12],
    )
    assert ops.store_units.tolist() == [[0, 1, 2, 3]] and ops.restore_units.tolist() == [[9, 8, 7, 6]]
    assert ops.store_boundaries.tolist() == [0] and ops.restore_boundaries.tolist() == [12]
    assert ops.relocations.tolist() == [[0, 3]] and not ops.empty and sp.MaintenanceOps.of(layout).empty
    assert repr(ops) == "MaintenanceOps(1 relocations, 1 stores, 1 restores)"
    for bad in (
        {"store_slots": [1]},
        {"store_slots": [1], "store_units": [[1, 2]]},
        {"store_slots": [1], "store_units": np.zeros((2, 4), np.uint32)},
        {"store_slots": [1, 2], "store_units": [[1, 2, 3, 4]]},
        {"restore_slots": [1], "restore_units": [[1, 2, 3, 4]], "restore_boundaries": [1, 2]},
    ):
        with pytest.raises(ValueError, match="store"):
            sp.MaintenanceOps.of(layout, **bad)
