//! Batches against the naive twin: one batch is its operations one by one, whatever shares it.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use statepages_copy::{Batcher, CopyBackend, CopyState, HostBackend, Step};
use statepages_page::{MaintenanceOps, SlotId, StateLayout};

use crate::twin::{Twin, relocate, restore, small_layout, store};

const SLOTS: u32 = 8;
const PAGES: u32 = 48;

/// One generated batch: operands only, made valid by [`bundle`].
#[derive(Clone, Debug)]
struct Wish {
    relocations: Vec<(u32, u32)>,
    stores: Vec<(u32, u32)>,
    restores: Vec<(u32, u32)>,
    /// Where the batch's first unit lies; units then follow in steps of an odd number.
    units: u32,
}

fn wishes() -> impl Strategy<Value = Vec<Wish>> {
    let wish = (
        prop::collection::vec((0..SLOTS, 0..SLOTS), 0..12),
        prop::collection::vec((0..SLOTS, 1..9u32), 0..4),
        prop::collection::vec((0..SLOTS, 1..9u32), 0..4),
        0..PAGES,
    );
    let wish = wish.prop_map(|(relocations, stores, restores, units)| Wish {
        relocations,
        stores,
        restores,
        units,
    });
    prop::collection::vec(wish, 1..5)
}

/// Drops what would be refused: duplicate targets and relocations onto themselves.
fn bundle(layout: &StateLayout, wish: &Wish) -> MaintenanceOps {
    let mut ops = MaintenanceOps::default();
    let mut targets = BTreeSet::new();
    for &(from, to) in &wish.relocations {
        if from != to && targets.insert(to) {
            relocate(&mut ops, from, to);
        }
    }
    let count = layout.units_per_checkpoint().get();
    let mut next = wish.units;
    let mut units = || -> Vec<u32> {
        (0..count)
            .map(|_| {
                next = (next + 7) % PAGES;
                next
            })
            .collect()
    };
    for &(slot, rows) in &wish.stores {
        let units = units();
        store(&mut ops, layout, slot, 4 * rows, &units);
    }
    let mut targets = BTreeSet::new();
    for &(slot, rows) in &wish.restores {
        if targets.insert(slot) {
            let units = units();
            restore(&mut ops, layout, slot, 4 * rows, &units);
        }
    }
    ops
}

/// Slots read and written by a step.
fn touched(ops: &MaintenanceOps, step: Step) -> (Option<SlotId>, Option<SlotId>) {
    match step {
        Step::Relocate { from, to } => (Some(from), Some(to)),
        Step::Store { from, op } => {
            assert!((op as usize) < ops.stores.len());
            (Some(from), None)
        }
        Step::Restore { to, op } => {
            assert_eq!(ops.restores[op as usize].slot, to);
            (None, Some(to))
        }
    }
}

/// Every store is placed once and at once, every restore once, and no slot of a launch is both read and written, or
/// written twice.
fn launches_are_free_of_hazards(ops: &MaintenanceOps) {
    let mut batcher = Batcher::new();
    let (mut stores, mut restores) = (0, 0);
    for (number, launch) in batcher.place(ops, SLOTS).enumerate() {
        assert!(!launch.is_empty());
        let reads: BTreeSet<_> = launch.iter().filter_map(|&step| touched(ops, step).0).collect();
        let writes: Vec<_> = launch.iter().filter_map(|&step| touched(ops, step).1).collect();
        let written: BTreeSet<_> = writes.iter().copied().collect();
        assert_eq!(written.len(), writes.len(), "a slot written twice in {launch:?}");
        assert!(reads.is_disjoint(&written), "a slot read and written in {launch:?}");
        let stored = launch.iter().filter(|step| matches!(step, Step::Store { .. })).count();
        assert!(number == 0 || stored == 0, "a store waits for a relocation");
        stores += stored;
        restores += launch.iter().filter(|step| matches!(step, Step::Restore { .. })).count();
    }
    assert_eq!((stores, restores), (ops.stores.len(), ops.restores.len()));
}

fn run(layout: &StateLayout, batches: &[MaintenanceOps]) {
    let mut twin = Twin::filled(layout, PAGES, SLOTS, 11);
    let mut arena = twin.arena(layout);
    let mut backend = HostBackend::new(layout.clone());
    for ops in batches {
        let ticket = backend.submit(&mut arena, ops).unwrap();
        assert_eq!(backend.poll(&mut arena, ticket), Ok(CopyState::Done));
        twin.run(layout, ops);
        twin.assert_equals(&arena, &format!("{ops:?}"));
        launches_are_free_of_hazards(ops);
    }
}

proptest! {
    #![proptest_config(Config {
        cases: 3000,
        rng_seed: RngSeed::Fixed(20),
        failure_persistence: None,
        ..Config::default()
    })]

    #[test]
    fn batch_equals_one_by_one(wishes in wishes()) {
        let layout = small_layout();
        let batches: Vec<_> = wishes.iter().map(|wish| bundle(&layout, wish)).collect();
        run(&layout, &batches);
    }
}

/// All pairs and triples of relocations among four slots, with every slot stored afterwards.
#[test]
fn every_short_relocation_sequence() {
    let layout = small_layout();
    let units = layout.units_per_checkpoint().get();
    let moves: Vec<(u32, u32)> =
        (0..4).flat_map(|from| (0..4).map(move |to| (from, to))).filter(|(a, b)| a != b).collect();
    let mut checked = 0;
    for &a in &moves {
        for &b in &moves {
            for &c in &moves {
                if a.1 == b.1 || b.1 == c.1 || a.1 == c.1 {
                    continue;
                }
                let mut ops = MaintenanceOps::default();
                for (from, to) in [a, b, c] {
                    relocate(&mut ops, from, to);
                }
                for slot in 0..4 {
                    let ids: Vec<u32> = (0..units).map(|unit| slot * units + unit).collect();
                    store(&mut ops, &layout, slot, 16, &ids);
                }
                restore(
                    &mut ops,
                    &layout,
                    checked % 4,
                    16,
                    &[40, 41, 42, 43, 44][..units as usize],
                );
                run(&layout, &[ops]);
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 24 * 27, "three distinct targets in any order, three sources each");
}

/// Image bytes of a slot come from the batch's start, though the batch also refills the slot.
#[test]
fn store_then_restore_of_one_slot() {
    let layout = small_layout();
    let units = layout.units_per_checkpoint().get();
    let mut ops = MaintenanceOps::default();
    store(&mut ops, &layout, 0, 8, &(0..units).collect::<Vec<_>>());
    restore(&mut ops, &layout, 0, 12, &(10..10 + units).collect::<Vec<_>>());
    run(&layout, &[ops]);
}

/// Several requests resume from one record in one batch.
#[test]
fn many_readers_of_one_record() {
    let layout = small_layout();
    let units: Vec<u32> = (0..layout.units_per_checkpoint().get()).collect();
    let mut ops = MaintenanceOps::default();
    for slot in 0..SLOTS {
        restore(&mut ops, &layout, slot, 20, &units);
    }
    run(&layout, &[ops]);
}
