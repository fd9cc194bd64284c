//! What a demo sends: three kinds of repeated traffic, and what each may resume.

use serde::{Deserialize, Serialize};
use statepages_mini::Third;

/// Shortest prompt, in whole blocks; every prompt lies within 2,600-4,800 tokens.
const BLOCKS_MIN: usize = 11;
/// Numbers of whole blocks that prompt lengths go through.
const BLOCKS_SPREAD: usize = 7;

/// How a request repeats earlier traffic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// The same prompt again.
    Identical,
    /// The earlier prompt, its output, and a new turn.
    Continued,
    /// A prefix that two earlier prompts had, with another tail.
    Shared,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Identical, Self::Continued, Self::Shared];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Identical => "identical",
            Self::Continued => "continued",
            Self::Shared => "shared",
        }
    }
}

/// What a prompt asks, and the words of the right answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asked {
    pub(crate) third: Third,
    pub(crate) answer: [u32; 2],
}

/// One prompt of the demo.
#[derive(Clone, Debug)]
pub(crate) struct Prompt {
    pub(crate) kind: Kind,
    pub(crate) ids: Vec<u32>,
    /// Tokens that the placement rules allow this prompt to resume from, told from the texts alone: no
    /// engine is asked. `None` where the texts do not say.
    pub(crate) resumable: Option<usize>,
    /// Where the prompt ends in a question whose answer is known.
    pub(crate) asked: Option<Asked>,
}

/// What the interval flag says about boundaries, in tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Grid {
    /// Nothing is kept.
    Off,
    /// Anchors, prompt ends and demands only.
    Anchors,
    /// Those, and every multiple.
    Every(usize),
}

/// The placement rules, as far as they are told from texts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) block: usize,
    pub(crate) grid: Grid,
}

impl Rules {
    /// The largest boundary within `tokens`, where one is kept there.
    pub(crate) fn floor(self, tokens: usize) -> usize {
        self.allowed(tokens / self.block * self.block)
    }

    /// The boundary `tokens`, unless nothing is kept.
    pub(crate) fn allowed(self, tokens: usize) -> usize {
        if self.grid == Grid::Off { 0 } else { tokens }
    }

    /// What a prompt resumes that has `known` tokens of blocks and no state but the grid's.
    pub(crate) fn grid_floor(self, known: usize) -> usize {
        match self.grid {
            Grid::Every(interval) => known / interval * interval,
            Grid::Anchors | Grid::Off => 0,
        }
    }
}

/// The prompts of a run. Request `i` of a round has kind `i mod 3`.
pub(crate) trait Workload {
    fn rules(&self) -> Rules;

    /// Nothing was seen before.
    fn cold(&self) -> Vec<Prompt>;

    /// Each shared prefix with a second tail: its blocks are known, its state is not yet.
    fn second_sight(&self) -> Vec<Prompt>;

    /// The repeated traffic; `outputs[i]` is what request `i` of the cold round generated.
    fn resumed(&self, outputs: &[Vec<u32>]) -> Vec<Prompt>;

    /// Up to `count` prompts of the cold kind that no other round sends.
    fn fresh(&self, count: usize) -> Vec<Prompt>;

    /// Prompts that an earlier round has sent: each resumes at its own anchor.
    fn seen(&self, prompts: &[Prompt]) -> Vec<Prompt> {
        let anchor = |prompt: &Prompt| self.rules().floor(prompt.ids.len() - 1);
        prompts
            .iter()
            .map(|prompt| Prompt { resumable: Some(anchor(prompt)), ..prompt.clone() })
            .collect()
    }
}

/// Whole blocks of the prompt of request `index`.
pub(crate) fn blocks(index: usize) -> usize {
    BLOCKS_MIN + index * 3 % BLOCKS_SPREAD
}
