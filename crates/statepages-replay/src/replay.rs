//! The replay: traffic through the production engine, with nothing computed.
//!
//! Engine, scheduler, admission, placement, store and pool are the ones that serve; only the runner
//! is a stand-in. So what a replay counts is what a server of these sizes would count.
//!
//! `control_plane_ns` is the time inside the engine: submission (it hashes the prompt's blocks),
//! steps (admission, placement, batches, receipts) and taking its outputs. Tokenising and making up
//! ids are the trace's and are not in it. Whose clock it is, the caller's [`Watch`] says.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use statepages_engine::{
    Engine, EngineParts, Event, FinishReason, LogitsReport, NullRunner, Output, Passes, Progress,
    RawLimits, Refusal, Request, Sampling, Stop,
};
use statepages_page::{BlockSize, Bytes, Pages, RequestId, StateLayout};
use statepages_store::{
    BackendOrder, Caching, CheckpointInterval, CheckpointSpec, ControlPlane, ControlPlaneConfig,
    Counters, PolicyReport, Schedulers, Speculation, Spending, StateRuntime, StateTransfer,
};

use crate::error::ReplayError;
use crate::figures::RoundFigures;
use crate::policy::Policy;
use crate::runner::Scripted;
use crate::trace::{Ask, Order, Reply, Trace};
use crate::watch::{Stage, Watch};

/// Requests between two calls of the progress display.
const PROGRESS_EVERY: u64 = 16;

/// The server that is replayed on.
#[derive(Clone, Debug)]
pub struct Server {
    /// Layout of pages, slots and images.
    pub layout: StateLayout,
    /// Tokens of a block.
    pub block: BlockSize,
    /// Pages of the pool.
    pub pages: Pages,
    /// Requests that may be resident at once.
    pub seqs: u32,
    /// Tokens that one batch may compute.
    pub batched_tokens: u32,
    /// What is kept and what is given up.
    pub policy: Policy,
    /// Where state is kept, instead of the policy's own rule.
    pub interval: Option<CheckpointInterval>,
    /// What batches mix, instead of the policy's own rule.
    pub passes: Option<Passes>,
}

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// So many are under way at any time. From twice the server's residents on it is as if all had
    /// been sent at once.
    Concurrency(u32),
    /// At the trace's own times, against a modelled server: a batch takes the longer of the two.
    Times {
        /// Microseconds of a batch at least.
        batch_us: u64,
        /// Tokens computed in a second at most.
        tokens_per_s: u64,
    },
}

/// A workload and how often it is sent.
#[derive(Clone, Copy, Debug)]
pub struct Phase<'a> {
    /// The prompts.
    pub trace: &'a Trace,
    /// Times that they are sent.
    pub rounds: u32,
    /// When they are sent.
    pub pace: Pace,
}

/// A finished replay.
#[derive(Clone, Debug)]
pub struct Run {
    /// Every round of every phase.
    pub rounds: Vec<RoundFigures>,
    /// Totals of the control plane over all rounds.
    pub counters: Counters,
    /// What the policy says of itself at the end.
    pub policy: Option<PolicyReport>,
    /// Units of an image.
    pub units_per_checkpoint: Pages,
    /// Bytes of an image.
    pub image_bytes: Bytes,
}

/// Replays the phases one behind the other on one server, cold at the start.
pub fn replay(
    server: &Server,
    phases: &[Phase<'_>],
    order: Order,
    seed: u64,
    watch: &Watch<'_>,
) -> Result<Run, ReplayError> {
    let spec = CheckpointSpec::of(&server.layout)
        .map_err(|error| ReplayError::Geometry(error.to_string()))?;
    let (image, units) = (spec.image_bytes(), spec.units_per_checkpoint());
    let mut replay = Replay { engine: engine(server, spec)?, image, next_id: 0 };
    let mut rounds = Vec::new();
    for phase in phases {
        for round in 1..=phase.rounds {
            let mut order = order.of(&phase.trace.asks, seed, u64::from(round));
            keep_turns(&phase.trace.asks, &mut order);
            rounds.push(replay.round(phase, round, &order, watch)?);
        }
    }
    let counters = replay.engine.snapshot().counters;
    let policy = replay.engine.control().policy_report();
    Ok(Run { rounds, counters, policy, units_per_checkpoint: units, image_bytes: image })
}

fn engine(server: &Server, spec: CheckpointSpec) -> Result<Engine<Scripted>, ReplayError> {
    let Server { layout, pages, seqs, batched_tokens, policy, block, .. } = server;
    let block = *block;
    let transfer = StateTransfer::Copy { layout: layout.id.clone() };
    let config = ControlPlaneConfig {
        pages: *pages,
        pages_max: *pages,
        slots: *seqs,
        block,
        runtime: StateRuntime::new(transfer, Some(spec))
            .map_err(|error| ReplayError::Geometry(error.to_string()))?,
        caching: Caching::On,
        interval: server.interval.unwrap_or(policy.interval(block)),
        copying_max: None,
        order: BackendOrder::Ordered,
        speculation: Speculation::Off,
        pipeline_stages: 1,
        schedulers: Schedulers::Unified,
        events_max: 0,
    };
    let control = ControlPlane::new(config, policy.victims(*pages, layout.units_per_checkpoint()))?;
    let vocab = u32::MAX;
    let limits = RawLimits {
        max_num_batched_tokens: u64::from(*batched_tokens),
        max_num_seqs: u64::from(*seqs),
        max_in_flight: 1,
        max_model_len: u64::from(u32::MAX),
        vocab: u64::from(vocab),
        waiting_max: u64::from(u32::MAX),
        batch_failures_max: 1,
        load_steps_max: 0,
    };
    let parts = EngineParts {
        control,
        limits,
        model_revision: "replay".to_owned(),
        layout: Some(layout.id.clone()),
    };
    let mut engine = Engine::new(parts, Scripted::new(NullRunner::new(0, vocab)))?;
    engine.set_passes(server.passes.unwrap_or(policy.passes()));
    Ok(engine)
}

/// Lets the turns of each session take its places in the order of the file.
pub(crate) fn keep_turns(asks: &[Ask], order: &mut [usize]) {
    let mut turns: BTreeMap<u32, VecDeque<usize>> = BTreeMap::new();
    for (at, ask) in asks.iter().enumerate() {
        if let Some(session) = ask.session {
            turns.entry(session).or_default().push_back(at);
        }
    }
    for place in order {
        if let Some(session) = asks[*place].session {
            let turns = turns.get_mut(&session).expect("every session is listed");
            *place = turns.pop_front().expect("a place for each turn");
        }
    }
}

struct Replay {
    engine: Engine<Scripted>,
    image: Bytes,
    next_id: u64,
}

/// A round under way.
struct Round<'a> {
    trace: &'a Trace,
    /// Places in the order of sending, and indices of their prompts.
    queue: VecDeque<(usize, usize)>,
    open: BTreeMap<RequestId, (usize, usize)>,
    /// Sessions with a turn under way.
    busy: BTreeSet<u32>,
    figures: RoundFigures,
    /// Microseconds of the modelled server; stands still where requests are paced by number.
    clock_us: u64,
}

impl Round<'_> {
    /// Takes the first prompt of the queue that may be sent.
    fn next(&mut self, pace: Pace) -> Option<(usize, usize)> {
        if let Pace::Concurrency(most) = pace
            && self.open.len() >= most as usize
        {
            return None;
        }
        // A later turn never overtakes an earlier one of its session: that one is found first.
        let mut held = BTreeSet::new();
        let at = self.queue.iter().position(|&(_, index)| {
            let ask = &self.trace.asks[index];
            let early = matches!(pace, Pace::Times { .. })
                && ask.arrival.is_some_and(|arrival| arrival > self.clock_us);
            match ask.session {
                None => !early,
                Some(session) => {
                    let free = !self.busy.contains(&session) && held.insert(session);
                    free && !early
                }
            }
        })?;
        self.queue.remove(at)
    }

    /// The earliest time at which anything of the queue may be sent.
    fn next_arrival(&self) -> Option<u64> {
        self.queue.iter().filter_map(|&(_, index)| self.trace.asks[index].arrival).min()
    }
}

impl Replay {
    fn round(
        &mut self,
        phase: &Phase<'_>,
        number: u32,
        order: &[usize],
        watch: &Watch<'_>,
    ) -> Result<RoundFigures, ReplayError> {
        let Phase { trace, pace, .. } = *phase;
        let timed = matches!(pace, Pace::Times { .. });
        if timed && let Some(index) = trace.asks.iter().position(|ask| ask.arrival.is_none()) {
            return Err(ReplayError::NoArrival { workload: trace.name.clone(), index });
        }
        let before = self.engine.snapshot();
        let mut round = Round {
            trace,
            queue: order.iter().copied().enumerate().collect(),
            open: BTreeMap::new(),
            busy: BTreeSet::new(),
            figures: RoundFigures::new(&trace.name, number, order.len()),
            clock_us: 0,
        };
        loop {
            while let Some((sent, index)) = round.next(pace) {
                self.send(&mut round, sent, index, watch);
            }
            if round.open.is_empty() {
                let Some(arrival) = round.next_arrival().filter(|_| timed) else { break };
                round.clock_us = round.clock_us.max(arrival);
                continue;
            }
            self.step(&mut round, pace, watch)?;
        }
        assert!(round.queue.is_empty(), "a prompt is held back for ever");
        let after = self.engine.snapshot();
        round.figures.close(&before, &after, self.image);
        let report = self.engine.control().policy_report();
        round.figures.adapted_at_request = report.and_then(|report| match report.ahead {
            Spending::Paying => None,
            Spending::Thrifty { since } => Some(since),
        });
        Ok(round.figures)
    }

    fn send(&mut self, round: &mut Round<'_>, sent: usize, index: usize, watch: &Watch<'_>) {
        let ask = &round.trace.asks[index];
        let id = RequestId::new(self.next_id);
        self.next_id += 1;
        let prompt = ask.prompt.ids();
        if let Reply::Ids(reply) = &ask.reply {
            self.engine.runner_mut().script(id, prompt.len() as u32, reply.clone());
        }
        round.busy.extend(ask.session);
        round.open.insert(id, (sent, index));
        let request = Request {
            id,
            prompt,
            tenant_salt: None,
            adapter: None,
            sampling: Sampling::GREEDY,
            stop: Stop::after(ask.reply.len()),
            logits: LogitsReport::Omit,
        };
        let begun = (watch.now)();
        self.engine.handle(Event::Submit(request));
        round.figures.control_plane_ns += (watch.now)() - begun;
    }

    fn step(
        &mut self,
        round: &mut Round<'_>,
        pace: Pace,
        watch: &Watch<'_>,
    ) -> Result<(), ReplayError> {
        let begun = (watch.now)();
        let progress = self.engine.step();
        if let (Pace::Times { batch_us, tokens_per_s }, Progress::Submitted { tokens, .. }) =
            (pace, progress)
        {
            let computing = u64::from(tokens.get()) * 1_000_000 / tokens_per_s.max(1);
            round.clock_us += computing.max(batch_us);
        }
        let (mut finished, mut too_long) = (Vec::new(), Vec::new());
        while let Some(output) = self.engine.next_output() {
            match output {
                Output::Finished { request, reason, usage } => {
                    finished.push((request, reason, usage));
                }
                Output::Refused { request, why: Refusal::TooLong { .. } } => too_long.push(request),
                Output::Refused { request, why } => {
                    let (_, index) = round.open[&request];
                    let workload = round.trace.name.clone();
                    return Err(ReplayError::Refused { workload, index, why });
                }
                _ => {}
            }
        }
        round.figures.control_plane_ns += (watch.now)() - begun;
        round.figures.too_long += too_long.len() as u64;
        for request in too_long {
            self.close(round, request);
        }
        for (request, reason, usage) in finished {
            let (sent, index) = self.close(round, request);
            if reason != FinishReason::MaxTokens {
                let workload = round.trace.name.clone();
                return Err(ReplayError::Unfinished { workload, index, end: reason.to_string() });
            }
            round.figures.finished(sent, &usage);
            let done = round.figures.requests;
            if done.is_multiple_of(PROGRESS_EVERY) {
                (watch.progress)(Stage::Replaying, done, round.trace.asks.len() as u64);
            }
        }
        Ok(())
    }

    /// A request has ended: its script is over, and the next turn of its session may be sent.
    fn close(&mut self, round: &mut Round<'_>, request: RequestId) -> (usize, usize) {
        let (sent, index) = round.open.remove(&request).expect("what ends was sent");
        self.engine.runner_mut().forget(request);
        if let Some(session) = round.trace.asks[index].session {
            round.busy.remove(&session);
        }
        (sent, index)
    }
}
