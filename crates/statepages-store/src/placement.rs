//! Where state is kept and where it may be resumed: one family of pure functions for both.
//!
//! The boundaries kept on the way through a prompt of `n` tokens, in `(start, end]`:
//!
//! | reason | boundaries |
//! | --- | --- |
//! | grid | multiples of the interval, `p <= n - room` |
//! | demand | the one the admission recorded, `p <= n - room` |
//! | anchor | the largest on the block grid with `p <= n - 1` and `p <= n - room` |
//! | prompt end | `n` itself, where it is on the block grid; never cut for |
//! | decode spacing | past `n`, on the block grid, at least one interval beyond the last one kept |
//!
//! [`Placement::chunk_end`] cuts at the first of the first three, and [`Placement::keep`] keeps a
//! forward's end exactly where it is one of the five: both ask the same rule, so they cannot differ.

use statepages_page::{BlockSize, Boundary, Pages, Tokens};

use crate::config::CheckpointInterval;
use crate::runtime::SuccessorRoom;

/// Why a boundary is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeepReason {
    /// It lies on the interval's grid.
    Grid,
    /// An admission's KV hit reached it, and no state was there.
    Demand,
    /// An identical prompt resumes there.
    Anchor,
    /// A continued prompt resumes there.
    PromptEnd,
    /// One interval of decoding lies behind it.
    DecodeSpacing,
}

/// Whether tokens are drafted and verified, so that a forward may run past accepted tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speculation {
    /// They are.
    On,
    /// They are not.
    Off,
}

/// The constants of placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Grid of boundaries.
    pub block: BlockSize,
    /// Spacing of the grid reason and of decode spacing.
    pub interval: CheckpointInterval,
    /// Which reasons count.
    pub scope: Scope,
    /// Tokens the forward after a checkpoint must have.
    pub room: SuccessorRoom,
    /// Whether forwards may run past accepted tokens.
    pub speculation: Speculation,
}

/// Which reasons count for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All of them, with or without the grid.
    Ahead(Grid),
    /// What the admission asked for, and what costs no cut: demand and prompt end.
    Asked,
}

/// Whether boundaries of the interval's grid are kept in a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grid {
    /// They are.
    Kept,
    /// They are not.
    Skipped,
}

impl Scope {
    /// All reasons.
    pub const EVERY: Self = Self::Ahead(Grid::Kept);
}

/// A prefill chunk `(start, end]` that the budget would allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Tokens already scheduled.
    pub start: Tokens,
    /// Tokens scheduled after the chunk, at most `prompt`.
    pub end: Tokens,
    /// Tokens to prefill in all.
    pub prompt: Tokens,
    /// The boundary that the admission asked for.
    pub demand: Option<Boundary>,
}

/// Where a forward ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Tokens whose state the slot holds: accepted ones only.
    pub at: Tokens,
    /// Tokens to prefill in all.
    pub prompt: Tokens,
    /// The boundary that the admission asked for.
    pub demand: Option<Boundary>,
    /// The last boundary kept for this request, or the one it resumed from.
    pub last_kept: Boundary,
    /// What follows for the request.
    pub ahead: Ahead,
}

/// What follows a forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// Another forward of the request.
    Forward,
    /// Nothing: the request stops on this step.
    Nothing,
}

impl Placement {
    /// The same rule for a request of another scope.
    #[must_use]
    pub const fn within(self, scope: Scope) -> Self {
        Self { scope, ..self }
    }

    /// The largest boundary an identical or longer prompt of `n` tokens can resume at: `p <= n - 1`,
    /// because the last token's logits must be computed.
    pub fn resumable_cap(&self, n: Tokens) -> Boundary {
        self.block.boundary_floor(n.saturating_sub(Tokens::new(1)))
    }

    /// The largest boundary not after `cap` that every state class can resume from. Each class
    /// answers its own largest boundary not after the one it is asked for; zero is always one.
    ///
    /// # Panics
    /// Where a class answers beyond what it was asked.
    pub fn joint_boundary(
        &self,
        cap: Boundary,
        classes: &mut [&mut dyn FnMut(Boundary) -> Boundary],
    ) -> Boundary {
        let mut at = cap;
        loop {
            let before = at;
            for class in &mut *classes {
                let answer = class(at);
                assert!(answer <= at, "a state class answered {answer:?} beyond {at:?}");
                at = answer;
            }
            if at == before {
                return at;
            }
        }
    }

    /// Where the chunk has to end, so that a forward ends on the first boundary kept in it:
    /// in `(start, end]`.
    ///
    /// # Panics
    /// Where the chunk is empty or leaves the prompt.
    pub fn chunk_end(&self, chunk: &Chunk) -> Tokens {
        let Chunk { start, end, prompt, demand } = *chunk;
        assert!(start < end && end <= prompt, "chunk ({start}, {end}] of {prompt} tokens");
        let mut first = end;
        for (_, boundary) in self.candidates(start, prompt, demand) {
            if start < boundary.tokens() && boundary.tokens() < first {
                first = boundary.tokens();
            }
        }
        first
    }

    /// The boundaries kept inside a chunk that is not cut, in order: for classes whose forward can
    /// emit the state at them on its way. What lies exactly on the chunk's end is [`Self::keep`]'s.
    pub fn interior(&self, chunk: &Chunk) -> impl Iterator<Item = (Boundary, KeepReason)> + use<> {
        let (rule, Chunk { start, end, prompt, demand }) = (*self, *chunk);
        let next = move |after: Tokens| {
            rule.candidates(after, prompt, demand)
                .filter(|(_, boundary)| after < boundary.tokens() && boundary.tokens() < end)
                .map(|(reason, boundary)| (boundary, reason))
                .min_by_key(|(boundary, _)| *boundary)
        };
        std::iter::successors(next(start), move |(boundary, _)| next(boundary.tokens()))
    }

    /// Whether the state at the end of a forward is kept, and why.
    pub fn keep(&self, progress: &Progress) -> Option<KeepReason> {
        let Progress { at, prompt, demand, last_kept, ahead } = *progress;
        let boundary = self.block.boundary_at(at)?;
        if at == Tokens::ZERO || self.interval == CheckpointInterval::Off {
            return None;
        }
        if at < prompt {
            let before = at - Tokens::new(1);
            return self
                .candidates(before, prompt, demand)
                .find_map(|(reason, candidate)| (candidate == boundary).then_some(reason));
        }
        let next_forward = match ahead {
            Ahead::Forward => 1,
            Ahead::Nothing => 0,
        };
        if !self.has_room(next_forward) {
            return None;
        }
        if at == prompt {
            return self.keeps_ends().then_some(KeepReason::PromptEnd);
        }
        let interval = self.spacing()?;
        let far = at.saturating_sub(last_kept.tokens()).get()
            >= self.block.boundary_after(interval).get();
        let forks = matches!(self.room, SuccessorRoom::Tokens(1..));
        let exact = !(forks && self.speculation == Speculation::On);
        (far && exact && ahead == Ahead::Forward).then_some(KeepReason::DecodeSpacing)
    }

    /// The next boundary after `start` of each reason that a prefill is cut for, in order of rank:
    /// a boundary with several reasons is remembered by the first.
    fn candidates(
        &self,
        start: Tokens,
        prompt: Tokens,
        demand: Option<Boundary>,
    ) -> impl Iterator<Item = (KeepReason, Boundary)> + use<> {
        let limit = match (self.interval, self.room) {
            (CheckpointInterval::Off, _) | (_, SuccessorRoom::Never) => Tokens::ZERO,
            (_, SuccessorRoom::Tokens(room)) => {
                prompt.saturating_sub(Tokens::new(1)).min(prompt.saturating_sub(Tokens::new(room)))
            }
        };
        let grid = self.grid().and_then(|interval| {
            let step = self.block.boundary_after(interval).get();
            let next = u64::from(start.get() / step + 1) * u64::from(step);
            u32::try_from(next).ok().map(Boundary::from_raw)
        });
        let ahead = self.scope != Scope::Asked && self.keeps_ends();
        let anchor = ahead.then(|| self.block.boundary_floor(limit));
        [(KeepReason::Demand, demand), (KeepReason::Anchor, anchor), (KeepReason::Grid, grid)]
            .into_iter()
            .filter_map(|(reason, boundary)| Some((reason, boundary?)))
            .filter(move |(_, boundary)| *boundary > Boundary::ZERO && boundary.tokens() <= limit)
    }

    /// Spacing of the prompt's grid, where there is one.
    pub(crate) fn grid(&self) -> Option<Pages> {
        match self.scope {
            Scope::Ahead(Grid::Kept) => self.spacing(),
            Scope::Ahead(Grid::Skipped) | Scope::Asked => None,
        }
    }

    /// The interval, where anything is spaced by it.
    const fn spacing(&self) -> Option<Pages> {
        match (self.scope, self.interval) {
            (
                Scope::Ahead(_),
                CheckpointInterval::Grid(interval) | CheckpointInterval::GridAndDemand(interval),
            ) => Some(interval),
            (Scope::Asked, _) | (_, CheckpointInterval::AnchorsOnly | CheckpointInterval::Off) => {
                None
            }
        }
    }

    /// Whether anchors and prompt ends are among the reasons.
    const fn keeps_ends(&self) -> bool {
        matches!(self.interval, CheckpointInterval::Grid(_) | CheckpointInterval::AnchorsOnly)
    }

    const fn has_room(&self, next_forward: u32) -> bool {
        match self.room {
            SuccessorRoom::Tokens(room) => next_forward >= room,
            SuccessorRoom::Never => false,
        }
    }
}
