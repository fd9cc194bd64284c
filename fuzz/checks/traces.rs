//! Any file of recorded traffic is refused or is a trace, in each of the forms that are read: JSON
//! lines, Mooncake's, agent sessions, and worked problems.

use statepages_replay::{Draws, Texts, Watch, gsm8k64, jsonl, lmcache, mooncake};

/// Splits at white space; every word is the same.
const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
    "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
    "decoder": null, "model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}}"#;

pub(crate) fn check(bytes: &[u8]) {
    let directory = tempfile::tempdir().expect("a directory for temporary files");
    let write = |name: &str, bytes: &[u8]| {
        let path = directory.path().join(name);
        std::fs::write(&path, bytes).expect("room for temporary files");
        path
    };
    let tokenizer = write("tokenizer.json", TOKENIZER.as_bytes());
    let texts = Texts::load(&tokenizer).expect("a sound tokenizer");
    let path = write("trace.jsonl", bytes);
    let _refused_or_trace = jsonl(&path, None, 3, &Watch::QUIET);
    let _refused_or_trace = jsonl(&path, Some(&texts), 3, &Watch::QUIET);
    let _refused_or_trace = mooncake(&path, None);
    let _refused_or_trace = lmcache(directory.path(), &texts, 2, None, &Watch::QUIET);
    write("train.jsonl", bytes);
    write("test.jsonl", bytes);
    let _refused_or_trace =
        gsm8k64(directory.path(), Draws::Fresh { seed: 1 }, &texts, 3, &Watch::QUIET);
}
