//! What is kept and who is given up: a policy's choice within what the rules allow.
//!
//! A policy sees notices of what comes and goes. It is asked two things: at an admission, which
//! boundaries of the prompt are worth a cut ([`VictimPolicy::plan`]); and where pages are short, for
//! a victim, a cached KV page or a READY checkpoint ([`VictimPolicy::next_victim`]), or for several at
//! once ([`VictimPolicy::next_pages`]). What is eligible is not its business: the checkpoint store states that
//! once ([`VictimView::is_eligible`]), the gate counts by it, and an ineligible answer is a bug.

use std::fmt;

use statepages_page::{BlockSize, Boundary, CheckpointId, ContentKey, PageId, Pages, RequestId};

use crate::admission::Hit;
use crate::checkpoint::CheckpointStore;
use crate::index::PrefixIndex;
use crate::keys::PromptKeys;
use crate::placement::{KeepReason, Scope};
use crate::pool::PagePool;
use crate::value::PolicyReport;

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
    Store(StorePurpose),
}

/// The image that pages are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorePurpose {
    /// Its key.
    pub key: ContentKey,
    /// Tokens it would save a resumer.
    pub boundary: Boundary,
    /// Why it is kept.
    pub reason: KeepReason,
}

/// An admission that is about to be reserved, and cannot fail any more.
#[derive(Clone, Copy, Debug)]
pub struct PlanRequest<'a> {
    /// The request's tokens and their keys.
    pub keys: &'a PromptKeys,
    /// What it finds.
    pub hit: Hit,
    /// The largest boundary that an identical prompt could resume from.
    pub cap: Boundary,
    /// Pages of the pool.
    pub pages: Pages,
    /// Blocks between two boundaries of the grid, where there may be one.
    pub grid: Option<Pages>,
}

/// What an admission's prefill is cut for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepPlan {
    /// A boundary that this path asks for. Taken only where an image fits after the admission.
    pub demand: Option<Boundary>,
    /// Whether it is cut for other boundaries, too.
    pub scope: Scope,
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
        /// The page that holds the KV of the boundary's last block.
        page: PageId,
        /// Key of the block before the boundary's last; `None` where there is one block.
        parent: Option<ContentKey>,
        /// Tokens it saves a resumer.
        boundary: Boundary,
        /// Why it was kept.
        reason: KeepReason,
        /// The request whose state it is.
        request: RequestId,
    },
    /// A request resumes from a checkpoint, and pins it.
    Hit {
        /// The record.
        checkpoint: CheckpointId,
        /// Its key.
        key: ContentKey,
        /// The resuming request.
        request: RequestId,
    },
    /// One pin of a checkpoint is gone, whether or not the record is READY still.
    Unpinned {
        /// The record.
        checkpoint: CheckpointId,
        /// Its key.
        key: ContentKey,
    },
    /// A READY checkpoint is gone.
    Removed {
        /// The record.
        checkpoint: CheckpointId,
        /// Its key.
        key: ContentKey,
        /// Why.
        removal: Removal,
    },
    /// A block is found from now on.
    Found {
        /// The page that holds it.
        page: PageId,
        /// Its key.
        key: ContentKey,
        /// Key of the block before it; `None` for the first of a chain.
        parent_key: Option<ContentKey>,
        /// The page of the block before it; `None` for the first, and where that is not found.
        parent: Option<PageId>,
        /// Blocks from the first of the chain to this one.
        depth: Pages,
    },
    /// A block is found in another page from now on. The former page holds nothing.
    Moved {
        /// The page that held it.
        from: PageId,
        /// The page that holds it, which is not cached.
        to: PageId,
    },
    /// The block of a page is found no longer. What hung on its key is gone already.
    Lost {
        /// The page.
        page: PageId,
    },
    /// No block is found any more. Checkpoints and cached pages are gone already.
    Cleared,
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

    /// Cached pages are given up whose blocks nothing hangs on: as if each were noticed as
    /// [`Notice::Uncached`] and then as [`Notice::Lost`], in order. For policies that are faster told
    /// of many at once.
    fn given_up(&mut self, pages: &[PageId]) {
        for &page in pages {
            self.notice(&Notice::Uncached { page });
            self.notice(&Notice::Lost { page });
        }
    }

    /// The next victim, or `None` to decline. Must be eligible in `view`.
    fn next_victim(&mut self, view: &VictimView<'_>, purpose: Purpose) -> Option<Victim>;

    /// Appends the cached pages, at most `most` (more are not looked at), that [`Self::next_victim`] would answer call after
    /// call, were each given up before the next. For policies that are faster asked for many at once:
    /// where nothing is appended, `next_victim` is asked.
    fn next_pages(
        &mut self,
        view: &VictimView<'_>,
        purpose: Purpose,
        most: usize,
        pages: &mut Vec<PageId>,
    ) {
        let _ = (view, purpose, most, pages);
    }

    /// A request is being admitted: which boundaries of its prefill are worth keeping. Called once
    /// per admission, where state is kept, before the notices of what it pins and claims.
    fn plan(&mut self, request: &PlanRequest<'_>) -> KeepPlan;

    /// What the policy knows of itself, where it keeps anything.
    fn report(&self) -> Option<PolicyReport>;

    /// Audits its own bookkeeping in O(n).
    ///
    /// # Panics
    /// Where an invariant does not hold.
    fn check(&self);
}

/// What a policy may look at while it chooses.
#[derive(Debug)]
pub struct VictimView<'a> {
    pub(crate) pool: &'a PagePool,
    pub(crate) store: &'a CheckpointStore,
    pub(crate) index: &'a PrefixIndex,
    pub(crate) block: BlockSize,
    pub(crate) protected: Option<CheckpointId>,
}

impl VictimView<'_> {
    /// The cached page that was freed longest ago.
    pub fn oldest_page(&self) -> Option<PageId> {
        self.pool.oldest_cached()
    }

    /// The cached pages, the one that was freed longest ago ahead.
    pub fn pages(&self) -> impl Iterator<Item = PageId> {
        self.pool.cached_pages()
    }

    /// The eligible checkpoint used longest ago.
    pub fn oldest_checkpoint(&self) -> Option<CheckpointId> {
        self.store.oldest_evictable(self.protected)
    }

    /// The eligible checkpoint used next after `checkpoint`, which is eligible itself.
    pub fn checkpoint_after(&self, checkpoint: CheckpointId) -> Option<CheckpointId> {
        self.store.evictable_after(checkpoint, self.protected)
    }

    /// The page that holds the block of a key.
    pub fn page(&self, key: ContentKey) -> Option<PageId> {
        self.index.page(key)
    }

    /// Blocks up to a boundary.
    pub fn blocks(&self, boundary: Boundary) -> Pages {
        self.block.blocks_floor(boundary.tokens())
    }

    /// Whether `victim` may be given up.
    pub fn is_eligible(&self, victim: Victim) -> bool {
        match victim {
            Victim::Page(page) => self.pool.is_cached(page),
            Victim::Checkpoint(id) => self.store.is_evictable(id, self.protected),
        }
    }
}

impl KeepPlan {
    /// Every reason, and a demand where the KV hit reaches further than the state hit.
    pub fn reference(hit: &Hit) -> Self {
        let demand = (hit.wanted > hit.resumable).then_some(hit.wanted);
        Self { demand, scope: Scope::EVERY }
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

    fn next_pages(
        &mut self,
        view: &VictimView<'_>,
        _: Purpose,
        most: usize,
        pages: &mut Vec<PageId>,
    ) {
        pages.extend(view.pages().take(most));
    }

    fn plan(&mut self, request: &PlanRequest<'_>) -> KeepPlan {
        KeepPlan::reference(&request.hit)
    }

    fn report(&self) -> Option<PolicyReport> {
        None
    }

    fn check(&self) {}
}
