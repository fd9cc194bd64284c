//! Traces of others, read from files that the tests write.

use std::path::{Path, PathBuf};

use statepages_replay::{Reply, Texts, TraceError, Watch, jsonl, lmcache, mooncake};

const WATCH: Watch<'_> = Watch::QUIET;

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// A word is an id: `a` is 1, `b` is 2, any other 0.
fn words(folder: &Path) -> Texts {
    let tokenizer = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
        "decoder": null, "model": {"type": "WordLevel", "vocab": {"?": 0, "a": 1, "b": 2},
        "unk_token": "?"}}"#;
    Texts::load(&write(folder, "tokenizer.json", tokenizer)).unwrap()
}

#[test]
fn mooncake_s_ids_become_shared_texts() {
    let folder = tempfile::tempdir().unwrap();
    let read = |text: &str| mooncake(&write(folder.path(), "trace.jsonl", text), None);
    let trace = read(
        r#"{"timestamp": 40, "input_length": 1030, "output_length": 7, "hash_ids": [0, 1, 2]}
        {"timestamp": 90, "input_length": 1024, "output_length": 0, "hash_ids": [0, 3]}"#,
    )
    .unwrap();
    let [one, two] = &trace.asks[..] else { panic!("two requests") };
    let (first, second) = (one.prompt.ids(), two.prompt.ids());
    assert_eq!((first.len(), second.len()), (1_030, 1_024));
    assert_eq!(first[..512], second[..512]);
    assert_ne!(first[512..1_024], second[512..]);
    assert_eq!((one.arrival, two.arrival), (Some(0), Some(50_000)));
    assert_eq!((one.reply.len(), two.reply.len()), (7, 1), "a token at least");

    let short = r#"{"timestamp": 0, "input_length": 1030, "output_length": 7, "hash_ids": [0, 1]}"#;
    let error = read(short).unwrap_err();
    assert!(matches!(error, TraceError::Field { field: "hash_ids", line: 1, .. }), "{error}");
    assert!(error.to_string().contains("expected 3 ids for 1030 tokens, got 2"), "{error}");
    let error = read("{\"timestamp\": 0}").unwrap_err();
    assert!(matches!(error, TraceError::Line { line: 1, .. }), "{error}");
}

#[test]
fn agent_sessions_keep_their_turns_and_interleave() {
    let folder = tempfile::tempdir().unwrap();
    let texts = words(folder.path());
    let line = |at: u64, input: &str, output: &str| {
        let (session, timestamp) = ("s", at);
        serde_json::json!({
            "timestamp": timestamp, "input": input, "output": output, "session_id": session,
        })
        .to_string()
    };
    let read = |at_once| lmcache(folder.path(), &texts, at_once, None, &WATCH);
    let error = read(2).unwrap_err();
    assert!(matches!(error, TraceError::Content { .. }), "{error}");
    // Turns stand out of order in the file, and the second session starts later.
    let late = [line(70, "b b", "a"), line(60, "b", "b")].join("\n");
    write(folder.path(), "1.jsonl", &late);
    let early = [line(10, "a", "a b"), line(20, "a a b", ""), line(30, "a a b b", "b")].join("\n");
    write(folder.path(), "2.jsonl", &early);
    let order = |at_once| -> Vec<(u32, Vec<u32>)> {
        let asks = read(at_once).unwrap().asks;
        asks.iter().map(|ask| (ask.session.unwrap(), ask.prompt.ids())).collect()
    };
    let (a, b) = (|ids: &[u32]| (0, ids.to_vec()), |ids: &[u32]| (1, ids.to_vec()));
    assert_eq!(
        order(2),
        [a(&[1]), b(&[2]), a(&[1, 1, 2]), b(&[2, 2]), a(&[1, 1, 2, 2])],
        "turn by turn"
    );
    assert_eq!(order(1)[2], a(&[1, 1, 2, 2]), "one session behind the other");
    let asks = read(1).unwrap().asks;
    assert!(matches!(&asks[0].reply, Reply::Ids(ids) if **ids == [1, 2]));
    assert_eq!(asks[1].reply.len(), 1, "a turn without a text has a token all the same");
    assert_eq!(asks[3].arrival, Some(50));
    write(folder.path(), "1.jsonl", &line(1, "", "a"));
    let error = read(1).unwrap_err();
    assert!(matches!(error, TraceError::Field { field: "input", line: 1, .. }), "{error}");
}

#[test]
fn a_file_s_texts_and_ids_mean_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let texts = words(folder.path());
    let read =
        |text: &str| jsonl(&write(folder.path(), "prompts.jsonl", text), Some(&texts), 100, &WATCH);
    let trace = read("{\"prompt\": \"a b\", \"output\": \"b\"}\n\n{\"prompt\": [1, 2]}").unwrap();
    assert_eq!(trace.asks[0].prompt.ids(), trace.asks[1].prompt.ids());
    assert_eq!((trace.asks[0].reply.len(), trace.asks[1].reply.len()), (1, 100));
    for (text, field) in [
        ("{\"prompt\": []}", "prompt"),
        ("{\"prompt\": [1], \"output_tokens\": 0}", "output"),
        ("{\"prompt\": [1], \"output\": [1], \"output_tokens\": 2}", "output_tokens"),
        ("{\"prompt\": [1], \"arrival_ms\": -1}", "arrival_ms"),
    ] {
        let error = read(text).unwrap_err();
        assert!(matches!(error, TraceError::Field { field: f, .. } if f == field), "{error}");
    }
}
