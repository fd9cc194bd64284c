//! What a batch takes together, and what placement's cuts cost, seen from the runner's side.

mod support;

use std::collections::BTreeMap;

use statepages_engine::{
    Engine, NullRunner, Passes, Progress, RemoteState, RunError, Runner, StepBatch, StepResult,
};
use statepages_page::{PageId, RequestId, SlotId, Tokens};
use statepages_store::BackendOrder;
use support::{Setup, VOCAB, request, text};

/// Remembers the first position of each row of each batch.
struct Spy {
    inner: NullRunner,
    batches: Vec<Vec<(RequestId, Tokens)>>,
}

impl Runner for Spy {
    fn submit(&mut self, batch: StepBatch) {
        self.batches.push(batch.rows.iter().map(|row| (row.request, row.start)).collect());
        self.inner.submit(batch);
    }

    fn poll(&mut self) -> Option<StepResult> {
        self.inner.poll()
    }

    fn land(
        &mut self,
        slot: SlotId,
        pages: &[PageId],
        state: &RemoteState,
    ) -> Result<(), RunError> {
        self.inner.land(slot, pages, state)
    }
}

struct Seen {
    batches: Vec<Vec<(RequestId, Tokens)>>,
    prompts: BTreeMap<RequestId, Tokens>,
    chunks: u64,
    cuts: u64,
}

/// Runs prompts of the given lengths, eight tokens each, in a roomy pool.
fn seen(passes: Passes, setup: Setup, lengths: &[usize]) -> Seen {
    let spy = Spy { inner: NullRunner::new(1, VOCAB), batches: Vec::new() };
    let mut engine = Engine::new(setup.parts(), spy).unwrap();
    engine.set_passes(passes);
    let mut prompts = BTreeMap::new();
    for (id, &length) in (1..).zip(lengths) {
        engine.submit(request(id, &text(id as u32, length), 8)).unwrap();
        prompts.insert(RequestId::new(id), Tokens::new(length as u32));
    }
    while engine.step() != Progress::Idle {}
    let totals = engine.snapshot().totals;
    assert_eq!(totals.completed, lengths.len() as u64);
    let (chunks, cuts) = (totals.prefill_chunks, totals.placement_cuts);
    Seen { batches: engine.runner().batches.clone(), prompts, chunks, cuts }
}

impl Seen {
    /// Rows of a batch that prefill, and those that decode.
    fn kinds(&self, batch: &[(RequestId, Tokens)]) -> (usize, usize) {
        let prefills = batch.iter().filter(|(id, start)| *start < self.prompts[id]).count();
        (prefills, batch.len() - prefills)
    }

    fn mixed(&self) -> usize {
        let kinds = self.batches.iter().map(|batch| self.kinds(batch));
        kinds.filter(|&(prefills, decodes)| prefills > 0 && decodes > 0).count()
    }
}

#[test]
fn prefill_first_never_mixes_and_starts_no_decode_while_a_prefill_is_left() {
    let setup = Setup { budget: 10, slots: 3, ..Setup::ROOMY };
    let lengths = [25, 7, 31, 12, 5];
    let seen = self::seen(Passes::PrefillFirst, setup, &lengths);
    assert_eq!(seen.mixed(), 0);
    let first_decode = seen.batches.iter().position(|batch| seen.kinds(batch).1 > 0).unwrap();
    let prefilled: Vec<RequestId> =
        seen.batches[..first_decode].iter().flatten().map(|&(id, _)| id).collect();
    assert!((1..=3).all(|id| prefilled.contains(&RequestId::new(id))), "all slots fill first");
    assert!(self::seen(Passes::Mixed, setup, &lengths).mixed() > 0);
}

/// Each cut is one chunk more than the same prompts take without placement.
#[test]
fn cuts_are_the_chunks_that_placement_adds() {
    for passes in [Passes::Mixed, Passes::PrefillFirst] {
        let lengths = [25, 13, 31];
        let one_by_one = |interval| {
            let mut sum = (0, 0);
            for &length in &lengths {
                let setup = Setup { interval, ..Setup::ROOMY };
                let seen = seen(passes, setup, &[length]);
                sum = (sum.0 + seen.chunks, sum.1 + seen.cuts);
            }
            sum
        };
        assert_eq!(one_by_one(Some(0)), (3, 0));
        assert_eq!(one_by_one(None), (6, 3), "each anchor costs a chunk");
        // Multiples of 8 below the end, and the anchors 24, 12 and 28.
        assert_eq!(one_by_one(Some(2)), (3 + 3 + 2 + 4, 3 + 2 + 4));
    }
}

/// Pages that a young request gives up for an older one's decode come back with a batch in flight. It
/// must not be admitted to them again before the decode has them.
#[test]
fn a_decode_gets_the_pages_that_were_given_up_for_it() {
    let setup = Setup {
        pages: 14,
        slots: 2,
        budget: 4,
        in_flight: 2,
        latency: 2,
        order: BackendOrder::Unordered,
        passes: Passes::PrefillFirst,
        ..Setup::ROOMY
    };
    let mut harness = setup.harness();
    let shared = text(0, 16);
    for (id, prefix, tail, tokens) in [(0, 11, 5, 10), (1, 16, 7, 7)] {
        let mut prompt = shared[..prefix].to_vec();
        prompt.extend(text(100 + id as u32, tail));
        harness.submit(request(id, &prompt, tokens));
    }
    for id in 2..9 {
        harness.submit(request(id, &shared[..3], 1));
    }
    harness.finish();
    harness.verify();
    assert!(harness.engine.snapshot().totals.preempted_no_page > 0, "pages were short");
}
