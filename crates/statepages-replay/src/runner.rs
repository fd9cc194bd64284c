//! A runner that computes nothing and answers from the trace where the trace has an answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use statepages_engine::{
    LogitsWanted, NullRunner, RemoteState, RowOutput, RunError, Runner, StepBatch, StepResult,
};
use statepages_page::{PageId, RequestId, SlotId};

/// The runner. Requests without a script get the null runner's tokens.
#[derive(Debug)]
pub(crate) struct Scripted {
    inner: NullRunner,
    scripts: BTreeMap<RequestId, Script>,
}

#[derive(Debug)]
struct Script {
    prompt: u32,
    reply: Arc<[u32]>,
}

impl Scripted {
    pub(crate) fn new(inner: NullRunner) -> Self {
        Self { inner, scripts: BTreeMap::new() }
    }

    /// Has `request`, whose prompt has `prompt` tokens, answered with `reply`.
    pub(crate) fn script(&mut self, request: RequestId, prompt: u32, reply: Arc<[u32]>) {
        self.scripts.insert(request, Script { prompt, reply });
    }

    /// The request has ended.
    pub(crate) fn forget(&mut self, request: RequestId) {
        self.scripts.remove(&request);
    }
}

impl Runner for Scripted {
    fn submit(&mut self, batch: StepBatch) {
        self.inner.submit(batch);
    }

    fn poll(&mut self) -> Option<StepResult> {
        let mut result = self.inner.poll()?;
        if self.scripts.is_empty() {
            return Some(result);
        }
        if let Ok(outputs) = &mut result.outcome {
            for (row, output) in result.batch.rows.iter().zip(outputs) {
                if row.logits == LogitsWanted::Last
                    && let Some(script) = self.scripts.get(&row.request)
                {
                    let at = (row.end().get() - script.prompt) as usize;
                    *output = RowOutput::Token(script.reply[at]);
                }
            }
        }
        Some(result)
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
