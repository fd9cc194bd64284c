//! Number formats of cached rows.
//!
//! A row is rounded to its format before any query reads it, the chunk's own rows included.

use half::bf16;
use statepages_geometry::{IndexerFormat, KvFormat};

/// Number format of a cached row, main or indexer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RowFormat {
    F32,
    Bf16,
}

impl RowFormat {
    /// The format of KV rows, where this forward has it.
    pub(crate) fn of_kv(kv: KvFormat) -> Option<Self> {
        match kv {
            KvFormat::F32 => Some(Self::F32),
            KvFormat::Bf16 => Some(Self::Bf16),
            KvFormat::Fp8 => None,
        }
    }

    /// The format of indexer rows, where this forward has it.
    pub(crate) fn of_indexer(indexer: IndexerFormat) -> Option<Self> {
        match indexer {
            IndexerFormat::F32 => Some(Self::F32),
            IndexerFormat::Bf16 => Some(Self::Bf16),
            IndexerFormat::Fp8 | IndexerFormat::Fp4 => None,
        }
    }

    /// What reading `row` back would give, in place.
    pub(crate) fn round(self, row: &mut [f32]) {
        match self {
            Self::F32 => {}
            Self::Bf16 => row.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32()),
        }
    }

    /// Writes a row to its bytes.
    pub(crate) fn encode(self, row: &[f32], bytes: &mut [u8]) {
        match self {
            Self::F32 => bytes.copy_from_slice(bytemuck::cast_slice(row)),
            Self::Bf16 => {
                let to: &mut [bf16] = bytemuck::cast_slice_mut(bytes);
                assert_eq!(to.len(), row.len(), "a row has its format's bytes");
                to.iter_mut().zip(row).for_each(|(to, x)| *to = bf16::from_f32(*x));
            }
        }
    }

    /// Reads a row from its bytes.
    pub(crate) fn decode(self, bytes: &[u8], row: &mut [f32]) {
        match self {
            Self::F32 => row.copy_from_slice(bytemuck::cast_slice(bytes)),
            Self::Bf16 => {
                let from: &[u16] = bytemuck::cast_slice(bytes);
                assert_eq!(from.len(), row.len(), "a row has its format's bytes");
                let widen = |x: u16| f32::from_bits(u32::from(x) << 16);
                row.iter_mut().zip(from).for_each(|(to, x)| *to = widen(*x));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_what_storing_does() {
        let row: Vec<f32> = (0..64).map(|i| (i as f32 - 31.5) * 0.123_456_7).collect();
        for (format, size) in [(RowFormat::F32, 4), (RowFormat::Bf16, 2)] {
            let mut rounded = row.clone();
            format.round(&mut rounded);
            // Rows of an arena are aligned to 16 bytes; a vector of u64 is aligned enough here.
            let mut memory = vec![0u64; 64 * size / 8];
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut memory);
            format.encode(&row, bytes);
            let mut back = vec![0.0; 64];
            format.decode(bytes, &mut back);
            assert_eq!(back, rounded);
            format.round(&mut rounded);
            assert_eq!(back, rounded);
        }
    }
}
