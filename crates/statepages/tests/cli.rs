//! The command, run as a user runs it.

mod command;

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use serde_json::Value;
use statepages_geometry::{CacheOptions, Dsv4Geometry, IndexerFormat, KvFormat};
use statepages_model::ModelConfig;
use statepages_page::{BlockSize, ImageRule, Pages};
use statepages_replay::{
    Ask, Order, Pace, Phase, Policy, Prompt, Reply, Server, Trace, Watch, replay,
};
use statepages_store::LossReason;

use crate::command::{command, json, misused, refused, statepages, value};

/// Random weights on byte tokens: what must hold of any model is shown on these, too.
const SEEDED: [&str; 2] = ["--weights-seed", "20260"];

#[test]
fn a_cause_is_told_once() {
    let output = statepages(&["geometry", "--config", "no-such-folder"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(errors.matches("os error").count(), 1, "{errors}");
}

#[test]
fn sizes_beyond_the_control_plane_are_refused() {
    misused(&["bench", "store", "--units", "4294967295"], &["--units 4294967295"]);
    misused(
        &["bench", "store", "--units-per-checkpoint", "0"],
        &["--units-per-checkpoint", "0 is"],
    );
    misused(&["bench", "store", "--units", "0"], &["--units", "0 is"]);
    misused(&["bench", "store", "--units", "20"], &["--units 20", "17"]);
}

#[test]
fn the_last_seeds_are_run_and_no_others() {
    let seeds = "18446744073709551613..18446744073709551615";
    let report = json(&["sim", "--seeds", seeds, "--events", "50", "--json"]);
    assert_eq!(report["seeds"], 2);
    let last = ["sim", "--seed", "18446744073709551615", "--events", "50", "--json"];
    assert_eq!(json(&last)["seeds"], 1);
    for (range, wanted) in [("abc", "A..B"), ("3..x", "\"x\""), ("4..4", "below"), ("5..4", "5..4")]
    {
        misused(&["sim", "--seeds", range], &["--seeds", wanted]);
    }
}

/// `[page, slot, image, units, spans, tiles]` of a geometry; a zero is not looked at.
fn geometry(args: &str, expected: [u64; 6]) {
    let mut words = vec!["geometry", "--json"];
    words.extend(args.split_whitespace());
    let facts = json(&words);
    let names = [
        "page_unit_bytes",
        "slot_bytes",
        "image_bytes",
        "units_per_checkpoint",
        "spans",
        "tiles_4k",
    ];
    for (name, expected) in names.iter().zip(expected) {
        if expected > 0 {
            assert_eq!(facts[name], expected, "{name} of {args}");
        }
    }
}

#[test]
fn geometry_prints_the_published_sizes() {
    let pro = "--model v4-pro --kv fp8 --indexer fp8";
    let whole = |drafts, expected| {
        geometry(&format!("{pro} --draft-tokens {drafts} --image whole"), expected);
    };
    whole(0, [1_521_920, 25_395_200, 25_395_200, 17, 515, 6_657]);
    whole(1, [1_521_920, 26_782_720, 26_782_720, 18, 546, 7_024]);
    let carried = |drafts, expected| {
        geometry(&format!("{pro} --draft-tokens {drafts} --image carried"), expected);
    };
    carried(0, [1_521_920, 25_395_200, 7_536_640, 5, 154, 1_975]);
    carried(1, [1_521_920, 26_782_720, 7_883_520, 6, 281, 2_177]);
    for drafts in [0, 1, 3, 5] {
        geometry(&format!("{pro} --draft-tokens {drafts}"), [1_521_920, 0, 5_693_440, 4, 0, 0]);
    }
    let dspark = "--model v4-flash-dspark --kv bf16 --indexer fp8 --draft-tokens 5 --image";
    geometry(&format!("{dspark} whole"), [1_594_624, 21_184_512, 21_184_512, 14, 0, 0]);
    geometry(&format!("{dspark} carried"), [1_594_624, 21_184_512, 9_060_352, 6, 151, 2_342]);
}

#[test]
fn geometry_says_what_fits() {
    let args =
        ["geometry", "--model", "v4-pro", "--memory", "80GiB", "--max-seqs", "256", "--json"];
    let facts = json(&args);
    let (pages, units) = (52_169, 4);
    assert_eq!(facts["pages"], pages);
    assert_eq!(facts["slots"], 256);
    assert_eq!(facts["images"], pages / units);
    assert_eq!(facts["tokens"], pages * 256);
    let table = statepages(&args[..7]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("80GiB") || table.contains("73.94 GiB"), "{table}");
}

#[test]
fn bad_flags_are_named() {
    misused(&["geometry"], &["--model"]);
    misused(&["geometry", "--model", "v5"], &["v5", "v4-pro"]);
    misused(
        &["geometry", "--model", "v4-pro", "--block-size", "100"],
        &["compress_ratios", "128", "100"],
    );
    misused(&["geometry", "--model", "v4-pro", "--block-size", "0"], &["--block-size", "0 is"]);
    misused(
        &["geometry", "--model", "v4-pro", "--memory", "lots", "--max-seqs", "1"],
        &["--memory", "lots"],
    );
    misused(
        &["geometry", "--model", "v4-pro", "--memory", "1GiB", "--max-seqs", "256"],
        &["memory", "25395200"],
    );
    refused(&["geometry", "--config", "no/such/file.json"], &["--config", "no/such/file.json"]);
    misused(&["demo", "--requests", "4"], &["--requests", "multiple of 3", "4"]);
    misused(&["demo", "--requests", "18446744073709551615"], &["--requests", "30000"]);
    misused(&["demo", "--max-seqs", "4000000000"], &["--max-seqs", "4096"]);
    misused(&["demo", "--pages", "4000000000"], &["--pages", "16777216"]);
    misused(&["demo", "--threads", "5000"], &["--threads", "256"]);
    misused(&["demo", "--max-tokens", "0"], &["--max-tokens"]);
    misused(
        &["demo", "--state-checkpoint-interval-tokens", "-7"],
        &["--state-checkpoint-interval-tokens", "-7"],
    );
    misused(
        &["demo", "--state-checkpoint-interval-tokens", "100"],
        &["--state-checkpoint-interval-tokens", "256", "100"],
    );
    misused(&["demo", "--max-seqs", "0"], &["--max-seqs", "0"]);
    misused(&["demo", "--pages", "3"], &["pages", "3"]);
    misused(&["demo", "--max-batched-tokens", "2"], &["--max-batched-tokens", "2"]);
    refused(&["demo", "--prompts", "no/such/file"], &["--prompts", "no/such/file"]);
    refused(&["demo", "--replay", "no/such/file"], &["--replay", "no/such/file"]);
    refused(&["demo", "--record", "no/such/file"], &["--record", "no/such/file"]);
    refused(&["demo", "--metrics-out", "no/such/file"], &["--metrics-out", "no/such/file"]);
    misused(&["generate", "--prompt", "x", "--temperature", "NaN"], &["temperature", "NaN"]);
    misused(&["generate", "--prompt", "x", "--top-p", "1.5"], &["--top-p", "top_p", "1.5"]);
    misused(&["generate", "--prompt", "x", "--max-tokens", "0"], &["--max-tokens", "0"]);
    misused(&["generate", "--prompt", "x", "--temperature", "-1"], &["temperature", "-1"]);
    refused(&["generate", "--prompt-file", "/dev/zero"], &["--prompt-file", "524288"]);
    misused(&["demo", "--weights-seed", "1", "--model", "x"], &["--weights-seed", "--model"]);
    refused(&["generate", "--prompt", "x", "--model", "no/such"], &["--model", "no/such"]);
    misused(&["generate", "--prompt", ""], &["prompt"]);
    refused(&["generate"], &["standard input is empty"]);
    refused(&["cold-arm"], &["standard input holds no job"]);
}

#[test]
fn generate_repeats_itself_and_obeys_its_seed() {
    let run = |extra: &[&str]| {
        let mut args =
            vec!["generate", "--prompt", "A state is worth", "--max-tokens", "12", "--json"];
        args.extend(SEEDED);
        args.extend(extra);
        json(&args)
    };
    let greedy = run(&[]);
    assert_eq!(greedy["token_ids"], run(&["--threads", "1"])["token_ids"]);
    assert_eq!(greedy["token_ids"], run(&["--temperature", "1", "--top-k", "1"])["token_ids"]);
    assert_eq!(greedy["prompt_tokens"], 16);
    assert_eq!(greedy["finish_reason"], "length");
    let hot = |seed| run(&["--temperature", "1.5", "--seed", seed])["token_ids"].clone();
    assert_eq!(hot("1"), hot("1"));
    assert_ne!(hot("1"), hot("2"));
}

#[test]
fn generate_reads_standard_input_and_stops_at_a_text() {
    let mut child = command()
        .args(["generate", "--max-tokens", "8", "--json"])
        .args(SEEDED)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"piped text").unwrap();
    let object = value(&child.wait_with_output().unwrap());
    let ids: Vec<u64> =
        object["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    assert_eq!(ids.len(), 8);
    // The first id that is an ASCII character can be written as a stop text.
    if let Some(at) = ids.iter().position(|&id| id < 128) {
        let stop = char::from(ids[at] as u8).to_string();
        let args =
            ["generate", "--prompt", "piped text", "--max-tokens", "8", "--json", "--stop", &stop];
        let stopped = json(&[&args[..], &SEEDED].concat());
        assert_eq!(stopped["token_ids"].as_array().unwrap().len(), at + 1);
        assert_eq!(stopped["finish_reason"], "stop");
    }
}

/// One small demo gives everything that the next ones compare with: each costs half a minute.
#[test]
fn the_demo_resumes_records_and_replays() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (record, metrics) = (path("record.jsonl"), path("metrics.txt"));
    let small = ["demo", "--requests", "3", "--json", SEEDED[0], SEEDED[1]];
    let demo = json(&[&small[..], &["--record", &record, "--metrics-out", &metrics]].concat());

    assert_eq!(demo["requests"], 6, "alone and in company");
    assert_eq!(demo["outputs_identical"], 6);
    assert_eq!(demo["requests_resumed"], 6);
    assert_eq!(demo["requests_short"], 0);
    assert_eq!(demo["ok"], true);
    let (cold, resumed) = (&demo["rounds"][0], &demo["rounds"][1]);
    assert_eq!(cold["realised_tokens"], 0);
    assert_eq!(cold["computed_tokens"], cold["prompt_tokens"]);
    assert!(resumed["realised_tokens"].as_u64().unwrap() > 3 * 2_000);
    assert_eq!(resumed["realised_tokens"], resumed["resumable_tokens"]);
    assert_eq!(demo["concurrent"][1]["outputs_identical"], 3);
    for round in [cold, resumed] {
        let sum = |name: &str| round[name].as_u64().unwrap();
        assert_eq!(sum("computed_tokens") + sum("realised_tokens"), sum("prompt_tokens"));
        let lost = round["lost_tokens"].as_object().unwrap().values();
        let lost: u64 = lost.map(|tokens| tokens.as_u64().unwrap()).sum();
        assert_eq!(lost, sum("computed_tokens"), "every computed token has a reason");
    }

    let text = fs::read_to_string(&metrics).unwrap();
    let documented = include_str!("../../../docs/metrics.md");
    for line in text.lines().filter(|line| line.starts_with("# TYPE ")) {
        let name = line.split(' ').nth(2).unwrap();
        let exposed = [name.to_owned(), format!("{name}_total")];
        assert!(exposed.iter().any(|n| documented.contains(&format!("`{n}`"))), "{name}");
    }
    for name in documented.split('`').filter(|word| word.starts_with("statepages_")) {
        assert!(text.contains(name), "{name} is documented and not written");
    }
    let lines: Vec<Value> = fs::read_to_string(format!("{metrics}.jsonl"))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let served = |round: &Value| round["requests"].as_u64().unwrap();
    let all =
        demo["rounds"].as_array().unwrap().iter().chain(demo["concurrent"].as_array().unwrap());
    assert_eq!(lines.len() as u64, all.map(served).sum::<u64>());
    for field in lines[0].as_object().unwrap().keys() {
        assert!(documented.contains(&format!("`{field}`")), "{field} is not documented");
    }

    let recorded = fs::read_to_string(&record).unwrap();
    the_laboratory_counts_like_the_demo(&recorded, &demo);
    let alone: Vec<_> = recorded.lines().filter(|line| !line.contains("_concurrent")).collect();
    fs::write(&record, alone.join("\n")).unwrap();
    let replay = json(&[&["demo", "--json", "--replay", &record][..], &SEEDED].concat());
    assert_eq!(replay["requests"], 7);
    assert_eq!(replay["outputs_identical"], 7);
    for (round, again) in [cold, resumed].into_iter().zip(replay["rounds"].as_array().unwrap()) {
        assert_eq!(round["prompts_sha256"], again["prompts_sha256"]);
        assert_eq!(round["outputs_sha256"], again["outputs_sha256"]);
    }

    // Flags that name one file twice are refused before anything is written.
    for (flag, other) in [("--record", "--replay"), ("--metrics-out", "--replay")] {
        misused(&["demo", other, &record, flag, &record], &[flag, other]);
    }
    let twin = path("record");
    misused(&["demo", "--replay", &record, "--metrics-out", &twin], &["--metrics-out", "--replay"]);
    refused(&["demo", "--replay", "no/such/file", "--record", &metrics], &["no/such/file"]);
    assert!(!fs::read_to_string(&metrics).unwrap().is_empty(), "an earlier file is left alone");
    assert_eq!(fs::read_to_string(&record).unwrap().lines().count(), 7);
    refused(
        &["demo", "--replay", &record, "--weights-seed", "1"],
        &["--weights-seed", "demo-20260-bf16"],
    );
}

/// The demo's prompts and outputs, replayed with nothing computed on a server of the demo's sizes and
/// rules: round by round the same tokens are found and resumed, and checkpoints have the same fates.
fn the_laboratory_counts_like_the_demo(recorded: &str, demo: &Value) {
    let ids = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap() };
    let mut traces: Vec<(Trace, Vec<(u64, Ask)>)> = Vec::new();
    for line in recorded.lines() {
        let entry: Value = serde_json::from_str(line).unwrap();
        let name = entry["round"].as_str().unwrap();
        if traces.last().is_none_or(|(trace, _)| trace.name != name) {
            traces.push((Trace { name: name.to_owned(), asks: Vec::new() }, Vec::new()));
        }
        let ask = Ask {
            prompt: Prompt::Ids(ids(&entry["prompt"]).into()),
            reply: Reply::Ids(ids(&entry["output"]).into()),
            arrival: None,
            session: None,
        };
        traces.last_mut().unwrap().1.push((entry["request"].as_u64().unwrap(), ask));
    }
    // Requests in company are recorded as they end, and were sent by number.
    for (trace, asks) in &mut traces {
        asks.sort_by_key(|(number, _)| *number);
        trace.asks.extend(asks.drain(..).map(|(_, ask)| ask));
    }
    let together = |name: &str| name.ends_with("_concurrent");
    let phases: Vec<Phase<'_>> = traces
        .iter()
        .map(|(trace, _)| {
            let most = if together(&trace.name) { u32::MAX } else { 1 };
            Phase { trace, rounds: 1, pace: Pace::Concurrency(most) }
        })
        .collect();
    let block = BlockSize::new(256).unwrap();
    let options = CacheOptions {
        kv: KvFormat::Bf16,
        indexer: IndexerFormat::Bf16,
        draft_tokens: 0,
        block,
        dcp_world_size: 1,
        image: ImageRule::Live,
    };
    let geometry = Dsv4Geometry::new(&ModelConfig::demo().cache, &options).unwrap();
    let server = Server {
        layout: geometry.layout().clone(),
        block,
        pages: Pages::new(2_048),
        seqs: 8,
        batched_tokens: 1_024,
        policy: Policy::Statepages,
        interval: None,
        passes: None,
    };
    let run = replay(&server, &phases, Order::File, 0, &Watch::QUIET).unwrap();

    let rounds = ["rounds", "concurrent"].map(|part| demo[part].as_array().unwrap().iter());
    let rounds: Vec<&Value> = rounds.into_iter().flatten().collect();
    assert_eq!(rounds.len(), run.rounds.len());
    for (wanted, round) in rounds.into_iter().zip(&run.rounds) {
        assert_eq!(wanted["name"], round.workload);
        assert_eq!(wanted["prompt_tokens"], round.full_tokens);
        assert_eq!(wanted["kv_hit_tokens"], round.kv_hit_tokens, "{}", round.workload);
        assert_eq!(wanted["realised_tokens"], round.realised_tokens, "{}", round.workload);
        for reason in LossReason::ALL {
            assert_eq!(wanted["lost_tokens"][reason.name()], round.lost(reason), "{reason:?}");
        }
    }
    let fates = run.counters.fates();
    for (name, fate) in [
        ("kept", fates.kept),
        ("dropped", fates.dropped),
        ("evicted", fates.evicted),
        ("orphaned", fates.orphaned),
    ] {
        assert_eq!(demo["checkpoints"][name], fate, "{name}");
    }
}

/// Bits stay equal where the pool is too small for its checkpoints, and where nothing is kept.
#[test]
fn the_demo_holds_in_a_small_pool_and_without_checkpoints() {
    let run = |extra: &[&str]| {
        let small = ["demo", "--requests", "3", "--max-tokens", "2", "--json"];
        let small = [&small[..], &SEEDED].concat();
        let output = statepages(&[&small[..], extra].concat());
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (value(&output), errors)
    };
    let (tight, errors) = run(&["--pages", "40", "--max-seqs", "1", "--max-batched-tokens", "300"]);
    assert_eq!(tight["outputs_identical"], 6);
    assert!(tight["requests_short"].as_u64().unwrap() > 0, "a pool of 40 pages is too small");
    assert!(errors.contains("--pages"), "{errors}");
    let (off, _) = run(&["--state-checkpoint-interval-tokens", "0"]);
    assert_eq!(off["outputs_identical"], 6);
    assert_eq!((&off["requests_resumed"], &off["requests_short"]), (&0.into(), &0.into()));
    let (dense, _) = run(&["--state-checkpoint-interval-tokens", "256", "--image", "carried"]);
    assert_eq!(dense["outputs_identical"], 6);
    assert_eq!(dense["ok"], true);
}
