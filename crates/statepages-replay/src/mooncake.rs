//! Mooncake's published traces: lengths, times, and a hash id for each 512 tokens of a prompt.
//!
//! Equal ids stand for equal text and an equal text before it, so each id becomes 512 made-up tokens
//! of its own. `input_length` cuts the last ones.

use std::path::Path;

use serde::Deserialize;

use crate::error::TraceError;
use crate::text::lines;
use crate::trace::{Ask, Piece, Prompt, Reply, Trace};

/// Tokens that one hash id stands for.
const BLOCK_TOKENS: u32 = 512;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    /// Milliseconds.
    timestamp: u64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

/// Reads a trace; each request generates the recorded number of tokens, or `output_tokens`.
pub fn mooncake(path: &Path, output_tokens: Option<u32>) -> Result<Trace, TraceError> {
    let lines = lines::<Line>(path)?;
    let first = lines.iter().map(|(_, line)| line.timestamp).min().unwrap_or(0);
    let asks = lines.into_iter().map(|(number, line)| {
        let Line { timestamp, input_length, output_length, hash_ids } = line;
        let wrong = |field, expected: String, got: String| TraceError::Field {
            path: path.to_owned(),
            line: number,
            field,
            expected,
            got,
        };
        if input_length == 0 {
            return Err(wrong("input_length", "at least 1".to_owned(), "0".to_owned()));
        }
        let blocks = input_length.div_ceil(BLOCK_TOKENS) as usize;
        if hash_ids.len() != blocks {
            let expected = format!("{blocks} ids for {input_length} tokens");
            return Err(wrong("hash_ids", expected, hash_ids.len().to_string()));
        }
        let starts = (0u32..).step_by(BLOCK_TOKENS as usize);
        let pieces = hash_ids
            .iter()
            .zip(starts)
            .map(|(&seed, start)| Piece { seed, tokens: (input_length - start).min(BLOCK_TOKENS) });
        Ok(Ask {
            prompt: Prompt::Pieces(pieces.collect()),
            reply: Reply::Tokens(output_tokens.unwrap_or(output_length).max(1)),
            arrival: Some((timestamp - first) * 1_000),
            session: None,
        })
    });
    Ok(Trace { name: "mooncake".to_owned(), asks: asks.collect::<Result<_, _>>()? })
}
