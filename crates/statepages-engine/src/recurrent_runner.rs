//! Runs the recurrent model on real pages and slots, late, failing, or in the worst order.
//!
//! Its copies are byte loops of their own and know nothing of the copy planner, so the two can be
//! held against each other.

use std::collections::VecDeque;

use statepages_copy::{ArenaError, HostArena};
use statepages_page::{BatchId, MaintenanceOps, PageId, Pages, SlotId, Tokens};

use crate::recurrent::{
    LANE, PLANES, REGIONS, RecurrentModel, entry_bytes, lane_bytes, mix, step, unpair,
};
use crate::runner::{
    LogitsWanted, RemoteState, Row, RowOutput, RunError, Runner, StepBatch, StepResult,
};

/// What a batch that fails leaves behind, and how often one does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunnerFaults {
    /// Seeds the choice.
    pub seed: u64,
    /// Batches of a hundred that fail. Their slots, stored units and new entries hold noise.
    pub failing: u8,
}

/// When a submitted batch is executed and reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Latency {
    /// Polls that find nothing before each batch. The batch is executed only when it is reported,
    /// so whatever is changed meanwhile behind its back shows.
    pub polls: u32,
    /// Which of several queued batches takes effect first.
    pub effect: Effect,
}

/// Which of several queued batches takes effect first. They are reported in order either way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// The oldest: the runner keeps its batches in order.
    OldestFirst,
    /// The youngest, before those it may not depend on: the worst that a runner without order does.
    YoungestFirst,
}

/// A submitted batch, with what it came to once it has taken effect.
struct Queued {
    batch: StepBatch,
    outcome: Option<Result<Vec<RowOutput>, RunError>>,
}

/// Runs a [`RecurrentModel`].
pub struct RecurrentRunner {
    model: RecurrentModel,
    arena: HostArena,
    latency: Latency,
    faults: Option<RunnerFaults>,
    queue: VecDeque<Queued>,
    polls: u32,
    violations: Vec<String>,
    /// Batches that were queued when one failed: they may well find wrong states.
    suspect: Option<BatchId>,
    executed: u64,
}

impl RecurrentRunner {
    /// A runner whose pages and slots are filled with `noise`, as after other tenants.
    pub fn new(
        model: RecurrentModel,
        pages: Pages,
        slots: u32,
        latency: Latency,
        faults: Option<RunnerFaults>,
    ) -> Result<Self, ArenaError> {
        let mut arena = HostArena::new(&model.layout(), pages, slots)?;
        for region in 0..REGIONS {
            for page in 0..pages.get() {
                arena.page_mut(region, PageId::new(page)).fill(0xa5);
            }
        }
        for plane in 0..PLANES {
            for slot in 0..slots {
                arena.slot_mut(plane, SlotId::new(slot)).fill(0x5a);
            }
        }
        Ok(Self {
            model,
            arena,
            latency,
            faults,
            queue: VecDeque::new(),
            polls: 0,
            violations: Vec::new(),
            suspect: None,
            executed: 0,
        })
    }

    /// What the model noticed that no correct engine lets happen: a slot that does not stand where
    /// its row starts, or an entry of another position. Empty after a correct run.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    /// Batches executed.
    pub const fn executed(&self) -> u64 {
        self.executed
    }

    /// Pages and slots, for tests that look at or spoil bytes.
    pub const fn arena_mut(&mut self) -> &mut HostArena {
        &mut self.arena
    }

    fn take_effect(&mut self, index: usize) {
        if self.queue[index].outcome.is_none() {
            let batch = self.queue[index].batch.clone();
            self.queue[index].outcome = Some(self.execute(&batch));
        }
    }

    fn execute(&mut self, batch: &StepBatch) -> Result<Vec<RowOutput>, RunError> {
        self.executed += 1;
        self.copy(&batch.ops);
        if self.fails(batch.id) {
            self.spoil(batch);
            self.suspect = self.queue.back().map(|queued| queued.batch.id).max(self.suspect);
            return Err(RunError { what: format!("{} was chosen to fail", batch.id) });
        }
        let before = self.violations.len();
        let outputs = batch.rows.iter().map(|row| self.forward(row)).collect();
        if self.suspect.is_some_and(|last| batch.id <= last) {
            self.violations.truncate(before);
        }
        Ok(outputs)
    }

    fn fails(&self, id: BatchId) -> bool {
        self.faults.is_some_and(|RunnerFaults { seed, failing }| {
            mix(seed ^ mix(id.raw())) % 100 < u64::from(failing)
        })
    }

    fn copy(&mut self, ops: &MaintenanceOps) {
        for relocation in &ops.relocations {
            self.arena.move_slot(relocation.from, relocation.to);
        }
        // All reads before all writes: operations of one batch do not see each other.
        let stored: Vec<_> = ops.stores.iter().map(|op| self.slot_bytes(op.slot)).collect();
        let restored: Vec<_> =
            ops.restores.iter().map(|op| self.unit_bytes(ops.units(op.units))).collect();
        for (op, bytes) in ops.stores.iter().zip(stored) {
            self.set_unit_bytes(ops.units(op.units), &bytes);
        }
        for (op, bytes) in ops.restores.iter().zip(restored) {
            self.set_slot_bytes(op.slot, &bytes);
        }
    }

    /// The state after the row's tokens, from the slot and the pages alone.
    fn forward(&mut self, row: &Row) -> RowOutput {
        let start = row.start.index();
        let mut state = if start == 0 { self.model.seed } else { self.read_state(row) };
        for (index, &token) in row.tokens.iter().enumerate() {
            let position = start + index;
            state = step(state, token, position);
            for region in 0..REGIONS {
                let bytes = entry_bytes(state, position, region);
                self.entry_mut(row, region, position).copy_from_slice(&bytes);
            }
        }
        let end = row.end();
        let bytes: Vec<u8> = (0..PLANES * self.model.lanes as usize)
            .flat_map(|lane| lane_bytes(state, end.index(), lane))
            .collect();
        self.set_slot_bytes(row.slot, &bytes);
        match row.logits {
            LogitsWanted::Nothing => RowOutput::Nothing,
            LogitsWanted::Last => RowOutput::Logits(self.read_logits(row, state, end)),
        }
    }

    fn read_state(&mut self, row: &Row) -> u64 {
        let bytes = self.slot_bytes(row.slot);
        let (state, _) = unpair(&bytes[..LANE]);
        let start = row.start.index();
        let mut torn = state;
        for (lane, bytes) in bytes.chunks_exact(LANE).enumerate() {
            if bytes != lane_bytes(state, start, lane) {
                let (_, position) = unpair(bytes);
                self.violations.push(format!(
                    "{} starts at {start}; lane {lane} of {} stands at {position}",
                    row.request, row.slot
                ));
                torn = mix(torn ^ lane as u64);
            }
        }
        torn
    }

    fn read_logits(&mut self, row: &Row, state: u64, end: Tokens) -> Vec<f32> {
        let mut history = self.model.seed;
        for position in 0..end.index() {
            for region in 0..REGIONS {
                let (mark, at) = unpair(self.entry_mut(row, region, position));
                history = mix(history ^ mark);
                if at != position as u64 {
                    self.violations.push(format!(
                        "{} reads entry {position}; its page holds entry {at}",
                        row.request
                    ));
                }
            }
        }
        self.model.project(state, history)
    }

    fn entry_mut(&mut self, row: &Row, region: usize, position: usize) -> &mut [u8] {
        let block = self.model.block.get() as usize;
        let page = row.pages[position / block];
        &mut self.arena.page_mut(region, page)[position % block * LANE..][..LANE]
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

    fn slot_bytes(&self, slot: SlotId) -> Vec<u8> {
        (0..PLANES).flat_map(|plane| self.arena.slot(plane, slot)).copied().collect()
    }

    fn set_slot_bytes(&mut self, slot: SlotId, bytes: &[u8]) {
        let plane_bytes = bytes.len() / PLANES;
        for (plane, part) in bytes.chunks_exact(plane_bytes).enumerate() {
            self.arena.slot_mut(plane, slot).copy_from_slice(part);
        }
    }

    fn unit_bytes(&self, units: &[PageId]) -> Vec<u8> {
        let image = PLANES * self.model.lanes as usize * LANE;
        units
            .iter()
            .flat_map(|&unit| (0..REGIONS).flat_map(move |region| self.arena.page(region, unit)))
            .take(image)
            .copied()
            .collect()
    }

    fn set_unit_bytes(&mut self, units: &[PageId], bytes: &[u8]) {
        let region_bytes = self.model.block.get() as usize * LANE;
        for (index, part) in bytes.chunks(region_bytes).enumerate() {
            let (unit, region) = (units[index / REGIONS], index % REGIONS);
            self.arena.page_mut(region, unit)[..part.len()].copy_from_slice(part);
        }
    }
}

impl Runner for RecurrentRunner {
    fn submit(&mut self, batch: StepBatch) {
        self.queue.push_back(Queued { batch, outcome: None });
    }

    fn poll(&mut self) -> Option<StepResult> {
        self.queue.front()?;
        if self.polls < self.latency.polls {
            self.polls += 1;
            return None;
        }
        self.polls = 0;
        let last = match self.latency.effect {
            Effect::OldestFirst => 0,
            Effect::YoungestFirst => self.queue.len() - 1,
        };
        for index in (0..=last).rev() {
            self.take_effect(index);
        }
        let Queued { batch, outcome } = self.queue.pop_front()?;
        Some(StepResult { batch, outcome: outcome.expect("the oldest batch has taken effect") })
    }

    fn land(
        &mut self,
        slot: SlotId,
        pages: &[PageId],
        state: &RemoteState,
    ) -> Result<(), RunError> {
        if pages.len() != state.pages.len() {
            let what = format!("{} pages loaded for {}", state.pages.len(), pages.len());
            return Err(RunError { what });
        }
        self.set_slot_bytes(slot, &state.slot);
        for (&page, bytes) in pages.iter().zip(&state.pages) {
            self.set_unit_bytes(&[page], bytes);
        }
        Ok(())
    }
}
