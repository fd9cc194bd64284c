//! LMCache's agent traces: one file a session, one line a turn, with the whole context as text.
//!
//! The recorded sessions ran one after another, which no server would see. Here they interleave:
//! `at_once` sessions are open, each sends one turn in its turn, and a session that is over makes
//! place for the next one of the files' first times. The turns of a session are sent in the order
//! of their times, each when the one before it has ended.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::TraceError;
use crate::text::{Texts, lines};
use crate::trace::{Ask, Prompt, Reply, Trace};
use crate::watch::Watch;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    /// Microseconds.
    timestamp: u64,
    input: String,
    output: String,
    #[serde(rename = "session_id")]
    _session: String,
}

struct Turn {
    at: u64,
    input: String,
    output: String,
}

/// Reads every `.jsonl` file of a folder. A turn generates its recorded text, or `output_tokens`.
pub fn lmcache(
    folder: &Path,
    texts: &Texts,
    at_once: usize,
    output_tokens: Option<u32>,
    watch: &Watch<'_>,
) -> Result<Trace, TraceError> {
    let sessions = sessions(folder)?;
    let turns = || sessions.iter().flatten();
    let both = turns().flat_map(|turn| [turn.input.as_str(), turn.output.as_str()]);
    let ids = texts.all_ids(&both.collect::<Vec<_>>(), watch)?;
    let first = turns().map(|turn| turn.at).min().unwrap_or(0);
    let mut asks: Vec<VecDeque<Ask>> = Vec::new();
    let mut pairs = ids.chunks_exact(2);
    for (number, session) in (0u32..).zip(&sessions) {
        let ask = |turn: &Turn| {
            let [input, output] = pairs.next().expect("a pair for each turn") else {
                unreachable!("chunks of two");
            };
            let reply = match output_tokens {
                Some(tokens) => Reply::Tokens(tokens.max(1)),
                None if output.is_empty() => Reply::Tokens(1),
                None => Reply::Ids(output.clone()),
            };
            Ask {
                prompt: Prompt::Ids(input.clone()),
                reply,
                arrival: Some(turn.at - first),
                session: Some(number),
            }
        };
        asks.push(session.iter().map(ask).collect());
    }
    Ok(Trace { name: "lmcache".to_owned(), asks: interleave(asks, at_once) })
}

/// Sessions in the order of their first turns, each in the order of its turns.
fn sessions(folder: &Path) -> Result<Vec<Vec<Turn>>, TraceError> {
    let read = |source| TraceError::Read { path: folder.to_owned(), source };
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(read)? {
        let path = entry.map_err(read)?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            files.push(path);
        }
    }
    files.sort();
    let mut sessions = Vec::new();
    for path in &files {
        let mut turns = Vec::new();
        for (line, Line { timestamp, input, output, .. }) in lines::<Line>(path)? {
            if input.is_empty() {
                return Err(TraceError::Field {
                    path: path.clone(),
                    line,
                    field: "input",
                    expected: "a text".to_owned(),
                    got: "none".to_owned(),
                });
            }
            turns.push(Turn { at: timestamp, input, output });
        }
        turns.sort_by_key(|turn| turn.at);
        if !turns.is_empty() {
            sessions.push(turns);
        }
    }
    if sessions.is_empty() {
        return Err(TraceError::Content {
            path: folder.to_owned(),
            expected: "at least one .jsonl file with a turn".to_owned(),
            got: "none".to_owned(),
        });
    }
    sessions.sort_by_key(|turns| turns[0].at);
    Ok(sessions)
}

/// One turn of each open session in turn.
fn interleave(sessions: Vec<VecDeque<Ask>>, at_once: usize) -> Vec<Ask> {
    let mut waiting = sessions.into_iter();
    let mut open: VecDeque<VecDeque<Ask>> = waiting.by_ref().take(at_once.max(1)).collect();
    let mut all = Vec::new();
    while let Some(mut session) = open.pop_front() {
        all.extend(session.pop_front());
        if !session.is_empty() {
            open.push_back(session);
        } else if let Some(next) = waiting.next() {
            open.push_back(next);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_sessions_take_turns() {
        let session = |number: u32, turns: u32| {
            let ask = |_| Ask {
                prompt: Prompt::Pieces(Vec::new()),
                reply: Reply::Tokens(1),
                arrival: None,
                session: Some(number),
            };
            (0..turns).map(ask).collect()
        };
        let asks = interleave(vec![session(0, 3), session(1, 1), session(2, 2)], 2);
        let order: Vec<u32> = asks.iter().filter_map(|ask| ask.session).collect();
        assert_eq!(order, [0, 1, 0, 2, 0, 2]);
    }
}
