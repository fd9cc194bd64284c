//! The command line.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};
use serde::{Deserialize, Serialize};
use statepages_cuda::KernelShape;
use statepages_model::{Sampling, SamplingOptions};

use crate::bench_forward::BenchForwardArgs;
use crate::replay_args::ReplayArgs;
use crate::size::ByteSize;

/// Resumable state checkpoints in KV-cache pages. Without a command: `demo`.
///
/// Exit codes: 0 done, and everything that had to be equal was; 1 it was not, or an error; 2 flags
/// that cannot be read, or do not go together.
/// Results go to standard output, logs to standard error; STATEPAGES_LOG=info logs each admission.
#[derive(Parser, Debug)]
#[command(version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// What to do; without a word, the demo.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Send prompts cold and again, and compare what was resumed with cold runs, bit for bit
    Demo(DemoArgs),
    /// Complete one prompt
    Generate(GenerateArgs),
    /// Sizes of pages, slots and images of a DeepSeek-V4 config, and what fits into memory
    Geometry(GeometryArgs),
    /// Run the whole engine under every fault, audited after each event
    Sim(SimArgs),
    /// Replay traffic through the control plane, with nothing computed, and compare policies
    Replay(ReplayArgs),
    /// Measure parts of the system
    #[command(subcommand)]
    Bench(Bench),
    /// The demo's other process: reads a job on standard input, computes it without any cache
    #[command(hide = true)]
    ColdArm,
}

/// Which bytes of a slot a checkpoint keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Image {
    /// Every byte
    Whole,
    /// What a resumer may read, by ring position
    Carried,
    /// What a resumer does read, in position order
    Live,
}

/// What is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Keeping {
    /// What saves most tokens for its pages, by how often its kind is read
    Statepages,
    /// Every boundary; cached KV is given up before checkpoints, each least recently used first
    Reference,
}

/// A fault that the demo puts in, to show that its comparison sees one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fault {
    /// Restores are not carried out: the slot is as its previous owner left it
    SkipRestore,
    /// Restores bring the state of 256 tokens earlier; every boundary is then kept
    WrongBoundary,
}

/// Most slots and threads that are taken for meant: far above any machine, far below what only exhausts one.
const SLOTS_MAX: i64 = 4_096;
pub(crate) const THREADS_MAX: i64 = 256;
const PAGES_MAX: i64 = 1 << 24;
const REQUESTS_MAX: u64 = 30_000;

/// Flags of the engine that `demo` and `generate` run on.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EngineArgs {
    /// Worker threads of the forward; 0 takes every core
    #[arg(long, default_value_t = 0, value_parser = value_parser!(u32).range(0..=THREADS_MAX))]
    pub(crate) threads: u32,
    /// Tokens that one batch may compute
    #[arg(long, default_value_t = 1_024, value_name = "TOKENS", value_parser = value_parser!(u32).range(1..))]
    pub(crate) max_batched_tokens: u32,
    /// Requests that may be resident at once: the number of slots, and the demo's concurrency
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = value_parser!(u32).range(1..=SLOTS_MAX))]
    pub(crate) max_seqs: u32,
    /// Pages of the pool, of 132 KiB each with the built-in model and bf16 rows
    #[arg(long, default_value_t = 2_048, value_parser = value_parser!(u32).range(1..=PAGES_MAX))]
    pub(crate) pages: u32,
    /// Grid spacing of kept boundaries; 0 keeps and resumes nothing, -1 has no grid
    #[arg(long, default_value_t = 8_192, value_name = "TOKENS")]
    pub(crate) state_checkpoint_interval_tokens: i64,
    /// Who is given up when pages are short, and which boundaries are worth a cut
    #[arg(long, value_enum, default_value_t = Keeping::Statepages)]
    pub(crate) policy: Keeping,
    /// Which bytes of a slot a checkpoint keeps
    #[arg(long, value_enum, default_value_t = Image::Live)]
    pub(crate) image: Image,
    /// Row format of KV
    #[arg(long, value_enum, default_value_t = Kv::Bf16)]
    pub(crate) kv: Kv,
    /// Row format of the indexer; without it, that of KV
    #[arg(long, value_enum)]
    pub(crate) indexer: Option<Indexer>,
    /// Directory of a model in the published form, instead of the built-in dsv4-mini
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Option<PathBuf>,
    /// Run on random weights of this seed instead: byte tokens, and noise for answers
    #[arg(long, value_name = "SEED", conflicts_with = "model")]
    pub(crate) weights_seed: Option<u64>,
}

/// Flags of `demo`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DemoArgs {
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// Requests of the cold and of the resumed round, a third of each kind
    #[arg(
        long,
        default_value_t = 24,
        value_name = "N",
        conflicts_with = "replay",
        value_parser = value_parser!(u64).range(3..=REQUESTS_MAX)
    )]
    pub(crate) requests: u64,
    /// Tokens to generate for each request
    #[arg(
        long,
        default_value_t = 32,
        value_name = "N",
        conflicts_with = "replay",
        value_parser = value_parser!(u32).range(1..)
    )]
    pub(crate) max_tokens: u32,
    /// Cut the prompts from this text file instead of asking the model's own questions
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    pub(crate) prompts: Option<PathBuf>,
    /// Write prompt and output ids of each request, one JSON object a line
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// Send exactly the prompts of a recorded file and compare the outputs with the recorded ones
    #[arg(long, value_name = "FILE")]
    pub(crate) replay: Option<PathBuf>,
    /// Write Prometheus text to FILE and one JSON object per request to FILE.jsonl
    #[arg(long, value_name = "FILE")]
    pub(crate) metrics_out: Option<PathBuf>,
    /// Put a fault in; the demo then succeeds if its comparison sees it
    #[arg(long, value_enum, conflicts_with = "replay")]
    pub(crate) fault: Option<Fault>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}

/// Flags of `generate`.
#[derive(Args, Clone, Debug)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// The prompt; without it and without --prompt-file, standard input
    #[arg(long, conflicts_with = "prompt_file", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) prompt: Option<String>,
    /// Read the prompt from a file
    #[arg(long, value_name = "FILE")]
    pub(crate) prompt_file: Option<PathBuf>,
    /// Tokens to generate
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) max_tokens: u32,
    /// 0 is greedy
    #[arg(long, default_value_t = 0.0, value_parser = temperature)]
    pub(crate) temperature: f32,
    /// Draw from the K likeliest tokens; 0 means all
    #[arg(long, default_value_t = 0, value_name = "K")]
    pub(crate) top_k: u32,
    /// Draw from the likeliest tokens that hold this share of the probability
    #[arg(long, default_value_t = 1.0, value_name = "P", value_parser = top_p)]
    pub(crate) top_p: f32,
    /// Seed of the draws
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Stop where this text appears; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

/// A published model's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelName {
    /// DeepSeek-V4-Pro
    V4Pro,
    /// DeepSeek-V4-Flash
    V4Flash,
    /// DeepSeek-V4-Flash with the DSpark drafter
    V4FlashDspark,
    /// Five layers of every kind with production row widths: the shape of the demo model
    Mini,
}

/// Row format of KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Kv {
    /// Two planes: 512 bytes of fp8 with scales, 128 bytes of bf16 RoPE
    Fp8,
    /// One plane, 16-bit
    Bf16,
    /// One plane, 32-bit, for tests
    F32,
}

/// Row format of the indexer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Indexer {
    /// 128 bytes and a scale
    Fp8,
    /// 64 bytes and four scales
    Fp4,
    /// 16-bit
    Bf16,
    /// 32-bit, for tests
    F32,
}

/// Flags that decide what pages, slots and images of a model measure.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct LayoutArgs {
    /// Row format of KV
    #[arg(long, value_enum, default_value_t = Kv::Fp8)]
    pub(crate) kv: Kv,
    /// Row format of the indexer
    #[arg(long, value_enum, default_value_t = Indexer::Fp8)]
    pub(crate) indexer: Indexer,
    /// Draft tokens a step may verify; widens every ring
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) draft_tokens: u32,
    /// Which bytes of a slot a checkpoint keeps
    #[arg(long, value_enum, default_value_t = Image::Live)]
    pub(crate) image: Image,
}

/// Flags of `geometry`.
#[derive(Args, Clone, Debug)]
pub(crate) struct GeometryArgs {
    /// A published model
    #[arg(long, value_enum, required_unless_present = "config", conflicts_with = "config")]
    pub(crate) model: Option<ModelName>,
    /// A model's config.json
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) layout: LayoutArgs,
    /// Tokens of a block
    #[arg(long, default_value_t = 256, value_name = "TOKENS", value_parser = value_parser!(u32).range(1..))]
    pub(crate) block_size: u32,
    /// Device memory for pages and slots, such as 80GiB
    #[arg(long, value_name = "SIZE", requires = "max_seqs", allow_hyphen_values = true)]
    pub(crate) memory: Option<ByteSize>,
    /// Requests that may be resident at once: the number of slots
    #[arg(long, value_name = "N", requires = "memory")]
    pub(crate) max_seqs: Option<u32>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Flags of `sim`.
#[derive(Args, Clone, Debug)]
pub(crate) struct SimArgs {
    /// Seed of the one world to run
    #[arg(long, default_value_t = 0, conflicts_with = "seeds")]
    pub(crate) seed: u64,
    /// Seeds of the worlds to run, the last one left out
    #[arg(long, value_name = "A..B")]
    pub(crate) seeds: Option<Seeds>,
    /// Stimuli and completions of each world
    #[arg(long, default_value_t = 20_000, value_name = "M")]
    pub(crate) events: u64,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}

/// Flags of `bench store`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BenchStoreArgs {
    /// Pages of the pool; may be given several times
    #[arg(long, default_values_t = [100_000], value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) units: Vec<u32>,
    /// Units of one image
    #[arg(long, default_value_t = 17, value_name = "K", value_parser = value_parser!(u32).range(1..))]
    pub(crate) units_per_checkpoint: u32,
    /// Draw cost against pool size into this SVG file
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Seeds from one up to another, which is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seeds {
    pub(crate) first: u64,
    pub(crate) count: u64,
}

impl std::str::FromStr for Seeds {
    type Err = String;

    fn from_str(range: &str) -> Result<Self, String> {
        let (first, last) =
            range.split_once("..").ok_or_else(|| format!("expected A..B, got {range}"))?;
        let number = |text: &str| {
            text.parse::<u64>().map_err(|error| format!("expected a number, got {text:?}: {error}"))
        };
        let (first, last) = (number(first)?, number(last)?);
        match last.checked_sub(first) {
            None | Some(0) => Err(format!("expected A below B, got {range}")),
            Some(count) => Ok(Self { first, count }),
        }
    }
}

fn temperature(text: &str) -> Result<f32, String> {
    sampled(text, |temperature| SamplingOptions { temperature, ..ANY })
}

fn top_p(text: &str) -> Result<f32, String> {
    sampled(text, |top_p| SamplingOptions { top_p, ..ANY })
}

const ANY: SamplingOptions = SamplingOptions { temperature: 1.0, top_k: None, top_p: 1.0 };

/// A number that the sampler takes.
fn sampled(text: &str, options: impl Fn(f32) -> SamplingOptions) -> Result<f32, String> {
    let value = text.parse().map_err(|_| format!("expected a number, got {text}"))?;
    Sampling::new(options(value)).map(|_| value).map_err(|error| error.to_string())
}

/// What to measure.
#[derive(Subcommand, Debug)]
pub(crate) enum Bench {
    /// Stores and restores of whole batches, beside memcpy of the same bytes
    Copy(BenchCopyArgs),
    /// Prefill and decode of the forward, beside its own matrix products
    Forward(BenchForwardArgs),
    /// Cost of the control plane's operations
    Store(BenchStoreArgs),
}

/// Which way the images of a benchmark go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Direction {
    /// Slots to pages
    Store,
    /// Pages to slots
    Restore,
    /// Both in one batch
    Mixed,
}

/// Flags of `bench copy`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BenchCopyArgs {
    /// `cpu`, `cuda:N` or `hip:N`
    #[arg(long, default_value = "cpu", value_name = "DEVICE")]
    pub(crate) device: BenchDevice,
    /// A published model
    #[arg(long, value_enum, default_value = "v4-pro")]
    pub(crate) model: ModelName,
    #[command(flatten)]
    pub(crate) layout: LayoutArgs,
    /// Images of a batch; a row for each
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,4,16",
        value_name = "N,N",
        value_parser = value_parser!(u32).range(1..)
    )]
    pub(crate) images: Vec<u32>,
    /// Which way they go
    #[arg(long, value_enum, default_value = "mixed")]
    pub(crate) direction: Direction,
    /// Rounds of each arm; the median counts
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Bytes of images that batches take turns on, so that no cache holds the next batch's
    #[arg(long, default_value = "1GiB", value_name = "SIZE")]
    pub(crate) rotate: ByteSize,
    /// Where the units of an image lie in the pool
    #[arg(long, value_enum, default_value = "anywhere")]
    pub(crate) units: Units,
    /// How a GPU is told of a batch
    #[arg(long, value_enum, default_value = "arguments")]
    pub(crate) passing: BenchPassing,
    /// Threads of a block, vectors a thread and resident blocks of a GPU's kernels, such as 256,2,8
    #[arg(long, value_name = "T,V,R")]
    pub(crate) shape: Option<Shape>,
    /// Compile a GPU's kernels from this file instead of the project's, to measure a variant
    #[arg(long, value_name = "FILE")]
    pub(crate) kernels: Option<PathBuf>,
    /// Draw rate against images, an SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) picture: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// How a benchmark's batches reach a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchPassing {
    /// With the kernels' arguments where they fit, else by upload
    Arguments,
    /// By upload
    Upload,
    /// By replay of a graph that was captured for as many images
    Graph,
}

/// Where the units of a benchmark's images lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Units {
    /// Shuffled over the pool, as in a pool that has been in use
    Anywhere,
    /// One behind the other
    InOrder,
}

/// Shape of a GPU's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape(pub(crate) KernelShape);

impl std::str::FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Result<Vec<u32>, _> = text.split(',').map(str::parse).collect();
        let shape = match numbers.as_deref() {
            Ok(&[threads, vectors, resident]) => KernelShape::new(threads, vectors, resident),
            _ => None,
        };
        shape.map(Self).ok_or_else(|| {
            format!(
                "expected threads (a multiple of 64), vectors (1-16), blocks (1-32), got {text}"
            )
        })
    }
}

/// A device of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BenchDevice {
    /// The host backend
    Cpu,
    /// An NVIDIA device
    Cuda(u32),
    /// An AMD device
    Hip(u32),
}

impl std::str::FromStr for BenchDevice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("expected cpu, cuda:N or hip:N, got {text}");
        let (kind, number) = match text.split_once(':') {
            None if text == "cpu" => return Ok(Self::Cpu),
            None => return Err(expected()),
            Some((kind, number)) => (kind, number.parse().map_err(|_| expected())?),
        };
        match kind {
            "cuda" => Ok(Self::Cuda(number)),
            "hip" => Ok(Self::Hip(number)),
            _ => Err(expected()),
        }
    }
}

impl Kv {
    /// The indexer's format where only that of KV was asked for.
    pub(crate) const fn indexer(self) -> Indexer {
        match self {
            Self::Fp8 => Indexer::Fp8,
            Self::Bf16 => Indexer::Bf16,
            Self::F32 => Indexer::F32,
        }
    }
}

impl Fault {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::SkipRestore => "skip-restore",
            Self::WrongBoundary => "wrong-boundary",
        }
    }
}

impl DemoArgs {
    /// What the flags say when none is given.
    pub(crate) fn built_in() -> Self {
        let cli = Cli::parse_from(["statepages", "demo"]);
        match cli.command {
            Some(Command::Demo(args)) => args,
            other => unreachable!("`demo` parses as {other:?}"),
        }
    }
}
