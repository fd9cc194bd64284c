//! What can go wrong with data, flags and files.

use std::path::PathBuf;

use statepages_engine::{LimitError, Refusal};
use statepages_store::ConfigError;

/// Traffic that cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line is no JSON object of the expected shape.
    #[error("{}:{line}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// What the parser said, and of which field.
        source: serde_path_to_error::Error<serde_json::Error>,
    },
    /// A field holds what cannot be replayed.
    #[error("{}:{line}: {field}: expected {expected}, got {got}", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// The field.
        field: &'static str,
        /// What would have been taken.
        expected: String,
        /// What was there.
        got: String,
    },
    /// A file holds less or more than it should.
    #[error("{}: expected {expected}, got {got}", path.display())]
    Content {
        /// The file or folder.
        path: PathBuf,
        /// What was expected.
        expected: String,
        /// What was there.
        got: String,
    },
    /// The tokenizer cannot be loaded, or refuses a text.
    #[error("{}: {what}", path.display())]
    Tokenizer {
        /// Its file.
        path: PathBuf,
        /// Its own account.
        what: String,
    },
    /// Texts are to be tokenised, and no tokenizer was named.
    #[error("{}:{line}: {field}: expected ids, or a tokenizer for text", path.display())]
    NoTokenizer {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// The field.
        field: &'static str,
    },
}

/// A replay that cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The control plane cannot be built.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The geometry makes no state spec.
    #[error("geometry: {0}")]
    Geometry(String),
    /// A limit of the engine.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A prompt was refused.
    #[error("prompt {index} of {workload}: {why}")]
    Refused {
        /// The workload.
        workload: String,
        /// Its prompt.
        index: usize,
        /// Why.
        why: Refusal,
    },
    /// A request ended without all of its tokens.
    #[error("prompt {index} of {workload}: expected all its tokens, got: {end}")]
    Unfinished {
        /// The workload.
        workload: String,
        /// Its prompt.
        index: usize,
        /// How it ended.
        end: String,
    },
    /// Trace times were asked for, and a prompt has none.
    #[error("prompt {index} of {workload}: expected an arrival time, got none")]
    NoArrival {
        /// The workload.
        workload: String,
        /// Its prompt.
        index: usize,
    },
}
