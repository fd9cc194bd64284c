"""State transfers and runtimes of `statepages.compat`."""

import dataclasses
import math
import pickle

import pytest

from statepages.compat.page_unit_checkpoint import PagedStateCheckpointSpec
from statepages.compat.state_runtime import (
    COPY,
    DEFAULT_STATE_RUNTIME,
    FORK,
    NONE,
    StateMaintenanceOps,
    StateRuntime,
    StateTransfer,
)

SPEC = PagedStateCheckpointSpec(10, 40, "layout-v1", 25)


def test_constructors_and_properties():
    none, fork, copy = StateTransfer.none(), StateTransfer.fork(3), StateTransfer.copy("l")
    assert (NONE, FORK, COPY) == ("none", "fork", "copy")
    assert [t.kind for t in (none, fork, copy)] == ["none", "fork", "copy"]
    assert [(t.copies, t.forks) for t in (none, fork, copy)] == [(False, False), (False, True), (True, False)]
    assert [t.successor_room for t in (none, fork, copy)] == [math.inf, 3.0, 0.0]
    assert isinstance(fork.successor_room, float)


@pytest.mark.parametrize(
    "args,error",
    [
        (("copy",), ValueError),
        (("copy", 0, ""), ValueError),
        (("copy", 1, "l"), ValueError),
        (("fork",), ValueError),
        (("fork", 0), ValueError),
        (("fork", -1), ValueError),
        (("fork", 1, "l"), ValueError),
        (("none", 1), ValueError),
        (("none", 0, "l"), ValueError),
        (("move",), ValueError),
        (("fork", True), TypeError),
        (("fork", 1.0), TypeError),
        (("fork", "1"), TypeError),
        (("copy", 0, 5), TypeError),
        ((None,), TypeError),
    ],
)
def test_transfers_are_checked(args, error):
    with pytest.raises(error):
        StateTransfer(*args)


@pytest.mark.parametrize(
    "transfer", [StateTransfer.none(), StateTransfer.fork(7), StateTransfer.copy("x")]
)
def test_transfers_travel(transfer):
    wire = transfer.to_wire()
    assert list(wire) == ["kind", "fork_tokens", "paged_layout_id"]
    assert StateTransfer.from_wire(wire) == transfer
    assert pickle.loads(pickle.dumps(transfer)) == transfer and hash(transfer)
    with pytest.raises(ValueError, match="fields"):
        StateTransfer.from_wire(wire | {"more": 1})
    with pytest.raises(ValueError, match="fields"):
        StateTransfer.from_wire({"kind": "none"})
    with pytest.raises(TypeError, match="mapping"):
        StateTransfer.from_wire(list(wire))
    with pytest.raises(dataclasses.FrozenInstanceError):
        transfer.kind = "copy"


def test_runtimes_are_checked_together():
    assert DEFAULT_STATE_RUNTIME == StateRuntime() == StateRuntime(StateTransfer.none(), None)
    assert StateRuntime(StateTransfer.copy("layout-v1"), SPEC).checkpoint_spec is SPEC
    for transfer, spec in [
        (StateTransfer.copy("layout-v1"), None),
        (StateTransfer.copy("other"), SPEC),
        (StateTransfer.fork(1), SPEC),
        (StateTransfer.none(), SPEC),
    ]:
        with pytest.raises(ValueError):
            StateRuntime(transfer, spec)
    for transfer, spec in [("copy", SPEC), (StateTransfer.none(), {}), (None, None)]:
        with pytest.raises(TypeError):
            StateRuntime(transfer, spec)


@pytest.mark.parametrize(
    "runtime",
    [DEFAULT_STATE_RUNTIME, StateRuntime(StateTransfer.fork(2)), StateRuntime(StateTransfer.copy("layout-v1"), SPEC)],
)
def test_runtimes_travel_nested(runtime):
    wire = runtime.to_wire()
    assert StateRuntime.from_wire(wire) == runtime and set(wire) == {"transfer", "checkpoint_spec"}
    assert pickle.loads(pickle.dumps(runtime)) == runtime
    with pytest.raises(ValueError, match="fields"):
        StateRuntime.from_wire(wire | {"version": 1})
    with pytest.raises(TypeError, match="mapping"):
        StateRuntime.from_wire(None)


def test_the_wire_is_validated_again():
    wire = StateRuntime(StateTransfer.copy("layout-v1"), SPEC).to_wire()
    wire["checkpoint_spec"]["layout_id"] = "drifted"
    with pytest.raises(ValueError, match="layout"):
        StateRuntime.from_wire(wire)


def test_maintenance_ops():
    assert StateMaintenanceOps().empty and StateMaintenanceOps() == StateMaintenanceOps((), (), ())
    for field in ("relocations", "checkpoint_stores", "checkpoint_restores"):
        assert not StateMaintenanceOps(**{field: (1,)}).empty
    with pytest.raises(dataclasses.FrozenInstanceError):
        StateMaintenanceOps().relocations = ()
