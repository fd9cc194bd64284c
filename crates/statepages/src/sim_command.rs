//! `statepages sim`: seeds in, a table of what met what out; a failing seed comes back shrunk, with
//! the command that replays it.

use std::io::Write as _;
use std::panic;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};
use statepages_sim::{Failure, Fault, MEETINGS_MIN, Met, Report, Setup, Tally, attempt, shrink};

use crate::args::{Seeds, SimArgs};

/// Events that a run needs before its rare meetings are held against it.
const STANDARD_EVENTS: u64 = 4_000_000;

/// Totals of all seeds.
#[derive(Default)]
struct Sum {
    events: u64,
    steps: u64,
    batches: u64,
    resumed: u64,
    kept: u64,
    tally: Tally,
    failure: Option<Failure>,
}

pub(crate) fn run(args: &SimArgs) -> Result<ExitCode> {
    let seeds = args.seeds.unwrap_or(Seeds { first: args.seed, count: 1 });
    let begun = Instant::now();
    // A broken invariant panics; what it said is caught and printed once, with how to replay it.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let sum = run_all(seeds, args.events);
    panic::set_hook(hook);
    let seconds = begun.elapsed().as_secs_f64();
    if let Some(failure) = sum.failure {
        eprintln!("seed {}: {}", failure.setup.seed, failure.what);
        eprintln!("shrunk to {} stimuli in {:?}:", failure.acts.len(), failure.setup);
        for act in &failure.acts {
            eprintln!("  {act:?}");
        }
        eprintln!("replay: statepages sim --seed {} --events {}", failure.setup.seed, args.events);
        return Ok(ExitCode::FAILURE);
    }
    let rare = sum.tally.rare();
    let judged = sum.events >= STANDARD_EVENTS;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", report_json(&sum, seeds.count, seconds))?;
    } else {
        let Sum { events, steps, batches, resumed, kept, tally, .. } = &sum;
        writeln!(out, "{} seeds clean in {seconds:.1} s", seeds.count)?;
        writeln!(
            out,
            "{events} events, {steps} turns, {batches} batches, {kept} stores, {resumed} tokens resumed"
        )?;
        write!(out, "{}", tally.table())?;
    }
    // A short run meets little; what it has not met says nothing.
    for (fault, met, count) in rare.iter().filter(|_| judged) {
        eprintln!("rare: {} met {} {count} times, too few", fault.name(), met.name());
    }
    Ok(if judged && !rare.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn run_all(seeds: Seeds, events: u64) -> Sum {
    // Claimed by count, so that no claim passes the last seed there is.
    let (Seeds { first, count }, claimed) = (seeds, AtomicU64::new(0));
    let sum = Mutex::new(Sum::default());
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let claim = claimed.fetch_add(1, Ordering::Relaxed);
                    if claim >= count {
                        return;
                    }
                    let seed = first + claim;
                    let outcome = attempt(&Setup::of(seed), events);
                    let mut sum = sum.lock().expect("a run's panic is caught inside it");
                    match outcome {
                        Ok(report) => sum.add(&report),
                        Err(failure) => {
                            claimed.store(count, Ordering::Relaxed);
                            let earlier = sum.failure.as_ref().map(|failure| failure.setup.seed);
                            if earlier.is_none_or(|earlier| seed < earlier) {
                                sum.failure = Some(*failure);
                            }
                        }
                    }
                }
            });
        }
    });
    let mut sum = sum.into_inner().expect("a run's panic is caught inside it");
    sum.failure = sum.failure.map(shrink);
    sum
}

impl Sum {
    fn add(&mut self, report: &Report) {
        self.events += report.events;
        self.steps += report.steps;
        self.batches += report.batches;
        self.resumed += report.resumed;
        self.kept += report.kept;
        self.tally.add(&report.tally);
    }
}

fn report_json(sum: &Sum, seeds: u64, seconds: f64) -> Value {
    let row = |fault: Fault| {
        let counts = Met::ALL.map(|met| (met.name().to_owned(), json!(sum.tally.get(fault, met))));
        (fault.name().to_owned(), Value::Object(counts.into_iter().collect()))
    };
    json!({
        "seeds": seeds,
        "events": sum.events,
        "steps": sum.steps,
        "batches": sum.batches,
        "stores": sum.kept,
        "resumed_tokens": sum.resumed,
        "seconds": seconds,
        "meetings_min": MEETINGS_MIN,
        "meetings": Value::Object(Fault::ALL.into_iter().map(row).collect()),
    })
}
