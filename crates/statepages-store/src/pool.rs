//! The page pool: who owns each page.
//!
//! ```text
//!             hold_vacant                 share
//!   Vacant ----------------> Held ----------------> Live(shares) <--+
//!     ^  ^                   |  ^                     |    |        | claim
//!     |  |                   |  | set_aside           |    +--------+
//!     |  |                   |  | (put_back undoes)   | unshare, last share
//!     |  |  vacate           |  |                     |
//!     |  +---------------- Cached <-------------------+ (or Vacant, where no index finds it)
//!     |                      |  claim --> Live
//!     |  release_units       v
//!     +---------------------- Raw(owner, piece) <-- Held   (make_units)
//! ```
//!
//! Invariants:
//! - `vacant + cached + held + live + raw == total`;
//! - a vacant page is taken lowest id first; cached pages are ordered by when they became free;
//! - a raw unit belongs to one checkpoint as one piece, and only its owner, giving back all its
//!   pieces in order, frees it; extending and retiring never touch one;
//! - nothing is called back: what an operation costs is answered as a value.
//!
//! Called by the control plane and, for raw units, by the checkpoint store.

use statepages_page::{CheckpointId, PageId, Pages};

use crate::audit::Names;
use crate::id_set::IdSet;
use crate::order::Order;

/// Pages and their owners.
#[derive(Debug)]
pub struct PagePool {
    pages: Vec<Page>,
    total: u32,
    vacant: IdSet,
    cached: Order,
    held: u32,
    live: u32,
    raw: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    Vacant,
    Cached,
    Held,
    Live { shares: u32 },
    Raw { owner: CheckpointId, piece: u32 },
}

/// What a page becomes when its last share goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Afterlife {
    /// An index finds its content.
    Cached,
    /// Nothing does.
    Vacant,
}

/// What claiming a page did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Another request holds it, too.
    Shared,
    /// It was cached.
    Revived,
}

/// What giving up a share did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unshare {
    /// Somebody else still holds the page.
    Shared,
    /// The page is free.
    Freed,
}

/// What became of the highest page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum RetireTop {
    /// It was vacant and has left the pool.
    Retired(PageId),
    /// It was cached and has left the pool; its index entry has to go.
    Evicted(PageId),
    /// It was live; a vacant page has taken over its shares. The index follows, and whoever lists
    /// the page does.
    Moved {
        /// The page that has left the pool.
        from: PageId,
        /// The page that has its shares.
        to: PageId,
    },
    /// It is a raw unit, held, or live with no vacant page to move to.
    Refused(PageId),
    /// There is no page.
    Empty,
}

impl PagePool {
    /// `pages` vacant pages, and room for `pages_max`.
    pub fn new(pages: Pages, pages_max: Pages) -> Self {
        let mut vacant = IdSet::new(pages_max.get());
        for id in 0..pages.get() {
            vacant.insert(id);
        }
        Self {
            pages: vec![Page::Vacant; pages_max.index()],
            total: pages.get(),
            vacant,
            cached: Order::new(pages_max.get()),
            held: 0,
            live: 0,
            raw: 0,
        }
    }

    /// Pages of the pool.
    pub const fn total(&self) -> u32 {
        self.total
    }

    /// Free pages without content.
    pub const fn vacant(&self) -> u32 {
        self.vacant.len()
    }

    /// Free pages with content.
    pub const fn cached(&self) -> u32 {
        self.cached.len()
    }

    /// Pages taken and not yet given content.
    pub const fn held(&self) -> u32 {
        self.held
    }

    /// Pages with shares.
    pub const fn live(&self) -> u32 {
        self.live
    }

    /// Pages that are pieces of an image.
    pub const fn raw(&self) -> u32 {
        self.raw
    }

    /// Pages that can be had without asking the checkpoint store.
    pub const fn free(&self) -> u32 {
        self.vacant() + self.cached()
    }

    /// Whether a page is free and has content.
    pub fn is_cached(&self, page: PageId) -> bool {
        self.pages[page.index()] == Page::Cached
    }

    /// The cached page that was freed longest ago.
    pub fn oldest_cached(&self) -> Option<PageId> {
        self.cached.first().map(PageId::new)
    }

    /// Cached pages, the one freed longest ago ahead.
    pub(crate) fn cached_pages(&self) -> impl Iterator<Item = PageId> {
        self.cached.iter().map(PageId::new)
    }

    /// Takes the lowest vacant page.
    pub fn hold_vacant(&mut self) -> Option<PageId> {
        let id = self.vacant.take_first()?;
        self.pages[id as usize] = Page::Held;
        self.held += 1;
        Some(PageId::new(id))
    }

    /// Takes the given vacant page.
    pub fn hold(&mut self, page: PageId) {
        let state = &mut self.pages[page.index()];
        assert_eq!(*state, Page::Vacant, "{page} is vacant");
        *state = Page::Held;
        self.vacant.remove(page.raw());
        self.held += 1;
    }

    /// Takes a cached page out of the order, so that a plan may count on it.
    pub fn set_aside(&mut self, page: PageId) {
        self.set_aside_all(&[page]);
    }

    /// [`Self::set_aside`] of each page, in order.
    pub(crate) fn set_aside_all(&mut self, pages: &[PageId]) {
        for page in pages {
            let state = &mut self.pages[page.index()];
            assert_eq!(*state, Page::Cached, "{page} is cached");
            *state = Page::Held;
        }
        self.cached.remove_all(pages, PageId::raw);
        self.held += u32::try_from(pages.len()).expect("page ids fit u32");
    }

    /// Undoes, for one page, the latest [`Self::set_aside`] that has not been undone.
    pub(crate) fn put_back(&mut self, page: PageId) {
        self.leave_held(page, Page::Cached);
        self.cached.put_back(page.raw());
    }

    /// Takes back held pages that have no content, and leaves the list empty.
    pub(crate) fn vacate_held(&mut self, held: &mut Vec<PageId>) {
        for page in held.drain(..) {
            self.leave_held(page, Page::Vacant);
            self.vacant.insert(page.raw());
        }
    }

    /// Makes `held` the `count` lowest of its own pages, which are held and have no content, and the
    /// vacant ones. What is left of either is vacant.
    ///
    /// # Panics
    /// Where there are fewer.
    pub(crate) fn hold_lowest(&mut self, count: u32, held: &mut Vec<PageId>) {
        if self.vacant() == 0 && held.len() == count as usize {
            // The usual end of a plan for an image: there is nothing to choose from.
            sort_distinct(held);
            return;
        }
        self.vacate_held(held);
        let pages = &mut self.pages;
        self.vacant.take_lowest(count, |id| {
            pages[id as usize] = Page::Held;
            held.push(PageId::new(id));
        });
        self.held += count;
    }

    /// Gives up the content of a cached page.
    pub fn vacate(&mut self, page: PageId) {
        self.leave_cached(page, Page::Vacant);
        self.vacant.insert(page.raw());
    }

    /// Gives a held page its first share.
    pub fn share(&mut self, page: PageId) {
        self.leave_held(page, Page::Live { shares: 1 });
        self.live += 1;
    }

    /// Adds a share to a page whose content is wanted.
    pub fn claim(&mut self, page: PageId) -> Claim {
        match &mut self.pages[page.index()] {
            Page::Live { shares } => {
                *shares = shares.checked_add(1).expect("shares fit u32");
                Claim::Shared
            }
            Page::Cached => {
                self.leave_cached(page, Page::Live { shares: 1 });
                self.live += 1;
                Claim::Revived
            }
            other => panic!("{page} has no content to claim: {other:?}"),
        }
    }

    /// Gives up a share.
    pub fn unshare(&mut self, page: PageId, afterlife: Afterlife) -> Unshare {
        let Page::Live { shares } = &mut self.pages[page.index()] else {
            panic!("{page} is not live: {:?}", self.pages[page.index()]);
        };
        if *shares > 1 {
            *shares -= 1;
            return Unshare::Shared;
        }
        self.live -= 1;
        match afterlife {
            Afterlife::Cached => {
                self.pages[page.index()] = Page::Cached;
                self.cached.push_back(page.raw());
            }
            Afterlife::Vacant => {
                self.pages[page.index()] = Page::Vacant;
                self.vacant.insert(page.raw());
            }
        }
        Unshare::Freed
    }

    /// Makes held pages the pieces of an image, in order.
    pub fn make_units(&mut self, units: &[PageId], owner: CheckpointId) {
        for (piece, page) in (0u32..).zip(units) {
            let state = &mut self.pages[page.index()];
            assert_eq!(*state, Page::Held, "{page} is held");
            *state = Page::Raw { owner, piece };
        }
        let count = u32::try_from(units.len()).expect("units of an image fit u32");
        self.held -= count;
        self.raw += count;
    }

    /// Frees all pieces of an image.
    ///
    /// # Panics
    /// Before anything is freed, where a unit is not its owner's piece of that number.
    pub fn release_units(&mut self, units: &[PageId], owner: CheckpointId) {
        for (piece, page) in (0u32..).zip(units) {
            let state = self.pages[page.index()];
            assert_eq!(state, Page::Raw { owner, piece }, "{page} is piece {piece} of {owner}");
        }
        for page in units {
            self.pages[page.index()] = Page::Vacant;
            self.vacant.insert(page.raw());
        }
        self.raw -= u32::try_from(units.len()).expect("units of an image fit u32");
    }

    /// Adds up to `count` pages at the top and says how many.
    pub fn extend(&mut self, count: Pages) -> Pages {
        let room = u32::try_from(self.pages.len()).expect("page ids fit u32") - self.total;
        let taken = count.get().min(room);
        for id in self.total..self.total + taken {
            self.vacant.insert(id);
        }
        self.total += taken;
        Pages::new(taken)
    }

    /// Takes the highest page out of the pool.
    pub fn retire_top(&mut self) -> RetireTop {
        let Some(top) = self.total.checked_sub(1) else { return RetireTop::Empty };
        let page = PageId::new(top);
        let answer = match self.pages[page.index()] {
            Page::Raw { .. } | Page::Held => return RetireTop::Refused(page),
            Page::Vacant => {
                self.vacant.remove(top);
                RetireTop::Retired(page)
            }
            Page::Cached => {
                self.leave_cached(page, Page::Vacant);
                RetireTop::Evicted(page)
            }
            live @ Page::Live { .. } => {
                let Some(to) = self.vacant.first() else { return RetireTop::Refused(page) };
                self.vacant.remove(to);
                self.pages[to as usize] = live;
                self.pages[page.index()] = Page::Vacant;
                RetireTop::Moved { from: page, to: PageId::new(to) }
            }
        };
        self.total = top;
        answer
    }

    fn leave_held(&mut self, page: PageId, to: Page) {
        let state = &mut self.pages[page.index()];
        assert_eq!(*state, Page::Held, "{page} is held");
        *state = to;
        self.held -= 1;
    }

    fn leave_cached(&mut self, page: PageId, to: Page) {
        let state = &mut self.pages[page.index()];
        assert_eq!(*state, Page::Cached, "{page} is cached");
        *state = to;
        self.cached.remove(page.raw());
    }

    /// Whether a page is free and has no content.
    pub fn is_vacant(&self, page: PageId) -> bool {
        page.raw() < self.total && self.pages[page.index()] == Page::Vacant
    }

    /// Whether a page is taken and not yet given content.
    pub fn is_held(&self, page: PageId) -> bool {
        self.pages[page.index()] == Page::Held
    }

    /// Owner and piece number of a raw unit.
    pub fn raw_owner(&self, page: PageId) -> Option<(CheckpointId, u32)> {
        match self.pages[page.index()] {
            Page::Raw { owner, piece } => Some((owner, piece)),
            _ => None,
        }
    }

    /// Shares of a live page, zero for any other.
    pub fn shares(&self, page: PageId) -> u32 {
        match self.pages[page.index()] {
            Page::Live { shares } => shares,
            _ => 0,
        }
    }

    /// Appends the order of cached pages.
    pub(crate) fn canonical(&self, names: &mut Names, out: &mut Vec<u64>) {
        out.push(u64::from(self.total));
        out.extend(self.cached.iter().map(|page| names.page(PageId::new(page))));
        out.push(u64::MAX);
    }

    /// A page's state as a number. Whose piece a raw unit is, the records say.
    pub(crate) fn code(&self, page: PageId) -> u64 {
        match self.pages[page.index()] {
            Page::Vacant => 0,
            Page::Cached => 1,
            Page::Held => 2,
            Page::Live { shares } => 3 | u64::from(shares) << 8,
            Page::Raw { .. } => 4,
        }
    }

    /// Audits the counts against the pages in O(n).
    pub fn check(&self) {
        let mut counts = [0u32; 5];
        for (id, page) in (0u32..).zip(&self.pages) {
            if id >= self.total {
                assert_eq!(*page, Page::Vacant, "p{id} lies outside the pool");
                assert!(!self.vacant.contains(id), "p{id} lies outside the pool");
                continue;
            }
            assert_eq!(self.vacant.contains(id), *page == Page::Vacant, "p{id} in the vacant set");
            counts[match page {
                Page::Vacant => 0,
                Page::Cached => 1,
                Page::Held => 2,
                Page::Live { shares } => {
                    assert!(*shares > 0, "p{id} is live without a share");
                    3
                }
                Page::Raw { .. } => 4,
            }] += 1;
        }
        let sum = self.vacant() + self.cached() + self.held + self.live + self.raw;
        assert_eq!(sum, self.total, "every page has one owner");
        assert_eq!(
            counts,
            [self.vacant(), self.cached(), self.held, self.live, self.raw],
            "counts of vacant, cached, held, live and raw pages"
        );
        let linked: Vec<u32> = self.cached.iter().collect();
        assert_eq!(linked.len(), counts[1] as usize);
        assert!(linked.iter().all(|&id| self.pages[id as usize] == Page::Cached));
    }
}

/// Sorts pages of which none is there twice.
fn sort_distinct(pages: &mut [PageId]) {
    const FEW: usize = 32;
    let mut copy = [PageId::new(0); FEW];
    let Some(copy) = copy.get_mut(..pages.len()) else {
        pages.sort_unstable();
        return;
    };
    copy.copy_from_slice(pages);
    // A page's place is the number of those below it: counted without a branch, because nothing
    // foretells how pages that were freed at random compare.
    for &page in &*copy {
        let below: u32 = copy.iter().map(|other| u32::from(other.raw() < page.raw())).sum();
        pages[below as usize] = page;
    }
}

#[cfg(test)]
mod tests;
