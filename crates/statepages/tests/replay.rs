//! `statepages replay`, run as a user runs it, on prompts that the test writes.

mod command;

use std::fs;

use serde_json::Value;

use crate::command::{json, misused, refused, statepages, value};

/// A cycle of prompts that share nothing: least recently used keeps all or nothing, and the figures
/// of a run add up.
#[test]
fn a_cycle_in_a_pool_that_holds_it_and_in_one_that_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("plot.svg");
    let report = json(&[
        "replay",
        "--workload",
        "distinct",
        "--prompts",
        "40",
        "--prompt-tokens",
        "2100",
        "--output-tokens",
        "5",
        "--max-seqs",
        "4",
        "--policy",
        "lru,statepages,opt",
        "--pages",
        "300,120%",
        "--plot",
        svg.to_str().unwrap(),
        "--json",
    ]);
    // 2,100 tokens are eight blocks, whose end is the anchor, and a live image is four pages.
    assert_eq!(report["units_per_checkpoint"], 4);
    assert_eq!(report["working_set_pages"], 40 * (8 + 4));
    let run = |policy: &str, pages: u64| {
        let runs = report["runs"].as_array().unwrap().iter();
        let mut runs = runs.filter(|run| run["policy"] == policy && run["pages"] == pages);
        runs.next().expect("each policy runs on each pool")["rounds"].clone()
    };
    let roomy = run("lru", 576);
    assert_eq!(roomy[0]["realised_tokens"], 0);
    assert_eq!(roomy[0]["extra_prefill_chunks"], 40);
    assert_eq!(roomy[0]["images_written"], 40);
    assert_eq!(roomy[0]["lost"]["no_kv"], 40 * 2_048);
    assert_eq!(roomy[1]["realised_tokens"], 40 * 2_048);
    assert_eq!(roomy[1]["images_read"]["anchor"], 40);
    assert_eq!(roomy[1]["images_written"], 0);
    assert_eq!(run("lru", 300)[1]["realised_tokens"], 0);
    for pages in [300, 576] {
        let realised = run("statepages", pages)[1]["realised_tokens"].as_u64().unwrap();
        let most = run("opt", pages)[1]["realised_tokens_at_most"].as_u64().unwrap();
        assert!(realised > 0 && realised <= most, "{realised} of {most} on {pages} pages");
    }
    assert!(fs::read_to_string(&svg).unwrap().starts_with("<svg"));
}

#[test]
fn prompts_that_the_pool_cannot_hold_are_left_out_and_counted() {
    let small = ["replay", "--workload", "distinct", "--prompts", "7", "--prompt-tokens", "2100"];
    let output = statepages(&[&small[..], &["--pages", "6", "--rounds", "1", "--json"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("on 6 pages, distinct round 1: 7 of 7 prompts"), "{errors}");
    let report = value(&output);
    let round = &report["runs"][0]["rounds"][0];
    assert_eq!((&round["too_long"], &round["requests"]), (&7.into(), &0.into()));
    assert_eq!((&round["full_tokens"], &round["batches"]), (&0.into(), &0.into()));
    misused(&[&small[..], &["--pages", "3"]].concat(), &["--pages 3", "4 units", "got 3"]);
}

#[test]
fn prompts_of_a_file_keep_their_sessions_times_and_replies() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompts.jsonl");
    let ids = |from: u32, count: u32| (from..from + count).collect::<Vec<u32>>();
    let first = ids(0, 600);
    // The second turn holds the first one's reply, which reaches beyond a block's end.
    let second = ids(0, 1_100);
    let lines = [
        serde_json::json!({"prompt": first, "output": ids(600, 300), "session": "a", "arrival_ms": 0}),
        serde_json::json!({"prompt": second, "output_tokens": 2, "session": "a", "arrival_ms": 1}),
        serde_json::json!({"prompt": ids(9_000, 700), "arrival_ms": 1e4}),
    ];
    let text: Vec<String> = lines.iter().map(Value::to_string).collect();
    fs::write(&file, text.join("\n")).unwrap();
    let file = file.to_str().unwrap();
    let base = ["replay", "--workload", "jsonl", "--file", file, "--rounds", "1", "--json"];
    for time in ["trace", "concurrency"] {
        let report = json(&[&base[..], &["--time", time, "--policy", "lru"]].concat());
        let round = &report["runs"][0]["rounds"][0];
        assert_eq!(round["requests"], 3);
        assert_eq!(round["full_tokens"], 600 + 1_100 + 700);
        // 600 and 299 computed tokens are three blocks; state was kept at the first prompt's anchor.
        assert_eq!(round["kv_hit_tokens"], 768, "{time}");
        assert_eq!(round["realised_tokens"], 512, "{time}");
        assert_eq!(round["lost_to_boundary"], 256, "{time}");
    }
    let bad = folder.path().join("bad.jsonl");
    for (line, wanted) in [
        ("{\"prompt\": [1], \"oops\": 2}", "oops"),
        ("{\"prompt\": {\"ids\": [1]}}", "prompt: expected text or a list of token ids"),
        ("{\"prompt\": [1], \"arrival_ms\": \"soon\"}", "arrival_ms: invalid type"),
        ("{\"prompt\": [1]} trailing", "trailing"),
    ] {
        fs::write(&bad, line).unwrap();
        let args = ["replay", "--workload", "jsonl", "--file", bad.to_str().unwrap()];
        refused(&args, &["bad.jsonl:1", wanted]);
    }
    fs::write(&bad, "\n{\"prompt\": \"text\"}").unwrap();
    refused(
        &["replay", "--workload", "jsonl", "--file", bad.to_str().unwrap()],
        &["bad.jsonl:2", "prompt", "tokenizer"],
    );
    fs::write(&bad, "\n\n").unwrap();
    refused(
        &["replay", "--workload", "jsonl", "--file", bad.to_str().unwrap()],
        &["an empty file"],
    );
    misused(
        &["replay", "--workload", "distinct", "--prompt-tokens", "1000000000"],
        &["--prompt-tokens"],
    );
    misused(&["replay", "--workload", "jsonl"], &["--file"]);
    misused(&["replay", "--workload", "gsm8k64"], &["--data", "gsm8k"]);
    misused(
        &["replay", "--workload", "distinct", "--pages", "0"],
        &["--pages", "4194304", "got 0"],
    );
    refused(
        &["replay", "--workload", "distinct", "--prompts", "9", "--time", "trace"],
        &["prompt 0 of distinct", "arrival"],
    );
}
