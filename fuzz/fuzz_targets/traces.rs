//! Any file of recorded traffic is refused or is a trace.

#![no_main]

use libfuzzer_sys::fuzz_target;
use statepages_replay::{Watch, jsonl, mooncake};

fuzz_target!(|bytes: &[u8]| {
    let directory = tempfile::tempdir().expect("a directory for temporary files");
    let path = directory.path().join("trace.jsonl");
    std::fs::write(&path, bytes).expect("room for temporary files");
    let watch = Watch { now: &|| 0, progress: &|_, _, _| {} };
    let _refused_or_trace = jsonl(&path, None, 3, &watch);
    let _refused_or_trace = mooncake(&path, None);
});
