//! Any tree of wire values is refused or is a runtime whose own wire form is read back the same.

use std::collections::BTreeMap;

use statepages_store::{StateRuntime, WireValue};

/// Names that mean something, so that the fuzzer need not guess them.
pub(crate) const FIELDS: [&str; 10] = [
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
];

/// Values that mean something.
const KINDS: [&str; 3] = ["copy", "fork", "none"];

fn name(number: u8) -> String {
    let at = usize::from(number) % (FIELDS.len() + KINDS.len());
    FIELDS.iter().chain(&KINDS).nth(at).copied().expect("a number of a name").to_owned()
}

fn value(bytes: &mut &[u8], depth: u32) -> WireValue {
    let Some((&kind, rest)) = bytes.split_first() else { return WireValue::Null };
    *bytes = rest;
    match kind % 6 {
        0 => WireValue::Null,
        1 => WireValue::Bool(kind > 127),
        2 => WireValue::Int(i64::from(kind) - 100),
        3 => WireValue::Str(name(kind)),
        4 => {
            let (number, rest) = bytes.split_at(bytes.len().min(8));
            *bytes = rest;
            WireValue::Int(number.iter().fold(0, |all, &byte| all << 8 | i64::from(byte)))
        }
        _ if depth == 0 => WireValue::Null,
        _ => {
            let mut fields = BTreeMap::new();
            for _ in 0..kind / 6 % 6 {
                let field = name(bytes.first().copied().unwrap_or_default());
                *bytes = bytes.get(1..).unwrap_or_default();
                fields.insert(field, value(bytes, depth - 1));
            }
            WireValue::Map(fields)
        }
    }
}

/// The check, on a tree that is made of bytes.
pub(crate) fn check(bytes: &[u8]) {
    let mut rest = bytes;
    check_value(&value(&mut rest, 3));
}

pub(crate) fn check_value(wire: &WireValue) {
    if let Ok(runtime) = StateRuntime::from_wire(wire) {
        assert_eq!(StateRuntime::from_wire(&runtime.to_wire()), Ok(runtime));
    }
}
