//! `cargo xtask python`: builds the wheel, installs it into a fresh virtual environment, runs its tests.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::tidy::root;

/// What the tests need beside the wheel. Versions are pinned by their first number alone: the wheel
/// has to work with what its users install.
const TOOLS: &[&str] = &["maturin>=1.9,<2", "numpy", "pytest>=8"];

/// Runs the tests; says why where this machine cannot.
pub(crate) fn test() -> Result<()> {
    let home = root().join("target/python");
    let venv = home.join("venv");
    let asked = Command::new("python3")
        .args(["-c", "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))"])
        .output();
    if !asked.is_ok_and(|answer| answer.status.success()) {
        eprintln!("python: skipped, no python3 of version 3.11 or newer with its venv module");
        return Ok(());
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
    let python = venv.join("bin/python");
    pip(&python, TOOLS)?;
    let dist = home.join("dist");
    if dist.exists() {
        std::fs::remove_dir_all(&dist)
            .with_context(|| format!("cannot clear {}", dist.display()))?;
    }
    let crate_dir = root().join("crates/statepages-python");
    run(Command::new(&python)
        .args(["-m", "maturin", "build", "--release", "--quiet", "--out"])
        .arg(&dist)
        .arg("--interpreter")
        .arg(&python)
        .current_dir(&crate_dir))?;
    let wheels = std::fs::read_dir(&dist).context("maturin has built no wheel")?;
    let wheels: Vec<_> = wheels.flatten().map(|wheel| wheel.path()).collect();
    let [wheel] = wheels.as_slice() else { bail!("expected one wheel, got {wheels:?}") };
    pip(&python, &["--no-deps", &wheel.display().to_string()])?;
    run(Command::new(&python)
        .args(["-m", "pytest", "-p", "no:cacheprovider"])
        .current_dir(&crate_dir))
}

fn pip(python: &Path, what: &[&str]) -> Result<()> {
    run(Command::new(python)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .args(what))
}

fn run(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let status = command.status().with_context(|| format!("cannot start {shown}"))?;
    if !status.success() {
        bail!("{shown} failed: {status}");
    }
    Ok(())
}
