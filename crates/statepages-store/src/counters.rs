//! What became of every boundary and every checkpoint.
//!
//! Invariants, after every operation:
//!
//! - `filed = kept + no_room + superseded + duplicate + slot_gone + forgotten + unfiled + pending`
//! - `kept = copying + ready + evicting + evicted + orphaned_records + reset + failed +
//!   lost_duplicates`
//! - `kept`, `dropped`, `evicted` and `orphaned` of [`Fates`] are moved by no reset.

/// Running totals. Each only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Boundaries filed; a boundary filed again before it was drained is counted once.
    pub filed: u64,
    /// Stores handed to a batch.
    pub kept: u64,
    /// Boundaries dropped because units were short, the bound on COPYING was reached, a live
    /// request might have had to wait, or the policy declined.
    pub no_room: u64,
    /// Boundaries dropped because their slot had moved on.
    pub superseded: u64,
    /// Boundaries dropped because their key already had a READY or COPYING record.
    pub duplicate: u64,
    /// Boundaries dropped because a batch failed and their slot holds unknown bytes.
    pub slot_gone: u64,
    /// Boundaries dropped because their request was released, or the cache emptied, before a drain.
    pub forgotten: u64,
    /// Boundaries dropped because the KV under their key was given up before a store was handed out.
    pub unfiled: u64,
    /// READY records given up for their units.
    pub evicted: u64,
    /// Records ended because the KV under their key was given up.
    pub orphaned_records: u64,
    /// Records ended by a reset.
    pub reset: u64,
    /// Records ended because the batch of their store failed.
    pub failed: u64,
    /// Records ended because their key had become READY through another record.
    pub lost_duplicates: u64,
    /// Keys whose pending boundary or record was lost with their KV, once each.
    pub orphaned_keys: u64,
    /// Requests admitted.
    pub admitted: u64,
    /// Admissions that asked for a demand boundary.
    pub demands_recorded: u64,
    /// Admissions whose demand boundary was declined, because an image would not have fit.
    pub demands_declined: u64,
    /// Resets.
    pub resets: u64,
    /// Blocks published that another page had held already.
    pub blocks_duplicate: u64,
    /// Blocks published whose key had led to another block.
    pub blocks_collided: u64,
    /// Restores cancelled before a batch carried them.
    pub restores_cancelled: u64,
}

/// What there is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Gauges {
    /// Boundaries filed and not yet drained.
    pub pending: u32,
    /// Records being written and findable by nobody yet.
    pub copying: u32,
    /// Records that a lookup finds.
    pub ready: u32,
    /// Records that are gone but for a reader or writer in flight.
    pub evicting: u32,
    /// Restores that no batch has carried yet.
    pub queued_restores: u32,
    /// Pages of the pool.
    pub pages_total: u32,
    /// Pages never used or fully given up.
    pub pages_vacant: u32,
    /// Free pages that are still found by content.
    pub pages_cached: u32,
    /// Pages taken and not yet given content.
    pub pages_held: u32,
    /// Pages of resident requests.
    pub pages_live: u32,
    /// Pages that are units of images.
    pub pages_raw: u32,
    /// Pages a live request could have now.
    pub pages_available: u32,
    /// Slots nobody holds.
    pub slots_free: u32,
    /// Slots that wait for a receipt.
    pub slots_fenced: u32,
    /// Blocks that a lookup finds.
    pub blocks_indexed: u32,
}

/// The four fates of what placement asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Fates {
    /// Stores handed to a batch.
    pub kept: u64,
    /// Never stored: `no_room + superseded`. Argues for a larger pool.
    pub dropped: u64,
    /// Given up for their units. Argues for a larger or better kept pool.
    pub evicted: u64,
    /// Keys lost, pending or stored, because their KV was given up.
    pub orphaned: u64,
}

impl Counters {
    /// The four fates.
    pub const fn fates(&self) -> Fates {
        Fates {
            kept: self.kept,
            dropped: self.no_room + self.superseded,
            evicted: self.evicted,
            orphaned: self.orphaned_keys,
        }
    }

    /// Checks the two equations.
    ///
    /// # Panics
    /// Where one does not hold.
    pub fn check(&self, gauges: &Gauges) {
        let filed = self.kept
            + self.no_room
            + self.superseded
            + self.duplicate
            + self.slot_gone
            + self.forgotten
            + self.unfiled
            + u64::from(gauges.pending);
        assert_eq!(self.filed, filed, "every filed boundary has one fate: {self:?} {gauges:?}");
        let kept = u64::from(gauges.copying)
            + u64::from(gauges.ready)
            + u64::from(gauges.evicting)
            + self.evicted
            + self.orphaned_records
            + self.reset
            + self.failed
            + self.lost_duplicates;
        assert_eq!(self.kept, kept, "every kept record has one fate: {self:?} {gauges:?}");
    }
}
