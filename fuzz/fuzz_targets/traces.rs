//! See the check.

#![no_main]

#[path = "../checks/traces.rs"]
mod traces;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| traces::check(bytes));
