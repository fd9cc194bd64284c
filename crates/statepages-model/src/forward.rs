//! The forward: batches of chunks in, logits out; state lives in pages and slots alone.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use statepages_copy::HostArena;
use statepages_geometry::Dsv4Geometry;
use statepages_page::SlotId;

use crate::batch::{ForwardError, Logits, Plan, SequenceChunk, Span};
use crate::choice::{Choices, OwnChoices};
use crate::config::ModelConfig;
use crate::crew::{Crew, Hands, PerThread};
use crate::kernel::gemm::{Product, products, rows, rows_mut};
use crate::kernel::lanes::{Isa, IsaUnavailable, Machine};
use crate::kernel::matrix::Matrix;
use crate::moe::Experts;
use crate::pass::{Core, Pass};
use crate::state::{Entries, Tiles, store_window};
use crate::tile::{Cached, Inside, Rows32, Spare, Tile, Work, enter, entrances};
use crate::weights::{DraftWeights, HyperWeights, Weights};

/// Most tokens of a tile: enough rows to reuse a weight panel and to give every expert some, few
/// enough to stay in a core's cache.
const TILE_TOKENS: usize = 96;

/// Most tokens that all threads compute together. A product of so few rows waits for its weights, so
/// each thread fetches some of them for all rows; with more, each computes tiles of its own.
const TOGETHER: usize = 32;

/// How the threads share the tokens of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sharing {
    /// Tokens of a tile.
    tile_len: usize,
    /// Who shares the tiles.
    tiles: Hands,
    /// Who shares the work inside of a tile.
    inside: Hands,
}

impl Sharing {
    fn new(tokens: usize, threads: usize) -> Self {
        if tokens <= TOGETHER {
            let inside = Hands::new(threads.min(tokens));
            return Self { tile_len: tokens.max(1), tiles: Hands::ONE, inside };
        }
        // As many tiles for every thread, of about equal length.
        let rounds = tokens.div_ceil(threads).div_ceil(TILE_TOKENS);
        let len = tokens.div_ceil(threads * rounds);
        // A product takes rows by fours and twelves.
        let tile_len = if len > 12 { len.next_multiple_of(4) } else { len };
        let tiles = Hands::new(threads.min(tokens.div_ceil(tile_len)));
        Self { tile_len, tiles, inside: Hands::ONE }
    }

    /// Threads that have work: they share either the tiles or the one tile.
    fn all(self) -> Hands {
        if self.tiles == Hands::ONE { self.inside } else { self.tiles }
    }
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

/// Told of each phase's end; a phase begins where the one before it ended, the first with the
/// forward. Behind the last nothing is computed: the crew's threads are waited for.
type Ended<'a> = &'a mut (dyn FnMut(Phase) + Send);

/// A DSV4 trunk with its weights, threads and scratch. Holds no request's state.
pub struct Model {
    core: Core,
    crew: Crew,
    spare: PerThread<Spare>,
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
        let crew = Crew::new(options.threads);
        let crew = crew.map_err(|error| ModelError::Threads(error.to_string()))?;
        let threads = crew.threads();
        Ok(Self {
            core: Core::new(weights, geometry.clone(), machine),
            crew,
            spare: PerThread::new(threads),
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
        let (count, n, k) = (48, 256, 512);
        let (threads, rounds) = (self.crew.threads(), 64);
        let tiles = 2 * threads;
        let machine = self.core.machine;
        let weights = Matrix::pack(n, k, &vec![0.5; n * k]);
        self.crew.run(threads, || {
            Hands::new(threads).each(0..tiles, |_| {
                let data = vec![0.25; count * k];
                let mut c = vec![0.0; count * n];
                for _ in 0..rounds {
                    let (a, w) = (rows(&data, k, k), &weights);
                    let product = Product { a, w, c: rows_mut(&mut c, n, n) };
                    products(machine, Hands::ONE, vec![product]);
                    std::hint::black_box(&c);
                }
            });
        });
        (2 * tiles * rounds * count * n * k) as u64
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
    /// tell where the time goes. Each layer ends the phases from [`Phase::Project`] to
    /// [`Phase::Experts`] in their order, also those that it has no use for, and the forward
    /// [`Phase::Head`].
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
        let Self { core, crew, spare, drafting, scratch, forwarded } = self;
        forwarded.clear();
        let plan = Plan::new(&core.config, &core.geometry, arena, batch)?;
        let sharing = Sharing::new(plan.tokens.len(), crew.threads());
        let inside = Inside { hands: sharing.inside, spares: spare };
        crew.run(sharing.all().count(), || {
            scratch.start(core, &plan, sharing);
            let layers = core.weights.layers.len();
            for layer in 0..layers {
                let last = layer + 1 == layers && !*drafting;
                let pass = Pass::new(core, &plan, choices, (sharing.all(), inside), (layer, last));
                scratch.layer(&pass, sharing, arena, ended);
            }
            let head = (&core.weights.hc_head, &core.weights.norm[..]);
            scratch.head(core, &plan, head, (sharing.tiles, inside), out);
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
        let Self { core, crew, spare, drafting, scratch, forwarded } = self;
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
        let sharing = Sharing::new(plan.tokens.len(), crew.threads());
        let inside = Inside { hands: sharing.inside, spares: spare };
        crew.run(sharing.all().count(), || {
            scratch.start_draft(core, draft, &plan, sharing);
            let layer = (core.weights.layers.len(), true);
            let pass = Pass::new(core, &plan, &OwnChoices, (sharing.all(), inside), layer);
            scratch.layer(&pass, sharing, arena, &mut |_| {});
            let head = (&draft.hc_head, &draft.norm[..]);
            scratch.head(core, &plan, head, (sharing.tiles, inside), out);
        });
        Ok(())
    }
}

impl Scratch {
    fn start(&mut self, core: &Core, plan: &Plan<'_>, sharing: Sharing) {
        self.tiles.resize_with(plan.tokens.len().div_ceil(sharing.tile_len), Tile::default);
        let tiles = self.tiles.iter_mut().zip(plan.tokens.chunks(sharing.tile_len));
        sharing.tiles.each(tiles, |(tile, tokens)| tile.start(core, tokens, sharing.inside));
    }

    fn start_draft(
        &mut self,
        core: &Core,
        draft: &DraftWeights,
        plan: &Plan<'_>,
        sharing: Sharing,
    ) {
        let works = &self.work;
        let tiles = self.tiles.iter_mut().zip(plan.tokens.chunks(sharing.tile_len));
        sharing.tiles.each(tiles, |(tile, tokens)| {
            works.with(|work| tile.start_draft(core, draft, tokens, sharing.inside, work));
        });
    }

    fn layer(
        &mut self,
        pass: &Pass<'_>,
        sharing: Sharing,
        arena: &mut HostArena,
        ended: Ended<'_>,
    ) {
        let Self { tiles, work, entries, keys, entry_rows, window_rows, experts } = self;
        let (work, tile_len) = (&*work, sharing.tile_len);
        let each = |tiles: &mut [Tile], phase: &(dyn Fn(&mut Tile, &mut Work) + Sync)| {
            let busy = tiles.iter_mut().filter(|tile| !tile.tokens.is_empty());
            sharing.tiles.each(busy, |tile| work.with(|work| phase(tile, work)));
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
        let cached = Cached { arena, entries: entry_rows, window: window_rows };
        each(tiles, &|tile, work| tile.attend(pass, work, &cached));
        ended(Phase::Attend);
        each(tiles, &|tile, _| tile.route(pass));
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
        (tiles, inside): (Hands, Inside<'_>),
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
        let (works, dims) = (&self.work, &core.dims);
        tiles.each(parts.into_iter(), |(tile, values)| {
            works.with(|work| {
                let residual = if tile.tokens.iter().all(|token| plan.wants(token)) {
                    Cow::Borrowed(&tile.residual[..])
                } else {
                    let tokens = tile.tokens.iter().zip(tile.residual.chunks_exact(row));
                    let wanted = tokens.filter(|(token, _)| plan.wants(token));
                    wanted.flat_map(|(_, row)| row).copied().collect()
                };
                let (share, mut mixes) = (inside.hands.share(residual.len() / row), Vec::new());
                let shares = entrances(dims, share, &residual, &mut mixes, &mut work.x);
                inside.each(shares, |spare, to| {
                    enter(core, (hyper, norm), to, spare);
                });
                let (a, w) = (rows(&work.x, dims.hidden, dims.hidden), &core.weights.head);
                let c = rows_mut(values, vocab, vocab);
                products(core.machine, inside.hands, vec![Product { a, w, c }]);
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_tiles_of_about_equal_length_or_a_share_of_all() {
        for (tokens, threads, tile_len, tiles, inside) in [
            (0, 2, 1, 1, 1),
            (1, 1, 1, 1, 1),
            (1, 8, 1, 1, 1),
            (16, 2, 16, 1, 2),
            (16, 1, 16, 1, 1),
            (3, 8, 3, 1, 3),
            (33, 2, 20, 2, 1),
            (256, 2, 64, 2, 1),
            (512, 1, 88, 1, 1),
            (500, 4, 64, 4, 1),
        ] {
            let (tiles, inside) = (Hands::new(tiles), Hands::new(inside));
            let expected = Sharing { tile_len, tiles, inside };
            assert_eq!(Sharing::new(tokens, threads), expected, "{tokens} on {threads} threads");
        }
        for tokens in 1..1000 {
            for threads in 1..5 {
                assert!((1..=TILE_TOKENS).contains(&Sharing::new(tokens, threads).tile_len));
            }
        }
    }
}
