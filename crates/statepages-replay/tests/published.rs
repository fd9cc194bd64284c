//! The recorded GSM8K prompts: their texts and lengths, and the figures that the published system's
//! own scheduler gave on them.
//!
//! Reads the data folder named by `STATEPAGES_DATA`, or `shared/data` beside the project, and says so
//! where there is none.

use std::path::{Path, PathBuf};

use statepages_geometry::{CacheConfig, CacheOptions, Dsv4Geometry, IndexerFormat, KvFormat};
use statepages_page::{BlockSize, ImageRule, Pages};
use statepages_replay::{
    Draws, Order, Pace, Phase, Policy, RoundFigures, Server, Texts, Trace, TraceError, Watch,
    gsm8k64, replay,
};

const WATCH: Watch<'_> = Watch::QUIET;

fn data() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let folder = std::env::var_os("STATEPAGES_DATA").map_or(beside, PathBuf::from);
    let found = folder.join("gsm8k").is_dir();
    if !found {
        eprintln!("skipped: no gsm8k in {}; STATEPAGES_DATA names the folder", folder.display());
    }
    found.then_some(folder)
}

fn texts(data: &Path) -> Texts {
    Texts::load(&data.join("tokenizers/deepseek-v4-tokenizer.json")).unwrap()
}

/// Round 2 of the reference, `(realised, KV hit)` in percent.
fn reference(trace: &Trace, image: ImageRule, pages: u32) -> (RoundFigures, RoundFigures) {
    let block = BlockSize::new(256).unwrap();
    let options = CacheOptions {
        kv: KvFormat::Fp8,
        indexer: IndexerFormat::Fp8,
        draft_tokens: 0,
        block,
        dcp_world_size: 1,
        image,
    };
    let geometry = Dsv4Geometry::new(&CacheConfig::v4_pro(), &options).unwrap();
    assert_eq!(geometry.layout().page.page_bytes().get(), 1_521_920);
    let server = Server {
        layout: geometry.layout().clone(),
        block,
        pages: Pages::new(pages),
        seqs: 64,
        batched_tokens: 16_384,
        policy: Policy::Reference,
        interval: None,
        passes: None,
    };
    let phase = Phase { trace, rounds: 2, pace: Pace::Concurrency(128) };
    let run = replay(&server, &[phase], Order::File, 0, &WATCH).unwrap();
    let [one, two] = run.rounds.try_into().unwrap();
    (one, two)
}

#[test]
fn the_reference_agrees_with_the_published_system_s_scheduler() {
    let Some(data) = data() else { return };
    let texts = texts(&data);
    let trace = gsm8k64(&data.join("gsm8k"), Draws::Recorded, &texts, 100, &WATCH).unwrap();

    let lengths: Vec<usize> = trace.asks.iter().map(|ask| ask.prompt.len()).collect();
    let file = std::fs::read_to_string(data.join("gsm8k/prompt_token_lengths.json")).unwrap();
    assert_eq!(lengths, serde_json::from_str::<Vec<usize>>(&file).unwrap());
    assert_eq!(lengths.iter().sum::<usize>(), 13_801_066);
    assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&9_098), Some(&12_021)));

    for (image, pages, realised, hit, within) in [
        (ImageRule::Whole, 100_000, 78.3, 98.8, 0.2),
        (ImageRule::Whole, 70_000, 0.0, 0.0, 0.2),
        (ImageRule::Carried, 70_000, 78.3, 98.8, 0.2),
        (ImageRule::Carried, 60_000, 0.0, 0.0, 0.2),
        (ImageRule::Whole, 94_000, 62.6, 79.0, 1.0),
        (ImageRule::Whole, 92_000, 55.7, 70.3, 1.0),
    ] {
        let (first, second) = reference(&trace, image, pages);
        let (got, got_hit) = (second.realised_percent(), second.kv_hit_percent());
        let near = |a: f64, b: f64| (a - b).abs() <= within;
        assert!(near(got, realised) && near(got_hit, hit), "{pages}: {got:.2} / {got_hit:.2}");
        // About one image a prompt in the first round: that of the grid.
        assert!((1_319..=1_345).contains(&first.images_written), "{}", first.images_written);
        assert_eq!(first.full_tokens, 13_801_066);
    }
    // The published run: 74.7982 % found, 59.7751 % of all tokens resumed.
    let (_, second) = reference(&trace, ImageRule::Whole, 93_000);
    let per_hit = second.realised_percent() / second.kv_hit_percent();
    assert!((per_hit * 74.7982 - 59.7751).abs() <= 1.0, "{per_hit}");
}

#[test]
fn fresh_draws_are_other_prompts_of_the_same_kind() {
    let Some(data) = data() else { return };
    let texts = texts(&data);
    let fresh = |seed| {
        let draws = Draws::Fresh { seed };
        gsm8k64(&data.join("gsm8k"), draws, &texts, 100, &WATCH).unwrap().asks
    };
    let (one, other, again) = (fresh(1), fresh(2), fresh(1));
    assert_eq!(one.len(), 1_319);
    assert_eq!(one[5].prompt.ids(), again[5].prompt.ids());
    assert_ne!(one[5].prompt.ids(), other[5].prompt.ids());
}

#[test]
fn other_texts_than_the_recorded_are_refused() {
    let Some(data) = data() else { return };
    let folder = tempfile::tempdir().unwrap();
    for name in ["test.jsonl", "fewshot64_indices.u16le"] {
        std::fs::copy(data.join("gsm8k").join(name), folder.path().join(name)).unwrap();
    }
    let train = std::fs::read_to_string(data.join("gsm8k/train.jsonl")).unwrap();
    std::fs::write(folder.path().join("train.jsonl"), train.replacen("Natalia", "Natalie", 1))
        .unwrap();
    let error = gsm8k64(folder.path(), Draws::Recorded, &texts(&data), 100, &WATCH).unwrap_err();
    assert!(matches!(error, TraceError::Content { .. }), "{error}");
    assert!(error.to_string().contains("223ed087dd43"), "{error}");
    std::fs::write(folder.path().join("fewshot64_indices.u16le"), [0; 10]).unwrap();
    let error = gsm8k64(folder.path(), Draws::Recorded, &texts(&data), 100, &WATCH).unwrap_err();
    assert!(error.to_string().contains("168832 bytes"), "{error}");
}
