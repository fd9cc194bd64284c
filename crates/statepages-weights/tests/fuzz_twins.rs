//! The stable twin of the fuzz target `published`: the same check, on sound files of which some bytes
//! are replaced by others.

#[path = "../../../fuzz/checks/published.rs"]
mod published;

use proptest::prelude::*;

const INDEX: &str =
    r#"{"metadata": {"total_size": 8}, "weight_map": {"embed.weight": "model.safetensors"}}"#;
const HEADER: &str = r#"{"__metadata__": {"format": "pt"},
    "embed.weight": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}}"#;

/// A text with a run of it replaced.
fn nearly(text: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let put = prop_oneof![
        "[0-9.,:\\[\\]{}\"a-zA-Z_-]{0,8}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..8),
    ];
    (0..=text.len(), 0..12usize, put).prop_map(|(from, len, put)| {
        let mut bytes = text.as_bytes().to_vec();
        bytes.splice(from..(from + len).min(text.len()), put);
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_directory(kind in 0..8u8, first in nearly(INDEX), second in nearly(HEADER)) {
        published::check(kind, &first, &second);
    }
}
