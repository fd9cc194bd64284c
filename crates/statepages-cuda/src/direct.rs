//! The layout of images as an argument of a kernel: where it is small enough, no block reads a table
//! to learn its addresses.
//!
//! A block has a (tile of the unit, unit, operation). Tiles cut the stream of one unit, region by
//! region, into equal parts of whole cache lines; all units are cut alike, and so are the regions of a
//! class. Where a vector lies in the slot is looked up among the few runs of the image, so images with
//! rings are not for this kernel.
//!
//! The kernels' source states the record byte by byte.

use std::ffi::c_void;

use statepages_page::{Segment, StateLayout};

use crate::KernelShape;
use crate::shape::VECTOR_BYTES;
use crate::tables::{Place, vectors};

/// Most classes of regions, runs and regions: `DIRECT_CLASSES`, `DIRECT_RUNS` and `DIRECT_REGIONS` of
/// the kernels' source.
const CLASSES_MAX: usize = 4;
const RUNS_MAX: usize = 4;
const REGIONS_MAX: usize = 64;
/// Bytes of the record, and of its parts.
const RECORD_BYTES: usize =
    16 + CLASS_BYTES * CLASSES_MAX + RUN_BYTES * RUNS_MAX + REGION_BYTES * REGIONS_MAX;
const CLASS_BYTES: usize = 32;
const RUN_BYTES: usize = 16;
const REGION_BYTES: usize = 8;
/// Tiles are cut in vectors of a cache line.
const LINE_VECTORS: u32 = 8;
/// Where classes and runs begin that a layout does not have: no tile and no vector lies behind.
const NOWHERE: u32 = u32::MAX;

/// The layout in the form in which the kernel reads it.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Direct {
    /// `RECORD_BYTES`.
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
        let cut = Cut::new(layout, regions, shape.tile_vectors())?;
        let (units, image) = (layout.units_per_checkpoint().get(), layout.image.image_bytes());
        let mut record = Vec::with_capacity(RECORD_BYTES);
        for word in [units, cut.vectors, vectors(image.get()), 0] {
            record.extend_from_slice(&word.to_le_bytes());
        }
        for class in 0..CLASSES_MAX {
            let absent = Class { tile: NOWHERE, ..cut.classes[0] };
            let class = cut.classes.get(class).unwrap_or(&absent);
            for word in class.words() {
                record.extend_from_slice(&word.to_le_bytes());
            }
        }
        record.extend_from_slice(&runs);
        for place in regions {
            record.extend_from_slice(&place.address.to_le_bytes());
        }
        assert!(record.len() <= RECORD_BYTES, "counts were checked");
        record.resize(RECORD_BYTES, 0);
        Some(Self { record, tiles: cut.tiles, units })
    }

    /// The record's first byte, for a driver that reads it during a call.
    pub(crate) fn record(&self) -> *mut c_void {
        self.record.as_ptr().cast_mut().cast()
    }
}

/// Consecutive regions of one length and stride.
#[derive(Clone, Copy)]
struct Class {
    /// Of the first region: its first tile, its index, vectors of the unit before it.
    tile: u32,
    region: u32,
    start: u32,
    /// Of each region: tiles, vectors of a tile but the last, vectors, vectors from page to page.
    tiles: u32,
    step: u32,
    len: u32,
    stride: u32,
}

impl Class {
    fn words(&self) -> [u32; 8] {
        // The kernel multiplies where it would divide: with at most 2^31 / tiles tiles, exactly.
        let reciprocal = (1_u64 << 31).div_ceil(u64::from(self.tiles)) as u32;
        let Self { tile, region, start, tiles, step, len, stride } = *self;
        [tile, region, start, tiles, reciprocal, step, len, stride]
    }
}

/// A page, cut.
struct Cut {
    classes: Vec<Class>,
    tiles: u32,
    vectors: u32,
}

impl Cut {
    fn new(layout: &StateLayout, places: &[Place], tile_vectors: u32) -> Option<Self> {
        let regions = layout.page.regions();
        if regions.len() > REGIONS_MAX {
            return None;
        }
        let mut cut = Self { classes: Vec::new(), tiles: 0, vectors: 0 };
        for (index, (region, place)) in (0..).zip(regions.iter().zip(places)) {
            let (len, stride) = (vectors(region.len.get()), vectors(place.stride));
            let parts = len.div_ceil(tile_vectors);
            let step = len.div_ceil(parts).next_multiple_of(LINE_VECTORS);
            let tiles = len.div_ceil(step);
            let like = |class: &Class| (class.len, class.stride) == (len, stride);
            if !cut.classes.last().is_some_and(like) {
                let (tile, start) = (cut.tiles, cut.vectors);
                cut.classes.push(Class { tile, region: index, start, tiles, step, len, stride });
            }
            cut.tiles += tiles;
            cut.vectors += len;
            // A class's tiles times those of a region: what the reciprocal is exact for.
            if u64::from(cut.tiles) * u64::from(tiles) >= 1 << 31 {
                return None;
            }
        }
        (cut.classes.len() <= CLASSES_MAX).then_some(cut)
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
        // A kernel's arithmetic wraps as this does.
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
        // 130 vectors in tiles of at most 64: three of 48, 48 and 34; then two regions of one tile.
        let direct = direct(&[130, 3, 3], &[200]).unwrap();
        assert_eq!((direct.tiles, direct.units), (5, 2));
        let word = |at: usize| u32::from_le_bytes(direct.record[at..][..4].try_into().unwrap());
        let class = |n: usize| (0..8).map(|k| word(16 + 32 * n + 4 * k)).collect::<Vec<_>>();
        assert_eq!(class(0), [0, 0, 0, 3, 715_827_883, 48, 130, 130]);
        assert_eq!(class(1), [3, 1, 130, 1, 1 << 31, 8, 3, 3]);
        assert_eq!(class(2)[0], NOWHERE);
    }

    #[test]
    fn layouts_beyond_the_record_are_left_to_tables() {
        assert!(direct(&[1; REGIONS_MAX], &[9; RUNS_MAX]).is_some());
        assert!(direct(&[1; REGIONS_MAX + 1], &[9]).is_none());
        assert!(direct(&[9], &[9; RUNS_MAX + 1]).is_none());
        assert!(direct(&[1, 2, 3, 4, 4], &[9]).is_some());
        assert!(direct(&[1, 2, 3, 4, 3], &[9]).is_none());
    }

    #[test]
    fn kernels_declare_the_same_record() {
        let counts = [("CLASSES", CLASSES_MAX), ("RUNS", RUNS_MAX), ("REGIONS", REGIONS_MAX)];
        for (name, count) in counts {
            let declared = format!("#define DIRECT_{name} {count}u\n");
            assert!(KERNEL_SOURCE.contains(&declared), "{declared}");
        }
    }
}
