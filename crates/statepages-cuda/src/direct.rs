//! The layout of images as an argument of a kernel: where it is small enough, no block reads a table
//! to learn its addresses.
//!
//! A block has a (tile of the unit, unit, operation). Tiles cut the stream of one unit, region by
//! region, into equal parts, so that every write to a page begins on a border of 128 bytes where its
//! region does; all units are cut alike. Where a vector lies in the slot is looked up among the few
//! runs of the image, so images with rings are not for this kernel.
//!
//! The kernels' source states the record byte by byte.

use std::ffi::c_void;

use statepages_page::{Segment, StateLayout};

use crate::KernelShape;
use crate::shape::VECTOR_BYTES;
use crate::tables::{Place, vectors};

/// Most tiles of a unit, regions of a page and runs of an image: `DIRECT_TILES`, `DIRECT_REGIONS` and
/// `DIRECT_RUNS` of the kernels' source.
const TILES_MAX: usize = 768;
const REGIONS_MAX: usize = 36;
const RUNS_MAX: usize = 4;
/// Bytes of the record.
const DIRECT_BYTES: usize = 16 + TILES_MAX + 24 * REGIONS_MAX + 16 * RUNS_MAX;
/// Tiles are cut in vectors of a cache line.
const LINE_VECTORS: u32 = 8;
/// Of runs that an image does not have: no vector lies behind it.
const NOWHERE: u32 = u32::MAX;

/// The layout in the form in which the kernel reads it.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Direct {
    /// `DIRECT_BYTES`.
    record: Vec<u8>,
    /// Blocks that one unit takes.
    pub(crate) tiles: u32,
    pub(crate) units: u32,
}

impl Direct {
    /// `None` where the image has rings, or more of anything than the record holds.
    pub(crate) fn new(
        layout: &StateLayout,
        (regions, planes): (&[Place], &[Place]),
        shape: KernelShape,
    ) -> Option<Self> {
        let runs = runs(layout, planes)?;
        let tiled = Tiled::new(layout, regions, shape.tile_vectors())?;
        let (units, image) = (layout.units_per_checkpoint().get(), layout.image.image_bytes());
        let mut record = Vec::with_capacity(DIRECT_BYTES);
        for word in [units, tiled.unit_vectors, vectors(image.get()), 0] {
            record.extend_from_slice(&word.to_le_bytes());
        }
        let tiles = tiled.region_of.len() as u32;
        record.extend_from_slice(&tiled.region_of);
        record.resize(16 + TILES_MAX, 0);
        record.extend_from_slice(&tiled.regions);
        record.resize(DIRECT_BYTES - 16 * RUNS_MAX, 0);
        record.extend_from_slice(&runs);
        assert_eq!(record.len(), DIRECT_BYTES, "a whole record");
        Some(Self { record, tiles, units })
    }

    /// The record's first byte, for a driver that reads it during a call.
    pub(crate) fn record(&self) -> *mut c_void {
        self.record.as_ptr().cast_mut().cast()
    }
}

/// A page, cut.
struct Tiled {
    region_of: Vec<u8>,
    regions: Vec<u8>,
    unit_vectors: u32,
}

impl Tiled {
    fn new(layout: &StateLayout, places: &[Place], tile_vectors: u32) -> Option<Self> {
        if places.len() > REGIONS_MAX {
            return None;
        }
        let mut cut = Self { region_of: Vec::new(), regions: Vec::new(), unit_vectors: 0 };
        for (index, (region, place)) in layout.page.regions().iter().zip(places).enumerate() {
            let (len, start) = (vectors(region.len.get()), cut.unit_vectors);
            let parts = len.div_ceil(tile_vectors);
            let step = len.div_ceil(parts).next_multiple_of(LINE_VECTORS);
            let first = cut.region_of.len();
            let end = first + len.div_ceil(step) as usize;
            if end > TILES_MAX {
                return None;
            }
            cut.region_of.resize(end, index as u8);
            // As of vector 0 of the unit; a kernel's arithmetic wraps as this does.
            let base = place.address.wrapping_sub(u64::from(start) * VECTOR_BYTES);
            cut.regions.extend_from_slice(&base.to_le_bytes());
            for word in [vectors(place.stride), start, start + len, first as u32 | step << 16] {
                cut.regions.extend_from_slice(&word.to_le_bytes());
            }
            cut.unit_vectors += len;
        }
        Some(cut)
    }
}

/// The image's runs in the slot, in the order of its stream.
fn runs(layout: &StateLayout, planes: &[Place]) -> Option<Vec<u8>> {
    let segments = layout.image.segments();
    if segments.len() > RUNS_MAX {
        return None;
    }
    let (mut runs, mut start) = (Vec::new(), 0);
    for segment in segments {
        let &Segment::Fixed { plane, offset, len } = segment else { return None };
        let place = planes[usize::from(plane)];
        let base = (place.address + offset).wrapping_sub(u64::from(start) * VECTOR_BYTES);
        runs.extend_from_slice(&base.to_le_bytes());
        for word in [vectors(place.stride), start] {
            runs.extend_from_slice(&word.to_le_bytes());
        }
        start += vectors(len);
    }
    for _ in segments.len()..RUNS_MAX {
        runs.extend_from_slice(&[0; 12]);
        runs.extend_from_slice(&NOWHERE.to_le_bytes());
    }
    Some(runs)
}

#[cfg(test)]
mod tests {
    use statepages_page::{
        Bytes, ImageLayout, ImageRule, LayoutId, PageLayout, Plane, Region, SlotLayout,
    };

    use super::*;
    use crate::KERNEL_SOURCE;

    fn direct(regions: &[u64], segments: &[u64]) -> Option<Direct> {
        let region = |&len: &u64| Region { name: "r".into(), len: Bytes::new(16 * len) };
        let plane = |&len: &u64| Plane { name: "p".into(), len: Bytes::new(16 * len) };
        let slot = SlotLayout::new(segments.iter().map(plane).collect()).unwrap();
        let fixed = (0..).zip(segments).map(|(plane, &len)| Segment::Fixed {
            plane,
            offset: 0,
            len: 16 * len,
        });
        let image = ImageLayout::new(ImageRule::Whole, fixed.collect(), &slot).unwrap();
        let layout = StateLayout {
            id: LayoutId::new("t").unwrap(),
            page: PageLayout::new(regions.iter().map(region).collect()).unwrap(),
            slot,
            image,
        };
        let place = |(at, &len): (u64, &u64)| Place { address: at << 30, stride: 16 * len };
        let regions: Vec<Place> = (1..).zip(regions).map(place).collect();
        let planes: Vec<Place> = (100..).zip(segments).map(place).collect();
        Direct::new(&layout, (&regions, &planes), KernelShape::new(64, 1, 1).unwrap())
    }

    #[test]
    fn regions_are_cut_into_equal_parts_of_whole_lines() {
        // 130 vectors in tiles of at most 64: three of 48, 48 and 34; then one of 3.
        let direct = direct(&[130, 3], &[200]).unwrap();
        assert_eq!((direct.tiles, direct.units), (4, 2));
        assert_eq!(direct.record[16..20], [0, 0, 0, 1]);
        let word = |at: usize| u32::from_le_bytes(direct.record[at..][..4].try_into().unwrap());
        let regions = 16 + TILES_MAX;
        assert_eq!([0, 4, 8, 12].map(|at| word(regions + 8 + at)), [130, 0, 130, 48 << 16]);
        assert_eq!([0, 4, 8, 12].map(|at| word(regions + 32 + at)), [3, 130, 133, 3 | 8 << 16]);
    }

    #[test]
    fn layouts_beyond_the_record_are_left_to_tables() {
        assert!(direct(&[1; REGIONS_MAX], &[9; RUNS_MAX]).is_some());
        assert!(direct(&[1; REGIONS_MAX + 1], &[9]).is_none());
        assert!(direct(&[9], &[9; RUNS_MAX + 1]).is_none());
        assert!(direct(&[64 * TILES_MAX as u64], &[9]).is_some());
        assert!(direct(&[64 * TILES_MAX as u64 + 1], &[9]).is_none());
    }

    #[test]
    fn kernels_declare_the_same_record() {
        for (name, count) in [("TILES", TILES_MAX), ("REGIONS", REGIONS_MAX), ("RUNS", RUNS_MAX)] {
            let declared = format!("#define DIRECT_{name} {count}u\n");
            assert!(KERNEL_SOURCE.contains(&declared), "{declared}");
        }
    }
}
