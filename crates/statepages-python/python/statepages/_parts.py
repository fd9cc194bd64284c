"""The parts of a control plane, one view each: `plane.pool`, `.index`, `.checkpoints`, `.slots`.

What they show is read when it is asked for. What concerns several parts at once is the control plane's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from statepages._native import ControlPlane, PromptKeys, Refused, Residency


class Record(NamedTuple):
    """A checkpoint: its state is COPYING, READY or EVICTING; units are in canonical order."""

    id: int
    key: int
    boundary: int
    state: str
    pins: int
    units: Any


class _Part:
    __slots__ = ("_plane",)

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    def _gauge(self, name: str) -> int:
        return self._plane.gauges()[name]


class PagePool(_Part):
    """Pages by owner: vacant, cached, held, live and raw ones sum up to the total."""

    __slots__ = ()

    total = property(lambda self: self._gauge("pages_total"))
    vacant = property(lambda self: self._gauge("pages_vacant"))
    cached = property(lambda self: self._gauge("pages_cached"))
    held = property(lambda self: self._gauge("pages_held"))
    live = property(lambda self: self._gauge("pages_live"))
    raw = property(lambda self: self._gauge("pages_raw"))
    available = property(lambda self: self._plane.available)

    def extend(self, count: int) -> int:
        """Grows by up to `count` pages and says by how many."""
        return self._plane.extend(count)

    def retire_top(self, residencies: list[Residency]) -> tuple[int, int | None] | Refused:
        """Shrinks by the highest page, given every residency there is."""
        return self._plane.retire_top(residencies)


class PrefixIndex(_Part):
    """Blocks that are found by their content."""

    __slots__ = ()

    bytes = property(lambda self: self._plane.index_bytes)

    def __len__(self) -> int:
        return self._gauge("blocks_indexed")

    def keys(self) -> list[int]:
        """Keys of every block, in the order of the pages."""
        return self._plane.indexed()

    def found(self, keys: PromptKeys) -> int:
        """Tokens of a prompt that are covered by found blocks."""
        return self._plane.probe(keys)[0]


class CheckpointStore(_Part):
    """Records of images, by state."""

    __slots__ = ()

    copying = property(lambda self: self._gauge("copying"))
    ready = property(lambda self: self._gauge("ready"))
    evicting = property(lambda self: self._gauge("evicting"))
    pending = property(lambda self: self._gauge("pending"))
    queued_restores = property(lambda self: self._gauge("queued_restores"))
    units_per_checkpoint = property(lambda self: self._plane.units_per_checkpoint)

    def records(self) -> list[Record]:
        """Every record there is."""
        return [Record(*record) for record in self._plane.records()]

    def resumable(self, keys: PromptKeys) -> int:
        """Tokens of a prompt that could be resumed."""
        return self._plane.probe(keys)[1]


class SlotPool(_Part):
    """Slots of resident requests."""

    __slots__ = ()

    free = property(lambda self: self._gauge("slots_free"))
    fenced = property(lambda self: self._gauge("slots_fenced"))


for _name, _part in (
    ("pool", PagePool),
    ("index", PrefixIndex),
    ("checkpoints", CheckpointStore),
    ("slots", SlotPool),
):
    setattr(ControlPlane, _name, property(_part))
