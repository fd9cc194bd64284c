//! `statepages generate`: one prompt from a flag, a file or standard input.

use std::fs::File;
use std::io::{Read, Write as _};

use anyhow::{Context, Result, bail};
use serde_json::json;
use statepages_engine::{FinishReason, Sampling, Stop};
use statepages_page::Tokens;

use crate::args::GenerateArgs;
use crate::built_in;
use crate::session::{Completion, Job, Listener, Pace, Session};
use crate::tokens::{Texts, Tokenizer};

/// Bytes of a prompt: more than the tokens that an engine takes ever have.
const PROMPT_BYTES_MAX: u64 = 16 * built_in::MODEL_LEN_MAX;

pub(crate) fn run(args: &GenerateArgs) -> Result<()> {
    let prompt = prompt(args)?;
    let Texts { tokenizer, ends, .. } = Texts::of(&args.engine)?;
    let mut stops = Vec::new();
    for text in &args.stop {
        stops.extend(tokenizer.appearances(text).context("--stop")?);
    }
    let job = Job {
        prompt: tokenizer.encode(&prompt).context("the prompt")?,
        sampling: Sampling {
            temperature: args.temperature,
            top_k: (args.top_k > 0).then_some(args.top_k),
            top_p: args.top_p,
            seed: args.seed,
        },
        stop: Stop { max_tokens: Tokens::new(args.max_tokens), token_ids: ends, sequences: stops },
    };
    let mut session = Session::new(built_in::engine(&args.engine, None)?);
    let mut printer =
        Printer { tokenizer: &tokenizer, stream: !args.json, ids: Vec::new(), printed: 0 };
    let completions = session.serve(&[job], Pace::Alone, &mut printer)?;
    let [completion] = completions.as_slice() else { unreachable!("one job, one completion") };
    let mut out = std::io::stdout().lock();
    if args.json {
        let reason = match &completion.reason {
            FinishReason::MaxTokens => "length",
            _ => "stop",
        };
        let object = json!({
            "text": tokenizer.decode(&completion.output)?,
            "token_ids": completion.output,
            "finish_reason": reason,
            "prompt_tokens": completion.usage.prompt.get(),
            "completion_tokens": completion.usage.generated.get(),
            "ttft_ms": completion.ttft.as_secs_f64() * 1e3,
        });
        writeln!(out, "{object}")?;
    } else {
        writeln!(out)?;
        tracing::info!(reason = %completion.reason, "finished");
    }
    Ok(())
}

fn prompt(args: &GenerateArgs) -> Result<String> {
    if let Some(text) = &args.prompt {
        return Ok(text.clone());
    }
    if let Some(path) = &args.prompt_file {
        let file = File::open(path)
            .with_context(|| format!("--prompt-file: cannot read {}", path.display()))?;
        return read(file).with_context(|| format!("--prompt-file: {}", path.display()));
    }
    let text = read(std::io::stdin()).context("standard input; or give --prompt, --prompt-file")?;
    if text.is_empty() {
        bail!("standard input is empty; give --prompt or --prompt-file");
    }
    Ok(text)
}

/// A prompt's text. Reads no more than a prompt may have, however much there is.
fn read(from: impl Read) -> Result<String> {
    let mut bytes = Vec::new();
    from.take(PROMPT_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > PROMPT_BYTES_MAX {
        bail!("expected at most {PROMPT_BYTES_MAX} bytes of text, got more");
    }
    String::from_utf8(bytes).context("expected UTF-8 text")
}

/// Prints text as it comes; a character whose bytes are not all there waits for the rest.
struct Printer<'a> {
    tokenizer: &'a Tokenizer,
    stream: bool,
    ids: Vec<u32>,
    printed: usize,
}

impl Listener for Printer<'_> {
    fn token(&mut self, _: usize, token: u32, _: &[f32]) {
        self.ids.push(token);
        // What cannot be shown yet may be shown with the next token.
        let Ok(text) = self.tokenizer.decode(&self.ids) else { return };
        let end = text.trim_end_matches(char::REPLACEMENT_CHARACTER).len();
        if self.stream && end > self.printed && text.is_char_boundary(self.printed) {
            let mut out = std::io::stdout().lock();
            // A reader that has gone away stops the printing, not the completion.
            if write!(out, "{}", &text[self.printed..end]).and_then(|()| out.flush()).is_err() {
                self.stream = false;
            }
            self.printed = end;
        }
    }

    fn computed(&mut self, _: u64) {}

    fn completed(&mut self, _: usize, _: &Completion) -> Result<()> {
        Ok(())
    }
}
