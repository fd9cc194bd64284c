//! Runs some seeds and prints what met what: `cargo run --release -p statepages-sim --example
//! meetings -- SEEDS EVENTS FIRST_SEED`.

use std::io::Write as _;
use std::process::ExitCode;

use statepages_sim::{Setup, Tally, attempt, shrink};

fn main() -> std::io::Result<ExitCode> {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse::<u64>().ok());
    let (seeds, events) = (numbers.next().unwrap_or(20), numbers.next().unwrap_or(5_000));
    let first = numbers.next().unwrap_or(0);
    let mut out = std::io::stdout().lock();
    let mut tally = Tally::default();
    let mut all = 0;
    for seed in first..first + seeds {
        match attempt(&Setup::of(seed), events) {
            Ok(report) => {
                tally.add(&report.tally);
                all += report.events;
                if (seed + 1 - first).is_multiple_of(50) {
                    writeln!(out, "{all} events clean")?;
                }
            }
            Err(failure) => {
                writeln!(out, "{:#?}", shrink(*failure))?;
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    writeln!(out, "{all} events\n{}", tally.table())?;
    for (fault, met, count) in tally.rare() {
        writeln!(out, "rare: {} met {} {count} times", fault.name(), met.name())?;
    }
    Ok(ExitCode::SUCCESS)
}
