"""Resumable state checkpoints in KV-cache pages.

`ControlPlane` decides (pool, prefix index, checkpoint store, slots), `CopyPlan` and `Dsv4Geometry` say
where bytes lie, `HostBackend` and `CudaBackend` move them in arrays that an engine lends by DLPack.
`statepages.compat` has the interface of engines that keep page-unit checkpoints already.
"""

from statepages._native import (
    Admitted,
    Batch,
    CheckpointSpec,
    ConsumedError,
    ControlPlane,
    CopyPlan,
    CopyRefused,
    CudaBackend,
    DeviceFailure,
    Domain,
    Dsv4Geometry,
    HostBackend,
    LostCheckpoint,
    MaintenanceOps,
    MemoryRefused,
    PromptKeys,
    Refused,
    Residency,
    RingRun,
    Scope,
    Scratch,
    StateLayout,
    StateRuntime,
    StateTransfer,
    WireError,
)
from statepages._parts import CheckpointStore, PagePool, PrefixIndex, SlotPool

__all__ = [
    "Admitted",
    "Batch",
    "CheckpointSpec",
    "CheckpointStore",
    "ConsumedError",
    "ControlPlane",
    "CopyPlan",
    "CopyRefused",
    "CudaBackend",
    "DeviceFailure",
    "Domain",
    "Dsv4Geometry",
    "HostBackend",
    "LostCheckpoint",
    "MaintenanceOps",
    "MemoryRefused",
    "PagePool",
    "PrefixIndex",
    "PromptKeys",
    "Refused",
    "Residency",
    "RingRun",
    "Scope",
    "Scratch",
    "SlotPool",
    "StateLayout",
    "StateRuntime",
    "StateTransfer",
    "WireError",
]
