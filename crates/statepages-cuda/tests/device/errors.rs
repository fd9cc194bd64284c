//! What fails, and how it is told.

use statepages_copy::{CopyBackend, CopyError, CopyState, Refused};
use statepages_cuda::{
    CacheOutcome, Checks, Device, DeviceError, DeviceMemory, DeviceOptions, ForeignBuffer,
    GraphShape, KERNEL_SOURCE, Kernels, Libraries, MemoryError, Passing, StagingLimits, Vendor,
};
use statepages_page::{Bytes, MaintenanceOps, Pages, Relocation, SlotId};

use crate::stand_in::StandIn;
use crate::world::{self, Dice, Most};

const STAGING: StagingLimits = StagingLimits { batches: 2, images: 4 };

#[test]
fn an_absent_driver_is_a_clear_error() {
    let nowhere = vec!["libno-such-driver.so".to_owned()];
    let libraries =
        Libraries { vendor: Vendor::Cuda, driver: nowhere.clone(), compiler: nowhere.clone() };
    let error = Device::open(&libraries, 0).err().unwrap();
    assert!(matches!(&error, DeviceError::LibraryAbsent { tried, .. } if *tried == nowhere));
    assert!(error.to_string().contains("libno-such-driver.so"), "{error}");
}

#[test]
fn a_library_that_is_no_driver_is_a_clear_error() {
    let libc = vec!["libc.so.6".to_owned()];
    let libraries = Libraries { vendor: Vendor::Hip, driver: libc.clone(), compiler: libc };
    let error = Device::open(&libraries, 0).err().unwrap();
    assert!(matches!(&error, DeviceError::SymbolAbsent { symbol, .. } if symbol == "hipInit"));
}

#[test]
fn an_absent_device_is_a_clear_error() {
    let Some(stand_in) = StandIn::new(Vendor::Cuda, Checks::Host) else { return };
    let error = Device::open(&stand_in.libraries, 7).err().unwrap();
    assert!(matches!(error, DeviceError::Call { call: "find the device", status: 101, .. }));
}

/// Every call of a submission fails in turn: the batch fails, later calls answer that it did, and
/// after a reset the backend copies as before.
#[test]
fn failures_latch_and_reset_ends_them() {
    let always = ["cuEventRecord", "cuLaunchKernel", "cuEventQuery"];
    let uploading = ["cuMemcpyHtoDAsync_v2", "cuStreamWaitEvent"];
    let calls = always.map(|call| (call, Passing::Arguments)).into_iter();
    let calls = calls.chain(always.into_iter().chain(uploading).map(|c| (c, Passing::Upload)));
    let layout = world::variants()[2].of(&world::tiny_config());
    let size = (layout.units_per_checkpoint().get() * 6, 4);
    for (call, passing) in calls {
        let Some(stand_in) = StandIn::new(Vendor::Cuda, Checks::Host) else { return };
        let (mut backend, mut memory) = stand_in.backend(&layout, size, (STAGING, passing));
        let mut dice = Dice(3);
        let most = Most { relocations: 2, stores: 2, restores: 2 };
        let mut ops = MaintenanceOps::default();
        while ops.stores.is_empty() {
            ops = world::bundle(&mut dice, &layout, size, most);
        }
        let before = backend.submit(&mut memory, &ops).unwrap();
        stand_in.fail(call, 0);
        let failed = backend.submit(&mut memory, &ops);
        assert!(matches!(failed, Err(CopyError::Device { .. })), "{call}: {failed:?}");
        let prior = Err(CopyError::PriorFailure);
        assert_eq!(backend.submit(&mut memory, &ops), prior, "{call}");
        assert_eq!(backend.poll(&mut memory, before), Err(CopyError::PriorFailure), "{call}");
        assert_eq!(backend.store_room(), Err(CopyError::PriorFailure), "{call}");
        backend.reset();
        assert_eq!(backend.poll(&mut memory, before), Err(CopyError::PriorFailure), "{call}");
        let after = backend.submit(&mut memory, &ops).unwrap();
        while backend.poll(&mut memory, after).unwrap() == CopyState::Pending {}
        drop((backend, memory));
        assert_eq!(stand_in.live(), 0, "{call}: something was made and never destroyed");
    }
}

/// A capture that fails at any call leaves nothing behind and a stream that still copies.
#[test]
fn a_failed_capture_latches_and_leaves_nothing() {
    let layout = world::variants()[0].of(&world::tiny_config());
    let shape = GraphShape { launches: 1, relocations: 1, images: 1 };
    for call in [
        "cuMemHostAlloc",
        "cuStreamBeginCapture_v2",
        "cuMemcpyHtoDAsync_v2",
        "cuLaunchKernel",
        "cuStreamEndCapture",
        "cuGraphInstantiateWithFlags",
    ] {
        let Some(stand_in) = StandIn::new(Vendor::Cuda, Checks::Host) else { return };
        let (mut backend, mut memory) =
            stand_in.backend(&layout, (40, 4), (STAGING, Passing::Arguments));
        stand_in.fail(call, 0);
        assert!(matches!(backend.capture(shape), Err(CopyError::Device { .. })), "{call}");
        assert!(matches!(backend.capture(shape), Err(CopyError::PriorFailure)), "{call}");
        backend.reset();
        let mut ops = MaintenanceOps::default();
        ops.relocations.push(Relocation { from: SlotId::new(0), to: SlotId::new(1) });
        // A capture that could not be ended leaves the stand-in's stream recording.
        if call != "cuStreamEndCapture" {
            let ticket = backend.submit(&mut memory, &ops).unwrap();
            while backend.poll(&mut memory, ticket).unwrap() == CopyState::Pending {}
        }
        drop((backend, memory));
        assert_eq!(stand_in.live(), 0, "{call}: something was made and never destroyed");
    }
}

#[test]
fn a_device_that_cannot_be_waited_for_stays_failed() {
    let Some(stand_in) = StandIn::new(Vendor::Cuda, Checks::Host) else { return };
    let layout = world::variants()[0].of(&world::tiny_config());
    let (mut backend, mut memory) =
        stand_in.backend(&layout, (40, 4), (STAGING, Passing::Arguments));
    let mut ops = MaintenanceOps::default();
    ops.relocations.push(Relocation { from: SlotId::new(0), to: SlotId::new(1) });
    stand_in.fail("cuLaunchKernel", 0);
    assert!(backend.submit(&mut memory, &ops).is_err());
    stand_in.fail("cuStreamSynchronize", 0);
    backend.reset();
    assert_eq!(backend.submit(&mut memory, &ops), Err(CopyError::PriorFailure));
    backend.reset();
    assert!(backend.submit(&mut memory, &ops).is_ok());
}

/// The host's check comes before the first byte: nothing is enqueued, and the refusal latches.
#[test]
fn operations_out_of_bounds_are_refused_on_the_host() {
    let Some(stand_in) = StandIn::new(Vendor::Cuda, Checks::Host) else { return };
    let layout = world::variants()[0].of(&world::tiny_config());
    let (mut backend, mut memory) =
        stand_in.backend(&layout, (40, 4), (STAGING, Passing::Arguments));
    let mut ops = MaintenanceOps::default();
    ops.relocations.push(Relocation { from: SlotId::new(0), to: SlotId::new(4) });
    let refused = Refused::SlotOutOfRange { slot: SlotId::new(4), slots: 4 };
    assert_eq!(backend.submit(&mut memory, &ops), Err(CopyError::Refused(refused)));
    ops.relocations[0].to = SlotId::new(3);
    assert_eq!(backend.submit(&mut memory, &ops), Err(CopyError::PriorFailure));
}

/// A table that is overwritten on its way is found by the kernels of a checked build, and writes
/// nothing out of bounds.
#[test]
fn a_corrupted_table_is_caught_by_checked_kernels() {
    let layout = world::variants()[2].of(&world::tiny_config());
    let units = layout.units_per_checkpoint().get();
    let mut ops = MaintenanceOps::default();
    let mut dice = Dice(5);
    while ops.stores.is_empty() || !ops.relocations.is_empty() {
        let most = Most { relocations: 0, stores: 1, restores: 0 };
        ops = world::bundle(&mut dice, &layout, (units * 2, 4), most);
    }
    // The slot of the one operation, and its first unit.
    let ways = [Passing::Arguments, Passing::Upload];
    for (at, passing) in ways.into_iter().flat_map(|passing| [(0, passing), (16, passing)]) {
        let Some(stand_in) = StandIn::new(Vendor::Cuda, Checks::HostAndKernel) else { return };
        let (mut backend, mut memory) =
            stand_in.backend(&layout, (units * 2, 4), (STAGING, passing));
        stand_in.corrupt(at, 1 << 20);
        let ticket = backend.submit(&mut memory, &ops).unwrap();
        let failed = loop {
            match backend.poll(&mut memory, ticket) {
                Ok(CopyState::Pending) => {}
                other => break other,
            }
        };
        let Err(CopyError::Device { message }) = failed else { panic!("got {failed:?}") };
        assert!(message.contains("wrong indices"), "{message}");
        backend.reset();
        let again = backend.submit(&mut memory, &ops).unwrap();
        while backend.poll(&mut memory, again).unwrap() == CopyState::Pending {}
        drop((backend, memory));
        assert_eq!(stand_in.guard_faults(), 0);
    }
}

#[test]
fn foreign_buffers_are_checked() {
    let Some(stand_in) = StandIn::new(Vendor::Cuda, Checks::Host) else { return };
    let layout = world::variants()[0].of(&world::tiny_config());
    let device = stand_in.device();
    let good = |len: Bytes, items: u64, index: u64| ForeignBuffer {
        address: (1 << 40) + (index << 30),
        stride: len,
        bytes: Bytes::new(len.get() * items),
    };
    let regions: Vec<_> =
        (0..).zip(layout.page.regions()).map(|(i, r)| good(r.len, 8, i)).collect();
    let planes: Vec<_> =
        (100..).zip(layout.slot.planes()).map(|(i, p)| good(p.len, 2, i)).collect();
    let check = |regions: &[ForeignBuffer], planes: &[ForeignBuffer]| {
        let (pages, slots) = (Pages::new(8), 2);
        // SAFETY: nothing is copied; the addresses are never looked at.
        unsafe { DeviceMemory::foreign(&device, &layout, (pages, regions), (slots, planes)) }
            .map(|_| ())
    };
    assert_eq!(check(&regions, &planes), Ok(()));
    let short = check(&regions[1..], &planes);
    assert!(matches!(short, Err(MemoryError::BufferCount { .. })), "{short:?}");
    let spoil = |change: &dyn Fn(&mut ForeignBuffer)| {
        let mut planes = planes.clone();
        change(&mut planes[0]);
        check(&regions, &planes)
    };
    let small = spoil(&|plane| plane.bytes -= Bytes::new(16));
    assert!(matches!(small, Err(MemoryError::TooSmall { .. })), "{small:?}");
    let narrow = spoil(&|plane| plane.stride -= Bytes::new(16));
    assert!(matches!(narrow, Err(MemoryError::Stride { .. })), "{narrow:?}");
    let skewed = spoil(&|plane| plane.address += 8);
    assert!(matches!(skewed, Err(MemoryError::Unaligned { what: "address", .. })), "{skewed:?}");
    let uneven = spoil(&|plane| plane.stride += Bytes::new(8));
    assert!(matches!(uneven, Err(MemoryError::Unaligned { what: "stride", .. })), "{uneven:?}");
    let twice = spoil(&|plane| plane.address = 1 << 40);
    assert!(matches!(twice, Err(MemoryError::SameAddress { .. })), "{twice:?}");
    let far = spoil(&|plane| plane.address = u64::MAX - 15);
    assert!(matches!(far, Err(MemoryError::Device(DeviceError::TooLarge { .. }))), "{far:?}");
}

/// Compiled code is kept, read back, and compiled anew where the file is torn or cannot be written.
#[test]
fn the_cache_is_written_read_and_distrusted() {
    let Some(stand_in) = StandIn::new(Vendor::Cuda, Checks::Host) else { return };
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("cache-{}", std::process::id()));
    let device = stand_in.device();
    let outcome = |dir: &std::path::Path| {
        let options = DeviceOptions {
            shape: crate::stand_in::SHAPE,
            checks: Checks::Host,
            staging: STAGING,
            passing: Passing::Arguments,
            cache: Some(dir.to_owned()),
            source: KERNEL_SOURCE.into(),
        };
        Kernels::new(&device, &stand_in.libraries, &options).unwrap().cache().clone()
    };
    assert_eq!(outcome(&dir), CacheOutcome::Written);
    assert_eq!(outcome(&dir), CacheOutcome::Hit);
    let file = std::fs::read_dir(&dir).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    assert_eq!(outcome(&dir), CacheOutcome::Written, "a changed file is as good as none");
    std::fs::write(&file, b"torn").unwrap();
    assert_eq!(outcome(&dir), CacheOutcome::Written, "a torn file is as good as none");
    // A file where the folder should be.
    let failed = outcome(&file);
    assert!(matches!(failed, CacheOutcome::Failed(_)), "{failed:?}");
    std::fs::remove_dir_all(&dir).unwrap();
}
