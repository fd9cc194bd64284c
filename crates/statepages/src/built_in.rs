//! The command's engine: dsv4-mini, published or random weights, and host memory.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::thread::available_parallelism;

use anyhow::{Context, Result};
use statepages_engine::{CpuRunner, Engine, EngineParts, RawLimits, StartupFacts};
use statepages_geometry::{CacheOptions, Dsv4Geometry, IndexerFormat, KvFormat};
use statepages_model::{Isa, Model, ModelConfig, RunOptions, Weights};
use statepages_page::{BlockSize, Pages};
use statepages_store::{
    BackendOrder, Caching, CheckpointInterval, CheckpointSpec, ControlPlane, ControlPlaneConfig,
    ReferenceOrder, Schedulers, Speculation, StateRuntime, StateTransfer, Statepages, VictimPolicy,
};
use statepages_weights::{Published, available_memory};

use crate::args::{EngineArgs, Fault, Keeping};
use crate::fault::FaultyRunner;
use crate::given::FlagError;

/// Tokens of a block: the grid of boundaries.
pub(crate) const BLOCK_TOKENS: usize = statepages_geometry::BLOCK_TOKENS.get() as usize;

/// Prompt and generated tokens that one request may come to.
pub(crate) const MODEL_LEN_MAX: u64 = 32_768;
/// KV events held for a reader; the command has none, so that few are enough.
const EVENTS_MAX: u32 = 1_024;

/// Threads that the flags ask for.
pub(crate) fn threads(args: &EngineArgs) -> usize {
    match args.threads {
        0 => available_parallelism().map_or(1, NonZeroUsize::get),
        threads => threads as usize,
    }
}

/// The engine that the flags ask for.
pub(crate) fn engine(
    args: &EngineArgs,
    fault: Option<Fault>,
) -> Result<Engine<FaultyRunner<CpuRunner>>> {
    let source = Source::open(args)?;
    let config = source.config();
    let indexer = args.indexer.unwrap_or(args.kv.indexer());
    let block = statepages_geometry::BLOCK_TOKENS;
    let options = CacheOptions {
        kv: args.kv.into(),
        indexer: indexer.into(),
        draft_tokens: 0,
        block,
        dcp_world_size: 1,
        image: args.image.into(),
    };
    let geometry = Dsv4Geometry::new(&config.cache, &options)?;
    let control = control(args, &geometry, block)?;
    let threads = NonZeroUsize::new(threads(args)).expect("no machine has no core");
    let weights = Arc::new(source.load()?);
    let model = Model::new(weights, &geometry, RunOptions { isa: Isa::Auto, threads })?;
    let runner = CpuRunner::new(model, geometry.layout(), Pages::new(args.pages), args.max_seqs)?;
    let parts = EngineParts {
        control,
        limits: RawLimits {
            max_num_batched_tokens: u64::from(args.max_batched_tokens),
            max_num_seqs: u64::from(args.max_seqs),
            max_in_flight: 1,
            max_model_len: MODEL_LEN_MAX.min(u64::from(config.max_position_embeddings)),
            vocab: u64::from(config.vocab_size),
            waiting_max: u64::from(u32::MAX),
            batch_failures_max: 1,
            load_steps_max: 0,
        },
        model_revision: model_name(args),
        layout: Some(geometry.layout().id.clone()),
    };
    Engine::new(parts, FaultyRunner::new(runner, fault))
        .map_err(|error| FlagError(format!("{}: {error}", flag(error.field))).into())
}

/// The flag that sets a limit of the engine.
fn flag(field: &str) -> &'static str {
    match field {
        "max_num_batched_tokens" => "--max-batched-tokens",
        "max_num_seqs" => "--max-seqs",
        _ => "the engine's limits",
    }
}

/// Names the model and its rows: outputs of equal names may be compared.
pub(crate) fn model_name(args: &EngineArgs) -> String {
    let kv = args.kv;
    let mut rows = KvFormat::from(kv).name().to_owned();
    if let Some(indexer) = args.indexer.filter(|&indexer| indexer != kv.indexer()) {
        rows = format!("{rows}-{}", IndexerFormat::from(indexer).name());
    }
    match (&args.model, args.weights_seed) {
        (Some(directory), _) => format!("published-{}-{rows}", directory.display()),
        (None, Some(seed)) => format!("demo-{seed}-{rows}"),
        (None, None) => format!("dsv4-mini-{rows}"),
    }
}

/// The weights that the flags name, before they are read: what they do not fit is told at once.
enum Source<'a> {
    Seeded(ModelConfig, u64),
    Published(Box<Published>, Option<&'a Path>),
}

impl<'a> Source<'a> {
    fn open(args: &'a EngineArgs) -> Result<Self> {
        match (args.model.as_deref(), args.weights_seed) {
            (Some(directory), _) => {
                let published = Published::open(directory, available_memory());
                let context = || format!("--model: {}", directory.display());
                Ok(Self::Published(Box::new(published.with_context(context)?), Some(directory)))
            }
            (None, Some(seed)) => Ok(Self::Seeded(ModelConfig::demo(), seed)),
            (None, None) => {
                let (config, tensors) = (statepages_mini::CONFIG, statepages_mini::TENSORS);
                Ok(Self::Published(Box::new(Published::embedded(config, tensors)?), None))
            }
        }
    }

    fn config(&self) -> ModelConfig {
        match self {
            Self::Seeded(config, _) => config.clone(),
            Self::Published(published, _) => published.config().clone(),
        }
    }

    fn load(self) -> Result<Weights> {
        match self {
            Self::Seeded(config, seed) => Ok(Weights::seeded(&config, seed)?),
            Self::Published(published, None) => Ok(published.load()?),
            Self::Published(published, Some(directory)) => {
                let memory = published.memory();
                let context = || format!("--model: {}", directory.display());
                let weights = published.load().with_context(context)?;
                tracing::info!("weights of {} take {memory} bytes", directory.display());
                Ok(weights)
            }
        }
    }
}

/// What --state-checkpoint-interval-tokens says.
pub(crate) fn checkpoint_interval(tokens: i64, block: BlockSize) -> Result<CheckpointInterval> {
    let (interval, snapped) = CheckpointInterval::parse(tokens, block)
        .context(FlagError("--state-checkpoint-interval-tokens".to_owned()))?;
    if let Some(snapped) = snapped {
        tracing::warn!("--state-checkpoint-interval-tokens: {snapped}");
    }
    Ok(interval)
}

fn control(args: &EngineArgs, geometry: &Dsv4Geometry, block: BlockSize) -> Result<ControlPlane> {
    let layout = geometry.layout();
    let spec = CheckpointSpec::of(layout)?;
    tracing::info!("{}", StartupFacts::of(&spec));
    let interval = checkpoint_interval(args.state_checkpoint_interval_tokens, block)?;
    let config = ControlPlaneConfig {
        pages: Pages::new(args.pages),
        pages_max: Pages::new(args.pages),
        slots: args.max_seqs,
        block,
        runtime: StateRuntime::new(StateTransfer::Copy { layout: layout.id.clone() }, Some(spec))?,
        caching: Caching::On,
        interval,
        copying_max: None,
        order: BackendOrder::Ordered,
        speculation: Speculation::Off,
        pipeline_stages: 1,
        schedulers: Schedulers::Unified,
        events_max: EVENTS_MAX,
    };
    let units = config.runtime.spec().map_or(Pages::ZERO, CheckpointSpec::units_per_checkpoint);
    let policy: Box<dyn VictimPolicy> = match args.policy {
        Keeping::Statepages => Box::new(Statepages::new(config.pages_max, units)),
        Keeping::Reference => Box::new(ReferenceOrder),
    };
    ControlPlane::new(config, policy).context(FlagError("--pages and --max-seqs".to_owned()))
}
