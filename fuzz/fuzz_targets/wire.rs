//! See the check.

#![no_main]

#[path = "../checks/wire.rs"]
mod wire;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire::check(bytes));
