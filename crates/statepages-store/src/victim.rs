//! Who is given up when pages are short: a policy's choice among what is eligible.
//!
//! A policy sees notices of what comes and goes and answers one victim at a time: a cached KV page
//! or a READY checkpoint. What is eligible is not its business: the checkpoint store states that
//! once ([`VictimView::is_eligible`]), the gate counts by it, and an ineligible answer is a bug.

use std::fmt;

use statepages_page::{Boundary, CheckpointId, ContentKey, PageId, RequestId};

use crate::checkpoint::CheckpointStore;
use crate::placement::KeepReason;
use crate::pool::PagePool;

/// Something that can be given up for its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// A cached KV page. A checkpoint under its key is orphaned with it.
    Page(PageId),
    /// A READY, unpinned, unprotected checkpoint. The KV under it stays.
    Checkpoint(CheckpointId),
}

/// What the pages are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// KV of a live request. A policy that declines is overruled by [`ReferenceOrder`], because the
    /// gate has promised the pages.
    Live,
    /// Units of an image. A policy that declines has the store refused at no cost.
    Store,
}

/// Why a READY checkpoint is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// It was a victim.
    Evicted,
    /// The KV block under its key was.
    Orphaned,
    /// An operator emptied the cache.
    Reset,
}

/// Something a policy may want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A checkpoint became READY.
    Ready {
        /// The record.
        checkpoint: CheckpointId,
        /// Its key.
        key: ContentKey,
        /// Key of the block before the boundary's last; `None` where there is one block.
        parent: Option<ContentKey>,
        /// Tokens it saves a resumer.
        boundary: Boundary,
        /// Why it was kept.
        reason: KeepReason,
        /// The request whose state it is.
        request: RequestId,
    },
    /// A request resumes from a checkpoint.
    Hit {
        /// The record.
        checkpoint: CheckpointId,
        /// The resuming request.
        request: RequestId,
    },
    /// A READY checkpoint is gone.
    Removed {
        /// The record.
        checkpoint: CheckpointId,
        /// Why.
        removal: Removal,
    },
    /// A KV page became cached: free, and still found by its key.
    Cached {
        /// The page.
        page: PageId,
        /// Key of its block.
        key: ContentKey,
        /// Key of the block before it; `None` for the first of a chain.
        parent: Option<ContentKey>,
    },
    /// A cached page is cached no longer: claimed, given up or cleared.
    Uncached {
        /// The page.
        page: PageId,
    },
}

/// The policy hook.
pub trait VictimPolicy: fmt::Debug + Send {
    /// Something happened. Called once per change, in order.
    fn notice(&mut self, notice: &Notice);

    /// The next victim, or `None` to decline. Must be eligible in `view`.
    fn next_victim(&mut self, view: &VictimView<'_>, purpose: Purpose) -> Option<Victim>;
}

/// What a policy may look at while it chooses.
#[derive(Debug)]
pub struct VictimView<'a> {
    pub(crate) pool: &'a PagePool,
    pub(crate) store: &'a CheckpointStore,
    pub(crate) protected: Option<CheckpointId>,
}

impl VictimView<'_> {
    /// The cached page that was freed longest ago.
    pub fn oldest_page(&self) -> Option<PageId> {
        self.pool.oldest_cached()
    }

    /// The cached page freed next after `page`, which is cached itself.
    pub fn page_after(&self, page: PageId) -> Option<PageId> {
        self.pool.cached_after(page)
    }

    /// The eligible checkpoint used longest ago.
    pub fn oldest_checkpoint(&self) -> Option<CheckpointId> {
        self.store.oldest_evictable(self.protected)
    }

    /// The eligible checkpoint used next after `checkpoint`, which is eligible itself.
    pub fn checkpoint_after(&self, checkpoint: CheckpointId) -> Option<CheckpointId> {
        self.store.evictable_after(checkpoint, self.protected)
    }

    /// Whether `victim` may be given up.
    pub fn is_eligible(&self, victim: Victim) -> bool {
        match victim {
            Victim::Page(page) => self.pool.is_cached(page),
            Victim::Checkpoint(id) => self.store.is_evictable(id, self.protected),
        }
    }
}

/// Cached KV pages first, the one freed longest ago ahead; then checkpoints, least recently used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReferenceOrder;

impl VictimPolicy for ReferenceOrder {
    fn notice(&mut self, _: &Notice) {}

    fn next_victim(&mut self, view: &VictimView<'_>, _: Purpose) -> Option<Victim> {
        let page = view.oldest_page().map(Victim::Page);
        page.or_else(|| view.oldest_checkpoint().map(Victim::Checkpoint))
    }
}
