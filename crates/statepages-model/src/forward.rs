//! The forward: batches of chunks in, logits out; state lives in pages and slots alone.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use rayon::prelude::*;
use statepages_copy::HostArena;
use statepages_geometry::Dsv4Geometry;

use crate::batch::{ForwardError, Logits, LogitsWanted, Plan, SequenceChunk};
use crate::choice::{Choices, OwnChoices};
use crate::config::ModelConfig;
use crate::kernel::gemm::{Matrix, Rows, RowsMut, gemm};
use crate::kernel::lanes::{Isa, IsaUnavailable, Machine};
use crate::pass::{Core, Pass, PerThread};
use crate::row::RowFormat;
use crate::state::{Entries, Tiles, store_window};
use crate::tile::{Rows32, Tile, Work, enter};
use crate::weights::Weights;

/// Most tokens of a tile: enough rows to reuse a weight panel, few enough to stay in a core's
/// cache.
const TILE_TOKENS: usize = 48;

/// How a model is run. Shows in no bit of the logits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunOptions {
    /// Instruction set of the kernels.
    pub isa: Isa,
    /// Threads of the model's own pool.
    pub threads: NonZeroUsize,
}

/// A model that cannot be run.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ModelError {
    /// The machine lacks the instruction set.
    Isa(IsaUnavailable),
    /// The caches were laid out for another shape.
    Geometry,
    /// The forward has no such row format.
    RowFormat {
        /// Which rows: `kv` or `indexer`.
        rows: &'static str,
        /// Name of the format.
        got: &'static str,
    },
    /// The system gives no threads.
    Threads(String),
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Isa(error) => error.fmt(f),
            Self::Geometry => f.write_str("the caches were laid out for another model's shape"),
            Self::RowFormat { rows, got } => {
                write!(f, "{rows} rows: expected bf16 or f32, got {got}")
            }
            Self::Threads(error) => write!(f, "no threads for the model: {error}"),
        }
    }
}

impl std::error::Error for ModelError {}

/// A DSV4 trunk with its weights, threads and scratch. Holds no request's state.
pub struct Model {
    core: Core,
    pool: rayon::ThreadPool,
    threads: usize,
    scratch: Scratch,
}

struct Scratch {
    tiles: Vec<Tile>,
    work: PerThread<Work>,
    entries: Entries,
    keys: Rows32,
    entry_rows: Rows32,
    window_rows: Rows32,
}

impl Model {
    /// A model on caches of `geometry`.
    pub fn new(
        weights: Arc<Weights>,
        geometry: &Dsv4Geometry,
        options: RunOptions,
    ) -> Result<Self, ModelError> {
        if weights.config().cache != *geometry.config() {
            return Err(ModelError::Geometry);
        }
        let (kv, indexer) = (geometry.options().kv, geometry.options().indexer);
        let format = |rows, format: Option<RowFormat>, got| {
            format.ok_or(ModelError::RowFormat { rows, got })
        };
        let kv = format("kv", RowFormat::of_kv(kv), kv.name())?;
        let index = format("indexer", RowFormat::of_indexer(indexer), indexer.name())?;
        let machine = Machine::new(options.isa).map_err(ModelError::Isa)?;
        let threads = options.threads.get();
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("model-{i}"))
            .build()
            .map_err(|error| ModelError::Threads(error.to_string()))?;
        Ok(Self {
            core: Core::new(weights, geometry.clone(), machine, (kv, index)),
            pool,
            threads,
            scratch: Scratch {
                tiles: Vec::new(),
                work: PerThread::new(threads),
                entries: Entries::default(),
                keys: Rows32::default(),
                entry_rows: Rows32::default(),
                window_rows: Rows32::default(),
            },
        })
    }

    /// The model's shape.
    pub fn config(&self) -> &ModelConfig {
        &self.core.config
    }

    /// Runs a fixed load of the forward's own matrix kernel, alone, on all threads, and returns its
    /// floating-point operations: the yardstick of the forward's speed.
    pub fn run_products(&mut self) -> u64 {
        let (rows, n, k) = (TILE_TOKENS, 256, 512);
        let (tiles, rounds) = (2 * self.threads, 64);
        let machine = self.core.machine;
        let weights = Matrix::pack(n, k, &vec![0.5; n * k]);
        self.pool.install(|| {
            (0..tiles).into_par_iter().for_each(|_| {
                let a = vec![0.25; rows * k];
                let mut c = vec![0.0; rows * n];
                for _ in 0..rounds {
                    let a = Rows { data: &a, stride: k };
                    gemm(machine, rows, a, &weights, RowsMut { data: &mut c, stride: n });
                    std::hint::black_box(&c);
                }
            });
        });
        (2 * tiles * rounds * rows * n * k) as u64
    }

    /// Computes the batch's tokens: reads and writes the sequences' slots and pages, and puts the
    /// wanted logits into `out`.
    ///
    /// A token's logits, and every byte that a later forward reads, depend on the request's tokens
    /// alone: on neither the chunks they came in, the batch's other sequences, the number of
    /// threads nor the instruction set.
    pub fn forward(
        &mut self,
        arena: &mut HostArena,
        batch: &[SequenceChunk<'_>],
        out: &mut Logits,
    ) -> Result<(), ForwardError> {
        self.forward_with(&OwnChoices, arena, batch, out)
    }

    /// [`Model::forward`], with every discrete choice shown to `choices` first.
    pub fn forward_with(
        &mut self,
        choices: &dyn Choices,
        arena: &mut HostArena,
        batch: &[SequenceChunk<'_>],
        out: &mut Logits,
    ) -> Result<(), ForwardError> {
        let Self { core, pool, threads, scratch } = self;
        let plan = Plan::new(&core.config, &core.geometry, arena, batch)?;
        let share = plan.tokens.len().div_ceil(*threads);
        let tile_len = share.clamp(1, TILE_TOKENS);
        pool.install(|| {
            scratch.start(core, &plan, tile_len);
            for layer in 0..core.weights.layers.len() {
                scratch.layer(&Pass::new(core, &plan, choices, layer), tile_len, arena);
            }
            scratch.head(core, &plan, tile_len, batch, out);
        });
        Ok(())
    }
}

impl Scratch {
    fn start(&mut self, core: &Core, plan: &Plan<'_>, tile_len: usize) {
        self.tiles.resize_with(plan.tokens.len().div_ceil(tile_len), Tile::default);
        let chunks = plan.tokens.par_chunks(tile_len).enumerate();
        self.tiles
            .par_iter_mut()
            .zip(chunks)
            .for_each(|(tile, (i, tokens))| tile.start(core, tokens, i * tile_len));
    }

    fn layer(&mut self, pass: &Pass<'_>, tile_len: usize, arena: &mut HostArena) {
        let Self { tiles, work, entries, keys, entry_rows, window_rows } = self;
        tiles.par_iter_mut().for_each(|tile| work.with(|work| tile.project(pass, work)));
        if pass.ratio != 0 {
            let done = Tiles { tiles, len: tile_len };
            entries.pool(pass, done, arena);
            entries.publish(pass, done, arena);
        }
        if pass.indexed() {
            keys.read_keys(pass, arena);
            tiles.par_iter_mut().for_each(|tile| work.with(|work| tile.select(pass, work, keys)));
        }
        let done = Tiles { tiles, len: tile_len };
        if pass.ratio != 0 {
            entry_rows.read_entries(pass, done, arena);
        }
        window_rows.read_window(pass, done, arena);
        store_window(pass, done, arena);
        tiles.par_iter_mut().for_each(|tile| {
            work.with(|work| tile.attend(pass, work, entry_rows, window_rows));
        });
    }

    /// Logits of the wanted tokens.
    fn head(
        &mut self,
        core: &Core,
        plan: &Plan<'_>,
        tile_len: usize,
        batch: &[SequenceChunk<'_>],
        out: &mut Logits,
    ) {
        let (vocab, row) = (core.config.vocab_size as usize, core.dims.streams * core.dims.hidden);
        out.vocab = vocab;
        out.ends.clear();
        let mut wanted = Vec::new();
        for (chunk, span) in batch.iter().zip(&plan.spans) {
            let end = span.flat(span.end);
            match chunk.logits {
                LogitsWanted::None => {}
                LogitsWanted::Last => wanted.push(end - 1),
                LogitsWanted::All => wanted.extend(span.first..end),
            }
            out.ends.push(wanted.len());
        }
        out.values.resize(wanted.len() * vocab, 0.0);
        let (tiles, works) = (&self.tiles, &self.work);
        let rows = out.values.par_chunks_mut(tile_len * vocab);
        rows.zip(wanted.par_chunks(tile_len)).for_each(|(values, wanted)| {
            works.with(|work| {
                let mut residual = Vec::with_capacity(wanted.len() * row);
                for &flat in wanted {
                    let tile = &tiles[flat / tile_len];
                    residual.extend_from_slice(&tile.residual[flat % tile_len * row..][..row]);
                }
                let mut mixes = Vec::new();
                let weights = &core.weights;
                enter(core, &residual, &mut mixes, &weights.hc_head, &weights.norm, work);
                gemm(
                    core.machine,
                    wanted.len(),
                    Rows { data: &work.x, stride: core.dims.hidden },
                    &weights.head,
                    RowsMut { data: values, stride: vocab },
                );
            });
        });
    }
}
