//! Layouts, bundles and memories for comparing backends.

use statepages_copy::HostArena;
use statepages_cuda::{
    Allocation, Buffer, Checks, Device, DeviceBackend, DeviceMemory, DeviceOptions, ForeignBuffer,
    KERNEL_SOURCE, Libraries, Passing, StagingLimits, Stream, pattern,
};
use statepages_geometry::{
    BLOCK_TOKENS, CacheConfig, CacheOptions, Dsv4Geometry, IndexerFormat, KvFormat,
};
use statepages_page::{
    Boundary, Bytes, CheckpointId, ImageLayout, ImageRule, LayoutId, MaintenanceOps, PageId,
    PageLayout, Pages, Plane, Region, Relocation, RestoreOp, RingRun, Segment, SlotId, SlotLayout,
    StateLayout, StoreOp,
};

/// A seeded sequence.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        pattern::mix(self.0)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        (self.roll() % u64::from(end)) as u32
    }
}

/// A choice of formats, ring and rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    pub(crate) kv: KvFormat,
    pub(crate) indexer: IndexerFormat,
    pub(crate) draft_tokens: u32,
    pub(crate) image: ImageRule,
}

/// Every image rule with fp8, bf16 and fp4 rows and the rings 128, 129, 131 and 133.
pub(crate) fn variants() -> Vec<Variant> {
    let formats = [
        (KvFormat::Fp8, IndexerFormat::Fp8),
        (KvFormat::Bf16, IndexerFormat::Fp8),
        (KvFormat::Fp8, IndexerFormat::Fp4),
        (KvFormat::Bf16, IndexerFormat::Fp4),
    ];
    let rules = [ImageRule::Whole, ImageRule::Carried, ImageRule::Live];
    let mut variants = Vec::new();
    for (kv, indexer) in formats {
        for draft_tokens in [0, 1, 3, 5] {
            variants.extend(rules.map(|image| Variant { kv, indexer, draft_tokens, image }));
        }
    }
    variants
}

impl Variant {
    pub(crate) fn of(self, config: &CacheConfig) -> StateLayout {
        let options = CacheOptions {
            kv: self.kv,
            indexer: self.indexer,
            draft_tokens: self.draft_tokens,
            block: BLOCK_TOKENS,
            dcp_world_size: 1,
            image: self.image,
        };
        Dsv4Geometry::new(config, &options).unwrap().layout().clone()
    }
}

/// Every kind of layer, narrow rows.
pub(crate) fn tiny_config() -> CacheConfig {
    CacheConfig { head_dim: 128, qk_rope_head_dim: 64, index_head_dim: 64, ..CacheConfig::mini() }
}

/// How many operations of each kind a bundle may have.
#[derive(Clone, Copy)]
pub(crate) struct Most {
    pub(crate) relocations: u32,
    pub(crate) stores: u32,
    pub(crate) restores: u32,
}

/// A valid bundle: relocations in chains and swaps, stores from relocated slots, restores onto them.
pub(crate) fn bundle(
    dice: &mut Dice,
    layout: &StateLayout,
    (pages, slots): (u32, u32),
    most: Most,
) -> MaintenanceOps {
    let mut ops = MaintenanceOps::default();
    let units = layout.units_per_checkpoint().get();
    let mut targets = shuffled(dice, slots);
    for _ in 0..dice.below(most.relocations + 1) {
        let Some(to) = targets.pop() else { break };
        let from = (to + 1 + dice.below(slots - 1)) % slots;
        ops.relocations.push(Relocation { from: SlotId::new(from), to: SlotId::new(to) });
    }
    let mut free = shuffled(dice, pages);
    let take = |free: &mut Vec<u32>, ops: &mut MaintenanceOps, keep: bool| {
        if free.len() < units as usize {
            return None;
        }
        let ids = free.split_off(free.len() - units as usize);
        let range = ops.push_units(&ids.iter().map(|&id| PageId::new(id)).collect::<Vec<_>>());
        if keep {
            free.splice(0..0, ids);
        }
        Some(range)
    };
    for number in 0..dice.below(most.stores + 1) {
        let Some(units) = take(&mut free, &mut ops, false) else { break };
        ops.stores.push(StoreOp {
            checkpoint: CheckpointId::new(u64::from(number)),
            slot: SlotId::new(dice.below(slots)),
            boundary: boundary(dice, layout),
            units,
            image: layout.image.image_bytes(),
            layout: layout.id.tag(),
        });
    }
    let mut targets = shuffled(dice, slots);
    for number in 0..dice.below(most.restores + 1) {
        let Some(to) = targets.pop() else { break };
        // Several restores may read one unit.
        let keep = dice.below(2) == 0;
        let Some(units) = take(&mut free, &mut ops, keep) else { break };
        ops.restores.push(RestoreOp {
            checkpoint: CheckpointId::new(1000 + u64::from(number)),
            slot: SlotId::new(to),
            boundary: boundary(dice, layout),
            units,
            image: layout.image.image_bytes(),
            layout: layout.id.tag(),
        });
    }
    ops
}

/// Any position from the first that the image allows, on the grid or off it.
fn boundary(dice: &mut Dice, layout: &StateLayout) -> Boundary {
    let rows = layout.image.segments().iter().map(|segment| match segment {
        Segment::Fixed { .. } => 0,
        Segment::Ring { run, .. } => run.rows,
    });
    let least = rows.max().unwrap_or(0);
    let span = [1, 300, 1 << 20][dice.below(3) as usize];
    Boundary::from_raw(least + dice.below(span))
}

pub(crate) fn shuffled(dice: &mut Dice, count: u32) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..count).collect();
    for index in (1..ids.len()).rev() {
        ids.swap(index, dice.below(index as u32 + 1) as usize);
    }
    ids
}

/// Fills an arena with the pattern of `seed`, items named by `pages` and `slots`.
pub(crate) fn fill(arena: &mut HostArena, layout: &StateLayout, seed: u64) {
    for region in 0..layout.page.regions().len() {
        let key = Buffer::Region(region).key(seed);
        for page in 0..arena.pages().get() {
            pattern::fill(key, u64::from(page), 0, arena.page_mut(region, PageId::new(page)));
        }
    }
    for plane in 0..layout.slot.planes().len() {
        let key = Buffer::Plane(plane).key(seed);
        for slot in 0..arena.slots() {
            pattern::fill(key, u64::from(slot), 0, arena.slot_mut(plane, SlotId::new(slot)));
        }
    }
}

/// Bytes of one item of an arena.
pub(crate) fn item(arena: &HostArena, buffer: Buffer, item: u32) -> &[u8] {
    match buffer {
        Buffer::Region(region) => arena.page(region, PageId::new(item)),
        Buffer::Plane(plane) => arena.slot(plane, SlotId::new(item)),
    }
}

/// Uploads an arena.
pub(crate) fn upload(arena: &HostArena, memory: &mut DeviceMemory, stream: &Stream) {
    let buffers: Vec<Buffer> = memory.buffers().collect();
    for buffer in buffers {
        for id in 0..memory.items(buffer) {
            memory.write(stream, buffer, id, item(arena, buffer, id)).unwrap();
        }
    }
}

/// Panics at the first byte that differs.
pub(crate) fn assert_equal(
    arena: &HostArena,
    memory: &DeviceMemory,
    stream: &Stream,
    context: &str,
) {
    for buffer in memory.buffers() {
        for id in 0..memory.items(buffer) {
            let (expected, got) =
                (item(arena, buffer, id), memory.read(stream, buffer, id).unwrap());
            if expected != got {
                let at = expected.iter().zip(&got).position(|(a, b)| a != b);
                panic!("{context}: {buffer:?}, item {id}, byte {at:?} differs");
            }
        }
    }
}

/// A layout that no model has.
pub(crate) fn odd_layout(dice: &mut Dice) -> StateLayout {
    let mut bytes = |most: u32| Bytes::new(16 * u64::from(1 + dice.below(most)));
    let regions = [3, 200, 1].map(|most| Region { name: "region".into(), len: bytes(most) });
    let planes = [100, 400].map(|least| Plane {
        name: "plane".into(),
        len: Bytes::new(16 * (least + u64::from(least as u32 / 3))),
    });
    let slot = SlotLayout::new(planes.into()).unwrap();
    let mut segments = Vec::new();
    for (plane, least) in [(0u16, 100u64), (1, 400)] {
        // A fixed run, then rings in groups, in the first `least` vectors of the plane.
        let fixed = 1 + u64::from(dice.below(20));
        segments.push(Segment::Fixed { plane, offset: 0, len: 16 * fixed });
        let (row, stride, layers) = (
            1 + u64::from(dice.below(3)),
            1 + u64::from(dice.below(4)),
            1 + u64::from(dice.below(3)),
        );
        let group = row * stride * layers;
        let groups = (least - fixed) / group;
        let ring = (groups * stride).clamp(1, 1 + u64::from(dice.below(60))) as u32;
        for layer in 0..layers {
            segments.push(Segment::Ring {
                plane,
                run: RingRun {
                    rows: 1 + dice.below(ring),
                    ring,
                    stride: stride as u32,
                    outer: 16 * group,
                    inner: 16 * row,
                    row_bytes: 16 * (1 + dice.below(row as u32)),
                    offset: 16 * (fixed + layer * stride * row),
                },
            });
        }
    }
    let image = ImageLayout::new(ImageRule::Live, segments, &slot).unwrap();
    StateLayout {
        id: LayoutId::new("odd").unwrap(),
        page: PageLayout::new(regions.into()).unwrap(),
        slot,
        image,
    }
}

/// A layout without rings that no model has: up to 40 regions of any length, of which 36 go with a
/// kernel's arguments, and up to 5 runs, of which 4 do; borders of both anywhere in a tile.
pub(crate) fn odd_fixed_layout(dice: &mut Dice) -> StateLayout {
    let mut regions = Vec::new();
    for _ in 0..=dice.below(5) {
        let len = Bytes::new(16 * u64::from(1 + dice.below(300)));
        let most = [1, 5, 20][dice.below(3) as usize];
        let alike = dice.below(most);
        regions.extend((0..=alike).map(|_| Region { name: "region".into(), len }));
    }
    regions.truncate(66);
    let mut bytes = |most: u32| 16 * u64::from(1 + dice.below(most));
    let (mut planes, mut segments) = (Vec::new(), Vec::new());
    for plane in 0..3u16 {
        let (first, gap, second) = (bytes(200), bytes(9), bytes(200));
        planes.push(Plane { name: "plane".into(), len: Bytes::new(first + gap + second) });
        segments.push(Segment::Fixed { plane, offset: 0, len: first });
        if plane < 2 {
            segments.push(Segment::Fixed { plane, offset: first + gap, len: second });
        }
    }
    let slot = SlotLayout::new(planes).unwrap();
    segments.truncate(1 + dice.below(5) as usize);
    let image = ImageLayout::new(ImageRule::Carried, segments, &slot).unwrap();
    StateLayout {
        id: LayoutId::new("odd").unwrap(),
        page: PageLayout::new(regions).unwrap(),
        slot,
        image,
    }
}

/// An engine's tensors: allocations in which the buffers are places.
pub(crate) struct Tensors {
    /// Each with the bytes of an item and its stride.
    tensors: Vec<(Allocation, u64, u64)>,
}

const BEFORE: u64 = 64;
const BETWEEN: u64 = 48;

impl Tensors {
    fn take(&mut self, device: &Device, stream: &Stream, len: Bytes, items: u32) -> ForeignBuffer {
        let stride = len.get() + BETWEEN;
        let bytes = BEFORE + stride * u64::from(items);
        let allocation = device.allocate(Bytes::new(bytes)).unwrap();
        allocation.write(stream, 0, &vec![0x5a; bytes as usize]).unwrap();
        let address = allocation.address() + BEFORE;
        self.tensors.push((allocation, len.get(), stride));
        ForeignBuffer { address, stride: Bytes::new(stride), bytes: Bytes::new(bytes - BEFORE) }
    }

    /// Panics where a byte before or between items was written.
    pub(crate) fn assert_gaps(&self, stream: &Stream) {
        for (allocation, len, stride) in &self.tensors {
            let mut bytes = vec![0; allocation.bytes().index()];
            allocation.read(stream, 0, &mut bytes).unwrap();
            let (before, items) = bytes.split_at(BEFORE as usize);
            assert!(before.iter().all(|&byte| byte == 0x5a), "bytes before the tensor");
            for item in items.chunks(*stride as usize) {
                assert!(item[*len as usize..].iter().all(|&byte| byte == 0x5a), "between items");
            }
        }
    }
}

/// Runs a test on foreign buffers of a layout, 4 images and 5 slots.
pub(crate) fn foreign(
    libraries: &Libraries,
    layout: &StateLayout,
    test: impl FnOnce(DeviceBackend, DeviceMemory, &Tensors),
) {
    let device = Device::open(libraries, 0).unwrap();
    let stream = device.stream().unwrap();
    let mut tensors = Tensors { tensors: Vec::new() };
    let (pages, slots) = (Pages::new(layout.units_per_checkpoint().get() * 4), 5);
    let mut take = |len, items| tensors.take(&device, &stream, len, items);
    let regions: Vec<_> =
        layout.page.regions().iter().map(|region| take(region.len, pages.get())).collect();
    let planes: Vec<_> = layout.slot.planes().iter().map(|plane| take(plane.len, slots)).collect();
    // SAFETY: the tensors outlive the test, which drops the memory and its backend.
    let memory =
        unsafe { DeviceMemory::foreign(&device, layout, (pages, &regions), (slots, &planes)) }
            .unwrap();
    let options = DeviceOptions {
        shape: crate::stand_in::SHAPE,
        checks: Checks::HostAndKernel,
        staging: StagingLimits { batches: 2, images: 8 },
        passing: Passing::Arguments,
        cache: None,
        source: KERNEL_SOURCE.into(),
    };
    let backend = DeviceBackend::new(libraries, layout.clone(), &memory, &options).unwrap();
    test(backend, memory, &tensors);
}
