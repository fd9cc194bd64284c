//! Exhaustive small worlds: every interleaving of admissions, batches, receipts, ends and resets of a
//! few requests on a tiny pool, until no new state appears.
//!
//! A state is the canonical form of the production control plane with its residencies and batches in
//! flight. A control plane cannot be cloned, because its tickets are affine; a state is reached again
//! by performing the steps that led to it, which for worlds this small costs microseconds.
//!
//! In every state: the control plane's audit; the bytes of every slot, page and unit, as words; each
//! READY record holds the words its key names; every state can be led back to one where nothing is
//! held (checked by releasing and settling all, which must leave no page, slot, pin or record behind
//! but cached and READY ones).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};

use statepages_page::{
    BlockSize, Boundary, Bytes, Domain, LayoutId, MaintenanceOps, PageId, Pages, RequestId, SlotId,
    Tokens,
};
use statepages_store::{
    Admit, AdmitRequest, BackendOrder, Caching, CheckpointInterval, CheckpointSpec, ControlPlane,
    ControlPlaneConfig, Counters, Gauges, KeepReason, Names, Outcome, PromptKeys, Receipt,
    RecordState, ReferenceOrder, Relocate, Residency, Schedulers, Speculation, StateRuntime,
    StateTransfer,
};

use crate::random::mix;

/// A small world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Small {
    /// Pages of the pool.
    pub pages: u32,
    /// Active slots.
    pub slots: u32,
    /// Units of an image.
    pub units: u32,
    /// The prefix of each request: requests of equal prefixes have equal prompts.
    pub prefixes: &'static [u8],
    /// Blocks of a prompt; a block is one token.
    pub blocks: u32,
    /// Batches in flight at most.
    pub in_flight: usize,
    /// What the backend promises.
    pub order: BackendOrder,
    /// Whether batches may fail.
    pub failures: bool,
    /// Whether the cache may be reset.
    pub resets: bool,
    /// Whether moves to another slot are made.
    pub moves: bool,
    /// States after which the search gives up.
    pub states_max: usize,
    /// A bug put in on purpose.
    pub bug: Option<SmallBug>,
}

/// A bug put into the world around the control plane, to show that the search sees one of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmallBug {
    /// A failed batch is settled as done.
    FailedIsDone,
    /// Restores are not carried out.
    SkipRestores,
    /// A store writes its pieces in another order.
    SwapPieces,
    /// A boundary is filed as one block further than the slot stands.
    FileAhead,
    /// An ended request's residency is kept.
    KeepResidency,
    /// A batch takes effect only when it is settled, on a backend that promised order, youngest
    /// first.
    BreakOrder,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Admit(u8),
    /// A batch of these requests, by bits; each goes one block further.
    Batch(u8),
    Settle(u8, bool),
    Release(u8),
    Move(u8),
    Reset,
}

/// What a search came to.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Explored {
    /// Different states.
    pub states: usize,
    /// Steps taken between them.
    pub transitions: usize,
    /// Longest shortest path to a state.
    pub depth: usize,
    /// Named transitions, and how often each was taken.
    pub reached: BTreeMap<&'static str, u64>,
    /// Whether no new state appeared.
    pub complete: bool,
}

/// A broken invariant, and the steps to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// What was broken.
    pub what: String,
    /// The steps.
    pub steps: Vec<String>,
}

/// What a slot, a page or a unit holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Junk,
    State { prefix: u8, at: u32 },
    Piece { prefix: u8, at: u32, piece: u32 },
}

struct Batch {
    receipt: Receipt,
    ops: MaintenanceOps,
    rows: Vec<Row>,
    /// Requests, with their admissions, whose slots the batch's copies write.
    copied: Vec<(usize, u64)>,
    done: bool,
}

struct Row {
    request: usize,
    slot: usize,
    pages: Vec<usize>,
    from: u32,
    to: u32,
}

struct World {
    small: Small,
    plane: ControlPlane,
    keys: Vec<PromptKeys>,
    residents: Vec<Option<Residency>>,
    /// Admissions so far, to tell a batch's row from one of an earlier residency.
    admissions: Vec<u64>,
    /// Whether a failed batch wrote the residency.
    spoilt: Vec<bool>,
    batches: VecDeque<(Batch, Vec<u64>)>,
    slots: Vec<Word>,
    pages: Vec<Word>,
    kept: Vec<Residency>,
}

/// Every transition that the diagrams of record, pin, slot and request know, in this world's reach.
pub const TRANSITIONS: [&str; 22] = [
    "admit: cold",
    "admit: resumed",
    "admit: refused, no slot",
    "admit: refused, no room",
    "store: begun",
    "store: published",
    "store: failed",
    "store: orphaned",
    "store: dropped, no room",
    "store: dropped, superseded",
    "store: dropped, duplicate",
    "store: dropped, forgotten",
    "store: dropped, slot gone",
    "record: evicted",
    "record: reset",
    "record: to evicting",
    "record: evicting ended",
    "pin: taken",
    "pin: returned by its receipt",
    "pin: cancelled",
    "slot: fenced",
    "slot: freed by its receipt",
];

/// Worlds that end within seconds, each of another kind, the smallest first.
pub fn small_worlds() -> Vec<(&'static str, Small)> {
    use BackendOrder::{Ordered, Unordered};
    let base = Small {
        pages: 6,
        slots: 2,
        units: 2,
        prefixes: &[1, 1],
        blocks: 2,
        in_flight: 1,
        order: Ordered,
        failures: false,
        resets: false,
        moves: false,
        states_max: 1_000_000,
        bug: None,
    };
    let all = Small { in_flight: 2, failures: true, resets: true, ..base };
    let moves = Small { prefixes: &[1], moves: true, ..all };
    vec![
        ("one request, moved, unordered", Small { order: Unordered, ..moves }),
        ("one request, moved", moves),
        ("one prefix, unordered", Small { order: Unordered, ..base }),
        ("one prefix in one slot", Small { slots: 1, ..all }),
        (
            "two prefixes, unordered",
            Small { pages: 5, prefixes: &[1, 2], order: Unordered, ..base },
        ),
        ("one prefix, failures", Small { failures: true, ..base }),
        ("two prefixes in one slot", Small { slots: 1, pages: 5, prefixes: &[1, 2], ..all }),
    ]
}

/// Worlds that take longer.
pub fn larger_worlds() -> Vec<(&'static str, Small)> {
    let (_, base) = small_worlds().swap_remove(2);
    let base = Small { prefixes: &[1, 2], order: BackendOrder::Ordered, ..base };
    vec![
        ("two ahead, failures", Small { pages: 4, units: 1, in_flight: 2, failures: true, ..base }),
        ("failures and resets", Small { failures: true, resets: true, ..base }),
    ]
}

/// The largest: three requests of two prefixes on eight pages and two slots.
pub fn largest_world() -> Small {
    let (_, base) = larger_worlds().swap_remove(0);
    Small {
        pages: 8,
        units: 2,
        prefixes: &[1, 1, 2],
        in_flight: 1,
        failures: false,
        states_max: 20_000_000,
        ..base
    }
}

/// Explores a world wholly.
///
/// # Errors
/// The first broken invariant, by a shortest path.
pub fn explore(small: &Small) -> Result<Explored, Box<Broken>> {
    let mut explored = Explored::default();
    // Each state by the path that found it first: its parent and the step from there.
    let mut parents: Vec<(u32, Step)> = Vec::new();
    let mut depths: Vec<u16> = vec![0];
    let mut seen: BTreeSet<u128> = BTreeSet::new();
    seen.insert(World::new(small).form());
    let mut at = 0;
    while at < depths.len() {
        let path = path(&parents, at);
        let mut world = World::reach(small, &path);
        let steps = world.steps();
        world.unwind();
        for step in steps {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                let mut next = World::reach(small, &path);
                let before = next.counts();
                next.perform(step);
                next.audit();
                let form = next.form();
                let after = next.counts();
                next.unwind();
                (form, before, after)
            }));
            let (form, before, after) = outcome.map_err(|payload| {
                let what = payload
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| payload.downcast_ref::<&str>().map(|&text| text.to_owned()));
                let steps = path.iter().chain([&step]).map(|step| format!("{step:?}")).collect();
                Box::new(Broken { what: what.unwrap_or_default(), steps })
            })?;
            explored.transitions += 1;
            name(step, &before, &after, &mut explored.reached);
            if seen.insert(form) {
                parents.push((at as u32, step));
                depths.push(depths[at] + 1);
            }
        }
        if depths.len() > small.states_max {
            break;
        }
        at += 1;
    }
    explored.states = depths.len();
    explored.depth = usize::from(*depths.last().expect("the first state is there"));
    explored.complete = at == depths.len();
    Ok(explored)
}

fn path(parents: &[(u32, Step)], mut at: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    while at > 0 {
        let (parent, step) = parents[at - 1];
        steps.push(step);
        at = parent as usize;
    }
    steps.reverse();
    steps
}

type Counts = (Counters, Gauges);

fn name(
    step: Step,
    (was, had): &Counts,
    (is, has): &Counts,
    reached: &mut BTreeMap<&'static str, u64>,
) {
    let admitted = is.admitted > was.admitted;
    let queued = has.queued_restores > had.queued_restores;
    let admits = matches!(step, Step::Admit(_));
    let settles = matches!(step, Step::Settle(..));
    let batches = matches!(step, Step::Batch(_));
    let refused = admits && !admitted;
    let found = [
        ("admit: cold", admitted && !queued),
        ("admit: resumed", admitted && queued),
        ("admit: refused, no slot", refused && had.slots_free == 0),
        ("admit: refused, no room", refused && had.slots_free > 0),
        ("store: begun", is.kept > was.kept),
        ("store: published", settles && has.ready > had.ready),
        ("store: failed", is.failed > was.failed),
        ("store: orphaned", settles && is.orphaned_records > was.orphaned_records),
        ("store: dropped, no room", is.no_room > was.no_room),
        ("store: dropped, superseded", is.superseded > was.superseded),
        ("store: dropped, duplicate", is.duplicate > was.duplicate),
        ("store: dropped, forgotten", is.forgotten > was.forgotten),
        ("store: dropped, slot gone", is.slot_gone > was.slot_gone),
        ("record: evicted", is.evicted > was.evicted),
        ("record: reset", is.reset > was.reset),
        ("record: to evicting", has.evicting > had.evicting),
        ("record: evicting ended", has.evicting < had.evicting),
        ("pin: taken", queued),
        ("pin: returned by its receipt", batches && has.queued_restores < had.queued_restores),
        ("pin: cancelled", is.restores_cancelled > was.restores_cancelled),
        ("slot: fenced", has.slots_fenced > had.slots_fenced),
        ("slot: freed by its receipt", settles && has.slots_fenced < had.slots_fenced),
    ];
    for (name, taken) in found {
        if taken {
            *reached.entry(name).or_default() += 1;
        }
    }
}

impl World {
    fn new(small: &Small) -> Self {
        let layout = LayoutId::new("small").expect("not empty");
        let image = Bytes::new(u64::from(small.units) * 16);
        let spec = CheckpointSpec::new(Bytes::new(16), image, image, layout.clone())
            .expect("the image is whole units");
        let transfer = StateTransfer::Copy { layout };
        let block = BlockSize::new(1).expect("a block has tokens");
        let config = ControlPlaneConfig {
            pages: Pages::new(small.pages),
            pages_max: Pages::new(small.pages),
            slots: small.slots,
            block,
            runtime: StateRuntime::new(transfer, Some(spec)).expect("spec and class agree"),
            caching: Caching::On,
            interval: CheckpointInterval::Grid(Pages::new(1)),
            copying_max: Some(Pages::new(small.pages)),
            order: small.order,
            pipeline_stages: 1,
            schedulers: Schedulers::Unified,
            speculation: Speculation::Off,
            events_max: 0,
        };
        let domain = Domain { model_revision: "small", ..Domain::default() }.tag();
        let keys = small.prefixes.iter().map(|&prefix| {
            let mut keys = PromptKeys::new(domain, block);
            let tokens: Vec<u32> =
                (0..small.blocks).map(|at| u32::from(prefix) * 100 + at).collect();
            keys.extend(&tokens);
            keys
        });
        Self {
            plane: ControlPlane::new(config, Box::new(ReferenceOrder)).expect("the world can run"),
            keys: keys.collect(),
            residents: small.prefixes.iter().map(|_| None).collect(),
            admissions: vec![0; small.prefixes.len()],
            spoilt: vec![false; small.prefixes.len()],
            batches: VecDeque::new(),
            slots: vec![Word::Junk; small.slots as usize],
            pages: vec![Word::Junk; small.pages as usize],
            kept: Vec::new(),
            small: *small,
        }
    }

    fn reach(small: &Small, path: &[Step]) -> Self {
        let mut world = Self::new(small);
        for &step in path {
            world.perform(step);
            world.form();
        }
        world
    }

    fn counts(&self) -> Counts {
        (self.plane.counters(), self.plane.gauges())
    }

    /// Steps that make sense here.
    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let ids = 0..self.residents.len() as u8;
        let resident = |id: u8| self.residents[usize::from(id)].as_ref();
        for id in ids.clone() {
            if resident(id).is_none() {
                steps.push(Step::Admit(id));
                continue;
            }
            steps.push(Step::Release(id));
            if self.small.moves {
                steps.push(Step::Move(id));
            }
        }
        if self.batches.len() < self.small.in_flight {
            let able = ids.filter(|&id| self.may_run(id)).fold(0u8, |bits, id| bits | 1 << id);
            steps.extend((1..=able).filter(|bits| bits & !able == 0).map(Step::Batch));
        }
        // A backend that keeps order reports in order; another one in any.
        let settled = match self.small.order {
            BackendOrder::Ordered => self.batches.len().min(1),
            BackendOrder::Unordered => self.batches.len(),
        };
        for index in 0..settled as u8 {
            steps.push(Step::Settle(index, true));
            if self.small.failures {
                steps.push(Step::Settle(index, false));
            }
        }
        if self.small.resets {
            steps.push(Step::Reset);
        }
        steps
    }

    fn may_run(&self, id: u8) -> bool {
        let Some(residency) = &self.residents[usize::from(id)] else { return false };
        let ordered = self.small.order == BackendOrder::Ordered;
        let idle = ordered || self.plane.in_flight(residency) == 0;
        idle && !self.spoilt[usize::from(id)]
            && self.plane.scheduled(residency).get() < self.small.blocks
    }

    fn perform(&mut self, step: Step) {
        match step {
            Step::Admit(id) => self.admit(usize::from(id)),
            Step::Batch(bits) => self.batch(bits),
            Step::Settle(index, done) => self.settle(usize::from(index), done),
            Step::Release(id) => {
                let residency = self.residents[usize::from(id)].take().expect("it is resident");
                if self.small.bug == Some(SmallBug::KeepResidency) {
                    self.kept.push(residency);
                } else {
                    let _ = self.plane.release(residency);
                }
            }
            Step::Move(id) => {
                let residency = self.residents[usize::from(id)].as_mut().expect("it is resident");
                match self.plane.relocate(residency) {
                    Relocate::Queued { .. } | Relocate::NoSlot | Relocate::Busy => {}
                }
            }
            Step::Reset => self.plane.reset(),
        }
    }

    fn admit(&mut self, id: usize) {
        let request = RequestId::new(id as u64);
        let before = (self.plane.counters(), self.plane.gauges());
        let ask = AdmitRequest { request, keys: &self.keys[id], gated: None };
        match self.plane.try_admit(&ask).expect("nothing was promised") {
            Admit::Admitted(residency, _) => {
                self.residents[id] = Some(residency);
                self.admissions[id] += 1;
                self.spoilt[id] = false;
            }
            Admit::Refused(_) => {
                let after = (self.plane.counters(), self.plane.gauges());
                assert_eq!(before, after, "a refusal has taken and given up nothing");
            }
        }
    }

    fn batch(&mut self, bits: u8) {
        let mut ops = MaintenanceOps::default();
        let mut receipt = self.plane.begin_batch(&mut ops);
        let mut rows = Vec::new();
        for request in 0..self.residents.len() {
            if bits & 1 << request == 0 {
                continue;
            }
            let residency = self.residents[request].as_ref().expect("members are resident");
            let from = self.plane.scheduled(residency).get();
            self.plane.join(&mut receipt, residency, Tokens::new(from + 1));
            rows.push(Row {
                request,
                slot: residency.slot().index(),
                pages: residency.pages().iter().map(|page| page.index()).collect(),
                from,
                to: from + 1,
            });
        }
        let done = self.small.order == BackendOrder::Ordered
            && self.small.bug != Some(SmallBug::BreakOrder);
        let admissions = rows.iter().map(|row| self.admissions[row.request]).collect();
        let written = |slot: usize| {
            ops.restores.iter().any(|op| op.slot.index() == slot)
                || ops.relocations.iter().any(|op| op.to.index() == slot)
        };
        let copied = (0..self.residents.len())
            .filter(|&request| {
                let residency = self.residents[request].as_ref();
                residency.is_some_and(|residency| written(residency.slot().index()))
            })
            .map(|request| (request, self.admissions[request]))
            .collect();
        let mut batch = Batch { receipt, ops, rows, copied, done: false };
        if done {
            self.execute(&mut batch);
        }
        self.batches.push_back((batch, admissions));
    }

    /// Copies, then the forward, on words.
    fn execute(&mut self, batch: &mut Batch) {
        if std::mem::replace(&mut batch.done, true) {
            return;
        }
        for op in &batch.ops.relocations {
            self.slots[op.to.index()] = self.slots[op.from.index()];
        }
        let stored: Vec<Word> =
            batch.ops.stores.iter().map(|op| self.slots[op.slot.index()]).collect();
        for op in &batch.ops.restores {
            if self.small.bug == Some(SmallBug::SkipRestores) {
                continue;
            }
            let mut whole = None;
            for (piece, unit) in (0..).zip(batch.ops.units(op.units)) {
                whole = Some(match (whole, self.pages[unit.index()]) {
                    (None, Word::Piece { prefix, at, piece: held }) if held == piece => {
                        Word::State { prefix, at }
                    }
                    (Some(state), Word::Piece { prefix, at, piece: held })
                        if held == piece && state == Word::State { prefix, at } =>
                    {
                        state
                    }
                    _ => Word::Junk,
                });
            }
            self.slots[op.slot.index()] = whole.expect("an image has units");
        }
        for (op, word) in batch.ops.stores.iter().zip(stored) {
            let units = batch.ops.units(op.units);
            for (piece, unit) in (0..).zip(units) {
                let piece = if self.small.bug == Some(SmallBug::SwapPieces) {
                    self.small.units - 1 - piece
                } else {
                    piece
                };
                self.pages[unit.index()] = match word {
                    Word::State { prefix, at } => Word::Piece { prefix, at, piece },
                    Word::Junk | Word::Piece { .. } => Word::Junk,
                };
            }
        }
        for row in &batch.rows {
            let prefix = self.small.prefixes[row.request];
            let good =
                row.from == 0 || self.slots[row.slot] == Word::State { prefix, at: row.from };
            let read = (0..row.from as usize).all(|index| {
                self.pages[row.pages[index]] == Word::State { prefix, at: index as u32 + 1 }
            });
            // What was computed from a wrong word is wrong itself; whether anybody may believe it
            // shows where it is settled.
            let word = if good && read { Word::State { prefix, at: row.to } } else { Word::Junk };
            self.slots[row.slot] = word;
            self.pages[row.pages[row.from as usize]] = word;
        }
    }

    fn settle(&mut self, index: usize, done: bool) {
        let last = match self.small.bug {
            Some(SmallBug::BreakOrder) => self.batches.len() - 1,
            _ => index,
        };
        for at in (index..=last).rev() {
            let (mut batch, admissions) = self.batches.remove(at).expect("it is in flight");
            self.execute(&mut batch);
            self.batches.insert(at, (batch, admissions));
        }
        let (batch, admissions) = self.batches.remove(index).expect("it is in flight");
        let Batch { receipt, ops, rows, copied, .. } = batch;
        if !done {
            for op in &ops.stores {
                for unit in ops.units(op.units) {
                    self.pages[unit.index()] = Word::Junk;
                }
            }
        }
        let outcome = match self.small.bug {
            Some(SmallBug::FailedIsDone) => Outcome::Done,
            _ if done => Outcome::Done,
            _ => Outcome::Failed,
        };
        self.plane.settle(receipt, outcome);
        if outcome == Outcome::Failed {
            for (request, admission) in copied {
                self.spoilt[request] |= self.admissions[request] == admission;
            }
        }
        for (row, admission) in rows.iter().zip(admissions) {
            let present = self.admissions[row.request] == admission;
            if !present || self.residents[row.request].is_none() {
                continue;
            }
            if outcome == Outcome::Failed {
                self.spoilt[row.request] = true;
            }
            if self.spoilt[row.request] {
                continue;
            }
            self.report(row);
        }
        // Batches built upon a failed one believe nothing either.
        if outcome == Outcome::Failed {
            for at in 0..self.batches.len() {
                let members: Vec<usize> =
                    self.batches[at].0.rows.iter().map(|row| row.request).collect();
                for request in members {
                    self.spoilt[request] |= rows.iter().any(|row| row.request == request);
                }
            }
        }
    }

    fn report(&mut self, row: &Row) {
        let prefix = self.small.prefixes[row.request];
        let keys = &self.keys[row.request];
        let residency = self.residents[row.request].as_mut().expect("it is resident");
        let written = self.pages[row.pages[row.from as usize]];
        let right = Word::State { prefix, at: row.to };
        assert_eq!(written, right, "read: request {} computed from wrong words", row.request);
        self.plane.advance(residency, keys, Tokens::new(row.to));
        let ahead = u32::from(self.small.bug == Some(SmallBug::FileAhead));
        let at = Boundary::from_raw((row.to + ahead).min(self.small.blocks));
        let key = keys.key_at(Boundary::from_raw(row.to)).expect("every position is a boundary");
        let _ = self.plane.file(residency, at, key, KeepReason::Grid);
    }

    fn audit(&self) {
        self.plane.check();
        for record in self.plane.records() {
            if !matches!(record.state, RecordState::Ready { .. }) {
                continue;
            }
            let at = record.boundary;
            let prefix = (0..self.keys.len()).find_map(|id| {
                (self.keys[id].key_at(at) == Some(record.key)).then(|| self.small.prefixes[id])
            });
            let prefix = prefix.expect("ready: its position is not its key's");
            for (piece, unit) in (0..).zip(record.units) {
                let wanted = Word::Piece { prefix, at: at.get(), piece };
                assert_eq!(self.pages[unit.index()], wanted, "ready: {unit} of {}", record.id);
            }
        }
    }

    /// Lets go of everything: nothing but cached pages and READY records may be left.
    fn unwind(&mut self) {
        while !self.batches.is_empty() {
            self.settle(0, true);
        }
        for id in 0..self.residents.len() {
            if let Some(residency) = self.residents[id].take() {
                let _ = self.plane.release(residency);
            }
        }
        // What was queued to move rides one more batch.
        let mut ops = MaintenanceOps::default();
        let receipt = self.plane.begin_batch(&mut ops);
        self.plane.settle(receipt, Outcome::Done);
        self.plane.check();
        let gauges = self.plane.gauges();
        let held = [
            gauges.pages_live,
            gauges.copying,
            gauges.evicting,
            gauges.pending,
            gauges.queued_restores,
            gauges.slots_fenced,
            self.small.slots - gauges.slots_free,
            gauges.pages_total - gauges.pages_available,
        ];
        assert_eq!(held, [0; 8], "leak: {gauges:?}");
    }

    /// A digest of the state's canonical form. What the words are follows from the steps, but two
    /// paths to one form could differ in them, so they are part of it.
    fn form(&mut self) -> u128 {
        let mut out = Vec::with_capacity(128);
        let mut names = Names::default();
        for (id, residency) in self.residents.iter().enumerate() {
            match residency {
                None => out.push(0),
                Some(residency) => {
                    out.push(1 + u64::from(self.spoilt[id]));
                    self.plane.canonical_residency(residency, &mut names, &mut out);
                }
            }
        }
        for (batch, admissions) in &self.batches {
            self.plane.canonical_receipt(&batch.receipt, &mut names, &mut out);
            for (row, admission) in batch.rows.iter().zip(admissions) {
                let present = self.admissions[row.request] == *admission;
                out.extend([row.request as u64, u64::from(present), u64::from(row.to)]);
                out.push(names.slot(SlotId::new(row.slot as u32)));
                out.extend(row.pages.iter().map(|&page| names.page(PageId::new(page as u32))));
            }
            for &(request, admission) in &batch.copied {
                let present = self.admissions[request] == admission;
                out.extend([request as u64, u64::from(present)]);
            }
            out.push(u64::MAX);
        }
        self.plane.canonical(&mut names, &mut out);
        // Whatever has no name is vacant: its next owner must not rely on a word of it.
        let pages: Vec<PageId> = names.pages_by_name().collect();
        for page in 0..self.pages.len() {
            if !pages.iter().any(|named| named.index() == page) {
                self.pages[page] = Word::Junk;
            }
        }
        let slots: Vec<SlotId> = names.slots_by_name().collect();
        for slot in 0..self.slots.len() {
            if !slots.iter().any(|named| named.index() == slot) {
                self.slots[slot] = Word::Junk;
            }
        }
        let slots = slots.iter().map(|slot| self.slots[slot.index()]);
        let pages = pages.iter().map(|page| self.pages[page.index()]);
        for word in slots.chain(pages) {
            out.push(match word {
                Word::Junk => 0,
                Word::State { prefix, at } => 1 | u64::from(prefix) << 8 | u64::from(at) << 16,
                Word::Piece { prefix, at, piece } => {
                    2 | u64::from(prefix) << 8 | u64::from(at) << 16 | u64::from(piece) << 32
                }
            });
        }
        let (mut low, mut high) = (0x1234_5678u64, 0x9abc_def0u64);
        for word in out {
            low = mix(low ^ word);
            high = mix(high.rotate_left(7) ^ word);
        }
        u128::from(low) | u128::from(high) << 64
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for residency in self.residents.iter_mut().filter_map(Option::take) {
            let _ = self.plane.release(residency);
        }
        for residency in self.kept.drain(..) {
            let _ = self.plane.release(residency);
        }
        for (batch, _) in self.batches.drain(..) {
            self.plane.settle(batch.receipt, Outcome::Failed);
        }
    }
}
