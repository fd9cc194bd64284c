//! The demo's text: the project's own documents, or a file of the user's.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::tokens::Tokenizer;

/// Documents that every build carries, so that the demo needs no file.
const DOCUMENTS: &[&str] = &[
    include_str!("../../../../README.md"),
    include_str!("../../../../ARCHITECTURE.md"),
    include_str!("../../../../CONTRIBUTING.md"),
    include_str!("../../../../docs/metrics.md"),
    include_str!("../../../../CHANGELOG.md"),
];

/// The fewest bytes from which distinct prompts of full length can be cut.
const BYTES_MIN: usize = 8_192;

/// A text that passages are cut from, wrapping around at its end.
pub(crate) struct Corpus {
    ids: Vec<u32>,
}

impl Corpus {
    /// The project's documents.
    pub(crate) fn built_in(tokenizer: &Tokenizer) -> Result<Self> {
        Ok(Self { ids: tokenizer.encode(&DOCUMENTS.join("\n\n"))? })
    }

    /// The text of a file.
    pub(crate) fn read(path: &Path, tokenizer: &Tokenizer) -> Result<Self> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("--prompts: cannot read {} as UTF-8 text", path.display()))?;
        if text.len() < BYTES_MIN {
            bail!(
                "--prompts: {} holds {} bytes of text; expected at least {BYTES_MIN}",
                path.display(),
                text.len()
            );
        }
        Ok(Self { ids: tokenizer.encode(&text)? })
    }

    /// `len` tokens from the `index`-th of `count` evenly spread starting points.
    pub(crate) fn passage(&self, index: usize, count: usize, len: usize) -> Vec<u32> {
        let start = index * self.ids.len() / count;
        self.ids.iter().copied().cycle().skip(start).take(len).collect()
    }
}
