//! Any directory of weights is refused or opens: `config.json`, the index of shards, and the header of
//! a safetensors file. Where the first byte is odd the configuration is a sound one, so that the
//! fuzzer gets as far as the headers.

#![no_main]

use libfuzzer_sys::fuzz_target;
use statepages_weights::Published;

const SOUND: &[u8] = include_bytes!("../../models/dsv4-mini/config.json");

fuzz_target!(|input: (u8, Vec<u8>, Vec<u8>)| {
    let (kind, first, second) = input;
    let directory = tempfile::tempdir().expect("a directory for temporary files");
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(directory.path().join(name), bytes).expect("room for temporary files");
    };
    write("config.json", if kind & 1 == 1 { SOUND } else { &first });
    if kind & 2 == 2 {
        write("model.safetensors.index.json", &first);
    }
    // The length of the header is right unless the fuzzer wants to choose it, too.
    let mut file =
        if kind & 4 == 4 { Vec::new() } else { (second.len() as u64).to_le_bytes().to_vec() };
    file.extend(&second);
    write("model.safetensors", &file);
    let _refused_or_open = Published::open(directory.path(), Some(1 << 20));
});
