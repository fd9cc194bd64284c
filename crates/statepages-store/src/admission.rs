//! What an admission is asked and what it answers.

use std::fmt;

use statepages_page::{Boundary, RequestId, Tokens};

use crate::keys::PromptKeys;
use crate::placement::{KeepReason, Scope};
use crate::residency::Residency;

/// A request that wants a slot and pages for all the tokens it has to prefill.
#[derive(Clone, Copy, Debug)]
pub struct AdmitRequest<'a> {
    /// The request.
    pub request: RequestId,
    /// All tokens to prefill: the prompt, and after a preemption what it has generated, too.
    pub keys: &'a PromptKeys,
    /// The boundary an earlier [`ControlPlane::probe`](crate::ControlPlane::probe) promised and
    /// something was sized by, such as a remote load. If it can no longer be resumed from, the
    /// admission is [`Lost`].
    pub gated: Option<Boundary>,
}

/// How much of a prompt is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Tokens asked for.
    pub full: Tokens,
    /// Tokens covered by whole blocks that are found, below the cap of the largest boundary not
    /// after `full - 1`.
    pub kv: Boundary,
    /// Tokens that could be resumed if every boundary of the KV hit had a checkpoint.
    pub wanted: Boundary,
    /// Tokens that can be resumed.
    pub resumable: Boundary,
}

/// The answer to an admission.
#[must_use]
#[derive(Debug)]
pub enum Admit {
    /// Slot, pages and, where something is resumed, the pinned checkpoint are taken.
    Admitted(Residency, AdmitReport),
    /// Nothing is taken and nothing was given up.
    Refused(Refusal),
}

/// Why a request must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Every slot is taken or fenced.
    NoSlot,
    /// The pages it needs cannot be had.
    NoRoom,
}

/// What an admission found, resumed and lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmitReport {
    /// What was found; `hit.resumable` tokens are resumed.
    pub hit: Hit,
    /// The boundary a checkpoint is wanted at by the policy, and an image still fits.
    pub demand: Option<Boundary>,
    /// Why the checkpoint that is resumed from was kept; `None` where nothing is resumed.
    pub resumed: Option<KeepReason>,
    /// What else the prefill is cut for: [`Placement::within`](crate::Placement::within).
    pub scope: Scope,
    /// Where the tokens that are not resumed went: `hit.resumable + losses == hit.full`.
    pub losses: Losses,
}

/// Why a token of a prompt is computed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossReason {
    /// It lies behind the largest boundary that any resumer may use.
    Tail,
    /// Its block was not found.
    NoKv,
    /// Its block was found, and no state was ever kept at or behind it.
    NeverStored,
    /// A checkpoint that covered it was filed and dropped.
    Dropped,
    /// A checkpoint that covered it is still being written.
    Copying,
    /// A checkpoint that covered it was given up for its pages.
    Evicted,
    /// A checkpoint that covered it was never written, because its batch failed.
    Failed,
    /// Checkpoints are off, or the state cannot be transferred.
    Off,
}

impl LossReason {
    /// All of them, in order.
    pub const ALL: [Self; 8] = [
        Self::Tail,
        Self::NoKv,
        Self::NeverStored,
        Self::Dropped,
        Self::Copying,
        Self::Evicted,
        Self::Failed,
        Self::Off,
    ];

    /// The name used in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tail => "tail",
            Self::NoKv => "no_kv",
            Self::NeverStored => "never_stored",
            Self::Dropped => "dropped",
            Self::Copying => "copying",
            Self::Evicted => "evicted",
            Self::Failed => "failed",
            Self::Off => "off",
        }
    }
}

/// Tokens lost, by reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Losses([Tokens; LossReason::ALL.len()]);

impl Losses {
    /// Tokens lost for `reason`.
    pub const fn get(&self, reason: LossReason) -> Tokens {
        self.0[reason as usize]
    }

    /// Tokens lost in all.
    pub fn total(&self) -> Tokens {
        self.0.iter().fold(Tokens::ZERO, |sum, &tokens| sum + tokens)
    }

    pub(crate) fn add(&mut self, reason: LossReason, tokens: Tokens) {
        self.0[reason as usize] += tokens;
    }
}

/// The checkpoint that an admission was promised is gone. Nothing was taken for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The request.
    pub request: RequestId,
    /// The boundary it was promised.
    pub gated: Boundary,
    /// The boundary it could be resumed from now.
    pub resumable: Boundary,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { request, gated, resumable } = self;
        write!(f, "{request}: expected a checkpoint at {gated:?}, got {resumable:?}")
    }
}

impl std::error::Error for Lost {}
