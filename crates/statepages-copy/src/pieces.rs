//! Contiguous bytes of a slot that stand for a range of an image segment.

use statepages_page::{Boundary, Segment};

/// Contiguous bytes of one plane of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// First byte in the plane of the slot.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// The pieces of a range of a segment, in the order of the image.
///
/// A fixed segment gives one. A ring segment gives one per run of rows that are adjacent in the
/// slot; which these are depends on the boundary alone.
pub struct Pieces<'a> {
    segment: &'a Segment,
    boundary: Boundary,
    offset: u64,
    rest: u64,
}

impl<'a> Pieces<'a> {
    /// The pieces of `len` bytes from byte `offset` of the segment, for a slot at `boundary`.
    ///
    /// # Panics
    /// Where the range leaves the segment.
    pub fn new(segment: &'a Segment, offset: u64, len: u64, boundary: Boundary) -> Self {
        assert!(offset + len <= segment.len(), "a range within its segment");
        Self { segment, boundary, offset, rest: len }
    }
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.rest == 0 {
            return None;
        }
        let (offset, adjacent) = match self.segment {
            Segment::Fixed { offset, .. } => (offset + self.offset, self.rest),
            Segment::Ring { run, .. } => {
                let row_bytes = u64::from(run.row_bytes);
                let (row, column) = ((self.offset / row_bytes) as u32, self.offset % row_bytes);
                let position = i64::from(self.boundary.get()) - i64::from(run.rows - row);
                let q = position.rem_euclid(i64::from(run.ring)) as u32;
                let rows = if run.inner != row_bytes {
                    1
                } else if run.outer == u64::from(run.stride) * run.inner {
                    run.ring - q
                } else {
                    (run.stride - q % run.stride).min(run.ring - q)
                };
                let offset = run.row_offset(row, self.boundary) + column;
                (offset, u64::from(rows) * row_bytes - column)
            }
        };
        let len = adjacent.min(self.rest);
        self.offset += len;
        self.rest -= len;
        Some(Piece { offset, len })
    }
}
