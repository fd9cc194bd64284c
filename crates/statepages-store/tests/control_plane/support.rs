//! What the tests share: a builder of control planes, prompts, and a world whose bytes are words.

use statepages_page::{
    BlockSize, Boundary, Bytes, CheckpointId, ContentKey, Domain, LayoutId, MaintenanceOps, Pages,
    RequestId, Tokens,
};
use statepages_store::{
    Admit, AdmitReport, AdmitRequest, BackendOrder, Caching, CheckpointInterval, CheckpointSpec,
    ControlPlane, ControlPlaneConfig, Filed, KeepPlan, KeepReason, Notice, Outcome, PlanRequest,
    PolicyReport, PromptKeys, Purpose, Receipt, ReferenceOrder, Refusal, Residency, Schedulers,
    Speculation, StateRuntime, StateTransfer, Victim, VictimPolicy, VictimView,
};

pub(crate) const BLOCK: u32 = 4;

pub(crate) fn block() -> BlockSize {
    BlockSize::new(BLOCK).unwrap()
}

/// Images of `units` units of ten bytes, the last one half used.
pub(crate) fn runtime(units: u32) -> StateRuntime {
    let layout = LayoutId::new("layout-v1").unwrap();
    let image = Bytes::new(u64::from(units) * 10 - 5);
    let spec = CheckpointSpec::new(Bytes::new(10), image, image, layout.clone()).unwrap();
    StateRuntime::new(StateTransfer::Copy { layout }, Some(spec)).unwrap()
}

/// Blocks of 4 tokens, images of 3 units, no grid.
pub(crate) fn config(pages: u32, slots: u32) -> ControlPlaneConfig {
    ControlPlaneConfig {
        pages: Pages::new(pages),
        pages_max: Pages::new(pages),
        slots,
        block: block(),
        runtime: runtime(3),
        caching: Caching::On,
        interval: CheckpointInterval::AnchorsOnly,
        copying_max: Some(Pages::new(pages)),
        order: BackendOrder::Ordered,
        speculation: Speculation::Off,
        pipeline_stages: 1,
        schedulers: Schedulers::Unified,
        events_max: 4096,
    }
}

pub(crate) fn keys_in(salt: &[u8], tokens: &[u32]) -> PromptKeys {
    let domain = Domain { tenant_salt: Some(salt), model_revision: "m", ..Domain::default() };
    let mut keys = PromptKeys::new(domain.tag(), block());
    keys.extend(tokens);
    keys
}

pub(crate) fn keys(tokens: &[u32]) -> PromptKeys {
    keys_in(b"", tokens)
}

/// `n` tokens that no other `seed` shares a block with.
pub(crate) fn prompt(seed: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| seed * 100_000 + i).collect()
}

pub(crate) fn at(boundary: u32) -> Boundary {
    Boundary::from_raw(boundary)
}

pub(crate) fn tokens(n: u32) -> Tokens {
    Tokens::new(n)
}

/// A control plane with the calls of a small engine around it.
pub(crate) struct Rig {
    pub(crate) plane: ControlPlane,
    pub(crate) ops: MaintenanceOps,
    next_request: u64,
}

impl Rig {
    pub(crate) fn new(pages: u32, slots: u32) -> Self {
        Self::with(config(pages, slots))
    }

    pub(crate) fn with(config: ControlPlaneConfig) -> Self {
        Self::policy(config, Box::new(ReferenceOrder))
    }

    pub(crate) fn policy(config: ControlPlaneConfig, policy: Box<dyn VictimPolicy>) -> Self {
        let plane = ControlPlane::new(config, policy).unwrap();
        Self { plane, ops: MaintenanceOps::default(), next_request: 0 }
    }

    pub(crate) fn try_admit(
        &mut self,
        keys: &PromptKeys,
    ) -> Result<(Residency, AdmitReport), Refusal> {
        self.next_request += 1;
        let request = RequestId::new(self.next_request);
        let answer = self.plane.try_admit(&AdmitRequest { request, keys, gated: None });
        self.plane.check();
        match answer.unwrap() {
            Admit::Admitted(residency, report) => Ok((residency, report)),
            Admit::Refused(why) => Err(why),
        }
    }

    pub(crate) fn admit(&mut self, keys: &PromptKeys) -> (Residency, AdmitReport) {
        self.try_admit(keys).unwrap()
    }

    /// Starts a batch with one member.
    pub(crate) fn begin(&mut self, residency: &Residency, to: u32) -> Receipt {
        let mut receipt = self.plane.begin_batch(&mut self.ops);
        self.plane.join(&mut receipt, residency, tokens(to));
        self.plane.check();
        receipt
    }

    pub(crate) fn done(&mut self, receipt: Receipt) {
        self.plane.settle(receipt, Outcome::Done);
        self.plane.check();
    }

    pub(crate) fn failed(&mut self, receipt: Receipt) {
        self.plane.settle(receipt, Outcome::Failed);
        self.plane.check();
    }

    /// A batch with one member, run, settled and reported.
    pub(crate) fn run(&mut self, residency: &mut Residency, keys: &PromptKeys, to: u32) {
        let receipt = self.begin(residency, to);
        self.done(receipt);
        self.plane.advance(residency, keys, tokens(to));
        self.plane.check();
    }

    /// A batch without members that anybody would name: it carries what is queued.
    pub(crate) fn tick(&mut self) {
        let receipt = self.plane.begin_batch(&mut self.ops);
        self.done(receipt);
    }

    pub(crate) fn file(
        &mut self,
        residency: &Residency,
        keys: &PromptKeys,
        boundary: u32,
    ) -> Filed {
        let key = keys.key_at(at(boundary)).unwrap();
        let filed = self.plane.file(residency, at(boundary), key, KeepReason::Anchor);
        self.plane.check();
        filed
    }

    pub(crate) fn release(&mut self, residency: Residency) {
        self.plane.release(residency);
        self.plane.check();
    }

    /// Leaves a READY checkpoint at `boundary` of a prompt behind, and nobody resident.
    pub(crate) fn publish(&mut self, keys: &PromptKeys, boundary: u32) -> CheckpointId {
        let (mut residency, _) = self.admit(keys);
        if self.plane.scheduled(&residency) < tokens(boundary) {
            self.run(&mut residency, keys, boundary);
        }
        assert_eq!(self.file(&residency, keys, boundary), Filed::Pending);
        let receipt = self.plane.begin_batch(&mut self.ops);
        let id = self.ops.stores.last().expect("the store was handed out").checkpoint;
        self.done(receipt);
        self.release(residency);
        assert_eq!(self.resumable(keys), boundary);
        id
    }

    /// Blocks of a prompt found, and nothing kept or resident.
    pub(crate) fn fill(&mut self, keys: &PromptKeys) {
        let (mut residency, _) = self.admit(keys);
        self.run(&mut residency, keys, keys.len().get());
        self.release(residency);
    }

    pub(crate) fn resumable(&self, keys: &PromptKeys) -> u32 {
        self.plane.probe(keys).resumable.get()
    }

    pub(crate) fn kv(&self, keys: &PromptKeys) -> u32 {
        self.plane.probe(keys).kv.get()
    }

    pub(crate) fn key(keys: &PromptKeys, boundary: u32) -> ContentKey {
        keys.key_at(at(boundary)).unwrap()
    }
}

/// Gives up checkpoints before cached blocks.
#[derive(Debug)]
pub(crate) struct RecordsFirst;

impl VictimPolicy for RecordsFirst {
    fn notice(&mut self, _: &Notice) {}
    fn next_victim(&mut self, view: &VictimView<'_>, _: Purpose) -> Option<Victim> {
        let record = view.oldest_checkpoint().map(Victim::Checkpoint);
        record.or_else(|| view.oldest_page().map(Victim::Page))
    }
    fn plan(&mut self, request: &PlanRequest<'_>) -> KeepPlan {
        KeepPlan::reference(&request.hit)
    }
    fn report(&self) -> Option<PolicyReport> {
        None
    }
    fn check(&self) {}
}
