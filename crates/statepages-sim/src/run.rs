//! The driver: stimuli in, the production loop turned, everything audited after each event.
//!
//! An event is one outside stimulus (submission, abort, reset) or one completion (a batch's report, a
//! load's end). Turns of the loop are no events.
//!
//! After each: requests, lists, pages, slots, pins and counters agree (the engine's own audit); the
//! bytes of every READY image are exactly the state its key names, and its boundary is that state's
//! position; no row of the youngest batch writes a unit of a record or another row's page; every byte
//! a forward read was right; every token is the oracle's; nobody lost a page while a checkpoint was
//! being written, or a residency to a batch that did not carry it; nobody overtook one who had waited
//! longer, or got the pages that others gave up for an older one; what residents of before a reset
//! compute is not found; a view kept from events is the index; no batch is beyond its limits.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use statepages_engine::{
    DelayedConnector, Engine, EngineParts, Event, Faults, FinishReason, LoadEnd, LogitsReport,
    Output, PreemptCause, Progress, RawLimits, Request, Sampling, Stop,
};
use statepages_page::{ContentKey, Pages, RequestId};
use statepages_store::{RecordState, RecordView};

use crate::device::{Device, Reported, model};
use crate::far::{FarSide, Lent};
use crate::mirror::Mirror;
use crate::oracle::{Oracle, REVISION, Remote, VOCAB, salt};
use crate::random::{Random, mix};
use crate::residents::Residents;
use crate::setup::{Act, Acts, Bug, Setup};
use crate::tally::{Fault, Met, Tally};

/// Requests that are live at once, at most: more only wait.
const LIVE_MAX: usize = 24;
/// Tokens of a prompt at most, where it is not drawn to be shorter.
const PROMPT_MAX: usize = 34;
/// Turns that an ambush waits at most.
const AMBUSH_TURNS: u32 = 40;
/// Turns between two looks at the events.
const MIRROR_EVERY: u64 = 8;
/// Texts that prompts begin with, and tokens of each that the far side has.
const FAMILIES: u64 = 3;
const REMOTE_LEN: usize = 28;
/// Finished requests that may be continued or aborted late.
const REMEMBERED: usize = 12;

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Report {
    /// Stimuli and completions.
    pub events: u64,
    /// Turns of the loop.
    pub steps: u64,
    /// Batches that ran.
    pub batches: u64,
    /// Tokens that were resumed rather than computed.
    pub resumed: u64,
    /// Stores handed to a batch.
    pub kept: u64,
    /// Digest of every operation and row of every batch, in order: replicas agree on it.
    pub log: u64,
    /// How often each fault met each state.
    pub tally: Tally,
}

/// Turns of a drain after which loads that are lost by then are declared dead, again and again.
const DEAD_EVERY: u32 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    Parked,
    Prefilling,
    Decoding,
    Preempted,
}

struct Live {
    phase: Phase,
    prompt: Vec<u32>,
    tenant: u8,
    heard: u32,
}

struct Past {
    id: RequestId,
    tokens: Vec<u32>,
    tenant: u8,
}

struct World {
    setup: Setup,
    engine: Engine<Device, FarSide>,
    oracle: Rc<RefCell<Oracle>>,
    live: BTreeMap<RequestId, Live>,
    past: VecDeque<Past>,
    /// Finished requests that a batch in flight may still name.
    leaving: BTreeSet<RequestId>,
    residents: Residents,
    /// Whether somebody has given pages up for an older request in the present turn.
    short: bool,
    /// Requests that were resident when the cache was last emptied, and still are; and the keys of all
    /// streams that were admitted since.
    stale: BTreeSet<RequestId>,
    fresh_keys: BTreeSet<ContentKey>,
    mirror: Mirror,
    next: u64,
    stimuli: u64,
    bugs: Random,
    /// States present when the present turn began.
    met_before: Vec<Met>,
    report: Report,
}

/// Runs a seed's world until so many events have happened.
///
/// # Panics
/// Where an invariant does not hold. `done` has every stimulus up to that one.
pub fn run(setup: &Setup, events: u64, done: &mut Vec<Act>) -> Report {
    let mut world = World::new(setup);
    for act in Acts::of(setup) {
        if world.report.events >= events {
            break;
        }
        done.push(act.clone());
        world.perform(&act);
    }
    done.push(Act::Drain);
    world.perform(&Act::Drain);
    world.end()
}

/// Runs a world on a list of stimuli, and then until nothing is left.
///
/// # Panics
/// Where an invariant does not hold.
pub fn replay(setup: &Setup, acts: &[Act]) -> Report {
    let mut world = World::new(setup);
    for act in acts {
        world.perform(act);
    }
    world.perform(&Act::Drain);
    world.end()
}

/// `len` tokens of a text, of few different ones, so that blocks repeat.
fn text(family: u64, len: usize) -> Vec<u32> {
    (0..len as u64).map(|at| (mix(family ^ mix(at)) % u64::from(VOCAB)) as u32).collect()
}

impl World {
    fn new(setup: &Setup) -> Self {
        let layout = model(setup).layout();
        let oracle =
            Oracle::new(setup.block_size(), layout.id.clone(), setup.lanes, setup.key_bits);
        let remote = Remote {
            domain: oracle.domain(0),
            block: setup.block_size(),
            lanes: setup.lanes,
            texts: (0..FAMILIES).map(|family| text(family, REMOTE_LEN)).collect(),
        };
        let oracle = Rc::new(RefCell::new(oracle));
        let [failing, doubled, stuck, lost] = setup.load_faults;
        let faults = Faults { seed: setup.seed, steps_max: 6, failing, doubled, stuck, lost };
        let connector = FarSide::new(
            DelayedConnector::new(remote, faults),
            setup.offers,
            setup.bug == Some(Bug::SilentLoads),
            Random::new(setup.seed, 6),
        );
        let parts = EngineParts {
            control: setup.control(),
            limits: RawLimits {
                max_num_batched_tokens: setup.budget,
                max_num_seqs: u64::from(setup.slots),
                max_in_flight: setup.in_flight,
                max_model_len: 10_000,
                vocab: u64::from(VOCAB),
                waiting_max: 1_000,
                batch_failures_max: setup.failures_max,
                load_steps_max: setup.load_steps,
            },
            model_revision: REVISION.to_owned(),
            layout: Some(layout.id),
        };
        let device = Device::new(setup, Rc::clone(&oracle));
        let mut engine =
            Engine::with_connector(parts, device, connector).expect("limits fit the world");
        if let Some(bits) = setup.key_bits {
            engine.collide_keys(bits);
        }
        Self {
            engine,
            setup: setup.clone(),
            oracle,
            live: BTreeMap::new(),
            past: VecDeque::new(),
            leaving: BTreeSet::new(),
            residents: Residents::default(),
            stale: BTreeSet::new(),
            short: false,
            fresh_keys: BTreeSet::new(),
            mirror: Mirror::default(),
            next: 0,
            stimuli: 0,
            bugs: Random::new(setup.seed, 3),
            met_before: Vec::new(),
            report: Report::default(),
        }
    }

    fn perform(&mut self, act: &Act) {
        match *act {
            Act::Submit { family, shared, tail, tokens, tenant } => {
                let mut prompt = text(u64::from(family), usize::from(shared));
                prompt.extend(text(1_000 + self.next, usize::from(tail)));
                self.submit(prompt, tenant, u32::from(tokens));
            }
            Act::Continue { which, turn, tokens } => {
                let Some(index) = usize::from(which).checked_rem(self.past.len()) else { return };
                let Past { tokens: before, tenant, .. } = &self.past[index];
                let (mut prompt, tenant) = (before.clone(), *tenant);
                prompt.extend(text(1_000 + self.next, usize::from(turn)));
                prompt.truncate(PROMPT_MAX);
                self.submit(prompt, tenant, u32::from(tokens));
            }
            Act::Burst { family, blocks, count } => {
                self.meet(Fault::Burst);
                for _ in 0..count {
                    let prompt = text(u64::from(family), usize::from(blocks) * 4);
                    self.submit(prompt, 0, 6);
                }
            }
            Act::Ambush { family, spared, tokens, reset } => {
                if self.ambush(u64::from(family), spared, u32::from(tokens)) && reset {
                    self.perform(&Act::Reset);
                    self.step();
                }
            }
            Act::Abort(which) => self.abort(which),
            Act::Step => {
                self.step();
            }
            Act::Reset => {
                self.stimuli += 1;
                self.meet(Fault::Reset);
                self.engine.handle(Event::ResetPrefixCache);
                let residents = self.live.iter().filter(|(_, live)| holds_pages(live.phase));
                self.stale = residents.map(|(&id, _)| id).collect();
                self.fresh_keys.clear();
                self.audit();
            }
            Act::Extend(count) => {
                if self.engine.extend(Pages::new(u32::from(count))) > Pages::ZERO {
                    self.stimuli += 1;
                    self.meet(Fault::Extend);
                    self.audit();
                }
            }
            Act::Retire(count) => {
                for _ in 0..count {
                    let states = self.present();
                    if self.engine.retire_top().is_none() {
                        break;
                    }
                    self.stimuli += 1;
                    self.report.tally.meet(Fault::Retire, states);
                    self.audit();
                }
            }
            Act::Drain => self.drain(),
        }
    }

    fn submit(&mut self, mut prompt: Vec<u32>, tenant: u8, tokens: u32) {
        if self.live.len() >= LIVE_MAX {
            return;
        }
        if prompt.is_empty() {
            prompt.push(0);
        }
        let id = RequestId::new(self.next);
        self.next += 1;
        self.stimuli += 1;
        self.oracle.borrow_mut().add(id, tenant, &prompt, tokens);
        let shown = if self.setup.bug == Some(Bug::OneTenant) { 0 } else { tenant };
        let request = Request {
            id,
            prompt: prompt.clone(),
            tenant_salt: salt(shown),
            adapter: None,
            sampling: Sampling::GREEDY,
            stop: Stop::after(tokens),
            logits: LogitsReport::Omit,
        };
        self.live.insert(id, Live { phase: Phase::Waiting, prompt, tenant, heard: 0 });
        self.engine.submit(request).expect("requests of the workload fit the pool");
        self.audit();
    }

    /// Whether it has come to a prompt.
    fn ambush(&mut self, family: u64, spared: u8, tokens: u32) -> bool {
        for _ in 0..AMBUSH_TURNS {
            let mut families = (0..FAMILIES).map(|next| (family + next) % FAMILIES);
            let prompt = families.find_map(|family| self.filling(family, spared));
            if let Some(prompt) = prompt {
                self.submit(prompt, 0, tokens);
                self.step();
                if spared > 0 {
                    self.submit(text(1_000 + self.next, 3), 1, 1);
                    self.step();
                }
                return true;
            }
            self.step();
        }
        false
    }

    /// A prompt that resumes from a state here, has more of its text at the far side, and takes all pages
    /// that are left but so many; where its turn has come.
    fn filling(&self, family: u64, spared: u8) -> Option<Vec<u32>> {
        let mut decoding = self.live.values().filter(|live| live.phase == Phase::Decoding);
        let ends =
            |live: &Live| (live.prompt.len() as u32 + live.heard).is_multiple_of(self.setup.block);
        let snapshot = self.engine.snapshot();
        let full = snapshot.gauges.slots_free == 0 || snapshot.waiting > 0;
        if full || snapshot.in_flight == 0 || !decoding.any(ends) {
            return None;
        }
        let mut prompt = text(family, REMOTE_LEN);
        let mut keys = self.oracle.borrow().keys(0);
        keys.extend(&prompt);
        let control = self.engine.control();
        let resumable = control.probe(&keys).resumable;
        let block = self.setup.block_size();
        let key = keys.key_at(resumable)?;
        // The state's own units are no longer to be had, nor are blocks that nobody holds now.
        let unread = |record: &RecordView<'_>| {
            record.key == key && record.state == RecordState::Ready { pins: 0 }
        };
        let units = control.records().find(unread).map_or(0, |record| record.units.len());
        let found = block.blocks_floor(resumable.tokens()).index();
        let shared = self.live.values().filter(|live| live.tenant == 0 && holds_pages(live.phase));
        let common = shared.map(|live| {
            live.prompt.iter().zip(&prompt).take_while(|(one, other)| one == other).count()
        });
        let held = common.max().unwrap_or(0) / block.get() as usize;
        let taken = units + found.saturating_sub(held) + usize::from(spared);
        let pages = (found + control.available().index()).checked_sub(taken)?;
        let len = pages * block.get() as usize;
        if !(prompt.len()..=PROMPT_MAX).contains(&len) {
            return None;
        }
        prompt.extend(text(1_000 + self.next, len - prompt.len()));
        Some(prompt)
    }

    fn abort(&mut self, which: u8) {
        let ids: Vec<RequestId> =
            self.live.keys().copied().chain(self.past.iter().map(|past| past.id)).collect();
        let Some(index) = usize::from(which).checked_rem(ids.len()) else { return };
        self.stimuli += 1;
        if let Some(live) = self.live.get(&ids[index]) {
            // Of request states an abort meets its target's alone.
            let states = std::iter::once(met(live.phase)).chain(self.records());
            let states: Vec<Met> = states.collect();
            self.report.tally.meet(Fault::Abort, states);
        }
        self.engine.abort(ids[index]);
        self.listen();
        self.audit();
    }

    fn step(&mut self) -> Progress {
        self.report.steps += 1;
        let device = self.engine.runner();
        let (submitted, reordered) = (device.submitted, device.reordered);
        let (in_flight, stores) = (device.in_flight(), device.stores_in_flight());
        let rejected = device.drafts_rejected;
        let lost = self.engine.connector_mut().inner.lost();
        let before = self.engine.snapshot();
        let (blocks, before) = (before.counters, before.totals);
        self.met_before = self.present();
        self.far_side_writes();
        self.short = false;
        let progress = self.engine.step();
        let after = self.engine.snapshot();
        let (blocks_now, after) = (after.counters, after.totals);
        let lost_now = self.engine.connector_mut().inner.lost();
        let device = self.engine.runner_mut();
        let reports = std::mem::take(&mut device.reported);
        let (now, reordered_now) = (device.submitted, device.reordered);
        let rejected_now = device.drafts_rejected;
        // Stores that no report had come for when the batch was planned.
        let reported = reports.len().min(in_flight);
        let stores_ahead = match (now > submitted, reported) {
            (true, _) => device.stores_ahead,
            (false, 0) => stores,
            (false, _) => device.stores_in_flight(),
        };
        for &Reported { fault, ref requests, .. } in &reports {
            let Some(fault) = fault else { continue };
            let phases = requests.iter().filter_map(|id| self.live.get(id));
            let mut states: Vec<Met> = phases.map(|live| met(live.phase)).collect();
            let resting = |met: &&Met| !matches!(met, Met::Prefilling | Met::Decoding);
            for met in self.others().iter().chain(self.met_before.iter().filter(resting)) {
                if !states.contains(met) {
                    states.push(*met);
                }
            }
            self.report.tally.meet(fault, states);
        }
        if reordered_now > reordered {
            self.meet_in_turn(Fault::Reordered);
        }
        if let Progress::Submitted { rows, tokens, .. } = progress {
            let within = u64::from(tokens.get()) <= self.setup.budget && rows <= self.setup.slots;
            assert!(within, "limit: a batch of {rows} rows and {tokens} tokens");
            if in_flight > reported {
                self.meet_in_turn(Fault::BuiltAhead);
            }
        } else {
            self.meet_in_turn(Fault::EmptyTick);
        }
        for (fault, before, after) in [
            (Fault::NoPage, before.preempted_no_page, after.preempted_no_page),
            (Fault::LoadFailed, before.loads_failed, after.loads_failed),
            (Fault::LoadCancelled, before.loads_cancelled, after.loads_cancelled),
            (Fault::LoadRepeated, before.loads_ignored, after.loads_ignored),
            (Fault::LoadLost, lost as u64, lost_now as u64),
            (Fault::DraftRejected, rejected, rejected_now),
            (Fault::KeyCollision, blocks.blocks_collided, blocks_now.blocks_collided),
            (Fault::DuplicateBlock, blocks.blocks_duplicate, blocks_now.blocks_duplicate),
        ] {
            if after > before {
                self.meet_in_turn(fault);
            }
        }
        // A wrong byte is told before the wrong token it leads to.
        let violations = &self.engine.runner().violations;
        assert!(violations.is_empty(), "{}", violations[0]);
        if after.preempted_no_page > before.preempted_no_page {
            assert_eq!(stores_ahead, 0, "wait: a live request lost a page to a store in flight");
        }
        self.listen();
        let reports = reports
            .iter()
            .map(|report| (report.batch, report.fault.is_some(), report.requests.as_slice()));
        self.residents.reported(reports);
        if let Some(batch) = self.engine.runner().youngest() {
            self.residents.submitted(batch.id, batch.rows.iter().map(|row| row.request));
        }
        self.audit();
        progress
    }

    /// The far side writes into the memory of loads that have not ended.
    fn far_side_writes(&mut self) {
        let oldest = self.engine.runner().oldest();
        for Lent { slot, pages, .. } in self.engine.connector_mut().writes(oldest) {
            self.engine.runner_mut().scribble(slot, &pages);
        }
    }

    fn drain(&mut self) {
        for turn in 0..20_000 {
            if turn % DEAD_EVERY == DEAD_EVERY - 1 {
                self.engine.connector_mut().inner.declare_dead();
            }
            if self.step() == Progress::Idle {
                return self.audit_idle();
            }
        }
        panic!("leak: no end: {:?}", self.engine.snapshot());
    }

    fn end(mut self) -> Report {
        let snapshot = self.engine.snapshot();
        self.report.batches = snapshot.totals.batches;
        self.report.kept = snapshot.counters.kept;
        self.report.log = self.engine.runner().log;
        std::mem::take(&mut self.report)
    }

    fn listen(&mut self) {
        while let Some(output) = self.engine.next_output() {
            match output {
                Output::Admitted { request, report } => {
                    let waits =
                        |live: &Live| matches!(live.phase, Phase::Waiting | Phase::Preempted);
                    let first = self.live.iter().find(|(_, live)| waits(live));
                    let first = first.map(|(&id, _)| id);
                    assert_eq!(first, Some(request), "order: the one that has waited longest");
                    assert!(
                        !self.short,
                        "cost: {request} gets pages that others gave up for older ones"
                    );
                    self.residents.admit(request);
                    if !self.stale.is_empty() {
                        self.fresh_keys.extend(self.oracle.borrow().block_keys(request));
                    }
                    self.of(request).phase = Phase::Prefilling;
                    self.report.resumed += u64::from(report.hit.resumable.get());
                }
                Output::Parked { request, .. } => self.of(request).phase = Phase::Parked,
                Output::Unparked { request, load } => {
                    self.of(request).phase = match load {
                        LoadEnd::Landed(_) => Phase::Prefilling,
                        LoadEnd::Failed => Phase::Waiting,
                    };
                    if load == LoadEnd::Failed {
                        self.stale.remove(&request);
                    }
                }
                Output::Token { request, token, position, .. } => {
                    let wanted = {
                        let oracle = self.oracle.borrow();
                        oracle.stream(request).keys.tokens()[position.index()]
                    };
                    assert_eq!(token, wanted, "token: {request} at {position}");
                    let live = self.of(request);
                    let place = live.prompt.len() as u32 + live.heard;
                    assert_eq!(position.get(), place, "token: {request} skips or repeats one");
                    live.heard += 1;
                    live.phase = Phase::Decoding;
                }
                Output::Preempted { request, cause } => {
                    self.of(request).phase = Phase::Preempted;
                    self.stale.remove(&request);
                    match cause {
                        PreemptCause::NoPage => self.short = true,
                        PreemptCause::BatchFailed => self.residents.preempt(request),
                    }
                }
                Output::Finished { request, reason, usage } => {
                    self.ended(request, &reason, usage.generated.get());
                }
                other => panic!("output: {other:?}"),
            }
        }
    }

    fn of(&mut self, request: RequestId) -> &mut Live {
        self.live.get_mut(&request).expect("nothing is heard of a request after its end")
    }

    fn ended(&mut self, request: RequestId, reason: &FinishReason, generated: u32) {
        let live = self.live.remove(&request).expect("a request ends once");
        assert_eq!(generated, live.heard, "{request} heard of every token");
        {
            let oracle = self.oracle.borrow();
            let stream = oracle.stream(request);
            let wanted = stream.keys.tokens().len() - stream.prompt;
            match reason {
                FinishReason::MaxTokens => assert_eq!(generated as usize, wanted, "{request}"),
                FinishReason::Aborted | FinishReason::Failed(_) => {}
                other => panic!("{request}: {other:?}"),
            }
            let tokens = stream.keys.tokens()[..stream.prompt + generated as usize].to_vec();
            self.past.push_back(Past { id: request, tokens, tenant: live.tenant });
        }
        if self.past.len() > REMEMBERED {
            self.past.pop_front();
        }
        self.leaving.insert(request);
        self.residents.end(request);
        self.stale.remove(&request);
    }

    /// A fault that strikes within a turn meets what was there before it and what is there after.
    fn meet_in_turn(&mut self, fault: Fault) {
        let mut states = self.present();
        for index in 0..self.met_before.len() {
            let before = self.met_before[index];
            if !states.contains(&before) {
                states.push(before);
            }
        }
        self.report.tally.meet(fault, states);
    }

    fn meet(&mut self, fault: Fault) {
        let states = self.present();
        self.report.tally.meet(fault, states);
    }

    /// States that some request or record is in.
    fn present(&self) -> Vec<Met> {
        let phases: BTreeSet<usize> =
            self.live.values().map(|live| met(live.phase) as usize).collect();
        let phases = phases.into_iter().map(|index| Met::ALL[index]);
        phases.chain(self.records()).collect()
    }

    /// States met by a fault that has its own list of requests: records, and requests at rest.
    fn others(&self) -> Vec<Met> {
        let resting =
            |phase: Phase| matches!(phase, Phase::Waiting | Phase::Parked | Phase::Preempted);
        let phases = self.live.values().map(|live| live.phase).filter(|&phase| resting(phase));
        let phases: BTreeSet<usize> = phases.map(|phase| met(phase) as usize).collect();
        phases.into_iter().map(|index| Met::ALL[index]).chain(self.records()).collect()
    }

    fn records(&self) -> Vec<Met> {
        let gauges = self.engine.control().gauges();
        let pinned = self
            .engine
            .control()
            .records()
            .any(|record| matches!(record.state, RecordState::Ready { pins } if pins > 0));
        let present = [
            (gauges.pending > 0, Met::Pending),
            (gauges.copying > 0, Met::Copying),
            (gauges.ready > 0, Met::Ready),
            (pinned, Met::Pinned),
            (gauges.evicting > 0, Met::Evicting),
            (gauges.queued_restores > 0, Met::QueuedRestore),
        ];
        present.into_iter().filter(|&(there, _)| there).map(|(_, met)| met).collect()
    }

    fn audit(&mut self) {
        self.engine.check();
        // Not always, so that events are lost now and then.
        if self.report.steps.is_multiple_of(MIRROR_EVERY) {
            self.mirror.follow(self.engine.kv_events());
            self.mirror.compare(self.engine.control());
        }
        self.spoil();
        let completions = self.engine.connector_mut().completions;
        let device = self.engine.runner();
        self.report.events = self.stimuli + device.reports + completions;
        assert!(device.violations.is_empty(), "{}", device.violations[0]);
        let oracle = self.oracle.borrow();
        let mut units = BTreeSet::new();
        for record in self.engine.control().records() {
            for &unit in record.units {
                assert!(units.insert(unit), "owner: {unit} is a unit of two records");
            }
            if let RecordState::Ready { .. } = record.state {
                let block = self.engine.control().block_under(record.key);
                let block = block.expect("ready: a record whose key is found");
                let known = oracle.known(record.key, block).expect("ready: a block of some stream");
                assert_eq!(
                    known.position,
                    record.boundary.get(),
                    "ready: position of {}",
                    record.id
                );
                let same = device.image_is(record.units, &oracle.slot_bytes(known));
                assert!(same, "ready: {} holds another state than its key names", record.id);
            }
        }
        if !self.stale.is_empty() {
            for (key, ..) in self.engine.control().indexed() {
                let fresh = self.fresh_keys.contains(&key);
                assert!(
                    fresh,
                    "stale: {key:?} is found, and nobody of it was admitted since a reset"
                );
            }
        }
        let Some(batch) = device.youngest() else { return };
        for row in &batch.rows {
            let block = self.setup.block_size();
            let from = block.blocks_floor(row.start).index();
            for page in &row.pages[from..] {
                assert!(units.insert(*page), "owner: {} writes {page}, another's", row.request);
            }
        }
    }

    /// Puts the world's bug in, where it is one of bytes.
    fn spoil(&mut self) {
        let page = match self.setup.bug {
            Some(Bug::WriteReady) => self
                .engine
                .control()
                .records()
                .find(|record| matches!(record.state, RecordState::Ready { .. }))
                .map(|record| record.units[0]),
            Some(Bug::WriteLive) => {
                let row = self.engine.runner().youngest().map(|batch| &batch.rows[0]);
                row.filter(|row| row.start.get() >= self.setup.block).map(|row| row.pages[0])
            }
            _ => None,
        };
        if let Some(page) = page
            && self.bugs.percent(10)
        {
            self.engine.runner_mut().flip(page);
        }
    }

    fn audit_idle(&mut self) {
        let snapshot = self.engine.snapshot();
        let gauges = snapshot.gauges;
        let held = [
            gauges.pages_live,
            gauges.pages_held,
            gauges.pending,
            gauges.copying,
            gauges.evicting,
            gauges.queued_restores,
            gauges.slots_fenced,
            snapshot.draining,
            snapshot.parked,
            self.setup.slots - gauges.slots_free,
            gauges.pages_total - gauges.pages_available,
        ];
        assert_eq!(held, [0; 11], "leak: {snapshot:?}");
        assert!(self.live.is_empty(), "leak: {} requests never ended", self.live.len());
        let mut oracle = self.oracle.borrow_mut();
        for id in std::mem::take(&mut self.leaving) {
            oracle.remove(id);
        }
    }
}

const fn holds_pages(phase: Phase) -> bool {
    matches!(phase, Phase::Parked | Phase::Prefilling | Phase::Decoding)
}

const fn met(phase: Phase) -> Met {
    match phase {
        Phase::Waiting => Met::Waiting,
        Phase::Parked => Met::Parked,
        Phase::Prefilling => Met::Prefilling,
        Phase::Decoding => Met::Decoding,
        Phase::Preempted => Met::Preempted,
    }
}
