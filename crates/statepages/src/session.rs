//! Drives an engine for a list of prompts and stamps times: the only clock beside the engine.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use statepages_engine::{
    Engine, Event, FinishReason, LogitsReport, Output, Request, Runner, Sampling, Snapshot, Stop,
    Usage,
};
use statepages_page::RequestId;
use statepages_store::AdmitReport;

/// One prompt to be completed.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) prompt: Vec<u32>,
    pub(crate) sampling: Sampling,
    pub(crate) stop: Stop,
}

/// How many prompts the engine is given at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pace {
    /// The next when the last one has ended.
    Alone,
    /// All at once; the engine's slots bound how many are resident.
    Together,
}

/// A completed prompt.
#[derive(Clone, Debug)]
pub(crate) struct Completion {
    pub(crate) output: Vec<u32>,
    pub(crate) reason: FinishReason,
    pub(crate) report: AdmitReport,
    pub(crate) usage: Usage,
    /// Submission to admission.
    pub(crate) queue: Duration,
    /// Admission to the first token.
    pub(crate) ttft: Duration,
    /// Submission to the end.
    pub(crate) total: Duration,
}

/// What a caller hears of while prompts are served; indices are into the list of jobs.
pub(crate) trait Listener {
    /// A token was generated from `logits`.
    fn token(&mut self, index: usize, token: u32, logits: &[f32]);
    /// A batch of so many tokens was computed.
    fn computed(&mut self, tokens: u64);
    /// A prompt is completed.
    fn completed(&mut self, index: usize, completion: &Completion) -> Result<()>;
}

/// An engine and the ids it has given out.
pub(crate) struct Session<R: Runner> {
    engine: Engine<R>,
    next_id: u64,
}

/// A prompt under way.
struct Pending {
    index: usize,
    submitted: Instant,
    admitted: Option<(Instant, AdmitReport)>,
    first_token: Option<Instant>,
    output: Vec<u32>,
}

impl<R: Runner> Session<R> {
    pub(crate) fn new(engine: Engine<R>) -> Self {
        Self { engine, next_id: 0 }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.engine.snapshot()
    }

    /// Completes every job and returns the completions in the order of the jobs.
    pub(crate) fn serve(
        &mut self,
        jobs: &[Job],
        pace: Pace,
        listener: &mut impl Listener,
    ) -> Result<Vec<Completion>> {
        let mut done: Vec<Option<Completion>> = vec![None; jobs.len()];
        let mut pending = BTreeMap::new();
        let mut queue = jobs.iter().enumerate();
        loop {
            while pace == Pace::Together || pending.is_empty() {
                let Some((index, job)) = queue.next() else { break };
                let (id, entry) = self.submit(index, job);
                pending.insert(id, entry);
            }
            if pending.is_empty() {
                break;
            }
            let before = self.engine.snapshot().totals.computed;
            // A step admits before it computes, so admissions carry the time of its start.
            let started = Instant::now();
            self.engine.step();
            let step = Step { started, ended: Instant::now() };
            listener.computed(self.engine.snapshot().totals.computed - before);
            while let Some(output) = self.engine.next_output() {
                if let Some((index, completion)) = take(&mut pending, output, step, listener)? {
                    listener.completed(index, &completion)?;
                    done[index] = Some(completion);
                }
            }
        }
        Ok(done.into_iter().map(|one| one.expect("every job has ended")).collect())
    }

    fn submit(&mut self, index: usize, job: &Job) -> (RequestId, Pending) {
        let id = RequestId::new(self.next_id);
        self.next_id += 1;
        self.engine.handle(Event::Submit(Request {
            id,
            prompt: job.prompt.clone(),
            tenant_salt: None,
            adapter: None,
            sampling: job.sampling,
            stop: job.stop.clone(),
            logits: LogitsReport::Attach,
        }));
        let submitted = Instant::now();
        (id, Pending { index, submitted, admitted: None, first_token: None, output: Vec::new() })
    }
}

/// When a step of the engine began and ended.
#[derive(Clone, Copy)]
struct Step {
    started: Instant,
    ended: Instant,
}

fn take(
    pending: &mut BTreeMap<RequestId, Pending>,
    output: Output,
    step: Step,
    listener: &mut impl Listener,
) -> Result<Option<(usize, Completion)>> {
    match output {
        Output::Refused { request, why } => {
            let index = pending[&request].index;
            bail!("the prompt of index {index} was refused: {why}");
        }
        Output::Admitted { request, report } => {
            let entry = pending.get_mut(&request).expect("an admitted request is pending");
            entry.admitted.get_or_insert((step.started, report));
            tracing::info!(
                %request,
                prompt_tokens = %report.hit.full,
                kv_hit_tokens = report.hit.kv.get(),
                resumed_tokens = report.hit.resumable.get(),
                "admitted"
            );
        }
        Output::Token { request, token, logits, .. } => {
            let entry = pending.get_mut(&request).expect("a running request is pending");
            entry.first_token.get_or_insert(step.ended);
            entry.output.push(token);
            listener.token(entry.index, token, logits.as_deref().unwrap_or_default());
        }
        Output::Finished { request, reason, usage } => {
            let entry = pending.remove(&request).expect("a finished request was pending");
            let (admitted, Some(first), true) =
                (entry.admitted, entry.first_token, !matches!(reason, FinishReason::Failed(_)))
            else {
                bail!("prompt {} ended without a token: {reason}", entry.index);
            };
            let (admitted, report) = admitted.expect("a token comes after an admission");
            return Ok(Some((
                entry.index,
                Completion {
                    output: entry.output,
                    reason,
                    report,
                    usage,
                    queue: admitted.saturating_duration_since(entry.submitted),
                    ttft: first - admitted,
                    total: step.ended - entry.submitted,
                },
            )));
        }
        other => tracing::info!(?other, "engine"),
    }
    Ok(None)
}
