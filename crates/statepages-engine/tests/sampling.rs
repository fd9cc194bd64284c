//! Sampled requests: what is drawn depends on seed and position, on nothing of the schedule.

mod support;

use std::collections::VecDeque;

use statepages_engine::{
    Engine, Event, Failure, FinishReason, LogitsWanted, NullRunner, Output, Progress, RemoteState,
    RowOutput, RunError, Runner, RunnerFaults, Sampling, StepBatch, StepResult,
};
use statepages_page::{PageId, RequestId, SlotId, Tokens};
use support::{Setup, VOCAB, request, text};

/// The recurrent model's logits lie within 2^24, so this temperature leaves all of them a chance.
const WARM: Sampling = Sampling { temperature: 4e6, top_k: Some(20), top_p: 0.9, seed: 5 };

fn sampled(setup: Setup, seeds: &[u64]) -> Vec<Vec<u32>> {
    let mut harness = setup.harness();
    for (id, &seed) in seeds.iter().enumerate() {
        let mut request = request(id as u64, &text(id as u32 % 2, 17), 24);
        request.sampling = Sampling { seed, ..WARM };
        harness.submit(request);
    }
    harness.finish();
    harness.verify_idle();
    assert_eq!(harness.engine.runner().violations(), [] as [String; 0]);
    harness.heard.values().map(|heard| heard.tokens.clone()).collect()
}

#[test]
fn a_draw_depends_on_seed_and_position_alone() {
    let seeds = [5, 5, 6, 7];
    let alone: Vec<Vec<u32>> = (0..4)
        .map(|id| {
            let mut harness = Setup { interval: Some(0), ..Setup::ROOMY }.harness();
            let mut request = request(0, &text(id % 2, 17), 24);
            request.sampling = Sampling { seed: seeds[id as usize], ..WARM };
            harness.run(request).tokens
        })
        .collect();
    assert_ne!(alone[0], alone[2], "another seed");
    assert!(alone[0].iter().any(|token| *token != alone[0][0]));
    let faults = Some(RunnerFaults { seed: 2, failing: 15 });
    for setup in [
        Setup::ROOMY,
        Setup { pages: 22, interval: Some(1), budget: 7, ..Setup::ROOMY },
        Setup { pages: 22, in_flight: 2, latency: 3, interval: Some(2), faults, ..Setup::ROOMY },
    ] {
        assert_eq!(sampled(setup, &seeds), alone, "{setup:?}");
    }
}

/// Answers every row with logits that nothing can be chosen from.
struct NotANumber(VecDeque<StepBatch>);

impl Runner for NotANumber {
    fn submit(&mut self, batch: StepBatch) {
        self.0.push_back(batch);
    }

    fn poll(&mut self) -> Option<StepResult> {
        let batch = self.0.pop_front()?;
        let outputs = batch.rows.iter().map(|row| match row.logits {
            LogitsWanted::Nothing => RowOutput::Nothing,
            LogitsWanted::Last => RowOutput::Logits(vec![f32::NAN; VOCAB as usize]),
        });
        let outcome = Ok(outputs.collect());
        Some(StepResult { batch, outcome })
    }

    fn land(&mut self, _: SlotId, _: &[PageId], _: &RemoteState) -> Result<(), RunError> {
        unreachable!("nothing is loaded")
    }
}

#[test]
fn logits_without_a_choice_end_their_request_alone() {
    let runner = NotANumber(VecDeque::new());
    let mut engine = Engine::new(Setup::ROOMY.parts(), runner).unwrap();
    engine.handle(Event::Submit(request(1, &text(1, 9), 4)));
    while engine.step() != Progress::Idle {
        engine.check();
    }
    let end = engine.drain_outputs().find_map(|output| match output {
        Output::Finished { reason, .. } => Some(reason),
        _ => None,
    });
    let Some(FinishReason::Failed(Failure::Logits(what))) = end else { panic!("{end:?}") };
    assert_eq!(what, "the logit of token 0 is NaN");
    assert_eq!(engine.snapshot().gauges.pages_live, 0);
}

#[test]
fn the_null_runner_s_tokens_depend_on_neither_chunks_nor_preemption() {
    let reference = NullRunner::new(3, VOCAB);
    for (pages, budget) in [(400, 64), (20, 5)] {
        let setup = Setup { pages, budget, interval: Some(2), ..Setup::ROOMY };
        let mut engine = Engine::new(setup.parts(), NullRunner::new(3, VOCAB)).unwrap();
        for id in 0..6 {
            engine.submit(request(id, &text(id as u32, 17), 24)).unwrap();
        }
        let mut tokens = 0;
        while engine.step() != Progress::Idle {
            engine.check();
            for output in engine.drain_outputs() {
                if let Output::Token { request, token, position, .. } = output {
                    assert_eq!(token, reference.token(request, position));
                    tokens += 1;
                }
            }
        }
        assert_eq!(tokens, 6 * 24);
    }
    assert_ne!(
        reference.token(RequestId::new(1), Tokens::new(5)),
        reference.token(RequestId::new(2), Tokens::new(5))
    );
}
