//! What a control plane is built from, parsed once into values that are all valid.

use std::fmt;

use statepages_page::{BlockSize, Pages};

use crate::placement::Speculation;
use crate::runtime::StateRuntime;

/// Sizes and rules of one control plane. No default: each figure is somebody's decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlPlaneConfig {
    /// Pages of the pool at start.
    pub pages: Pages,
    /// Pages the pool may ever grow to; everything is sized by it at start.
    pub pages_max: Pages,
    /// Active slots.
    pub slots: u32,
    /// Tokens per block, which is also the grid of boundaries.
    pub block: BlockSize,
    /// How state moves, and the geometry of its images.
    pub runtime: StateRuntime,
    /// Whether finished blocks become findable. Off: every request starts at zero.
    pub caching: Caching,
    /// Where checkpoints are placed.
    pub interval: CheckpointInterval,
    /// Most units that may be COPYING at once; `None` is one eighth of the pool. Never below one
    /// image, whatever is asked for.
    pub copying_max: Option<Pages>,
    /// What the backend promises about the order of its batches.
    pub order: BackendOrder,
    /// Whether tokens are drafted and verified.
    pub speculation: Speculation,
    /// Stages of the model's pipeline.
    pub pipeline_stages: u32,
    /// Which schedulers share the pool.
    pub schedulers: Schedulers,
    /// KV events held between two drains of the log; later ones are counted as lost.
    pub events_max: u32,
}

/// Whether finished blocks are published under their content keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// They are.
    On,
    /// They are not.
    Off,
}

/// What may be reused before a batch's receipt has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendOrder {
    /// Batches run in the order they were built, so a later batch may overwrite what an earlier
    /// one, still in flight, reads or writes.
    Ordered,
    /// Nothing is promised: slots and pages of a batch in flight wait for its receipt.
    Unordered,
}

/// Which schedulers take pages from the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedulers {
    /// One, for prefill and decode.
    Unified,
    /// One for prefill and another for decode.
    SeparatePrefillDecode,
}

/// The parsed form of `--state-checkpoint-interval-tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointInterval {
    /// `0`: nothing is placed and nothing is resumed.
    Off,
    /// `-1`: no grid and no decode spacing; anchor, demand and prompt end only.
    AnchorsOnly,
    /// Every so many blocks, and all the other reasons.
    Grid(Pages),
    /// Every so many blocks, and where an admission found blocks without state: neither anchors nor
    /// prompt ends. No flag's value names it; replays compare other systems by it.
    GridAndDemand(Pages),
}

/// The flag's value was no multiple of the block and has been rounded down. For a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntervalSnapped {
    /// Tokens asked for.
    pub asked: u32,
    /// Tokens used.
    pub used: u32,
}

/// A flag value that names no interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IntervalError {
    /// Negative, and not `-1`; or beyond `u32`.
    OutOfRange {
        /// What was given.
        got: i64,
    },
    /// Positive, but shorter than one block.
    BelowBlock {
        /// What was given.
        got: i64,
        /// Tokens per block.
        block: u32,
    },
}

impl CheckpointInterval {
    /// Parses the flag's tokens; a value off the grid is rounded down and says so.
    pub fn parse(
        tokens: i64,
        block: BlockSize,
    ) -> Result<(Self, Option<IntervalSnapped>), IntervalError> {
        match tokens {
            0 => return Ok((Self::Off, None)),
            -1 => return Ok((Self::AnchorsOnly, None)),
            _ => {}
        }
        let asked = u32::try_from(tokens).map_err(|_| IntervalError::OutOfRange { got: tokens })?;
        let blocks = asked / block.get();
        if blocks == 0 {
            return Err(IntervalError::BelowBlock { got: tokens, block: block.get() });
        }
        let used = blocks * block.get();
        let snapped = (used != asked).then_some(IntervalSnapped { asked, used });
        Ok((Self::Grid(Pages::new(blocks)), snapped))
    }
}

/// A configuration that no control plane can run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// More pages at start than the pool may ever have, or more than ids can name.
    Pages {
        /// Pages at start.
        pages: Pages,
        /// The most there may be.
        pages_max: Pages,
    },
    /// No slot: nothing could ever be admitted.
    NoSlots,
    /// More slots than ids can name.
    Slots {
        /// Slots asked for.
        slots: u32,
    },
    /// An image needs more units than the pool may ever have.
    ImageExceedsPool {
        /// Units of one image.
        units: Pages,
        /// Pages at start.
        pages: Pages,
    },
    /// State is copied, and the pipeline has several stages: it needs an acknowledgement and
    /// rollback protocol between the stages.
    CopyAcrossStages {
        /// Stages of the pipeline.
        stages: u32,
    },
    /// State is copied, and prefill and decode have schedulers of their own on one pool: it needs
    /// an acknowledgement and rollback protocol between the schedulers.
    CopyAcrossSchedulers,
    /// State forks: its checkpoints are slot groups, which [`GroupPool`](crate::GroupPool) keeps; this control
    /// plane drives page-backed images.
    Fork,
}

impl fmt::Display for IntervalSnapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, used } = self;
        write!(f, "checkpoint interval of {asked} tokens is off the block grid: using {used}")
    }
}

impl fmt::Display for IntervalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange { got } => write!(
                f,
                "checkpoint interval: expected -1, 0 or a positive number of tokens below 2^32, got {got}"
            ),
            Self::BelowBlock { got, block } => write!(
                f,
                "checkpoint interval: expected at least one block of {block} tokens, got {got}"
            ),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pages { pages, pages_max } => {
                write!(
                    f,
                    "pages: expected at most pages_max, and that at most 2^32 tokens of pages, got \
                     {pages} of {pages_max}"
                )
            }
            Self::NoSlots => write!(f, "slots: expected at least 1, got 0"),
            Self::Slots { slots } => write!(f, "slots: expected fewer, got {slots}"),
            Self::ImageExceedsPool { units, pages } => {
                write!(f, "pages: expected at least the {units} units of one image, got {pages}")
            }
            Self::CopyAcrossStages { stages } => write!(
                f,
                "state transfer copy: expected 1 pipeline stage, got {stages} (no acknowledgement \
                 and rollback protocol between stages)"
            ),
            Self::CopyAcrossSchedulers => write!(
                f,
                "state transfer copy: expected one scheduler on the pool, got separate prefill \
                 and decode schedulers (no acknowledgement and rollback protocol between them)"
            ),
            Self::Fork => write!(
                f,
                "state transfer: expected copy or none, got fork (its checkpoints are slot groups)"
            ),
        }
    }
}

impl std::error::Error for IntervalError {}
impl std::error::Error for ConfigError {}
