//! Admission: one call that decides and reserves.
//!
//! | step | what | can it fail |
//! | --- | --- | --- |
//! | find | longest chain of found blocks, largest READY boundary in it | the promised one is gone: `Lost` |
//! | gate | a free slot; pages for all other blocks, the record to be read protected | refused, nothing taken |
//! | reserve | slot, pin, claims, fresh pages, in this order | no |

use statepages_page::{Boundary, PageId, Pages, Tokens};

use crate::admission::{Admit, AdmitReport, AdmitRequest, Hit, LossReason, Losses, Lost, Refusal};
use crate::checkpoint::RecordIndex;
use crate::config::Caching;
use crate::control::{ControlPlane, Images};
use crate::index::{Block, Trace};
use crate::keys::PromptKeys;
use crate::placement::Scope;
use crate::pool::Claim;
use crate::residency::Residency;
use crate::victim::{KeepPlan, Notice, PlanRequest};

/// What a prompt finds.
struct Found {
    hit: Hit,
    /// The record at `hit.resumable`; none where that is zero.
    record: Option<RecordIndex>,
}

impl ControlPlane {
    /// How much of a prompt is there. Touches nothing.
    ///
    /// # Panics
    /// Where the keys were made for another block size, or hold no token.
    pub fn probe(&self, keys: &PromptKeys) -> Hit {
        self.find(keys, |_| {}).hit
    }

    /// Decides and reserves, in one call: slot, pin, blocks that are found, fresh pages for all the
    /// other tokens. A refusal has taken and given up nothing, and so has a [`Lost`] admission.
    ///
    /// # Panics
    /// Where the keys were made for another block size, or hold no token.
    pub fn try_admit(&mut self, request: &AdmitRequest<'_>) -> Result<Admit, Lost> {
        let mut chain = std::mem::take(&mut self.scratch_pages);
        chain.clear();
        let answer = self.admit(request, &mut chain);
        self.scratch_pages = chain;
        answer
    }

    fn admit(
        &mut self,
        request: &AdmitRequest<'_>,
        chain: &mut Vec<PageId>,
    ) -> Result<Admit, Lost> {
        let AdmitRequest { request: id, keys, gated } = *request;
        let mut found = self.find(keys, |page| chain.push(page));
        if let Some(gated) = gated {
            found = self.gate(keys, found, gated).map_err(|found| Lost {
                request: id,
                gated,
                resumable: found.hit.resumable,
            })?;
        }
        let Found { hit, record } = found;
        let block = self.config.block;
        let claims = block.blocks_floor(hit.resumable.tokens()).index();
        let blocks = block.blocks_ceil(hit.full);
        let fresh = blocks - Pages::new(u32::try_from(claims).expect("claims fit u32"));
        let revived = chain[..claims].iter().filter(|page| self.pool.is_cached(**page)).count();
        let taken = fresh.get() + u32::try_from(revived).expect("claims fit u32");

        if self.slots.free() == 0 {
            return Ok(Admit::Refused(Refusal::NoSlot));
        }
        if taken > self.pool.free() + self.store.evictable_units(record) {
            return Ok(Admit::Refused(Refusal::NoRoom));
        }
        let wanted = hit.wanted > hit.resumable;
        let plan = self.keep_plan(keys, &hit);
        let demand = plan.demand.filter(|_| self.image_fits(taken, 1, record));
        let losses = self.losses(&hit, chain, claims);
        let resumed = record.map(|record| self.store.image(record).reason);

        // Past this point nothing fails.
        let slot = self.slots.take(hit.resumable.tokens()).expect("a slot is free");
        if let Some(record) = record {
            self.store.pin(record);
            self.restores.push(slot, record);
            let checkpoint = self.store.id(record);
            let key = self.store.image(record).key;
            self.policy.notice(&Notice::Hit { checkpoint, key, request: id });
        }
        let mut pages = self.spare_tables.pop().unwrap_or_default();
        for &page in &chain[..claims] {
            match self.pool.claim(page) {
                Claim::Shared => {}
                Claim::Revived => self.policy.notice(&Notice::Uncached { page }),
            }
            pages.push(page);
        }
        self.take_live_pages(fresh.get(), &mut pages);
        self.residents += 1;
        self.counters.admitted += 1;
        match (wanted && self.keeps_state(), demand) {
            (_, Some(_)) => self.counters.demands_recorded += 1,
            (true, None) => self.counters.demands_declined += 1,
            (false, None) => {}
        }
        let published = blocks - fresh;
        let residency =
            Residency { request: id, slot, pages, era: self.era, published: published.get() };
        let scope = plan.scope;
        Ok(Admit::Admitted(residency, AdmitReport { hit, demand, resumed, scope, losses }))
    }

    /// Asks the policy what the prefill is cut for.
    fn keep_plan(&mut self, keys: &PromptKeys, hit: &Hit) -> KeepPlan {
        if !self.keeps_state() {
            return KeepPlan { demand: None, scope: Scope::EVERY };
        }
        let cap = self.placement().resumable_cap(hit.full);
        let grid = self.placement().grid();
        let pages = Pages::new(self.pool.total());
        self.policy.plan(&PlanRequest { keys, hit: *hit, cap, pages, grid })
    }

    /// Walks the prompt's blocks as far as they are found.
    fn find(&self, keys: &PromptKeys, mut hit: impl FnMut(PageId)) -> Found {
        assert_eq!(keys.block(), self.config.block, "keys of another block size");
        assert!(!keys.is_empty(), "a request has at least one token");
        let block = self.config.block;
        let full = keys.len();
        let cap = self.placement().resumable_cap(full);
        let blocks = match self.config.caching {
            Caching::On => block.blocks_floor(cap.tokens()).index(),
            Caching::Off => 0,
        };
        let mut found = 0;
        while found < blocks {
            let index = found;
            let wanted = Block {
                key: keys.key(index),
                parent: keys.parent(index),
                domain: keys.domain(),
                tokens: keys.block_tokens(index),
            };
            let Some(page) = self.index.find(&wanted) else { break };
            hit(page);
            found += 1;
        }
        let kv = self.after(found);
        let wanted = if self.keeps_state() { kv } else { Boundary::ZERO };
        let mut record = None;
        let resumable = self.placement().joint_boundary(
            wanted,
            &mut [&mut |at: Boundary| {
                let blocks = block.blocks_floor(at.tokens()).index();
                for index in (0..blocks).rev() {
                    record = self.store.lookup(keys.key(index));
                    if record.is_some() {
                        return self.after(index + 1);
                    }
                }
                record = None;
                Boundary::ZERO
            }],
        );
        Found { hit: Hit { full, kv, wanted, resumable }, record }
    }

    /// Narrows what was found to a promised boundary; gives it back where the promise is broken.
    fn gate(&self, keys: &PromptKeys, found: Found, gated: Boundary) -> Result<Found, Found> {
        if gated > found.hit.wanted {
            return Err(found);
        }
        let record = keys.key_at(gated).and_then(|key| self.store.lookup(key));
        if record.is_none() && gated != Boundary::ZERO {
            return Err(found);
        }
        Ok(Found { hit: Hit { resumable: gated, ..found.hit }, record })
    }

    /// Where the tokens that are computed again went. `chain` are the pages of the KV hit, of which
    /// the first `claims` are resumed.
    fn losses(&self, hit: &Hit, chain: &[PageId], claims: usize) -> Losses {
        let mut losses = Losses::default();
        let cap = self.placement().resumable_cap(hit.full);
        losses.add(LossReason::Tail, hit.full - cap.tokens());
        losses.add(LossReason::NoKv, cap.tokens() - hit.kv.tokens());
        let lost = hit.kv.tokens() - hit.resumable.tokens();
        if !self.keeps_state() {
            losses.add(LossReason::Off, lost);
            return losses;
        }
        // The deepest boundary that ever had a checkpoint is the one that would have been resumed:
        // what lies before it was lost with it, what lies behind it was never stored.
        let deepest = (claims..chain.len())
            .rev()
            .find_map(|index| Some((index + 1, self.lost_to(chain[index])?)));
        let covered = deepest.map_or(Tokens::ZERO, |(blocks, reason)| {
            let covered = self.after(blocks).tokens() - hit.resumable.tokens();
            losses.add(reason, covered);
            covered
        });
        losses.add(LossReason::NeverStored, lost - covered);
        losses
    }

    /// Why the boundary behind a found block has no READY checkpoint, where one was ever filed.
    fn lost_to(&self, page: PageId) -> Option<LossReason> {
        let key = self.index.key(page)?;
        if self.store.is_copying(key) || self.pending.with_key(key).is_some() {
            return Some(LossReason::Copying);
        }
        match self.index.trace(page) {
            Trace::Never | Trace::Filed => None,
            Trace::Dropped => Some(LossReason::Dropped),
            Trace::Evicted => Some(LossReason::Evicted),
            Trace::Failed => Some(LossReason::Failed),
        }
    }

    pub(crate) fn keeps_state(&self) -> bool {
        matches!(self.images, Images::On { .. })
    }

    fn after(&self, blocks: usize) -> Boundary {
        let blocks = u32::try_from(blocks).expect("blocks of a request fit u32");
        self.config.block.boundary_after(Pages::new(blocks))
    }
}
