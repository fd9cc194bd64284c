//! The command on other number formats and on published weights.

mod command;

use std::fs;
use std::num::NonZeroUsize;

use serde_json::Value;
use statepages_model::{ModelConfig, SeededTensors};
use statepages_weights::{WeightForm, write_published};

use crate::command::{json, refused};

#[test]
fn the_demo_resumes_bit_for_bit_on_fp8_and_fp4_rows() {
    let args = ["demo", "--requests", "3", "--kv", "fp8", "--indexer", "fp4", "--json"];
    let results = json(&args);
    assert_eq!(results["ok"], true);
    assert_eq!(results["outputs_identical"], results["requests"]);
    let resumed = &results["rounds"][1];
    assert_eq!(resumed["resumable_tokens"], resumed["realised_tokens"]);
    assert!(resumed["realised_tokens"].as_u64() > Some(0));
    assert_eq!(resumed["correct"], resumed["questions"], "coarse rows cost no answer");
}

#[test]
fn published_weights_are_served_and_their_faults_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_str().expect("a name");
    let mut source = SeededTensors::new(20_260);
    let (config, shards) = (ModelConfig::demo(), NonZeroUsize::new(2).expect("two"));
    let mut write = |form| write_published(directory.path(), &config, &mut source, form, shards);
    let generate = |more: &[&str]| {
        let args = ["generate", "--prompt", "The page pool", "--max-tokens", "12", "--json"];
        json(&[&args[..], more].concat())["token_ids"].clone()
    };
    // The weights of a seed, written and read, give their own words.
    write(WeightForm::F32).expect("written");
    assert_eq!(generate(&["--model", path]), generate(&["--weights-seed", "20260"]));
    write(WeightForm::Published).expect("written");
    let fp8 = ["--model", path, "--kv", "fp8", "--indexer", "fp8"];
    assert_eq!(generate(&fp8), generate(&[&fp8[..], &["--threads", "3"]].concat()));

    let shard = directory.path().join("model-00002-of-00002.safetensors");
    fs::remove_file(shard).expect("the file is there");
    let args = ["generate", "--prompt", "x", "--model", path];
    refused(&args, &["--model", "00002-of-00002"]);

    let config = directory.path().join("config.json");
    let text = fs::read_to_string(&config).expect("readable");
    for (from, to, wanted) in [
        ("\"head_dim\": 512", "\"head_dim\": \"wide\"", "head_dim: invalid type: string"),
        ("\"vocab_size\"", "\"vocabulary\"", "vocab_size"),
    ] {
        assert!(text.contains(from), "{from} not in {text}");
        fs::write(&config, text.replacen(from, to, 1)).expect("writable");
        refused(&args, &["--model", "config.json", wanted]);
    }
}

/// Phases of a forward, and what is in none of them.
const PARTS: [&str; 8] =
    ["attend", "experts", "head", "outside", "pool", "project", "read", "select"];

#[test]
fn bench_forward_says_rates_and_shares() {
    rates_and_shares(None);
}

#[test]
fn bench_forward_measures_requests_that_share_no_page() {
    rates_and_shares(Some("--own-pages"));
}

fn rates_and_shares(own_pages: Option<&str>) {
    let args = "bench forward --lengths 40,300 --batches 1,3 --weights published --kv fp8 --json";
    let args: Vec<&str> = args.split_whitespace().chain(own_pages).collect();
    let table = json(&args);
    assert_eq!(table["own_pages"], own_pages.is_some());
    let rows = table["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2);
    for (row, tokens) in rows.iter().zip([40, 300]) {
        assert_eq!(row["tokens"], tokens);
        assert_eq!(row["indexer"], "fp8");
        for field in ["matrix_gflops", "prefill_tokens_per_s", "prefill_share_of_matrix_rate"] {
            assert!(row[field].as_f64() > Some(0.0), "{field}");
        }
        let decode = row["decode"].as_array().expect("batches");
        let batches: Vec<u64> = decode.iter().filter_map(|one| one["batch"].as_u64()).collect();
        assert_eq!(batches, [1, 3]);
        // Whatever else the machine does: which part is long is its affair, that all are told is ours.
        for shares in [&row["prefill_phase_shares"], &decode[0]["phase_shares"]] {
            let shares = shares.as_object().expect("shares");
            let names: Vec<&str> = shares.keys().map(String::as_str).collect();
            assert_eq!(names, PARTS);
            let sum: f64 = shares.values().filter_map(Value::as_f64).sum();
            assert!((sum - 1.0).abs() < 1e-9, "all time is in some part: {sum}");
        }
    }
}
