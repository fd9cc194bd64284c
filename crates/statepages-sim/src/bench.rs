//! What the control plane's operations cost, at one pool size.
//!
//! Pages and records are scattered by ten turnovers first, so that neither ids nor links lie in the
//! order of memory. The caller brings the clock. All through the public interface; groups of
//! operations are timed together and the median group counts, so that the clock's own cost and an
//! interrupted group do not.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use statepages_page::{
    BlockSize, Boundary, Bytes, Domain, DomainTag, LayoutId, MaintenanceOps, PageId, Pages,
    RequestId, Tokens,
};
use statepages_store::{
    Admit, AdmitRequest, Append, BackendOrder, Caching, CheckpointInterval, CheckpointSpec,
    ConfigError, ControlPlane, ControlPlaneConfig, Filed, KeepPlan, KeepReason, Notice, Outcome,
    PlanRequest, PolicyReport, PromptKeys, Purpose, Residency, Schedulers, Speculation,
    StateRuntime, StateTransfer, Victim, VictimPolicy, VictimView,
};

use crate::random::Random;

const BLOCK: u32 = 256;
const GROUP: u32 = 8;
/// Restores that are queued together, and pinned records.
const QUEUED: u32 = 4_000;
const TURNOVERS: u32 = 10;

/// One measured operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its name.
    pub op: &'static str,
    /// Pages of the pool.
    pub pool_pages: u32,
    /// Nanoseconds of one operation: the median of many groups.
    pub ns: f64,
}

/// Gives up whichever kind of victim it is told to, oldest first, and the other kind after it.
#[derive(Debug)]
struct Told {
    records_first: Arc<AtomicBool>,
}

impl VictimPolicy for Told {
    fn notice(&mut self, _: &Notice) {}

    fn next_victim(&mut self, view: &VictimView<'_>, _: Purpose) -> Option<Victim> {
        let page = || view.oldest_page().map(Victim::Page);
        let record = || view.oldest_checkpoint().map(Victim::Checkpoint);
        if self.records_first.load(Ordering::Relaxed) {
            record().or_else(page)
        } else {
            page().or_else(record)
        }
    }

    fn next_pages(
        &mut self,
        view: &VictimView<'_>,
        _: Purpose,
        most: usize,
        pages: &mut Vec<PageId>,
    ) {
        if !self.records_first.load(Ordering::Relaxed) {
            pages.extend(view.pages().take(most));
        }
    }

    fn plan(&mut self, request: &PlanRequest<'_>) -> KeepPlan {
        KeepPlan::reference(&request.hit)
    }

    fn report(&self) -> Option<PolicyReport> {
        None
    }

    fn check(&self) {}
}

struct Bench<'a> {
    plane: ControlPlane,
    records_first: Arc<AtomicBool>,
    ops: MaintenanceOps,
    domain: DomainTag,
    draw: Random,
    next_request: u64,
    next_token: u32,
    /// The resident whose blocks the measured stores are filed under.
    anchor: Residency,
    anchor_keys: PromptKeys,
    next_boundary: u32,
    now: &'a dyn Fn() -> u64,
    rows: Vec<Row>,
}

/// Measures every operation with a pool of `pages` and images of `units`. `now` answers nanoseconds
/// since some moment.
pub fn bench_store(
    pages: u32,
    units: u32,
    now: &dyn Fn() -> u64,
) -> Result<Vec<Row>, BenchRefused> {
    if units == 0 {
        return Err(BenchRefused::NoUnits);
    }
    if u64::from(pages) < 40 * u64::from(units) {
        return Err(BenchRefused::TooFewPages { pages, units });
    }
    let mut bench = Bench::new(pages, units, now)?;
    bench.scatter();
    let occupier = bench.occupy(pages / 8);
    bench.measure_stores("store_evicting_kv", bench.cached() / units / 4);
    bench.records_first.store(true, Ordering::Relaxed);
    let records = pages / units;
    bench.stores(records * (1 + TURNOVERS));
    bench.measure_stores("store_evicting", 2_000);
    bench.measure_gate("gate_half_pool");
    let _ = bench.plane.release(occupier);
    bench.measure_stores("store_vacant", pages / 8 / units / 2);
    bench.measure_readers(QUEUED.min(records / 4));
    bench.measure_blocks(QUEUED.min(pages / 8));
    bench.measure_tight();
    let Bench { mut plane, anchor, mut rows, .. } = bench;
    let _ = plane.release(anchor);
    rows.sort_by_key(|row| row.op);
    Ok(rows)
}

/// Sizes that cannot be measured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BenchRefused {
    /// An image of no units.
    #[error("units of an image: expected at least 1, got 0")]
    NoUnits,
    /// The pool holds too few images for what is measured.
    #[error("pages: expected at least 40 images of {units} units, got {pages}")]
    TooFewPages {
        /// Pages asked for.
        pages: u32,
        /// Units of an image.
        units: u32,
    },
    /// More than the control plane can name.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl<'a> Bench<'a> {
    fn new(pages: u32, units: u32, now: &'a dyn Fn() -> u64) -> Result<Self, ConfigError> {
        let records_first = Arc::new(AtomicBool::new(false));
        let policy = Told { records_first: Arc::clone(&records_first) };
        let mut plane = ControlPlane::new(config(pages, units), Box::new(policy))?;
        let domain = Domain { model_revision: "bench", ..Domain::default() }.tag();
        // More boundaries than records, so that each is stored anew after its record has gone.
        let blocks = pages / (units + 1) + 8 * GROUP;
        let mut anchor_keys = PromptKeys::new(domain, block());
        let tokens: Vec<u32> = (0..blocks * BLOCK).collect();
        anchor_keys.extend(&tokens);
        let ask = AdmitRequest { request: RequestId::new(0), keys: &anchor_keys, gated: None };
        let Ok(Admit::Admitted(mut anchor, _)) = plane.try_admit(&ask) else {
            panic!("an empty pool holds the anchor");
        };
        let mut ops = MaintenanceOps::default();
        let mut receipt = plane.begin_batch(&mut ops);
        plane.join(&mut receipt, &anchor, anchor_keys.len());
        plane.settle(receipt, Outcome::Done);
        plane.advance(&mut anchor, &anchor_keys, anchor_keys.len());
        Ok(Self {
            plane,
            records_first,
            ops,
            domain,
            draw: Random::new(1, 0),
            next_request: 1,
            next_token: u32::MAX / 2,
            anchor,
            anchor_keys,
            next_boundary: 0,
            now,
            rows: Vec::new(),
        })
    }

    fn cached(&self) -> u32 {
        self.plane.gauges().pages_cached
    }

    fn fresh_keys(&mut self, tokens: u32) -> PromptKeys {
        let mut keys = PromptKeys::new(self.domain, block());
        let first = self.next_token;
        self.next_token = self.next_token.wrapping_add(tokens);
        let tokens: Vec<u32> = (0..tokens).map(|at| first.wrapping_add(at)).collect();
        keys.extend(&tokens);
        keys
    }

    fn admit(&mut self, keys: &PromptKeys) -> Residency {
        self.next_request += 1;
        let request = RequestId::new(self.next_request);
        match self.plane.try_admit(&AdmitRequest { request, keys, gated: None }) {
            Ok(Admit::Admitted(residency, _)) => residency,
            other => panic!("the pool holds what is measured: {other:?}"),
        }
    }

    /// Fills the pool ten times over with cached blocks that were freed in random order.
    fn scatter(&mut self) {
        let pages = self.plane.gauges().pages_total;
        let wave = (pages / 16).clamp(1, 4_000);
        for _ in 0..(pages * TURNOVERS).div_ceil(wave * 4) {
            let mut residents = Vec::with_capacity(wave as usize);
            let mut prompts = Vec::with_capacity(wave as usize);
            for _ in 0..wave {
                let keys = self.fresh_keys(4 * BLOCK);
                residents.push(self.admit(&keys));
                prompts.push(keys);
            }
            let mut receipt = self.plane.begin_batch(&mut self.ops);
            for (residency, keys) in residents.iter().zip(&prompts) {
                self.plane.join(&mut receipt, residency, keys.len());
            }
            self.plane.settle(receipt, Outcome::Done);
            for (residency, keys) in residents.iter_mut().zip(&prompts) {
                self.plane.advance(residency, keys, keys.len());
            }
            while !residents.is_empty() {
                let which = self.draw.below(residents.len() as u64) as usize;
                let _ = self.plane.release(residents.swap_remove(which));
            }
        }
    }

    /// A resident with so many pages that no index finds: vacant ones, once it goes.
    fn occupy(&mut self, pages: u32) -> Residency {
        let keys = self.fresh_keys(1);
        let mut residency = self.admit(&keys);
        for _ in 0..pages {
            match self.plane.append_block(&mut residency) {
                Append::Done(_) => {}
                Append::NoRoom => panic!("the pool holds what is measured"),
            }
        }
        residency
    }

    /// Files one group of boundaries, each in a scratch slot of its own.
    fn file_group(&mut self) {
        let blocks = self.anchor.pages().len() as u32;
        for _ in 0..GROUP {
            self.next_boundary = self.next_boundary % (blocks - 1) + 1;
            let at = Boundary::from_raw(self.next_boundary * BLOCK);
            let key = self.anchor_keys.key_at(at).expect("on the grid");
            let scratch =
                self.plane.reserve_scratch(&self.anchor, at).expect("slots are plentiful");
            let filed = self.plane.file_scratch(scratch, key, KeepReason::Grid);
            assert_eq!(filed, Filed::Pending);
        }
    }

    fn store_group(&mut self) -> f64 {
        self.file_group();
        let begun = (self.now)();
        let receipt = self.plane.begin_batch(&mut self.ops);
        let spent = (self.now)() - begun;
        self.plane.settle(receipt, Outcome::Done);
        spent as f64 / f64::from(GROUP)
    }

    fn stores(&mut self, count: u32) {
        for _ in 0..count / GROUP {
            self.store_group();
        }
    }

    fn measure_stores(&mut self, op: &'static str, count: u32) {
        let before = self.plane.counters();
        let groups: Vec<f64> = (0..(count / GROUP).max(1)).map(|_| self.store_group()).collect();
        let after = self.plane.counters();
        let stored = after.kept - before.kept;
        assert_eq!(stored, u64::from(GROUP) * groups.len() as u64, "{op}: every store is kept");
        self.push(op, groups);
    }

    fn measure_gate(&mut self, op: &'static str) {
        const CALLS: u32 = 1_000;
        let groups = (0..200)
            .map(|_| {
                let begun = (self.now)();
                for _ in 0..CALLS {
                    black_box(black_box(&self.plane).available());
                }
                ((self.now)() - begun) as f64 / f64::from(CALLS)
            })
            .collect();
        self.push(op, groups);
    }

    /// Many records with a queued reader each: the gate then, their cancellation, their restores.
    fn measure_readers(&mut self, count: u32) {
        let mut prompts = Vec::new();
        for _ in 0..count {
            let keys = self.fresh_keys(BLOCK + 1);
            let mut owner = self.admit(&keys);
            let at = Boundary::from_raw(BLOCK);
            let mut receipt = self.plane.begin_batch(&mut self.ops);
            self.plane.join(&mut receipt, &owner, at.tokens());
            self.plane.settle(receipt, Outcome::Done);
            self.plane.advance(&mut owner, &keys, at.tokens());
            let key = keys.key_at(at).expect("on the grid");
            assert_eq!(self.plane.file(&owner, at, key, KeepReason::Anchor), Filed::Pending);
            let receipt = self.plane.begin_batch(&mut self.ops);
            self.plane.settle(receipt, Outcome::Done);
            let _ = self.plane.release(owner);
            prompts.push(keys);
        }
        let mut readers: Vec<Residency> = prompts.iter().map(|keys| self.admit(keys)).collect();
        // In a tiny pool a reader's fresh page may cost the oldest of them.
        assert!(self.plane.gauges().queued_restores * 2 > count, "most records have a reader");
        self.measure_gate("gate_pinned");
        // In random order, as clients go.
        let mut groups = Vec::new();
        while readers.len() > (count / 2) as usize {
            let mut group = Vec::new();
            for _ in 0..GROUP.min(readers.len() as u32) {
                let which = self.draw.below(readers.len() as u64) as usize;
                group.push(readers.swap_remove(which));
            }
            let size = group.len() as f64;
            let begun = (self.now)();
            for reader in group {
                let _ = self.plane.release(reader);
            }
            groups.push(((self.now)() - begun) as f64 / size);
        }
        self.push("cancel", groups);
        let mut groups = Vec::new();
        for _ in 0..40 {
            let queued = self.plane.gauges().queued_restores;
            let begun = (self.now)();
            let receipt = self.plane.begin_batch(&mut self.ops);
            self.plane.settle(receipt, Outcome::Done);
            groups.push(((self.now)() - begun) as f64 / f64::from(queued));
            for reader in readers.drain(..) {
                let _ = self.plane.release(reader);
            }
            readers = prompts.iter().map(|keys| self.admit(keys)).collect();
        }
        self.push("restore", groups);
        for reader in readers {
            let _ = self.plane.release(reader);
        }
    }

    fn measure_blocks(&mut self, count: u32) {
        let mut residents = Vec::new();
        for _ in 0..count {
            let keys = self.fresh_keys(BLOCK + 1);
            residents.push((self.admit(&keys), keys));
        }
        let to = Tokens::new(BLOCK);
        let mut receipt = self.plane.begin_batch(&mut self.ops);
        for (residency, _) in &residents {
            self.plane.join(&mut receipt, residency, to);
        }
        self.plane.settle(receipt, Outcome::Done);
        let mut groups = Vec::new();
        for group in residents.chunks_mut(GROUP as usize) {
            let begun = (self.now)();
            for (residency, keys) in group.iter_mut() {
                self.plane.advance(residency, keys, to);
            }
            groups.push(((self.now)() - begun) as f64 / group.len() as f64);
        }
        self.push("publish_block", groups);
        let mut groups = Vec::new();
        for group in residents.chunks(GROUP as usize) {
            let begun = (self.now)();
            for (_, keys) in group {
                black_box(self.plane.probe(keys));
            }
            groups.push(((self.now)() - begun) as f64 / group.len() as f64);
        }
        self.push("hit_block", groups);
        for (residency, _) in residents {
            let _ = self.plane.release(residency);
        }
    }

    fn measure_tight(&mut self) {
        let left = self.plane.available().get() - 8;
        let occupier = self.occupy(left);
        self.measure_gate("gate_tight");
        let _ = self.plane.release(occupier);
    }

    fn push(&mut self, op: &'static str, mut groups: Vec<f64>) {
        groups.sort_by(f64::total_cmp);
        let ns = groups[groups.len() / 2];
        self.rows.push(Row { op, pool_pages: self.plane.gauges().pages_total, ns });
    }
}

fn block() -> BlockSize {
    BlockSize::new(BLOCK).expect("a block has tokens")
}

fn config(pages: u32, units: u32) -> ControlPlaneConfig {
    let layout = LayoutId::new("bench").expect("not empty");
    let image = Bytes::new(u64::from(units) * 16);
    let spec = CheckpointSpec::new(Bytes::new(16), image, image, layout.clone())
        .expect("the image is whole units");
    let transfer = StateTransfer::Copy { layout };
    ControlPlaneConfig {
        pages: Pages::new(pages),
        pages_max: Pages::new(pages),
        slots: 2 * QUEUED + 64,
        block: block(),
        runtime: StateRuntime::new(transfer, Some(spec)).expect("spec and class agree"),
        caching: Caching::On,
        interval: CheckpointInterval::Grid(Pages::new(1)),
        copying_max: Some(Pages::new(pages)),
        order: BackendOrder::Ordered,
        pipeline_stages: 1,
        schedulers: Schedulers::Unified,
        speculation: Speculation::Off,
        events_max: 0,
    }
}
