//! The affine values that stand for a taken slot.
//!
//! ```text
//! try_admit --> Residency --release--> (slot and pages free, or fenced until their receipts)
//! reserve_scratch --> Scratch --file_scratch / release_scratch--> (the same)
//! ```
//!
//! Invariants: one value per taken slot; only [`ControlPlane`](crate::ControlPlane) makes and ends
//! them; dropping one is a bug and panics, except while the thread already unwinds.

use statepages_page::{Boundary, PageId, RequestId, SlotId};

/// A resident request: its slot and its pages.
#[must_use = "a residency ends by `ControlPlane::release`"]
#[derive(Debug)]
pub struct Residency {
    pub(crate) request: RequestId,
    pub(crate) slot: SlotId,
    pub(crate) pages: Vec<PageId>,
    /// The era it was admitted in: what is computed from an earlier era's content is not kept.
    pub(crate) era: u64,
    /// Leading blocks whose content has been offered to the prefix index.
    pub(crate) published: u32,
}

impl Residency {
    /// The request.
    pub const fn request(&self) -> RequestId {
        self.request
    }

    /// Its slot. Changes only by [`ControlPlane::relocate`](crate::ControlPlane::relocate).
    pub const fn slot(&self) -> SlotId {
        self.slot
    }

    /// Its pages, one per block, in the order of the blocks.
    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }

    /// Ends the value and hands out its page table.
    pub(crate) fn into_pages(mut self) -> Vec<PageId> {
        let pages = std::mem::take(&mut self.pages);
        std::mem::forget(self);
        pages
    }
}

impl Drop for Residency {
    fn drop(&mut self) {
        assert!(
            std::thread::panicking(),
            "residency of {} in {} dropped; release it",
            self.request,
            self.slot
        );
    }
}

/// A slot that a forward writes an interior state into, at a boundary inside its chunk.
#[must_use = "a scratch slot ends by `file_scratch` or `release_scratch`"]
#[derive(Debug)]
pub struct Scratch {
    pub(crate) request: RequestId,
    pub(crate) slot: SlotId,
    pub(crate) boundary: Boundary,
    pub(crate) era: u64,
}

impl Scratch {
    /// The slot to write.
    pub const fn slot(&self) -> SlotId {
        self.slot
    }

    /// The position of the state it is for.
    pub const fn boundary(&self) -> Boundary {
        self.boundary
    }

    /// Ends the value.
    pub(crate) fn end(self) -> (RequestId, SlotId, Boundary) {
        let parts = (self.request, self.slot, self.boundary);
        std::mem::forget(self);
        parts
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        assert!(
            std::thread::panicking(),
            "scratch slot {} of {} dropped; file or release it",
            self.slot,
            self.request
        );
    }
}
