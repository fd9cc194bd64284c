//! The interface of a copy backend.
//!
//! ```text
//!            submit               poll
//!   ops  ------------>  ticket  --------> Pending | Done
//!                |                 |
//!                '---- failure ----'---> every later call: PriorFailure ---- reset ---> sound
//! ```
//!
//! # Invariants
//! - Nothing is written before the whole bundle has been checked.
//! - A failure latches: until [`CopyBackend::reset`], every later call answers
//!   [`CopyError::PriorFailure`], also for batches submitted before it. What those wrote is unknown.
//! - Reads and writes of a batch may happen at any time between its submission and the poll that
//!   answers [`CopyState::Done`], unless the backend is [`CopyOrder::Ordered`].
//!
//! The engine calls; a backend never calls back and knows no pins.

use std::fmt;

use statepages_page::{MaintenanceOps, StateLayout};

use crate::Refused;

/// Whether batches take effect in the order of submission, and before whatever the caller does to
/// the memory afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyOrder {
    /// They do: a slot or unit may be reused once the batch is submitted.
    Ordered,
    /// They may not: a slot or unit may be reused once its batch is done.
    Unordered,
}

/// Names a submitted batch. Tickets of one backend ascend and are never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct CopyTicket(u64);

impl CopyTicket {
    /// The ticket of a backend's `number`-th batch.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn raw(self) -> u64 {
        self.0
    }
}

/// How far a batch is.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyState {
    /// Its copies may be in flight.
    Pending,
    /// All its bytes are where they belong.
    Done,
}

/// A batch that did not happen, or not wholly.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CopyError {
    /// An operation was invalid; nothing of the batch was written.
    Refused(Refused),
    /// The device failed; any part of the batch may have been written.
    Device {
        /// What the device said.
        message: String,
    },
    /// An earlier call failed and nobody has reset the backend.
    PriorFailure,
}

impl fmt::Display for CopyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refused) => write!(f, "copy refused: {refused}"),
            Self::Device { message } => write!(f, "copy failed: {message}"),
            Self::PriorFailure => f.write_str("copy backend has failed before and was not reset"),
        }
    }
}

// Its text holds that of its cause; a source beside it would be printed a second time.
impl std::error::Error for CopyError {}

impl From<Refused> for CopyError {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

/// Executes the maintenance operations of batches on one kind of memory.
pub trait CopyBackend {
    /// Pages and slots.
    type Memory;

    /// Layout of the memory.
    fn layout(&self) -> &StateLayout;

    /// What the backend promises about order.
    fn order(&self) -> CopyOrder;

    /// Takes a batch's operations. They are copied out: the bundle may be refilled at once.
    fn submit(
        &mut self,
        memory: &mut Self::Memory,
        ops: &MaintenanceOps,
    ) -> Result<CopyTicket, CopyError>;

    /// Asks for a batch. A batch that is done stays done.
    ///
    /// # Panics
    /// For a ticket that this backend has not issued.
    fn poll(
        &mut self,
        memory: &mut Self::Memory,
        ticket: CopyTicket,
    ) -> Result<CopyState, CopyError>;

    /// Ends a failure. Tickets issued before are void and answer [`CopyError::PriorFailure`]; the
    /// caller must hold no slot and no unit that they touched for valid.
    fn reset(&mut self);
}
