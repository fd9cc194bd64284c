"""Where two ordered byte streams are cut, and the descriptors of raw-byte copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from statepages import _native

__all__ = ["SegmentedCopyPlan", "plan_segmented_copy"]


@dataclass(frozen=True, eq=False)
class SegmentedCopyPlan:
    """Spans that cross no border of either stream, and their tiles of 4,096 bytes."""

    src_seg: NDArray[np.int64]
    src_off: NDArray[np.int64]
    dst_seg: NDArray[np.int64]
    dst_off: NDArray[np.int64]
    length: NDArray[np.int64]
    span_of_tile: NDArray[np.int32]
    tile_start: NDArray[np.int64]
    _segments: tuple[int, int] = field(repr=False)

    @property
    def num_spans(self) -> int:
        """Entries of the span arrays."""
        return len(self.length)

    @property
    def num_tiles(self) -> int:
        """Entries of the tile arrays."""
        return len(self.tile_start)

    def write_descriptor(
        self,
        out: NDArray[np.int64],
        src_bases: NDArray[np.int64],
        dst_bases: NDArray[np.int64],
        *,
        forward: bool = True,
    ) -> None:
        """Fills `out`, int64 `(copies * num_spans, 3)`, with (source, destination, length).

        Bases are int64 `(copies, segments)`. `forward=False` swaps the columns' roles.
        """
        spans = [self.src_seg, self.src_off, self.dst_seg, self.dst_off, self.length]
        _native._segmented_descriptor(
            spans, list(self._segments), out, [src_bases, dst_bases], bool(forward)
        )


def plan_segmented_copy(
    src_sizes: Sequence[int], dst_sizes: Sequence[int], total_bytes: int
) -> SegmentedCopyPlan:
    """Intersects the first `total_bytes` of two streams, given by the sizes of their segments."""
    src_seg, src_off, dst_seg, dst_off, length, span_of_tile, tile_start = _native._segmented_spans(
        src_sizes, dst_sizes, total_bytes
    )
    return SegmentedCopyPlan(
        src_seg,
        src_off,
        dst_seg,
        dst_off,
        length,
        span_of_tile,
        tile_start,
        (len(src_sizes), len(dst_sizes)),
    )
