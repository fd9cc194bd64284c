//! Anybody's prompts: one JSON object a line.
//!
//! | field | what |
//! | --- | --- |
//! | `prompt` | text, or ids as a list of numbers |
//! | `output` | what is generated, text or ids; without it `output_tokens` |
//! | `output_tokens` | how many tokens are generated; without either, what the caller says |
//! | `arrival_ms` | milliseconds from the start to its arrival |
//! | `session` | any text: a turn is sent when the turn before it has ended |
//!
//! Text needs a tokenizer. Other fields are refused.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;

use crate::error::TraceError;
use crate::text::{Texts, lines};
use crate::trace::{Ask, Prompt, Reply, Trace};
use crate::watch::{Stage, Watch};

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected text or a list of token ids")]
enum Content {
    Ids(Vec<u32>),
    Text(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    prompt: Content,
    output: Option<Content>,
    output_tokens: Option<u32>,
    arrival_ms: Option<f64>,
    session: Option<String>,
}

/// Reads a file. `output_tokens` are generated where a line does not say.
pub fn jsonl(
    path: &Path,
    texts: Option<&Texts>,
    output_tokens: u32,
    watch: &Watch<'_>,
) -> Result<Trace, TraceError> {
    let lines = lines::<Line>(path)?;
    let of = lines.len() as u64;
    let mut sessions = BTreeMap::new();
    let mut asks = Vec::with_capacity(lines.len());
    for (done, (number, line)) in (1..).zip(lines) {
        let Line { prompt, output, output_tokens: tokens, arrival_ms, session } = line;
        let at = Place { path, line: number };
        let reply = match (output, tokens) {
            (None, tokens) => Reply::Tokens(tokens.unwrap_or(output_tokens)),
            (Some(output), None) => Reply::Ids(at.ids("output", output, texts)?),
            (Some(_), Some(_)) => {
                return Err(at.wrong("output_tokens", "none beside an output", "one"));
            }
        };
        if reply.is_empty() {
            return Err(at.wrong("output", "at least 1 token", "0"));
        }
        let arrival = match arrival_ms {
            None => None,
            Some(ms) if ms.is_finite() && (0.0..1e15).contains(&ms) => Some((ms * 1e3) as u64),
            Some(ms) => return Err(at.wrong("arrival_ms", "0 to 1e15", &ms.to_string())),
        };
        let known = sessions.len() as u32;
        asks.push(Ask {
            prompt: Prompt::Ids(at.ids("prompt", prompt, texts)?),
            reply,
            arrival,
            session: session.map(|name| *sessions.entry(name).or_insert(known)),
        });
        (watch.progress)(Stage::Tokenising, done, of);
    }
    Ok(Trace { name: "jsonl".to_owned(), asks })
}

struct Place<'a> {
    path: &'a Path,
    line: usize,
}

impl Place<'_> {
    fn wrong(&self, field: &'static str, expected: &str, got: &str) -> TraceError {
        TraceError::Field {
            path: self.path.to_owned(),
            line: self.line,
            field,
            expected: expected.to_owned(),
            got: got.to_owned(),
        }
    }

    fn ids(
        &self,
        field: &'static str,
        content: Content,
        texts: Option<&Texts>,
    ) -> Result<Arc<[u32]>, TraceError> {
        let ids = match (content, texts) {
            (Content::Ids(ids), _) => ids,
            (Content::Text(text), Some(texts)) => texts.ids(&text)?,
            (Content::Text(_), None) => {
                let (path, line) = (self.path.to_owned(), self.line);
                return Err(TraceError::NoTokenizer { path, line, field });
            }
        };
        if ids.is_empty() {
            return Err(self.wrong(field, "at least 1 token", "0"));
        }
        Ok(ids.into())
    }
}
