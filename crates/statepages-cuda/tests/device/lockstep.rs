//! The device backend against the host backend, batch by batch.

use statepages_copy::{CopyBackend, CopyError, CopyState, CopyTicket, HostArena, HostBackend};
use statepages_cuda::{Checks, DeviceBackend, DeviceMemory, Passing, StagingLimits, Vendor};
use statepages_geometry::CacheConfig;
use statepages_page::{MaintenanceOps, Pages, Relocation, SlotId, StateLayout};

use crate::stand_in::StandIn;
use crate::world::{self, Dice, Most};

const MOST: Most = Most { relocations: 4, stores: 3, restores: 3 };

/// Both backends with equal memory.
pub(crate) struct Pair {
    pub(crate) host: HostBackend,
    pub(crate) arena: HostArena,
    pub(crate) device: DeviceBackend,
    pub(crate) memory: DeviceMemory,
}

impl Pair {
    pub(crate) fn new(
        layout: &StateLayout,
        (device, mut memory): (DeviceBackend, DeviceMemory),
        seed: u64,
    ) -> Self {
        let mut arena = HostArena::new(layout, memory.pages(), memory.slots()).unwrap();
        world::fill(&mut arena, layout, seed);
        world::upload(&arena, &mut memory, device.stream());
        Self { host: HostBackend::new(layout.clone()), arena, device, memory }
    }

    pub(crate) fn run_host(&mut self, ops: &MaintenanceOps) {
        self.host.submit(&mut self.arena, ops).unwrap();
    }

    pub(crate) fn submit(&mut self, ops: &MaintenanceOps) -> CopyTicket {
        self.run_host(ops);
        self.device.submit(&mut self.memory, ops).unwrap()
    }

    pub(crate) fn poll(&mut self, ticket: CopyTicket) -> CopyState {
        self.device.poll(&mut self.memory, ticket).unwrap()
    }

    pub(crate) fn wait(&mut self, ticket: CopyTicket) {
        while self.poll(ticket) == CopyState::Pending {}
    }

    pub(crate) fn compare(&self, context: &str) {
        world::assert_equal(&self.arena, &self.memory, self.device.stream(), context);
    }
}

/// Small batches by either way, in turns.
pub(crate) fn passing(seed: u64) -> Passing {
    if seed.is_multiple_of(2) { Passing::Arguments } else { Passing::Upload }
}

/// Submits random bundles, several in flight, and compares every byte now and then.
fn check(vendor: Vendor, checks: Checks, layout: &StateLayout, batches: u32, seed: u64) {
    let Some(stand_in) = StandIn::new(vendor, checks) else { return };
    stand_in.seed(seed);
    let units = layout.units_per_checkpoint().get();
    let size = (units * 5 + 3, 6);
    let passing = passing(seed);
    let staging = (StagingLimits { batches: 2, images: 4 }, passing);
    let mut pair = Pair::new(layout, stand_in.backend(layout, size, staging), seed);
    let mut dice = Dice(seed);
    let mut in_flight = Vec::new();
    for batch in 0..batches {
        let ops = world::bundle(&mut dice, layout, size, MOST);
        in_flight.push(pair.submit(&ops));
        for _ in 0..dice.below(12) {
            let Some(&oldest) = in_flight.first() else { break };
            if pair.poll(oldest) == CopyState::Done {
                in_flight.remove(0);
            }
        }
        if dice.below(4) == 0 {
            for ticket in in_flight.drain(..) {
                pair.wait(ticket);
            }
            pair.compare(&format!("{} {passing:?} seed {seed} batch {batch}", layout.id));
        }
    }
    for ticket in in_flight {
        pair.wait(ticket);
        assert_eq!(pair.poll(ticket), CopyState::Done, "what is done stays done");
    }
    pair.compare(&format!("{} seed {seed}, at the end", layout.id));
    drop(pair);
    assert_eq!(stand_in.guard_faults(), 0, "bytes outside the buffers were written");
    assert_eq!(stand_in.live(), 0, "something was made and never destroyed");
}

#[test]
fn every_format_ring_and_rule_equals_the_host() {
    let config = world::tiny_config();
    for (index, variant) in world::variants().into_iter().enumerate() {
        check(Vendor::Cuda, Checks::Host, &variant.of(&config), 12, index as u64);
    }
}

#[test]
fn production_rows_equal_the_host() {
    let config = CacheConfig::mini();
    for (index, variant) in world::variants().into_iter().step_by(7).enumerate() {
        check(Vendor::Cuda, Checks::Host, &variant.of(&config), 2, 100 + index as u64);
    }
}

#[test]
fn the_other_vendor_equals_the_host() {
    let config = world::tiny_config();
    for (index, variant) in world::variants().into_iter().step_by(5).enumerate() {
        check(Vendor::Hip, Checks::Host, &variant.of(&config), 8, 200 + index as u64);
    }
}

#[test]
fn checked_kernels_equal_the_host() {
    let config = world::tiny_config();
    for (index, variant) in world::variants().into_iter().step_by(5).enumerate() {
        check(Vendor::Cuda, Checks::HostAndKernel, &variant.of(&config), 8, 300 + index as u64);
    }
}

/// Layouts that no model has: regions of 16 bytes up, rings with strides, tiles of many pieces.
#[test]
fn odd_layouts_equal_the_host() {
    for seed in 0..40 {
        let layout = world::odd_layout(&mut Dice(seed));
        check(Vendor::Cuda, Checks::HostAndKernel, &layout, 12, 400 + seed);
    }
}

/// Layouts without rings that no model has, small enough for a kernel's arguments or not.
#[test]
fn odd_layouts_without_rings_equal_the_host() {
    for seed in 0..60 {
        let layout = world::odd_fixed_layout(&mut Dice(seed));
        check(Vendor::Cuda, Checks::HostAndKernel, &layout, 8, 500 + seed);
    }
}

/// The ring of two tables is full; restores find room all the same, and the scheduler is told.
#[test]
fn overflow_leaves_no_room_for_stores_and_takes_restores() {
    let Some(stand_in) = StandIn::new(Vendor::Cuda, Checks::Host) else { return };
    let layout = world::variants()[2].of(&world::tiny_config());
    let units = layout.units_per_checkpoint().get();
    let size = (units * 3, 4);
    // With an upload each, batches take the stand-in longer than submitting them.
    let staging = (StagingLimits { batches: 2, images: 4 }, Passing::Upload);
    let mut pair = Pair::new(&layout, stand_in.backend(&layout, size, staging), 7);
    let mut dice = Dice(7);
    let mut tickets = Vec::new();
    assert_eq!(pair.device.store_room().unwrap(), 4);
    while tickets.len() < 6 {
        let most = Most { relocations: 0, stores: 0, restores: 1 };
        let ops = world::bundle(&mut dice, &layout, size, most);
        if !ops.is_empty() {
            tickets.push(pair.submit(&ops));
        }
    }
    assert!(pair.device.staging_added() > 0, "six batches in flight on two tables");
    pair.wait(*tickets.last().unwrap());
    pair.compare("after overflow");
    assert_eq!(pair.device.store_room().unwrap(), 4, "receipts give the tables back");
}

/// The largest table that fits a kernel's arguments, and the smallest that does not.
#[test]
fn few_operations_go_as_arguments_and_many_are_uploaded() {
    let Some(stand_in) = StandIn::new(Vendor::Cuda, Checks::HostAndKernel) else { return };
    let layout = world::variants()[0].of(&world::tiny_config());
    let most = 3264 / 16;
    let staging = (StagingLimits { batches: 2, images: 4 }, Passing::Arguments);
    let backend = stand_in.backend(&layout, (40, most + 2), staging);
    let mut pair = Pair::new(&layout, backend, 11);
    let fan_out = |count| {
        let mut ops = MaintenanceOps::default();
        let targets = (1..=count).map(SlotId::new);
        ops.relocations.extend(targets.map(|to| Relocation { from: SlotId::new(0), to }));
        ops
    };
    stand_in.fail("cuMemcpyHtoDAsync_v2", 0);
    let fits = pair.submit(&fan_out(most));
    pair.wait(fits);
    pair.compare("as arguments");
    let upload = pair.device.submit(&mut pair.memory, &fan_out(most + 1));
    assert!(matches!(upload, Err(CopyError::Device { .. })), "an upload, which fails: {upload:?}");
    pair.device.reset();
    let uploaded = pair.submit(&fan_out(most + 1));
    pair.wait(uploaded);
    pair.compare("uploaded");
}

/// An engine's tensors: addresses with sizes, strides wider than items, guard bytes between.
#[test]
fn foreign_buffers_with_strides() {
    let Some(stand_in) = StandIn::new(Vendor::Cuda, Checks::HostAndKernel) else { return };
    let layout = world::variants()[2].of(&world::tiny_config());
    world::foreign(&stand_in.libraries, &layout, |backend, memory, tensors| {
        let mut pair = Pair::new(&layout, (backend, memory), 9);
        let mut dice = Dice(9);
        for _ in 0..10 {
            let size = (pair.memory.pages().get(), pair.memory.slots());
            let ops = world::bundle(&mut dice, &layout, size, MOST);
            let ticket = pair.submit(&ops);
            pair.wait(ticket);
        }
        pair.compare("foreign buffers");
        tensors.assert_gaps(pair.device.stream());
    });
    assert_eq!(stand_in.guard_faults(), 0);
}

#[test]
fn an_empty_batch_is_done() {
    let Some(stand_in) = StandIn::new(Vendor::Cuda, Checks::Host) else { return };
    let layout = world::variants()[0].of(&world::tiny_config());
    let staging = (StagingLimits { batches: 1, images: 1 }, Passing::Arguments);
    let (mut backend, mut memory) = stand_in.backend(&layout, (40, 2), staging);
    assert_eq!(memory.pages(), Pages::new(40));
    let ticket = backend.submit(&mut memory, &MaintenanceOps::default()).unwrap();
    assert_eq!(backend.poll(&mut memory, ticket), Ok(CopyState::Done));
}
