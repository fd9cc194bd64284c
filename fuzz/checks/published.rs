//! Any directory of weights is refused or opens: `config.json`, the index of shards, and the header of
//! a safetensors file.

use statepages_weights::Published;

const SOUND: &[u8] = include_bytes!("../../models/dsv4-mini/config.json");

/// Bits of `kind`: the configuration is a sound one, so that the headers are come to; `first` is the
/// index of shards, too; the length of the header is what the bytes say, and not what it is.
pub(crate) fn check(kind: u8, first: &[u8], second: &[u8]) {
    let directory = tempfile::tempdir().expect("a directory for temporary files");
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(directory.path().join(name), bytes).expect("room for temporary files");
    };
    write("config.json", if kind & 1 == 1 { SOUND } else { first });
    if kind & 2 == 2 {
        write("model.safetensors.index.json", first);
    }
    let length = (second.len() as u64).to_le_bytes();
    let length = if kind & 4 == 4 { &[][..] } else { &length[..] };
    write("model.safetensors", &[length, second].concat());
    let _refused_or_open = Published::open(directory.path(), Some(1 << 20));
}
