//! What the loop hands out, as values. The caller stamps times and writes logs.

use std::fmt;

use statepages_page::{Boundary, RequestId, Tokens};
use statepages_store::AdmitReport;

use crate::metrics::Usage;
use crate::request::Refusal;

/// Something that happened, in the order in which it did.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Output {
    /// A submitted request was not taken.
    Refused {
        /// The request.
        request: RequestId,
        /// What was wrong with it.
        why: Refusal,
    },
    /// A request got its slot and its pages.
    Admitted {
        /// The request.
        request: RequestId,
        /// What was hit, what was wanted, what was realised, and what the rest was lost to.
        report: AdmitReport,
    },
    /// An admitted request waits for a remote load.
    Parked {
        /// The request.
        request: RequestId,
        /// Where it would resume without the load.
        from: Boundary,
        /// Where it resumes with it.
        to: Boundary,
    },
    /// A remote load has ended.
    Unparked {
        /// The request.
        request: RequestId,
        /// How it goes on.
        load: LoadEnd,
    },
    /// A token was generated.
    Token {
        /// The request.
        request: RequestId,
        /// The token's id.
        token: u32,
        /// Its position: tokens before it, prompt included.
        position: Tokens,
        /// The logits it was chosen from, where the request wants them reported.
        logits: Option<Vec<f32>>,
    },
    /// A resident request gave up slot and pages, and waits to be admitted again.
    Preempted {
        /// The request.
        request: RequestId,
        /// Why.
        cause: PreemptCause,
    },
    /// A request has ended. Nothing more is heard of it.
    Finished {
        /// The request.
        request: RequestId,
        /// Why.
        reason: FinishReason,
        /// What it used.
        usage: Usage,
    },
}

/// How a parked request goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadEnd {
    /// It resumes at the loaded boundary.
    Landed(Boundary),
    /// It waits, to be computed locally.
    Failed,
}

/// Why a resident request gave up its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PreemptCause {
    /// An older request needed a page, or it needed one itself, and there was none.
    NoPage,
    /// A batch that carried it has failed.
    BatchFailed,
}

/// Why a request ended.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FinishReason {
    /// As many tokens as were wanted.
    MaxTokens,
    /// The last token is this stop id.
    StopToken(u32),
    /// The generated tokens end with the stop sequence of this index.
    StopSequence(usize),
    /// Its client called it off.
    Aborted,
    /// It could not be computed.
    Failed(Failure),
}

/// Why a request could not be computed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The checkpoint it was promised was gone when it was admitted.
    CheckpointLost,
    /// It was in as many failed batches as are put up with; the last one's account.
    Batches(String),
    /// No token can be chosen from its logits.
    Logits(String),
}

impl fmt::Display for FinishReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MaxTokens => f.write_str("max_tokens"),
            Self::StopToken(id) => write!(f, "stop token {id}"),
            Self::StopSequence(index) => write!(f, "stop sequence {index}"),
            Self::Aborted => f.write_str("aborted"),
            Self::Failed(failure) => write!(f, "failed: {failure}"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CheckpointLost => f.write_str("its checkpoint was gone at admission"),
            Self::Batches(what) => write!(f, "its batches failed, last: {what}"),
            Self::Logits(what) => write!(f, "no token can be chosen: {what}"),
        }
    }
}
