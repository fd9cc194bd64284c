//! The control plane of statepages: which page, slot and checkpoint belongs to whom, and when.
//!
//! Deterministic and passive: no I/O, no copies, no clock, no thread, no callback. One owner calls
//! [`ControlPlane`] with `&mut`; what has to happen to bytes is answered as values
//! ([`MaintenanceOps`](statepages_page::MaintenanceOps)), and the word that it has happened comes
//! back as a [`Receipt`].
//!
//! One step of an engine:
//!
//! 1. [`ControlPlane::settle`] each finished batch's receipt, then [`ControlPlane::advance`] and
//!    [`ControlPlane::file`] for its members;
//! 2. [`ControlPlane::try_admit`], [`ControlPlane::append_block`], [`ControlPlane::release`],
//!    with chunk ends from [`Placement::chunk_end`];
//! 3. where the batch has members: [`ControlPlane::begin_batch`], then [`ControlPlane::join`] for
//!    each member; run copies, then the forward.
//!
//! Three shapes of trouble: a bug panics, a refusal is a variant of the call's own answer, and only
//! what the world may get wrong (configuration, wire payloads, a promised checkpoint that is gone)
//! is an error.

mod admission;
mod admit;
mod audit;
mod batch;
mod check;
mod checkpoint;
mod config;
mod control;
mod counters;
mod events;
mod groups;
mod id_set;
mod index;
mod key_table;
mod keys;
mod order;
mod pending;
mod placement;
mod pool;
mod receipt;
mod residency;
mod restores;
mod room;
mod runtime;
mod slots;
mod value;
mod victim;

pub use admission::{Admit, AdmitReport, AdmitRequest, Hit, LossReason, Losses, Lost, Refusal};
pub use audit::{Names, RecordState, RecordView};
pub use config::{
    BackendOrder, Caching, CheckpointInterval, ConfigError, ControlPlaneConfig, IntervalError,
    IntervalSnapped, Schedulers,
};
pub use control::{Append, ControlPlane, Filed, Released, Relocate, Retire};
pub use counters::{Counters, Fates, Gauges};
pub use events::{EventDrain, KvEvent};
pub use groups::{GroupPin, GroupPool, HandOver, Resume, TakenGroup};
pub use keys::PromptKeys;
pub use placement::{Ahead, Chunk, Grid, KeepReason, Placement, Progress, Scope, Speculation};
pub use receipt::{Outcome, Receipt};
pub use residency::{Residency, Scratch};
pub use runtime::{
    CheckpointSpec, StateRuntime, StateTransfer, SuccessorRoom, WireError, WireValue,
};
pub use value::{PolicyReport, Spending, Statepages};
pub use victim::{
    KeepPlan, Notice, PlanRequest, Purpose, ReferenceOrder, Removal, StorePurpose, Victim,
    VictimPolicy, VictimView,
};

/// The parts that [`ControlPlane`] keeps in step, for an embedding that has the interface of a block
/// pool and a checkpoint store already and keeps the invariants between them itself. Whoever has
/// the choice takes the control plane: it alone can hold what no part can.
pub mod parts {
    pub use crate::checkpoint::{CheckpointStore, Image, RecordIndex, Unindexed, Written};
    pub use crate::key_table::KeyTable;
    pub use crate::order::Order;
    pub use crate::pool::{Afterlife, Claim, PagePool, RetireTop, Unshare};
}
