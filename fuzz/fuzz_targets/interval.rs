//! See the check.

#![no_main]

#[path = "../checks/interval.rs"]
mod interval;

libfuzzer_sys::fuzz_target!(|input: (i64, u32)| interval::check(input.0, input.1));
