//! The `statepages` command: the demo, one-prompt generation, geometry. The only place of the
//! project that knows flags, JSON and clocks.

mod args;
mod bench_copy;
mod bench_forward;
mod bench_gpu;
mod bench_store;
mod built_in;
mod demo;
mod fault;
mod generate;
mod geometry_command;
mod given;
mod metrics;
mod replay_args;
mod replay_command;
mod session;
mod sim_command;
mod size;
mod tokens;

use std::env;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use tracing_subscriber::EnvFilter;

use crate::args::Command;

fn main() -> ExitCode {
    let cli = given::read().unwrap_or_else(|error| error.exit());
    if let Err(error) = log() {
        complain(format_args!("{error:#}"));
        return ExitCode::FAILURE;
    }
    let outcome = match cli.command {
        None => demo::run(&args::DemoArgs::built_in()),
        Some(Command::Demo(args)) => demo::run(&args),
        Some(Command::Generate(args)) => generate::run(&args).map(|()| ExitCode::SUCCESS),
        Some(Command::Geometry(args)) => geometry_command::run(&args).map(|()| ExitCode::SUCCESS),
        Some(Command::Sim(args)) => sim_command::run(&args),
        Some(Command::Replay(args)) => replay_command::run(&args).map(|()| ExitCode::SUCCESS),
        Some(Command::Bench(args::Bench::Store(args))) => {
            bench_store::run(&args).map(|()| ExitCode::SUCCESS)
        }
        Some(Command::Bench(args::Bench::Forward(args))) => {
            bench_forward::run(&args).map(|()| ExitCode::SUCCESS)
        }
        Some(Command::Bench(args::Bench::Copy(args))) => {
            bench_copy::run(&args).map(|()| ExitCode::SUCCESS)
        }
        Some(Command::ColdArm) => demo::cold_arm().map(|()| ExitCode::SUCCESS),
    };
    match outcome {
        Ok(code) => code,
        // Who reads standard output has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            complain(format_args!("{error:#}"));
            let flags = error.downcast_ref::<given::FlagError>().is_some();
            if flags { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

/// Tells the user on standard error; where that cannot be written the exit code still tells.
pub(crate) fn complain(what: std::fmt::Arguments<'_>) {
    // Nothing is left to report a failure of this write to.
    let _unreported = writeln!(io::stderr(), "statepages: {what}");
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<io::Error>();
        io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}

/// Variable that sets what is logged.
const LOG_VARIABLE: &str = "STATEPAGES_LOG";
/// Warnings, and the geometry that a start rests on. Each admission is logged at `info`.
const LOG_BUILT_IN: &str = "warn,statepages::built_in=info";

/// Logs go to standard error: standard output is for results alone, so that --json can be piped.
fn log() -> Result<()> {
    let filter = match env::var(LOG_VARIABLE) {
        Ok(filter) => EnvFilter::try_new(&filter).with_context(|| {
            format!("{LOG_VARIABLE}: expected a filter such as info, got {filter}")
        })?,
        Err(env::VarError::NotPresent) => EnvFilter::new(LOG_BUILT_IN),
        Err(error) => return Err(error).context(LOG_VARIABLE),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        // A log that cannot be written must not end the run.
        .log_internal_errors(false)
        .init();
    Ok(())
}
