//! The command on dsv4-mini, the trained model that it carries: answers, and what a wrong state does to them.

mod command;

use serde_json::Value;

use crate::command::{json, statepages};

fn demo(extra: &[&str]) -> Value {
    let small = ["demo", "--requests", "9", "--max-tokens", "4", "--json"];
    json(&[&small[..], extra].concat())
}

/// Right answers to the questions of the resumed round.
fn resumed(demo: &Value, third: &str) -> u64 {
    let resumed = &demo["rounds"][1];
    assert_eq!(resumed["questions"]["all"], 9);
    assert_eq!(resumed["questions"][third], 3);
    resumed["correct"][third].as_u64().expect("a count")
}

#[test]
fn answers_are_right_cold_and_resumed() {
    let demo = demo(&[]);
    assert_eq!(demo["ok"], true);
    assert_eq!(demo["outputs_identical"], demo["requests"]);
    assert_eq!(demo["requests_resumed"], demo["requests"]);
    assert_eq!(demo["requests_short"], 0);
    let rounds = ["rounds", "concurrent"].map(|rounds| demo[rounds].as_array().expect("rounds"));
    for round in rounds.into_iter().flatten() {
        assert_eq!(round["correct"], round["questions"], "{}", round["name"]);
    }
    for third in ["window", "history", "across"] {
        assert_eq!(resumed(&demo, third), 3);
    }
}

#[test]
fn a_wrong_state_gives_wrong_answers() {
    for fault in ["skip-restore", "wrong-boundary"] {
        let demo = demo(&["--fault", fault]);
        assert_eq!((&demo["ok"], &demo["fault"]), (&true.into(), &fault.into()));
        assert_eq!(demo["outputs_identical"], 0, "{fault}: the comparison sees a wrong resume");
        assert_eq!(resumed(&demo, "window"), 0, "{fault}");
        assert!(resumed(&demo, "across") <= 1, "{fault}");
        assert_eq!(resumed(&demo, "history"), 3, "{fault}: facts lie in pages");
    }
}

#[test]
fn a_fault_that_had_nothing_to_change_is_told_from_one_that_was_not_seen() {
    let off = ["--state-checkpoint-interval-tokens", "0", "--requests", "3", "--max-tokens", "1"];
    let output = statepages(&[&["demo", "--fault", "skip-restore"][..], &off].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors.contains("nothing was resumed"), "{errors}");
}

#[test]
fn generate_answers_in_words() {
    let facts = "Ada has a quiet heron as pet. The pet of Otto is a loud mule.";
    let prompt = format!(
        "{facts} Berth two holds Otto. Ada logs amber alpha. Q: Which code did Ada log? A:"
    );
    let args = ["generate", "--prompt", &prompt, "--stop", ".", "--json"];
    let answer = json(&args);
    assert_eq!(answer["text"], "amber alpha.");
    assert_eq!(answer["finish_reason"], "stop");
    assert_eq!(answer["completion_tokens"], 3);
    // The directory of the same files, tokenizer and all, is the same model.
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/dsv4-mini");
    let again = json(&[&args[..], &["--model", directory]].concat());
    assert_eq!(answer["token_ids"], again["token_ids"]);
}

#[test]
fn the_pages_of_the_model_have_the_published_row_widths() {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/dsv4-mini/config.json");
    let facts = |image: &str| {
        let rows = ["--kv", "fp8", "--indexer", "fp8", "--image", image, "--json"];
        json(&[&["geometry", "--config", config][..], &rows].concat())
    };
    let whole = facts("whole");
    assert_eq!(whole["page_unit_bytes"], 101_376);
    assert_eq!(whole["slot_bytes"], 1_720_320);
    assert_eq!(whole["units_per_checkpoint"], 17);
    assert_eq!(facts("live")["units_per_checkpoint"], 5);
}
