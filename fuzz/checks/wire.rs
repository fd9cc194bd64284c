//! Any tree of wire values is refused or is a runtime whose own wire form is read back the same.

use std::collections::BTreeMap;

use statepages_store::{StateRuntime, WireValue};

/// Names that mean something, so that the fuzzer need not guess them.
const NAMES: [&str; 13] = [
    "version",
    "transfer",
    "checkpoint_spec",
    "kind",
    "fork_tokens",
    "paged_layout_id",
    "page_unit_bytes",
    "slot_bytes",
    "image_bytes",
    "layout_id",
    "copy",
    "fork",
    "none",
];

fn value(bytes: &mut &[u8], depth: u32) -> WireValue {
    let Some((&kind, rest)) = bytes.split_first() else { return WireValue::Null };
    *bytes = rest;
    match kind % 6 {
        0 => WireValue::Null,
        1 => WireValue::Bool(kind > 127),
        2 => WireValue::Int(i64::from(kind) - 100),
        3 => WireValue::Str(NAMES[usize::from(kind) % NAMES.len()].to_owned()),
        4 => {
            let (number, rest) = bytes.split_at(bytes.len().min(8));
            *bytes = rest;
            WireValue::Int(number.iter().fold(0, |all, &byte| all << 8 | i64::from(byte)))
        }
        _ if depth == 0 => WireValue::Null,
        _ => {
            let mut fields = BTreeMap::new();
            for _ in 0..kind / 6 % 6 {
                let name = bytes.first().map_or(0, |&byte| usize::from(byte));
                *bytes = bytes.get(1..).unwrap_or_default();
                fields.insert(NAMES[name % NAMES.len()].to_owned(), value(bytes, depth - 1));
            }
            WireValue::Map(fields)
        }
    }
}

pub(crate) fn check(bytes: &[u8]) {
    let mut rest = bytes;
    if let Ok(runtime) = StateRuntime::from_wire(&value(&mut rest, 3)) {
        assert_eq!(StateRuntime::from_wire(&runtime.to_wire()), Ok(runtime));
    }
}
