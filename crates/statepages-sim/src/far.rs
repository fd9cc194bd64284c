//! The far side of remote loads: a connector that counts, and that writes where it may.
//!
//! A load's slot and pages are its own from the moment that the batches in flight at its start are
//! reported until its first completion, called off or not. Within that time the far side writes noise
//! into them now and then, as one would that writes from elsewhere and not in order; so whoever uses
//! the memory before it is due, or does not land all of it, reads noise.

use statepages_engine::{Connector, DelayedConnector, Load, LoadDone, LoadId, LoadQuery};
use statepages_page::{BatchId, Boundary, PageId, SlotId};

use crate::oracle::Remote;
use crate::random::{Random, mix};

/// Turns of a hundred in which the far side writes into a load's memory.
const WRITES: u64 = 30;

/// Memory that the far side may write.
#[derive(Clone, Debug)]
pub(crate) struct Lent {
    id: LoadId,
    /// The youngest batch that may still touch it.
    behind: Option<BatchId>,
    pub(crate) slot: SlotId,
    pub(crate) pages: Vec<PageId>,
}

pub(crate) struct FarSide {
    pub(crate) inner: DelayedConnector<Remote>,
    pub(crate) completions: u64,
    /// Requests of a hundred that are offered a load.
    offers: u64,
    silent: bool,
    lent: Vec<Lent>,
    draws: Random,
}

impl FarSide {
    pub(crate) fn new(
        inner: DelayedConnector<Remote>,
        offers: u64,
        silent: bool,
        draws: Random,
    ) -> Self {
        Self { inner, completions: 0, offers, silent, lent: Vec::new(), draws }
    }

    /// Memory that it writes into before the next turn; `oldest` is the oldest batch in flight.
    pub(crate) fn writes(&mut self, oldest: Option<BatchId>) -> Vec<Lent> {
        let draws = &mut self.draws;
        let begun = |lent: &Lent| lent.behind < oldest || oldest.is_none();
        self.lent.iter().filter(|lent| begun(lent) && draws.percent(WRITES)).cloned().collect()
    }
}

impl Connector for FarSide {
    fn offer(&mut self, query: &LoadQuery<'_>) -> Option<Boundary> {
        if mix(query.request.raw()) % 100 >= self.offers {
            return None;
        }
        self.inner.offer(query)
    }

    fn start(&mut self, load: &Load<'_>) {
        let &Load { id, behind, slot, pages, .. } = load;
        self.lent.push(Lent { id, behind, slot, pages: pages.to_vec() });
        self.inner.start(load);
    }

    fn cancel(&mut self, id: LoadId) {
        self.inner.cancel(id);
    }

    fn poll(&mut self) -> Option<LoadDone> {
        if self.silent {
            return None;
        }
        let done = self.inner.poll()?;
        self.completions += 1;
        self.lent.retain(|lent| lent.id != done.id);
        Some(done)
    }
}
