//! What one forward is asked for, and what it gives.

use std::fmt;

use statepages_copy::HostArena;
use statepages_geometry::Dsv4Geometry;
use statepages_page::{PageId, SlotId};

use crate::config::ModelConfig;

/// The next tokens of one request: a prefill chunk, or the one token of a decode step.
#[derive(Clone, Copy, Debug)]
pub struct SequenceChunk<'a> {
    /// The request's slot. It holds the state after `start` tokens.
    pub slot: SlotId,
    /// The request's pages, at least as many as blocks of `start + tokens.len()` tokens.
    pub pages: &'a [PageId],
    /// Tokens before the chunk.
    pub start: u32,
    /// The chunk; not empty.
    pub tokens: &'a [u32],
    /// Id of the token before `start`, where its row of the draft layer is to be made: after a
    /// restore, for that row follows from the token at `start`, which the image does not cover.
    /// That token is computed again and writes nothing else. `None` where nothing is drafted.
    pub before: Option<u32>,
    /// Which logits are wanted.
    pub logits: LogitsWanted,
}

/// Which tokens of a chunk need logits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogitsWanted {
    /// No token: a chunk in the middle of a prompt.
    None,
    /// The last token.
    Last,
    /// Every token.
    All,
}

/// The logits that a batch asked for. Reused from call to call.
#[derive(Clone, Debug, Default)]
pub struct Logits {
    pub(crate) vocab: usize,
    pub(crate) values: Vec<f32>,
    /// By sequence: rows up to and including its own.
    pub(crate) ends: Vec<usize>,
}

impl Logits {
    /// No logits.
    pub const fn new() -> Self {
        Self { vocab: 0, values: Vec::new(), ends: Vec::new() }
    }

    /// Logits of one sequence of the batch, `[rows][vocab]`; none, one or all of its tokens' rows.
    pub fn sequence(&self, index: usize) -> &[f32] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.values[start * self.vocab..self.ends[index] * self.vocab]
    }

    /// Logits of the last token of a sequence, where they were wanted.
    pub fn last(&self, index: usize) -> Option<&[f32]> {
        let rows = self.sequence(index);
        if rows.is_empty() { None } else { Some(&rows[rows.len() - self.vocab..]) }
    }

    /// Columns of a row.
    pub fn vocab(&self) -> usize {
        self.vocab
    }
}

/// A batch that cannot be computed. Nothing has been written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ForwardError {
    /// A chunk has no tokens.
    Empty {
        /// Index of the sequence.
        sequence: usize,
    },
    /// A chunk that starts at the first token names a token before it.
    NothingBefore {
        /// Index of the sequence.
        sequence: usize,
    },
    /// The model has no draft layer.
    NoDraftLayer,
    /// The model's forwards do not keep what a draft reads.
    NotDrafting,
    /// A draft does not follow a forward of the same batch, or has not one next token a sequence.
    NotForwarded,
    /// A token id is not in the vocabulary.
    Token {
        /// Index of the sequence.
        sequence: usize,
        /// The id.
        got: u32,
        /// Ids are below this.
        vocab: u32,
    },
    /// The chunk ends behind the last position.
    Position {
        /// Index of the sequence.
        sequence: usize,
        /// Tokens at the end of the chunk.
        got: u64,
        /// Most tokens of a request.
        max: u32,
    },
    /// The chunk needs more pages than were given.
    Pages {
        /// Index of the sequence.
        sequence: usize,
        /// Pages needed.
        expected: usize,
        /// Pages given.
        got: usize,
    },
    /// A page or slot does not exist.
    OutsideArena {
        /// Index of the sequence.
        sequence: usize,
    },
    /// Two sequences have one slot.
    SharedSlot {
        /// The slot.
        slot: SlotId,
    },
}

impl fmt::Display for ForwardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty { sequence } => write!(f, "sequence {sequence} of the batch has no tokens"),
            Self::NothingBefore { sequence } => {
                write!(f, "sequence {sequence} of the batch starts at 0, nothing is before it")
            }
            Self::NoDraftLayer => f.write_str("the model has no draft layer"),
            Self::NotDrafting => f.write_str("drafts need a model that is made for drafting"),
            Self::NotForwarded => {
                f.write_str("a draft needs a forward of the same batch, and each one's next token")
            }
            Self::Token { sequence, got, vocab } => write!(
                f,
                "sequence {sequence} of the batch: token ids are below {vocab}, got {got}"
            ),
            Self::Position { sequence, got, max } => {
                write!(f, "sequence {sequence} of the batch: at most {max} tokens, got {got}")
            }
            Self::Pages { sequence, expected, got } => {
                write!(f, "sequence {sequence} of the batch: expected {expected} pages, got {got}")
            }
            Self::OutsideArena { sequence } => {
                write!(f, "sequence {sequence} of the batch: a page or slot does not exist")
            }
            Self::SharedSlot { slot } => write!(f, "two sequences of the batch share slot {slot}"),
        }
    }
}

impl std::error::Error for ForwardError {}

/// One token of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    /// Index of its sequence.
    pub(crate) sequence: u32,
    pub(crate) position: u32,
    pub(crate) id: u32,
}

/// One sequence's place in the batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span<'a> {
    pub(crate) slot: SlotId,
    pub(crate) pages: &'a [PageId],
    /// Tokens of the batch before this sequence's.
    pub(crate) first: usize,
    /// Position of the first token that is computed: `start`, or the one before.
    pub(crate) from: u32,
    /// Position of the first token whose state is written.
    pub(crate) start: u32,
    /// Position behind the chunk's last token.
    pub(crate) end: u32,
    /// Position of the first token whose logits are wanted; `end` for none.
    pub(crate) wanted: u32,
}

impl Span<'_> {
    /// Slot and positions.
    pub(crate) fn place(&self) -> (SlotId, u32, u32) {
        (self.slot, self.from, self.end)
    }

    /// The token's place among the tokens of the batch.
    pub(crate) fn flat(&self, position: u32) -> usize {
        self.first + (position - self.from) as usize
    }

    /// True for a decode step: its one token needs no rows of others of its chunk, so whoever
    /// computes it reads its rows itself, while they fit a core's cache.
    pub(crate) fn is_step(&self) -> bool {
        self.end - self.from == 1 && self.from == self.start
    }

    /// First position that is in the window of one of the span's tokens.
    pub(crate) fn window_start(&self, window: u32) -> u32 {
        self.from.saturating_sub(window - 1)
    }
}

/// A checked batch.
#[derive(Clone, Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) spans: Vec<Span<'a>>,
    pub(crate) tokens: Vec<Token>,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(
        config: &ModelConfig,
        geometry: &Dsv4Geometry,
        arena: &HostArena,
        batch: &[SequenceChunk<'a>],
    ) -> Result<Self, ForwardError> {
        let mut plan = Self { spans: Vec::with_capacity(batch.len()), tokens: Vec::new() };
        let block = geometry.options().block;
        for (sequence, chunk) in batch.iter().enumerate() {
            if chunk.tokens.is_empty() {
                return Err(ForwardError::Empty { sequence });
            }
            let end = u64::from(chunk.start) + chunk.tokens.len() as u64;
            if end > u64::from(config.max_position_embeddings) {
                let max = config.max_position_embeddings;
                return Err(ForwardError::Position { sequence, got: end, max });
            }
            let end = end as u32;
            let expected = end.div_ceil(block.get()) as usize;
            if chunk.pages.len() < expected {
                return Err(ForwardError::Pages { sequence, expected, got: chunk.pages.len() });
            }
            let pages = &chunk.pages[..expected];
            let inside = |page: &PageId| page.raw() < arena.pages().get();
            if chunk.slot.raw() >= arena.slots() || !pages.iter().all(inside) {
                return Err(ForwardError::OutsideArena { sequence });
            }
            if plan.spans.iter().any(|span| span.slot == chunk.slot) {
                return Err(ForwardError::SharedSlot { slot: chunk.slot });
            }
            let vocab = config.vocab_size;
            if let Some(&got) = chunk.before.iter().chain(chunk.tokens).find(|&&id| id >= vocab) {
                return Err(ForwardError::Token { sequence, got, vocab });
            }
            let (first, start) = (plan.tokens.len(), chunk.start);
            let from = match chunk.before {
                None => start,
                Some(_) => start.checked_sub(1).ok_or(ForwardError::NothingBefore { sequence })?,
            };
            let wanted = match chunk.logits {
                LogitsWanted::None => end,
                LogitsWanted::Last => end - 1,
                LogitsWanted::All => start,
            };
            plan.spans.push(Span { slot: chunk.slot, pages, first, from, start, end, wanted });
            let ids = chunk.before.iter().chain(chunk.tokens);
            plan.tokens.extend((from..end).zip(ids).map(|(position, &id)| Token {
                sequence: sequence as u32,
                position,
                id,
            }));
        }
        Ok(plan)
    }

    /// The token's sequence.
    pub(crate) fn span(&self, token: &Token) -> &Span<'a> {
        &self.spans[token.sequence as usize]
    }

    /// True for a token whose logits are wanted.
    pub(crate) fn wants(&self, token: &Token) -> bool {
        token.position >= self.span(token).wanted
    }

    /// The same tokens as the draft layer sees them: each with the id of the one behind it, and
    /// rows written from the first on.
    pub(crate) fn draft(
        mut self,
        config: &ModelConfig,
        next: &[u32],
    ) -> Result<Self, ForwardError> {
        let vocab = config.vocab_size;
        for (sequence, (span, &next)) in self.spans.iter_mut().zip(next).enumerate() {
            if next >= vocab {
                return Err(ForwardError::Token { sequence, got: next, vocab });
            }
            let end = span.flat(span.end);
            for flat in span.first..end {
                self.tokens[flat].id = if flat + 1 < end { self.tokens[flat + 1].id } else { next };
            }
            span.start = span.from;
        }
        Ok(self)
    }
}
