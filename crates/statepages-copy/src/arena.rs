//! Host memory of pages and slots: one buffer per page region and one per slot plane.

use std::fmt;

use bytemuck::{Pod, Zeroable};
use statepages_page::{Bytes, PageId, Pages, SlotId, StateLayout};

use crate::{HostMemory, PagePlace, SlotPlace};

/// One cache line; buffers are vectors of these, so every row view is aligned.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A buffer of equal items, item `i` at byte `i * stride`.
struct Buffer {
    lines: Vec<Line>,
    stride: usize,
    items: usize,
}

impl Buffer {
    fn new(stride: Bytes, items: usize) -> Result<Self, ArenaError> {
        let stride = usize::try_from(stride.get()).map_err(|_| ArenaError { bytes: stride })?;
        let bytes = stride.checked_mul(items).ok_or(ArenaError { bytes: Bytes::new(u64::MAX) })?;
        let count = bytes.div_ceil(size_of::<Line>());
        let mut lines = Vec::new();
        lines
            .try_reserve_exact(count)
            .map_err(|_| ArenaError { bytes: Bytes::new(bytes as u64) })?;
        lines.resize(count, Line::zeroed());
        Ok(Self { lines, stride, items })
    }

    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.stride * self.items]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.stride * self.items;
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..len]
    }

    fn item(&self, index: usize) -> &[u8] {
        &self.bytes()[index * self.stride..][..self.stride]
    }

    fn item_mut(&mut self, index: usize) -> &mut [u8] {
        let stride = self.stride;
        &mut self.bytes_mut()[index * stride..][..stride]
    }
}

/// The host's pages and slots.
///
/// Buffers start on a cache line, and every length of a valid layout is a multiple of 16 bytes, so
/// rows may be viewed as `u16`, `f32` and the like without copying.
pub struct HostArena {
    regions: Vec<Buffer>,
    planes: Vec<Buffer>,
}

/// Memory that the host does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArenaError {
    /// What was asked for.
    pub bytes: Bytes,
}

impl fmt::Display for ArenaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the host cannot give {} bytes for pages and slots", self.bytes)
    }
}

impl std::error::Error for ArenaError {}

impl HostArena {
    /// Zeroed memory for `pages` pages and `slots` slots.
    pub fn new(layout: &StateLayout, pages: Pages, slots: u32) -> Result<Self, ArenaError> {
        let regions = layout.page.regions().iter();
        let planes = layout.slot.planes().iter();
        Ok(Self {
            regions: regions
                .map(|region| Buffer::new(region.len, pages.index()))
                .collect::<Result<_, _>>()?,
            planes: planes
                .map(|plane| Buffer::new(plane.len, slots as usize))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Number of pages.
    pub fn pages(&self) -> Pages {
        Pages::new(self.regions.first().map_or(0, |buffer| buffer.items) as u32)
    }

    /// Number of slots.
    pub fn slots(&self) -> u32 {
        self.planes.first().map_or(0, |buffer| buffer.items) as u32
    }

    /// Bytes of `page` in one region.
    ///
    /// # Panics
    /// Where the region or the page does not exist.
    pub fn page(&self, region: usize, page: PageId) -> &[u8] {
        self.regions[region].item(page.index())
    }

    /// Bytes of `page` in one region, for writing.
    ///
    /// # Panics
    /// Where the region or the page does not exist.
    pub fn page_mut(&mut self, region: usize, page: PageId) -> &mut [u8] {
        self.regions[region].item_mut(page.index())
    }

    /// Bytes of `slot` in one plane.
    ///
    /// # Panics
    /// Where the plane or the slot does not exist.
    pub fn slot(&self, plane: usize, slot: SlotId) -> &[u8] {
        self.planes[plane].item(slot.index())
    }

    /// Bytes of `slot` in one plane, for writing.
    ///
    /// # Panics
    /// Where the plane or the slot does not exist.
    pub fn slot_mut(&mut self, plane: usize, slot: SlotId) -> &mut [u8] {
        self.planes[plane].item_mut(slot.index())
    }

    /// Number of slot planes.
    pub fn planes(&self) -> usize {
        self.planes.len()
    }

    /// Bytes of several slots, for threads that write one each: all planes of the first, then all of
    /// the second, and so on. Takes the order of the slots' number times its logarithm.
    ///
    /// # Panics
    /// Where a slot does not exist, or is asked for twice.
    pub fn slots_mut(&mut self, slots: &[SlotId]) -> Vec<&mut [u8]> {
        let planes = self.planes.len();
        let mut ascending: Vec<usize> = (0..slots.len()).collect();
        ascending.sort_unstable_by_key(|&i| slots[i]);
        let mut lent: Vec<&mut [u8]> = Vec::new();
        lent.resize_with(slots.len() * planes, Default::default);
        for (plane, buffer) in self.planes.iter_mut().enumerate() {
            let stride = buffer.stride;
            let (mut rest, mut next) = (buffer.bytes_mut(), 0);
            for &i in &ascending {
                let between = slots[i].index().checked_sub(next).expect("each slot is lent once");
                let (slot, behind) = rest[between * stride..].split_at_mut(stride);
                (lent[i * planes + plane], rest) = (slot, behind);
                next = slots[i].index() + 1;
            }
        }
        lent
    }

    /// Copies a whole slot, plane by plane.
    ///
    /// # Panics
    /// Where either slot does not exist.
    pub fn move_slot(&mut self, from: SlotId, to: SlotId) {
        for plane in &mut self.planes {
            let (from, to, stride) = (from.index(), to.index(), plane.stride);
            assert!(from < plane.items && to < plane.items, "relocation outside the slots");
            plane.bytes_mut().copy_within(from * stride..(from + 1) * stride, to * stride);
        }
    }
}

impl HostMemory for HostArena {
    fn pages(&self) -> Pages {
        Self::pages(self)
    }

    fn slots(&self) -> u32 {
        Self::slots(self)
    }

    fn scatter(&mut self, from: SlotPlace, to: PagePlace, bytes: usize) {
        let source = &self.planes[from.plane].item(from.slot.index())[from.offset..][..bytes];
        let target = self.regions[to.region].item_mut(to.page.index());
        target[to.offset..][..bytes].copy_from_slice(source);
    }

    fn gather(&mut self, from: PagePlace, to: SlotPlace, bytes: usize) {
        let source = &self.regions[from.region].item(from.page.index())[from.offset..][..bytes];
        let target = self.planes[to.plane].item_mut(to.slot.index());
        target[to.offset..][..bytes].copy_from_slice(source);
    }

    fn move_slot(&mut self, from: SlotId, to: SlotId) {
        Self::move_slot(self, from, to);
    }
}
