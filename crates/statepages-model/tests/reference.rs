//! The forward against the float64 reference of `tools/make_forward_fixtures.py`.

mod harness;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;

use harness::{Piece, Rig, Rows, pages};
use statepages_geometry::{CacheConfig, DraftLayers};
use statepages_model::{
    ChoiceAt, Choices, Isa, Logits, LogitsWanted, ModelConfig, SequenceChunk, Weights, Yarn,
};
use statepages_page::SlotId;

/// Below this margin of the reference, two correct forwards may choose otherwise.
const MARGIN: f32 = 1e-5;

struct Choice {
    ids: Vec<u32>,
    margin: f32,
}

/// A layer and a position.
type Place = (usize, u32);

struct Fixture {
    config: ModelConfig,
    seed: u64,
    tokens: Vec<u32>,
    logits: Vec<f32>,
    entries: BTreeMap<Place, Choice>,
    experts: BTreeMap<Place, Choice>,
    /// Logits of the draft layer, in the case that has them.
    draft: Vec<f32>,
}

struct Fields(BTreeMap<String, String>);

impl Fields {
    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn get<T: std::str::FromStr>(&self, name: &str) -> T {
        let value = self.0.get(name).unwrap_or_else(|| panic!("the fixture has {name}"));
        value.parse().unwrap_or_else(|_| panic!("{name} = {value}"))
    }

    fn config(&self) -> ModelConfig {
        let ratios = self.get::<String>("compress_ratios");
        let yarn = self.has("rope_scaling.factor").then(|| Yarn {
            factor: self.get("rope_scaling.factor"),
            original_max_position_embeddings: self
                .get("rope_scaling.original_max_position_embeddings"),
            beta_fast: self.get("rope_scaling.beta_fast"),
            beta_slow: self.get("rope_scaling.beta_slow"),
        });
        ModelConfig {
            cache: CacheConfig {
                num_hidden_layers: self.get("num_hidden_layers"),
                num_nextn_predict_layers: 1,
                draft_layers: DraftLayers::Mtp,
                compress_ratios: ratios.split(',').map(|r| r.parse().expect("a ratio")).collect(),
                head_dim: self.get("head_dim"),
                qk_rope_head_dim: self.get("qk_rope_head_dim"),
                index_head_dim: self.get("index_head_dim"),
                sliding_window: self.get("sliding_window"),
            },
            hidden_size: self.get("hidden_size"),
            num_attention_heads: self.get("num_attention_heads"),
            q_lora_rank: self.get("q_lora_rank"),
            o_lora_rank: self.get("o_lora_rank"),
            o_groups: self.get("o_groups"),
            index_n_heads: self.get("index_n_heads"),
            index_topk: self.get("index_topk"),
            n_routed_experts: self.get("n_routed_experts"),
            num_experts_per_tok: self.get("num_experts_per_tok"),
            moe_intermediate_size: self.get("moe_intermediate_size"),
            routed_scaling_factor: self.get("routed_scaling_factor"),
            num_hash_layers: self.get("num_hash_layers"),
            swiglu_limit: self.get("swiglu_limit"),
            hc_mult: self.get("hc_mult"),
            hc_sinkhorn_iters: self.get("hc_sinkhorn_iters"),
            hc_eps: self.get("hc_eps"),
            rms_norm_eps: self.get("rms_norm_eps"),
            rope_theta: self.get("rope_theta"),
            compress_rope_theta: self.get("compress_rope_theta"),
            rope_scaling: yarn,
            vocab_size: self.get("vocab_size"),
            max_position_embeddings: 1 << 20,
        }
    }
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

fn fixture(name: &str) -> Fixture {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/");
    let text = std::fs::read_to_string(format!("{directory}{name}.txt")).expect("a fixture");
    let data = std::fs::read(format!("{directory}{name}.bin")).expect("a fixture");
    let lines = text.lines().filter_map(|line| line.split_once(" = "));
    let fields = Fields(lines.map(|(k, v)| (k.to_owned(), v.to_owned())).collect());
    let config = fields.config();
    let tokens: usize = fields.get("tokens");
    let mut reader = Reader(&data);
    let ids = reader.words(tokens, u32::from_le_bytes);
    let logits = reader.words(tokens * config.vocab_size as usize, f32::from_le_bytes);
    let (mut entries, mut experts) = (BTreeMap::new(), BTreeMap::new());
    for (layer, &ratio) in config.trunk_ratios().iter().enumerate() {
        let positions = 0..tokens as u32;
        if ratio == 4 {
            for position in positions.clone().filter(|p| (p + 1) / 4 > config.index_topk) {
                entries.insert((layer, position), reader.choice(config.index_topk));
            }
        }
        if layer >= config.num_hash_layers as usize {
            for position in positions {
                experts.insert((layer, position), reader.choice(config.num_experts_per_tok));
            }
        }
    }
    let draft = if fields.has("draft") { logits.len() } else { 0 };
    let draft = reader.words(draft, f32::from_le_bytes);
    assert!(reader.0.is_empty(), "the fixture has nothing else");
    Fixture { seed: fields.get("seed"), config, tokens: ids, logits, entries, experts, draft }
}

/// Imposes the reference's choices and counts where the forward would have chosen otherwise.
struct Imposed<'a> {
    fixture: &'a Fixture,
    counts: Mutex<Counts>,
}

#[derive(Default, Debug)]
struct Counts {
    choices: usize,
    close: usize,
    other_where_close: usize,
    other_elsewhere: Vec<(&'static str, Place, f32)>,
}

impl Imposed<'_> {
    fn impose(&self, what: &'static str, at: ChoiceAt, own: &mut [u32]) {
        let of = if what == "entries" { &self.fixture.entries } else { &self.fixture.experts };
        let place = (at.layer, at.position);
        let choice = of.get(&place).unwrap_or_else(|| panic!("{what} at {place:?}"));
        let mut counts = self.counts.lock().expect("no test thread has panicked");
        counts.choices += 1;
        counts.close += usize::from(choice.margin <= MARGIN);
        if *own != choice.ids[..] {
            if choice.margin <= MARGIN {
                counts.other_where_close += 1;
            } else {
                counts.other_elsewhere.push((what, place, choice.margin));
            }
        }
        own.copy_from_slice(&choice.ids);
    }
}

impl Choices for Imposed<'_> {
    fn entries(&self, at: ChoiceAt, _: &[f32], chosen: &mut Vec<u32>) {
        self.impose("entries", at, chosen);
    }

    fn experts(&self, at: ChoiceAt, _: &[f32], chosen: &mut [u32]) {
        self.impose("experts", at, chosen);
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

#[test]
fn f32_rows_follow_the_reference() {
    for name in ["every_kind", "no_hash_clamped", "production_rows", "narrow_window"] {
        let fixture = fixture(name);
        let weights = Weights::seeded(&fixture.config, fixture.seed).expect("weights");
        let weights = Arc::new(weights);
        let vocab = fixture.config.vocab_size as usize;
        let n = fixture.tokens.len();
        for chunks in [vec![n], vec![1, 2, 130, 77]] {
            let mut rig = Rig::new(&weights, Rows::F32, Isa::Auto, 2);
            let imposed = Imposed { fixture: &fixture, counts: Mutex::default() };
            let table = pages(5, 7, 3);
            let (mut logits, mut start) = (Vec::new(), 0);
            for len in chunks.iter().chain(std::iter::repeat(&77)) {
                let tokens = &fixture.tokens[start..n.min(start + len)];
                if tokens.is_empty() {
                    break;
                }
                let piece = Piece { slot: 2, pages: &table, start, tokens };
                logits.append(&mut rig.chosen(&imposed, &piece));
                start += tokens.len();
            }
            let counts = imposed.counts.into_inner().expect("no test thread has panicked");
            let (all, worst) = errors(&logits, &fixture.logits, vocab);
            eprintln!(
                "{name}, {} chunks: relative L2 {all:.1e}, worst token {worst:.1e}; {} choices, \
                 {:.2} % within a margin of {MARGIN:e}, {} of those other than the reference's",
                if chunks.len() == 1 { "no" } else { "many" },
                counts.choices,
                100.0 * counts.close as f64 / counts.choices as f64,
                counts.other_where_close,
            );
            assert!(counts.other_elsewhere.is_empty(), "{name}: {:?}", counts.other_elsewhere);
            assert!(all <= 1e-5 && worst <= 1e-4, "{name}: {all:e} and {worst:e}");
        }
    }
}

#[test]
fn the_draft_layer_follows_the_reference() {
    let fixture = fixture("draft");
    let weights = Weights::seeded(&fixture.config, fixture.seed).expect("weights");
    let weights = Arc::new(weights);
    let (vocab, n) = (fixture.config.vocab_size as usize, fixture.tokens.len());
    let mut rig = Rig::new(&weights, Rows::F32, Isa::Auto, 2);
    rig.model = rig.model.drafting();
    let imposed = Imposed { fixture: &fixture, counts: Mutex::default() };
    let table = pages(5, 7, 1);
    let (mut drafts, mut out) = (Vec::new(), Logits::new());
    for start in (0..n).step_by(90) {
        let end = n.min(start + 90);
        let batch = [SequenceChunk {
            slot: SlotId::new(2),
            pages: &table,
            start: start as u32,
            tokens: &fixture.tokens[start..end],
            before: None,
            logits: LogitsWanted::All,
        }];
        let Rig { model, arena, .. } = &mut rig;
        model.forward_with(&imposed, arena, &batch, &mut out).expect("a sound batch");
        let next = [fixture.tokens[end % n]];
        model.draft(arena, &batch, &next, &mut out).expect("a sound draft");
        drafts.extend_from_slice(out.sequence(0));
    }
    let (all, worst) = errors(&drafts, &fixture.draft, vocab);
    eprintln!("draft layer: relative L2 {all:.1e}, worst token {worst:.1e}");
    assert!(all <= 1e-5 && worst <= 1e-4, "{all:e} and {worst:e}");
}
