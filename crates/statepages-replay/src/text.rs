//! Texts to ids, by a tokenizer file of the Hugging Face form, on every core.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;
use tokenizers::Tokenizer;

use crate::error::TraceError;
use crate::watch::{Stage, Watch};

/// A loaded tokenizer.
pub struct Texts {
    path: PathBuf,
    tokenizer: Tokenizer,
}

impl Texts {
    /// Loads a `tokenizer.json`.
    pub fn load(path: &Path) -> Result<Self, TraceError> {
        let tokenizer = Tokenizer::from_file(path).map_err(|error| TraceError::Tokenizer {
            path: path.to_owned(),
            what: error.to_string(),
        })?;
        Ok(Self { path: path.to_owned(), tokenizer })
    }

    /// Ids of one text; no special token is added.
    pub fn ids(&self, text: &str) -> Result<Vec<u32>, TraceError> {
        let encoded = self.tokenizer.encode_fast(text, false).map_err(|error| {
            TraceError::Tokenizer { path: self.path.clone(), what: error.to_string() }
        })?;
        Ok(encoded.get_ids().to_vec())
    }

    /// Ids of many texts, in their order.
    pub fn all_ids(
        &self,
        texts: &[&str],
        watch: &Watch<'_>,
    ) -> Result<Vec<Arc<[u32]>>, TraceError> {
        let (done, of, progress) = (AtomicU64::new(0), texts.len() as u64, watch.progress);
        texts
            .par_iter()
            .map(|text| {
                let ids = self.ids(text)?;
                progress(Stage::Tokenising, done.fetch_add(1, Ordering::Relaxed) + 1, of);
                Ok(ids.into())
            })
            .collect()
    }

    /// The file it came from.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A file's text.
pub(crate) fn read(path: &Path) -> Result<String, TraceError> {
    std::fs::read_to_string(path)
        .map_err(|source| TraceError::Read { path: path.to_owned(), source })
}

/// Reads one JSON value; errors name the field.
fn from_json<T: serde::de::DeserializeOwned>(
    text: &str,
) -> Result<T, serde_path_to_error::Error<serde_json::Error>> {
    let mut json = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut json)?;
    let end = json.end();
    end.map_err(|error| {
        serde_path_to_error::Error::new(serde_path_to_error::Track::new().path(), error)
    })?;
    Ok(value)
}

/// The JSON objects of a file, one a line, with their line numbers from 1; empty lines are none.
pub(crate) fn lines<T: serde::de::DeserializeOwned>(
    path: &Path,
) -> Result<Vec<(usize, T)>, TraceError> {
    let text = read(path)?;
    let numbered = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let lines: Vec<(usize, T)> = numbered
        .map(|(line, text)| match from_json(text) {
            Ok(value) => Ok((line, value)),
            Err(source) => Err(TraceError::Line { path: path.to_owned(), line, source }),
        })
        .collect::<Result<_, _>>()?;
    if lines.is_empty() {
        let (expected, got) = ("at least one JSON object".into(), "an empty file".into());
        return Err(TraceError::Content { path: path.to_owned(), expected, got });
    }
    Ok(lines)
}
