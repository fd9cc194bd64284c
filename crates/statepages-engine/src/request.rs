//! What a client asks for, and the values that refuse it.
//!
//! A [`Request`] is raw: anything may stand in it. [`check`] is the one gate; behind it every token
//! id lies in the vocabulary, every number is in range, and the request fits the pool when it is
//! alone. So the scheduler never meets a request that cannot finish.

use std::fmt;
use std::num::NonZeroU32;

use statepages_model::{SamplingError, SamplingOptions};
use statepages_page::{RequestId, Tokens};

/// How the next token is chosen. Raw; checked at submission.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sampling {
    /// Divides the logits. Zero is greedy: the largest logit, the lower id among equals.
    pub temperature: f32,
    /// Keeps the `k` largest logits. `None` keeps all.
    pub top_k: Option<u32>,
    /// Keeps the smallest set of tokens whose probability reaches this much; in `(0, 1]`.
    pub top_p: f32,
    /// Seeds the draw together with the token's position, so neither batch mix nor preemption
    /// changes what is drawn.
    pub seed: u64,
}

impl Sampling {
    /// The largest logit, always.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: None, top_p: 1.0, seed: 0 };
}

/// When a request stops. Raw; checked at submission.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stop {
    /// Tokens generated at most; at least one.
    pub max_tokens: Tokens,
    /// Ids that end the request when generated (end of text and the like). The id itself is still
    /// reported, as the last token.
    pub token_ids: Vec<u32>,
    /// Runs of generated tokens that end the request; none may be empty.
    pub sequences: Vec<Vec<u32>>,
}

impl Stop {
    /// Stops after `max_tokens` tokens and for no other reason.
    pub const fn after(max_tokens: u32) -> Self {
        Self { max_tokens: Tokens::new(max_tokens), token_ids: Vec::new(), sequences: Vec::new() }
    }
}

/// Whether a request's tokens are reported with the logits they were chosen from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogitsReport {
    /// Tokens alone.
    Omit,
    /// Each token with its row of logits, where the runner computes any.
    Attach,
}

/// One request, as its client states it.
#[derive(Clone, PartialEq, Debug)]
pub struct Request {
    /// The client's name for it; not one that is still known to the engine.
    pub id: RequestId,
    /// Prompt token ids.
    pub prompt: Vec<u32>,
    /// Salt of the tenant: requests of different salts share nothing.
    pub tenant_salt: Option<Vec<u8>>,
    /// Name of the adapter that computes it: requests of different adapters share nothing.
    pub adapter: Option<String>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// When it stops.
    pub stop: Stop,
    /// Whether logits are reported.
    pub logits: LogitsReport,
}

/// Why a request was not taken. Nothing of it was kept.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// The prompt holds no token.
    EmptyPrompt,
    /// Prompt and wanted tokens together exceed what the model's context or the whole pool holds.
    TooLong {
        /// Prompt tokens plus `max_tokens`.
        tokens: u64,
        /// What fits.
        tokens_max: Tokens,
    },
    /// A token id outside the vocabulary.
    UnknownToken {
        /// Where it stands.
        place: TokenPlace,
        /// The id.
        token: u32,
        /// Ids of the vocabulary: `0 .. vocab`.
        vocab: u32,
    },
    /// `max_tokens` is zero.
    NoTokensWanted,
    /// Another request of this id is still known to the engine.
    DuplicateId(RequestId),
    /// A stop sequence without tokens would stop every request at once.
    EmptyStopSequence {
        /// Its index.
        index: usize,
    },
    /// A sampling number out of range.
    BadSampling {
        /// Name of the field.
        field: &'static str,
        /// What would have been taken.
        expected: &'static str,
        /// What was given.
        got: f64,
    },
    /// As many requests wait as may.
    QueueFull {
        /// The bound.
        waiting_max: u32,
    },
}

/// Where a token id stands in a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TokenPlace {
    /// In the prompt, at this index.
    Prompt(usize),
    /// Among the stop token ids, at this index.
    StopId(usize),
    /// In the stop sequence of this index.
    StopSequence(usize),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyPrompt => f.write_str("prompt: expected at least one token, got none"),
            Self::TooLong { tokens, tokens_max } => {
                write!(f, "prompt + max_tokens: expected at most {tokens_max} tokens, got {tokens}")
            }
            Self::UnknownToken { place, token, vocab } => {
                write!(f, "{place}: expected a token id below {vocab}, got {token}")
            }
            Self::NoTokensWanted => f.write_str("max_tokens: expected at least 1, got 0"),
            Self::DuplicateId(id) => {
                write!(f, "id: expected one of no known request, got {id}")
            }
            Self::EmptyStopSequence { index } => {
                write!(f, "stop sequence {index}: expected at least one token, got none")
            }
            Self::BadSampling { field, expected, got } => {
                write!(f, "{field}: expected {expected}, got {got}")
            }
            Self::QueueFull { waiting_max } => {
                write!(f, "waiting requests: expected fewer than {waiting_max}")
            }
        }
    }
}

impl fmt::Display for TokenPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prompt(index) => write!(f, "prompt[{index}]"),
            Self::StopId(index) => write!(f, "stop token id {index}"),
            Self::StopSequence(index) => write!(f, "stop sequence {index}"),
        }
    }
}

impl std::error::Error for Refusal {}

/// What [`check`] compares a request with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Acceptable {
    /// Ids of the vocabulary.
    pub(crate) vocab: u32,
    /// Prompt and generated tokens that one request may come to.
    pub(crate) tokens_max: Tokens,
}

/// Checks everything about a request that does not depend on other requests, and parses its sampling.
pub(crate) fn check(
    request: &Request,
    acceptable: Acceptable,
) -> Result<statepages_model::Sampling, Refusal> {
    if request.prompt.is_empty() {
        return Err(Refusal::EmptyPrompt);
    }
    if request.stop.max_tokens == Tokens::ZERO {
        return Err(Refusal::NoTokensWanted);
    }
    let tokens = request.prompt.len() as u64 + u64::from(request.stop.max_tokens.get());
    if tokens > u64::from(acceptable.tokens_max.get()) {
        return Err(Refusal::TooLong { tokens, tokens_max: acceptable.tokens_max });
    }
    let vocab = acceptable.vocab;
    let known = |ids: &[u32], place: &dyn Fn(usize) -> TokenPlace| match ids
        .iter()
        .position(|&id| id >= vocab)
    {
        Some(index) => Err(Refusal::UnknownToken { place: place(index), token: ids[index], vocab }),
        None => Ok(()),
    };
    known(&request.prompt, &TokenPlace::Prompt)?;
    known(&request.stop.token_ids, &TokenPlace::StopId)?;
    for (index, sequence) in request.stop.sequences.iter().enumerate() {
        if sequence.is_empty() {
            return Err(Refusal::EmptyStopSequence { index });
        }
        known(sequence, &|_| TokenPlace::StopSequence(index))?;
    }
    parse_sampling(&request.sampling)
}

fn parse_sampling(sampling: &Sampling) -> Result<statepages_model::Sampling, Refusal> {
    let bad = |field, expected, got| Refusal::BadSampling { field, expected, got };
    let Sampling { temperature, top_k, top_p, seed: _ } = *sampling;
    let top_k = match top_k {
        None => None,
        Some(k) => Some(NonZeroU32::new(k).ok_or(bad("top_k", "at least 1", 0.0))?),
    };
    statepages_model::Sampling::new(SamplingOptions { temperature, top_k, top_p }).map_err(
        |error| match error {
            SamplingError::TopP(got) => bad("top_p", "a number in (0, 1]", f64::from(got)),
            SamplingError::Temperature(got) => {
                bad("temperature", "a finite number, at least 0", f64::from(got))
            }
            other => unreachable!("the sampler names its parameters: {other}"),
        },
    )
}

/// What the tokens generated so far say about going on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Another token is wanted.
    Continue,
    /// The last token is a stop id.
    StopToken(u32),
    /// The generated tokens end with the stop sequence of this index.
    StopSequence(usize),
    /// As many tokens as were wanted.
    MaxTokens,
}

/// Judges after each generated token; `generated` ends with it.
pub(crate) fn judge(stop: &Stop, generated: &[u32]) -> Verdict {
    let last = *generated.last().expect("judged after a token");
    if stop.token_ids.contains(&last) {
        return Verdict::StopToken(last);
    }
    if let Some(index) = stop.sequences.iter().position(|s| generated.ends_with(s)) {
        return Verdict::StopSequence(index);
    }
    if generated.len() as u64 >= u64::from(stop.max_tokens.get()) {
        return Verdict::MaxTokens;
    }
    Verdict::Continue
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Request {
        Request {
            id: RequestId::new(1),
            prompt: vec![1, 2, 3],
            tenant_salt: None,
            adapter: None,
            sampling: Sampling::GREEDY,
            stop: Stop::after(4),
            logits: LogitsReport::Omit,
        }
    }

    fn checked(change: impl FnOnce(&mut Request)) -> Result<(), Refusal> {
        let mut request = good();
        change(&mut request);
        check(&request, Acceptable { vocab: 10, tokens_max: Tokens::new(7) }).map(|_| ())
    }

    #[test]
    fn each_fault_is_named() {
        assert_eq!(checked(|_| ()), Ok(()));
        assert_eq!(checked(|r| r.prompt.clear()), Err(Refusal::EmptyPrompt));
        assert_eq!(
            checked(|r| r.prompt.push(1)),
            Err(Refusal::TooLong { tokens: 8, tokens_max: Tokens::new(7) })
        );
        assert_eq!(
            checked(|r| r.stop.max_tokens = Tokens::new(u32::MAX)),
            Err(Refusal::TooLong { tokens: 3 + u64::from(u32::MAX), tokens_max: Tokens::new(7) })
        );
        assert_eq!(
            checked(|r| r.prompt[2] = 10),
            Err(Refusal::UnknownToken { place: TokenPlace::Prompt(2), token: 10, vocab: 10 })
        );
        assert_eq!(
            checked(|r| r.stop.token_ids = vec![9, 11]),
            Err(Refusal::UnknownToken { place: TokenPlace::StopId(1), token: 11, vocab: 10 })
        );
        assert_eq!(
            checked(|r| r.stop.sequences = vec![vec![1], vec![1, 12]]),
            Err(Refusal::UnknownToken { place: TokenPlace::StopSequence(1), token: 12, vocab: 10 })
        );
        assert_eq!(
            checked(|r| r.stop.sequences = vec![vec![]]),
            Err(Refusal::EmptyStopSequence { index: 0 })
        );
        assert_eq!(checked(|r| r.stop.max_tokens = Tokens::ZERO), Err(Refusal::NoTokensWanted));
    }

    #[test]
    fn each_bad_sampling_number_is_named() {
        let field = |change: fn(&mut Sampling)| match checked(|r| change(&mut r.sampling)) {
            Err(Refusal::BadSampling { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        for bad in [-0.1, f32::NAN, f32::INFINITY] {
            let found = checked(|r| r.sampling.temperature = bad);
            assert!(matches!(found, Err(Refusal::BadSampling { field: "temperature", .. })));
        }
        assert_eq!(field(|s| s.top_k = Some(0)), "top_k");
        for bad in [0.0, 1.01, f32::NAN] {
            let found = checked(|r| r.sampling.top_p = bad);
            assert!(matches!(found, Err(Refusal::BadSampling { field: "top_p", .. })));
        }
        assert_eq!(checked(|r| r.sampling.top_k = Some(1)), Ok(()));
    }

    #[test]
    fn stop_conditions_in_their_order() {
        let stop = Stop {
            max_tokens: Tokens::new(3),
            token_ids: vec![9],
            sequences: vec![vec![4, 5], vec![5]],
        };
        assert_eq!(judge(&stop, &[1]), Verdict::Continue);
        assert_eq!(judge(&stop, &[4, 5]), Verdict::StopSequence(0));
        assert_eq!(judge(&stop, &[1, 5]), Verdict::StopSequence(1));
        assert_eq!(judge(&stop, &[1, 2, 9]), Verdict::StopToken(9), "a stop id before the length");
        assert_eq!(judge(&stop, &[1, 2, 3]), Verdict::MaxTokens);
    }
}
