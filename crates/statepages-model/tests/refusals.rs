//! What a model refuses, and which logits it gives.

mod harness;

use std::num::NonZeroUsize;
use std::sync::Arc;

use harness::{PAGES, Rig, Rows, SLOTS, geometry, pages, small_config, tokens};
use statepages_copy::HostArena;
use statepages_model::{
    ForwardError, Isa, Logits, LogitsWanted, Model, ModelError, RunOptions, SequenceChunk,
    TensorSource, WeightError, Weights,
};
use statepages_page::{PageId, Pages, SlotId};

const OPTIONS: RunOptions = RunOptions { isa: Isa::Auto, threads: NonZeroUsize::MIN };

fn weights() -> Arc<Weights> {
    Arc::new(Weights::seeded(&small_config(), 3).expect("weights"))
}

fn chunk<'a>(tokens: &'a [u32], pages: &'a [PageId]) -> SequenceChunk<'a> {
    SequenceChunk {
        slot: SlotId::new(1),
        pages,
        start: 0,
        tokens,
        before: None,
        logits: LogitsWanted::Last,
    }
}

#[test]
fn unsound_batches_are_named_and_write_nothing() {
    let mut rig = Rig::new(&weights(), Rows::F32, Isa::Auto, 1);
    rig.fill([0xab; 4]);
    let (table, many) = (pages(0, 1, 2), vec![1; 257]);
    let outside = [PageId::new(PAGES)];
    let good = chunk(&[1, 2], &table);
    let end = u64::from(u32::MAX) + 1;
    let max = small_config().max_position_embeddings;
    for (bad, error) in [
        (chunk(&[], &table), ForwardError::Empty { sequence: 1 }),
        (chunk(&[1, 40], &table), ForwardError::Token { sequence: 1, got: 40, vocab: 40 }),
        (chunk(&many, &table[..1]), ForwardError::Pages { sequence: 1, expected: 2, got: 1 }),
        (chunk(&[1], &outside), ForwardError::OutsideArena { sequence: 1 }),
        (
            SequenceChunk { slot: SlotId::new(SLOTS), ..good },
            ForwardError::OutsideArena { sequence: 1 },
        ),
        (
            SequenceChunk { start: u32::MAX - 1, ..good },
            ForwardError::Position { sequence: 1, got: end, max },
        ),
        (
            SequenceChunk { slot: SlotId::new(2), ..good },
            ForwardError::SharedSlot { slot: SlotId::new(2) },
        ),
    ] {
        let first = SequenceChunk { slot: SlotId::new(2), pages: &table[1..], ..good };
        let got = rig.model.forward(&mut rig.arena, &[first, bad], &mut Logits::new());
        assert_eq!(got, Err(error));
        for slot in [1, 2].map(SlotId::new) {
            assert!(rig.arena.slot(0, slot).iter().all(|&byte| byte == 0xab));
        }
    }
}

#[test]
fn wanted_logits_are_the_rows_of_all() {
    let config = small_config();
    let (weights, layout) = (weights(), geometry(&config, Rows::Bf16, 0));
    let ids = tokens(1, 60, config.vocab_size);
    let tables = [pages(0, 1, 1), pages(5, 1, 1), pages(9, 1, 1)];
    let logits = |wanted: [LogitsWanted; 3]| {
        let mut model = Model::new(weights.clone(), &layout, OPTIONS).expect("a model");
        let mut arena = HostArena::new(layout.layout(), Pages::new(PAGES), SLOTS).expect("memory");
        let batch: Vec<SequenceChunk<'_>> = (0..3u32)
            .map(|i| SequenceChunk {
                slot: SlotId::new(i),
                logits: wanted[i as usize],
                ..chunk(&ids[i as usize * 20..][..20], &tables[i as usize])
            })
            .collect();
        let mut out = Logits::new();
        model.forward(&mut arena, &batch, &mut out).expect("a sound batch");
        out
    };
    let all = logits([LogitsWanted::All; 3]);
    let some = logits([LogitsWanted::Last, LogitsWanted::None, LogitsWanted::All]);
    assert_eq!(some.last(0), all.last(0));
    assert_eq!(some.sequence(0).len(), all.vocab());
    assert_eq!(some.last(1), None);
    assert_eq!(some.sequence(2), all.sequence(2));
    assert_eq!(all.sequence(1).len(), 20 * all.vocab());
    assert_ne!(all.last(0), all.last(1));
}

#[test]
fn models_that_cannot_be() {
    let config = small_config();
    let mut other = config.clone();
    other.cache.head_dim = 48;
    let got = Model::new(weights(), &geometry(&other, Rows::F32, 0), OPTIONS);
    assert_eq!(got.err(), Some(ModelError::Geometry));
}

/// Gives zeros, but for one tensor.
struct Spoiled(&'static str);

impl TensorSource for Spoiled {
    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        let fill = if name == self.0 { f32::INFINITY } else { 0.0 };
        Ok(vec![fill; shape.iter().product()])
    }

    fn ids(&mut self, name: &str, shape: &[usize], below: u32) -> Result<Vec<u32>, WeightError> {
        let count = shape.iter().product::<usize>() as u32;
        let each = shape[1] as u32;
        Ok((0..count).map(|i| if name == self.0 { below } else { i % each }).collect())
    }
}

#[test]
fn weight_faults_name_the_tensor() {
    for (name, message) in [
        ("layers.1.attn.indexer.wq_b.weight", "element 0: expected a finite number, got inf"),
        ("layers.0.ffn.gate.tid2eid", "element 0: expected an id below 5, got 5"),
        ("layers.3.attn.compressor.ape", "element 0: expected a finite number, got inf"),
    ] {
        let error = Weights::load(&small_config(), &mut Spoiled(name)).err().expect("refused");
        assert_eq!(error.to_string(), format!("tensor {name}: {message}"));
    }
    let mut config = small_config();
    config.hidden_size = 33;
    let error = Weights::load(&config, &mut Spoiled("")).err().expect("refused");
    assert_eq!(error.to_string(), "hidden_size: expected a multiple of 16, got 33");
}
