"""Images of request state, cut into pages of the KV pool that need not be neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from statepages import _native
from statepages._native import (
    CheckpointRecord,
    CheckpointRestoreOp,
    CheckpointStoreOp,
    PagedStateCheckpointCoordinator,
    PageUnitCheckpointStore,
)
from statepages.compat._views import LiveMapping, like_dataclass

__all__ = [
    "COPYING",
    "EVICTING",
    "READY",
    "CheckpointRecord",
    "CheckpointRestoreOp",
    "CheckpointStoreOp",
    "PageUnitCheckpointStore",
    "PagedStateCheckpointCoordinator",
    "PagedStateCheckpointSpec",
]

COPYING = "COPYING"
READY = "READY"
EVICTING = "EVICTING"

like_dataclass(CheckpointStoreOp, "src_slot", "unit_ids", "total_bytes", "layout_id")
like_dataclass(CheckpointRestoreOp, "dst_slot", "unit_ids", "total_bytes", "layout_id")


def _records(self: PageUnitCheckpointStore) -> LiveMapping:
    """Every record, by its id: a read-only live view."""
    found = self._record
    return LiveMapping(
        lambda key: found(key) if isinstance(key, int) else None,
        lambda: ((key, found(key)) for key in self._record_ids()),
        lambda: self._counts[0],
    )


def _hash_to_checkpoint(self: PageUnitCheckpointStore) -> LiveMapping:
    """Ids of READY records, by hash: a read-only live view."""

    def find(prefix_hash: object) -> int | None:
        found = self.lookup(prefix_hash) if isinstance(prefix_hash, int) else -1
        return None if found < 0 else found

    return LiveMapping(find, self._ready, lambda: self._counts[1])


# The native class itself, so that a subclass with a policy of its own is told by its type alone.
setattr(PageUnitCheckpointStore, "records", property(_records))
setattr(PageUnitCheckpointStore, "hash_to_checkpoint", property(_hash_to_checkpoint))

_WIRE = ("page_unit_bytes", "slot_bytes", "image_bytes", "layout_id")


@dataclass(frozen=True)
class PagedStateCheckpointSpec:
    """Geometry of page-backed images, in bytes. An image holds at most a slot."""

    page_unit_bytes: int
    slot_bytes: int
    layout_id: str
    image_bytes: int

    def __post_init__(self) -> None:
        _native._check_spec(self._fields())

    def _fields(self) -> tuple[object, ...]:
        return (self.page_unit_bytes, self.slot_bytes, self.image_bytes, self.layout_id)

    @property
    def units_per_checkpoint(self) -> int:
        """Units of one image: its bytes over those of a unit, rounded up."""
        return _native._check_spec(self._fields())

    def to_wire(self) -> dict[str, int | str]:
        """Plain values; units per checkpoint are derived on both sides and never sent."""
        return {name: getattr(self, name) for name in _WIRE}

    @classmethod
    def from_wire(cls, wire: object) -> PagedStateCheckpointSpec:
        """Reads exactly the fields of `to_wire`."""
        return cls(**exact_fields(wire, _WIRE, "paged state checkpoint spec"))


def exact_fields(wire: object, names: tuple[str, ...], what: str) -> dict[str, Any]:
    """The fields of a mapping that has exactly these."""
    if not isinstance(wire, Mapping):
        raise TypeError(f"{what} must be a mapping, got {type(wire).__name__}")
    if set(wire) != set(names):
        raise ValueError(
            f"invalid {what} fields: expected={sorted(names)}, got={sorted(map(str, wire))}"
        )
    return {name: wire[name] for name in names}
