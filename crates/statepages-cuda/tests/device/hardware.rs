//! The same comparisons on a real device, and at the size of a real pool. Without a GPU they say so
//! and check nothing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use statepages_copy::{CopyBackend, CopyState, HostArena, HostBackend};
use statepages_cuda::{
    Buffer, Checks, Device, DeviceBackend, DeviceMemory, DeviceOptions, GraphShape, KERNEL_SOURCE,
    KernelShape, Libraries, Passing, Probe, Replay, StagingLimits, Vendor, pattern,
};
use statepages_geometry::{CacheConfig, IndexerFormat, KvFormat};
use statepages_page::{
    ImageRule, MaintenanceOps, PageId, Pages, Relocation, RestoreOp, SlotId, StateLayout, StoreOp,
};

use crate::lockstep::{Pair, passing};
use crate::world::{self, Dice, Most, Variant};

/// Batches on mini geometries.
const MINI_BATCHES: usize = 10_000;
/// Batches on V4-Pro, a third by each image rule.
const PRO_BATCHES: usize = 300;
/// Pages of V4-Pro: 91 GB.
const PRO_PAGES: u32 = 60_000;
const PRO_SLOTS: u32 = 64;

const STAGING: StagingLimits = StagingLimits { batches: 4, images: 64 };

fn device() -> Option<(Libraries, Device)> {
    let libraries = Libraries::installed(Vendor::Cuda);
    match Device::open(&libraries, 0) {
        Ok(device) => Some((libraries, device)),
        Err(error) => {
            eprintln!("skipped: no CUDA device: {error}");
            None
        }
    }
}

/// The default, or that of the environment: `STATEPAGES_KERNEL_SHAPE=192,1,10`.
fn shape() -> KernelShape {
    let Ok(named) = std::env::var("STATEPAGES_KERNEL_SHAPE") else { return KernelShape::MEASURED };
    let numbers: Vec<u32> = named.split(',').map(|number| number.parse().unwrap()).collect();
    let [threads, vectors, resident] = numbers[..] else { panic!("three numbers, got {named}") };
    KernelShape::new(threads, vectors, resident).expect("a valid shape")
}

fn options(checks: Checks, passing: Passing) -> DeviceOptions {
    DeviceOptions {
        shape: shape(),
        checks,
        staging: STAGING,
        passing,
        cache: None,
        source: KERNEL_SOURCE.into(),
    }
}

/// Relocations, stores and restores, chained and mixed; by graph, by checked kernels, and plainly.
fn mini(libraries: &Libraries, device: &Device, variant: Variant, batches: usize, seed: u64) {
    let config = if seed % 8 == 7 { CacheConfig::mini() } else { world::tiny_config() };
    let layout = variant.of(&config);
    let size = (layout.units_per_checkpoint().get() * 5 + 3, 6);
    let memory = DeviceMemory::allocate(device, &layout, Pages::new(size.0), size.1).unwrap();
    // Variants come rule by rule: a third of each.
    let checked = (seed / 3).is_multiple_of(3);
    let checks = if checked { Checks::HostAndKernel } else { Checks::Host };
    let backend =
        DeviceBackend::new(libraries, layout.clone(), &memory, &options(checks, passing(seed)))
            .unwrap();
    let mut pair = Pair::new(&layout, (backend, memory), seed);
    let shape = GraphShape { launches: 2, relocations: 4, images: 6 };
    let mut graph = pair.device.capture(shape).unwrap();
    let mut dice = Dice(seed);
    for batch in 0..batches {
        let most = Most { relocations: 4, stores: 3, restores: 3 };
        let ops = world::bundle(&mut dice, &layout, size, most);
        let replayed = if dice.below(2) == 0 {
            pair.device.replay(&mut graph, &mut pair.memory, &ops).unwrap()
        } else {
            Replay::Busy
        };
        let ticket = if let Replay::Launched(ticket) = replayed {
            pair.run_host(&ops);
            ticket
        } else {
            pair.submit(&ops)
        };
        pair.wait(ticket);
        pair.compare(&format!("{variant:?} seed {seed} batch {batch}"));
    }
}

#[test]
fn mini_geometries_equal_the_host() {
    let Some((libraries, device)) = device() else { return };
    let started = Instant::now();
    let variants = world::variants();
    let each = MINI_BATCHES.div_ceil(variants.len());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&variant) = variants.get(index) else { break };
                    mini(&libraries, &device, variant, each, index as u64);
                }
            });
        }
    });
    let seconds = started.elapsed().as_secs_f64();
    eprintln!("{} batches on {} layouts, {seconds:.1} s", each * variants.len(), variants.len());
}

#[test]
fn foreign_buffers_on_the_device() {
    let Some((libraries, _)) = device() else { return };
    let layout = world::variants()[2].of(&world::tiny_config());
    world::foreign(&libraries, &layout, |backend, memory, tensors| {
        let mut pair = Pair::new(&layout, (backend, memory), 9);
        let mut dice = Dice(9);
        for _ in 0..50 {
            let size = (pair.memory.pages().get(), pair.memory.slots());
            let most = Most { relocations: 2, stores: 2, restores: 2 };
            let ops = world::bundle(&mut dice, &layout, size, most);
            let ticket = pair.submit(&ops);
            pair.wait(ticket);
        }
        pair.compare("foreign buffers");
        tensors.assert_gaps(pair.device.stream());
    });
}

/// Items that a bundle names, and what it does to them.
struct Job {
    ops: MaintenanceOps,
    pages: Vec<u32>,
    slots: Vec<u32>,
    /// Digest of each item afterwards, by buffer in the order of the memory's buffers.
    digests: Vec<Vec<u64>>,
}

/// Runs a bundle on the host backend, on an arena that holds only the items that it names.
fn expect(layout: &StateLayout, ops: MaintenanceOps, seed: u64) -> Job {
    let ranges = ops.stores.iter().map(|op| op.units);
    let ranges = ranges.chain(ops.restores.iter().map(|op| op.units));
    let mut pages: Vec<u32> =
        ranges.flat_map(|range| ops.units(range).iter().map(|unit| unit.raw())).collect();
    let moved = ops.relocations.iter().flat_map(|op| [op.from, op.to]);
    let imaged = ops.stores.iter().map(|op| op.slot);
    let imaged = imaged.chain(ops.restores.iter().map(|op| op.slot));
    let mut slots: Vec<u32> = moved.chain(imaged).map(SlotId::raw).collect();
    for ids in [&mut pages, &mut slots] {
        ids.sort_unstable();
        ids.dedup();
    }
    let dense = |ids: &[u32], id: u32| ids.binary_search(&id).unwrap() as u32;
    let slot = |id: SlotId| SlotId::new(dense(&slots, id.raw()));
    let mut small = MaintenanceOps::default();
    for &Relocation { from, to } in &ops.relocations {
        small.relocations.push(Relocation { from: slot(from), to: slot(to) });
    }
    let renamed = |range| -> Vec<PageId> {
        ops.units(range).iter().map(|unit| PageId::new(dense(&pages, unit.raw()))).collect()
    };
    for op in &ops.stores {
        let units = small.push_units(&renamed(op.units));
        small.stores.push(StoreOp { slot: slot(op.slot), units, ..*op });
    }
    for op in &ops.restores {
        let units = small.push_units(&renamed(op.units));
        small.restores.push(RestoreOp { slot: slot(op.slot), units, ..*op });
    }
    let count = Pages::new(pages.len() as u32);
    let mut arena = HostArena::new(layout, count, slots.len() as u32).unwrap();
    for region in 0..layout.page.regions().len() {
        for (at, &page) in (0..).zip(&pages) {
            let key = Buffer::Region(region).key(seed);
            pattern::fill(key, u64::from(page), 0, arena.page_mut(region, PageId::new(at)));
        }
    }
    for plane in 0..layout.slot.planes().len() {
        for (at, &slot) in (0..).zip(&slots) {
            let key = Buffer::Plane(plane).key(seed);
            pattern::fill(key, u64::from(slot), 0, arena.slot_mut(plane, SlotId::new(at)));
        }
    }
    HostBackend::new(layout.clone()).submit(&mut arena, &small).unwrap();
    let digest = |buffer, ids: &[u32]| {
        (0..ids.len() as u32).map(|at| pattern::digest(world::item(&arena, buffer, at))).collect()
    };
    let regions = (0..layout.page.regions().len()).map(|r| digest(Buffer::Region(r), &pages));
    let planes = (0..layout.slot.planes().len()).map(|p| digest(Buffer::Plane(p), &slots));
    let digests = regions.chain(planes).collect();
    Job { ops, pages, slots, digests }
}

fn whole(probe: &Probe<'_>, memory: &DeviceMemory) -> Vec<Vec<u64>> {
    memory.buffers().map(|buffer| probe.digests(memory, buffer, None).unwrap()).collect()
}

#[test]
fn v4_pro_at_full_size_equals_the_host() {
    let Some((libraries, device)) = device() else { return };
    let started = Instant::now();
    let rules = [ImageRule::Whole, ImageRule::Carried, ImageRule::Live];
    let of = |image| {
        let (kv, indexer) = (KvFormat::Fp8, IndexerFormat::Fp8);
        Variant { kv, indexer, draft_tokens: 0, image }.of(&CacheConfig::v4_pro())
    };
    let layout = of(ImageRule::Whole);
    let page = layout.page.page_bytes().get();
    let needed = page * u64::from(PRO_PAGES)
        + layout.slot.slot_bytes().get() * u64::from(PRO_SLOTS)
        + (1 << 30);
    let free = device.memory_free().unwrap().get();
    if free < needed {
        eprintln!("skipped: {PRO_PAGES} pages of V4-Pro need {needed} bytes, {free} are free");
        return;
    }
    let mut memory =
        DeviceMemory::allocate(&device, &layout, Pages::new(PRO_PAGES), PRO_SLOTS).unwrap();
    let seed = 20_260;
    let buffers: Vec<Buffer> = memory.buffers().collect();
    let mut before = None;
    for rule in rules {
        let layout = of(rule);
        let options = options(Checks::Host, passing(rule as u64));
        let mut backend =
            DeviceBackend::new(&libraries, layout.clone(), &memory, &options).unwrap();
        let mut touched = Vec::new();
        let jobs = sync_channel(8);
        let next = AtomicUsize::new(0);
        if before.is_none() {
            let probe = Probe::new(&device, backend.kernels()).unwrap();
            for &buffer in &buffers {
                probe.fill(&mut memory, buffer, None, seed).unwrap();
            }
            before = Some(whole(&probe, &memory));
        }
        std::thread::scope(|scope| {
            for _ in 0..14 {
                let (send, layout, next) = (jobs.0.clone(), &layout, &next);
                scope.spawn(move || {
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        if index >= PRO_BATCHES / rules.len() {
                            break;
                        }
                        let mut dice = Dice(index as u64 * 3 + rule as u64);
                        let most = Most { relocations: 3, stores: 3, restores: 3 };
                        let size = (PRO_PAGES, PRO_SLOTS);
                        let ops = world::bundle(&mut dice, layout, size, most);
                        send.send(expect(layout, ops, seed)).unwrap();
                    }
                });
            }
            drop(jobs.0);
            for job in jobs.1 {
                let ticket = backend.submit(&mut memory, &job.ops).unwrap();
                while backend.poll(&mut memory, ticket).unwrap() == CopyState::Pending {}
                let probe = Probe::new(&device, backend.kernels()).unwrap();
                for (&buffer, expected) in buffers.iter().zip(&job.digests) {
                    let ids = match buffer {
                        Buffer::Region(_) => &job.pages,
                        Buffer::Plane(_) => &job.slots,
                    };
                    let got = probe.digests(&memory, buffer, Some(ids)).unwrap();
                    assert_eq!(&got, expected, "{rule:?}, {buffer:?}, items {ids:?}");
                    probe.fill(&mut memory, buffer, Some(ids), seed).unwrap();
                }
                touched.extend(job.pages);
            }
        });
        touched.sort_unstable();
        touched.dedup();
        eprintln!("{rule:?}: {} pages touched", touched.len());
        let probe = Probe::new(&device, backend.kernels()).unwrap();
        let after = Some(whole(&probe, &memory));
        assert!(after == before, "{rule:?}: an item that no operation names has changed");
    }
    let gigabytes = (page * u64::from(PRO_PAGES)) as f64 / 1e9;
    let seconds = started.elapsed().as_secs_f64();
    eprintln!("{PRO_BATCHES} batches on {gigabytes:.1} GB of V4-Pro pages, {seconds:.1} s");
}
