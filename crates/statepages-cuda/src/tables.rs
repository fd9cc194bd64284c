//! Resident tables: what one image and one slot are made of, cut into tiles once for a memory.
//!
//! A tile is what one block of threads moves: up to [`KernelShape::tile_vectors`] vectors of the
//! image stream, whole but for the last one of an image, so that every block has the same work. It
//! crosses up to [`PIECES_MAX`] spans; a tile with more borders ends early. Addresses are affine in
//! unit and slot ids, which alone an operation brings.
//!
//! The kernels' source states the records byte by byte.

use statepages_copy::CopyPlan;
use statepages_page::{Segment, StateLayout};

use crate::KernelShape;
use crate::shape::VECTOR_BYTES;

/// Spans that one tile may touch.
const PIECES_MAX: usize = 4;
/// In a piece: its bytes are one run in the slot.
const NO_RING: u32 = u32::MAX;

/// Where the items of a region or a plane lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// Address of item 0.
    pub(crate) address: u64,
    /// Bytes from one item to the next.
    pub(crate) stride: u64,
}

/// Tables in the form in which they are uploaded.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Tables {
    /// Tiles of an image.
    pub(crate) tiles: Vec<u8>,
    pub(crate) tile_count: u32,
    /// Ring runs that pieces name.
    pub(crate) rings: Vec<u8>,
    /// Tiles of a slot, for relocations.
    pub(crate) slot_tiles: Vec<u8>,
    pub(crate) slot_tile_count: u32,
}

#[derive(Clone, Copy)]
struct Piece {
    /// Vectors of the tile before this piece.
    start: u32,
    len: u32,
    page: Place,
    slot: Place,
    unit: u32,
    ring: u32,
    /// For a ring: vectors of the segment before this piece.
    first: u32,
}

impl Tables {
    /// Cuts images and slots of a layout whose regions and planes lie at these places.
    pub(crate) fn new(
        layout: &StateLayout,
        plan: &CopyPlan,
        (regions, planes): (&[Place], &[Place]),
        shape: KernelShape,
    ) -> Self {
        let segments = layout.image.segments();
        let (rings, ring_of) = ring_table(segments);
        let mut tiles = TileWriter::new(shape.tile_vectors());
        for span in plan.spans() {
            let segment = &segments[span.segment as usize];
            let plane = planes[usize::from(segment.plane())];
            let region = regions[span.region as usize];
            let ring = ring_of[span.segment as usize];
            let (in_plane, first) = match segment {
                Segment::Fixed { offset, .. } => (offset + span.segment_offset, 0),
                Segment::Ring { run, .. } => (run.offset, vectors(span.segment_offset)),
            };
            tiles.push(Piece {
                start: 0,
                len: vectors(span.len),
                page: Place { address: region.address + span.region_offset, ..region },
                slot: Place { address: plane.address + in_plane, ..plane },
                unit: span.unit,
                ring,
                first,
            });
        }
        let (tiles, tile_count) = tiles.finish();
        let (slot_tiles, slot_tile_count) = slot_table(layout, planes, shape.tile_vectors());
        Self { tiles, tile_count, rings, slot_tiles, slot_tile_count }
    }
}

/// Bytes in vectors.
pub(crate) fn vectors(bytes: u64) -> u32 {
    assert!(bytes.is_multiple_of(VECTOR_BYTES), "layouts are multiples of 16 bytes");
    u32::try_from(bytes / VECTOR_BYTES).expect("a segment below 64 GiB")
}

/// The ring runs, and for each segment the index of its own.
fn ring_table(segments: &[Segment]) -> (Vec<u8>, Vec<u32>) {
    let mut table = Vec::new();
    let mut count = 0;
    let index_of = segments.iter().map(|segment| {
        let Segment::Ring { run, .. } = segment else { return NO_RING };
        for word in [vectors(u64::from(run.row_bytes)), run.rows, run.ring, run.stride] {
            table.extend_from_slice(&word.to_le_bytes());
        }
        for word in [run.outer, run.inner] {
            table.extend_from_slice(&word.to_le_bytes());
        }
        count += 1;
        count - 1
    });
    let index_of = index_of.collect();
    (table, index_of)
}

fn slot_table(layout: &StateLayout, planes: &[Place], tile_vectors: u32) -> (Vec<u8>, u32) {
    let (mut table, mut count) = (Vec::new(), 0);
    for (plane, place) in layout.slot.planes().iter().zip(planes) {
        let total = vectors(plane.len.get());
        for start in (0..total).step_by(tile_vectors as usize) {
            let address = place.address + u64::from(start) * VECTOR_BYTES;
            for word in [address, place.stride] {
                table.extend_from_slice(&word.to_le_bytes());
            }
            for word in [tile_vectors.min(total - start), 0, 0, 0] {
                table.extend_from_slice(&word.to_le_bytes());
            }
            count += 1;
        }
    }
    (table, count)
}

/// Fills tile after tile.
struct TileWriter {
    tile_vectors: u32,
    open: Vec<Piece>,
    table: Vec<u8>,
    count: u32,
}

impl TileWriter {
    fn new(tile_vectors: u32) -> Self {
        Self { tile_vectors, open: Vec::with_capacity(PIECES_MAX), table: Vec::new(), count: 0 }
    }

    /// Appends a span, cut where tiles end.
    fn push(&mut self, mut rest: Piece) {
        while rest.len > 0 {
            let mut start = self.filled();
            if start == self.tile_vectors || self.open.len() == PIECES_MAX {
                self.close();
                start = 0;
            }
            let len = rest.len.min(self.tile_vectors - start);
            self.open.push(Piece { start, len, ..rest });
            let bytes = u64::from(len) * VECTOR_BYTES;
            rest.page.address += bytes;
            if rest.ring == NO_RING {
                rest.slot.address += bytes;
            } else {
                rest.first += len;
            }
            rest.len -= len;
        }
    }

    fn filled(&self) -> u32 {
        self.open.last().map_or(0, |piece| piece.start + piece.len)
    }

    fn close(&mut self) {
        let Some(&last) = self.open.last() else { return };
        // Pieces that the tile does not have repeat the last one, so that whatever a kernel reads
        // there is sound.
        self.open.resize(PIECES_MAX, last);
        for piece in &self.open {
            self.table.extend_from_slice(&(piece.start + piece.len).to_le_bytes());
        }
        for piece in &self.open {
            let before = u64::from(piece.start) * VECTOR_BYTES;
            // As of vector 0 of the tile; a kernel's arithmetic wraps as this does.
            let page = piece.page.address.wrapping_sub(before);
            let (slot, first) = if piece.ring == NO_RING {
                (piece.slot.address.wrapping_sub(before), 0)
            } else {
                (piece.slot.address, piece.first.wrapping_sub(piece.start))
            };
            for word in [page, piece.page.stride, slot, piece.slot.stride] {
                self.table.extend_from_slice(&word.to_le_bytes());
            }
            for word in [piece.unit, piece.ring, first, 0] {
                self.table.extend_from_slice(&word.to_le_bytes());
            }
        }
        self.open.clear();
        self.count += 1;
    }

    fn finish(mut self) -> (Vec<u8>, u32) {
        self.close();
        (self.table, self.count)
    }
}

#[cfg(test)]
mod tests {
    use statepages_page::{
        Bytes, ImageLayout, ImageRule, LayoutId, PageLayout, Plane, Region, SlotLayout,
    };

    use super::*;

    fn layout(regions: &[u64], planes: &[u64]) -> StateLayout {
        let region = |&len: &u64| Region { name: "r".into(), len: Bytes::new(len) };
        let plane = |&len: &u64| Plane { name: "p".into(), len: Bytes::new(len) };
        let slot = SlotLayout::new(planes.iter().map(plane).collect()).unwrap();
        let segments = planes.iter().enumerate().map(|(index, &len)| Segment::Fixed {
            plane: index as u16,
            offset: 0,
            len,
        });
        let image = ImageLayout::new(ImageRule::Whole, segments.collect(), &slot).unwrap();
        StateLayout {
            id: LayoutId::new("t").unwrap(),
            page: PageLayout::new(regions.iter().map(region).collect()).unwrap(),
            slot,
            image,
        }
    }

    fn ends(table: &[u8], tile: usize) -> [u32; 4] {
        let word = |k: usize| table[tile * 208 + k * 4..][..4].try_into().unwrap();
        [0, 1, 2, 3].map(|k| u32::from_le_bytes(word(k)))
    }

    #[test]
    fn tiles_are_full_across_spans_and_end_at_too_many() {
        let shape = KernelShape::new(64, 1, 1).unwrap();
        // Spans of 40, 40, 40 and 10 vectors: tiles of 64, 64 and 2.
        let wide = layout(&[640], &[130 * 16]);
        let places = (
            &[Place { address: 1 << 20, stride: 640 }][..],
            &[Place { address: 1 << 30, stride: 130 * 16 }][..],
        );
        let tables = Tables::new(&wide, &CopyPlan::new(&wide), places, shape);
        assert_eq!(tables.tile_count, 3);
        assert_eq!(ends(&tables.tiles, 0), [40, 64, 64, 64]);
        assert_eq!(ends(&tables.tiles, 1), [16, 56, 64, 64]);
        assert_eq!(ends(&tables.tiles, 2), [2, 2, 2, 2]);
        assert_eq!(tables.slot_tile_count, 3);
        // Spans of one vector each: four to a tile.
        let narrow = layout(&[16], &[96]);
        let places = (
            &[Place { address: 0, stride: 16 }][..],
            &[Place { address: 1 << 30, stride: 96 }][..],
        );
        let tables = Tables::new(&narrow, &CopyPlan::new(&narrow), places, shape);
        assert_eq!(tables.tile_count, 2);
        assert_eq!(ends(&tables.tiles, 0), [1, 2, 3, 4]);
        assert_eq!(ends(&tables.tiles, 1), [1, 2, 2, 2]);
    }
}
