//! The loop: one owner of the control plane, the runner, the connector and every request.
//!
//! ```text
//! step: collect (loads, results) -> land, expire -> build (admit, place, cut, drain) -> submit
//!       -> collect
//! ```
//!
//! Invariants
//! - Every known request is in exactly one of `waiting`, `running`, `parked`, or has finished; the
//!   map says where, the sequence's state says what it holds.
//! - `flights` are the submitted and unreported batches, oldest first; each owns its receipt.
//! - Residencies end by the control plane's one door alone, and never while a load may still write
//!   into them: those wait in `draining`.
//! - Nothing here reads a clock, draws a number or starts a thread; what the maps are iterated in is
//!   the order of arrival or admission.

use std::collections::{BTreeMap, VecDeque};

use statepages_model::Sampling;
use statepages_page::{BatchId, Domain, LayoutId, Pages, RequestId, Tokens};
use statepages_store::{ControlPlane, EventDrain, Outcome, PromptKeys, Receipt, Residency, Retire};

use crate::connector::{Connector, LoadId, NoConnector};
use crate::event::Event;
use crate::limits::{LimitError, Limits, PoolFacts, RawLimits};
use crate::metrics::{Snapshot, Totals};
use crate::output::{FinishReason, Output, PreemptCause};
use crate::request::{Acceptable, Refusal, Request, check};
use crate::runner::{Runner, StepBatch};
use crate::schedule::Passes;
use crate::sequence::{Admission, Arrival, Owed, Sequence, State};

/// What an engine is made of, beside its runner and connector.
#[derive(Debug)]
pub struct EngineParts {
    /// The control plane, empty.
    pub control: ControlPlane,
    /// Limits, not yet checked.
    pub limits: RawLimits,
    /// Revision of the model's weights: requests of different revisions share nothing.
    pub model_revision: String,
    /// Layout of pages and images; `None` for models without paged state.
    pub layout: Option<LayoutId>,
}

/// An engine. See the module's head.
#[derive(Debug)]
pub struct Engine<R: Runner, C: Connector = NoConnector> {
    pub(crate) control: ControlPlane,
    pub(crate) limits: Limits,
    pub(crate) passes: Passes,
    /// Whether pages were short when decodes were last planned by themselves.
    pub(crate) decodes_short: bool,
    pub(crate) runner: R,
    pub(crate) connector: C,
    model_revision: String,
    layout: Option<LayoutId>,
    /// Bits that a simulator has left of every other content key.
    key_bits: Option<u32>,
    pub(crate) sequences: BTreeMap<RequestId, Sequence>,
    pub(crate) waiting: BTreeMap<Arrival, RequestId>,
    pub(crate) running: BTreeMap<Admission, RequestId>,
    pub(crate) parked: BTreeMap<LoadId, RequestId>,
    pub(crate) draining: BTreeMap<LoadId, Residency>,
    pub(crate) flights: VecDeque<Flight>,
    /// Batches whose memory is used again.
    pub(crate) spare: Vec<StepBatch>,
    pub(crate) outputs: VecDeque<Output>,
    pub(crate) totals: Totals,
    pub(crate) issued: Issued,
}

/// The last number given out of each kind.
#[derive(Debug, Default)]
pub(crate) struct Issued {
    pub(crate) arrivals: u64,
    pub(crate) admissions: u64,
    pub(crate) loads: u64,
    pub(crate) steps: u64,
}

/// A batch in flight: what has to be known when it is reported.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) id: BatchId,
    pub(crate) receipt: Receipt,
    /// The residency of each row, in row order.
    pub(crate) admissions: Vec<Admission>,
    /// Residencies whose slot the batch's restores write, with a row in it or without.
    pub(crate) restored: Vec<Admission>,
}

/// What a step came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// A batch was submitted.
    Submitted {
        /// Its id.
        batch: BatchId,
        /// Requests in it.
        rows: u32,
        /// Tokens it computes.
        tokens: Tokens,
    },
    /// Nothing could be submitted until a batch in flight is reported.
    AwaitingBatch,
    /// Nothing can be submitted until a remote load ends.
    AwaitingLoad,
    /// There is nothing to do.
    Idle,
}

impl<R: Runner> Engine<R> {
    /// An engine without a remote side.
    pub fn new(parts: EngineParts, runner: R) -> Result<Self, LimitError> {
        Self::with_connector(parts, runner, NoConnector)
    }
}

impl<R: Runner, C: Connector> Engine<R, C> {
    /// An engine that loads from a remote side.
    pub fn with_connector(parts: EngineParts, runner: R, connector: C) -> Result<Self, LimitError> {
        let EngineParts { control, limits, model_revision, layout } = parts;
        let config = control.config();
        let pool = PoolFacts { pages: config.pages, slots: config.slots, block: config.block };
        let limits = Limits::new(limits, pool)?;
        Ok(Self {
            control,
            limits,
            passes: Passes::Mixed,
            decodes_short: false,
            runner,
            connector,
            model_revision,
            layout,
            key_bits: None,
            sequences: BTreeMap::new(),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            parked: BTreeMap::new(),
            draining: BTreeMap::new(),
            flights: VecDeque::new(),
            spare: Vec::new(),
            outputs: VecDeque::new(),
            totals: Totals::default(),
            issued: Issued::default(),
        })
    }

    /// Sets which requests later batches take together; at first [`Passes::Mixed`]. No batch that
    /// was built rests on it, so it may change between any two steps.
    pub const fn set_passes(&mut self, passes: Passes) {
        self.passes = passes;
    }

    /// Takes one event.
    pub fn handle(&mut self, event: Event) {
        match event {
            Event::Submit(request) => {
                let id = request.id;
                if let Err(why) = self.submit(request) {
                    self.outputs.push_back(Output::Refused { request: id, why });
                }
            }
            Event::Abort(id) => self.abort(id),
            Event::BatchDone(result) => self.batch_done(result),
            Event::RemoteLoad(done) => self.load_done(done),
            Event::ResetPrefixCache => self.control.reset(),
        }
    }

    /// One turn of the loop: takes what runner and connector report, and submits at most one batch.
    pub fn step(&mut self) -> Progress {
        self.issued.steps += 1;
        self.collect();
        self.call_off_late_loads();
        self.land_arrived_loads();
        if self.flights.len() < self.limits.in_flight().count()
            && let Some(batch) = self.build()
        {
            let progress = Progress::Submitted {
                batch: batch.id,
                rows: batch.rows.len() as u32,
                tokens: Tokens::new(batch.tokens() as u32),
            };
            self.runner.submit(batch);
            // A runner that computes at once has its results ready: they count in this step.
            self.collect();
            return progress;
        }
        if !self.flights.is_empty() {
            Progress::AwaitingBatch
        } else if !self.parked.is_empty() || !self.draining.is_empty() {
            Progress::AwaitingLoad
        } else {
            assert!(
                self.waiting.is_empty() && self.running.is_empty(),
                "an engine that holds nothing can admit any request it took"
            );
            Progress::Idle
        }
    }

    /// The oldest output not yet taken.
    pub fn next_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Takes all outputs, in order.
    pub fn drain_outputs(&mut self) -> impl Iterator<Item = Output> + '_ {
        self.outputs.drain(..)
    }

    /// Takes a request, or says what is wrong with it.
    pub fn submit(&mut self, request: Request) -> Result<(), Refusal> {
        let admissible = self.admissible(&request);
        match &admissible {
            Ok(_) => self.totals.submitted += 1,
            Err(_) => self.totals.refused += 1,
        }
        let sampling = admissible?;
        let domain = Domain {
            tenant_salt: request.tenant_salt.as_deref(),
            adapter: request.adapter.as_deref(),
            media: None,
            model_revision: &self.model_revision,
            layout: self.layout.as_ref(),
        };
        let (id, tag) = (request.id, domain.tag());
        self.issued.arrivals += 1;
        let arrival = Arrival(self.issued.arrivals);
        let block = self.control.config().block;
        let keys = match self.key_bits {
            None => PromptKeys::new(tag, block),
            Some(bits) => PromptKeys::colliding(tag, block, bits),
        };
        let sequence = Sequence::new(request, sampling, arrival, keys);
        self.waiting.insert(arrival, id);
        self.sequences.insert(id, sequence);
        Ok(())
    }

    fn admissible(&self, request: &Request) -> Result<Sampling, Refusal> {
        let acceptable =
            Acceptable { vocab: self.limits.vocab(), tokens_max: self.limits.tokens_max() };
        let sampling = check(request, acceptable)?;
        if self.sequences.contains_key(&request.id) {
            return Err(Refusal::DuplicateId(request.id));
        }
        let waiting_max = self.limits.waiting_max();
        if self.waiting.len() >= waiting_max as usize {
            return Err(Refusal::QueueFull { waiting_max });
        }
        Ok(sampling)
    }

    /// Ends a request at whatever stage it is. Unknown and finished ones are ignored.
    pub fn abort(&mut self, id: RequestId) {
        let live = |sequence: &Sequence| !matches!(sequence.state(), State::Finished(_));
        if self.sequences.get(&id).is_some_and(live) {
            self.finish(id, FinishReason::Aborted);
        }
    }

    /// Grows the pool by up to `count` pages, which the runner's memory has to have already, and says
    /// by how many.
    pub fn extend(&mut self, count: Pages) -> Pages {
        self.control.extend(count)
    }

    /// Shrinks the pool by its highest page, where nobody holds it and no batch is in flight. `None`
    /// at the size that the limits were checked against: a request that was taken has to fit for
    /// ever.
    pub fn retire_top(&mut self) -> Option<Retire> {
        let above = self.control.gauges().pages_total > self.control.config().pages.get();
        above.then(|| self.control.retire_free_top())
    }

    /// Leaves only `bits` bits of every other content key of requests submitted from here on
    /// ([`PromptKeys::colliding`]): for simulators.
    pub const fn collide_keys(&mut self, bits: u32) {
        self.key_bits = Some(bits);
    }

    /// Everything countable, now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            totals: self.totals,
            counters: self.control.counters(),
            gauges: self.control.gauges(),
            waiting: self.waiting.len() as u32,
            parked: self.parked.len() as u32,
            running: self.running.len() as u32,
            draining: self.draining.len() as u32,
            in_flight: self.flights.len() as u32,
        }
    }

    /// The validated limits.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The control plane, for reading.
    pub const fn control(&self) -> &ControlPlane {
        &self.control
    }

    /// What became findable and what no longer is, since the last call.
    pub fn kv_events(&mut self) -> EventDrain<'_> {
        self.control.events()
    }

    /// The runner.
    pub const fn runner(&self) -> &R {
        &self.runner
    }

    /// The runner, for what the loop does not do: resetting a latched failure, say.
    pub const fn runner_mut(&mut self) -> &mut R {
        &mut self.runner
    }

    /// The connector.
    pub const fn connector_mut(&mut self) -> &mut C {
        &mut self.connector
    }

    fn collect(&mut self) {
        while let Some(done) = self.connector.poll() {
            self.handle(Event::RemoteLoad(done));
        }
        while let Some(result) = self.runner.poll() {
            self.handle(Event::BatchDone(result));
        }
    }

    /// Takes the request off whichever list it is on.
    pub(crate) fn unlist(&mut self, id: RequestId) {
        let sequence = &self.sequences[&id];
        let listed = match sequence.state() {
            State::Waiting | State::Preempted => self.waiting.remove(&sequence.arrival),
            State::Running(running) => self.running.remove(&running.admission),
            State::Parked(parked) => self.parked.remove(&parked.load.id),
            State::Finished(_) => panic!("{id} has finished"),
        };
        assert_eq!(listed, Some(id), "every live request is on the list of its state");
    }

    /// Ends a live request.
    pub(crate) fn finish(&mut self, id: RequestId, reason: FinishReason) {
        self.unlist(id);
        match &reason {
            FinishReason::Aborted => self.totals.aborted += 1,
            FinishReason::Failed(_) => self.totals.failed += 1,
            _ => self.totals.completed += 1,
        }
        let sequence = self.sequences.get_mut(&id).expect("a listed request is known");
        let owed = sequence.finish(reason.clone());
        let usage = sequence.usage.clone();
        self.outputs.push_back(Output::Finished { request: id, reason, usage });
        match owed {
            Owed::Nothing => {}
            Owed::Release(residency) => {
                self.control.release(residency);
            }
            Owed::Drain(load, residency) => self.drain(load, residency),
        }
        self.forget(id);
    }

    /// Drops a finished request once no batch in flight names it.
    pub(crate) fn forget(&mut self, id: RequestId) {
        let sequence = &self.sequences[&id];
        if matches!(sequence.state(), State::Finished(_)) && sequence.rows_out == 0 {
            self.sequences.remove(&id);
        }
    }

    /// Running -> Preempted: slot and pages go back through the one door, the request waits again
    /// in the order of its arrival.
    pub(crate) fn preempt(&mut self, id: RequestId, cause: PreemptCause) {
        self.unlist(id);
        let sequence = self.sequences.get_mut(&id).expect("a listed request is known");
        let residency = sequence.preempt();
        sequence.usage.preemptions += 1;
        self.waiting.insert(sequence.arrival, id);
        match cause {
            PreemptCause::NoPage => self.totals.preempted_no_page += 1,
            PreemptCause::BatchFailed => self.totals.preempted_batch_failed += 1,
        }
        self.outputs.push_back(Output::Preempted { request: id, cause });
        self.control.release(residency);
    }

    /// Audits requests, lists and control plane in O(n).
    ///
    /// # Panics
    /// Where an invariant does not hold.
    pub fn check(&self) {
        self.control.check();
        let mut listed = 0;
        let lists = self.waiting.values().chain(self.running.values()).chain(self.parked.values());
        for id in lists {
            listed += 1;
            let sequence = &self.sequences[id];
            let on_list = match sequence.state() {
                State::Waiting | State::Preempted => self.waiting.get(&sequence.arrival),
                State::Running(running) => self.running.get(&running.admission),
                State::Parked(parked) => self.parked.get(&parked.load.id),
                State::Finished(_) => None,
            };
            assert_eq!(on_list, Some(id), "{id} is on the list of another state");
        }
        let finished = self.sequences.values().filter(|s| matches!(s.state(), State::Finished(_)));
        for sequence in finished {
            listed += 1;
            assert!(sequence.rows_out > 0, "{} has finished and nothing names it", sequence.id);
        }
        assert_eq!(listed, self.sequences.len(), "a request is on no list");
        let rows: usize = self.flights.iter().map(|flight| flight.admissions.len()).sum();
        let out: u32 = self.sequences.values().map(|sequence| sequence.rows_out).sum();
        assert_eq!(rows, out as usize, "rows in flight");
    }
}

/// Gives everything back, so that the control plane's tickets end as they must.
impl<R: Runner, C: Connector> Drop for Engine<R, C> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let live = self.waiting.values().chain(self.running.values()).chain(self.parked.values());
        for id in live.copied().collect::<Vec<_>>() {
            self.finish(id, FinishReason::Aborted);
        }
        for (_, residency) in std::mem::take(&mut self.draining) {
            self.control.release(residency);
        }
        for flight in self.flights.drain(..) {
            self.control.settle(flight.receipt, Outcome::Failed);
        }
    }
}
