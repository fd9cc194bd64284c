//! After its start, the control plane takes no memory: over 100,000 mixed operations, evictions,
//! resets, growing and shrinking of the pool included, the allocator is not called once.

use std::alloc::System;

use statepages_page::{
    BlockSize, Boundary, Bytes, Domain, LayoutId, MaintenanceOps, Pages, RequestId, Tokens,
};
use statepages_store::{
    Admit, AdmitRequest, BackendOrder, Caching, CheckpointInterval, CheckpointSpec, ControlPlane,
    ControlPlaneConfig, KeepReason, Outcome, PromptKeys, ReferenceOrder, Residency, Retire,
    Schedulers, Speculation, StateRuntime, StateTransfer, Statepages, VictimPolicy,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const BLOCK: u32 = 4;
const SLOTS: u32 = 6;
const PROMPTS: u32 = 40;

fn plane(policy: Box<dyn VictimPolicy>) -> ControlPlane {
    let layout = LayoutId::new("layout").unwrap();
    let spec = CheckpointSpec::new(Bytes::new(16), Bytes::new(48), Bytes::new(48), layout.clone())
        .unwrap();
    let transfer = StateTransfer::Copy { layout };
    let config = ControlPlaneConfig {
        pages: Pages::new(60),
        pages_max: Pages::new(80),
        slots: SLOTS,
        block: BlockSize::new(BLOCK).unwrap(),
        runtime: StateRuntime::new(transfer, Some(spec)).unwrap(),
        caching: Caching::On,
        interval: CheckpointInterval::Grid(Pages::new(1)),
        copying_max: None,
        order: BackendOrder::Unordered,
        pipeline_stages: 1,
        schedulers: Schedulers::Unified,
        speculation: Speculation::Off,
        events_max: 256,
    };
    ControlPlane::new(config, policy).unwrap()
}

/// Keys are the requests', made where requests are made; the test makes them all first.
fn prompts() -> Vec<PromptKeys> {
    let domain = Domain { model_revision: "m", ..Domain::default() }.tag();
    (0..PROMPTS)
        .map(|prompt| {
            let mut keys = PromptKeys::new(domain, BlockSize::new(BLOCK).unwrap());
            let len = 3 + prompt % 22;
            let tokens: Vec<u32> =
                (0..len).map(|at| if at < 9 { prompt % 4 } else { prompt } * 100 + at).collect();
            keys.extend(&tokens);
            keys
        })
        .collect()
}

struct Driver {
    plane: ControlPlane,
    prompts: Vec<PromptKeys>,
    residents: Vec<(Residency, usize)>,
    ops: MaintenanceOps,
    seed: u64,
    requests: u64,
    operations: u64,
}

impl Driver {
    fn below(&mut self, bound: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.seed >> 33) % bound
    }

    fn round(&mut self) {
        match self.below(20) {
            0..6 => self.admit(),
            6..15 => self.step(),
            15..18 if !self.residents.is_empty() => {
                let which = self.below(self.residents.len() as u64) as usize;
                let (residency, _) = self.residents.swap_remove(which);
                let _ = self.plane.release(residency);
            }
            18 => {
                let _ = self.plane.extend(Pages::new(2));
            }
            _ => {
                let shrink = self.below(3);
                for _ in 0..shrink {
                    // Only a page that nobody has moves without its owners being named.
                    if self.residents.is_empty() {
                        match self.plane.retire_top(&mut []) {
                            Retire::Moved { .. } => panic!("nobody is resident"),
                            Retire::Retired(_) | Retire::Busy(_) | Retire::Empty => {}
                        }
                    }
                }
                if self.below(50) == 0 {
                    self.plane.reset();
                }
                while self.plane.events().next_event().is_some() {}
            }
        }
        self.operations += 1;
    }

    fn admit(&mut self) {
        let prompt = self.below(u64::from(PROMPTS)) as usize;
        self.requests += 1;
        let request = RequestId::new(self.requests);
        let ask = AdmitRequest { request, keys: &self.prompts[prompt], gated: None };
        if let Ok(Admit::Admitted(residency, _)) = self.plane.try_admit(&ask) {
            self.residents.push((residency, prompt));
        }
    }

    fn step(&mut self) {
        if self.residents.is_empty() {
            return;
        }
        let mut receipt = self.plane.begin_batch(&mut self.ops);
        let mut ends = [Tokens::ZERO; SLOTS as usize];
        for (end, (residency, prompt)) in ends.iter_mut().zip(&self.residents) {
            let start = self.plane.scheduled(residency);
            let next = (start.get() / BLOCK + 1) * BLOCK;
            *end = Tokens::new(next).min(self.prompts[*prompt].len());
            self.plane.join(&mut receipt, residency, *end);
        }
        let failed = self.below(20) == 0;
        self.plane.settle(receipt, if failed { Outcome::Failed } else { Outcome::Done });
        self.operations += 2 + self.residents.len() as u64;
        if failed {
            while let Some((residency, _)) = self.residents.pop() {
                let _ = self.plane.release(residency);
            }
            return;
        }
        for (end, (residency, prompt)) in ends.into_iter().zip(&mut self.residents) {
            let keys = &self.prompts[*prompt];
            self.plane.advance(residency, keys, end);
            if end.get().is_multiple_of(BLOCK) {
                let at = Boundary::from_raw(end.get());
                let key = keys.key_at(at).unwrap();
                let reason = match end.get() / BLOCK % 2 {
                    0 => KeepReason::Grid,
                    _ => KeepReason::Anchor,
                };
                let _ = self.plane.file(residency, at, key, reason);
            }
        }
    }
}

/// Runs a policy warm, then counts what it allocates.
fn measure(policy: Box<dyn VictimPolicy>) {
    let mut driver = Driver {
        plane: plane(policy),
        prompts: prompts(),
        residents: Vec::with_capacity(SLOTS as usize),
        ops: MaintenanceOps::default(),
        seed: 1,
        requests: 0,
        operations: 0,
    };
    // Page tables and the caller's bundle grow to their largest here.
    while driver.operations < 60_000 {
        driver.round();
    }
    let before = driver.plane.counters();
    driver.operations = 0;
    let region = Region::new(ALLOCATOR);
    while driver.operations < 100_000 {
        driver.round();
    }
    let change = region.change();
    let after = driver.plane.counters();
    while let Some((residency, _)) = driver.residents.pop() {
        let _ = driver.plane.release(residency);
    }
    driver.plane.check();
    assert!(after.evicted > before.evicted && after.orphaned_keys > before.orphaned_keys);
    assert!(after.kept > before.kept + 1_000 && after.resets > before.resets);
    assert_eq!((change.allocations, change.reallocations), (0, 0), "{change:?}");
}

// One test, because the allocator counts for all threads.
#[test]
fn a_hundred_thousand_operations_allocate_nothing() {
    measure(Box::new(ReferenceOrder));
    measure(Box::new(Statepages::new(Pages::new(80), Pages::new(3))));
}
