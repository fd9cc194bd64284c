//! A naive twin of the data plane: vectors of bytes, one byte at a time, one operation after
//! another. Shares no code with the crate but the layouts it reads.

use statepages_copy::HostArena;
use statepages_page::{
    Boundary, Bytes, CheckpointId, ImageRule, LayoutId, MaintenanceOps, PageId, Pages, Relocation,
    RestoreOp, Segment, SlotId, StateLayout, StoreOp,
};

/// Pages and slots by (item, buffer, byte).
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Twin {
    pub(crate) pages: Vec<Vec<Vec<u8>>>,
    pub(crate) slots: Vec<Vec<Vec<u8>>>,
}

/// Every byte of the image stream as (plane, byte), by walking rows and bytes.
pub(crate) fn image_walk(layout: &StateLayout, boundary: Boundary) -> Vec<(usize, usize)> {
    let mut walk = Vec::new();
    for segment in layout.image.segments() {
        match *segment {
            Segment::Fixed { plane, offset, len } => {
                for byte in offset..offset + len {
                    walk.push((plane as usize, byte as usize));
                }
            }
            Segment::Ring { plane, run } => {
                for position in boundary.get() - run.rows..boundary.get() {
                    let ring_row = u64::from(position % run.ring);
                    let group = ring_row / u64::from(run.stride);
                    let in_group = ring_row % u64::from(run.stride);
                    let start = run.offset + group * run.outer + in_group * run.inner;
                    for byte in start..start + u64::from(run.row_bytes) {
                        walk.push((plane as usize, byte as usize));
                    }
                }
            }
        }
    }
    walk
}

/// Every byte of the unit stream as (unit, region, byte).
pub(crate) fn unit_walk(layout: &StateLayout) -> Vec<(usize, usize, usize)> {
    let mut walk = Vec::new();
    for unit in 0..layout.units_per_checkpoint().index() {
        for (region, of) in layout.page.regions().iter().enumerate() {
            walk.extend((0..of.len.index()).map(|byte| (unit, region, byte)));
        }
    }
    walk
}

impl Twin {
    /// Bytes that differ almost everywhere, from a seed.
    pub(crate) fn filled(layout: &StateLayout, pages: u32, slots: u32, seed: u64) -> Self {
        let mut state = seed | 1;
        let mut fill = |len: usize| -> Vec<u8> {
            let mut next = || {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 33) as u8
            };
            (0..len).map(|_| next()).collect()
        };
        let regions: Vec<usize> =
            layout.page.regions().iter().map(|region| region.len.index()).collect();
        let planes: Vec<usize> =
            layout.slot.planes().iter().map(|plane| plane.len.index()).collect();
        Self {
            pages: (0..pages).map(|_| regions.iter().map(|&len| fill(len)).collect()).collect(),
            slots: (0..slots).map(|_| planes.iter().map(|&len| fill(len)).collect()).collect(),
        }
    }

    /// The same bytes as the crate holds them.
    pub(crate) fn arena(&self, layout: &StateLayout) -> HostArena {
        let (pages, slots) = (Pages::new(self.pages.len() as u32), self.slots.len() as u32);
        let mut arena = HostArena::new(layout, pages, slots).unwrap();
        for (id, page) in self.pages.iter().enumerate() {
            for (region, bytes) in page.iter().enumerate() {
                arena.page_mut(region, PageId::new(id as u32)).copy_from_slice(bytes);
            }
        }
        for (id, slot) in self.slots.iter().enumerate() {
            for (plane, bytes) in slot.iter().enumerate() {
                arena.slot_mut(plane, SlotId::new(id as u32)).copy_from_slice(bytes);
            }
        }
        arena
    }

    /// Relocations in order, then stores, then restores.
    pub(crate) fn run(&mut self, layout: &StateLayout, ops: &MaintenanceOps) {
        for &Relocation { from, to } in &ops.relocations {
            self.slots[to.index()] = self.slots[from.index()].clone();
        }
        let units = unit_walk(layout);
        for op in &ops.stores {
            let walk = image_walk(layout, op.boundary);
            for (&(plane, byte), &(unit, region, at)) in walk.iter().zip(&units) {
                let page = ops.units(op.units)[unit].index();
                self.pages[page][region][at] = self.slots[op.slot.index()][plane][byte];
            }
        }
        for op in &ops.restores {
            let walk = image_walk(layout, op.boundary);
            for (&(plane, byte), &(unit, region, at)) in walk.iter().zip(&units) {
                let page = ops.units(op.units)[unit].index();
                self.slots[op.slot.index()][plane][byte] = self.pages[page][region][at];
            }
        }
    }

    /// Panics where the crate's memory differs in any byte of any page or slot.
    pub(crate) fn assert_equals(&self, arena: &HostArena, context: &str) {
        for (id, page) in self.pages.iter().enumerate() {
            for (region, bytes) in page.iter().enumerate() {
                let id = PageId::new(id as u32);
                assert!(arena.page(region, id) == bytes, "{context}: page {id}, region {region}");
            }
        }
        for (id, slot) in self.slots.iter().enumerate() {
            for (plane, bytes) in slot.iter().enumerate() {
                let id = SlotId::new(id as u32);
                assert!(arena.slot(plane, id) == bytes, "{context}: slot {id}, plane {plane}");
            }
        }
    }
}

/// Adds a store whose fields all match the layout.
pub(crate) fn store(
    ops: &mut MaintenanceOps,
    layout: &StateLayout,
    slot: u32,
    tokens: u32,
    units: &[u32],
) {
    let (slot, boundary, units) = operands(ops, slot, tokens, units);
    let (image, layout) = (layout.image.image_bytes(), layout.id.tag());
    let checkpoint = CheckpointId::new(ops.stores.len() as u64);
    ops.stores.push(StoreOp { checkpoint, slot, boundary, units, image, layout });
}

/// Adds a restore whose fields all match the layout.
pub(crate) fn restore(
    ops: &mut MaintenanceOps,
    layout: &StateLayout,
    slot: u32,
    tokens: u32,
    units: &[u32],
) {
    let (slot, boundary, units) = operands(ops, slot, tokens, units);
    let (image, layout) = (layout.image.image_bytes(), layout.id.tag());
    let checkpoint = CheckpointId::new(100 + ops.restores.len() as u64);
    ops.restores.push(RestoreOp { checkpoint, slot, boundary, units, image, layout });
}

/// Adds a relocation.
pub(crate) fn relocate(ops: &mut MaintenanceOps, from: u32, to: u32) {
    ops.relocations.push(Relocation { from: SlotId::new(from), to: SlotId::new(to) });
}

fn operands(
    ops: &mut MaintenanceOps,
    slot: u32,
    tokens: u32,
    units: &[u32],
) -> (SlotId, Boundary, statepages_page::UnitRange) {
    let units: Vec<PageId> = units.iter().map(|&unit| PageId::new(unit)).collect();
    (SlotId::new(slot), Boundary::from_raw(tokens), ops.push_units(&units))
}

/// A layout of a few hundred bytes with every feature: two planes, a padded fixed range, rings with
/// and without stride groups, half rows, and regions whose borders fall inside segments.
pub(crate) fn small_layout() -> StateLayout {
    use statepages_page::{ImageLayout, PageLayout, Plane, Region, RingRun, SlotLayout};
    let region = |name: &str, len| Region { name: name.into(), len: Bytes::new(len) };
    let plane = |name: &str, len| Plane { name: name.into(), len: Bytes::new(len) };
    let page = PageLayout::new(vec![region("a", 80), region("b", 32), region("c", 16)]).unwrap();
    let slot = SlotLayout::new(vec![plane("wide", 512), plane("narrow", 160)]).unwrap();
    let half_rows =
        RingRun { rows: 2, ring: 5, stride: 5, outer: 0, inner: 32, row_bytes: 16, offset: 64 };
    let strided =
        RingRun { rows: 4, ring: 5, stride: 2, outer: 64, inner: 16, row_bytes: 16, offset: 256 };
    let segments = vec![
        Segment::Fixed { plane: 0, offset: 16, len: 48 },
        Segment::Ring { plane: 0, run: half_rows },
        Segment::Ring { plane: 0, run: strided },
        Segment::Ring { plane: 0, run: RingRun { offset: 256 + 32, ..strided } },
        Segment::Fixed { plane: 1, offset: 0, len: 144 },
    ];
    let image = ImageLayout::new(ImageRule::Live, segments, &slot).unwrap();
    StateLayout { id: LayoutId::new("small").unwrap(), page, slot, image }
}
