//! What the tests of the loop share: a small engine on the recurrent model, driven to the end with
//! an audit after every step.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::{BTreeMap, BTreeSet};

use statepages_engine::{
    Connector, Effect, Engine, EngineParts, FinishReason, Latency, LoadEnd, LogitsReport,
    NoConnector, Output, Passes, Progress, RawLimits, RecurrentModel, RecurrentRunner, Request,
    RunnerFaults, Sampling, Stop, Usage,
};
use statepages_page::{BlockSize, Domain, DomainTag, Pages, RequestId, Tokens};
use statepages_store::{
    AdmitReport, BackendOrder, Caching, CheckpointInterval, CheckpointSpec, ControlPlane,
    ControlPlaneConfig, ReferenceOrder, Schedulers, Speculation, StateRuntime, StateTransfer,
};

pub(crate) const BLOCK: u32 = 4;
pub(crate) const VOCAB: u32 = 50;
pub(crate) const REVISION: &str = "recurrent";

/// Two units an image: 2 planes x 5 lanes x 16 bytes over pages of 2 x 4 x 16 bytes.
pub(crate) const MODEL: RecurrentModel =
    RecurrentModel { seed: 7, vocab: VOCAB, block: BlockSize::new(BLOCK).unwrap(), lanes: 5 };

#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) pages: u32,
    pub(crate) slots: u32,
    /// In blocks; `None` is anchors only, zero is off.
    pub(crate) interval: Option<u32>,
    pub(crate) budget: u64,
    pub(crate) in_flight: u64,
    pub(crate) latency: u32,
    pub(crate) faults: Option<RunnerFaults>,
    pub(crate) order: BackendOrder,
    pub(crate) passes: Passes,
    pub(crate) load_steps: u64,
    pub(crate) failures: u64,
}

impl Setup {
    pub(crate) const ROOMY: Self = Self {
        pages: 400,
        slots: 4,
        interval: None,
        budget: 64,
        in_flight: 1,
        latency: 0,
        faults: None,
        order: BackendOrder::Ordered,
        passes: Passes::Mixed,
        load_steps: 1000,
        failures: 1000,
    };

    pub(crate) fn control(&self) -> ControlPlane {
        let layout = MODEL.layout();
        let spec = CheckpointSpec::of(&layout).unwrap();
        let transfer = StateTransfer::Copy { layout: layout.id };
        let config = ControlPlaneConfig {
            pages: Pages::new(self.pages),
            pages_max: Pages::new(self.pages),
            slots: self.slots,
            block: MODEL.block,
            runtime: StateRuntime::new(transfer, Some(spec)).unwrap(),
            caching: Caching::On,
            interval: match self.interval {
                None => CheckpointInterval::AnchorsOnly,
                Some(0) => CheckpointInterval::Off,
                Some(blocks) => CheckpointInterval::Grid(Pages::new(blocks)),
            },
            copying_max: None,
            order: self.order,
            pipeline_stages: 1,
            schedulers: Schedulers::Unified,
            speculation: Speculation::Off,
            events_max: 0,
        };
        ControlPlane::new(config, Box::new(ReferenceOrder)).unwrap()
    }

    pub(crate) fn parts(&self) -> EngineParts {
        EngineParts {
            control: self.control(),
            limits: RawLimits {
                max_num_batched_tokens: self.budget,
                max_num_seqs: u64::from(self.slots),
                max_in_flight: self.in_flight,
                max_model_len: 10_000,
                vocab: u64::from(VOCAB),
                waiting_max: 1000,
                batch_failures_max: self.failures,
                load_steps_max: self.load_steps,
            },
            model_revision: REVISION.to_owned(),
            layout: Some(MODEL.layout().id),
        }
    }

    pub(crate) fn runner(&self) -> RecurrentRunner {
        let effect = match self.order {
            BackendOrder::Ordered => Effect::OldestFirst,
            BackendOrder::Unordered => Effect::YoungestFirst,
        };
        let latency = Latency { polls: self.latency, effect };
        RecurrentRunner::new(MODEL, Pages::new(self.pages), self.slots, latency, self.faults)
            .unwrap()
    }

    pub(crate) fn harness(&self) -> Harness<NoConnector> {
        self.with_connector(NoConnector)
    }

    pub(crate) fn with_connector<C: Connector>(&self, connector: C) -> Harness<C> {
        let parts = self.parts();
        let mut engine = Engine::with_connector(parts, self.runner(), connector).unwrap();
        engine.set_passes(self.passes);
        Harness::new(engine)
    }
}

/// The domain of a request without salt and adapter.
pub(crate) fn shared_domain() -> DomainTag {
    let layout = MODEL.layout().id;
    Domain { model_revision: REVISION, layout: Some(&layout), ..Domain::default() }.tag()
}

pub(crate) fn request(id: u64, prompt: &[u32], tokens: u32) -> Request {
    Request {
        id: RequestId::new(id),
        prompt: prompt.to_vec(),
        tenant_salt: None,
        adapter: None,
        sampling: Sampling::GREEDY,
        stop: Stop::after(tokens),
        logits: LogitsReport::Omit,
    }
}

/// `len` tokens that depend on `seed` at every position.
pub(crate) fn text(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 7 + seed * 13 + i * i * (seed + 1)) % VOCAB).collect()
}

/// What was heard of one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard {
    pub(crate) admissions: Vec<AdmitReport>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) preempted: u32,
    pub(crate) ended: Option<(FinishReason, Usage)>,
}

impl Heard {
    pub(crate) fn resumed(&self) -> Vec<u32> {
        self.admissions.iter().map(|report| report.hit.resumable.get()).collect()
    }

    pub(crate) fn reason(&self) -> &FinishReason {
        &self.ended.as_ref().expect("it has ended").0
    }
}

pub(crate) struct Harness<C: Connector> {
    pub(crate) engine: Engine<RecurrentRunner, C>,
    pub(crate) prompts: BTreeMap<RequestId, Request>,
    pub(crate) heard: BTreeMap<RequestId, Heard>,
    pub(crate) steps: u64,
    /// In the order of submission.
    order: Vec<RequestId>,
    resident: BTreeSet<RequestId>,
}

impl<C: Connector> Harness<C> {
    pub(crate) fn new(engine: Engine<RecurrentRunner, C>) -> Self {
        Self {
            engine,
            prompts: BTreeMap::new(),
            heard: BTreeMap::new(),
            steps: 0,
            order: Vec::new(),
            resident: BTreeSet::new(),
        }
    }

    pub(crate) fn submit(&mut self, request: Request) {
        self.prompts.insert(request.id, request.clone());
        self.heard.insert(request.id, Heard::default());
        self.order.push(request.id);
        self.engine.submit(request).expect("a good request");
    }

    pub(crate) fn abort(&mut self, id: u64) {
        self.engine.abort(RequestId::new(id));
        self.listen();
    }

    pub(crate) fn step(&mut self) -> Progress {
        self.steps += 1;
        let progress = self.engine.step();
        self.listen();
        self.engine.check();
        progress
    }

    /// Steps until there is nothing to do.
    pub(crate) fn finish(&mut self) {
        for _ in 0..100_000 {
            if self.step() == Progress::Idle {
                return;
            }
        }
        panic!("no end: {:?}", self.engine.snapshot());
    }

    /// Submits one request and runs until nothing is left.
    pub(crate) fn run(&mut self, request: Request) -> Heard {
        let id = request.id;
        self.submit(request);
        self.finish();
        self.heard[&id].clone()
    }

    fn listen(&mut self) {
        while let Some(output) = self.engine.next_output() {
            match output {
                Output::Admitted { request, report } => {
                    self.no_older_waits(request);
                    self.resident.insert(request);
                    self.of(request).admissions.push(report);
                }
                Output::Token { request, token, position, .. } => {
                    let prompt = self.prompts[&request].prompt.len();
                    let heard = self.of(request);
                    assert_eq!(position, Tokens::new((prompt + heard.tokens.len()) as u32));
                    heard.tokens.push(token);
                }
                Output::Preempted { request, .. } => {
                    self.resident.remove(&request);
                    self.of(request).preempted += 1;
                }
                Output::Finished { request, reason, usage } => {
                    let heard = self.of(request);
                    assert_eq!(usage.generated.index(), heard.tokens.len());
                    assert_eq!(heard.ended, None, "{request} ends once");
                    heard.ended = Some((reason, usage));
                }
                Output::Unparked { request, load: LoadEnd::Failed } => {
                    self.resident.remove(&request);
                }
                Output::Parked { .. } | Output::Unparked { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Admissions are in the order of submission, repeated ones included: nobody is overtaken.
    fn no_older_waits(&self, admitted: RequestId) {
        for id in self.order.iter().take_while(|id| **id != admitted) {
            let ended = self.heard[id].ended.is_some();
            assert!(ended || self.resident.contains(id), "{admitted} overtakes {id}");
        }
    }

    fn of(&mut self, request: RequestId) -> &mut Heard {
        let heard = self.heard.get_mut(&request).expect("a submitted request");
        assert!(heard.ended.is_none(), "{request} is heard of after its end");
        heard
    }

    /// Every request has ended with what the naive loop answers, or with the beginning of it where
    /// it was called off; the model saw no wrong state; nothing is left behind.
    pub(crate) fn verify(&self) {
        assert_eq!(self.engine.runner().violations(), [] as [String; 0]);
        for (id, request) in &self.prompts {
            let heard = &self.heard[id];
            let wanted = MODEL.generate(&request.prompt, request.stop.max_tokens.index());
            match heard.reason() {
                FinishReason::MaxTokens => assert_eq!(heard.tokens, wanted, "{id}"),
                FinishReason::Aborted | FinishReason::Failed(_) => {
                    assert!(wanted.starts_with(&heard.tokens), "{id}");
                }
                other => panic!("{id}: {other:?}"),
            }
        }
        self.verify_idle();
    }

    /// Nothing but cached pages and READY images is left.
    pub(crate) fn verify_idle(&self) {
        let snapshot = self.engine.snapshot();
        let gauges = snapshot.gauges;
        assert_eq!((snapshot.waiting, snapshot.running, snapshot.parked), (0, 0, 0));
        assert_eq!((snapshot.draining, snapshot.in_flight), (0, 0));
        assert_eq!((gauges.pages_live, gauges.pages_held), (0, 0));
        assert_eq!((gauges.pending, gauges.copying, gauges.evicting), (0, 0, 0));
        assert_eq!((gauges.queued_restores, gauges.slots_fenced), (0, 0));
        assert_eq!(gauges.slots_free, self.engine.control().config().slots);
        assert_eq!(gauges.pages_available, gauges.pages_total);
    }
}
