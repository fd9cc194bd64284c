//! Recorded requests: one JSON object a line, written through to the disk as each request ends.

use std::fs::{File, read_to_string};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::demo::round::Served;
use crate::demo::workload::Kind;

/// A recorded request.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    /// Model and rows that computed it: others give other outputs.
    pub(crate) model: String,
    pub(crate) round: String,
    pub(crate) request: usize,
    pub(crate) kind: Kind,
    pub(crate) prompt: Vec<u32>,
    pub(crate) output: Vec<u32>,
}

/// Writes entries.
pub(crate) struct Recorder {
    model: String,
    path: PathBuf,
    file: File,
}

impl Recorder {
    pub(crate) fn create(path: &Path, model: String) -> Result<Self> {
        let file = File::create(path)
            .with_context(|| format!("--record: cannot create {}", path.display()))?;
        Ok(Self { model, path: path.to_owned(), file })
    }

    /// Appends one request and waits until it is on the disk.
    pub(crate) fn write(&mut self, round: &str, request: usize, served: &Served) -> Result<()> {
        let entry = Entry {
            model: self.model.clone(),
            round: round.to_owned(),
            request,
            kind: served.kind,
            prompt: served.prompt.clone(),
            output: served.output.clone(),
        };
        let mut line = serde_json::to_vec(&entry)?;
        line.push(b'\n');
        let written = self.file.write_all(&line).and_then(|()| match self.file.sync_data() {
            // Pipes and terminals have nothing to sync.
            Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(()),
            other => other,
        });
        written.with_context(|| format!("--record: cannot write {}", self.path.display()))
    }
}

/// Reads what a [`Recorder`] of the same model wrote, grouped into rounds in the order of the file.
pub(crate) fn read(path: &Path, model: &str) -> Result<Vec<(String, Vec<Entry>)>> {
    let text = read_to_string(path)
        .with_context(|| format!("--replay: cannot read {}", path.display()))?;
    parse(&text, model).with_context(|| format!("--replay: {}", path.display()))
}

fn parse(text: &str, model: &str) -> Result<Vec<(String, Vec<Entry>)>> {
    let mut rounds: Vec<(String, Vec<Entry>)> = Vec::new();
    for (number, line) in (1..).zip(text.split_inclusive('\n')) {
        if line.trim().is_empty() {
            continue;
        }
        let entry: Entry = match serde_json::from_str(line) {
            Ok(entry) => entry,
            Err(_) if !line.ends_with('\n') => {
                tracing::warn!(
                    "--replay: line {number} is torn, as a killed run leaves it: left out"
                );
                break;
            }
            Err(error) => return Err(error).with_context(|| format!("line {number}")),
        };
        if entry.output.is_empty() {
            bail!("line {number}: output: expected at least one token, got none");
        }
        if entry.model != model {
            bail!(
                "line {number}: model: expected {model} (--model, --weights-seed, --kv), got {}",
                entry.model
            );
        }
        match rounds.last_mut() {
            Some((name, entries)) if *name == entry.round => entries.push(entry),
            _ => rounds.push((entry.round.clone(), vec![entry])),
        }
    }
    if rounds.is_empty() {
        bail!("expected at least one recorded request, got none");
    }
    Ok(rounds)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_torn_last_line_is_left_out_and_a_torn_line_before_it_is_not() {
        let whole =
            r#"{"model":"m","round":"r","request":0,"kind":"shared","prompt":[1],"output":[2]}"#;
        let torn = &whole[..40];
        assert_eq!(parse(&format!("{whole}\n{torn}"), "m").unwrap()[0].1.len(), 1);
        assert!(parse(&format!("{torn}\n{whole}\n"), "m").is_err());
    }

    #[test]
    fn rounds_come_back_in_order_and_bad_lines_are_named() {
        let line = |round: &str, request: usize| {
            format!(
                r#"{{"model":"m","round":"{round}","request":{request},"kind":"shared","prompt":[1],"output":[2]}}"#
            )
        };
        let text = [line("cold", 0), line("cold", 1), String::new(), line("resumed", 0)].join("\n");
        let rounds = parse(&text, "m").unwrap();
        assert_eq!(
            rounds.iter().map(|(n, e)| (n.as_str(), e.len())).collect::<Vec<_>>(),
            [("cold", 2), ("resumed", 1)]
        );
        for (bad, wanted) in [
            (line("cold", 0).replace("shared", "odd"), "odd"),
            (line("cold", 0).replace("[2]", "[]"), "output"),
            (line("cold", 0).replace("[1]", "[-1]"), "-1"),
            (line("cold", 0).replace("\"kind\"", "\"sort\""), "sort"),
            (line("cold", 0).replace("\"m\"", "\"n\""), "expected m"),
        ] {
            let text = format!("{}\n{bad}\n", line("cold", 0));
            let error = format!("{:#}", parse(&text, "m").unwrap_err());
            assert!(error.contains("line 2") && error.contains(wanted), "{error}");
        }
        assert!(parse("", "m").is_err());
    }

    proptest! {
        /// A recorded line with any run of it replaced by any text: entries, or a refusal.
        #[test]
        fn fuzz_any_record_is_read_or_refused(
            from in 0..70usize,
            len in 0..12usize,
            put in prop_oneof!["[0-9.,:\\[\\]{}\"a-z_-]{0,8}", ".{0,6}"],
        ) {
            let mut text =
                r#"{"round":"cold","request":0,"kind":"shared","prompt":[1],"output":[2]}"#.to_owned();
            let end = (from + len).min(text.len());
            text.replace_range(from.min(end)..end, &put);
            let rounds = parse(&text, "m").unwrap_or_default();
            prop_assert!(rounds.iter().all(|(_, entries)| !entries.is_empty()));
        }
    }
}
