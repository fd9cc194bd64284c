//! Vocabulary of statepages: ids, sizes, content keys, byte layouts and maintenance operations.
//!
//! This crate knows no pool, no device, no model and no time. Every other crate speaks its words;
//! it speaks nobody else's. The terms are defined in the glossary of `ARCHITECTURE.md`.

mod id;
mod key;
mod layout;
mod ops;
mod size;

pub use id::{BatchId, CheckpointId, PageId, RequestId, SlotId};
pub use key::{ContentKey, Domain, DomainTag};
pub use layout::{
    ImageLayout, ImageRule, LayoutError, LayoutId, LayoutTag, MOVE_BYTES, PageLayout, Plane,
    Region, RingRun, Segment, SlotLayout, StateLayout,
};
pub use ops::{MaintenanceOps, Relocation, RestoreOp, StoreOp, UnitRange};
pub use size::{BlockSize, Boundary, Bytes, Pages, Tokens};
