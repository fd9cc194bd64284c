//! The policies that can be compared: who is given up, where state is kept, what a batch mixes.

use std::collections::BTreeMap;

use statepages_engine::Passes;
use statepages_page::{BlockSize, CheckpointId, PageId, Pages, Tokens};
use statepages_store::{
    CheckpointInterval, KeepPlan, Notice, PlanRequest, PolicyReport, Purpose, ReferenceOrder,
    Statepages, Victim, VictimPolicy, VictimView,
};

/// Spacing of the grid where nothing else is said.
const GRID: Tokens = Tokens::new(8_192);

/// A policy by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// As the published system: state on a grid of 8,192 tokens and where an admission found blocks
    /// without state; cached KV is given up before any checkpoint, each least recently used first;
    /// prefill and decode are never in one batch.
    Reference,
    /// State at every reason that placement has; pages and checkpoints are given up in one order, the
    /// least recently used first.
    Lru,
    /// The project's own: images ranked by the reads that their class gives at their age, loose blocks
    /// first, and nothing cut or given up for images that go unread.
    Statepages,
}

impl Policy {
    /// Its name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::Lru => "lru",
            Self::Statepages => "statepages",
        }
    }

    /// Its victims, for a pool of `pages` and images of `units`.
    pub(crate) fn victims(self, pages: Pages, units: Pages) -> Box<dyn VictimPolicy> {
        match self {
            Self::Reference => Box::new(ReferenceOrder),
            Self::Lru => Box::new(RecencyOrder::new(pages)),
            Self::Statepages => Box::new(Statepages::new(pages, units)),
        }
    }

    /// Where it keeps state.
    pub(crate) fn interval(self, block: BlockSize) -> CheckpointInterval {
        let grid = block.blocks_floor(GRID).max(Pages::new(1));
        match self {
            Self::Reference => CheckpointInterval::GridAndDemand(grid),
            Self::Lru | Self::Statepages => CheckpointInterval::Grid(grid),
        }
    }

    /// What its batches mix.
    pub(crate) const fn passes(self) -> Passes {
        match self {
            Self::Reference => Passes::PrefillFirst,
            Self::Lru | Self::Statepages => Passes::Mixed,
        }
    }
}

/// Pages and checkpoints in one order of last use: a page's is when it was freed, a checkpoint's
/// when it became READY or was resumed from.
#[derive(Debug)]
struct RecencyOrder {
    uses: u64,
    pages: Vec<u64>,
    checkpoints: BTreeMap<CheckpointId, u64>,
}

impl RecencyOrder {
    fn new(pages: Pages) -> Self {
        Self { uses: 0, pages: vec![0; pages.index()], checkpoints: BTreeMap::new() }
    }

    fn page(&self, page: PageId) -> u64 {
        self.pages[page.index()]
    }
}

impl VictimPolicy for RecencyOrder {
    fn notice(&mut self, notice: &Notice) {
        self.uses += 1;
        match *notice {
            Notice::Ready { checkpoint, .. } | Notice::Hit { checkpoint, .. } => {
                self.checkpoints.insert(checkpoint, self.uses);
            }
            Notice::Removed { checkpoint, .. } => {
                self.checkpoints.remove(&checkpoint);
            }
            Notice::Cached { page, .. } => self.pages[page.index()] = self.uses,
            _ => {}
        }
    }

    fn next_victim(&mut self, view: &VictimView<'_>, _: Purpose) -> Option<Victim> {
        match (view.oldest_page(), view.oldest_checkpoint()) {
            (Some(page), Some(checkpoint)) if self.page(page) < self.checkpoints[&checkpoint] => {
                Some(Victim::Page(page))
            }
            (_, Some(checkpoint)) => Some(Victim::Checkpoint(checkpoint)),
            (page, None) => page.map(Victim::Page),
        }
    }

    fn plan(&mut self, request: &PlanRequest<'_>) -> KeepPlan {
        KeepPlan::reference(&request.hit)
    }

    fn report(&self) -> Option<PolicyReport> {
        None
    }

    fn check(&self) {
        let used = self.pages.iter().chain(self.checkpoints.values());
        assert!(used.max() <= Some(&self.uses), "a use lies ahead of its count");
    }
}
