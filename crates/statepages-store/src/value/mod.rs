//! The policy `statepages`: keep what will be read.
//!
//! ```text
//!   plan: the clock moves on, the path is looked up, what it asked for is read, what it may be
//!         asked for next is wanted                                  (sights, directory, thrift)
//!   notices: which image lies where, which pages are free           (directory, tree)
//!   next_victim: a loose page; else the image that is worth least   (tree, ranks, ages)
//! ```
//!
//! A page is given up in one of two ways. A *loose* block, which no image needs, resumes nobody and is
//! the first to go. Where there is none, the cheapest image goes, and the blocks that only it needed
//! become loose: a bundle of prefix and image is kept whole or broken once, from its end.
//!
//! An image is worth the reads that its class gives at its age (`ages`), times the blocks it saves a
//! page it holds (`ranks`). A new image gives up nothing that is worth as much as itself.
//!
//! Everything is counted in pages asked for, so no figure depends on a clock, or on what the policy
//! itself has kept.

mod ages;
mod directory;
mod ranks;
mod rings;
mod sights;
mod thrift;
mod tree;

use statepages_page::{Boundary, Bytes, CheckpointId, ContentKey, PageId, Pages};

use crate::keys::PromptKeys;
use crate::placement::{Grid, KeepReason, Scope};
use crate::value::ages::EPOCHS_PER_POOL;
use crate::value::directory::{Directory, EntryIndex, Resident};
use crate::value::ranks::Bargain;
use crate::value::sights::{Onward, Sights};
pub use crate::value::thrift::Spending;
use crate::value::thrift::{Account, Thrift};
use crate::value::tree::{Bundle, Tree};
use crate::victim::{
    KeepPlan, Notice, PlanRequest, Purpose, StorePurpose, Victim, VictimPolicy, VictimView,
};

/// The policy. See the module's head.
#[derive(Debug)]
pub struct Statepages {
    units: u32,
    tree: Tree,
    directory: Directory,
    sights: Sights,
    thrift: Thrift,
    /// Pages asked for since the last epoch ended.
    asked: u64,
    admissions: u64,
    /// The entry that the plan of the latest admission counted as read.
    planned: Option<EntryIndex>,
}

/// How far a path was seen before.
#[derive(Clone, Copy, Debug)]
struct Known {
    blocks: usize,
    /// What follows the last known block.
    onward: Onward,
}

/// What the policy knows of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyReport {
    /// Bytes of all that it keeps, for its lifetime.
    pub bytes: Bytes,
    /// Bytes of what it knows of images and blocks that are not there, part of `bytes`.
    pub ghost_bytes: Bytes,
    /// Whether images are kept ahead of need: anchors, prompt ends, grid, decode.
    pub ahead: Spending,
    /// Whether images are kept where a path has come twice.
    pub demand: Spending,
    /// Cached pages that no image needs.
    pub loose: Pages,
}

impl Statepages {
    /// A policy for a pool of at most `pages_max` pages, of which an image takes `units`.
    ///
    /// # Panics
    /// Where an image takes no page.
    pub fn new(pages_max: Pages, units: Pages) -> Self {
        assert!(units.get() > 0, "an image takes a page at least");
        Self {
            units: units.get(),
            tree: Tree::new(pages_max),
            directory: Directory::new(pages_max, units.get()),
            sights: Sights::new(pages_max),
            thrift: Thrift::new(),
            asked: 0,
            admissions: 0,
            planned: None,
        }
    }

    /// How far a path is known. No further than `cap` blocks.
    fn known(&self, keys: &PromptKeys, cap: usize) -> Known {
        let mut known = Known { blocks: 0, onward: Onward::Nothing };
        for index in 0..cap {
            let Some(onward) = self.sights.onward(keys.key(index)) else { break };
            known = Known { blocks: index + 1, onward };
        }
        known
    }

    /// An image was asked for.
    fn read(&mut self, entry: EntryIndex) {
        self.thrift.read(account(self.directory.reason(entry)));
        self.directory.read(entry);
        self.appraise(entry);
    }

    /// Puts a resident's bargain right.
    fn appraise(&mut self, entry: EntryIndex) {
        if let Some(Resident { node, bargain, .. }) = self.directory.resident(entry) {
            let now = Bargain::of(self.tree.bundle(node), self.units);
            if now != bargain {
                self.directory.update(entry, |resident| resident.bargain = now);
            }
        }
    }

    /// Moves the clock on by `pages`; an epoch is a fixed part of a pool of `total` pages.
    fn tick(&mut self, pages: u64, total: u64) {
        let epoch = (total / u64::from(EPOCHS_PER_POOL)).max(1);
        self.asked += pages;
        while self.asked >= epoch {
            self.asked -= epoch;
            self.directory.advance();
        }
    }

    /// The boundary that a path asks for: others went on from its last known block to something else,
    /// so it is a prefix with several tails.
    fn demand(&mut self, request: &PlanRequest<'_>, known: &Known) -> Option<Boundary> {
        let PlanRequest { keys, hit, cap, pages, grid } = *request;
        let block = keys.block();
        let blocks = Pages::new(u32::try_from(known.blocks).expect("blocks of a request fit u32"));
        let resumed = block.blocks_floor(hit.resumable.tokens());
        let boundary = block.boundary_after(blocks);
        if known.onward == Onward::Nothing || boundary >= cap || blocks <= resumed {
            return None;
        }
        // An image of the grid would have been read.
        if grid.is_some_and(|step| blocks.get() / step.get() > resumed.get() / step.get()) {
            self.thrift.read(Account::Hedge);
        }
        let key = keys.key(known.blocks - 1);
        self.want(key, KeepReason::Demand, known.blocks, pages);
        match self.thrift.spending(Account::Demand) {
            Spending::Paying => Some(boundary),
            Spending::Thrifty { .. } => None,
        }
    }

    /// What is kept of the request's own path: its end, for whoever sends the same again or goes on
    /// from it, and the grid, for whoever leaves it on the way.
    fn ahead(
        &mut self,
        request: &PlanRequest<'_>,
        known: &Known,
        last: Option<EntryIndex>,
    ) -> Scope {
        let PlanRequest { keys, cap, pages, .. } = *request;
        let cap = keys.block().blocks_floor(cap.tokens()).index();
        let fresh = cap.saturating_sub(known.blocks);
        if cap > 0 {
            let anchor = keys.key(cap - 1);
            if let Some(before) = last
                && self.directory.find(anchor).is_none()
            {
                self.directory.pass(before);
            }
            self.want(anchor, KeepReason::Anchor, fresh, pages);
        }
        self.thrift.want(Account::Hedge, fresh as u64, pages, self.admissions);
        let grid = match self.thrift.spending(Account::Hedge) {
            Spending::Paying => Grid::Kept,
            Spending::Thrifty { .. } => Grid::Skipped,
        };
        match self.thrift.spending(Account::Ahead) {
            Spending::Paying => Scope::Ahead(grid),
            Spending::Thrifty { .. } => Scope::Asked,
        }
    }

    /// An image for `key` is wanted, with `blocks` blocks that would be kept for it.
    fn want(&mut self, key: ContentKey, reason: KeepReason, blocks: usize, pool: Pages) {
        if self.directory.find(key).is_none() {
            self.directory.want(key, reason);
            let bundle = blocks as u64 + u64::from(self.units);
            self.thrift.want(account(reason), bundle, pool, self.admissions);
        }
    }

    fn ready(
        &mut self,
        key: ContentKey,
        checkpoint: CheckpointId,
        page: PageId,
        reason: KeepReason,
    ) {
        let entry = self.directory.find(key).unwrap_or_else(|| self.directory.want(key, reason));
        let node = self.tree.node(page).expect("the key of a READY image is found");
        let before = self.tree.image_before(node);
        let other = self.tree.cover(node, entry);
        let bargain = Bargain::of(self.tree.bundle(node), self.units);
        self.directory.settle(entry, Resident { checkpoint, node, pins: 0, bargain });
        if let Some(before) = before {
            self.directory.pass(before);
            self.appraise(before);
        }
        if let Some(other) = other {
            self.appraise(other);
        }
    }

    /// The resident entry of a record, unless the record was taken away and the key stored anew.
    fn resident_of(&self, key: ContentKey, id: CheckpointId) -> Option<(EntryIndex, Resident)> {
        let entry = self.directory.find(key)?;
        let resident = self.directory.resident(entry)?;
        (resident.checkpoint == id).then_some((entry, resident))
    }

    /// Loose pages that are not part of the plan already; a plan holds fewer pages than an image.
    fn loose_pages(&self, view: &VictimView<'_>) -> impl Iterator<Item = PageId> {
        self.tree.loose_pages().filter(|&page| view.is_eligible(Victim::Page(page)))
    }

    /// What a new image may have: nothing but vacant pages where its account does not pay; else loose
    /// pages, and of images those that are worth less than it.
    fn for_store(&mut self, view: &VictimView<'_>, store: StorePurpose) -> Option<Victim> {
        let StorePurpose { key, boundary, reason } = store;
        if !self.pays(reason) {
            return None;
        }
        if let Some(page) = self.loose_pages(view).next() {
            return Some(Victim::Page(page));
        }
        let bundle = match view.page(key).and_then(|page| self.tree.node(page)) {
            Some(node) => self.tree.bundle(node),
            // Its blocks are computed and not reported yet.
            None => Bundle { saves: view.blocks(boundary), alone: view.blocks(boundary) },
        };
        let entry = self.directory.find(key).unwrap_or_else(|| self.directory.want(key, reason));
        let own = self.directory.level(entry, Bargain::of(bundle, self.units));
        let (cheapest, level) = self.directory.cheapest()?;
        (own > level).then(|| self.checkpoint(cheapest))
    }

    /// Whether anything is given up for an image.
    fn pays(&self, reason: KeepReason) -> bool {
        self.thrift.spending(account(reason)) == Spending::Paying
    }

    fn checkpoint(&self, ranked: EntryIndex) -> Victim {
        let resident = self.directory.resident(ranked).expect("what is ranked is resident");
        Victim::Checkpoint(resident.checkpoint)
    }
}

impl VictimPolicy for Statepages {
    fn plan(&mut self, request: &PlanRequest<'_>) -> KeepPlan {
        let PlanRequest { keys, hit, cap, pages, .. } = *request;
        let block = keys.block();
        self.admissions += 1;
        let asked = block.blocks_ceil(hit.full).get();
        self.tick(u64::from(asked + self.units), u64::from(pages.get()));
        let cap = block.blocks_floor(cap.tokens()).index();
        let known = self.known(keys, cap);
        let last = (0..cap).rev().find_map(|index| self.directory.find(keys.key(index)));
        self.planned = last;
        if let Some(entry) = last {
            self.read(entry);
        }
        for index in 0..keys.blocks() {
            self.sights.see(keys.key(index), keys.parent(index));
        }
        let scope = self.ahead(request, &known, last);
        KeepPlan { demand: self.demand(request, &known), scope }
    }

    fn notice(&mut self, notice: &Notice) {
        match *notice {
            Notice::Ready { checkpoint, key, page, reason, .. } => {
                self.ready(key, checkpoint, page, reason);
            }
            Notice::Hit { checkpoint, key, .. } => {
                let (entry, _) = self.resident_of(key, checkpoint).expect("a READY image is known");
                self.directory.update(entry, |resident| resident.pins += 1);
                if self.planned.take() != Some(entry) {
                    self.read(entry);
                }
            }
            Notice::Unpinned { checkpoint, key } => {
                if let Some((entry, _)) = self.resident_of(key, checkpoint) {
                    self.directory.update(entry, |resident| resident.pins -= 1);
                }
            }
            Notice::Removed { checkpoint, key, .. } => {
                let (entry, resident) =
                    self.resident_of(key, checkpoint).expect("a READY image is known");
                let other = self.tree.uncover(resident.node);
                self.directory.vanish(entry);
                if let Some(other) = other {
                    self.appraise(other);
                }
            }
            Notice::Found { page, parent, depth, .. } => self.tree.found(page, parent, depth),
            Notice::Moved { from, to } => self.tree.moved(from, to),
            Notice::Lost { page } => self.tree.lost(page),
            Notice::Cached { page, .. } => self.tree.cached(page),
            Notice::Uncached { page } => self.tree.uncached(page),
            Notice::Cleared => self.tree.clear(),
        }
    }

    fn next_victim(&mut self, view: &VictimView<'_>, purpose: Purpose) -> Option<Victim> {
        match purpose {
            Purpose::Store(store) => self.for_store(view, store),
            Purpose::Live => {
                if let Some(page) = self.loose_pages(view).next() {
                    return Some(Victim::Page(page));
                }
                let (cheapest, _) = self.directory.cheapest()?;
                Some(self.checkpoint(cheapest))
            }
        }
    }

    fn next_pages(
        &mut self,
        view: &VictimView<'_>,
        purpose: Purpose,
        most: usize,
        pages: &mut Vec<PageId>,
    ) {
        let pays = match purpose {
            Purpose::Live => true,
            Purpose::Store(store) => self.pays(store.reason),
        };
        if pays {
            pages.extend(self.loose_pages(view).take(most));
        }
    }

    fn report(&self) -> Option<PolicyReport> {
        let ghosts = self.directory.bytes() + self.sights.bytes();
        Some(PolicyReport {
            bytes: Bytes::new(ghosts + self.tree.bytes()),
            ghost_bytes: Bytes::new(ghosts),
            ahead: self.thrift.spending(Account::Ahead),
            demand: self.thrift.spending(Account::Demand),
            loose: Pages::new(self.tree.loose()),
        })
    }

    fn check(&self) {
        self.tree.check();
        self.directory.check();
    }
}

const fn account(reason: KeepReason) -> Account {
    match reason {
        KeepReason::Demand => Account::Demand,
        KeepReason::Grid => Account::Hedge,
        KeepReason::Anchor | KeepReason::PromptEnd | KeepReason::DecodeSpacing => Account::Ahead,
    }
}

#[cfg(test)]
mod tests;
