//! Every refusal by name; a refused batch writes nothing, and the failure latches.

use statepages_copy::{CopyBackend, CopyError, FaultyBackend, HostArena, HostBackend, Refused};
use statepages_page::{
    Boundary, Bytes, CheckpointId, LayoutTag, MaintenanceOps, PageId, Pages, SlotId, StateLayout,
};

use crate::twin::{Twin, relocate, restore, small_layout, store};

const SLOTS: u32 = 4;
const PAGES: u32 = 20;

fn check_on<B: CopyBackend<Memory = HostArena>>(
    mut backend: B,
    layout: &StateLayout,
    ops: &MaintenanceOps,
    expect: Refused,
) {
    let twin = Twin::filled(layout, PAGES, SLOTS, 3);
    let mut arena = twin.arena(layout);
    let sound = MaintenanceOps::default();
    let before = backend.submit(&mut arena, &sound).unwrap();

    assert_eq!(backend.submit(&mut arena, ops), Err(CopyError::Refused(expect)));
    twin.assert_equals(&arena, &format!("{expect}"));
    assert!(expect.to_string().contains("expected"), "{expect}");

    let prior = Err(CopyError::PriorFailure);
    assert_eq!(backend.submit(&mut arena, &sound), prior);
    assert_eq!(backend.poll(&mut arena, before).map(drop), Err(CopyError::PriorFailure));
    backend.reset();
    assert_eq!(backend.poll(&mut arena, before).map(drop), Err(CopyError::PriorFailure));
    assert!(backend.submit(&mut arena, &sound).is_ok());
}

/// A valid relocation, store and restore come first, so that anything written would show.
fn check(expect: Refused, spoil: impl Fn(&mut MaintenanceOps, &StateLayout)) {
    let layout = small_layout();
    let mut ops = MaintenanceOps::default();
    relocate(&mut ops, 0, 1);
    store(&mut ops, &layout, 1, 8, &unit_ids(0));
    restore(&mut ops, &layout, 2, 8, &unit_ids(10));
    spoil(&mut ops, &layout);
    check_on(HostBackend::new(layout.clone()), &layout, &ops, expect);
    check_on(FaultyBackend::new(layout.clone()), &layout, &ops, expect);
}

fn unit_ids(first: u32) -> Vec<u32> {
    (first..first + small_layout().units_per_checkpoint().get()).collect()
}

#[test]
fn relocations() {
    let slot = SlotId::new(1);
    check(Refused::DuplicateRelocationTarget { slot }, |ops, _| relocate(ops, 3, 1));
    check(Refused::RelocationOntoItself { slot: SlotId::new(3) }, |ops, _| relocate(ops, 3, 3));
    let slot = SlotId::new(SLOTS);
    check(Refused::SlotOutOfRange { slot, slots: SLOTS }, |ops, _| relocate(ops, SLOTS, 2));
    check(Refused::SlotOutOfRange { slot, slots: SLOTS }, |ops, _| relocate(ops, 2, SLOTS));
}

#[test]
fn slots_of_images() {
    let slot = SlotId::new(SLOTS);
    check(Refused::SlotOutOfRange { slot, slots: SLOTS }, |ops, _| ops.stores[0].slot = slot);
    check(Refused::SlotOutOfRange { slot, slots: SLOTS }, |ops, _| ops.restores[0].slot = slot);
    let (slot, checkpoint) = (SlotId::new(2), CheckpointId::new(101));
    check(Refused::DuplicateRestoreTarget { slot, checkpoint }, |ops, layout| {
        restore(ops, layout, 2, 8, &unit_ids(15));
    });
}

#[test]
fn images_of_another_geometry() {
    let layout = small_layout();
    let (stored, restored) = (CheckpointId::new(0), CheckpointId::new(100));
    let (expected, got) = (layout.id.tag(), LayoutTag::from_raw(1));
    check(Refused::Layout { checkpoint: stored, expected, got }, |ops, _| {
        ops.stores[0].layout = got;
    });
    check(Refused::Layout { checkpoint: restored, expected, got }, |ops, _| {
        ops.restores[0].layout = got;
    });
    let expected = layout.image.image_bytes();
    let got = expected + Bytes::new(16);
    check(Refused::ImageBytes { checkpoint: stored, expected, got }, |ops, _| {
        ops.stores[0].image = got;
    });
    check(Refused::ImageBytes { checkpoint: restored, expected, got }, |ops, _| {
        ops.restores[0].image = got;
    });
    let (rows, got) = (4, Boundary::from_raw(3));
    check(Refused::BoundaryTooEarly { checkpoint: stored, rows, got }, |ops, _| {
        ops.stores[0].boundary = got;
    });
    check(Refused::BoundaryTooEarly { checkpoint: restored, rows, got }, |ops, _| {
        ops.restores[0].boundary = got;
    });
}

#[test]
fn units() {
    let layout = small_layout();
    let expected = layout.units_per_checkpoint();
    let (stored, restored) = (CheckpointId::new(0), CheckpointId::new(100));
    for got in [expected.get() - 1, expected.get() + 1] {
        let ids: Vec<PageId> = (0..got).map(PageId::new).collect();
        let refused =
            |checkpoint| Refused::UnitCount { checkpoint, expected, got: Pages::new(got) };
        check(refused(stored), |ops, _| ops.stores[0].units = ops.push_units(&ids));
        check(refused(restored), |ops, _| ops.restores[0].units = ops.push_units(&ids));
    }
    let replace_last = |ops: &mut MaintenanceOps, unit: PageId, mut ids: Vec<u32>| {
        *ids.last_mut().unwrap() = unit.raw();
        let ids: Vec<PageId> = ids.into_iter().map(PageId::new).collect();
        ops.push_units(&ids)
    };
    let (unit, pages) = (PageId::new(PAGES), Pages::new(PAGES));
    check(Refused::UnitOutOfRange { checkpoint: stored, unit, pages }, |ops, _| {
        ops.stores[0].units = replace_last(ops, unit, unit_ids(0));
    });
    check(Refused::UnitOutOfRange { checkpoint: restored, unit, pages }, |ops, _| {
        ops.restores[0].units = replace_last(ops, unit, unit_ids(10));
    });
    let unit = PageId::new(0);
    check(Refused::DuplicateUnit { checkpoint: stored, unit }, |ops, _| {
        ops.stores[0].units = replace_last(ops, unit, unit_ids(0));
    });
    // Another store of the batch writes the unit.
    check(Refused::DuplicateUnit { checkpoint: CheckpointId::new(1), unit }, |ops, layout| {
        let mut ids = unit_ids(5);
        ids[0] = 0;
        store(ops, layout, 3, 8, &ids);
    });
    let unit = PageId::new(10);
    check(Refused::DuplicateUnit { checkpoint: restored, unit }, |ops, _| {
        ops.restores[0].units = replace_last(ops, unit, unit_ids(10));
    });
    let unit = PageId::new(0);
    check(Refused::UnitNotReady { checkpoint: restored, unit }, |ops, _| {
        ops.restores[0].units = replace_last(ops, unit, unit_ids(10));
    });
}
