//! Prometheus text and one JSON line per request. Names and units are frozen in docs/metrics.md.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use serde_json::json;
use statepages_engine::{FinishReason, Snapshot};
use statepages_store::LossReason;

use crate::demo::{Round, Served, hex};

/// Buckets of the two histograms, in seconds.
const SECONDS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// A set of one label: its name and its value.
type Label = [(&'static str, String); 1];

fn label(name: &'static str, value: &str) -> Label {
    [(name, value.to_owned())]
}

/// A histogram of durations.
#[derive(Clone)]
struct Seconds;

impl MetricConstructor<Histogram> for Seconds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(SECONDS)
    }
}

/// Where the lines of a request each go, beside the text.
pub(crate) fn lines_path(text: &Path) -> PathBuf {
    let mut name = text.file_name().unwrap_or_default().to_owned();
    name.push(".jsonl");
    text.with_file_name(name)
}

/// Files of `--metrics-out`.
pub(crate) struct MetricsOut {
    text: PathBuf,
    lines: File,
    lines_path: PathBuf,
    outcomes: Family<Label, Counter>,
    queue: Family<Label, Histogram, Seconds>,
    ttft: Family<Label, Histogram, Seconds>,
}

impl MetricsOut {
    /// Creates both files, so that a path that cannot be written is known before anything runs.
    pub(crate) fn create(text: &Path) -> Result<Self> {
        let create = |path: &Path| {
            File::create(path)
                .with_context(|| format!("--metrics-out: cannot create {}", path.display()))
        };
        create(text)?;
        let lines_path = lines_path(text);
        Ok(Self {
            text: text.to_owned(),
            lines: create(&lines_path)?,
            lines_path,
            outcomes: Family::default(),
            queue: Family::new_with_constructor(Seconds),
            ttft: Family::new_with_constructor(Seconds),
        })
    }

    /// One finished request.
    pub(crate) fn request(
        &mut self,
        round: &str,
        index: usize,
        served: &Served,
        reason: &FinishReason,
    ) -> Result<()> {
        self.outcomes.get_or_create(&label("outcome", outcome(reason))).inc();
        self.queue.get_or_create(&label("round", round)).observe(served.queue.as_secs_f64());
        self.ttft.get_or_create(&label("round", round)).observe(served.ttft.as_secs_f64());
        let ms = |duration: std::time::Duration| duration.as_secs_f64() * 1e3;
        let losses = LossReason::ALL.into_iter();
        let lost: serde_json::Map<_, _> = losses
            .map(|r| (r.name().to_owned(), served.report.losses.get(r).get().into()))
            .collect();
        let line = json!({
            "round": round,
            "request": index,
            "kind": served.kind,
            "prompt_tokens": served.prompt.len(),
            "computed_tokens": served.computed,
            "generated_tokens": served.output.len(),
            "kv_hit_tokens": served.report.hit.kv.get(),
            "wanted_tokens": served.report.hit.wanted.get(),
            "realised_tokens": served.realised(),
            "resumable_tokens": served.resumable,
            "lost_tokens": lost,
            "queue_ms": ms(served.queue),
            "ttft_ms": ms(served.ttft),
            "total_ms": ms(served.total),
            "output_sha256": hex(&served.digest),
            "identical": served.identical,
            "third": served.answered.map(|one| one.third.name()),
            "right": served.answered.map(|one| one.right),
        });
        writeln!(self.lines, "{line}")
            .with_context(|| format!("--metrics-out: cannot write {}", self.lines_path.display()))
    }

    /// The text file, when everything has run.
    pub(crate) fn finish(self, rounds: &[&Round], snapshot: &Snapshot) -> Result<()> {
        let mut registry = Registry::with_prefix("statepages");
        registry.register("requests", "Requests ended", self.outcomes.clone());
        registry.register_with_unit(
            "queue",
            "Submission to admission",
            Unit::Seconds,
            self.queue.clone(),
        );
        registry.register_with_unit(
            "time_to_first_token",
            "Admission to the first token",
            Unit::Seconds,
            self.ttft.clone(),
        );
        totals(&mut registry, rounds, snapshot);
        let mut text = String::new();
        encode(&mut text, &registry).context("--metrics-out: the metrics have no text form")?;
        std::fs::write(&self.text, text)
            .with_context(|| format!("--metrics-out: cannot write {}", self.text.display()))
    }
}

fn totals(registry: &mut Registry, rounds: &[&Round], snapshot: &Snapshot) {
    let Snapshot { totals, counters, gauges, .. } = snapshot;
    for (name, help, value) in [
        ("prompt_tokens", "Tokens of admitted prompts", totals.prompt),
        ("computed_tokens", "Tokens that forwards took in", totals.computed),
        ("generated_tokens", "Tokens sampled", totals.generated),
        ("kv_hit_tokens", "Prompt tokens whose KV blocks were found", totals.kv_hit),
        ("wanted_tokens", "Prompt tokens that could have been resumed", totals.wanted),
        ("realised_tokens", "Prompt tokens resumed from a checkpoint", totals.realised),
        ("preemptions", "Residencies given up for want of a page", totals.preempted_no_page),
    ] {
        let counter: Counter = Counter::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    }
    let lost: Family<Label, Counter> = Family::default();
    for reason in LossReason::ALL {
        let tokens: usize = rounds.iter().map(|round| round.lost(reason)).sum();
        lost.get_or_create(&label("reason", reason.name())).inc_by(tokens as u64);
    }
    registry.register("lost_tokens", "Prompt tokens computed, by what was lost", lost);
    let fates: Family<Label, Counter> = Family::default();
    let four = counters.fates();
    for (fate, value) in [
        ("filed", counters.filed),
        ("kept", four.kept),
        ("dropped", four.dropped),
        ("evicted", four.evicted),
        ("orphaned", four.orphaned),
        ("no_room", counters.no_room),
        ("superseded", counters.superseded),
        ("duplicate", counters.duplicate),
        ("slot_gone", counters.slot_gone),
        ("forgotten", counters.forgotten),
        ("unfiled", counters.unfiled),
        ("orphaned_records", counters.orphaned_records),
        ("reset", counters.reset),
        ("failed", counters.failed),
        ("lost_duplicates", counters.lost_duplicates),
    ] {
        fates.get_or_create(&label("fate", fate)).inc_by(value);
    }
    registry.register("checkpoints", "What became of the boundaries asked for", fates);
    let pages: Family<Label, Gauge> = Family::default();
    let records: Family<Label, Gauge> = Family::default();
    for (family, state, value) in [
        (&pages, "vacant", gauges.pages_vacant),
        (&pages, "cached", gauges.pages_cached),
        (&pages, "held", gauges.pages_held),
        (&pages, "live", gauges.pages_live),
        (&pages, "unit", gauges.pages_raw),
        (&records, "copying", gauges.copying),
        (&records, "ready", gauges.ready),
        (&records, "evicting", gauges.evicting),
    ] {
        family.get_or_create(&label("state", state)).set(i64::from(value));
    }
    registry.register("pages", "The pool by state", pages);
    registry.register("checkpoint_records", "Records by state", records);
}

fn outcome(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::MaxTokens => "length",
        FinishReason::StopToken(_) => "stop_token",
        FinishReason::StopSequence(_) => "stop_sequence",
        FinishReason::Aborted => "aborted",
        _ => "failed",
    }
}
