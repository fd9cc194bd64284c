//! The command, run as a user runs it.
#![allow(dead_code)] // Each test file takes its part.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub(crate) fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_statepages"))
}

pub(crate) fn statepages(args: &[&str]) -> Output {
    command().args(args).stdin(Stdio::null()).output().expect("the command starts")
}

/// What a run printed with `--json`.
pub(crate) fn json(args: &[&str]) -> Value {
    value(&statepages(args))
}

/// The JSON of a run that has to have succeeded.
pub(crate) fn value(output: &Output) -> Value {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"))
}

/// Fails for what it was given to read, says each of `wanted` on standard error, and prints nothing
/// else.
pub(crate) fn refused(args: &[&str], wanted: &[&str]) {
    fails(1, args, wanted);
}

/// [`refused`] for the flags alone.
pub(crate) fn misused(args: &[&str], wanted: &[&str]) {
    fails(2, args, wanted);
}

fn fails(code: i32, args: &[&str], wanted: &[&str]) {
    let output = statepages(args);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {errors}");
    assert!(output.stdout.is_empty(), "{args:?} printed a result");
    for part in wanted {
        assert!(errors.contains(part), "{args:?}: `{part}` not in: {errors}");
    }
    assert!(!errors.contains("panicked"), "{args:?}: {errors}");
}
