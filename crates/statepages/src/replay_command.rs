//! `statepages replay`: traffic through the control plane, policy by policy and pool by pool.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use cpu_time::ThreadTime;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Map, Value, json};
use statepages_engine::Passes;
use statepages_page::{BlockSize, Pages};
use statepages_replay::{
    Bound, Distinct, Draws, Extent, History, KEEP_REASONS, Line, Order, Pace, Phase, Policy,
    ReplayError, RoundFigures, Run, Server, Shared, Stage, Texts, Trace, Watch, gsm8k64, jsonl,
    lmcache, mooncake, plot, replay,
};
use statepages_store::LossReason;

use crate::built_in::checkpoint_interval;
use crate::geometry_command::known;
use crate::given::FlagError;
use crate::replay_args::{
    OrderName, POOL_PAGES_MAX, PassesName, PolicyName, PoolSize, ReplayArgs, TimeName, WorkloadName,
};

/// Columns of the table; of the bound's rows the KV hit is what repeats.
const COLUMNS: [&str; 15] = [
    "policy",
    "pages",
    "workload",
    "round",
    "realised %",
    "KV hit %",
    "boundary %",
    "evicted %",
    "never %",
    "images",
    "read",
    "chunks",
    "extra",
    "batches",
    "CPU s",
];

/// Tokens generated where neither flag nor trace says.
const OUTPUT_TOKENS: u32 = 100;

/// A policy on a pool.
struct Outcome {
    pages: u32,
    result: Figures,
}

enum Figures {
    Run(Policy, Box<Run>),
    Bounds(Vec<Bound>),
}

pub(crate) fn run(args: &ReplayArgs) -> Result<()> {
    // Time of this thread alone: what else the machine is busy with is no cost of the control plane.
    let now = || ThreadTime::now().as_duration().as_nanos() as u64;
    let bar = bar();
    let progress = |stage: Stage, done: u64, of: u64| {
        bar.set_length(of);
        bar.set_position(done);
        bar.set_message(match stage {
            Stage::Tokenising => "tokenising",
            Stage::Hashing => "hashing",
            Stage::Replaying => "replaying",
        });
    };
    let watch = Watch { now: &now, progress: &progress };
    let traces = traces(args, &watch)?;
    let lab = Lab::new(args, &traces, &watch)?;
    let mut outcomes = Vec::new();
    for &size in &args.pages {
        let pages = lab.pages(size)?;
        for &name in &args.policy {
            bar.set_prefix(format!("{} on {pages} pages", label(name.policy())));
            let result = lab.figures(name.policy(), pages, &watch)?;
            outcomes.push(Outcome { pages, result });
        }
    }
    bar.finish_and_clear();
    if let Some(path) = &args.plot {
        let names: Vec<&str> = traces.iter().map(|trace| trace.name.as_str()).collect();
        plot(path, &names.join(", "), &lines(&outcomes))?;
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", to_json(&lab, &outcomes))?;
    } else {
        writeln!(out, "{}", to_table(&outcomes))?;
    }
    too_long(&outcomes);
    Ok(())
}

/// Says which prompts were left out: shares of what was sent hide them.
fn too_long(outcomes: &[Outcome]) {
    for Outcome { pages, result } in outcomes {
        let Figures::Run(policy, run) = result else { continue };
        for round in run.rounds.iter().filter(|round| round.too_long > 0) {
            crate::complain(format_args!(
                "{} on {pages} pages, {} round {}: {} of {} prompts need more pages than the pool \
                 has, and were not sent",
                policy.name(),
                round.workload,
                round.round,
                round.too_long,
                round.too_long + round.requests
            ));
        }
    }
}

fn label(policy: Option<Policy>) -> &'static str {
    policy.map_or("opt", Policy::name)
}

/// What every run of a command has in common.
struct Lab<'a> {
    args: &'a ReplayArgs,
    server: Server,
    phases: Vec<Phase<'a>>,
    extent: Extent,
    /// Where a bound is asked for.
    history: Option<History>,
}

impl<'a> Lab<'a> {
    fn new(args: &'a ReplayArgs, traces: &'a [Trace], watch: &Watch<'_>) -> Result<Self> {
        let server = server(args)?;
        let phases: Vec<_> = traces
            .iter()
            .map(|trace| Phase { trace, rounds: args.rounds, pace: pace(args) })
            .collect();
        let extent = Extent::of(traces, server.block, watch);
        let bounded = args.policy.contains(&PolicyName::Opt);
        let history =
            bounded.then(|| History::of(&phases, order(args), args.seed, server.block, watch));
        Ok(Self { args, server, phases, extent, history })
    }

    fn working_set(&self) -> u64 {
        self.extent.pages(self.server.layout.units_per_checkpoint())
    }

    fn pages(&self, size: PoolSize) -> Result<u32> {
        let share = match size {
            PoolSize::Pages(pages) => return Ok(pages),
            PoolSize::Percent(share) => share,
        };
        let all = self.working_set();
        let pages = (all as f64 * share / 100.0).ceil();
        if pages > f64::from(POOL_PAGES_MAX) {
            return Err(FlagError(format!(
                "--pages: expected at most {POOL_PAGES_MAX} pages, got {share}% of {all}"
            ))
            .into());
        }
        Ok((pages as u32).max(1))
    }

    fn figures(&self, policy: Option<Policy>, pages: u32, watch: &Watch<'_>) -> Result<Figures> {
        let Self { args, server, phases, history, .. } = self;
        let pages = Pages::new(pages);
        if let Some(policy) = policy {
            let server = Server { pages, policy, ..server.clone() };
            let run = replay(&server, phases, order(args), args.seed, watch);
            let run = run.map_err(|error| {
                use ReplayError::{Config, Geometry, Limit};
                let flags = matches!(error, Config(_) | Geometry(_) | Limit(_));
                let error = anyhow::Error::new(error);
                let sizes = || FlagError(format!("--pages {pages} and --max-seqs {}", server.seqs));
                if flags { error.context(sizes()) } else { error }
            })?;
            return Ok(Figures::Run(policy, Box::new(run)));
        }
        let history = history.as_ref().expect("made where a bound is asked for");
        let units = server.layout.units_per_checkpoint();
        Ok(Figures::Bounds(history.bounds(pages, units, server.seqs)))
    }
}

/// What the last round realised, a line a policy.
fn lines(outcomes: &[Outcome]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for Outcome { pages, result } in outcomes {
        let (label, realised) = match result {
            Figures::Run(policy, run) => {
                (policy.name(), run.rounds.last().map(RoundFigures::realised_percent))
            }
            Figures::Bounds(bounds) => ("opt", bounds.last().map(Bound::percent)),
        };
        let Some(realised) = realised else { continue };
        match lines.iter_mut().find(|line| line.label == label) {
            Some(line) => line.points.push((*pages, realised)),
            None => lines.push(Line { label: label.to_owned(), points: vec![(*pages, realised)] }),
        }
    }
    for line in &mut lines {
        line.points.sort_by_key(|point| point.0);
    }
    lines
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{prefix} {msg} {wide_bar} {pos}/{len} {elapsed}");
    bar.with_style(style.expect("the template is well formed"))
}

fn server(args: &ReplayArgs) -> Result<Server> {
    let block = BlockSize::new(args.block_size).expect("the flag's range starts at 1");
    let geometry = known(args.model, args.layout, block)?;
    let interval = args.state_checkpoint_interval_tokens;
    let interval = interval.map(|tokens| checkpoint_interval(tokens, block)).transpose()?;
    Ok(Server {
        layout: geometry.layout().clone(),
        block,
        pages: Pages::new(1),
        seqs: args.max_seqs,
        batched_tokens: args.max_batched_tokens,
        policy: Policy::Statepages,
        interval,
        passes: args.passes.map(|passes| match passes {
            PassesName::Mixed => Passes::Mixed,
            PassesName::PrefillFirst => Passes::PrefillFirst,
        }),
    })
}

const fn order(args: &ReplayArgs) -> Order {
    match args.order {
        OrderName::File => Order::File,
        OrderName::LongestFirst => Order::LongestFirst,
        OrderName::Shuffled => Order::Shuffled,
    }
}

fn pace(args: &ReplayArgs) -> Pace {
    match args.time {
        TimeName::Concurrency => Pace::Concurrency(args.concurrency.unwrap_or(2 * args.max_seqs)),
        TimeName::Trace => Pace::Times { batch_us: args.batch_us, tokens_per_s: args.tokens_per_s },
    }
}

fn traces(args: &ReplayArgs, watch: &Watch<'_>) -> Result<Vec<Trace>> {
    let mut texts = None;
    args.workload.iter().map(|&name| trace(args, name, &mut texts, watch)).collect()
}

fn trace(
    args: &ReplayArgs,
    name: WorkloadName,
    texts: &mut Option<Texts>,
    watch: &Watch<'_>,
) -> Result<Trace> {
    let output_tokens = args.output_tokens.unwrap_or(OUTPUT_TOKENS);
    Ok(match name {
        WorkloadName::Gsm8k64 | WorkloadName::Gsm8k64Fresh => {
            let draws = match name {
                WorkloadName::Gsm8k64 => Draws::Recorded,
                _ => Draws::Fresh { seed: args.seed },
            };
            let folder = in_data(args, "gsm8k")?;
            gsm8k64(&folder, draws, tokenizer(args, texts)?, output_tokens, watch)?
        }
        WorkloadName::Mooncake => {
            mooncake(&file_or(args, "mooncake/synthetic_trace.jsonl")?, args.output_tokens)?
        }
        WorkloadName::Lmcache => {
            let folder = file_or(args, "lmcache-agent-trace/miniswe")?;
            let at_once = args.sessions as usize;
            lmcache(&folder, tokenizer(args, texts)?, at_once, args.output_tokens, watch)?
        }
        WorkloadName::Jsonl => {
            let missing = || FlagError("--file: expected one for jsonl, got none".to_owned());
            let file = args.file.as_deref().ok_or_else(missing)?;
            let named = args.tokenizer.is_some() || args.data.is_some();
            let texts = if named { Some(tokenizer(args, texts)?) } else { None };
            jsonl(file, texts, output_tokens, watch)?
        }
        WorkloadName::Distinct => Distinct {
            prompts: args.prompts,
            tokens: args.prompt_tokens,
            output_tokens,
            seed: args.seed,
        }
        .trace(),
        WorkloadName::Shared => Shared {
            prompts: args.prompts,
            prefixes: args.prefixes,
            prefix_tokens: args.prefix_tokens,
            tail_tokens: args.tail_tokens,
            output_tokens,
            seed: args.seed,
        }
        .trace(),
    })
}

fn in_data(args: &ReplayArgs, place: &str) -> Result<PathBuf> {
    let missing = || FlagError(format!("--data: expected the folder that holds {place}, got none"));
    Ok(args.data.as_deref().ok_or_else(missing)?.join(place))
}

fn file_or(args: &ReplayArgs, place: &str) -> Result<PathBuf> {
    args.file.clone().map_or_else(|| in_data(args, place), Ok)
}

/// The tokenizer, loaded once.
fn tokenizer<'a>(args: &ReplayArgs, texts: &'a mut Option<Texts>) -> Result<&'a Texts> {
    if texts.is_none() {
        let file = match &args.tokenizer {
            Some(file) => file.clone(),
            None => in_data(args, "tokenizers/deepseek-v4-tokenizer.json")?,
        };
        *texts = Some(Texts::load(&file)?);
    }
    Ok(texts.as_ref().expect("loaded above"))
}

fn seconds(ns: u64) -> f64 {
    (Duration::from_nanos(ns).as_secs_f64() * 1e4).round() / 1e4
}

fn rounded(percent: f64) -> f64 {
    (percent * 1e2).round() / 1e2
}

fn to_json(lab: &Lab<'_>, outcomes: &[Outcome]) -> Value {
    let layout = &lab.server.layout;
    let units = layout.units_per_checkpoint();
    let runs = outcomes.iter().map(|Outcome { pages, result }| match result {
        Figures::Run(policy, run) => json!({
            "policy": policy.name(),
            "pages": pages,
            "adapted_at_request": run.rounds.iter().find_map(|round| round.adapted_at_request),
            "policy_bytes": run.policy.map(|policy| policy.bytes.get()),
            "ghost_bytes": run.policy.map(|policy| policy.ghost_bytes.get()),
            "control_plane_s": seconds(run.rounds.iter().map(|r| r.control_plane_ns).sum()),
            "rounds": run.rounds.iter().map(round_json).collect::<Vec<_>>(),
        }),
        Figures::Bounds(bounds) => json!({
            "policy": "opt",
            "pages": pages,
            "made_by": "Lagrangian relaxation of a knapsack over bundles of prefix and image",
            "rounds": bounds.iter().map(bound_json).collect::<Vec<_>>(),
        }),
    });
    json!({
        "page_unit_bytes": layout.page.page_bytes().get(),
        "image_bytes": layout.image.image_bytes().get(),
        "units_per_checkpoint": units.get(),
        "max_seqs": lab.args.max_seqs,
        "max_batched_tokens": lab.args.max_batched_tokens,
        "seed": lab.args.seed,
        "distinct_blocks": lab.extent.blocks,
        "distinct_anchors": lab.extent.anchors,
        "working_set_pages": lab.working_set(),
        "runs": runs.collect::<Vec<_>>(),
    })
}

fn bound_json(bound: &Bound) -> Value {
    json!({
        "workload": bound.workload,
        "round": bound.round,
        "full_tokens": bound.full_tokens,
        "repeated_tokens": bound.repeated_tokens,
        "realised_tokens_at_most": bound.tokens,
        "realised_percent_at_most": rounded(bound.percent()),
    })
}

fn round_json(round: &RoundFigures) -> Value {
    let lost: Map<String, Value> = LossReason::ALL
        .into_iter()
        .map(|reason| (reason.name().to_owned(), round.lost(reason).into()))
        .collect();
    let read: Map<String, Value> = KEEP_REASONS
        .iter()
        .zip(round.images_read)
        .map(|((_, name), images)| ((*name).to_owned(), images.into()))
        .collect();
    json!({
        "workload": round.workload,
        "round": round.round,
        "requests": round.requests,
        "too_long": round.too_long,
        "full_tokens": round.full_tokens,
        "kv_hit_tokens": round.kv_hit_tokens,
        "wanted_tokens": round.wanted_tokens,
        "realised_tokens": round.realised_tokens,
        "kv_hit_percent": rounded(round.kv_hit_percent()),
        "realised_percent": rounded(round.realised_percent()),
        "lost_to_boundary": round.lost_to_boundary,
        "lost_to_eviction": round.lost(LossReason::Evicted),
        "lost_to_never_stored": round.lost(LossReason::NeverStored) - round.lost_to_boundary,
        "lost": lost,
        "prefill_chunks": round.prefill_chunks,
        "extra_prefill_chunks": round.extra_prefill_chunks,
        "batches": round.batches,
        "preemptions": round.preemptions,
        "images_written": round.images_written,
        "bytes_written": round.bytes_written.get(),
        "images_read": read,
        "bytes_read": round.bytes_read.get(),
        "fates": {
            "kept": round.fates.kept,
            "dropped": round.fates.dropped,
            "evicted": round.fates.evicted,
            "orphaned": round.fates.orphaned,
        },
        "adapted_at_request": round.adapted_at_request,
        "realised_percent_by_100": round
            .windows
            .iter()
            .map(|window| rounded(window.realised_tokens as f64 * 100.0 / (window.full_tokens.max(1)) as f64))
            .collect::<Vec<_>>(),
        "control_plane_s": seconds(round.control_plane_ns),
    })
}

fn to_table(outcomes: &[Outcome]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(COLUMNS);
    for Outcome { pages, result } in outcomes {
        match result {
            Figures::Run(policy, run) => {
                table.add_rows(run.rounds.iter().map(|round| round_row(*policy, *pages, round)));
            }
            Figures::Bounds(bounds) => {
                table.add_rows(bounds.iter().map(|bound| bound_row(*pages, bound)));
            }
        }
    }
    for column in (1..COLUMNS.len()).filter(|&column| column != 2) {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn round_row(policy: Policy, pages: u32, round: &RoundFigures) -> Vec<String> {
    let share = |tokens: u64| share(tokens, round.full_tokens);
    vec![
        policy.name().to_owned(),
        pages.to_string(),
        round.workload.clone(),
        round.round.to_string(),
        share(round.realised_tokens),
        share(round.kv_hit_tokens),
        share(round.lost_to_boundary),
        share(round.lost(LossReason::Evicted)),
        share(round.lost(LossReason::NeverStored) - round.lost_to_boundary),
        round.images_written.to_string(),
        round.images_read.iter().sum::<u64>().to_string(),
        round.prefill_chunks.to_string(),
        round.extra_prefill_chunks.to_string(),
        round.batches.to_string(),
        format!("{:.3}", seconds(round.control_plane_ns)),
    ]
}

fn bound_row(pages: u32, bound: &Bound) -> Vec<String> {
    let mut row = vec![
        "opt".to_owned(),
        pages.to_string(),
        bound.workload.clone(),
        bound.round.to_string(),
        share(bound.tokens, bound.full_tokens),
        share(bound.repeated_tokens, bound.full_tokens),
    ];
    row.resize(COLUMNS.len(), "-".to_owned());
    row
}

fn share(tokens: u64, of: u64) -> String {
    format!("{:.2}", tokens as f64 * 100.0 / of.max(1) as f64)
}
