"""The block pool: vacant, cached, live and reserved blocks, and which hash leads to which."""

from __future__ import annotations

from statepages._native import Block, BlockPool, BlockRetirement
from statepages.compat._views import LiveSequence, like_dataclass

__all__ = ["Block", "BlockPool", "BlockRetirement"]

like_dataclass(BlockRetirement, "retired", "moved_to")


def _blocks(self: BlockPool) -> LiveSequence:
    """Every block, by its id: a read-only live view."""
    return LiveSequence(self.block, lambda: self.num_blocks)


# The native class itself, so that a subclass is told by its type alone.
setattr(BlockPool, "blocks", property(_blocks))
