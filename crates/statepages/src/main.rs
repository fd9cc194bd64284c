//! The statepages command.
fn main() {}
