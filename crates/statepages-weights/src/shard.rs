//! The bytes of one safetensors file: a file as memory, or part of the program. The one place of
//! the crate that needs `unsafe`.
//!
//! A map shows a file's bytes without a copy and without a place of its own in memory: the system
//! reads pages as they are touched, and drops them where it needs room. The price is a rule for
//! people: a file must not be changed while it is mapped. Bytes that change on the way may be read
//! either way, and a file that is cut short takes its missing pages with it: touching one ends the
//! process (SIGBUS). Sizes are checked when a file is opened, and a map lives no longer than loading.

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Deref;
use std::path::Path;

use memmap2::Mmap;

/// All bytes of a safetensors file.
#[derive(Debug)]
pub(crate) enum Shard {
    /// As long as the file was when it was opened.
    Mapped(Mmap),
    Embedded(&'static [u8]),
}

impl Shard {
    pub(crate) fn map(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        #[expect(unsafe_code, reason = "a map is the only way to read a file in place")]
        // SAFETY: the map is private and read-only, so nothing here writes to it; bytes are plain
        // data of which every value is checked after it was copied out, so a change by others
        // cannot break more than the weights. That nobody cuts the file short while it is open is
        // what the module asks of people.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Self::Mapped(map))
    }
}

/// Opens a regular file. Others may be without end, or wait for somebody who never writes.
fn open(path: &Path) -> io::Result<File> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "expected a regular file"));
    }
    File::open(path)
}

/// Bytes of a text: many times what the largest tokenizers and indices of tensors have.
const TEXT_BYTES_MAX: u64 = 1 << 28;

/// The text of a regular file: one that is none, such as a pipe, is refused and not waited for, and
/// so is one that no memory was meant for.
pub fn read_text(path: &Path) -> io::Result<String> {
    let file = open(path)?;
    let bytes = file.metadata()?.len();
    if bytes > TEXT_BYTES_MAX {
        let text = format!("expected at most {TEXT_BYTES_MAX} bytes, got {bytes}");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    io::read_to_string(file.take(TEXT_BYTES_MAX))
}

impl Deref for Shard {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Embedded(bytes) => bytes,
        }
    }
}
