//! Developer tasks: `cargo xtask tidy`, `cargo xtask python` and `cargo xtask ci`.
//!
//! Continuous integration runs `cargo xtask ci`, so that what passes there passes here.

mod python;
mod tidy;

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

/// One call of cargo.
struct Step {
    name: &'static str,
    args: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
}

/// The steps of continuous integration, in the order of what fails fastest.
const CI_STEPS: &[Step] = &[
    Step { name: "formatting", args: &["fmt", "--all", "--check"], variables: &[] },
    Step {
        name: "lints",
        args: &["clippy", "--workspace", "--all-targets", "--release", "--", "-D", "warnings"],
        variables: &[],
    },
    Step {
        name: "documentation",
        args: &["doc", "--workspace", "--no-deps", "--release"],
        variables: &[("RUSTDOCFLAGS", "-D warnings")],
    },
    // The test command of the README, to the letter.
    Step { name: "tests", args: &["test", "--workspace", "--release"], variables: &[] },
    Step {
        name: "simulation",
        args: &["run", "--release", "-p", "statepages", "--", "sim", "--seeds", "0..200"],
        variables: &[],
    },
];

fn ci() -> Result<()> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    for Step { name, args, variables } in CI_STEPS {
        eprintln!("== {name}: cargo {}", args.join(" "));
        let status = Command::new(&cargo)
            .args(*args)
            .envs(variables.iter().copied())
            .current_dir(tidy::root())
            .status()
            .with_context(|| format!("cannot start cargo for {name}"))?;
        if !status.success() {
            bail!("{name} failed: {status}");
        }
    }
    eprintln!("== python: cargo xtask python");
    python::test()
}

fn main() -> ExitCode {
    let task = std::env::args().nth(1);
    let outcome = match task.as_deref() {
        Some("tidy") => tidy::check(),
        Some("python") => python::test(),
        Some("ci") => ci(),
        other => {
            eprintln!("usage: cargo xtask <tidy|python|ci>; got {}", other.unwrap_or("nothing"));
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
