//! The forward: batches of chunks in, logits out; state lives in pages and slots alone.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use rayon::prelude::*;
use statepages_copy::HostArena;
use statepages_geometry::Dsv4Geometry;
use statepages_page::SlotId;

use crate::batch::{ForwardError, Logits, Plan, SequenceChunk, Span};
use crate::choice::{Choices, OwnChoices};
use crate::config::ModelConfig;
use crate::kernel::gemm::{Rows, RowsMut, gemm};
use crate::kernel::lanes::{Isa, IsaUnavailable, Machine};
use crate::kernel::matrix::Matrix;
use crate::moe::Experts;
use crate::pass::{Core, Pass, PerThread};
use crate::state::{Entries, Tiles, store_window};
use crate::tile::{Rows32, Tile, Work, enter};
use crate::weights::{DraftWeights, HyperWeights, Weights};

/// Most tokens of a tile: enough rows to reuse a weight panel and to give every expert some, few
/// enough to stay in a core's cache.
const TILE_TOKENS: usize = 96;

/// Tokens of a tile: as many tiles for every thread, of about equal length.
fn tile_len(tokens: usize, threads: usize) -> usize {
    let rounds = tokens.div_ceil(threads).div_ceil(TILE_TOKENS).max(1);
    let len = tokens.div_ceil(threads * rounds);
    // A product takes rows by fours and twelves.
    if len > 12 { len.next_multiple_of(4) } else { len.max(1) }
}

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
    /// The system gives no threads.
    Threads(String),
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Isa(error) => error.fmt(f),
            Self::Geometry => f.write_str("the caches were laid out for another model's shape"),
            Self::Threads(error) => write!(f, "no threads for the model: {error}"),
        }
    }
}

impl std::error::Error for ModelError {}

/// A part of a forward, all layers together, in the order of a layer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// Residual mixing, query rank, KV rows and what compressors and indexer project.
    Project,
    /// Pools of completed entries, and the rows and rings that they are written to.
    Pool,
    /// Indexer rows read, and entries chosen by them.
    Select,
    /// Compressed and window rows read, window rings written.
    Read,
    /// Queries, attention and its output projections.
    Attend,
    /// Routing and experts.
    Experts,
    /// Logits.
    Head,
}

impl Phase {
    /// The name used by reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Project => "project",
            Self::Pool => "pool",
            Self::Select => "select",
            Self::Read => "read",
            Self::Attend => "attend",
            Self::Experts => "experts",
            Self::Head => "head",
        }
    }
}

/// Told of each phase's end; the phases of a forward leave no gaps.
type Ended<'a> = &'a mut (dyn FnMut(Phase) + Send);

/// A DSV4 trunk with its weights, threads and scratch. Holds no request's state.
pub struct Model {
    core: Core,
    pool: rayon::ThreadPool,
    threads: usize,
    /// True where a draft may follow a forward.
    drafting: bool,
    scratch: Scratch,
    /// Spans of the forward whose residuals the scratch still holds, for a draft.
    forwarded: Vec<(SlotId, u32, u32)>,
}

struct Scratch {
    tiles: Vec<Tile>,
    work: PerThread<Work>,
    entries: Entries,
    keys: Rows32,
    entry_rows: Rows32,
    window_rows: Rows32,
    experts: Experts,
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
        let machine = Machine::new(options.isa).map_err(ModelError::Isa)?;
        let threads = options.threads.get();
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("model-{i}"))
            .build()
            .map_err(|error| ModelError::Threads(error.to_string()))?;
        Ok(Self {
            core: Core::new(weights, geometry.clone(), machine),
            pool,
            threads,
            drafting: false,
            scratch: Scratch {
                tiles: Vec::new(),
                work: PerThread::new(threads),
                entries: Entries::default(),
                keys: Rows32::default(),
                entry_rows: Rows32::default(),
                window_rows: Rows32::default(),
                experts: Experts::default(),
            },
            forwarded: Vec::new(),
        })
    }

    /// The same model, whose forwards keep what [`Model::draft`] reads. Others compute tokens whose
    /// logits nobody wants no further than the last layer's caches, which shows in no bit.
    #[must_use]
    pub fn drafting(mut self) -> Self {
        self.drafting = true;
        self
    }

    /// The model's shape.
    pub fn config(&self) -> &ModelConfig {
        &self.core.config
    }

    /// Runs a fixed load of the forward's own matrix kernel, alone, on all threads, and returns its
    /// floating-point operations: the yardstick of the forward's speed.
    pub fn run_products(&mut self) -> u64 {
        let (rows, n, k) = (48, 256, 512);
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
        self.run(choices, &mut |_| {}, arena, batch, out)
    }

    /// [`Model::forward`], with `ended` called at the end of each phase: whoever has a clock can
    /// tell where the time goes.
    pub fn forward_phases(
        &mut self,
        ended: &mut (dyn FnMut(Phase) + Send),
        arena: &mut HostArena,
        batch: &[SequenceChunk<'_>],
        out: &mut Logits,
    ) -> Result<(), ForwardError> {
        self.run(&OwnChoices, ended, arena, batch, out)
    }

    fn run(
        &mut self,
        choices: &dyn Choices,
        ended: Ended<'_>,
        arena: &mut HostArena,
        batch: &[SequenceChunk<'_>],
        out: &mut Logits,
    ) -> Result<(), ForwardError> {
        let Self { core, pool, threads, drafting, scratch, forwarded } = self;
        forwarded.clear();
        let plan = Plan::new(&core.config, &core.geometry, arena, batch)?;
        let tile_len = tile_len(plan.tokens.len(), *threads);
        pool.install(|| {
            scratch.start(core, &plan, tile_len);
            let layers = core.weights.layers.len();
            for layer in 0..layers {
                let last = layer + 1 == layers && !*drafting;
                let pass = Pass::new(core, &plan, choices, layer, last);
                scratch.layer(&pass, tile_len, arena, ended);
            }
            scratch.head(core, &plan, (&core.weights.hc_head, &core.weights.norm), out);
            ended(Phase::Head);
        });
        forwarded.extend(plan.spans.iter().map(Span::place));
        Ok(())
    }

    /// Computes the draft layer for the batch of the forward just before: its rows in the slots,
    /// and draft logits of the wanted tokens, which foretell the token after next.
    ///
    /// `next` has the id of the token behind each chunk. A draft follows each forward at most once;
    /// a request that wants drafts at all wants them after every one of its forwards, since each
    /// writes rows that later ones read. The model must be a [`Model::drafting`] one.
    pub fn draft(
        &mut self,
        arena: &mut HostArena,
        batch: &[SequenceChunk<'_>],
        next: &[u32],
        out: &mut Logits,
    ) -> Result<(), ForwardError> {
        let Self { core, pool, threads, drafting, scratch, forwarded } = self;
        let draft = core.weights.draft.as_ref().ok_or(ForwardError::NoDraftLayer)?;
        if !*drafting {
            return Err(ForwardError::NotDrafting);
        }
        let plan = Plan::new(&core.config, &core.geometry, arena, batch)?;
        let same = plan.spans.iter().map(Span::place).eq(forwarded.iter().copied());
        if !same || next.len() != batch.len() {
            return Err(ForwardError::NotForwarded);
        }
        let plan = plan.draft(&core.config, next)?;
        forwarded.clear();
        let tile_len = tile_len(plan.tokens.len(), *threads);
        pool.install(|| {
            scratch.start_draft(core, draft, &plan, tile_len);
            let pass = Pass::new(core, &plan, &OwnChoices, core.weights.layers.len(), true);
            scratch.layer(&pass, tile_len, arena, &mut |_| {});
            scratch.head(core, &plan, (&draft.hc_head, &draft.norm), out);
        });
        Ok(())
    }
}

impl Scratch {
    fn start(&mut self, core: &Core, plan: &Plan<'_>, tile_len: usize) {
        self.tiles.resize_with(plan.tokens.len().div_ceil(tile_len), Tile::default);
        let chunks = plan.tokens.par_chunks(tile_len);
        self.tiles.par_iter_mut().zip(chunks).for_each(|(tile, tokens)| tile.start(core, tokens));
    }

    fn start_draft(&mut self, core: &Core, draft: &DraftWeights, plan: &Plan<'_>, tile_len: usize) {
        let works = &self.work;
        let chunks = plan.tokens.par_chunks(tile_len);
        self.tiles.par_iter_mut().zip(chunks).for_each(|(tile, tokens)| {
            works.with(|work| tile.start_draft(core, draft, tokens, work));
        });
    }

    fn layer(&mut self, pass: &Pass<'_>, tile_len: usize, arena: &mut HostArena, ended: Ended<'_>) {
        let Self { tiles, work, entries, keys, entry_rows, window_rows, experts } = self;
        let work = &*work;
        let each = |tiles: &mut [Tile], phase: &(dyn Fn(&mut Tile, &mut Work) + Sync)| {
            let busy = tiles.par_iter_mut().filter(|tile| !tile.tokens.is_empty());
            busy.for_each(|tile| work.with(|work| phase(tile, work)));
        };
        each(tiles, &|tile, work| tile.project(pass, work));
        ended(Phase::Project);
        if pass.ratio != 0 {
            let done = Tiles { tiles, len: tile_len };
            entries.pool(pass, done, arena);
            entries.publish(pass, done, arena);
        }
        if pass.last {
            each(tiles, &|tile, _| tile.prune(pass.core, pass.plan));
        }
        ended(Phase::Pool);
        if pass.indexed() {
            keys.read_keys(pass, arena);
            let arena = &*arena;
            each(tiles, &|tile, work| tile.select(pass, work, arena, keys));
        }
        ended(Phase::Select);
        let done = Tiles { tiles, len: tile_len };
        if pass.ratio != 0 {
            entry_rows.read_entries(pass, done, arena);
        }
        window_rows.read_window(pass, done, arena);
        store_window(pass, done, arena);
        ended(Phase::Read);
        let arena = &*arena;
        each(tiles, &|tile, work| tile.attend(pass, work, arena, entry_rows, window_rows));
        ended(Phase::Attend);
        each(tiles, &|tile, work| tile.route(pass, work));
        experts.compute(pass, tiles, work);
        each(tiles, &|tile, work| tile.mix(pass, work, experts));
        ended(Phase::Experts);
    }

    /// Logits of the wanted tokens, through the mixing and the norm of a head.
    fn head(
        &mut self,
        core: &Core,
        plan: &Plan<'_>,
        (hyper, norm): (&HyperWeights, &[f32]),
        out: &mut Logits,
    ) {
        let (vocab, row) = (core.config.vocab_size as usize, core.dims.streams * core.dims.hidden);
        out.vocab = vocab;
        out.ends.clear();
        let mut total = 0;
        for span in &plan.spans {
            total += (span.end - span.wanted) as usize;
            out.ends.push(total);
        }
        out.values.resize(total * vocab, 0.0);
        let mut rest = &mut out.values[..];
        let mut parts = Vec::with_capacity(self.tiles.len());
        for tile in &self.tiles {
            let wanted = tile.tokens.iter().filter(|token| plan.wants(token)).count();
            let (values, others) = rest.split_at_mut(wanted * vocab);
            parts.push((tile, values));
            rest = others;
        }
        parts.retain(|(_, values)| !values.is_empty());
        let works = &self.work;
        parts.into_par_iter().for_each(|(tile, values)| {
            works.with(|work| {
                let tokens = tile.tokens.iter().zip(tile.residual.chunks_exact(row));
                let wanted = tokens.filter(|(token, _)| plan.wants(token));
                let residual: Vec<f32> = wanted.flat_map(|(_, row)| row).copied().collect();
                enter(core, &residual, &mut Vec::new(), hyper, norm, work);
                gemm(
                    core.machine,
                    residual.len() / row,
                    Rows { data: &work.x, stride: core.dims.hidden },
                    &core.weights.head,
                    RowsMut { data: values, stride: vocab },
                );
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_tiles_of_about_equal_length() {
        for (tokens, threads, expected) in [
            (0, 2, 1),
            (1, 1, 1),
            (1, 8, 1),
            (16, 2, 8),
            (16, 1, 16),
            (256, 2, 64),
            (512, 1, 88),
            (500, 4, 64),
        ] {
            let len = tile_len(tokens, threads);
            assert_eq!(len, expected, "{tokens} tokens on {threads} threads");
        }
        for tokens in 1..1000 {
            for threads in 1..5 {
                assert!((1..=TILE_TOKENS).contains(&tile_len(tokens, threads)));
            }
        }
    }
}
