//! The seam between the loop and whatever computes: batches go in, results come out.
//!
//! A runner owns the memory of pages and slots. It executes batches in the order of submission, and
//! of one batch first the relocations, then stores and restores, then the forward. It reports each
//! batch exactly once, in the same order. It may report at once or later; the engine neither waits
//! nor sleeps.

use std::fmt;

use statepages_page::{BatchId, MaintenanceOps, PageId, RequestId, SlotId, Tokens};

/// Which of a row's tokens the logits are wanted of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogitsWanted {
    /// None: the row is a chunk that more of the same prompt follows.
    Nothing,
    /// The last one: the next token is chosen from them.
    Last,
}

/// One request's share of a batch. Ids by value: a row stays right when the request moves on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The request.
    pub request: RequestId,
    /// Its slot, which holds the state after `start` tokens once the batch's copies are done.
    pub slot: SlotId,
    /// Its pages in block order, enough for `start + tokens.len()` tokens.
    pub pages: Vec<PageId>,
    /// Position of the first token.
    pub start: Tokens,
    /// The tokens, one at least.
    pub tokens: Vec<u32>,
    /// How many of the last tokens are drafts, which the runner has to verify: none but where the
    /// last token's logits are wanted, and always less than all.
    pub drafts: u32,
    /// Whether the last token's logits are wanted.
    pub logits: LogitsWanted,
}

impl Row {
    /// Position after the last token.
    pub fn end(&self) -> Tokens {
        Tokens::new(self.start.get() + self.tokens.len() as u32)
    }
}

/// One batch: its copies, then its forward.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepBatch {
    /// Ids ascend in the order of submission.
    pub id: BatchId,
    /// What is copied before the forward.
    pub ops: MaintenanceOps,
    /// The rows; one at least, one per request at most.
    pub rows: Vec<Row>,
}

impl StepBatch {
    /// A batch to be filled.
    pub(crate) fn empty() -> Self {
        Self { id: BatchId::new(0), ops: MaintenanceOps::default(), rows: Vec::new() }
    }

    /// Tokens that the batch computes.
    pub fn tokens(&self) -> u64 {
        self.rows.iter().map(|row| row.tokens.len() as u64).sum()
    }
}

/// What a row came to.
#[derive(Clone, PartialEq, Debug)]
pub enum RowOutput {
    /// Nothing was wanted.
    Nothing,
    /// Logits of the last token, one per id of the vocabulary.
    Logits(Vec<f32>),
    /// The next token itself, from a runner that chooses where it computes.
    Token(u32),
    /// Of a row with drafts: those of them that are the request's next tokens, and the token after
    /// them. The slot holds the state before that token, as if the other drafts had not been there.
    Verified(Vec<u32>),
}

/// A batch that did not come to an end: what it should have written is undefined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunError {
    /// The runner's account of it.
    pub what: String,
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a batch failed: {}", self.what)
    }
}

impl std::error::Error for RunError {}

/// The receipt of one batch, with the batch itself so that its memory is used again.
#[derive(Clone, PartialEq, Debug)]
pub struct StepResult {
    /// The batch as it was submitted.
    pub batch: StepBatch,
    /// One output per row, in row order; or why there is none.
    pub outcome: Result<Vec<RowOutput>, RunError>,
}

/// Bytes that a remote load delivers for one request: what its pages and its slot are to hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemoteState {
    /// For each page loaded, its bytes: the page's regions one after another.
    pub pages: Vec<Vec<u8>>,
    /// The slot's bytes: its planes one after another.
    pub slot: Vec<u8>,
}

/// Computes batches. See the module's head for what it owes.
pub trait Runner {
    /// Guesses of a request's next tokens, at most `most`, where `tokens` are all there are. A row
    /// that carries them is answered by [`RowOutput::Verified`].
    fn draft(&mut self, request: RequestId, tokens: &[u32], most: Tokens) -> Vec<u32> {
        let (_, _, _) = (request, tokens, most);
        Vec::new()
    }

    /// Takes a batch over.
    fn submit(&mut self, batch: StepBatch);

    /// The oldest submitted batch, where it is done.
    fn poll(&mut self) -> Option<StepResult>;

    /// Writes a remote load into `pages` and `slot`. The engine calls this only while no submitted
    /// and unreported batch touches any of them.
    fn land(&mut self, slot: SlotId, pages: &[PageId], state: &RemoteState)
    -> Result<(), RunError>;
}
