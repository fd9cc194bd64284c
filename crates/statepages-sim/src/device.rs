//! The faulty device: executes batches on real pages and slots whose bytes say what they hold.
//!
//! Copies go through the production planner and a scripted backend, so a wrong plan shows as wrong
//! bytes. The forward checks every byte it reads against the oracle, and writes what the oracle says.
//! Batches are delayed, fail, tear in the middle of their copies, and, where the backend keeps no
//! order, take effect youngest first. They are reported in the order of submission.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use statepages_copy::{CopyBackend, FaultyBackend, HostArena};
use statepages_engine::{
    LogitsWanted, RecurrentModel, RemoteState, Row, RowOutput, RunError, Runner, StepBatch,
    StepResult,
};
use statepages_page::{BatchId, PageId, Pages, RequestId, SlotId, Tokens};

use crate::oracle::{LANE, Oracle, PLANES, REGIONS, VOCAB, entry_bytes, next_token};
use crate::random::{Random, mix};
use crate::setup::{Bug, Setup};
use crate::tally::Fault;

/// What a batch is going to come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Well,
    /// All copies are done, the forward leaves noise.
    ForwardFails,
    /// Nothing is copied.
    CopiesFail,
    /// So many moves are done before the copies fail.
    Tears(usize),
}

#[derive(Debug)]
struct Queued {
    batch: StepBatch,
    fate: Fate,
    polls_left: u32,
    outcome: Option<Result<Vec<RowOutput>, RunError>>,
}

/// A batch as the auditor sees it.
#[derive(Clone, Debug)]
pub(crate) struct Reported {
    pub(crate) batch: BatchId,
    pub(crate) fault: Option<Fault>,
    pub(crate) requests: Vec<RequestId>,
}

/// The device.
pub(crate) struct Device {
    setup: Setup,
    arena: HostArena,
    backend: FaultyBackend,
    queue: VecDeque<Queued>,
    oracle: Rc<RefCell<Oracle>>,
    draws: Random,
    /// Batches up to this one were queued when one failed: they may well find wrong states.
    suspect: Option<BatchId>,
    pub(crate) violations: Vec<String>,
    pub(crate) reported: Vec<Reported>,
    pub(crate) reports: u64,
    pub(crate) reordered: u64,
    pub(crate) drafts_rejected: u64,
    /// Stores in flight when the latest batch was submitted, its own left out.
    pub(crate) stores_ahead: usize,
    pub(crate) submitted: u64,
    /// Digest of every operation and row of every batch, in order.
    pub(crate) log: u64,
}

impl Device {
    pub(crate) fn new(setup: &Setup, oracle: Rc<RefCell<Oracle>>) -> Self {
        let layout = model(setup).layout();
        let pages = Pages::new(setup.pages + setup.spare);
        let mut arena = HostArena::new(&layout, pages, setup.slots).expect("a small arena");
        for region in 0..REGIONS {
            for page in 0..pages.get() {
                arena.page_mut(region, PageId::new(page)).fill(0xa5);
            }
        }
        for plane in 0..PLANES {
            for slot in 0..setup.slots {
                arena.slot_mut(plane, SlotId::new(slot)).fill(0x5a);
            }
        }
        Self {
            setup: setup.clone(),
            backend: FaultyBackend::new(layout),
            arena,
            queue: VecDeque::new(),
            oracle,
            draws: Random::new(setup.seed, 2),
            suspect: None,
            violations: Vec::new(),
            reported: Vec::new(),
            reports: 0,
            reordered: 0,
            drafts_rejected: 0,
            stores_ahead: 0,
            submitted: 0,
            log: 0,
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.queue.len()
    }

    /// Stores of batches that are not reported.
    pub(crate) fn stores_in_flight(&self) -> usize {
        self.queue.iter().map(|queued| queued.batch.ops.stores.len()).sum()
    }

    /// Rows of the youngest batch.
    pub(crate) fn youngest(&self) -> Option<&StepBatch> {
        self.queue.back().map(|queued| &queued.batch)
    }

    /// The oldest batch that is not reported.
    pub(crate) fn oldest(&self) -> Option<BatchId> {
        self.queue.front().map(|queued| queued.batch.id)
    }

    /// Whether units, in canonical order, hold an image.
    pub(crate) fn image_is(&self, units: &[PageId], mut image: &[u8]) -> bool {
        for &unit in units {
            for region in 0..REGIONS {
                let page = self.arena.page(region, unit);
                let (part, rest) = image.split_at(image.len().min(page.len()));
                if page[..part.len()] != *part {
                    return false;
                }
                image = rest;
            }
        }
        image.is_empty()
    }

    /// Writes noise into a slot and pages, as the far side of a load does.
    pub(crate) fn scribble(&mut self, slot: SlotId, pages: &[PageId]) {
        for plane in 0..PLANES {
            self.arena.slot_mut(plane, slot).fill(0xbb);
        }
        for &page in pages {
            for region in 0..REGIONS {
                self.arena.page_mut(region, page).fill(0xbb);
            }
        }
    }

    /// Spoils one byte of a page, as a device would that writes where it should not.
    pub(crate) fn flip(&mut self, page: PageId) {
        self.arena.page_mut(0, page)[0] ^= 0xff;
    }

    fn draw(&mut self) -> Fate {
        if !self.draws.percent(self.setup.failing) {
            return Fate::Well;
        }
        match self.draws.below(3) {
            0 => Fate::ForwardFails,
            1 => Fate::CopiesFail,
            _ => Fate::Tears(self.draws.below(6) as usize),
        }
    }

    fn take_effect(&mut self, index: usize) {
        if self.queue[index].outcome.is_some() {
            return;
        }
        let batch = self.queue[index].batch.clone();
        let fate = self.queue[index].fate;
        let outcome = self.execute(&batch, fate);
        if outcome.is_err() {
            let last = self.queue.back().map(|queued| queued.batch.id);
            self.suspect = last.max(self.suspect);
        }
        self.queue[index].outcome = Some(outcome);
    }

    fn execute(&mut self, batch: &StepBatch, fate: Fate) -> Result<Vec<RowOutput>, RunError> {
        use statepages_copy::Fault as Script;
        let tears = matches!(fate, Fate::Tears(_));
        self.backend.script(match fate {
            Fate::CopiesFail => Script::FailSubmit,
            Fate::Tears(moves) => Script::Tear { polls: 1, moves },
            Fate::Well | Fate::ForwardFails if self.setup.bug == Some(Bug::SkipRestores) => {
                Script::SkipRestores
            }
            Fate::Well | Fate::ForwardFails => Script::Delay { polls: 0 },
        });
        let copied = self
            .backend
            .submit(&mut self.arena, &batch.ops)
            .and_then(|ticket| self.backend.poll(&mut self.arena, ticket));
        if let Err(error) = copied {
            if fate == Fate::Well || fate == Fate::ForwardFails {
                self.violations.push(format!("{}: sound copies were refused: {error}", batch.id));
            }
            self.backend.reset();
            if tears && self.setup.bug == Some(Bug::TornIsDone) {
                return Ok(self.forward(batch));
            }
            self.spoil(batch);
            return Err(RunError { what: error.to_string() });
        }
        if fate == Fate::ForwardFails {
            self.spoil(batch);
            return Err(RunError { what: "the forward failed".to_owned() });
        }
        Ok(self.forward(batch))
    }

    fn forward(&mut self, batch: &StepBatch) -> Vec<RowOutput> {
        let before = self.violations.len();
        let outputs = batch.rows.iter().map(|row| self.forward_row(row)).collect();
        if self.suspect.is_some_and(|last| batch.id <= last) {
            self.violations.truncate(before);
        }
        outputs
    }

    fn forward_row(&mut self, row: &Row) -> RowOutput {
        let oracle = Rc::clone(&self.oracle);
        let oracle = oracle.borrow();
        let stream = oracle.stream(row.request);
        let start = row.start.index();
        let known = row.tokens.len() - row.drafts as usize;
        let (tokens, drafts) = row.tokens.split_at(known);
        let before = self.violations.len();
        let mut end = start + known;
        if stream.keys.tokens()[start..end] != *tokens {
            self.violations.push(format!("{}: tokens {start}..{end} are {tokens:?}", row.request));
        }
        let next = stream.keys.tokens()[end..].iter();
        let accepted = next.zip(drafts).take_while(|(next, draft)| next == draft).count();
        end += accepted;
        self.drafts_rejected += (drafts.len() - accepted) as u64;
        if start > 0 && !self.slot_is(row.slot, &oracle.slot_bytes(stream.at(start))) {
            self.violations.push(format!(
                "slot: {} starts at {start} and {} holds another state",
                row.request, row.slot
            ));
        }
        for position in 0..start {
            for region in 0..REGIONS {
                let wanted = entry_bytes(stream.at(position + 1), region);
                if *self.entry_mut(row, region, position) != wanted {
                    self.violations.push(format!(
                        "page: {} reads position {position} and finds another entry",
                        row.request
                    ));
                }
            }
        }
        // What is computed from wrong bytes is wrong, so that nobody may go on from it.
        let good = self.violations.len() == before;
        for position in start..end {
            for region in 0..REGIONS {
                let bytes = entry_bytes(stream.at(position + 1), region);
                let entry = self.entry_mut(row, region, position);
                if good { entry.copy_from_slice(&bytes) } else { entry.fill(0xdd) }
            }
        }
        for position in end..row.end().index() {
            for region in 0..REGIONS {
                self.entry_mut(row, region, position).fill(0xdd);
            }
        }
        let mut bytes = oracle.slot_bytes(stream.at(end));
        if !good {
            bytes.fill(0xdd);
        }
        self.set_slot(row.slot, &bytes);
        let mut token = next_token(stream.digests[end]);
        if !good {
            token = (token + 1) % VOCAB;
        }
        match row.logits {
            LogitsWanted::Nothing => RowOutput::Nothing,
            LogitsWanted::Last if drafts.is_empty() => RowOutput::Token(token),
            LogitsWanted::Last => RowOutput::Verified([&drafts[..accepted], &[token]].concat()),
        }
    }

    fn spoil(&mut self, batch: &StepBatch) {
        for op in &batch.ops.stores {
            for &unit in batch.ops.units(op.units) {
                self.arena.page_mut(0, unit).fill(0xee);
            }
        }
        for op in &batch.ops.restores {
            self.arena.slot_mut(0, op.slot).fill(0xee);
        }
        for row in &batch.rows {
            self.arena.slot_mut(1, row.slot).fill(0xee);
            for position in row.start.index()..row.end().index() {
                self.entry_mut(row, 1, position).fill(0xee);
            }
        }
    }

    fn slot_is(&self, slot: SlotId, bytes: &[u8]) -> bool {
        let mut planes = bytes.chunks_exact(bytes.len() / PLANES).enumerate();
        planes.all(|(plane, part)| self.arena.slot(plane, slot) == part)
    }

    fn set_slot(&mut self, slot: SlotId, bytes: &[u8]) {
        for (plane, part) in bytes.chunks_exact(bytes.len() / PLANES).enumerate() {
            self.arena.slot_mut(plane, slot).copy_from_slice(part);
        }
    }

    fn entry_mut(&mut self, row: &Row, region: usize, position: usize) -> &mut [u8] {
        let block = self.setup.block as usize;
        let page = row.pages[position / block];
        &mut self.arena.page_mut(region, page)[position % block * LANE..][..LANE]
    }
}

impl Runner for Device {
    /// Drafts that are right more often than not: the oracle knows what comes next.
    fn draft(&mut self, request: RequestId, tokens: &[u32], most: Tokens) -> Vec<u32> {
        let oracle = Rc::clone(&self.oracle);
        let oracle = oracle.borrow();
        let most = u64::from(most.get().min(self.setup.drafts));
        let count = self.draws.below(most + 1) as usize;
        let next = oracle.stream(request).keys.tokens()[tokens.len()..].iter().take(count);
        let wrong = |token: u32| (token + 1) % VOCAB;
        next.map(|&token| if self.draws.percent(70) { token } else { wrong(token) }).collect()
    }

    fn submit(&mut self, batch: StepBatch) {
        self.stores_ahead = self.stores_in_flight();
        self.submitted += 1;
        self.log = digest(self.log, &batch);
        let fate = self.draw();
        let polls_left = self.draws.below(u64::from(self.setup.latency) + 1) as u32;
        self.queue.push_back(Queued { batch, fate, polls_left, outcome: None });
    }

    fn poll(&mut self) -> Option<StepResult> {
        let front = self.queue.front_mut()?;
        if front.polls_left > 0 {
            front.polls_left -= 1;
            return None;
        }
        let youngest = self.queue.len() - 1;
        let last = if self.setup.is_ordered() { 0 } else { youngest };
        self.reordered += u64::from(last > 0);
        for index in (0..=last).rev() {
            self.take_effect(index);
        }
        let Queued { batch, fate, outcome, .. } = self.queue.pop_front()?;
        self.reports += 1;
        self.reported.push(Reported {
            batch: batch.id,
            fault: match fate {
                Fate::Well => None,
                Fate::ForwardFails => Some(Fault::ForwardFailed),
                Fate::CopiesFail => Some(Fault::CopyFailed),
                Fate::Tears(_) => Some(Fault::CopyTorn),
            },
            requests: batch.rows.iter().map(|row| row.request).collect(),
        });
        Some(StepResult { batch, outcome: outcome.expect("the oldest batch has taken effect") })
    }

    fn land(
        &mut self,
        slot: SlotId,
        pages: &[PageId],
        state: &RemoteState,
    ) -> Result<(), RunError> {
        self.set_slot(slot, &state.slot);
        for (&page, bytes) in pages.iter().zip(&state.pages) {
            for (region, part) in bytes.chunks_exact(bytes.len() / REGIONS).enumerate() {
                self.arena.page_mut(region, page).copy_from_slice(part);
            }
        }
        Ok(())
    }
}

/// Folds a batch into the digest of those before it.
fn digest(before: u64, batch: &StepBatch) -> u64 {
    let mut log = mix(before ^ batch.id.raw());
    let mut fold = |word: u64| log = mix(log ^ word);
    let ops = &batch.ops;
    for op in &ops.relocations {
        fold(u64::from(op.from.raw()) << 32 | u64::from(op.to.raw()));
    }
    let stores = ops.stores.iter().map(|op| (0, op.checkpoint, op.slot, op.boundary, op.units));
    let restores = ops.restores.iter().map(|op| (1, op.checkpoint, op.slot, op.boundary, op.units));
    for (kind, checkpoint, slot, boundary, units) in stores.chain(restores) {
        fold(kind);
        fold(checkpoint.raw());
        fold(u64::from(slot.raw()) << 32 | u64::from(boundary.get()));
        ops.units(units).iter().for_each(|unit| fold(u64::from(unit.raw())));
    }
    for row in &batch.rows {
        fold(row.request.raw());
        fold(u64::from(row.slot.raw()) << 32 | u64::from(row.start.get()));
        row.pages.iter().for_each(|page| fold(u64::from(page.raw())));
        row.tokens.iter().for_each(|&token| fold(u64::from(token)));
    }
    log
}

/// The model whose layout the device has; its forward is not used.
pub(crate) fn model(setup: &Setup) -> RecurrentModel {
    RecurrentModel {
        seed: 0,
        vocab: crate::oracle::VOCAB,
        block: setup.block_size(),
        lanes: setup.lanes,
    }
}
