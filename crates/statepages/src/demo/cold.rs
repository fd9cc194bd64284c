//! The cold arm: another process computes the resumed prompts without any cache, with other chunks,
//! threads, slots and neighbours.

use std::env;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use statepages_engine::{Sampling, Stop};

use crate::args::EngineArgs;
use crate::built_in;
use crate::demo::round::{OutputDigest, OutputHasher};
use crate::session::{Completion, Job, Listener, Pace, Session};

/// What the other process is asked to do, as JSON on its standard input.
#[derive(Serialize, Deserialize)]
struct ColdJob {
    engine: EngineArgs,
    max_tokens: u32,
    prompts: Vec<Vec<u32>>,
}

/// What it answers, one JSON object a line.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// So many tokens more are computed.
    Computed(u64),
    /// A prompt is completed.
    Done { index: usize, digest: OutputDigest },
}

/// The engine that the cold arm runs: nothing is kept, and all that must not matter is different.
fn other(engine: &EngineArgs) -> EngineArgs {
    let max_seqs = if engine.max_seqs == 3 { 2 } else { 3 };
    // Off the block grid, so that chunks end where the first arm's never do.
    let batched = u64::from(engine.max_batched_tokens) * 5 / 8 + 1;
    EngineArgs {
        threads: built_in::threads(engine) as u32 + 1,
        max_batched_tokens: (batched as u32).max(max_seqs),
        max_seqs,
        state_checkpoint_interval_tokens: 0,
        ..engine.clone()
    }
}

/// Digests of the outputs of `prompts`, computed cold elsewhere.
pub(crate) fn compute(
    engine: &EngineArgs,
    max_tokens: u32,
    prompts: Vec<Vec<u32>>,
    mut computed: impl FnMut(u64),
) -> Result<Vec<OutputDigest>> {
    let mut digests = vec![None; prompts.len()];
    let job = serde_json::to_vec(&ColdJob { engine: other(engine), max_tokens, prompts })?;
    let program = env::current_exe().context("the cold arm: this program has no path")?;
    let mut child = Command::new(program)
        .arg("cold-arm")
        // Its start-up facts are those of this process, which has logged them.
        .env("STATEPAGES_LOG", "warn")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("the cold arm: cannot start another process")?;
    let mut stdin = child.stdin.take().expect("standard input is piped");
    stdin.write_all(&job).context("the cold arm: cannot hand over its job")?;
    drop(stdin);
    let stdout = child.stdout.take().expect("standard output is piped");
    for line in BufReader::new(stdout).lines() {
        match serde_json::from_str(&line?).context("the cold arm: unexpected answer")? {
            Line::Computed(tokens) => computed(tokens),
            Line::Done { index, digest } => {
                let place = digests.get_mut(index).context("the cold arm: unknown prompt")?;
                *place = Some(digest);
            }
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("the cold arm: {status}");
    }
    let digests: Option<Vec<_>> = digests.into_iter().collect();
    digests.context("the cold arm: not every prompt was answered")
}

/// The other process.
pub(crate) fn answer() -> Result<()> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let job: ColdJob = serde_json::from_str(&text).context("standard input holds no job")?;
    let jobs = job.prompts.into_iter().map(|prompt| Job {
        prompt,
        sampling: Sampling::GREEDY,
        stop: Stop::after(job.max_tokens),
    });
    // Served from the last to the first, so that neighbours in a batch are others, too.
    let jobs: Vec<_> = jobs.rev().collect();
    let mut answers =
        Answers { hashers: vec![OutputHasher::default(); jobs.len()], outcome: Ok(()) };
    let mut session = Session::new(built_in::engine(&job.engine, None)?);
    session.serve(&jobs, Pace::Together, &mut answers)?;
    answers.outcome
}

struct Answers {
    hashers: Vec<OutputHasher>,
    outcome: Result<()>,
}

impl Answers {
    fn say(line: &Line) -> Result<()> {
        let mut out = std::io::stdout().lock();
        serde_json::to_writer(&mut out, line)?;
        writeln!(out)?;
        Ok(())
    }
}

impl Listener for Answers {
    fn token(&mut self, index: usize, token: u32, logits: &[f32]) {
        self.hashers[index].token(token, logits);
    }

    fn computed(&mut self, tokens: u64) {
        if self.outcome.is_ok() {
            self.outcome = Self::say(&Line::Computed(tokens));
        }
    }

    fn completed(&mut self, index: usize, _: &Completion) -> Result<()> {
        let digest = self.hashers[index].clone().finish();
        Self::say(&Line::Done { index: self.hashers.len() - 1 - index, digest })
    }
}
