//! Recorded requests: one JSON object a line, written through to the disk as each request ends.

use std::fs::{File, read_to_string};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::demo::round::Served;
use crate::demo::workload::Kind;

/// A recorded request.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    pub(crate) round: String,
    pub(crate) request: usize,
    pub(crate) kind: Kind,
    pub(crate) prompt: Vec<u32>,
    pub(crate) output: Vec<u32>,
}

/// Writes entries.
pub(crate) struct Recorder {
    path: PathBuf,
    file: File,
}

impl Recorder {
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let file = File::create(path)
            .with_context(|| format!("--record: cannot create {}", path.display()))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Appends one request and waits until it is on the disk.
    pub(crate) fn write(&mut self, round: &str, request: usize, served: &Served) -> Result<()> {
        let entry = Entry {
            round: round.to_owned(),
            request,
            kind: served.kind,
            prompt: served.prompt.clone(),
            output: served.output.clone(),
        };
        let mut line = serde_json::to_vec(&entry)?;
        line.push(b'\n');
        let written = self.file.write_all(&line).and_then(|()| self.file.sync_data());
        written.with_context(|| format!("--record: cannot write {}", self.path.display()))
    }
}

/// Reads what a [`Recorder`] wrote, grouped into rounds in the order of the file.
pub(crate) fn read(path: &Path) -> Result<Vec<(String, Vec<Entry>)>> {
    let text = read_to_string(path)
        .with_context(|| format!("--replay: cannot read {}", path.display()))?;
    let rounds = parse(&text).with_context(|| format!("--replay: {}", path.display()))?;
    if rounds.is_empty() {
        bail!("--replay: {} holds no request", path.display());
    }
    Ok(rounds)
}

fn parse(text: &str) -> Result<Vec<(String, Vec<Entry>)>> {
    let mut rounds: Vec<(String, Vec<Entry>)> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let entry: Entry =
            serde_json::from_str(line).with_context(|| format!("line {}", number + 1))?;
        if entry.output.is_empty() {
            bail!("line {}: output: expected at least one token, got none", number + 1);
        }
        match rounds.last_mut() {
            Some((name, entries)) if *name == entry.round => entries.push(entry),
            _ => rounds.push((entry.round.clone(), vec![entry])),
        }
    }
    Ok(rounds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_come_back_in_order_and_bad_lines_are_named() {
        let line = |round: &str, request: usize| {
            format!(
                r#"{{"round":"{round}","request":{request},"kind":"shared","prompt":[1],"output":[2]}}"#
            )
        };
        let text = [line("cold", 0), line("cold", 1), line("resumed", 0)].join("\n");
        let rounds = parse(&text).unwrap();
        assert_eq!(
            rounds.iter().map(|(n, e)| (n.as_str(), e.len())).collect::<Vec<_>>(),
            [("cold", 2), ("resumed", 1)]
        );
        for (bad, wanted) in [
            (line("cold", 0).replace("shared", "odd"), "odd"),
            (line("cold", 0).replace("[2]", "[]"), "output"),
            (line("cold", 0).replace("[1]", "[-1]"), "-1"),
            (line("cold", 0).replace("\"kind\"", "\"sort\""), "sort"),
        ] {
            let text = format!("{}\n{bad}", line("cold", 0));
            let error = format!("{:#}", parse(&text).unwrap_err());
            assert!(error.contains("line 2") && error.contains(wanted), "{error}");
        }
    }
}
