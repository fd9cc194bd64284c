//! The bytes of one safetensors file: on disk, or part of the program.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// A safetensors file, read by position.
#[derive(Debug)]
pub(crate) enum Shard {
    File(File),
    Embedded(&'static [u8]),
}

impl Shard {
    /// Bytes of the file.
    pub(crate) fn size(&self) -> io::Result<u64> {
        match self {
            Self::File(file) => Ok(file.metadata()?.len()),
            Self::Embedded(bytes) => Ok(bytes.len() as u64),
        }
    }

    /// Fills `buffer` from `offset` on; an error where the file ends earlier.
    pub(crate) fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Self::File(file) => file.read_exact_at(buffer, offset),
            Self::Embedded(bytes) => {
                let start = usize::try_from(offset).ok();
                let rest = start.and_then(|start| bytes.get(start..));
                let part = rest.and_then(|rest| rest.get(..buffer.len()));
                buffer.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
        }
    }
}
