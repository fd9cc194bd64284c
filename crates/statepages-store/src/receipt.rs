//! The receipt of a batch: the word that its copies and its forward are done.
//!
//! ```text
//! begin_batch --> Receipt --settle(Done | Failed)--> (stores published or given back, pins back)
//! ```
//!
//! Invariants: one receipt per batch that really runs; it alone owns the writer tickets of the
//! batch's stores and the reader pins of its restores, so nothing else can return them; receipts
//! may be settled in any order; dropping one is a bug and panics, except while unwinding.

use statepages_page::{BatchId, SlotId};

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its copies and its forward are done.
    Done,
    /// Some of it failed or was never run: no store of it is ever visible, and the slots it wrote
    /// hold unknown bytes, so their requests can only be released.
    Failed,
}

/// Owner of everything that waits for one batch.
#[must_use = "a receipt ends by `ControlPlane::settle`"]
#[derive(Debug)]
pub struct Receipt {
    pub(crate) batch: BatchId,
    pub(crate) cargo: Cargo,
}

/// A receipt's lists. Recycled from settled receipts, so that a step allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Cargo {
    /// Records being written.
    pub(crate) stores: Vec<StoreTicket>,
    /// Records being read, as slab indices; one entry per reader.
    pub(crate) restores: Vec<u32>,
    /// Slots that the batch's copies or forward touch, each once, with the tenancy they had.
    pub(crate) touched: Vec<(SlotId, u64)>,
    /// Those of them that it writes; some may be named twice.
    pub(crate) written: Vec<(SlotId, u64)>,
}

/// The writer of one record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreTicket {
    /// The record, as a slab index.
    pub(crate) record: u32,
    pub(crate) proof: Proof,
}

/// What shows that the bytes stored are the state they are filed as.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Proof {
    /// The forward that made the state had been reported before the store was handed out.
    Reported,
    /// It had not: the slot's tenant has to report it before the store's own receipt comes.
    Awaited { slot: SlotId, tenancy: u64 },
}

impl Cargo {
    pub(crate) fn with_capacity(slots: usize) -> Self {
        Self {
            stores: Vec::with_capacity(slots),
            restores: Vec::with_capacity(slots),
            touched: Vec::with_capacity(slots),
            written: Vec::with_capacity(2 * slots),
        }
    }
}

impl Receipt {
    /// The batch.
    pub const fn batch(&self) -> BatchId {
        self.batch
    }

    /// Ends the value and hands out its lists.
    pub(crate) fn into_cargo(mut self) -> Cargo {
        let cargo = std::mem::take(&mut self.cargo);
        std::mem::forget(self);
        cargo
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "receipt of {} dropped; settle it", self.batch);
    }
}
