//! The facade: one owner of pool, index, store and slots.

use statepages_page::{
    Boundary, ContentKey, DomainTag, MaintenanceOps, PageId, Pages, SlotId, Tokens,
};

use crate::admission::{Admit, AdmitRequest, Hit, Lost};
use crate::config::{ConfigError, ControlPlaneConfig};
use crate::counters::{Counters, Gauges};
use crate::events::EventDrain;
use crate::keys::PromptKeys;
use crate::placement::{KeepReason, Placement};
use crate::receipt::{Outcome, Receipt};
use crate::residency::{Residency, Scratch};
use crate::victim::VictimPolicy;

/// The control plane. See the crate's head for the order of calls in a step.
#[derive(Debug)]
pub struct ControlPlane {
    config: ControlPlaneConfig,
}

/// The answer to a request for one more page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Append {
    /// The page is the last of the residency's table.
    Done(PageId),
    /// No page can be had; nothing was given up.
    NoRoom,
}

/// The answer to a filed boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filed {
    /// It waits for the next drain.
    Pending,
    /// The same request had filed the same key; that entry has been replaced.
    Replaced,
    /// Checkpoints are off; nothing is counted.
    Off,
}

/// What became of a released residency's slot and pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// They are free.
    Free,
    /// They are free once the batches in flight that touch them are settled.
    Fenced,
}

/// The answer to a request to move a residency to another slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Relocate {
    /// The next drain carries the move; the residency already names its new slot.
    Queued {
        /// The slot it leaves, free once that batch is settled.
        from: SlotId,
        /// The slot it gets.
        to: SlotId,
    },
    /// No slot is free.
    NoSlot,
}

/// The answer to a request to shrink the pool by its highest page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Retire {
    /// The page has left the pool.
    Retired(PageId),
    /// The page is in use by a request, an image or a batch in flight.
    Busy(PageId),
    /// The pool is empty.
    Empty,
}

impl ControlPlane {
    /// Builds a control plane and allocates everything it will ever need.
    pub fn new(
        config: ControlPlaneConfig,
        policy: Box<dyn VictimPolicy>,
    ) -> Result<Self, ConfigError> {
        drop(policy);
        Ok(Self { config })
    }

    /// What it was built from.
    pub const fn config(&self) -> &ControlPlaneConfig {
        &self.config
    }

    /// The placement rule.
    pub fn placement(&self) -> Placement {
        unimplemented!()
    }

    /// Units of one image; `None` where state is not copied.
    pub fn units_per_checkpoint(&self) -> Option<Pages> {
        self.config.runtime.spec().map(crate::CheckpointSpec::units_per_checkpoint)
    }

    /// How much of a prompt is there. Touches nothing.
    pub fn probe(&self, _keys: &PromptKeys) -> Hit {
        unimplemented!()
    }

    /// Decides and reserves, in one call: slot, pin, blocks that are found, fresh pages for all the
    /// other tokens. A refusal has taken and given up nothing.
    pub fn try_admit(&mut self, _request: &AdmitRequest<'_>) -> Result<Admit, Lost> {
        unimplemented!()
    }

    /// Takes one more page for a residency.
    pub fn append_block(&mut self, _residency: &mut Residency) -> Append {
        unimplemented!()
    }

    /// The one door out: normal finish, abort, preemption, failed remote load. Drops the pending
    /// boundary, cancels the queued restore, gives back pages and slot.
    pub fn release(&mut self, _residency: Residency) -> Released {
        unimplemented!()
    }

    /// Moves a residency to another free slot, the lowest.
    pub fn relocate(&mut self, _residency: &mut Residency) -> Relocate {
        unimplemented!()
    }

    /// Tokens whose forward has been built into some batch.
    pub fn scheduled(&self, _residency: &Residency) -> Tokens {
        unimplemented!()
    }

    /// Tokens whose forward is done and reported by [`Self::advance`].
    pub fn computed(&self, _residency: &Residency) -> Tokens {
        unimplemented!()
    }

    /// Reports that the first `computed` tokens are done and publishes the blocks they complete.
    /// `keys` holds at least these tokens. Call it after the batch is settled.
    ///
    /// # Panics
    /// Where `computed` lies before what was reported or beyond what was scheduled.
    pub fn advance(&mut self, _residency: &mut Residency, _keys: &PromptKeys, _computed: Tokens) {
        unimplemented!()
    }

    /// Reports that a remote load has written pages and slot up to `to`, without a batch: position
    /// and publication move there. A restore of the residency that is still queued is cancelled,
    /// because it would write an older state over the loaded one.
    ///
    /// # Panics
    /// Where `to` lies before what was scheduled.
    pub fn accept_load(&mut self, _residency: &mut Residency, _keys: &PromptKeys, _to: Boundary) {
        unimplemented!()
    }

    /// Files a boundary, to be stored from the residency's slot by the next drain. It is dropped
    /// there if the slot no longer stands at `boundary`. A newer boundary supersedes an older one.
    pub fn file(
        &mut self,
        _residency: &Residency,
        _boundary: Boundary,
        _key: ContentKey,
        _reason: KeepReason,
    ) -> Filed {
        unimplemented!()
    }

    /// Takes a slot for a forward to write an interior state into; `None` where no slot is free.
    pub fn reserve_scratch(
        &mut self,
        _residency: &Residency,
        _boundary: Boundary,
    ) -> Option<Scratch> {
        unimplemented!()
    }

    /// Files the boundary whose state the scratch slot holds. The slot is free again once the batch
    /// that carries the store is settled.
    pub fn file_scratch(
        &mut self,
        _scratch: Scratch,
        _key: ContentKey,
        _reason: KeepReason,
    ) -> Filed {
        unimplemented!()
    }

    /// Gives a scratch slot back unused.
    pub fn release_scratch(&mut self, _scratch: Scratch) -> Released {
        unimplemented!()
    }

    /// Starts a batch that really runs: clears `ops` and drains into it the relocations, the pending
    /// stores and the queued restores. Call it before [`Self::join`] of the batch's members.
    pub fn begin_batch(&mut self, _ops: &mut MaintenanceOps) -> Receipt {
        unimplemented!()
    }

    /// Makes a residency a member of the batch: its forward takes the request to `to` tokens.
    ///
    /// # Panics
    /// Where `to` lies before what was scheduled, or beyond the pages the residency has.
    pub fn join(&mut self, _receipt: &mut Receipt, _residency: &Residency, _to: Tokens) {
        unimplemented!()
    }

    /// Takes a batch's word: publishes its stores, returns its pins, frees what waited for it.
    pub fn settle(&mut self, _receipt: Receipt, _outcome: Outcome) {
        unimplemented!()
    }

    /// Empties the prefix index and the checkpoints. Queued and in-flight operations stay valid;
    /// none of the four fates moves.
    pub fn reset(&mut self) {
        unimplemented!()
    }

    /// Grows the pool by up to `count` pages and says by how many.
    pub fn extend(&mut self, _count: Pages) -> Pages {
        unimplemented!()
    }

    /// Shrinks the pool by its highest page, if that page is free.
    pub fn retire_top(&mut self) -> Retire {
        unimplemented!()
    }

    /// Pages a live request could have now. Exact, O(1), whatever the policy.
    pub fn available(&self) -> Pages {
        unimplemented!()
    }

    /// Running totals.
    pub fn counters(&self) -> Counters {
        unimplemented!()
    }

    /// What there is now.
    pub fn gauges(&self) -> Gauges {
        unimplemented!()
    }

    /// Takes the KV events since the last call.
    pub fn events(&mut self) -> EventDrain<'_> {
        unimplemented!()
    }

    /// Every block that a lookup finds: key, parent, domain and tokens, in the order of the pages.
    pub fn indexed(
        &self,
    ) -> impl Iterator<Item = (ContentKey, Option<ContentKey>, DomainTag, &[u32])> {
        std::iter::empty()
    }

    /// Audits everything in O(n).
    ///
    /// # Panics
    /// Where an invariant does not hold.
    pub fn check(&self) {
        unimplemented!()
    }
}
