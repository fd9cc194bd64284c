//! What no compiler checks: arrows between crates, file sizes, names, and words that must not appear.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Crates whose outside dependencies are frozen: the core stays nearly free of them.
const CORE: &[(&str, &[&str])] = &[
    ("statepages-page", &["blake3"]),
    ("statepages-geometry", &[]),
    ("statepages-store", &[]),
    ("statepages-copy", &["bytemuck"]),
    ("statepages-engine", &[]),
];

const LINES_MAX: usize = 800;
const BANNED_MODULES: &[&str] = &["utils", "util", "common", "helpers", "misc", "types"];

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the workspace").to_path_buf()
}

/// Runs every check and reports all findings at once.
pub(crate) fn check() -> Result<()> {
    let mut findings = Vec::new();
    arrows(&mut findings)?;
    let mut files = Vec::new();
    collect(&root(), &mut files)?;
    for file in &files {
        let shown = file.strip_prefix(root()).unwrap_or(file).display().to_string();
        if let Ok(text) = fs::read_to_string(file) {
            words(&shown, &text, &mut findings);
            if file.extension().is_some_and(|e| e == "rs") {
                source(&shown, &text, &mut findings);
            }
        }
    }
    if findings.is_empty() {
        return Ok(());
    }
    bail!("{} tidy findings:\n{}", findings.len(), findings.join("\n"))
}

fn arrows(findings: &mut Vec<String>) -> Result<()> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output()
        .context("cannot start cargo metadata")?;
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).context("ARCHITECTURE.md")?;
    let mut told = arrows_told(&text);
    for package in packages {
        let name = package["name"].as_str().context("a package without a name")?;
        lints(name, package["manifest_path"].as_str().unwrap_or_default(), findings)?;
        let mut inside = BTreeSet::new();
        let mut outside = BTreeSet::new();
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let target = dependency["name"].as_str().context("a dependency without a name")?;
            // Arrows are about what ships: a test may look wherever it needs to.
            if dependency["kind"].is_string() {
                continue;
            }
            if target.starts_with("statepages") {
                inside.insert(target.to_owned());
            } else {
                outside.insert(target);
            }
        }
        let Some(told) = told.remove(name) else {
            findings.push(format!("crate {name} is not in the table of ARCHITECTURE.md"));
            continue;
        };
        if told != inside {
            findings.push(format!("{name} depends on {inside:?}, ARCHITECTURE.md says {told:?}"));
        }
        if let Some((_, core)) = CORE.iter().find(|(core, _)| *core == name) {
            for target in outside {
                if !core.contains(&target) {
                    findings.push(format!("core crate {name} depends on {target}"));
                }
            }
        }
    }
    findings.extend(told.into_keys().map(|name| format!("ARCHITECTURE.md lists a crate {name}")));
    Ok(())
}

/// What each crate depends on, in the words of ARCHITECTURE.md's table of crates: a new arrow is a
/// reviewed line there.
fn arrows_told(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut told = BTreeMap::new();
    let rows = text.lines().skip_while(|line| *line != ARROWS_HEAD).skip(2);
    for row in rows.take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let (Some(name), Some(arrows)) = (cells.first(), cells.last()) else { continue };
        let arrows = arrows.split(',').map(str::trim).filter(|arrow| *arrow != "-");
        let arrows = arrows.map(|arrow| format!("statepages-{arrow}")).collect();
        told.insert(name.trim_matches('`').to_owned(), arrows);
    }
    told
}

const ARROWS_HEAD: &str = "| crate | what it is | depends on |";

/// Crates that may hold unsafe code, and in which files; `None` is anywhere. Every other crate takes
/// the workspace's lints, which forbid it.
const UNSAFE: &[(&str, Option<&[&str]>)] = &[
    ("statepages-cuda", None),
    ("statepages-python", Some(&["dlpack.rs", "foreign.rs"])),
    // One call, which maps a file.
    ("statepages-weights", Some(&["shard.rs"])),
];

fn lints(name: &str, manifest: &str, findings: &mut Vec<String>) -> Result<()> {
    let text = fs::read_to_string(manifest).with_context(|| format!("cannot read {manifest}"))?;
    let may = UNSAFE.iter().find(|(may, _)| *may == name);
    let Some((_, files)) = may else {
        if !text.contains("[lints]\nworkspace = true") {
            findings.push(format!("crate {name} does not take the workspace's lints"));
        }
        return Ok(());
    };
    let Some(files) = files else { return Ok(()) };
    let mut sources = Vec::new();
    let dir = Path::new(manifest).parent().context("a manifest lies in a folder")?;
    collect(&dir.join("src"), &mut sources)?;
    for source in sources {
        let stem = source.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let text = fs::read_to_string(&source)
            .with_context(|| format!("cannot read {}", source.display()))?;
        if !files.contains(&stem) && text.contains("unsafe") {
            findings.push(format!("{name}: {stem} may hold no unsafe code"));
        }
    }
    Ok(())
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if path.is_dir() {
            if !matches!(name, "target" | ".git" | ".carry" | "fixtures" | "models")
                && !name.starts_with("target-")
            {
                collect(&path, files)?;
            }
        } else if matches!(
            path.extension().and_then(|e| e.to_str()),
            Some("rs" | "md" | "toml" | "py" | "yml" | "sh")
        ) {
            files.push(path);
        }
    }
    Ok(())
}

/// Paths of one machine mean nothing elsewhere. (This file spells them in pieces.)
fn words(shown: &str, text: &str, findings: &mut Vec<String>) {
    let machine = ["work", "root", "home"].map(|dir| format!("/{dir}/"));
    for (number, line) in text.lines().enumerate() {
        if machine.iter().any(|path| line.contains(path.as_str())) {
            findings.push(format!("{shown}:{}: path of one machine", number + 1));
        }
    }
}

fn source(shown: &str, text: &str, findings: &mut Vec<String>) {
    let stem = Path::new(shown).file_stem().and_then(|s| s.to_str()).unwrap_or_default();
    if BANNED_MODULES.contains(&stem) {
        findings.push(format!("{shown}: a module called `{stem}` says nothing"));
    }
    if !text.starts_with("//!") {
        findings.push(format!("{shown}: no //! line says what the file is for"));
    }
    let is_test = shown.contains("/tests/") || shown.contains("/benches/");
    let body = text.lines().take_while(|line| line.trim() != "#[cfg(test)]").count();
    if !is_test && body > LINES_MAX {
        findings.push(format!("{shown}: {body} lines, more than {LINES_MAX}"));
    }
    let switched_off = ["ignore", "should_panic"].map(|name| format!("#[{name}"));
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        if switched_off.iter().any(|attribute| trimmed.starts_with(attribute.as_str())) {
            findings.push(format!("{shown}:{}: switched-off or inverted test", number + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_tidy() {
        check().unwrap();
    }

    #[test]
    fn arrows_are_read_from_the_table() {
        let text = format!(
            "| a | b |\n\n{ARROWS_HEAD}\n| --- | --- | --- |\n| `x` | y | a, b |\n| `z` | - | - |\n\n| no | | more |"
        );
        let told = arrows_told(&text);
        assert_eq!(told.keys().collect::<Vec<_>>(), ["x", "z"]);
        assert_eq!(told["x"].iter().collect::<Vec<_>>(), ["statepages-a", "statepages-b"]);
        assert!(told["z"].is_empty());
    }
}
