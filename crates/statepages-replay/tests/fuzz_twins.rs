//! The stable twin of the fuzz target `traces`: the same check, on lines of each form of which some
//! bytes are replaced by others.

#[path = "../../../fuzz/checks/traces.rs"]
mod traces;

use proptest::prelude::*;

const LINES: [&str; 4] = [
    r#"{"prompt": [1, 2, 3], "output_tokens": 2, "arrival_ms": 5}"#,
    r#"{"timestamp": 40, "input_length": 600, "output_length": 7, "hash_ids": [0, 1]}"#,
    r#"{"timestamp": 10, "input": "a b", "output": "c", "session_id": "s"}"#,
    r#"{"question": "a b?", "answer": "c #### 2"}"#,
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn any_file(
        which in 0..LINES.len(),
        times in 1..4usize,
        from in 0..200usize,
        len in 0..12usize,
        put in prop_oneof![
            "[0-9.,:\\[\\]{}\"a-zA-Z_\n-]{0,8}".prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 0..8),
        ],
    ) {
        let mut bytes = vec![LINES[which]; times].join("\n").into_bytes();
        let from = from.min(bytes.len());
        let end = (from + len).min(bytes.len());
        bytes.splice(from..end, put);
        traces::check(&bytes);
    }
}
