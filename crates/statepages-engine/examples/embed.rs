//! Embeds the engine: a model of one's own behind the `Runner` trait, prompts in, tokens out.
//!
//! ```text
//! cargo run --release -p statepages-engine --example embed
//! ```
//!
//! The model keeps one number per request in its slot and one token per position in its pages. In
//! the second round the same prompts resume from checkpoints in pages, and give the same answers.

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;

use statepages_copy::{CopyBackend, HostArena, HostBackend};
use statepages_engine::{
    Engine, EngineParts, FinishReason, LogitsReport, LogitsWanted, Output, Progress, RawLimits,
    RemoteState, Request, Row, RowOutput, RunError, Runner, Sampling, StartupFacts, StepBatch,
    StepResult, Stop,
};
use statepages_page::{
    BlockSize, Bytes, ImageLayout, ImageRule, LayoutId, PageId, PageLayout, Pages, Plane, Region,
    RequestId, Segment, SlotId, SlotLayout, StateLayout,
};
use statepages_store::{
    BackendOrder, Caching, CheckpointInterval, CheckpointSpec, ControlPlane, ControlPlaneConfig,
    ReferenceOrder, Schedulers, Speculation, StateRuntime, StateTransfer,
};

const BLOCK: u32 = 64;
const PAGES: u32 = 200;
const SLOTS: u32 = 4;
const VOCAB: u32 = 1000;
const SLOT_BYTES: u64 = 3 * 1024;

/// The model with its memory.
struct Counter {
    arena: HostArena,
    copies: HostBackend,
    done: VecDeque<StepResult>,
}

impl Counter {
    fn layout() -> Result<StateLayout, Box<dyn Error>> {
        let tokens = Region { name: "tokens".into(), len: Bytes::new(u64::from(BLOCK) * 16) };
        let state = Plane { name: "state".into(), len: Bytes::new(SLOT_BYTES) };
        let slot = SlotLayout::new(vec![state])?;
        let all = Segment::Fixed { plane: 0, offset: 0, len: SLOT_BYTES };
        Ok(StateLayout {
            id: LayoutId::new("counter-1").ok_or("a layout has a name")?,
            page: PageLayout::new(vec![tokens])?,
            image: ImageLayout::new(ImageRule::Whole, vec![all], &slot)?,
            slot,
        })
    }

    fn run(&mut self, batch: &StepBatch) -> Result<Vec<RowOutput>, RunError> {
        // Copies first. The host backend has finished them when it returns.
        let copied = self.copies.submit(&mut self.arena, &batch.ops);
        copied.map_err(|error| RunError { what: error.to_string() })?;
        Ok(batch.rows.iter().map(|row| self.forward(row)).collect())
    }

    fn forward(&mut self, row: &Row) -> RowOutput {
        let slot = self.arena.slot_mut(0, row.slot);
        let mut word = [0; 8];
        word.copy_from_slice(&slot[..8]);
        // A slot holds whatever its previous owner left until the first chunk has run.
        let mut state = if row.start.get() == 0 { 1 } else { u64::from_le_bytes(word) };
        for &token in &row.tokens {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(u64::from(token));
        }
        for part in slot.chunks_exact_mut(8) {
            part.copy_from_slice(&state.to_le_bytes());
        }
        for (position, token) in (row.start.index()..).zip(&row.tokens) {
            let page = row.pages[position / BLOCK as usize];
            let entry = &mut self.arena.page_mut(0, page)[position % BLOCK as usize * 16..][..4];
            entry.copy_from_slice(&token.to_le_bytes());
        }
        match row.logits {
            LogitsWanted::Nothing => RowOutput::Nothing,
            LogitsWanted::Last => RowOutput::Token((state >> 33) as u32 % VOCAB),
        }
    }
}

impl Runner for Counter {
    fn submit(&mut self, batch: StepBatch) {
        let outcome = self.run(&batch);
        self.done.push_back(StepResult { batch, outcome });
    }

    fn poll(&mut self) -> Option<StepResult> {
        self.done.pop_front()
    }

    fn land(&mut self, _: SlotId, _: &[PageId], _: &RemoteState) -> Result<(), RunError> {
        Err(RunError { what: "this engine has no remote side".to_owned() })
    }
}

fn engine() -> Result<Engine<Counter>, Box<dyn Error>> {
    let layout = Counter::layout()?;
    let spec = CheckpointSpec::of(&layout)?;
    eprintln!("{}", StartupFacts::of(&spec));
    let block = BlockSize::new(BLOCK).ok_or("a block has tokens")?;
    let control = ControlPlaneConfig {
        pages: Pages::new(PAGES),
        pages_max: Pages::new(PAGES),
        slots: SLOTS,
        block,
        runtime: StateRuntime::new(StateTransfer::Copy { layout: layout.id.clone() }, Some(spec))?,
        caching: Caching::On,
        interval: CheckpointInterval::Grid(Pages::new(4)),
        copying_max: None,
        order: BackendOrder::Ordered,
        speculation: Speculation::Off,
        pipeline_stages: 1,
        schedulers: Schedulers::Unified,
        events_max: 0,
    };
    let parts = EngineParts {
        control: ControlPlane::new(control, Box::new(ReferenceOrder))?,
        limits: RawLimits {
            max_num_batched_tokens: 128,
            max_num_seqs: u64::from(SLOTS),
            max_in_flight: 1,
            max_model_len: 4096,
            vocab: u64::from(VOCAB),
            waiting_max: 100,
            batch_failures_max: 1,
            load_steps_max: 0,
        },
        model_revision: "counter".to_owned(),
        layout: Some(layout.id.clone()),
    };
    let runner = Counter {
        arena: HostArena::new(&layout, Pages::new(PAGES), SLOTS)?,
        copies: HostBackend::new(layout),
        done: VecDeque::new(),
    };
    Ok(Engine::new(parts, runner)?)
}

/// What a round of prompts came to.
struct Round {
    outputs: Vec<Vec<u32>>,
    computed: u64,
}

/// Asks all prompts at once.
fn round(
    engine: &mut Engine<Counter>,
    first_id: u64,
    prompts: &[Vec<u32>],
) -> Result<Round, Box<dyn Error>> {
    let before = engine.snapshot().totals.computed;
    let mut outputs = BTreeMap::new();
    for (id, prompt) in (first_id..).map(RequestId::new).zip(prompts) {
        outputs.insert(id, Vec::new());
        engine.submit(Request {
            id,
            prompt: prompt.clone(),
            tenant_salt: None,
            adapter: None,
            sampling: Sampling::GREEDY,
            stop: Stop::after(16),
            logits: LogitsReport::Omit,
        })?;
    }
    loop {
        let progress = engine.step();
        for output in engine.drain_outputs() {
            match output {
                Output::Token { request, token, .. } => {
                    outputs.entry(request).or_insert_with(Vec::new).push(token);
                }
                Output::Admitted { request, report } => {
                    eprintln!(
                        "{request} resumes at {:?} of {}",
                        report.hit.resumable, report.hit.full
                    );
                }
                Output::Finished { reason: FinishReason::MaxTokens, .. } => {}
                other => return Err(format!("unexpected: {other:?}").into()),
            }
        }
        if progress == Progress::Idle {
            break;
        }
    }
    let computed = engine.snapshot().totals.computed - before;
    Ok(Round { outputs: outputs.into_values().collect(), computed })
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut engine = engine()?;
    let prompts: Vec<_> =
        (0..6u32).map(|p| (0..500 + 37 * p).map(|i| (i * i + p * 71) % VOCAB).collect()).collect();
    let cold = round(&mut engine, 0, &prompts)?;
    let resumed = round(&mut engine, 100, &prompts)?;
    assert_eq!(cold.outputs, resumed.outputs, "resumed requests give the tokens of cold ones");
    assert!(resumed.computed * 3 < cold.computed, "most of the prompts was resumed");
    eprintln!("computed {} tokens cold, {} resumed; same outputs", cold.computed, resumed.computed);
    Ok(())
}
