//! The runner that computes DeepSeek-V4 on the CPU, on pages and slots in host memory.
//!
//! A batch is executed whole when it is submitted: copies, then forward. A failed copy latches in
//! the backend, so every later batch fails, too, until [`CpuRunner::reset`].

use std::collections::VecDeque;
use std::fmt;

use statepages_copy::{ArenaError, CopyBackend, CopyError, CopyState, HostArena, HostBackend};
use statepages_model::{Logits, Model, SequenceChunk};
use statepages_page::{MaintenanceOps, PageId, Pages, SlotId, StateLayout};

use crate::runner::{
    LogitsWanted, RemoteState, Row, RowOutput, RunError, Runner, StepBatch, StepResult,
};

/// The runner. See the module's head.
pub struct CpuRunner<B = HostBackend> {
    model: Model,
    arena: HostArena,
    copies: B,
    logits: Logits,
    done: VecDeque<StepResult>,
}

impl CpuRunner {
    /// A runner with zeroed memory for `pages` pages and `slots` slots of `layout`, which must be
    /// the layout that the model was built on.
    pub fn new(
        model: Model,
        layout: &StateLayout,
        pages: Pages,
        slots: u32,
    ) -> Result<Self, ArenaError> {
        let arena = HostArena::new(layout, pages, slots)?;
        Ok(Self::with_backend(model, arena, HostBackend::new(layout.clone())))
    }
}

impl<B: CopyBackend<Memory = HostArena>> CpuRunner<B> {
    /// A runner on memory that may hold anything, with a copy backend of the caller's.
    pub fn with_backend(model: Model, arena: HostArena, copies: B) -> Self {
        Self { model, arena, copies, logits: Logits::new(), done: VecDeque::new() }
    }

    /// Pages and slots, for callers that fill or look at bytes between batches.
    pub const fn arena_mut(&mut self) -> &mut HostArena {
        &mut self.arena
    }

    /// The copy backend.
    pub const fn copies_mut(&mut self) -> &mut B {
        &mut self.copies
    }

    /// Ends a latched failure of the copy backend. The engine has given up whatever the failed
    /// batches touched.
    pub fn reset(&mut self) {
        self.copies.reset();
    }

    fn execute(&mut self, batch: &StepBatch) -> Result<Vec<RowOutput>, RunError> {
        self.copy(&batch.ops).map_err(|error| RunError { what: error.to_string() })?;
        let chunks: Vec<SequenceChunk<'_>> = batch.rows.iter().map(chunk).collect();
        self.model
            .forward(&mut self.arena, &chunks, &mut self.logits)
            .map_err(|error| RunError { what: error.to_string() })?;
        let output = |index| match self.logits.last(index) {
            Some(logits) => RowOutput::Logits(logits.to_vec()),
            None => RowOutput::Nothing,
        };
        Ok((0..batch.rows.len()).map(output).collect())
    }

    /// Runs a batch's copies to their end: the forward reads what they write.
    fn copy(&mut self, ops: &MaintenanceOps) -> Result<(), CopyError> {
        if ops.is_empty() {
            return Ok(());
        }
        let ticket = self.copies.submit(&mut self.arena, ops)?;
        while self.copies.poll(&mut self.arena, ticket)? == CopyState::Pending {}
        Ok(())
    }
}

/// A row in the model's words.
fn chunk(row: &Row) -> SequenceChunk<'_> {
    SequenceChunk {
        before: None,
        slot: row.slot,
        pages: &row.pages,
        start: row.start.get(),
        tokens: &row.tokens,
        logits: match row.logits {
            LogitsWanted::Nothing => statepages_model::LogitsWanted::None,
            LogitsWanted::Last => statepages_model::LogitsWanted::Last,
        },
    }
}

impl<B: CopyBackend<Memory = HostArena>> Runner for CpuRunner<B> {
    fn submit(&mut self, batch: StepBatch) {
        let outcome = self.execute(&batch);
        self.done.push_back(StepResult { batch, outcome });
    }

    fn poll(&mut self) -> Option<StepResult> {
        self.done.pop_front()
    }

    fn land(
        &mut self,
        slot: SlotId,
        pages: &[PageId],
        state: &RemoteState,
    ) -> Result<(), RunError> {
        let layout = self.copies.layout();
        let (page_bytes, slot_bytes) = (layout.page.page_bytes(), layout.slot.slot_bytes());
        let short = |what: &str, expected: usize, got: usize| RunError {
            what: format!("remote load: expected {expected} {what}, got {got}"),
        };
        if pages.len() != state.pages.len() {
            return Err(short("pages", pages.len(), state.pages.len()));
        }
        let wrong = |bytes: &&Vec<u8>| bytes.len() as u64 != page_bytes.get();
        if let Some(bytes) = state.pages.iter().find(wrong) {
            return Err(short("bytes of a page", page_bytes.get() as usize, bytes.len()));
        }
        if state.slot.len() as u64 != slot_bytes.get() {
            return Err(short("bytes of a slot", slot_bytes.get() as usize, state.slot.len()));
        }
        let regions: Vec<usize> = layout.page.regions().iter().map(|r| r.len.index()).collect();
        let planes: Vec<usize> = layout.slot.planes().iter().map(|p| p.len.index()).collect();
        for (&page, bytes) in pages.iter().zip(&state.pages) {
            let mut rest = &bytes[..];
            for (region, &len) in regions.iter().enumerate() {
                let (part, tail) = rest.split_at(len);
                self.arena.page_mut(region, page).copy_from_slice(part);
                rest = tail;
            }
        }
        let mut rest = &state.slot[..];
        for (plane, &len) in planes.iter().enumerate() {
            let (part, tail) = rest.split_at(len);
            self.arena.slot_mut(plane, slot).copy_from_slice(part);
            rest = tail;
        }
        Ok(())
    }
}

impl<B> fmt::Debug for CpuRunner<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuRunner").field("done", &self.done.len()).finish_non_exhaustive()
    }
}
