//! The faulty backend does what its script says, and nothing else.

use statepages_copy::{
    CopyBackend, CopyError, CopyOrder, CopyPlan, CopyState, CopyTicket, Fault, FaultyBackend,
    HostArena, HostBackend,
};
use statepages_page::{MaintenanceOps, StateLayout};

use crate::twin::{Twin, relocate, restore, small_layout, store};

struct Bench {
    layout: StateLayout,
    twin: Twin,
    arena: HostArena,
    backend: FaultyBackend,
}

impl Bench {
    fn new(script: &[Fault]) -> Self {
        let layout = small_layout();
        let twin = Twin::filled(&layout, 20, 4, 5);
        let arena = twin.arena(&layout);
        let mut backend = FaultyBackend::new(layout.clone());
        for &fault in script {
            backend.script(fault);
        }
        Self { layout, twin, arena, backend }
    }

    fn units(&self, first: u32) -> Vec<u32> {
        (first..first + self.layout.units_per_checkpoint().get()).collect()
    }

    fn store(&self, slot: u32, first: u32) -> MaintenanceOps {
        let mut ops = MaintenanceOps::default();
        store(&mut ops, &self.layout, slot, 8, &self.units(first));
        ops
    }

    fn submit(&mut self, ops: &MaintenanceOps) -> CopyTicket {
        self.backend.submit(&mut self.arena, ops).unwrap()
    }

    fn poll(&mut self, ticket: CopyTicket) -> Result<CopyState, CopyError> {
        self.backend.poll(&mut self.arena, ticket)
    }

    /// The memory holds what the given batches, and no others, have done.
    fn expect(&mut self, batches: &[&MaintenanceOps]) {
        for ops in batches {
            self.twin.run(&self.layout, ops);
        }
        self.twin.assert_equals(&self.arena, "");
    }
}

#[test]
fn unscripted_batches_are_done_at_once() {
    let mut bench = Bench::new(&[]);
    let ops = bench.store(1, 0);
    let ticket = bench.submit(&ops);
    assert_eq!(bench.poll(ticket), Ok(CopyState::Done));
    assert_eq!(bench.poll(ticket), Ok(CopyState::Done), "a batch that is done stays done");
    bench.expect(&[&ops]);
    assert_eq!(bench.backend.order(), CopyOrder::Unordered);
    assert_eq!(HostBackend::new(small_layout()).order(), CopyOrder::Ordered);
}

#[test]
fn delayed_batches_complete_out_of_order() {
    let mut bench = Bench::new(&[Fault::Delay { polls: 3 }, Fault::Delay { polls: 1 }]);
    let (slow, fast) = (bench.store(1, 0), bench.store(2, 10));
    let (first, second) = (bench.submit(&slow), bench.submit(&fast));
    assert!(first < second);
    bench.expect(&[]);
    assert_eq!(bench.poll(first), Ok(CopyState::Pending));
    bench.expect(&[&fast]);
    assert_eq!(bench.poll(second), Ok(CopyState::Done));
    assert_eq!(bench.backend.in_flight(), 1);
    assert_eq!(bench.poll(first), Ok(CopyState::Done));
    bench.expect(&[&slow]);
    assert_eq!(bench.backend.in_flight(), 0);
}

/// A slot reused before its receipt is what a late store reads: the twin that an engine must not
/// be able to tell from a device.
#[test]
fn a_delayed_store_reads_late() {
    let mut bench = Bench::new(&[Fault::Delay { polls: 1 }]);
    let ops = bench.store(1, 0);
    let ticket = bench.submit(&ops);
    for plane in 0..2 {
        bench.arena.slot_mut(plane, statepages_page::SlotId::new(1)).fill(9);
        bench.twin.slots[1][plane].fill(9);
    }
    assert_eq!(bench.poll(ticket), Ok(CopyState::Done));
    bench.expect(&[&ops]);
}

#[test]
fn failed_submission_writes_nothing_and_latches() {
    let mut bench = Bench::new(&[Fault::FailSubmit]);
    let ops = bench.store(1, 0);
    let error = bench.backend.submit(&mut bench.arena, &ops).unwrap_err();
    assert!(matches!(error, CopyError::Device { .. }), "{error}");
    assert_eq!(bench.backend.submit(&mut bench.arena, &ops), Err(CopyError::PriorFailure));
    bench.expect(&[]);
    bench.backend.reset();
    let ticket = bench.submit(&ops);
    assert_eq!(bench.poll(ticket), Ok(CopyState::Done));
    bench.expect(&[&ops]);
}

#[test]
fn torn_batch_writes_a_part_and_latches() {
    let mut bench = Bench::new(&[Fault::Delay { polls: 9 }, Fault::Tear { polls: 2, moves: 3 }]);
    let spans = CopyPlan::new(&bench.layout).spans().len();
    assert!(spans > 3);
    let (other, torn) = (bench.store(2, 10), bench.store(1, 0));
    let (before, ticket) = (bench.submit(&other), bench.submit(&torn));
    assert_eq!(bench.poll(ticket), Ok(CopyState::Pending));
    assert!(matches!(bench.poll(ticket), Err(CopyError::Device { .. })));
    for old in [before, ticket] {
        assert_eq!(bench.poll(old), Err(CopyError::PriorFailure));
    }

    let untouched = bench.twin.clone();
    bench.twin.run(&bench.layout, &torn);
    let page = |twin: &Twin, region: usize| twin.pages[0][region].clone();
    let held = |region| bench.arena.page(region, statepages_page::PageId::new(0)).to_vec();
    assert_eq!(held(0), page(&bench.twin, 0), "the first spans are there");
    assert!((0..4).any(|id| {
        let id = statepages_page::PageId::new(id);
        (0..3).any(|region| {
            bench.arena.page(region, id) == untouched.pages[id.index()][region]
                && untouched.pages[id.index()][region] != bench.twin.pages[id.index()][region]
        })
    }));

    bench.backend.reset();
    for old in [before, ticket] {
        assert_eq!(bench.poll(old), Err(CopyError::PriorFailure), "void after a reset");
    }
    let again = bench.submit(&torn);
    assert_eq!(bench.poll(again), Ok(CopyState::Done));
    bench.expect(&[]);
}

#[test]
fn skipped_restores_leave_the_previous_owner() {
    let mut bench = Bench::new(&[Fault::SkipRestores]);
    let mut ops = bench.store(1, 0);
    relocate(&mut ops, 3, 0);
    let kept = ops.clone();
    restore(&mut ops, &bench.layout, 2, 8, &bench.units(10));
    let ticket = bench.submit(&ops);
    assert_eq!(bench.poll(ticket), Ok(CopyState::Done));
    bench.expect(&[&kept]);
}
