//! Taking a batch's word: receipts first, then blocks, boundaries, tokens and ends.
//!
//! A batch that fails costs each of its requests the residency: they wait again, and one that was in
//! `batch_failures_max` failed batches ends with an error. Where a later batch in flight carries the
//! same residency, its row rests on bytes that nobody wrote: the residency is gone by then, so the
//! row's result finds no taker, and the control plane publishes no store of a boundary that was not
//! reported. Other requests of that later batch rest on nothing of the failed one.

use statepages_model::DrawAt;
use statepages_page::{RequestId, Tokens};
use statepages_store::Outcome;

use crate::connector::Connector;
use crate::engine::{Engine, Flight};
use crate::output::{Failure, FinishReason, Output, PreemptCause};
use crate::request::{LogitsReport, Verdict, judge};
use crate::runner::{Row, RowOutput, RunError, Runner, StepBatch, StepResult};
use crate::sequence::Admission;

impl<R: Runner, C: Connector> Engine<R, C> {
    pub(crate) fn batch_done(&mut self, result: StepResult) {
        let StepResult { batch, outcome } = result;
        let flight = self.flights.pop_front().expect("a reported batch was submitted");
        assert_eq!(flight.id, batch.id, "batches are reported in the order of submission");
        for row in &batch.rows {
            let sequence = self.sequences.get_mut(&row.request).expect("a row's request is known");
            sequence.rows_out -= 1;
        }
        match outcome {
            Ok(outputs) => self.succeed(&batch, flight, outputs),
            Err(error) => self.fail(&batch, flight, &error),
        }
        for row in &batch.rows {
            if self.sequences.contains_key(&row.request) {
                self.forget(row.request);
            }
        }
        self.spare.push(batch);
    }

    fn succeed(&mut self, batch: &StepBatch, flight: Flight, outputs: Vec<RowOutput>) {
        assert_eq!(outputs.len(), batch.rows.len(), "one output per row");
        self.control.settle(flight.receipt, Outcome::Done);
        self.totals.computed += batch.tokens();
        let rows = batch.rows.iter().zip(flight.admissions).zip(outputs);
        for ((row, admission), output) in rows {
            let sequence = self.sequences.get_mut(&row.request).expect("a row's request is known");
            sequence.usage.computed += row.tokens.len() as u64;
            // A request that has ended or lost its residency meanwhile has no use for the result.
            if self.running.get(&admission) != Some(&row.request) {
                continue;
            }
            if let RowOutput::Verified(tokens) = output {
                self.take_verified(row, &tokens);
                continue;
            }
            assert_eq!(row.drafts, 0, "{}: drafts come back verified", row.request);
            let (running, keys) = sequence.running_mut().expect("listed as running");
            self.control.advance(&mut running.residency, keys, row.end());
            self.take_output(row, output);
            // Where the next batch was built already, it has asked placement itself: the slot may
            // have moved on.
            let unasked = |id: RequestId| {
                let running = self.sequences.get(&id)?.running()?;
                running.place.unasked
            };
            if self.running.contains_key(&admission) && unasked(row.request) == Some(row.end()) {
                self.ask_placement(row.request);
            }
        }
    }

    /// Appends the row's next token, and ends the request where that was the last one wanted.
    fn take_output(&mut self, row: &Row, output: RowOutput) {
        let position = row.end();
        let sequence = self.sequences.get_mut(&row.request).expect("a row's request is known");
        let (token, logits) = match output {
            RowOutput::Nothing => return,
            RowOutput::Verified(_) => panic!("{}: a row without drafts", row.request),
            RowOutput::Token(token) => (Ok(token), None),
            RowOutput::Logits(logits) => {
                let at = DrawAt { seed: sequence.seed, position: position.get() };
                (sequence.sampling.sample(&logits, at), Some(logits))
            }
        };
        let token = match token {
            Ok(token) => token,
            Err(error) => {
                let reason = FinishReason::Failed(Failure::Logits(error.to_string()));
                return self.finish(row.request, reason);
            }
        };
        if let Some(reason) = self.append(row.request, token, position, logits) {
            self.finish(row.request, reason);
        }
    }

    /// Appends the tokens of a row with drafts, up to the last one wanted, and takes back what was
    /// scheduled beyond them.
    fn take_verified(&mut self, row: &Row, tokens: &[u32]) {
        let request = row.request;
        let known = row.tokens.len() - row.drafts as usize;
        let accepted = tokens.len().checked_sub(1).expect("one token more than was accepted");
        let drafts = &row.tokens[known..];
        assert!(
            drafts.starts_with(&tokens[..accepted]),
            "{request}: accepted what was not drafted"
        );
        let mut position = row.start + Tokens::new(known as u32);
        let mut ended = None;
        for &token in tokens {
            ended = self.append(request, token, position, None);
            if ended.is_some() {
                break;
            }
            position += Tokens::new(1);
        }
        let sequence = self.sequences.get_mut(&request).expect("a row's request is known");
        // The last token known is not computed.
        let computed = sequence.len() - Tokens::new(1);
        let (running, keys) = sequence.running_mut().expect("listed as running");
        self.control.rewind(&running.residency, computed);
        self.control.advance(&mut running.residency, keys, computed);
        if let Some(reason) = ended {
            self.finish(request, reason);
        } else {
            running.place.unasked = Some(computed);
            self.ask_placement(request);
        }
    }

    /// Appends a request's next token, and says why it was the last one wanted, where it was.
    fn append(
        &mut self,
        request: RequestId,
        token: u32,
        position: Tokens,
        logits: Option<Vec<f32>>,
    ) -> Option<FinishReason> {
        assert!(token < self.limits.vocab(), "{request}: token {token} of no vocabulary");
        let sequence = self.sequences.get_mut(&request).expect("a row's request is known");
        let logits = match sequence.logits {
            LogitsReport::Attach => logits,
            LogitsReport::Omit => None,
        };
        sequence.keys.extend(&[token]);
        sequence.usage.generated += Tokens::new(1);
        self.totals.generated += 1;
        let verdict = judge(&sequence.stop, sequence.generated());
        self.outputs.push_back(Output::Token { request, token, position, logits });
        match verdict {
            Verdict::Continue => None,
            Verdict::StopToken(id) => Some(FinishReason::StopToken(id)),
            Verdict::StopSequence(index) => Some(FinishReason::StopSequence(index)),
            Verdict::MaxTokens => Some(FinishReason::MaxTokens),
        }
    }

    fn fail(&mut self, batch: &StepBatch, flight: Flight, error: &RunError) {
        self.totals.batches_failed += 1;
        self.control.settle(flight.receipt, Outcome::Failed);
        for (row, admission) in batch.rows.iter().zip(flight.admissions) {
            self.fail_row(row, admission, error);
        }
        for admission in flight.restored {
            self.unload_spoilt(admission);
        }
    }

    fn fail_row(&mut self, row: &Row, admission: Admission, error: &RunError) {
        if self.running.get(&admission) != Some(&row.request) {
            return;
        }
        let sequence = self.sequences.get_mut(&row.request).expect("a row's request is known");
        sequence.usage.batch_failures += 1;
        if sequence.usage.batch_failures >= self.limits.batch_failures_max() {
            let failure = Failure::Batches(error.what.clone());
            return self.finish(row.request, FinishReason::Failed(failure));
        }
        self.preempt(row.request, PreemptCause::BatchFailed);
    }
}
