//! Remote loads: the seam to another machine's (or another tier's) pages and states.
//!
//! ```text
//! offer -> start -> (time passes) -> poll: Loaded | Failed
//!                        \-> cancel -> poll: Failed, or Loaded all the same
//! ```
//!
//! Rules
//! - A load is named by a [`LoadId`] that is never used again, so a completion that comes late,
//!   twice or for a request long gone is recognised and does nothing.
//! - A connector delivers bytes; the engine lands them, once no batch in flight touches slot or pages.
//! - Slot and pages given to `start` stay claimed until the load's first completion, even if the
//!   request is aborted: a deadline passed is no proof that the other side has stopped writing. A far
//!   side that writes into them by itself begins once [`Load::behind`] is reported.
//! - A completion after a cancel frees the memory and nothing else: it cannot turn the failure back
//!   into a success.
//! - The engine alone calls a connector; completions reach it as events of its loop.

use statepages_page::{BatchId, Boundary, DomainTag, PageId, RequestId, SlotId};

use crate::runner::RemoteState;

/// One remote load. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LoadId(u64);

impl LoadId {
    /// Wraps a raw number.
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// The raw number.
    pub const fn raw(self) -> u64 {
        self.0
    }
}

/// What a connector is asked: how far into these tokens can you reach?
#[derive(Clone, Copy, Debug)]
pub struct LoadQuery<'a> {
    /// The request.
    pub request: RequestId,
    /// Its domain: nothing of another domain may be offered.
    pub domain: DomainTag,
    /// All its tokens.
    pub tokens: &'a [u32],
    /// Where it resumes without the connector.
    pub local: Boundary,
    /// The furthest boundary that is of use: at least one token stays to be computed.
    pub limit: Boundary,
}

/// One load to be started.
#[derive(Clone, Debug)]
pub struct Load<'a> {
    /// Its name.
    pub id: LoadId,
    /// The request it is for.
    pub request: RequestId,
    /// The request's domain.
    pub domain: DomainTag,
    /// The tokens up to `to`.
    pub tokens: &'a [u32],
    /// First position that is loaded.
    pub from: Boundary,
    /// The position whose state is loaded; pages are loaded for `from .. to`.
    pub to: Boundary,
    /// The slot that will hold the state.
    pub slot: SlotId,
    /// The pages of `from .. to`, in block order.
    pub pages: &'a [PageId],
    /// The youngest batch in flight, which may still read slot and pages for whoever held them before.
    pub behind: Option<BatchId>,
}

/// How a load ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LoadOutcome {
    /// Everything has arrived; the bytes wait to be landed.
    Loaded(RemoteState),
    /// It has stopped, and nothing of it will be written any more.
    Failed,
}

/// A completion.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadDone {
    /// Which load.
    pub id: LoadId,
    /// How it ended.
    pub outcome: LoadOutcome,
}

/// Loads pages and states from elsewhere.
pub trait Connector {
    /// The boundary that could be loaded, where that is beyond `query.local` and not beyond
    /// `query.limit`. Asking starts nothing.
    fn offer(&mut self, query: &LoadQuery<'_>) -> Option<Boundary>;

    /// Starts a load that was offered.
    fn start(&mut self, load: &Load<'_>);

    /// Asks for a load to stop. Its completion still comes, unless the other side is lost.
    fn cancel(&mut self, id: LoadId);

    /// The next completion. Called once or more in every step until it answers `None`.
    fn poll(&mut self) -> Option<LoadDone>;
}

/// No remote side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoConnector;

impl Connector for NoConnector {
    fn offer(&mut self, _: &LoadQuery<'_>) -> Option<Boundary> {
        None
    }

    fn start(&mut self, _: &Load<'_>) {
        unreachable!("nothing was offered");
    }

    fn cancel(&mut self, _: LoadId) {
        unreachable!("nothing was started");
    }

    fn poll(&mut self) -> Option<LoadDone> {
        None
    }
}
