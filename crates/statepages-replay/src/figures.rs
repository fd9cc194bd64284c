//! What a round came to, in plain numbers.

use statepages_engine::{Snapshot, Usage};
use statepages_page::Bytes;
use statepages_store::{Fates, KeepReason, LossReason};

/// Requests of one window.
pub const WINDOW: usize = 100;

/// Every reason a boundary is kept for, with its name.
pub const KEEP_REASONS: [(KeepReason, &str); 5] = [
    (KeepReason::Anchor, "anchor"),
    (KeepReason::PromptEnd, "prompt_end"),
    (KeepReason::Demand, "demand"),
    (KeepReason::Grid, "rung"),
    (KeepReason::DecodeSpacing, "decode"),
];

/// One round. Tokens are those of prompts at their first admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundFigures {
    /// Name of the workload.
    pub workload: String,
    /// Round of this workload, from 1.
    pub round: u32,
    /// Requests.
    pub requests: u64,
    /// Prompts that no pool of this size can hold: left out of every other figure.
    pub too_long: u64,
    /// Tokens asked for.
    pub full_tokens: u64,
    /// Of these, tokens whose blocks were found.
    pub kv_hit_tokens: u64,
    /// Of these, tokens that could be resumed if each found boundary had a checkpoint.
    pub wanted_tokens: u64,
    /// Of these, tokens that were resumed.
    pub realised_tokens: u64,
    /// Found, and behind the checkpoint that was resumed from: no checkpoint was ever kept there.
    pub lost_to_boundary: u64,
    /// Tokens lost, by [`LossReason`] in the order of its list; boundary is part of never stored.
    pub lost: [u64; LossReason::ALL.len()],
    /// Prefill chunks.
    pub prefill_chunks: u64,
    /// Of these, chunks ended by placement, before budget or prompt would have ended them: each made
    /// its prompt take one chunk more than it would take without placement.
    pub extra_prefill_chunks: u64,
    /// Batches.
    pub batches: u64,
    /// Residencies given up for want of a page.
    pub preemptions: u64,
    /// Images written.
    pub images_written: u64,
    /// Their bytes.
    pub bytes_written: Bytes,
    /// Images read back, by [`KEEP_REASONS`].
    pub images_read: [u64; KEEP_REASONS.len()],
    /// Their bytes.
    pub bytes_read: Bytes,
    /// What became of what placement asked for.
    pub fates: Fates,
    /// The admission since which no image is cut or given up for ahead of need, as it stands at the
    /// end of the round; counted over all rounds, `None` where images are paid for.
    pub adapted_at_request: Option<u64>,
    /// Asked and realised tokens of each hundred requests, in the order of sending.
    pub windows: Vec<Window>,
    /// Nanoseconds spent in the engine: see [`crate::replay`].
    pub control_plane_ns: u64,
}

/// Some requests in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Window {
    /// Tokens asked for.
    pub full_tokens: u64,
    /// Tokens resumed.
    pub realised_tokens: u64,
}

impl RoundFigures {
    pub(crate) fn new(workload: &str, round: u32, requests: usize) -> Self {
        Self {
            workload: workload.to_owned(),
            round,
            requests: 0,
            too_long: 0,
            full_tokens: 0,
            kv_hit_tokens: 0,
            wanted_tokens: 0,
            realised_tokens: 0,
            lost_to_boundary: 0,
            lost: [0; LossReason::ALL.len()],
            prefill_chunks: 0,
            extra_prefill_chunks: 0,
            batches: 0,
            preemptions: 0,
            images_written: 0,
            bytes_written: Bytes::new(0),
            images_read: [0; KEEP_REASONS.len()],
            bytes_read: Bytes::new(0),
            fates: Fates::default(),
            adapted_at_request: None,
            windows: vec![Window::default(); requests.div_ceil(WINDOW)],
            control_plane_ns: 0,
        }
    }

    /// Takes in a finished request, the `sent`-th of its round.
    ///
    /// # Panics
    /// Where it was never admitted.
    pub(crate) fn finished(&mut self, sent: usize, usage: &Usage) {
        let report = usage.admission.expect("a request that has its tokens was admitted");
        let hit = report.hit;
        let tokens = |tokens: u32| u64::from(tokens);
        self.requests += 1;
        self.full_tokens += tokens(hit.full.get());
        self.kv_hit_tokens += tokens(hit.kv.get());
        self.wanted_tokens += tokens(hit.wanted.get());
        self.realised_tokens += tokens(hit.resumable.get());
        for (lost, reason) in self.lost.iter_mut().zip(LossReason::ALL) {
            *lost += tokens(report.losses.get(reason).get());
        }
        if let Some(resumed) = report.resumed {
            let never = report.losses.get(LossReason::NeverStored);
            self.lost_to_boundary += tokens(never.get());
            let at = KEEP_REASONS.iter().position(|(reason, _)| *reason == resumed);
            self.images_read[at.expect("every reason is listed")] += 1;
        }
        let window = &mut self.windows[sent / WINDOW];
        window.full_tokens += tokens(hit.full.get());
        window.realised_tokens += tokens(hit.resumable.get());
    }

    /// Takes in what the engine counted between two snapshots.
    pub(crate) fn close(&mut self, before: &Snapshot, after: &Snapshot, image: Bytes) {
        let (old, new) = (&before.totals, &after.totals);
        self.prefill_chunks = new.prefill_chunks - old.prefill_chunks;
        self.extra_prefill_chunks = new.placement_cuts - old.placement_cuts;
        self.batches = new.batches - old.batches;
        self.preemptions = new.preempted_no_page - old.preempted_no_page;
        let (was, is) = (before.counters.fates(), after.counters.fates());
        self.fates = Fates {
            kept: is.kept - was.kept,
            dropped: is.dropped - was.dropped,
            evicted: is.evicted - was.evicted,
            orphaned: is.orphaned - was.orphaned,
        };
        self.images_written = self.fates.kept;
        self.bytes_written = Bytes::new(self.images_written * image.get());
        self.bytes_read = Bytes::new(self.images_read.iter().sum::<u64>() * image.get());
    }

    /// Realised tokens in percent of those asked for.
    pub fn realised_percent(&self) -> f64 {
        percent(self.realised_tokens, self.full_tokens)
    }

    /// Tokens of found blocks in percent of those asked for.
    pub fn kv_hit_percent(&self) -> f64 {
        percent(self.kv_hit_tokens, self.full_tokens)
    }

    /// Tokens lost for one reason.
    pub fn lost(&self, reason: LossReason) -> u64 {
        self.lost[reason as usize]
    }
}

/// `part` of `whole` in percent; 0 of nothing.
pub(crate) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}
