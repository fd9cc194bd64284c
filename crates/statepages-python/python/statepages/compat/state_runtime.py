"""How the state of a request moves, and what a batch's copies do before its forward."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from statepages import _native
from statepages.compat.page_unit_checkpoint import PagedStateCheckpointSpec, exact_fields

__all__ = [
    "COPY",
    "DEFAULT_STATE_RUNTIME",
    "FORK",
    "NONE",
    "StateMaintenanceOps",
    "StateRuntime",
    "StateTransfer",
]

FORK = "fork"
COPY = "copy"
NONE = "none"

_TRANSFER_WIRE = ("kind", "fork_tokens", "paged_layout_id")
_RUNTIME_WIRE = ("transfer", "checkpoint_spec")


@dataclass(frozen=True)
class StateTransfer:
    """`copy(layout_id)`, `fork(tokens)` or `none()`."""

    kind: str
    fork_tokens: int = 0
    paged_layout_id: str | None = None

    def __post_init__(self) -> None:
        _native._check_transfer(self.kind, self.fork_tokens, self.paged_layout_id)

    @classmethod
    def none(cls) -> StateTransfer:
        """State starts at zero tokens."""
        return cls(NONE)

    @classmethod
    def fork(cls, tokens: int) -> StateTransfer:
        """The live group becomes the checkpoint; the next forward has at least `tokens`."""
        return cls(FORK, fork_tokens=tokens)

    @classmethod
    def copy(cls, layout_id: str) -> StateTransfer:
        """An image of the layout is copied into a slot of the request's own."""
        return cls(COPY, paged_layout_id=layout_id)

    @property
    def copies(self) -> bool:
        """Whether images are copied."""
        return self.kind == COPY

    @property
    def forks(self) -> bool:
        """Whether groups fork."""
        return self.kind == FORK

    @property
    def successor_room(self) -> float:
        """Tokens that the forward after a checkpoint must have; inf where none suffice."""
        return math.inf if self.kind == NONE else float(self.fork_tokens)

    def to_wire(self) -> dict[str, object]:
        """Plain values."""
        return {name: getattr(self, name) for name in _TRANSFER_WIRE}

    @classmethod
    def from_wire(cls, wire: object) -> StateTransfer:
        """Reads exactly the fields of `to_wire`."""
        return cls(**exact_fields(wire, _TRANSFER_WIRE, "state transfer"))


@dataclass(frozen=True)
class StateRuntime:
    """A transfer with the geometry it needs, validated together."""

    transfer: StateTransfer = field(default_factory=StateTransfer.none)
    checkpoint_spec: PagedStateCheckpointSpec | None = None

    def __post_init__(self) -> None:
        transfer, spec = self.transfer, self.checkpoint_spec
        if not isinstance(transfer, StateTransfer):
            raise TypeError(f"transfer: expected StateTransfer, got {type(transfer).__name__}")
        if spec is not None and not isinstance(spec, PagedStateCheckpointSpec):
            raise TypeError(
                "checkpoint_spec: expected PagedStateCheckpointSpec or None, "
                f"got {type(spec).__name__}"
            )
        _native._check_runtime(
            transfer.kind,
            transfer.fork_tokens,
            transfer.paged_layout_id,
            None if spec is None else spec._fields(),
        )

    def to_wire(self) -> dict[str, object]:
        """Plain values, nested."""
        spec = self.checkpoint_spec
        return {
            "transfer": self.transfer.to_wire(),
            "checkpoint_spec": None if spec is None else spec.to_wire(),
        }

    @classmethod
    def from_wire(cls, wire: object) -> StateRuntime:
        """Reads exactly the fields of `to_wire` and validates the whole again."""
        fields = exact_fields(wire, _RUNTIME_WIRE, "state runtime")
        spec = fields["checkpoint_spec"]
        return cls(
            StateTransfer.from_wire(fields["transfer"]),
            None if spec is None else PagedStateCheckpointSpec.from_wire(spec),
        )


DEFAULT_STATE_RUNTIME = StateRuntime()


@dataclass(frozen=True)
class StateMaintenanceOps:
    """One batch's copies: relocations, checkpoint stores, checkpoint restores."""

    relocations: tuple[object, ...] = ()
    checkpoint_stores: tuple[object, ...] = ()
    checkpoint_restores: tuple[object, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether the batch has nothing to copy."""
        return not (self.relocations or self.checkpoint_stores or self.checkpoint_restores)
