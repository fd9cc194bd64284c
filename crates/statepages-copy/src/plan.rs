//! The copy plan: where the image stream and the unit stream are cut so that every piece lies in
//! one segment and one region.
//!
//! Cut once for the lifetime of a layout: sizes decide the cuts, never ids or positions, so one
//! plan serves every operation in both directions. A store reads segments and writes regions; a
//! restore swaps the two.
//!
//! ```text
//! image  |  segment 0   |       segment 1        | 2 |
//! units  |  region 0 | r1 |  region 0 | r1 |  region 0 (tail unused) ...
//! spans  |----------|-|--|-----------|-|--|------|---|
//! ```

use std::fmt;

use statepages_page::{Bytes, LayoutTag, Pages, Segment, StateLayout};

/// Bytes that one thread group of a device moves; a span is worked off in tiles of this size.
pub const TILE_BYTES: u64 = 4096;

/// A piece of two byte streams that crosses no border of either.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    /// Index of the piece of the first stream.
    pub source: usize,
    /// First byte in it.
    pub source_offset: u64,
    /// Index of the piece of the second stream.
    pub target: usize,
    /// First byte in it.
    pub target_offset: u64,
    /// Number of bytes, never zero.
    pub len: u64,
}

/// One of the two streams of a cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stream {
    /// The first.
    Source,
    /// The second.
    Target,
}

/// Streams that cannot be cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CutError {
    /// A piece of no bytes: whoever sized it was wrong.
    EmptyPiece {
        /// Its stream.
        stream: Stream,
        /// Its index.
        index: usize,
    },
    /// A stream that ends before the total.
    ShortStream {
        /// The stream.
        stream: Stream,
        /// Bytes it holds.
        bytes: u64,
        /// Bytes asked for.
        total: u64,
    },
}

impl fmt::Display for CutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyPiece { stream, index } => {
                write!(f, "{stream:?} piece {index}: expected at least one byte, got 0")
            }
            Self::ShortStream { stream, bytes, total } => {
                write!(f, "{stream:?} stream: expected at least {total} bytes, got {bytes}")
            }
        }
    }
}

impl std::error::Error for CutError {}

/// Cuts the first `total` bytes of two streams, given by the sizes of their pieces.
///
/// No bytes make no cuts. The cuts ascend, touch, and number fewer than the pieces of both.
pub fn cut(source: &[u64], target: &[u64], total: u64) -> Result<Vec<Cut>, CutError> {
    for (stream, pieces) in [(Stream::Source, source), (Stream::Target, target)] {
        if let Some(index) = pieces.iter().position(|&size| size == 0) {
            return Err(CutError::EmptyPiece { stream, index });
        }
        let bytes = pieces.iter().fold(0u64, |sum, &size| sum.saturating_add(size));
        if bytes < total {
            return Err(CutError::ShortStream { stream, bytes, total });
        }
    }
    let mut cuts = Vec::with_capacity(source.len() + target.len());
    let mut at = Cut { source: 0, source_offset: 0, target: 0, target_offset: 0, len: 0 };
    let mut rest = total;
    while rest > 0 {
        let (source_left, target_left) =
            (source[at.source] - at.source_offset, target[at.target] - at.target_offset);
        let len = source_left.min(target_left).min(rest);
        cuts.push(Cut { len, ..at });
        rest -= len;
        (at.source, at.source_offset) = advance(at.source, at.source_offset + len, source);
        (at.target, at.target_offset) = advance(at.target, at.target_offset + len, target);
    }
    Ok(cuts)
}

fn advance(index: usize, offset: u64, pieces: &[u64]) -> (usize, u64) {
    if offset == pieces[index] { (index + 1, 0) } else { (index, offset) }
}

/// A piece of every image: bytes of one segment of the slot and of one region of one unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Segment of the image.
    pub segment: u32,
    /// First byte in the segment, in the image's own order.
    pub segment_offset: u64,
    /// Unit of the checkpoint, by its canonical number.
    pub unit: u32,
    /// Region of the page.
    pub region: u32,
    /// First byte in the region of the page.
    pub region_offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// A part of a span that one thread group moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tile {
    /// Index of the span.
    pub span: u32,
    /// First byte in the span.
    pub start: u64,
    /// Number of bytes: the tile size, or what is left of the span.
    pub len: u64,
}

/// The spans of a layout's images.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyPlan {
    spans: Vec<Span>,
    layout: LayoutTag,
    image: Bytes,
    units: Pages,
}

impl CopyPlan {
    /// Cuts a layout's image stream against the unit stream of one checkpoint.
    pub fn new(layout: &StateLayout) -> Self {
        let segments: Vec<u64> = layout.image.segments().iter().map(Segment::len).collect();
        let regions: Vec<u64> = layout.page.regions().iter().map(|r| r.len.get()).collect();
        let (image, units) = (layout.image.image_bytes(), layout.units_per_checkpoint());
        let unit_stream = regions.repeat(units.index());
        let cuts = cut(&segments, &unit_stream, image.get())
            .expect("a checked layout has no empty piece and enough units for its image");
        let span = |cut: &Cut| Span {
            segment: cut.source as u32,
            segment_offset: cut.source_offset,
            unit: (cut.target / regions.len()) as u32,
            region: (cut.target % regions.len()) as u32,
            region_offset: cut.target_offset,
            len: cut.len,
        };
        Self { spans: cuts.iter().map(span).collect(), layout: layout.id.tag(), image, units }
    }

    /// The spans, in the order of the image stream.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Layout that was cut.
    pub fn layout(&self) -> LayoutTag {
        self.layout
    }

    /// Bytes of one image.
    pub fn image_bytes(&self) -> Bytes {
        self.image
    }

    /// Units of one image.
    pub fn units(&self) -> Pages {
        self.units
    }

    /// The tiles of one image in the order of its spans, each of `tile` bytes but a span's last.
    ///
    /// # Panics
    /// Where `tile` is zero.
    pub fn tiles(&self, tile: u64) -> impl Iterator<Item = Tile> {
        self.spans.iter().enumerate().flat_map(move |(index, span)| {
            (0..span.len.div_ceil(tile)).map(move |number| {
                let start = number * tile;
                Tile { span: index as u32, start, len: tile.min(span.len - start) }
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lens(source: &[u64], target: &[u64], total: u64) -> Vec<u64> {
        cut(source, target, total).unwrap().iter().map(|cut| cut.len).collect()
    }

    #[test]
    fn cuts_at_every_border_of_both() {
        assert_eq!(lens(&[5, 5], &[3, 7], 10), [3, 2, 5]);
        assert_eq!(lens(&[5, 5], &[5, 5], 10), [5, 5]);
        assert_eq!(lens(&[10], &[4, 4, 4], 9), [4, 4, 1]);
        assert_eq!(lens(&[1, 2, 3], &[6], 6), [1, 2, 3]);
        assert_eq!(lens(&[1], &[1], 0), []);
        assert_eq!(lens(&[], &[], 0), []);
        let last = cut(&[5, 5], &[3, 7], 10).unwrap()[2];
        assert_eq!(last, Cut { source: 1, source_offset: 0, target: 1, target_offset: 2, len: 5 });
    }

    #[test]
    fn refuses_short_streams_and_empty_pieces() {
        let short = |stream, bytes| Err(CutError::ShortStream { stream, bytes, total: 10 });
        assert_eq!(cut(&[9], &[10], 10), short(Stream::Source, 9));
        assert_eq!(cut(&[10], &[3, 3], 10), short(Stream::Target, 6));
        assert_eq!(
            cut(&[1, 0, 1], &[2], 2),
            Err(CutError::EmptyPiece { stream: Stream::Source, index: 1 })
        );
        assert_eq!(
            cut(&[2], &[2, 0], 2),
            Err(CutError::EmptyPiece { stream: Stream::Target, index: 1 })
        );
        assert_eq!(lens(&[u64::MAX, u64::MAX], &[u64::MAX, 1], 3), [3], "sizes do not wrap");
    }
}
