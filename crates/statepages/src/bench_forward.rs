//! `statepages bench forward`: speed of the built-in model's forward, alone, against the speed of its
//! own matrix products.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Instant;

use anyhow::Result;
use clap::{Args, ValueEnum, value_parser};
use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use serde_json::{Value, json};
use statepages_copy::HostArena;
use statepages_geometry::{BLOCK_TOKENS, CacheOptions, Dsv4Geometry, IndexerFormat, KvFormat};
use statepages_model::{
    Isa, Logits, LogitsWanted, Model, ModelConfig, RunOptions, SeededTensors, SequenceChunk,
    Weights, forward_flops,
};
use statepages_page::{ImageRule, PageId, Pages, SlotId};
use statepages_weights::{RoundedTensors, WeightForm};

use crate::args::{Indexer, Kv, THREADS_MAX};

/// Format of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WeightFormat {
    /// 32-bit, all of them
    F32,
    /// 16-bit, all of them
    Bf16,
    /// As published: fp4 experts, fp8 projections, the others 16-bit
    Published,
}

/// Flags of `bench forward`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BenchForwardArgs {
    /// Worker threads of the forward; 0 takes every core
    #[arg(long, default_value_t = 0, value_parser = value_parser!(u32).range(0..=THREADS_MAX))]
    pub(crate) threads: u32,
    /// Prompt lengths
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "512,4096",
        value_name = "TOKENS",
        value_parser = value_parser!(u32).range(1..)
    )]
    pub(crate) lengths: Vec<u32>,
    /// Requests of a decode batch
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,2,4,8,16",
        value_name = "N",
        value_parser = value_parser!(u32).range(1..)
    )]
    pub(crate) batches: Vec<u32>,
    /// Tokens of a prefill chunk
    #[arg(long, default_value_t = 1_024, value_name = "TOKENS", value_parser = value_parser!(u32).range(1..))]
    pub(crate) chunk: u32,
    /// Row format of KV; without it, bf16 and fp8
    #[arg(long, value_enum)]
    pub(crate) kv: Option<Kv>,
    /// Row format of the indexer; without it, that of KV
    #[arg(long, value_enum, requires = "kv")]
    pub(crate) indexer: Option<Indexer>,
    /// Format of the built-in model's weights; without it, all
    #[arg(long, value_enum)]
    pub(crate) weights: Option<WeightFormat>,
    /// Give each request of a decode batch its own copy of the prompt's pages; without it all share
    /// them, as requests of one prefix do
    #[arg(long)]
    pub(crate) own_pages: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Steps of a decode measurement: few, so that some measurements of many are left undisturbed, and a
/// multiple of four, so that each completes as many entries.
const DECODE_STEPS: u32 = 8;
/// Steps before it, by which the weights come back to the caches that they were driven out of.
const WARM_STEPS: u32 = 8;
/// Products and decode are measured this often, in turns, and the fastest of each counts: others
/// disturb, nobody helps.
const ROUNDS: usize = 24;
/// Prefill is measured this often.
const PREFILL_ROUNDS: usize = 3;

/// One row of the table.
struct Row {
    kv: KvFormat,
    indexer: IndexerFormat,
    weights: WeightFormat,
    tokens: u32,
    /// Operations a second of matrix products.
    product_rate: f64,
    prefill: Times,
    decode: Vec<Decode>,
}

/// Decode steps of one batch.
struct Decode {
    batch: u32,
    /// Of a step.
    times: Times,
}

/// Where the time of forwards goes, in seconds by the name of a part. The parts are all there is: a
/// whole is their sum, so none can be left out.
#[derive(Default)]
struct Times(BTreeMap<&'static str, f64>);

/// The part that is in no phase: batches are described, threads are waited for when all is computed.
const OUTSIDE: &str = "outside";

impl Times {
    fn seconds(&self) -> f64 {
        self.0.values().sum()
    }

    /// Each part's share of the whole.
    fn shares(&self) -> BTreeMap<&'static str, f64> {
        let whole = self.seconds();
        self.0.iter().map(|(name, part)| (*name, part / whole)).collect()
    }

    fn divided_by(mut self, n: u32) -> Self {
        self.0.values_mut().for_each(|seconds| *seconds /= f64::from(n));
        self
    }
}

/// Runs forwards and gives all time from its start to the parts that they end.
struct Stopwatch {
    last: Instant,
    times: Times,
}

impl Stopwatch {
    fn start() -> Self {
        Self { last: Instant::now(), times: Times::default() }
    }

    fn ended(&mut self, part: &'static str) {
        let now = Instant::now();
        *self.times.0.entry(part).or_insert(0.0) += (now - self.last).as_secs_f64();
        self.last = now;
    }

    fn forward(
        &mut self,
        model: &mut Model,
        arena: &mut HostArena,
        batch: &[SequenceChunk<'_>],
        logits: &mut Logits,
    ) -> Result<()> {
        self.ended(OUTSIDE);
        model.forward_phases(&mut |phase| self.ended(phase.name()), arena, batch, logits)?;
        self.ended(OUTSIDE);
        Ok(())
    }
}

pub(crate) fn run(args: &BenchForwardArgs) -> Result<()> {
    let threads = match NonZeroUsize::new(args.threads as usize) {
        Some(threads) => threads,
        None => available_parallelism()?,
    };
    let all = [WeightFormat::F32, WeightFormat::Bf16, WeightFormat::Published];
    let forms = args.weights.map_or(all.to_vec(), |form| vec![form]);
    let rows = match args.kv {
        Some(kv) => vec![(kv, args.indexer.unwrap_or(kv.indexer()))],
        None => vec![(Kv::Bf16, Indexer::Bf16), (Kv::Fp8, Indexer::Fp8), (Kv::Fp8, Indexer::Fp4)],
    };
    let mut done = Vec::new();
    for form in forms {
        let kept = match form {
            WeightFormat::F32 => WeightForm::F32,
            WeightFormat::Bf16 => WeightForm::Bf16,
            WeightFormat::Published => WeightForm::Published,
        };
        let mut source = RoundedTensors::new(SeededTensors::new(1), kept);
        let weights = Arc::new(Weights::load(&ModelConfig::demo(), &mut source)?);
        for &(kv, indexer) in &rows {
            for &tokens in &args.lengths {
                let mut bench = Bench::new(&weights, (kv, indexer), tokens, args, threads)?;
                done.push(bench.row(form, args)?);
                eprintln!("{}", summary(&done[done.len() - 1]));
            }
        }
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        let rows: Vec<Value> = done.iter().map(to_json).collect();
        writeln!(
            out,
            "{}",
            json!({
                "threads": threads,
                "chunk": args.chunk,
                "own_pages": args.own_pages,
                "rows": rows,
            })
        )?;
    } else {
        writeln!(out, "{}", to_table(&done))?;
    }
    Ok(())
}

/// Ids below 256 without a pattern.
fn token_id(i: u32) -> u32 {
    i.wrapping_mul(2_654_435_761) >> 24
}

struct Bench {
    model: Model,
    arena: HostArena,
    geometry: Dsv4Geometry,
    tokens: u32,
    /// Pages of a request.
    blocks: u32,
    /// Those of them that no other request of a decode batch has: the last, or all.
    own: u32,
    /// Requests of the largest batch.
    requests: u32,
}

impl Bench {
    fn new(
        weights: &Arc<Weights>,
        (kv, indexer): (Kv, Indexer),
        tokens: u32,
        args: &BenchForwardArgs,
        threads: NonZeroUsize,
    ) -> Result<Self> {
        let options = CacheOptions {
            kv: kv.into(),
            indexer: indexer.into(),
            draft_tokens: 0,
            block: BLOCK_TOKENS,
            dcp_world_size: 1,
            image: ImageRule::Live,
        };
        let geometry = Dsv4Geometry::new(&weights.config().cache, &options)?;
        let run = RunOptions { isa: Isa::Auto, threads };
        let model = Model::new(weights.clone(), &geometry, run)?;
        let requests = args.batches.iter().copied().max().unwrap_or(1);
        let blocks = (tokens + WARM_STEPS + DECODE_STEPS).div_ceil(BLOCK_TOKENS.get());
        let own = if args.own_pages { blocks } else { 1 };
        let pages = Pages::new(blocks - own + requests * own);
        let arena = HostArena::new(geometry.layout(), pages, requests)?;
        Ok(Self { model, arena, geometry, tokens, blocks, own, requests })
    }

    fn row(&mut self, weights: WeightFormat, args: &BenchForwardArgs) -> Result<Row> {
        let mut prefill = self.prefill(args.chunk as usize)?;
        for _ in 1..PREFILL_ROUNDS {
            let next = self.prefill(args.chunk as usize)?;
            if next.seconds() < prefill.seconds() {
                prefill = next;
            }
        }
        self.copy_pages();
        let mut product_rate = self.product_rate();
        let batches = args.batches.iter();
        let mut decode = batches.map(|&batch| self.decode(batch)).collect::<Result<Vec<_>>>()?;
        for _ in 1..ROUNDS {
            product_rate = product_rate.max(self.product_rate());
            for best in &mut decode {
                let next = self.decode(best.batch)?;
                if next.times.seconds() < best.times.seconds() {
                    *best = next;
                }
            }
        }
        let options = self.geometry.options();
        Ok(Row {
            kv: options.kv,
            indexer: options.indexer,
            weights,
            tokens: self.tokens,
            product_rate,
            prefill,
            decode,
        })
    }

    /// Operations a second of the model's own matrix kernel on all of its threads.
    fn product_rate(&mut self) -> f64 {
        let clock = Instant::now();
        let flops = self.model.run_products();
        flops as f64 / clock.elapsed().as_secs_f64()
    }

    fn prefill(&mut self, chunk: usize) -> Result<Times> {
        let ids: Vec<u32> = (0..self.tokens).map(token_id).collect();
        let pages = self.table(0);
        let (mut logits, mut watch) = (Logits::new(), Stopwatch::start());
        for (i, part) in ids.chunks(chunk).enumerate() {
            let batch = [SequenceChunk {
                slot: SlotId::new(0),
                pages: &pages,
                start: (i * chunk) as u32,
                tokens: part,
                before: None,
                logits: LogitsWanted::Last,
            }];
            watch.forward(&mut self.model, &mut self.arena, &batch, &mut logits)?;
        }
        Ok(watch.times)
    }

    /// Pages of a request of a decode batch: first those that all share, the prompt's, then its own,
    /// which are copies of the prompt's.
    fn table(&self, request: u32) -> Vec<PageId> {
        let shared = self.blocks - self.own;
        let own = shared + request * self.own..shared + (request + 1) * self.own;
        (0..shared).chain(own).map(PageId::new).collect()
    }

    /// Fills the requests' own pages.
    fn copy_pages(&mut self) {
        let regions = self.geometry.layout().page.regions().len();
        for request in 1..self.requests {
            let pages = self.table(0).into_iter().zip(self.table(request));
            for (from, to) in pages.filter(|(from, to)| from != to) {
                for region in 0..regions {
                    let bytes = self.arena.page(region, from).to_vec();
                    self.arena.page_mut(region, to).copy_from_slice(&bytes);
                }
            }
        }
    }

    /// Steps of `batch` requests behind the prompt.
    fn decode(&mut self, batch: u32) -> Result<Decode> {
        for slot in 1..batch {
            self.arena.move_slot(SlotId::new(0), SlotId::new(slot));
        }
        let tables: Vec<Vec<PageId>> = (0..batch).map(|slot| self.table(slot)).collect();
        // Each request goes its own way, to experts of its own.
        let steps = WARM_STEPS + DECODE_STEPS;
        let ids: Vec<u32> = (0..steps * batch).map(token_id).collect();
        let (mut logits, mut watch) = (Logits::new(), Stopwatch::start());
        for step in 0..steps {
            if step == WARM_STEPS {
                watch = Stopwatch::start();
            }
            let pieces: Vec<SequenceChunk<'_>> = (0..batch)
                .map(|slot| SequenceChunk {
                    slot: SlotId::new(slot),
                    pages: &tables[slot as usize],
                    start: self.tokens + step,
                    tokens: &ids[(step * batch + slot) as usize..][..1],
                    before: None,
                    logits: LogitsWanted::Last,
                })
                .collect();
            watch.forward(&mut self.model, &mut self.arena, &pieces, &mut logits)?;
        }
        Ok(Decode { batch, times: watch.times.divided_by(DECODE_STEPS) })
    }
}

impl Row {
    fn prefill_rate(&self) -> f64 {
        f64::from(self.tokens) / self.prefill.seconds()
    }

    /// Share of the products' rate that the prefill reaches.
    fn prefill_share(&self) -> f64 {
        let flops = forward_flops(&ModelConfig::demo(), 0, self.tokens) as f64;
        flops / self.prefill.seconds() / self.product_rate
    }

    fn decode_share(&self, decode: &Decode) -> f64 {
        let flops = forward_flops(&ModelConfig::demo(), self.tokens, 1) * u64::from(decode.batch);
        flops as f64 / decode.times.seconds() / self.product_rate
    }
}

impl Decode {
    fn rate(&self) -> f64 {
        f64::from(self.batch) / self.times.seconds()
    }
}

fn weights_name(weights: WeightFormat) -> &'static str {
    match weights {
        WeightFormat::F32 => "f32",
        WeightFormat::Bf16 => "bf16",
        WeightFormat::Published => "published",
    }
}

fn to_json(row: &Row) -> Value {
    let decode = |decode: &Decode| {
        json!({
            "batch": decode.batch,
            "tokens_per_s": decode.rate(),
            "share_of_matrix_rate": row.decode_share(decode),
            "phase_shares": decode.times.shares(),
        })
    };
    json!({
        "weights": weights_name(row.weights),
        "kv": row.kv.name(),
        "indexer": row.indexer.name(),
        "tokens": row.tokens,
        "matrix_gflops": row.product_rate / 1e9,
        "prefill_tokens_per_s": row.prefill_rate(),
        "prefill_share_of_matrix_rate": row.prefill_share(),
        "prefill_phase_shares": row.prefill.shares(),
        "decode": row.decode.iter().map(decode).collect::<Vec<_>>(),
    })
}

fn summary(row: &Row) -> String {
    format!(
        "{} weights, {}/{} rows, {} tokens: {:.0} tokens/s",
        weights_name(row.weights),
        row.kv.name(),
        row.indexer.name(),
        row.tokens,
        row.prefill_rate(),
    )
}

fn to_table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header([
        "weights",
        "rows",
        "tokens",
        "prefill/s",
        "share",
        "decode/s by batch",
        "time",
    ]);
    for row in rows {
        let decode: Vec<String> =
            row.decode.iter().map(|d| format!("{}: {:.0}", d.batch, d.rate())).collect();
        let share = |(name, share): (&'static str, f64)| format!("{name} {:.0} %", 100.0 * share);
        let parts: Vec<String> = row.prefill.shares().into_iter().map(share).collect();
        table.add_row([
            weights_name(row.weights).to_owned(),
            format!("{}/{}", row.kv.name(), row.indexer.name()),
            row.tokens.to_string(),
            format!("{:.0}", row.prefill_rate()),
            format!("{:.0} %", 100.0 * row.prefill_share()),
            decode.join(", "),
            parts.join(", "),
        ]);
    }
    table.to_string()
}
