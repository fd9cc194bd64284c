//! Drafts, right and wrong, and pools that grow and shrink: they change how many batches there are,
//! and nothing that a client sees.

mod support;

use std::collections::BTreeMap;

use proptest::prelude::*;
use statepages_engine::{
    Engine, LogitsWanted, NoConnector, NullRunner, Output, Progress, RemoteState, Row, RowOutput,
    RunError, Runner, StepBatch, StepResult,
};
use statepages_page::{PageId, Pages, RequestId, SlotId, Tokens};
use statepages_store::{BackendOrder, ControlPlane, ControlPlaneConfig, ReferenceOrder, Retire};
use support::{Setup, VOCAB, request, text};

/// A runner of which the next token is a function of request and position, with a drafter that is
/// wrong at every so many positions.
struct Drafting {
    inner: NullRunner,
    /// Drafts at most; none where it is zero.
    most: u32,
    wrong_every: u32,
    /// Rows with drafts, and drafts accepted.
    drafted: u32,
    accepted: u32,
    batches: Vec<StepBatch>,
}

impl Drafting {
    fn new(most: u32, wrong_every: u32) -> Self {
        let inner = NullRunner::new(3, VOCAB);
        Self { inner, most, wrong_every, drafted: 0, accepted: 0, batches: Vec::new() }
    }

    fn answer(&mut self, row: &Row) -> RowOutput {
        if row.logits == LogitsWanted::Nothing {
            return RowOutput::Nothing;
        }
        let known = row.tokens.len() - row.drafts as usize;
        let mut answer = Vec::new();
        let mut position = row.start + Tokens::new(known as u32);
        for &draft in &row.tokens[known..] {
            let token = self.inner.token(row.request, position);
            answer.push(token);
            if draft != token {
                return RowOutput::Verified(answer);
            }
            self.accepted += 1;
            position += Tokens::new(1);
        }
        answer.push(self.inner.token(row.request, position));
        RowOutput::Verified(answer)
    }
}

impl Runner for Drafting {
    fn draft(&mut self, request: RequestId, tokens: &[u32], most: Tokens) -> Vec<u32> {
        let first = tokens.len() as u32;
        let drafts: Vec<u32> = (first..first + most.get().min(self.most))
            .map(|position| {
                let token = self.inner.token(request, Tokens::new(position));
                (token + u32::from(position.is_multiple_of(self.wrong_every))) % VOCAB
            })
            .collect();
        self.drafted += u32::from(!drafts.is_empty());
        drafts
    }

    fn submit(&mut self, batch: StepBatch) {
        self.batches.push(batch);
    }

    fn poll(&mut self) -> Option<StepResult> {
        let batch = (!self.batches.is_empty()).then(|| self.batches.remove(0))?;
        let outputs = batch.rows.iter().map(|row| self.answer(row)).collect();
        Some(StepResult { batch, outcome: Ok(outputs) })
    }

    fn land(&mut self, _: SlotId, _: &[PageId], _: &RemoteState) -> Result<(), RunError> {
        Ok(())
    }
}

type Heard = BTreeMap<RequestId, Vec<(Tokens, u32)>>;

/// Serves every prompt and answers what was heard and how many batches it took.
fn serve(setup: &Setup, runner: Drafting, prompts: &[(usize, u32)]) -> (Heard, u64, Drafting) {
    let mut engine = Engine::<_, NoConnector>::new(setup.parts(), runner).unwrap();
    for (id, &(length, tokens)) in (0u64..).zip(prompts) {
        engine.submit(request(id, &text(id as u32 % 3, length), tokens)).unwrap();
    }
    let mut heard = Heard::new();
    loop {
        let progress = engine.step();
        engine.check();
        while let Some(output) = engine.next_output() {
            if let Output::Token { request, token, position, .. } = output {
                heard.entry(request).or_default().push((position, token));
            }
        }
        if progress == Progress::Idle {
            break;
        }
    }
    let snapshot = engine.snapshot();
    let gauges = snapshot.gauges;
    assert_eq!(gauges.pages_available, gauges.pages_total, "nothing is left behind");
    // This runner reports at once, so no slot moves on before its boundary is stored: placement is
    // asked about accepted tokens alone.
    assert_eq!(snapshot.counters.superseded, 0);
    let runner = std::mem::replace(engine.runner_mut(), Drafting::new(0, 1));
    (heard, snapshot.totals.batches, runner)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn drafts_change_nothing_that_is_heard(
        pages in 20..60u32,
        in_flight in 1..=2u64,
        unordered in any::<bool>(),
        budget in 4..24u64,
        most in 1..6u32,
        wrong_every in 2..7u32,
        prompts in prop::collection::vec((1..24usize, 1..20u32), 1..9),
    ) {
        let order = if unordered { BackendOrder::Unordered } else { BackendOrder::Ordered };
        let setup =
            Setup { pages, in_flight, budget, order, interval: Some(1), ..Setup::ROOMY };
        let (plain, _, _) = serve(&setup, Drafting::new(0, wrong_every), &prompts);
        let (drafted, _, _) = serve(&setup, Drafting::new(most, wrong_every), &prompts);
        prop_assert_eq!(plain, drafted);
    }
}

#[test]
fn accepted_drafts_save_batches() {
    let prompts = [(9, 40)];
    let (plain, without, _) = serve(&Setup::ROOMY, Drafting::new(0, 1000), &prompts);
    let (drafted, with, runner) = serve(&Setup::ROOMY, Drafting::new(3, 1000), &prompts);
    assert_eq!(plain, drafted);
    assert!(runner.drafted > 0 && runner.accepted > 20, "{} accepted", runner.accepted);
    assert!(with * 3 < without, "{with} batches with drafts, {without} without");
}

#[test]
fn a_stop_token_among_accepted_drafts_ends_the_request_there() {
    let token = |at: u32| NullRunner::new(3, VOCAB).token(RequestId::new(0), Tokens::new(at));
    let generated: Vec<u32> = (9..29).map(token).collect();
    // A stop after each number of tokens, so that each place among the drafts has its turn.
    for stop in &generated {
        let mut engine =
            Engine::<_, NoConnector>::new(Setup::ROOMY.parts(), Drafting::new(3, 1000)).unwrap();
        let mut asked = request(0, &text(0, 9), 20);
        asked.stop.token_ids = vec![*stop];
        engine.submit(asked).unwrap();
        while engine.step() != Progress::Idle {}
        let heard: Vec<u32> = engine
            .drain_outputs()
            .filter_map(|output| match output {
                Output::Token { token, .. } => Some(token),
                _ => None,
            })
            .collect();
        let first = generated.iter().position(|token| token == stop).unwrap();
        assert_eq!(heard, generated[..=first]);
        assert!(engine.runner().accepted > 0 || first < 2);
    }
}

#[test]
fn a_pool_gives_back_only_what_it_grew_by() {
    let setup = Setup { pages: 20, ..Setup::ROOMY };
    let mut parts = setup.parts();
    let config = setup.control().config().clone();
    let config = ControlPlaneConfig { pages_max: Pages::new(24), ..config };
    parts.control = ControlPlane::new(config, Box::new(ReferenceOrder)).unwrap();
    let mut engine = Engine::<_, NoConnector>::new(parts, Drafting::new(0, 1)).unwrap();
    assert_eq!(engine.retire_top(), None, "requests are taken for the pool at start");
    assert_eq!(engine.extend(Pages::new(9)), Pages::new(4));
    engine.submit(request(1, &text(1, 70), 9)).unwrap();
    assert!(matches!(engine.step(), Progress::Submitted { .. }));
    assert_eq!(engine.control().gauges().pages_live, 18);
    engine.submit(request(2, &text(2, 24), 9)).unwrap();
    assert!(matches!(engine.step(), Progress::Submitted { .. }));
    // The highest page is the second request's by now.
    assert_eq!(engine.retire_top(), Some(Retire::Busy(PageId::new(23))));
    while engine.step() != Progress::Idle {}
    for top in (20..24).rev() {
        assert_eq!(engine.retire_top(), Some(Retire::Retired(PageId::new(top))));
        engine.check();
    }
    assert_eq!(engine.retire_top(), None);
}
