//! Writes what `tools/make_published_fixtures.py` reads: models in their published form, prompts,
//! and the cached rows of our forward in fp8 and fp4.
//!
//! ```text
//! NAME/{config.json, *.safetensors}   the model
//! NAME/ids.bin                        u32 token ids
//! NAME/rows_FORMAT.bin                for every chunk of 128 tokens, for every layer: window rows of
//!                                     the chunk, entries that it completes, their indexer rows
//! ```

#[path = "../tests/cases/mod.rs"]
mod cases;

use std::path::PathBuf;
use std::sync::Arc;

use cases::{FORMATS, Run, cases};
use statepages_page::{SlotId, Tokens};
use statepages_weights::Published;

/// Tokens of a chunk: as many as the shortest window ring holds.
const CHUNK: usize = 128;

fn main() {
    let out = PathBuf::from(std::env::args().nth(1).expect("usage: oracle_inputs DIRECTORY"));
    for case in cases() {
        let directory = out.join(case.name);
        std::fs::create_dir_all(&directory).expect("a writable directory");
        case.write(&directory);
        let ids = case.ids();
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        std::fs::write(directory.join("ids.bin"), bytes).expect("a writable directory");
        let published = Published::open(&directory, None).expect("what was just written");
        let weights = Arc::new(published.load().expect("what was just written"));
        for (name, kv, indexer) in FORMATS.into_iter().skip(1) {
            let mut run = Run::new(weights.clone(), kv, indexer);
            let mut rows = Vec::new();
            for start in (0..ids.len()).step_by(CHUNK) {
                let end = ids.len().min(start + CHUNK);
                run.chunk(None, &ids, start, end);
                dump(&run, &case.config.cache.compress_ratios, start as u32..end as u32, &mut rows);
            }
            std::fs::write(directory.join(format!("rows_{name}.bin")), rows).expect("writable");
        }
    }
}

fn dump(run: &Run, ratios: &[u32], chunk: std::ops::Range<u32>, out: &mut Vec<u8>) {
    let (geometry, arena) = (&run.geometry, &run.arena);
    let trunk = geometry.config().num_hidden_layers as usize;
    for (&layer, &ratio) in geometry.layers().iter().zip(ratios).take(trunk) {
        for position in chunk.clone() {
            for plane in 0..geometry.planes() {
                let at = geometry.window_row(layer, Tokens::new(position), plane);
                out.extend_from_slice(&arena.slot(at.plane, SlotId::new(0))[at.bytes]);
            }
        }
        if ratio == 0 {
            continue;
        }
        let entries = chunk.start / ratio..chunk.end / ratio;
        let mut page = |at: statepages_geometry::PageBytes| {
            out.extend_from_slice(&arena.page(at.region, run.pages[at.block])[at.bytes]);
        };
        for entry in entries.clone() {
            (0..geometry.planes()).for_each(|p| page(geometry.compressed_row(layer, entry, p)));
        }
        for entry in entries.filter(|_| ratio == 4) {
            let row = geometry.indexer_row(layer, entry);
            page(row.data);
            page(row.scales.expect("fp8 and fp4 rows have scales"));
        }
    }
}
