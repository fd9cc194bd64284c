//! Flags of `replay`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum, value_parser};
use statepages_replay::Policy;

use crate::args::{LayoutArgs, ModelName};

/// Traffic to replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WorkloadName {
    /// GSM8K with 64 examples a prompt: 1,319 prompts of 9,098 to 12,021 tokens that share little
    Gsm8k64,
    /// The same questions behind examples that --seed draws
    Gsm8k64Fresh,
    /// Mooncake's trace: lengths, times, shared prefixes
    Mooncake,
    /// LMCache's agent sessions: --sessions are open at once and send their turns in turn
    Lmcache,
    /// One prompt a line of --file, text or ids
    Jsonl,
    /// --prompts prompts of --prompt-tokens that share nothing
    Distinct,
    /// --prompts prompts that take turns on --prefixes prefixes, each with a tail of its own
    Shared,
}

/// A policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyName {
    /// The published system's: a grid and demands, cached KV before checkpoints, prefill first
    Reference,
    /// One order of last use for pages and checkpoints
    Lru,
    /// The project's own
    Statepages,
    /// No policy: what none can exceed, told offline by a relaxed knapsack over bundles of prefix and
    /// image
    Opt,
}

/// In which order prompts are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OrderName {
    /// As they stand
    File,
    /// The longest first
    LongestFirst,
    /// Another random order each round
    Shuffled,
}

/// What a batch takes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PassesName {
    /// Decodes, then prefills
    Mixed,
    /// Prefills while there are any, else decodes
    PrefillFirst,
}

/// When prompts are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TimeName {
    /// As many at a time as --concurrency says
    Concurrency,
    /// At the trace's times, against the server that --batch-us and --tokens-per-s describe
    Trace,
}

/// Most pages of a pool: its index alone takes a kilobyte a page.
pub(crate) const POOL_PAGES_MAX: u32 = 1 << 22;
/// Tokens of a made-up text: beyond the context of any published model, within any memory.
const MADE_TOKENS_MAX: i64 = 1 << 24;

/// A pool: pages, or a share of what the workload would fill.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum PoolSize {
    /// So many pages.
    Pages(u32),
    /// Percent of the working set: all distinct blocks, and an image for each distinct prompt.
    Percent(f64),
}

impl FromStr for PoolSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "expected 1 to {POOL_PAGES_MAX} pages such as 70000, or a share of at most 10000% \
                 such as 25%, got {text}"
            )
        };
        match text.strip_suffix('%') {
            None => match text.parse() {
                Ok(pages @ 1..=POOL_PAGES_MAX) => Ok(Self::Pages(pages)),
                _ => Err(wrong()),
            },
            Some(share) => match share.trim().parse::<f64>() {
                Ok(share) if share > 0.0 && share <= 10_000.0 => Ok(Self::Percent(share)),
                _ => Err(wrong()),
            },
        }
    }
}

/// Flags of `replay`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReplayArgs {
    /// What is sent; several are sent one behind the other to one server
    #[arg(long, value_enum, required = true, value_delimiter = ',')]
    pub(crate) workload: Vec<WorkloadName>,
    /// Folder with gsm8k/, mooncake/, lmcache-agent-trace/ and tokenizers/
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// The file of `jsonl`; that of `mooncake`, or the folder of `lmcache`, instead of those in --data
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// A tokenizer.json, instead of the one in --data
    #[arg(long, value_name = "FILE")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Policies to compare
    #[arg(long, value_enum, value_delimiter = ',', default_value = "statepages")]
    pub(crate) policy: Vec<PolicyName>,
    /// Pools to compare: pages, or percent of the working set, such as 70000 or 25%
    #[arg(long, value_delimiter = ',', default_value = "70000", value_name = "N|P%")]
    pub(crate) pages: Vec<PoolSize>,
    /// A published model
    #[arg(long, value_enum, default_value = "v4-pro")]
    pub(crate) model: ModelName,
    #[command(flatten)]
    pub(crate) layout: LayoutArgs,
    /// Tokens of a block
    #[arg(long, default_value_t = 256, value_name = "TOKENS", value_parser = value_parser!(u32).range(1..=65_536))]
    pub(crate) block_size: u32,
    /// Requests that may be resident at once
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = value_parser!(u32).range(1..=4_096))]
    pub(crate) max_seqs: u32,
    /// Tokens that one batch may compute
    #[arg(long, default_value_t = 16_384, value_name = "TOKENS", value_parser = value_parser!(u32).range(1..))]
    pub(crate) max_batched_tokens: u32,
    /// Tokens generated for each prompt; without it what the trace says, or 100
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1_000_000))]
    pub(crate) output_tokens: Option<u32>,
    /// Times that each workload is sent
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = value_parser!(u32).range(1..=1_000))]
    pub(crate) rounds: u32,
    /// In which order prompts are sent
    #[arg(long, value_enum, default_value = "file")]
    pub(crate) order: OrderName,
    /// Seeds shuffles and made-up texts
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// When prompts are sent
    #[arg(long, value_enum, default_value = "concurrency")]
    pub(crate) time: TimeName,
    /// Prompts under way at a time; without it twice --max-seqs, which is as if all were sent at once
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) concurrency: Option<u32>,
    /// With --time trace: microseconds that a batch takes at least
    #[arg(long, default_value_t = 30_000, value_name = "US")]
    pub(crate) batch_us: u64,
    /// With --time trace: tokens computed in a second at most
    #[arg(long, default_value_t = 50_000, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    pub(crate) tokens_per_s: u64,
    /// Grid spacing of kept boundaries, with every other reason, instead of the policy's own rule; 0
    /// keeps nothing, -1 has no grid
    #[arg(long, value_name = "TOKENS")]
    pub(crate) state_checkpoint_interval_tokens: Option<i64>,
    /// What a batch takes together, instead of the policy's own rule
    #[arg(long, value_enum)]
    pub(crate) passes: Option<PassesName>,
    /// Agent sessions that are open at once
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) sessions: u32,
    /// Made-up prompts
    #[arg(long, default_value_t = 20_000, value_name = "N", value_parser = value_parser!(u32).range(1..=10_000_000))]
    pub(crate) prompts: u32,
    /// Tokens of a `distinct` prompt
    #[arg(long, default_value_t = 8_192, value_name = "TOKENS", value_parser = value_parser!(u32).range(1..=MADE_TOKENS_MAX))]
    pub(crate) prompt_tokens: u32,
    /// Prefixes of `shared`
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) prefixes: u32,
    /// Tokens of a `shared` prefix
    #[arg(long, default_value_t = 8_192, value_name = "TOKENS", value_parser = value_parser!(u32).range(1..=MADE_TOKENS_MAX))]
    pub(crate) prefix_tokens: u32,
    /// Tokens of a `shared` tail
    #[arg(long, default_value_t = 512, value_name = "TOKENS", value_parser = value_parser!(u32).range(1..=MADE_TOKENS_MAX))]
    pub(crate) tail_tokens: u32,
    /// Draw what the last round realised against pages, an SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

impl PolicyName {
    /// The policy to run; none for the bound.
    pub(crate) const fn policy(self) -> Option<Policy> {
        match self {
            Self::Reference => Some(Policy::Reference),
            Self::Lru => Some(Policy::Lru),
            Self::Statepages => Some(Policy::Statepages),
            Self::Opt => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_pages_or_a_share() {
        assert_eq!("70000".parse(), Ok(PoolSize::Pages(70_000)));
        assert_eq!("12.5%".parse(), Ok(PoolSize::Percent(12.5)));
        for text in ["", "0", "-1", "0%", "x%", "1e9%", "5 pages"] {
            let error = text.parse::<PoolSize>().unwrap_err();
            assert!(error.ends_with(&format!("got {text}")), "{error}");
        }
    }
}
