//! Counts of what an engine did, and of what each request used. Plain values; no clock, no text.

use statepages_page::Tokens;
use statepages_store::{AdmitReport, Counters, Gauges};

/// What one request used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt: Tokens,
    /// Tokens generated.
    pub generated: Tokens,
    /// Tokens computed for it in batches that succeeded. Less than prompt and generated tokens where
    /// something was resumed, more where it was preempted.
    pub computed: u64,
    /// What its first admission found, resumed and lost; `None` where it was never admitted.
    pub admission: Option<AdmitReport>,
    /// Later admissions, each after a preemption or a failed load.
    pub readmissions: u32,
    /// Tokens that later admissions resumed.
    pub readmitted: u64,
    /// Tokens that a remote load brought.
    pub loaded: Tokens,
    /// Times it gave up slot and pages.
    pub preemptions: u32,
    /// Failed batches that carried it.
    pub batch_failures: u32,
    /// Boundaries filed for it.
    pub filed: u32,
}

impl Usage {
    pub(crate) const fn new(prompt: Tokens) -> Self {
        Self {
            prompt,
            generated: Tokens::ZERO,
            computed: 0,
            admission: None,
            readmissions: 0,
            readmitted: 0,
            loaded: Tokens::ZERO,
            preemptions: 0,
            batch_failures: 0,
            filed: 0,
        }
    }

    pub(crate) fn admit(&mut self, report: &AdmitReport) {
        if self.admission.is_none() {
            self.admission = Some(*report);
        } else {
            self.readmissions += 1;
            self.readmitted += u64::from(report.hit.resumable.get());
        }
    }

    /// Tokens of the prompt that the first admission resumed.
    pub fn realised(&self) -> Tokens {
        self.admission.map_or(Tokens::ZERO, |report| report.hit.resumable.tokens())
    }
}

/// Running totals. Each only grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Requests taken.
    pub submitted: u64,
    /// Requests refused at submission.
    pub refused: u64,
    /// Requests that stopped by themselves.
    pub completed: u64,
    /// Requests called off by their client.
    pub aborted: u64,
    /// Requests that could not be computed.
    pub failed: u64,
    /// Admissions, repeated ones included.
    pub admissions: u64,
    /// Preemptions for want of a page.
    pub preempted_no_page: u64,
    /// Preemptions because a batch failed.
    pub preempted_batch_failed: u64,
    /// Batches submitted.
    pub batches: u64,
    /// Batches that failed.
    pub batches_failed: u64,
    /// Prefill chunks, of batches that failed, too.
    pub prefill_chunks: u64,
    /// Of these, chunks that placement ended: each is one chunk more than without placement.
    pub placement_cuts: u64,
    /// Tokens computed in batches that succeeded.
    pub computed: u64,
    /// Tokens generated.
    pub generated: u64,
    /// Prompt tokens of first admissions.
    pub prompt: u64,
    /// Of these, tokens whose blocks were found.
    pub kv_hit: u64,
    /// Of these, tokens that would have been resumed had every boundary a checkpoint.
    pub wanted: u64,
    /// Of these, tokens that were resumed.
    pub realised: u64,
    /// Remote loads started.
    pub loads_started: u64,
    /// Remote loads landed.
    pub loads_landed: u64,
    /// Remote loads that failed.
    pub loads_failed: u64,
    /// Remote loads called off: too late, or their request had ended.
    pub loads_cancelled: u64,
    /// Completions that named no load under way: late, or repeated.
    pub loads_ignored: u64,
}

/// Everything countable at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Totals of the engine.
    pub totals: Totals,
    /// Totals of the control plane, with the fates of checkpoints.
    pub counters: Counters,
    /// What the control plane holds now.
    pub gauges: Gauges,
    /// Requests waiting, preempted ones included.
    pub waiting: u32,
    /// Requests parked.
    pub parked: u32,
    /// Requests running.
    pub running: u32,
    /// Loads called off whose memory is still claimed.
    pub draining: u32,
    /// Batches in flight.
    pub in_flight: u32,
}

impl Totals {
    /// Counts an admission; `usage` is the request's before it.
    pub(crate) fn admit(&mut self, usage: &Usage, report: &AdmitReport) {
        self.admissions += 1;
        if usage.admission.is_none() {
            let hit = report.hit;
            self.prompt += u64::from(hit.full.get());
            self.kv_hit += u64::from(hit.kv.get());
            self.wanted += u64::from(hit.wanted.get());
            self.realised += u64::from(hit.resumable.get());
        }
    }
}
