//! A runner that computes and copies nothing: for replays of the control plane alone.
//!
//! The next token is a function of the request and of the position, so it depends on neither
//! chunking nor preemption. It has no memory, so nothing it answers shows whether a state was right.

use std::collections::VecDeque;

use statepages_page::{PageId, RequestId, SlotId, Tokens};

use crate::runner::{
    LogitsWanted, RemoteState, RowOutput, RunError, Runner, StepBatch, StepResult,
};

/// The runner. See the module's head.
#[derive(Debug)]
pub struct NullRunner {
    seed: u64,
    vocab: u32,
    done: VecDeque<StepBatch>,
}

impl NullRunner {
    /// A runner that answers ids below `vocab`.
    ///
    /// # Panics
    /// Where `vocab` is zero.
    pub fn new(seed: u64, vocab: u32) -> Self {
        assert!(vocab > 0, "a vocabulary has at least one id");
        Self { seed, vocab, done: VecDeque::new() }
    }

    /// The token of `request` at `position`.
    pub fn token(&self, request: RequestId, position: Tokens) -> u32 {
        let mut z = self.seed ^ request.raw().rotate_left(32) ^ u64::from(position.get());
        z = (z ^ (z >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        z = (z ^ (z >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        ((z ^ (z >> 33)) % u64::from(self.vocab)) as u32
    }
}

impl Runner for NullRunner {
    fn submit(&mut self, batch: StepBatch) {
        self.done.push_back(batch);
    }

    fn poll(&mut self) -> Option<StepResult> {
        let batch = self.done.pop_front()?;
        let output = |row: &crate::runner::Row| match row.logits {
            LogitsWanted::Nothing => RowOutput::Nothing,
            LogitsWanted::Last => RowOutput::Token(self.token(row.request, row.end())),
        };
        let outputs = batch.rows.iter().map(output).collect();
        Some(StepResult { batch, outcome: Ok(outputs) })
    }

    fn land(&mut self, _: SlotId, _: &[PageId], _: &RemoteState) -> Result<(), RunError> {
        Ok(())
    }
}
