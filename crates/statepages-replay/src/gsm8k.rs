//! GSM8K with 64 examples in each prompt.
//!
//! A prompt is 64 of the training problems, each `Question: q\nAnswer: a\n\n`, and behind them
//! `Question: q\nAnswer:` of a test problem; no token is put in front. Which 64 is drawn anew for
//! each test problem: recorded draws ([`Draws::Recorded`]), whose texts are checked by a digest, or
//! draws of a seed.
//!
//! Prompts are tokenised by the piece. That is exact where no pre-token crosses from one piece into
//! the next, which holds for a pre-tokenizer that isolates runs of line breaks from the letters
//! behind them; the first prompt is tokenised whole as well, and compared.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::error::TraceError;
use crate::random::Random;
use crate::text::{Texts, lines};
use crate::trace::{Ask, Prompt, Reply, Trace};
use crate::watch::Watch;

/// Examples in front of each question.
pub const SHOTS: usize = 64;

/// SHA-256 of the recorded draws' prompts, joined by NUL.
const RECORDED_SHA256: &str = "223ed087dd43f552db2b9efe76579386b3b63016a369abb0e8c476f36f95b745";

/// Which training problems stand in the prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draws {
    /// Those of `fewshot64_indices.u16le`: 64 little-endian 16-bit indices a prompt.
    Recorded,
    /// 64 different ones a prompt, drawn from a seed.
    Fresh {
        /// The seed.
        seed: u64,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Problem {
    question: String,
    answer: String,
}

/// Reads `train.jsonl`, `test.jsonl` and, for recorded draws, the indices from `folder`.
pub fn gsm8k64(
    folder: &Path,
    draws: Draws,
    texts: &Texts,
    output_tokens: u32,
    watch: &Watch<'_>,
) -> Result<Trace, TraceError> {
    let problems = |name: &str| lines::<Problem>(&folder.join(name));
    let (train, test) = (problems("train.jsonl")?, problems("test.jsonl")?);
    let shots: Vec<String> = train
        .iter()
        .map(|(_, problem)| {
            format!("Question: {}\nAnswer: {}\n\n", problem.question, problem.answer)
        })
        .collect();
    let questions: Vec<String> = test
        .iter()
        .map(|(_, problem)| format!("Question: {}\nAnswer:", problem.question))
        .collect();
    let (name, drawn) = match draws {
        Draws::Recorded => ("gsm8k64", recorded(folder, shots.len(), questions.len())?),
        Draws::Fresh { seed } => {
            ("gsm8k64-fresh", fresh(folder, seed, shots.len(), questions.len())?)
        }
    };
    if draws == Draws::Recorded {
        check_digest(folder, &shots, &questions, &drawn)?;
    }
    let pieces: Vec<&str> = shots.iter().chain(&questions).map(String::as_str).collect();
    let ids = texts.all_ids(&pieces, watch)?;
    let (shot_ids, question_ids) = ids.split_at(shots.len());
    let prompts = drawn.iter().zip(question_ids).map(|(shots, question)| {
        let parts = shots.iter().map(|&shot| &*shot_ids[shot]).chain([&**question]);
        parts.collect::<Vec<_>>().concat().into()
    });
    let prompts: Vec<Arc<[u32]>> = prompts.collect();
    check_pieces(texts, &shots, &questions, &drawn, &prompts)?;
    let asks = prompts.into_iter().map(|ids| Ask {
        prompt: Prompt::Ids(ids),
        reply: Reply::Tokens(output_tokens),
        arrival: None,
        session: None,
    });
    Ok(Trace { name: name.to_owned(), asks: asks.collect() })
}

fn recorded(folder: &Path, train: usize, test: usize) -> Result<Vec<Vec<usize>>, TraceError> {
    let path = folder.join("fewshot64_indices.u16le");
    let bytes =
        std::fs::read(&path).map_err(|source| TraceError::Read { path: path.clone(), source })?;
    let wrong =
        |expected: String, got: String| TraceError::Content { path: path.clone(), expected, got };
    if bytes.len() != test * SHOTS * 2 {
        let expected = format!("{} bytes ({test} times {SHOTS} indices)", test * SHOTS * 2);
        return Err(wrong(expected, format!("{} bytes", bytes.len())));
    }
    let indices =
        bytes.chunks_exact(2).map(|pair| usize::from(u16::from_le_bytes([pair[0], pair[1]])));
    let indices: Vec<usize> = indices.collect();
    if let Some(&most) = indices.iter().find(|&&index| index >= train) {
        return Err(wrong(format!("indices below {train}"), most.to_string()));
    }
    Ok(indices.chunks_exact(SHOTS).map(<[usize]>::to_vec).collect())
}

fn fresh(
    folder: &Path,
    seed: u64,
    train: usize,
    test: usize,
) -> Result<Vec<Vec<usize>>, TraceError> {
    if train < SHOTS {
        return Err(TraceError::Content {
            path: folder.join("train.jsonl"),
            expected: format!("at least {SHOTS} problems"),
            got: train.to_string(),
        });
    }
    let draw = |prompt: usize| {
        let mut random = Random::new(seed, prompt as u64);
        let mut all: Vec<usize> = (0..train).collect();
        // The first steps of a shuffle: as many different ones as are wanted.
        for at in 0..SHOTS {
            all.swap(at, at + random.below(train - at));
        }
        all.truncate(SHOTS);
        all
    };
    Ok((0..test).map(draw).collect())
}

fn check_digest(
    folder: &Path,
    shots: &[String],
    questions: &[String],
    drawn: &[Vec<usize>],
) -> Result<(), TraceError> {
    let mut hasher = Sha256::new();
    for (at, (indices, question)) in drawn.iter().zip(questions).enumerate() {
        if at > 0 {
            hasher.update([0]);
        }
        for &index in indices {
            hasher.update(&shots[index]);
        }
        hasher.update(question);
    }
    let mut got = String::new();
    for byte in hasher.finalize() {
        write!(got, "{byte:02x}").expect("a string takes any text");
    }
    if got == RECORDED_SHA256 {
        return Ok(());
    }
    let expected = format!("prompts of SHA-256 {RECORDED_SHA256}");
    Err(TraceError::Content { path: folder.to_owned(), expected, got })
}

/// Compares the first prompt, tokenised whole, with its pieces.
fn check_pieces(
    texts: &Texts,
    shots: &[String],
    questions: &[String],
    drawn: &[Vec<usize>],
    prompts: &[Arc<[u32]>],
) -> Result<(), TraceError> {
    let (Some(indices), Some(question), Some(ids)) =
        (drawn.first(), questions.first(), prompts.first())
    else {
        return Ok(());
    };
    let mut whole: String = indices.iter().map(|&index| shots[index].as_str()).collect();
    whole.push_str(question);
    if texts.ids(&whole)? == **ids {
        return Ok(());
    }
    Err(TraceError::Content {
        path: texts.path().to_owned(),
        expected: "a tokenizer whose tokens end where a line of text does".to_owned(),
        got: "other ids for a whole prompt than for its parts".to_owned(),
    })
}
