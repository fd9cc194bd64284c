//! See the check.

#![no_main]

#[path = "../checks/published.rs"]
mod published;

libfuzzer_sys::fuzz_target!(|input: (u8, Vec<u8>, Vec<u8>)| {
    let (kind, first, second) = input;
    published::check(kind, &first, &second);
});
