//! Published-form weights against PyPI transformers: the fixtures of
//! `tools/make_published_fixtures.py`.

mod cases;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cases::{Case, FORMATS, Run, cases};
use sha2::{Digest as _, Sha256};
use statepages_model::{ChoiceAt, Choices, ModelConfig};
use statepages_weights::Published;

/// Below this margin of the oracle, two correct forwards may choose otherwise.
const MARGIN: f32 = 1e-5;

struct Choice {
    ids: Vec<u32>,
    margin: f32,
}

struct Fixture {
    logits: Vec<f32>,
    entries: BTreeMap<(usize, u32), Choice>,
    experts: BTreeMap<(usize, u32), Choice>,
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn words<const N: usize, T>(&mut self, n: usize, parse: fn([u8; N]) -> T) -> Vec<T> {
        let (head, rest) = self.0.split_at(n * N);
        self.0 = rest;
        head.as_chunks::<N>().0.iter().map(|word| parse(*word)).collect()
    }

    fn choice(&mut self, n: u32) -> Choice {
        let ids = self.words(n as usize, u16::from_le_bytes);
        let margin = self.words(1, f32::from_le_bytes)[0];
        Choice { ids: ids.into_iter().map(u32::from).collect(), margin }
    }
}

fn fixture(config: &ModelConfig, tokens: usize, data: &[u8]) -> Fixture {
    let mut reader = Reader(data);
    let logits = reader.words(tokens * config.vocab_size as usize, f32::from_le_bytes);
    let (mut entries, mut experts) = (BTreeMap::new(), BTreeMap::new());
    for (layer, &ratio) in config.trunk_ratios().iter().enumerate() {
        let positions = 0..tokens as u32;
        for p in positions.clone().filter(|p| ratio == 4 && (p + 1) / 4 > config.index_topk) {
            entries.insert((layer, p), reader.choice(config.index_topk));
        }
        for p in positions.filter(|_| layer >= config.num_hash_layers as usize) {
            experts.insert((layer, p), reader.choice(config.num_experts_per_tok));
        }
    }
    assert!(reader.0.is_empty(), "the fixture has nothing else");
    Fixture { logits, entries, experts }
}

/// Imposes the oracle's choices and counts those that the forward would have made otherwise.
struct Imposed<'a> {
    fixture: &'a Fixture,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    choices: usize,
    close: usize,
    other_elsewhere: usize,
}

impl Imposed<'_> {
    fn impose(&self, of: &BTreeMap<(usize, u32), Choice>, at: ChoiceAt, own: &mut [u32]) {
        let choice = &of[&(at.layer, at.position)];
        let mut counts = self.counts.lock().expect("no test thread has panicked");
        counts.choices += 1;
        if choice.margin <= MARGIN {
            counts.close += 1;
        } else if *own != choice.ids[..] {
            counts.other_elsewhere += 1;
        }
        own.copy_from_slice(&choice.ids);
    }
}

impl Choices for Imposed<'_> {
    fn entries(&self, at: ChoiceAt, _: &[f32], chosen: &mut Vec<u32>) {
        self.impose(&self.fixture.entries, at, chosen);
    }

    fn experts(&self, at: ChoiceAt, _: &[f32], chosen: &mut [u32]) {
        self.impose(&self.fixture.experts, at, chosen);
    }
}

/// Relative L2 error over everything and of the worst token.
fn errors(got: &[f32], want: &[f32], vocab: usize) -> (f64, f64) {
    let error = |got: &[f32], want: &[f32]| {
        let square = |x: f64| x * x;
        let difference = got.iter().zip(want).map(|(g, w)| square(f64::from(*g) - f64::from(*w)));
        let size = want.iter().map(|w| square(f64::from(*w)));
        (difference.sum::<f64>() / size.sum::<f64>()).sqrt()
    };
    let rows = got.chunks(vocab).zip(want.chunks(vocab));
    (error(got, want), rows.map(|(g, w)| error(g, w)).fold(0.0, f64::max))
}

/// Digest of all safetensors files of a directory, in the order of their names.
fn digest(directory: &std::path::Path) -> String {
    let files = std::fs::read_dir(directory).expect("a directory");
    let mut paths: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "safetensors"));
    paths.sort();
    let mut hash = Sha256::new();
    for path in &paths {
        hash.update(std::fs::read(path).expect("a file"));
    }
    hash.finalize().iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn check(case: &Case) {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/");
    let directory = tempfile::tempdir().expect("a directory");
    case.write(directory.path());
    let seen = std::fs::read_to_string(format!("{fixtures}{}.sha256", case.name));
    let seen = seen.expect("a fixture");
    assert_eq!(digest(directory.path()), seen.trim(), "{}: the oracle saw others", case.name);
    let published = Published::open(directory.path(), None).expect("what was written");
    assert_eq!(*published.config(), case.config);
    let weights = Arc::new(published.load().expect("what was written"));
    let (ids, vocab) = (case.ids(), case.config.vocab_size as usize);
    for (name, kv, indexer) in FORMATS {
        let data = std::fs::read(format!("{fixtures}{}_{name}.bin", case.name)).expect("a fixture");
        let fixture = fixture(&case.config, ids.len(), &data);
        for chunk in [ids.len(), 77] {
            let imposed = Imposed { fixture: &fixture, counts: Mutex::default() };
            let mut run = Run::new(weights.clone(), kv, indexer);
            let mut logits = Vec::new();
            for start in (0..ids.len()).step_by(chunk) {
                let end = ids.len().min(start + chunk);
                logits.append(&mut run.chunk(Some(&imposed), &ids, start, end));
            }
            let counts = imposed.counts.into_inner().expect("no test thread has panicked");
            let (all, worst) = errors(&logits, &fixture.logits, vocab);
            eprintln!(
                "{} with {name} rows in chunks of {chunk}: relative L2 {all:.1e}, worst token \
                 {worst:.1e}; {:.2} % of {} choices within {MARGIN:e}",
                case.name,
                100.0 * counts.close as f64 / counts.choices as f64,
                counts.choices,
            );
            assert_eq!(counts.other_elsewhere, 0, "{} {name}", case.name);
            assert!(all <= 1e-5 && worst <= 1e-4, "{} {name}: {all:e}, {worst:e}", case.name);
        }
    }
}

#[test]
fn published_weights_follow_the_oracle() {
    cases().iter().for_each(check);
}
