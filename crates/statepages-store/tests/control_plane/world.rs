//! Whole-system runs over a world whose bytes are words: every slot, page and unit says what it
//! holds, copies and forwards move the words by the ops alone, and a reader that finds another word
//! than its own tokens demand fails the run.

use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;
use statepages_page::{
    Boundary, CheckpointId, MaintenanceOps, PageId, Pages, RequestId, SlotId, Tokens,
};
use statepages_store::{
    Admit, AdmitRequest, Ahead, Append, BackendOrder, CheckpointInterval, Chunk, ControlPlane,
    ControlPlaneConfig, KeepPlan, Notice, Outcome, PlanRequest, PolicyReport, Progress, PromptKeys,
    Purpose, Receipt, ReferenceOrder, Relocate, Residency, Retire, Statepages, Victim,
    VictimPolicy, VictimView,
};

use crate::support::{BLOCK, config, keys_in};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Junk(u64),
    /// The first `at` tokens of a stream, by digest: a slot's state, or a page's rows.
    State {
        digest: u64,
        at: u32,
    },
    Unit {
        digest: u64,
        at: u32,
        piece: u32,
    },
}

struct World {
    slots: Vec<Word>,
    pages: Vec<Word>,
    junk: u64,
}

struct Member {
    request: usize,
    slot: SlotId,
    pages: Vec<PageId>,
    from: u32,
    to: u32,
}

struct Batch {
    receipt: Receipt,
    ops: MaintenanceOps,
    members: Vec<Member>,
    outcome: Outcome,
}

/// Digest of each prefix of a stream of tokens in a domain.
fn digests(salt: u8, tokens: &[u32]) -> Vec<u64> {
    let mut digest = 0xcbf2_9ce4_8422_2325u64 ^ u64::from(salt);
    let mut all = vec![digest];
    for &token in tokens {
        digest = (digest ^ u64::from(token)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        all.push(digest);
    }
    all
}

impl World {
    fn junk(&mut self) -> Word {
        self.junk += 1;
        Word::Junk(self.junk)
    }

    fn run(&mut self, batch: &Batch, requests: &[Request]) {
        for relocation in &batch.ops.relocations {
            assert_ne!(relocation.from, relocation.to);
            self.slots[relocation.to.index()] = self.slots[relocation.from.index()];
        }
        let ops = &batch.ops;
        let written: Vec<PageId> =
            ops.stores.iter().flat_map(|op| ops.units(op.units)).copied().collect();
        for op in &ops.restores {
            assert!(ops.units(op.units).iter().all(|unit| !written.contains(unit)));
            assert!(ops.stores.iter().all(|store| store.slot != op.slot));
        }
        for op in &ops.restores {
            let at = op.boundary.get();
            let mut digest = None;
            for (piece, unit) in (0..).zip(ops.units(op.units)) {
                match self.pages[unit.index()] {
                    Word::Unit { digest: d, at: a, piece: p } if a == at && p == piece => {
                        assert!(digest.is_none_or(|digest| digest == d), "one image, one state");
                        digest = Some(d);
                    }
                    other => panic!("{op:?} reads {other:?} in {unit}"),
                }
            }
            self.slots[op.slot.index()] = Word::State { digest: digest.unwrap(), at };
        }
        for op in &ops.stores {
            let Word::State { digest, at } = self.slots[op.slot.index()] else {
                // A forward that failed left junk; the record must never become visible, which a
                // restore would show.
                for unit in ops.units(op.units) {
                    self.pages[unit.index()] = Word::Junk(0);
                }
                continue;
            };
            assert_eq!(at, op.boundary.get(), "the slot stands at the boundary it is filed as");
            for (piece, unit) in (0..).zip(ops.units(op.units)) {
                self.pages[unit.index()] = Word::Unit { digest, at, piece };
            }
        }
        for member in &batch.members {
            let digests = &requests[member.request].digests;
            let state = self.slots[member.slot.index()];
            let whole = |at: u32| Word::State { digest: digests[at as usize], at };
            if member.from > 0 {
                assert_eq!(state, whole(member.from), "{:?} in {}", member.request, member.slot);
            }
            let block = BLOCK as usize;
            for (index, page) in member.pages.iter().enumerate() {
                let (start, end) = (index * block, (index + 1) * block);
                if start < member.from as usize {
                    let at = end.min(member.from as usize) as u32;
                    assert_eq!(self.pages[page.index()], whole(at), "block {index} in {page}");
                }
                if end > member.from as usize && start < member.to as usize {
                    self.pages[page.index()] = whole((end as u32).min(member.to));
                }
            }
            self.slots[member.slot.index()] = whole(member.to);
            if batch.outcome == Outcome::Failed {
                self.slots[member.slot.index()] = self.junk();
                for (index, page) in member.pages.iter().enumerate() {
                    if (index + 1) * block > member.from as usize
                        && index * block < member.to as usize
                    {
                        self.pages[page.index()] = Word::Junk(1);
                    }
                }
            }
        }
        if batch.outcome == Outcome::Failed {
            for op in &ops.restores {
                self.slots[op.slot.index()] = Word::Junk(2);
            }
            for unit in written {
                self.pages[unit.index()] = Word::Junk(3);
            }
        }
    }
}

struct Request {
    id: u64,
    salt: u8,
    keys: PromptKeys,
    digests: Vec<u64>,
    /// Tokens to prefill, fixed at each admission.
    prefill: u32,
    stop_at: u32,
    phase: Phase,
}

enum Phase {
    Waiting,
    Resident {
        residency: Residency,
        demand: Option<Boundary>,
        last_kept: Boundary,
        /// Ends of the forwards in flight, in order, and whether they are done.
        flights: VecDeque<(u64, u32, bool)>,
        doomed: bool,
    },
    Finished,
}

#[derive(Clone, Debug)]
enum Act {
    Submit { stem: u8, length: u8, salt: u8, more: u8 },
    Step { members: u16, chunk: u8, early: bool, fail: bool },
    Settle { which: u8 },
    Leave { which: u8, preempt: bool },
    Relocate { which: u8 },
    Reset,
    Extend,
    Retire,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..4u8, 1..40u8, 0..2u8, 0..12u8)
            .prop_map(|(stem, length, salt, more)| Act::Submit { stem, length, salt, more }),
        12 => (any::<u16>(), 1..14u8, any::<bool>(), 0..20u8)
            .prop_map(|(members, chunk, early, fail)| Act::Step { members, chunk, early, fail: fail == 0 }),
        10 => any::<u8>().prop_map(|which| Act::Settle { which }),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(which, preempt)| Act::Leave { which, preempt }),
        1 => any::<u8>().prop_map(|which| Act::Relocate { which }),
        1 => (0..4u8).prop_map(|n| if n == 0 { Act::Reset } else { Act::Extend }),
        1 => Just(Act::Retire),
    ]
}

struct Run {
    plane: ControlPlane,
    world: World,
    requests: Vec<Request>,
    batches: Vec<Batch>,
    order: BackendOrder,
    log: Vec<String>,
    resumed: u64,
}

impl Run {
    fn new(config: ControlPlaneConfig, policy: Box<dyn VictimPolicy>) -> Self {
        let world = World {
            slots: vec![Word::Junk(0); config.slots as usize],
            pages: vec![Word::Junk(0); config.pages_max.index()],
            junk: 10,
        };
        let order = config.order;
        let plane = ControlPlane::new(config, policy).unwrap();
        Self {
            plane,
            world,
            requests: Vec::new(),
            batches: Vec::new(),
            order,
            log: Vec::new(),
            resumed: 0,
        }
    }

    fn act(&mut self, act: &Act) {
        match *act {
            Act::Submit { stem, length, salt, more } => {
                let tokens: Vec<u32> = (0..u32::from(length))
                    .map(|i| if i < 18 { u32::from(stem / 2) } else { u32::from(stem) } + i)
                    .collect();
                self.requests.push(Request {
                    id: self.requests.len() as u64,
                    salt,
                    keys: keys_in(&[salt], &tokens),
                    digests: digests(salt, &tokens),
                    prefill: u32::from(length),
                    stop_at: u32::from(length) + u32::from(more),
                    phase: Phase::Waiting,
                });
            }
            Act::Step { members, chunk, early, fail } => {
                self.admit();
                self.step(members, u32::from(chunk), early, fail);
            }
            Act::Settle { which } => {
                if !self.batches.is_empty() {
                    let which = usize::from(which) % self.batches.len();
                    self.settle(which);
                }
            }
            Act::Leave { which, preempt } => {
                if let Some(request) = self.resident(which) {
                    self.leave(request, preempt);
                }
            }
            Act::Relocate { which } => {
                if let Some(request) = self.resident(which)
                    && let Phase::Resident { residency, .. } = &mut self.requests[request].phase
                {
                    match self.plane.relocate(residency) {
                        Relocate::Queued { from, to } => assert_ne!(from, to),
                        Relocate::NoSlot => assert_eq!(self.plane.gauges().slots_free, 0),
                        Relocate::Busy => assert!(self.plane.in_flight(residency) > 0),
                    }
                }
            }
            Act::Reset => self.plane.reset(),
            Act::Extend => {
                self.plane.extend(Pages::new(1));
            }
            Act::Retire => self.retire(),
        }
        self.plane.check();
    }

    fn retire(&mut self) {
        let mut residents: Vec<&mut Residency> = self
            .requests
            .iter_mut()
            .filter_map(|request| match &mut request.phase {
                Phase::Resident { residency, .. } => Some(residency),
                Phase::Waiting | Phase::Finished => None,
            })
            .collect();
        match self.plane.retire_top(&mut residents) {
            Retire::Moved { from, to } => {
                self.world.pages[to.index()] = self.world.pages[from.index()];
            }
            Retire::Retired(_) | Retire::Busy(_) | Retire::Empty => {}
        }
    }

    fn resident(&self, which: u8) -> Option<usize> {
        let all: Vec<usize> = (0..self.requests.len())
            .filter(|&i| matches!(self.requests[i].phase, Phase::Resident { .. }))
            .collect();
        (!all.is_empty()).then(|| all[usize::from(which) % all.len()])
    }

    fn admit(&mut self) {
        for request in &mut self.requests {
            if !matches!(request.phase, Phase::Waiting) {
                continue;
            }
            let ask = AdmitRequest {
                request: RequestId::new(request.id),
                keys: &request.keys,
                gated: None,
            };
            let before = (self.plane.gauges(), self.plane.counters());
            match self.plane.try_admit(&ask).unwrap() {
                Admit::Admitted(residency, report) => {
                    let hit = report.hit;
                    assert!(hit.resumable <= hit.wanted && hit.wanted <= hit.kv);
                    assert!(hit.kv.tokens() < hit.full);
                    assert_eq!(hit.resumable.tokens() + report.losses.total(), hit.full);
                    self.resumed += u64::from(hit.resumable.get());
                    self.log.push(format!("{:?} {report:?}", residency.pages()));
                    request.prefill = request.keys.len().get();
                    request.phase = Phase::Resident {
                        residency,
                        demand: report.demand,
                        last_kept: hit.resumable,
                        flights: VecDeque::new(),
                        doomed: false,
                    };
                }
                Admit::Refused(why) => {
                    assert_eq!((self.plane.gauges(), self.plane.counters()), before, "{why:?}");
                    return;
                }
            }
            self.plane.check();
        }
    }

    fn step(&mut self, mask: u16, chunk: u32, early: bool, fail: bool) {
        let placement = self.plane.placement();
        let mut chosen = Vec::new();
        let mut preempted = Vec::new();
        for (index, request) in self.requests.iter_mut().enumerate() {
            let Phase::Resident { residency, demand, flights, doomed, .. } = &mut request.phase
            else {
                continue;
            };
            let busy = self.plane.in_flight(residency) > 0 && self.order == BackendOrder::Unordered;
            if *doomed || busy || mask & 1 << (index % 16) == 0 {
                continue;
            }
            let start = self.plane.scheduled(residency);
            let prompt = Tokens::new(request.prefill);
            let end = if start < prompt {
                let end = (start + Tokens::new(chunk)).min(prompt);
                placement.chunk_end(&Chunk { start, end, prompt, demand: *demand })
            } else {
                // A decode needs the token sampled by the forward before it.
                if !flights.is_empty() || start.get() >= request.stop_at {
                    continue;
                }
                if request.keys.len() == start {
                    let token = (request.digests[start.index()] % 3) as u32;
                    request.keys.extend(&[token]);
                    request.digests = digests(request.salt, request.keys.tokens());
                }
                start + Tokens::new(1)
            };
            assert!(start < end);
            let need = end.get().div_ceil(BLOCK) as usize;
            let room = (residency.pages().len()..need)
                .all(|_| matches!(self.plane.append_block(residency), Append::Done(_)));
            if room { chosen.push((index, end)) } else { preempted.push(index) }
        }
        for index in preempted {
            self.leave(index, true);
        }
        if chosen.is_empty() {
            return;
        }
        let mut ops = MaintenanceOps::default();
        let mut receipt = self.plane.begin_batch(&mut ops);
        self.log.push(format!("{ops:?}"));
        let mut members = Vec::new();
        for (index, end) in chosen {
            let Phase::Resident { residency, flights, .. } = &mut self.requests[index].phase else {
                panic!("chosen requests are resident");
            };
            let from = self.plane.scheduled(residency).get();
            self.plane.join(&mut receipt, residency, end);
            flights.push_back((receipt.batch().raw(), end.get(), false));
            members.push(Member {
                request: index,
                slot: residency.slot(),
                pages: residency.pages().to_vec(),
                from,
                to: end.get(),
            });
        }
        let outcome = if fail { Outcome::Failed } else { Outcome::Done };
        if fail {
            // The engine learns of it by the receipt; the driver only avoids running on with it.
            let hit = |slot: SlotId| {
                members.iter().any(|member| member.slot == slot)
                    || ops.restores.iter().any(|op| op.slot == slot)
                    || ops.relocations.iter().any(|op| op.to == slot)
            };
            for request in &mut self.requests {
                if let Phase::Resident { residency, doomed, .. } = &mut request.phase {
                    *doomed |= hit(residency.slot());
                }
            }
        }
        let batch = Batch { receipt, ops, members, outcome };
        if self.order == BackendOrder::Ordered {
            self.world.run(&batch, &self.requests);
        }
        let ends: Vec<(usize, u32)> =
            batch.members.iter().map(|member| (member.request, member.to)).collect();
        self.batches.push(batch);
        if early {
            for (index, end) in ends {
                self.keep(index, end);
            }
        }
    }

    fn keep(&mut self, index: usize, end: u32) {
        let placement = self.plane.placement();
        let request = &mut self.requests[index];
        let Phase::Resident { residency, demand, last_kept, .. } = &mut request.phase else {
            return;
        };
        let ahead = if end >= request.stop_at { Ahead::Nothing } else { Ahead::Forward };
        let progress = Progress {
            at: Tokens::new(end),
            prompt: Tokens::new(request.prefill),
            demand: *demand,
            last_kept: *last_kept,
            ahead,
        };
        if let Some(reason) = placement.keep(&progress) {
            let boundary = Boundary::from_raw(end);
            *last_kept = boundary;
            let key = request.keys.key_at(boundary).unwrap();
            self.plane.file(residency, boundary, key, reason);
        }
    }

    fn settle(&mut self, which: usize) {
        let batch = self.batches.remove(which);
        if self.order == BackendOrder::Unordered {
            self.world.run(&batch, &self.requests);
        }
        let Batch { receipt, members, outcome, .. } = batch;
        let id = receipt.batch().raw();
        self.plane.settle(receipt, outcome);
        self.plane.check();
        for member in members {
            let request = &mut self.requests[member.request];
            let Phase::Resident { residency, flights, doomed, .. } = &mut request.phase else {
                continue;
            };
            let Some(flight) = flights.iter_mut().find(|flight| flight.0 == id) else { continue };
            flight.2 = true;
            let mut kept = Vec::new();
            while let Some(&(_, to, true)) = flights.front() {
                flights.pop_front();
                if !*doomed {
                    self.plane.advance(residency, &request.keys, Tokens::new(to));
                    kept.push(to);
                }
            }
            let done = *doomed && flights.is_empty();
            let finished = self.plane.computed(residency).get() >= request.stop_at;
            for to in kept {
                self.keep(member.request, to);
            }
            if done {
                self.leave(member.request, true);
            } else if finished {
                self.leave(member.request, false);
            }
        }
        // A restore's target that was no member is doomed, too, and joins nothing any more.
        for index in 0..self.requests.len() {
            if let Phase::Resident { flights, doomed: true, .. } = &self.requests[index].phase
                && flights.is_empty()
                && self.batches.is_empty()
            {
                self.leave(index, true);
            }
        }
    }

    fn leave(&mut self, index: usize, preempt: bool) {
        let request = &mut self.requests[index];
        let next = if preempt { Phase::Waiting } else { Phase::Finished };
        if let Phase::Resident { residency, .. } = std::mem::replace(&mut request.phase, next) {
            self.plane.release(residency);
        }
        self.plane.check();
    }

    fn finish(mut self) -> (Vec<String>, u64) {
        while !self.batches.is_empty() {
            self.settle(0);
        }
        for index in 0..self.requests.len() {
            self.leave(index, false);
        }
        self.plane.reset();
        self.plane.check();
        let gauges = self.plane.gauges();
        assert_eq!(gauges.pages_vacant, gauges.pages_total, "no page has leaked");
        assert_eq!(gauges.slots_free, self.plane.config().slots, "no slot has leaked");
        assert_eq!((gauges.copying, gauges.ready, gauges.evicting, gauges.pending), (0, 0, 0, 0));
        (self.log, self.resumed)
    }
}

/// Chooses by a fixed scramble among all that is eligible, and declines now and then. Keeps books from
/// the notices alone and compares them with what it is shown.
#[derive(Debug, Default)]
struct Whim {
    scramble: u64,
    cached: BTreeSet<PageId>,
    ready: BTreeSet<CheckpointId>,
}

impl VictimPolicy for Whim {
    fn notice(&mut self, notice: &Notice) {
        let news = match *notice {
            Notice::Ready { checkpoint, .. } => self.ready.insert(checkpoint),
            Notice::Hit { checkpoint, .. } => self.ready.contains(&checkpoint),
            Notice::Removed { checkpoint, .. } => self.ready.remove(&checkpoint),
            Notice::Cached { page, .. } => self.cached.insert(page),
            Notice::Uncached { page } => self.cached.remove(&page),
            _ => true,
        };
        assert!(news, "{notice:?} changes nothing");
    }

    fn next_victim(&mut self, view: &VictimView<'_>, purpose: Purpose) -> Option<Victim> {
        let records =
            std::iter::successors(view.oldest_checkpoint(), |&id| view.checkpoint_after(id));
        let all: Vec<Victim> =
            view.pages().map(Victim::Page).chain(records.map(Victim::Checkpoint)).collect();
        let mut shown = 0;
        for victim in &all {
            match victim {
                Victim::Page(page) => {
                    shown += 1;
                    assert!(self.cached.contains(page));
                }
                Victim::Checkpoint(id) => assert!(self.ready.contains(id)),
            }
        }
        // A plan for an image hides what it has chosen already; nothing else may be hidden.
        assert!(matches!(purpose, Purpose::Store(_)) || shown == self.cached.len());
        self.scramble =
            self.scramble.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let whim = (self.scramble >> 33) as usize;
        if all.is_empty() || whim.is_multiple_of(5) {
            return None;
        }
        Some(all[whim / 5 % all.len()])
    }

    fn plan(&mut self, request: &PlanRequest<'_>) -> KeepPlan {
        KeepPlan::reference(&request.hit)
    }
    fn report(&self) -> Option<PolicyReport> {
        None
    }
    fn check(&self) {}
}

/// Another policy, asked for one victim at a time and told of one change at a time.
#[derive(Debug)]
struct OneByOne(Box<dyn VictimPolicy>);

impl VictimPolicy for OneByOne {
    fn notice(&mut self, notice: &Notice) {
        self.0.notice(notice);
    }
    fn next_victim(&mut self, view: &VictimView<'_>, purpose: Purpose) -> Option<Victim> {
        self.0.next_victim(view, purpose)
    }
    fn plan(&mut self, request: &PlanRequest<'_>) -> KeepPlan {
        self.0.plan(request)
    }
    fn report(&self) -> Option<PolicyReport> {
        self.0.report()
    }
    fn check(&self) {
        self.0.check();
    }
}

fn setup(
    order: BackendOrder,
    pages: u32,
    slots: u32,
    interval: CheckpointInterval,
) -> ControlPlaneConfig {
    ControlPlaneConfig {
        order,
        interval,
        pages_max: Pages::new(pages + 4),
        copying_max: Some(Pages::new(6)),
        ..config(pages, slots)
    }
}

fn simulate(
    config: ControlPlaneConfig,
    policy: Box<dyn VictimPolicy>,
    acts: &[Act],
) -> (Vec<String>, u64) {
    let mut run = Run::new(config, policy);
    for act in acts {
        run.act(act);
    }
    run.finish()
}

fn interval(n: u8) -> CheckpointInterval {
    match n % 4 {
        0 => CheckpointInterval::Off,
        1 => CheckpointInterval::AnchorsOnly,
        n => CheckpointInterval::Grid(Pages::new(u32::from(n) - 1)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn no_reader_ever_finds_another_word(
        acts in prop::collection::vec(act(), 1..160),
        pages in 12..48u32,
        slots in 1..7u32,
        grid in any::<u8>(),
        ordered in any::<bool>(),
        whim in 0..3u8,
    ) {
        let order = if ordered { BackendOrder::Ordered } else { BackendOrder::Unordered };
        let policy = || -> Box<dyn VictimPolicy> {
            match whim {
                0 => Box::new(ReferenceOrder),
                1 => Box::new(Whim::default()),
                _ => Box::new(Statepages::new(Pages::new(pages + 4), Pages::new(3))),
            }
        };
        let setup = || setup(order, pages, slots, interval(grid));
        let first = simulate(setup(), policy(), &acts);
        // Two replicas fed the same events emit the same ops.
        let second = simulate(setup(), policy(), &acts);
        prop_assert_eq!(&first, &second);
        // Runs of victims are those that are answered one by one.
        let third = simulate(setup(), Box::new(OneByOne(policy())), &acts);
        prop_assert_eq!(first, third);
    }
}
