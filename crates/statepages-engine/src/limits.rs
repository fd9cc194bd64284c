//! Raw limits -> validated limits. Everything the loop is bounded by stands here.

use std::fmt;

use statepages_page::{BlockSize, Pages, Tokens};

/// Limits as flags or an embedding program state them; any number may stand in each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawLimits {
    /// Tokens that one batch computes at most, prefill and decode together.
    pub max_num_batched_tokens: u64,
    /// Requests that are resident at most: running or parked.
    pub max_num_seqs: u64,
    /// Batches that may be submitted before the first one's results are posted: 1 or 2.
    pub max_in_flight: u64,
    /// Prompt and generated tokens that the model's positions allow for one request.
    pub max_model_len: u64,
    /// Ids of the vocabulary: `0 .. vocab`.
    pub vocab: u64,
    /// Requests that may wait.
    pub waiting_max: u64,
    /// Failed batches after which a request that was in all of them ends with an error.
    pub batch_failures_max: u64,
    /// Steps a parked request waits for its remote load before the load is called off.
    pub load_steps_max: u64,
}

/// What the limits are checked against: facts of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolFacts {
    /// Pages of the pool.
    pub pages: Pages,
    /// Active slots.
    pub slots: u32,
    /// Tokens per block.
    pub block: BlockSize,
}

/// Batches that may be in flight at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InFlight {
    /// A batch is built when the previous one's results are known.
    One,
    /// The next batch may be built before the previous one's results are posted.
    Two,
}

impl InFlight {
    /// The number.
    pub const fn count(self) -> usize {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }
}

/// Validated limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    batched_tokens_max: Tokens,
    resident_max: u32,
    in_flight: InFlight,
    tokens_max: Tokens,
    vocab: u32,
    waiting_max: u32,
    batch_failures_max: u32,
    load_steps_max: u64,
}

/// A limit that cannot be kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LimitError {
    /// Name of the field.
    pub field: &'static str,
    /// What would have been taken.
    pub expected: String,
    /// What was given.
    pub got: u64,
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, got {}", self.field, self.expected, self.got)
    }
}

impl std::error::Error for LimitError {}

impl Limits {
    /// Checks every field against its range and against the pool.
    pub fn new(raw: RawLimits, pool: PoolFacts) -> Result<Self, LimitError> {
        let resident_max =
            within("max_num_seqs", raw.max_num_seqs, 1, u64::from(pool.slots), "slots")?;
        // A batch must be able to carry one decode of every resident request, else the youngest
        // could wait for as long as the others decode.
        let batched = within(
            "max_num_batched_tokens",
            raw.max_num_batched_tokens,
            u64::from(resident_max),
            u64::from(u32::MAX),
            "32 bits; the least is max_num_seqs",
        )?;
        let in_flight = match raw.max_in_flight {
            1 => InFlight::One,
            2 => InFlight::Two,
            got => {
                return Err(LimitError {
                    field: "max_in_flight",
                    expected: "1 or 2".to_owned(),
                    got,
                });
            }
        };
        let model = within(
            "max_model_len",
            raw.max_model_len,
            2,
            u64::from(u32::MAX),
            "32 bits; the least is a prompt token and a generated one",
        )?;
        // The last token generated is never computed, so it takes no place in a page.
        let held = u64::from(pool.pages.get()) * u64::from(pool.block.get()) + 1;
        let tokens_max = u64::from(model).min(held) as u32;
        let wide = u64::from(u32::MAX);
        Ok(Self {
            batched_tokens_max: Tokens::new(batched),
            resident_max,
            in_flight,
            tokens_max: Tokens::new(tokens_max),
            vocab: within("vocab", raw.vocab, 1, wide, "32 bits")?,
            waiting_max: within("waiting_max", raw.waiting_max, 1, wide, "32 bits")?,
            batch_failures_max: within(
                "batch_failures_max",
                raw.batch_failures_max,
                1,
                wide,
                "32 bits",
            )?,
            load_steps_max: raw.load_steps_max,
        })
    }

    /// Tokens that one batch computes at most.
    pub const fn batched_tokens_max(&self) -> Tokens {
        self.batched_tokens_max
    }

    /// Requests that are resident at most.
    pub const fn resident_max(&self) -> u32 {
        self.resident_max
    }

    /// Batches in flight at most.
    pub const fn in_flight(&self) -> InFlight {
        self.in_flight
    }

    /// Prompt and generated tokens that one request may come to: the lesser of the model's
    /// positions and what the whole pool holds.
    pub const fn tokens_max(&self) -> Tokens {
        self.tokens_max
    }

    /// Ids of the vocabulary.
    pub const fn vocab(&self) -> u32 {
        self.vocab
    }

    /// Requests that may wait.
    pub const fn waiting_max(&self) -> u32 {
        self.waiting_max
    }

    /// Failed batches that end a request.
    pub const fn batch_failures_max(&self) -> u32 {
        self.batch_failures_max
    }

    /// Steps a parked request waits for its load.
    pub const fn load_steps_max(&self) -> u64 {
        self.load_steps_max
    }
}

fn within(
    field: &'static str,
    got: u64,
    least: u64,
    most: u64,
    bound: &str,
) -> Result<u32, LimitError> {
    if (least..=most).contains(&got) {
        Ok(u32::try_from(got).expect("ranges of limits lie within 32 bits"))
    } else {
        Err(LimitError { field, expected: format!("{least} to {most} ({bound})"), got })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAW: RawLimits = RawLimits {
        max_num_batched_tokens: 8,
        max_num_seqs: 4,
        max_in_flight: 1,
        max_model_len: 1000,
        vocab: 10,
        waiting_max: 5,
        batch_failures_max: 1,
        load_steps_max: 0,
    };

    fn limits(change: impl FnOnce(&mut RawLimits)) -> Result<Limits, LimitError> {
        let mut raw = RAW;
        change(&mut raw);
        let block = BlockSize::new(4).unwrap();
        Limits::new(raw, PoolFacts { pages: Pages::new(6), slots: 4, block })
    }

    #[test]
    fn the_pool_and_the_model_bound_a_request() {
        assert_eq!(limits(|_| ()).unwrap().tokens_max(), Tokens::new(25));
        assert_eq!(limits(|r| r.max_model_len = 20).unwrap().tokens_max(), Tokens::new(20));
    }

    #[test]
    fn each_bad_field_is_named() {
        let field = |change: fn(&mut RawLimits)| limits(change).unwrap_err().field;
        assert_eq!(field(|r| r.max_num_seqs = 5), "max_num_seqs");
        assert_eq!(field(|r| r.max_num_seqs = 0), "max_num_seqs");
        assert_eq!(field(|r| r.max_num_batched_tokens = 3), "max_num_batched_tokens");
        assert_eq!(field(|r| r.max_num_batched_tokens = 1 << 32), "max_num_batched_tokens");
        assert_eq!(field(|r| r.max_in_flight = 0), "max_in_flight");
        assert_eq!(field(|r| r.max_in_flight = 3), "max_in_flight");
        assert_eq!(field(|r| r.max_model_len = 1), "max_model_len");
        assert_eq!(field(|r| r.vocab = 0), "vocab");
        assert_eq!(field(|r| r.waiting_max = 0), "waiting_max");
        assert_eq!(field(|r| r.batch_failures_max = 0), "batch_failures_max");
        assert_eq!(
            limits(|r| r.max_num_seqs = 5).unwrap_err().to_string(),
            "max_num_seqs: expected 1 to 4 (slots), got 5"
        );
    }
}
