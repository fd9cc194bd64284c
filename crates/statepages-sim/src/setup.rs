//! One simulated world: its sizes, its fault rates, and the stimuli it gets. All drawn from a seed.

use statepages_page::{BlockSize, Pages};
use statepages_store::{
    BackendOrder, Caching, CheckpointInterval, CheckpointSpec, ControlPlane, ControlPlaneConfig,
    ReferenceOrder, Schedulers, Speculation, StateRuntime, StateTransfer, Statepages, VictimPolicy,
};

use crate::device::model;
use crate::random::Random;

/// A bug put in on purpose, to show that the auditor sees one of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The device loses every restore.
    SkipRestores,
    /// The device reports a batch as done whose copies tore.
    TornIsDone,
    /// The device writes one byte of a READY image.
    WriteReady,
    /// The device writes one byte of a live page.
    WriteLive,
    /// Requests of all tenants are submitted without their salts.
    OneTenant,
    /// The far side never says that a load has ended.
    SilentLoads,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::SkipRestores,
        Self::TornIsDone,
        Self::WriteReady,
        Self::WriteLive,
        Self::OneTenant,
        Self::SilentLoads,
    ];
}

/// Who chooses victims, and what a prefill is cut for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// The published order.
    Reference,
    /// The project's policy.
    Statepages,
}

/// A world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Seeds every draw.
    pub seed: u64,
    /// Pages of the pool at start.
    pub pages: u32,
    /// Pages that the pool may grow by.
    pub spare: u32,
    /// Active slots.
    pub slots: u32,
    /// Tokens per block.
    pub block: u32,
    /// Lanes of each of a slot's planes: sets the units of an image.
    pub lanes: u32,
    /// Grid of kept boundaries, in blocks; `None` keeps anchors and demands only.
    pub interval: Option<u32>,
    /// The policy.
    pub keeper: Keeper,
    /// Tokens of a batch at most.
    pub budget: u64,
    /// Batches in flight at most, 1 or 2.
    pub in_flight: u64,
    /// What the device promises.
    pub order: BackendOrder,
    /// Polls that a batch takes at most.
    pub latency: u32,
    /// Batches of a hundred that fail.
    pub failing: u64,
    /// Failed batches that end a request.
    pub failures_max: u64,
    /// Steps after which a remote load is called off.
    pub load_steps: u64,
    /// Loads of a hundred that fail, complete twice, never complete unless cancelled, and never
    /// complete at all.
    pub load_faults: [u8; 4],
    /// Bits of every other content key; `None` leaves all.
    pub key_bits: Option<u32>,
    /// Tokens drafted for a decode at most.
    pub drafts: u32,
    /// Resets among a hundred stimuli.
    pub resets: u64,
    /// Submissions of a hundred that are turns of the loop instead.
    pub calm: u64,
    /// Ambushes among a hundred stimuli.
    pub ambushes: u64,
    /// Growths and shrinkings of the pool among a hundred stimuli, beside the three there are everywhere.
    pub resizes: u64,
    /// Requests of a hundred that the far side is asked for.
    pub offers: u64,
    /// A bug put in on purpose.
    pub bug: Option<Bug>,
}

/// One stimulus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// `shared` tokens of a family's text, then `tail` tokens of its own.
    Submit {
        /// Which text.
        family: u8,
        /// Tokens shared with others of the family.
        shared: u8,
        /// Tokens of its own.
        tail: u8,
        /// Tokens to generate.
        tokens: u8,
        /// Whose it is.
        tenant: u8,
    },
    /// Prompt and output of an earlier request, and `turn` more tokens.
    Continue {
        /// Which of the remembered ones, modulo their number.
        which: u8,
        /// Tokens of the new turn.
        turn: u8,
        /// Tokens to generate.
        tokens: u8,
    },
    /// So many requests whose prompts end on the same boundary of one text, at once.
    Burst {
        /// Which text.
        family: u8,
        /// Blocks of the prompt.
        blocks: u8,
        /// Requests.
        count: u8,
    },
    /// Lies in wait for a turn in which a batch in flight takes a request to the end of its pages and
    /// nobody waits for any; then submits a text of which the far side has more than the pool has a state
    /// of, with a tail that takes all pages that are left but `spared`; and, where some are spared, a
    /// short prompt of another tenant behind it.
    Ambush {
        /// Which text, or the next one that will do.
        family: u8,
        /// Pages left over.
        spared: u8,
        /// Tokens to generate.
        tokens: u8,
        /// Whether the cache is emptied behind it.
        reset: bool,
    },
    /// Calls a request off, live or just finished.
    Abort(u8),
    /// One turn of the loop.
    Step,
    /// Empties the cache.
    Reset,
    /// Grows the pool by so many pages, where it may.
    Extend(u8),
    /// Asks so many times for the highest page.
    Retire(u8),
    /// Runs until nothing is left, and audits that nothing is.
    Drain,
}

impl Setup {
    /// The world of a seed. Half of all are drawn as they come; the others are shaped for what meets
    /// rarely, and have loads for all: roomy and slow ones, where loads start while others are in
    /// flight; crowded ones, of few pages and many residents; dry ones, where a parked request and a
    /// decoding one fill the pool between them, so that turns pass without a batch; and calm ones, where
    /// ambushes lie in wait for moments that chance hardly ever brings.
    pub fn of(seed: u64) -> Self {
        let world = Self::drawn(seed);
        let draw = &mut Random::new(seed, 5);
        let (slots, lanes) = (draw.within(4, 6), draw.within(2, 5) as u32);
        let load_steps = draw.within(8, 30);
        let world = match seed % 8 {
            0 | 1 | 4 | 5 | 6 => Self { lanes, load_steps, offers: 100, ..world },
            _ => return world,
        };
        match seed % 8 {
            0 => Self {
                pages: draw.within(14, 22) as u32,
                slots: slots as u32,
                budget: draw.within(slots, 24),
                in_flight: 2,
                order: BackendOrder::Unordered,
                latency: draw.within(2, 6) as u32,
                resets: 8,
                ..world
            },
            4 => Self {
                pages: 14,
                slots: draw.within(2, 3) as u32,
                spare: draw.below(3) as u32,
                budget: draw.within(3, 24),
                latency: draw.below(3) as u32,
                resets: 15,
                ..world
            },
            6 => Self {
                pages: draw.within(14, 18) as u32,
                slots: draw.within(3, 4) as u32,
                lanes: 2,
                interval: Some(1),
                spare: 4,
                budget: draw.within(11, 24),
                in_flight: 2,
                latency: draw.within(4, 8) as u32,
                load_faults: [15, 15, 15, 0],
                key_bits: None,
                drafts: 0,
                resets: 2,
                ambushes: 20,
                resizes: 6,
                calm: 80,
                ..world
            },
            _ => Self {
                pages: draw.within(60, 90) as u32,
                slots: slots as u32,
                interval: Some(1),
                budget: draw.within(slots, 24),
                in_flight: 2,
                latency: draw.within(4, 8) as u32,
                ..world
            },
        }
    }

    /// All of it drawn, each part for itself.
    fn drawn(seed: u64) -> Self {
        let mut draw = Random::new(seed, 0);
        let pages = match draw.below(3) {
            0 => draw.within(14, 20),
            1 => draw.within(20, 40),
            _ => draw.within(40, 90),
        };
        let in_flight = draw.within(1, 2);
        let slots = draw.within(1, 6);
        let world = Self {
            seed,
            pages: pages as u32,
            slots: slots as u32,
            block: 4,
            lanes: draw.within(2, 11) as u32,
            interval: [None, Some(1), Some(2), Some(3)][draw.below(4) as usize],
            // Each shape of world is met under both.
            keeper: if (seed / 8).is_multiple_of(2) {
                Keeper::Reference
            } else {
                Keeper::Statepages
            },
            budget: draw.within(slots, 24),
            in_flight,
            order: if draw.percent(50) { BackendOrder::Ordered } else { BackendOrder::Unordered },
            latency: draw.below(6) as u32,
            failing: [0, 2, 8][draw.below(3) as usize],
            failures_max: draw.within(1, 4),
            load_steps: draw.within(2, 14),
            load_faults: [15, 15, 15, 0],
            resets: [1, 3, 10][draw.below(3) as usize],
            offers: [0, 60, 100][draw.below(3) as usize],
            ambushes: 0,
            calm: 0,
            resizes: 0,
            bug: None,
            spare: 0,
            key_bits: None,
            drafts: 0,
        };
        let mut draw = Random::new(seed, 4);
        Self {
            spare: [0, 4, 12][draw.below(3) as usize],
            key_bits: [None, None, Some(3)][draw.below(3) as usize],
            drafts: [0, 1, 4][draw.below(3) as usize],
            load_faults: [15, 15, 15, [0, 5, 15][draw.below(3) as usize]],
            ..world
        }
    }

    /// The same world with a bug.
    #[must_use]
    pub fn with(self, bug: Bug) -> Self {
        Self { bug: Some(bug), ..self }
    }

    pub(crate) fn is_ordered(&self) -> bool {
        self.order == BackendOrder::Ordered
    }

    pub(crate) fn block_size(&self) -> BlockSize {
        BlockSize::new(self.block).expect("a block has tokens")
    }

    pub(crate) fn control(&self) -> ControlPlane {
        let layout = model(self).layout();
        let spec = CheckpointSpec::of(&layout).expect("the layout is sound");
        let transfer = StateTransfer::Copy { layout: layout.id };
        let runtime = StateRuntime::new(transfer, Some(spec)).expect("spec and class agree");
        let config = ControlPlaneConfig {
            pages: Pages::new(self.pages),
            pages_max: Pages::new(self.pages + self.spare),
            slots: self.slots,
            block: self.block_size(),
            runtime,
            caching: Caching::On,
            interval: match self.interval {
                None => CheckpointInterval::AnchorsOnly,
                Some(blocks) => CheckpointInterval::Grid(Pages::new(blocks)),
            },
            copying_max: None,
            order: self.order,
            pipeline_stages: 1,
            schedulers: Schedulers::Unified,
            speculation: if self.drafts > 0 { Speculation::On } else { Speculation::Off },
            events_max: 64,
        };
        let units = config.runtime.spec().map_or(Pages::ZERO, CheckpointSpec::units_per_checkpoint);
        let policy: Box<dyn VictimPolicy> = match self.keeper {
            Keeper::Reference => Box::new(ReferenceOrder),
            Keeper::Statepages => Box::new(Statepages::new(config.pages_max, units)),
        };
        ControlPlane::new(config, policy).expect("the world can run")
    }
}

/// The endless list of a seed's stimuli.
#[derive(Clone, Debug)]
pub(crate) struct Acts {
    draw: Random,
    /// Where each kind of stimulus ends that is drawn more or less often from world to world.
    resets: u64,
    ambushes: u64,
    resizes: u64,
    calm: u64,
    since_drain: u32,
}

impl Acts {
    pub(crate) fn of(setup: &Setup) -> Self {
        let resets = 40 + setup.resets;
        let ambushes = resets + setup.ambushes;
        let resizes = ambushes + setup.resizes;
        assert!(resizes < 100, "some stimuli are turns of the loop");
        let draw = Random::new(setup.seed, 1);
        Self { draw, resets, ambushes, resizes, calm: setup.calm, since_drain: 0 }
    }
}

impl Iterator for Acts {
    type Item = Act;

    fn next(&mut self) -> Option<Act> {
        let draw = &mut self.draw;
        self.since_drain += 1;
        if self.since_drain > 400 {
            self.since_drain = 0;
            return Some(Act::Drain);
        }
        // Lengths around boundaries: one before, on, one behind, and anything.
        let mut length = |blocks: u64| match draw.below(4) {
            0 => draw.within(1, blocks) * 4 - 1,
            1 => draw.within(1, blocks) * 4,
            2 => draw.within(1, blocks) * 4 + 1,
            _ => draw.below(blocks * 4),
        };
        let shared = length(6) as u8;
        Some(match draw.below(100) {
            // Drawn only where it matters, so that the other worlds are what they were.
            0..30 if self.calm > 0 && draw.percent(self.calm) => Act::Step,
            0..22 => Act::Submit {
                family: draw.below(3) as u8,
                shared,
                tail: draw.below(9) as u8,
                tokens: draw.within(1, 14) as u8,
                tenant: draw.below(3).saturating_sub(1) as u8,
            },
            22..30 => Act::Continue {
                which: draw.next() as u8,
                turn: draw.within(1, 6) as u8,
                tokens: draw.within(1, 8) as u8,
            },
            30..32 => Act::Burst {
                family: draw.below(3) as u8,
                blocks: draw.within(1, 5) as u8,
                count: draw.within(2, 6) as u8,
            },
            32..37 => Act::Abort(draw.next() as u8),
            37 | 38 => Act::Extend(draw.within(1, 4) as u8),
            39 => Act::Retire(draw.within(1, 4) as u8),
            at if at >= 40 && at < self.resets => Act::Reset,
            at if at >= 40 && at < self.ambushes => Act::Ambush {
                family: draw.below(3) as u8,
                spared: [0, 0, 0, 2][draw.below(4) as usize],
                tokens: draw.within(1, 14) as u8,
                reset: draw.percent(60),
            },
            at if at >= 40 && at < self.resizes => {
                let count = draw.within(1, 4) as u8;
                if draw.percent(50) { Act::Extend(count) } else { Act::Retire(count) }
            }
            _ => Act::Step,
        })
    }
}
