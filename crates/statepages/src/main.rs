//! The `statepages` command: the demo, one-prompt generation, geometry. The only place of the
//! project that knows flags, JSON and clocks.

mod args;
mod bench_copy;
mod bench_gpu;
mod built_in;
mod demo;
mod generate;
mod geometry_command;
mod metrics;
mod model_config;
mod session;
mod size;
mod tokens;

use std::process::ExitCode;

use clap::Parser as _;

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    // Standard output is for results alone, so that --json can be piped.
    let filter = tracing_subscriber::EnvFilter::try_from_env("STATEPAGES_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let outcome = match cli.command {
        None => demo::run(&args::DemoArgs::built_in()),
        Some(Command::Demo(args)) => demo::run(&args),
        Some(Command::Generate(args)) => generate::run(&args).map(|()| ExitCode::SUCCESS),
        Some(Command::Geometry(args)) => geometry_command::run(&args).map(|()| ExitCode::SUCCESS),
        Some(Command::Bench(args::Bench::Copy(args))) => {
            bench_copy::run(&args).map(|()| ExitCode::SUCCESS)
        }
        Some(Command::ColdArm) => demo::cold_arm().map(|()| ExitCode::SUCCESS),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("statepages: {error:#}");
            ExitCode::FAILURE
        }
    }
}
