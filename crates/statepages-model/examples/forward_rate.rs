//! Speed of the demo model's forward, against the speed of its own matrix products.
//!
//! `cargo run --release -p statepages-model --example forward_rate -- [TOKENS] [CHUNK] [THREADS]`

#![expect(clippy::print_stdout, reason = "the figures are its result")]

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;

use statepages_copy::HostArena;
use statepages_geometry::{BLOCK_TOKENS, CacheOptions, Dsv4Geometry, IndexerFormat, KvFormat};
use statepages_model::{
    Isa, Logits, LogitsWanted, Model, ModelConfig, RunOptions, SequenceChunk, Weights,
    forward_flops,
};
use statepages_page::{ImageRule, PageId, Pages, SlotId};

/// Products are repeated for as long as this, in seconds.
const PRODUCT_SECONDS: f64 = 0.5;
const DECODE_STEPS: usize = 64;
const DECODE_BATCH: u32 = 8;

fn main() {
    let mut args = std::env::args().skip(1);
    let mut number = |default: usize| {
        args.next().map_or(default, |arg| arg.parse().expect("a number of tokens or threads"))
    };
    let (tokens, chunk, threads) = (number(4096), number(512), number(2));
    let config = ModelConfig::demo();
    let options = CacheOptions {
        kv: KvFormat::Bf16,
        indexer: IndexerFormat::Bf16,
        draft_tokens: 0,
        block: BLOCK_TOKENS,
        dcp_world_size: 1,
        image: ImageRule::Live,
    };
    let geometry = Dsv4Geometry::new(&config.cache, &options).expect("the demo's caches");
    let weights = Arc::new(Weights::seeded(&config, 1).expect("the demo's weights"));
    let run = RunOptions { isa: Isa::Auto, threads: NonZeroUsize::new(threads).expect("threads") };
    let mut model = Model::new(weights, &geometry, run).expect("the demo's model");
    let blocks = (tokens + DECODE_STEPS).div_ceil(256) as u32;
    // Every sequence of the decode batch has the prompt's pages, and a page of its own behind.
    let pages = Pages::new(blocks + DECODE_BATCH);
    let mut arena = HostArena::new(geometry.layout(), pages, DECODE_BATCH).expect("memory");

    let product = product_rate(&mut model);
    println!("matrix products: {:.1} GFLOP/s on {threads} threads", product / 1e9);

    let ids: Vec<u32> = (0..tokens as u32).map(|i| i.wrapping_mul(2_654_435_761) >> 24).collect();
    let prompt: Vec<PageId> = (0..blocks).map(PageId::new).collect();
    let mut logits = Logits::new();
    let clock = Instant::now();
    for (i, part) in ids.chunks(chunk).enumerate() {
        let batch = [SequenceChunk {
            slot: SlotId::new(0),
            pages: &prompt,
            start: (i * chunk) as u32,
            tokens: part,
            logits: LogitsWanted::Last,
        }];
        model.forward(&mut arena, &batch, &mut logits).expect("a sound batch");
    }
    let seconds = clock.elapsed().as_secs_f64();
    let rate = forward_flops(&config, 0, tokens as u32) as f64 / seconds;
    println!(
        "prefill of {tokens} in chunks of {chunk}: {:.0} tokens/s, {:.1} GFLOP/s, {:.0} % of the \
         products'",
        tokens as f64 / seconds,
        rate / 1e9,
        100.0 * rate / product,
    );
    let tables: Vec<Vec<PageId>> = (0..DECODE_BATCH)
        .map(|slot| {
            let mut table = prompt.clone();
            table[blocks as usize - 1] = PageId::new(blocks + slot);
            table
        })
        .collect();
    for slot in 1..DECODE_BATCH {
        arena.move_slot(SlotId::new(0), SlotId::new(slot));
    }
    for batch in [1, DECODE_BATCH] {
        let clock = Instant::now();
        for step in 0..DECODE_STEPS {
            let pieces: Vec<SequenceChunk<'_>> = (0..batch)
                .map(|slot| SequenceChunk {
                    slot: SlotId::new(slot),
                    pages: &tables[slot as usize],
                    start: (tokens + step) as u32,
                    tokens: &[42],
                    logits: LogitsWanted::Last,
                })
                .collect();
            model.forward(&mut arena, &pieces, &mut logits).expect("a sound batch");
        }
        let each = clock.elapsed().as_secs_f64() / DECODE_STEPS as f64;
        println!("decode of {batch} behind {tokens}: {:.2} ms a step", 1e3 * each);
    }
}

/// Operations a second of the model's own matrix kernel on all of its threads.
fn product_rate(model: &mut Model) -> f64 {
    let clock = Instant::now();
    let mut flops = 0;
    while clock.elapsed().as_secs_f64() < PRODUCT_SECONDS {
        flops += model.run_products();
    }
    flops as f64 / clock.elapsed().as_secs_f64()
}
