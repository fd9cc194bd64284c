//! The demo's text: the project's own documents, or a file of the user's.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

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
    bytes: Vec<u8>,
}

impl Corpus {
    /// The project's documents.
    pub(crate) fn built_in() -> Self {
        Self { bytes: DOCUMENTS.join("\n\n").into_bytes() }
    }

    /// The text of a file.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("--prompts: cannot read {} as UTF-8 text", path.display()))?;
        if text.len() < BYTES_MIN {
            bail!(
                "--prompts: {} holds {} bytes of text; expected at least {BYTES_MIN}",
                path.display(),
                text.len()
            );
        }
        Ok(Self { bytes: text.into_bytes() })
    }

    /// `len` byte tokens from the `index`-th of `count` evenly spread starting points.
    pub(crate) fn passage(&self, index: usize, count: usize, len: usize) -> Vec<u32> {
        let start = index * self.bytes.len() / count;
        self.bytes.iter().cycle().skip(start).take(len).map(|&byte| u32::from(byte)).collect()
    }
}
