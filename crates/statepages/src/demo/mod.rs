//! `statepages demo`: prompts cold, then repeated, and what was resumed compared bit for bit with
//! cold runs in another process.

mod cold;
mod corpus;
mod passages;
mod questions;
mod record;
mod report;
mod round;
mod workload;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use statepages_engine::{CpuRunner, Sampling, Stop};

use crate::args::{DemoArgs, EngineArgs, Fault, Keeping};
use crate::built_in;
use crate::fault::FaultyRunner;
use crate::given::FlagError;
use crate::metrics::MetricsOut;
use crate::session::{Completion, Job, Listener, Pace, Session};
use crate::tokens::Texts;

use self::corpus::Corpus;
use self::passages::Passages;
use self::questions::Questions;
use self::record::Recorder;
use self::report::{Reference, Results};
use self::round::{Answered, OutputHasher};
use self::workload::{Grid, Prompt, Rules, Workload};

pub(crate) use self::cold::answer as cold_arm;
pub(crate) use self::round::{Round, Served, hex};

/// Requests of the cold round with several in flight; fewer than the others, for its numbers are
/// only for comparison.
const CONCURRENT_COLD: usize = 8;

/// What a request of a round is compared with.
enum Expected {
    Nothing,
    Digests(Vec<round::OutputDigest>),
    Outputs(Vec<Vec<u32>>),
}

/// What a run sends, read before anything is written or computed.
enum Source {
    /// The built-in rounds.
    Built(Box<dyn Workload>),
    /// Recorded rounds.
    Recorded(Vec<(String, Vec<record::Entry>)>),
}

/// Runs the demo. The exit code says whether what had to be equal was.
pub(crate) fn run(args: &DemoArgs) -> Result<ExitCode> {
    check(args)?;
    let args = &shifted(args);
    let source = source(args)?;
    let mut demo = Demo {
        args,
        session: Session::new(built_in::engine(&args.engine, args.fault)?),
        record: args
            .record
            .as_deref()
            .map(|path| Recorder::create(path, built_in::model_name(&args.engine)))
            .transpose()?,
        metrics: args.metrics_out.as_deref().map(MetricsOut::create).transpose()?,
    };
    let (reference, (rounds, concurrent)) = match source {
        Source::Built(workload) => (Reference::ColdArm, demo.workload(workload.as_ref())?),
        Source::Recorded(rounds) => (Reference::Record, (demo.replay(rounds)?, Vec::new())),
    };
    let snapshot = demo.session.snapshot();
    let fault = args.fault.map(Fault::name);
    let results = Results { reference, rounds, concurrent, counters: snapshot.counters, fault };
    // Results first: a metrics file that cannot be written must not cost them.
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", results.to_json())?;
    } else {
        writeln!(out, "{}", results.to_text())?;
    }
    if let Some(metrics) = demo.metrics.take() {
        let all: Vec<_> = results.rounds.iter().chain(&results.concurrent).collect();
        metrics.finish(&all, &snapshot)?;
    }
    for complaint in results.complaints() {
        crate::complain(format_args!("{complaint}"));
    }
    Ok(if results.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The flags, with those that a fault rests on: for a state of one block earlier each block's is kept.
fn shifted(args: &DemoArgs) -> DemoArgs {
    let engine = match args.fault {
        Some(Fault::WrongBoundary) => EngineArgs {
            state_checkpoint_interval_tokens: built_in::BLOCK_TOKENS as i64,
            policy: Keeping::Reference,
            ..args.engine.clone()
        },
        Some(Fault::SkipRestore) | None => args.engine.clone(),
    };
    DemoArgs { engine, ..args.clone() }
}

fn check(args: &DemoArgs) -> Result<()> {
    if !args.requests.is_multiple_of(3) {
        let what = format!("--requests: expected a multiple of 3, got {}", args.requests);
        return Err(FlagError(what).into());
    }
    let metrics = args.metrics_out.as_deref();
    let lines = metrics.map(crate::metrics::lines_path);
    let files = [
        ("--prompts", args.prompts.as_deref()),
        ("--replay", args.replay.as_deref()),
        ("--record", args.record.as_deref()),
        ("--metrics-out", metrics),
        ("--metrics-out with .jsonl", lines.as_deref()),
    ];
    for (index, (flag, path)) in files.iter().enumerate() {
        for (other, before) in &files[..index] {
            if let (Some(path), Some(before)) = (path, before)
                && same_file(path, before)
            {
                let got = path.display();
                let what = format!("{flag}: expected another file than that of {other}, got {got}");
                return Err(FlagError(what).into());
            }
        }
    }
    Ok(())
}

/// Whether two paths lead to one file, which need not exist yet.
fn same_file(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| {
        std::fs::canonicalize(path).unwrap_or_else(|_| {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = std::fs::canonicalize(folder.unwrap_or(Path::new(".")));
            folder.unwrap_or_default().join(path.file_name().unwrap_or_default())
        })
    };
    place(one) == place(other)
}

fn source(args: &DemoArgs) -> Result<Source> {
    if let Some(path) = &args.replay {
        let model = built_in::model_name(&args.engine);
        return Ok(Source::Recorded(record::read(path, &model)?));
    }
    let grid = match args.engine.state_checkpoint_interval_tokens {
        0 => Grid::Off,
        tokens => usize::try_from(tokens).map_or(Grid::Anchors, |tokens| {
            Grid::Every((tokens / built_in::BLOCK_TOKENS).max(1) * built_in::BLOCK_TOKENS)
        }),
    };
    let rules = Rules { block: built_in::BLOCK_TOKENS, grid };
    let requests = usize::try_from(args.requests)?;
    let Texts { tokenizer, world, .. } = Texts::of(&args.engine)?;
    Ok(Source::Built(match (&args.prompts, world) {
        (None, Some(world)) => Box::new(Questions::new(&world, requests, CONCURRENT_COLD, rules)?),
        (None, None) => Box::new(Passages::new(Corpus::built_in(&tokenizer)?, requests, rules)),
        (Some(path), _) => {
            Box::new(Passages::new(Corpus::read(path, &tokenizer)?, requests, rules))
        }
    }))
}

struct Demo<'a> {
    args: &'a DemoArgs,
    session: Session<FaultyRunner<CpuRunner>>,
    record: Option<Recorder>,
    metrics: Option<MetricsOut>,
}

impl Demo<'_> {
    /// The built-in rounds: those in which each request is alone, and those with several in flight.
    fn workload(&mut self, workload: &dyn Workload) -> Result<(Vec<Round>, Vec<Round>)> {
        let mut first = workload.cold();
        first.extend(workload.second_sight());
        let cold = self.round("cold", Pace::Alone, &first, &Expected::Nothing)?;
        let outputs: Vec<_> = cold.served.iter().map(|served| served.output.clone()).collect();
        let again = workload.resumed(&outputs);
        let digests = self.cold_arm(&again)?;
        let resumed =
            self.round("resumed", Pace::Alone, &again, &Expected::Digests(digests.clone()))?;
        let fresh = workload.fresh(CONCURRENT_COLD);
        let mut crowd =
            vec![self.round("cold_concurrent", Pace::Together, &fresh, &Expected::Nothing)?];
        let again = workload.seen(&again);
        crowd.push(self.round(
            "resumed_concurrent",
            Pace::Together,
            &again,
            &Expected::Digests(digests),
        )?);
        Ok((vec![cold, resumed], crowd))
    }

    /// Exactly the recorded prompts, compared with the recorded outputs.
    fn replay(&mut self, recorded: Vec<(String, Vec<record::Entry>)>) -> Result<Vec<Round>> {
        let mut rounds = Vec::new();
        for (name, entries) in recorded {
            let (prompts, outputs) = entries
                .into_iter()
                .map(|entry| {
                    let (kind, ids) = (entry.kind, entry.prompt);
                    let prompt = Prompt { kind, ids, resumable: None, asked: None };
                    (prompt, entry.output)
                })
                .unzip::<_, _, Vec<_>, Vec<_>>();
            rounds.push(self.round(&name, Pace::Alone, &prompts, &Expected::Outputs(outputs))?);
        }
        Ok(rounds)
    }

    fn cold_arm(&self, prompts: &[Prompt]) -> Result<Vec<round::OutputDigest>> {
        let bar = self.bar("cold arm, another process", prompts);
        let ids = prompts.iter().map(|prompt| prompt.ids.clone()).collect();
        let digests = cold::compute(&self.args.engine, self.args.max_tokens, ids, |tokens| {
            bar.inc(tokens);
        });
        bar.finish_and_clear();
        digests
    }

    fn round(
        &mut self,
        name: &str,
        pace: Pace,
        prompts: &[Prompt],
        expected: &Expected,
    ) -> Result<Round> {
        let jobs: Vec<_> = prompts
            .iter()
            .enumerate()
            .map(|(index, prompt)| Job {
                prompt: prompt.ids.clone(),
                sampling: Sampling::GREEDY,
                stop: Stop::after(match expected {
                    Expected::Outputs(outputs) => outputs[index].len() as u32,
                    Expected::Nothing | Expected::Digests(_) => self.args.max_tokens,
                }),
            })
            .collect();
        let bar = self.bar(name, prompts);
        let mut listener = RoundListener {
            name,
            prompts,
            expected,
            hashers: vec![OutputHasher::default(); prompts.len()],
            served: vec![None; prompts.len()],
            bar: &bar,
            record: self.record.as_mut(),
            metrics: self.metrics.as_mut(),
        };
        self.session.serve(&jobs, pace, &mut listener)?;
        let served = listener.served.into_iter().map(|one| one.expect("every prompt is served"));
        let concurrency = match pace {
            Pace::Alone => 1,
            Pace::Together => self.args.engine.max_seqs as usize,
        };
        let round = Round { name: name.to_owned(), concurrency, served: served.collect() };
        bar.finish_and_clear();
        Ok(round)
    }

    fn bar(&self, name: &str, prompts: &[Prompt]) -> ProgressBar {
        let tokens: usize =
            prompts.iter().map(|prompt| prompt.ids.len() + self.args.max_tokens as usize - 1).sum();
        let bar = ProgressBar::with_draw_target(Some(tokens as u64), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template(
            "{msg:28} {wide_bar} {pos:>7}/{len} tokens {per_sec:>14} {elapsed:>4}",
        );
        bar.set_style(style.expect("the template is valid"));
        bar.set_message(name.to_owned());
        bar
    }
}

struct RoundListener<'a> {
    name: &'a str,
    prompts: &'a [Prompt],
    expected: &'a Expected,
    hashers: Vec<OutputHasher>,
    served: Vec<Option<Served>>,
    bar: &'a ProgressBar,
    record: Option<&'a mut Recorder>,
    metrics: Option<&'a mut MetricsOut>,
}

impl Listener for RoundListener<'_> {
    fn token(&mut self, index: usize, token: u32, logits: &[f32]) {
        self.hashers[index].token(token, logits);
    }

    fn computed(&mut self, tokens: u64) {
        self.bar.inc(tokens);
    }

    fn completed(&mut self, index: usize, completion: &Completion) -> Result<()> {
        let prompt = &self.prompts[index];
        let digest = self.hashers[index].clone().finish();
        let identical = match self.expected {
            Expected::Nothing => None,
            Expected::Digests(digests) => Some(digests[index] == digest),
            Expected::Outputs(outputs) => Some(outputs[index] == completion.output),
        };
        let realised = completion.report.hit.resumable.tokens().index();
        // Resumed tokens are not computed: the bar counts them as done.
        self.bar.inc(realised as u64);
        let served = Served {
            kind: prompt.kind,
            prompt: prompt.ids.clone(),
            output: completion.output.clone(),
            digest,
            resumable: prompt.resumable,
            answered: prompt.asked.map(|asked| Answered {
                third: asked.third,
                right: completion.output.starts_with(&asked.answer),
            }),
            report: completion.report,
            computed: prompt.ids.len() - realised,
            queue: completion.queue,
            ttft: completion.ttft,
            total: completion.total,
            identical,
        };
        if let Some(record) = &mut self.record {
            record.write(self.name, index, &served)?;
        }
        if let Some(metrics) = &mut self.metrics {
            metrics.request(self.name, index, &served, &completion.reason)?;
        }
        self.served[index] = Some(served);
        Ok(())
    }
}
