//! The demo's requests: three kinds of repeated traffic, and what each may resume.

use serde::{Deserialize, Serialize};

use crate::demo::corpus::Corpus;

/// Tokens of the prefix that the prompts of one shared-prefix group have in common.
const SHARED_PREFIX: usize = 2_304;
/// Tokens of a new turn that continues a conversation, and of a tail behind a shared prefix.
const TURN: usize = 96;
/// Shortest prompt, in whole blocks; with the residue every prompt lies within 2,600-4,800 tokens.
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

/// One prompt of the demo.
#[derive(Clone, Debug)]
pub(crate) struct Prompt {
    pub(crate) kind: Kind,
    pub(crate) ids: Vec<u32>,
    /// Tokens that the placement rules allow this prompt to resume from, told from the texts alone: no
    /// engine is asked. `None` where the texts do not say.
    pub(crate) resumable: Option<usize>,
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

/// The prompts of a run. Request `i` of a round has kind `i mod 3`.
pub(crate) struct Workload {
    block: usize,
    grid: Grid,
    first: Vec<Prompt>,
    corpus: Corpus,
}

impl Workload {
    /// `requests` prompts (a multiple of 3) on blocks of `block` tokens.
    pub(crate) fn new(corpus: Corpus, requests: usize, block: usize, grid: Grid) -> Self {
        let first = (0..requests)
            .map(|index| {
                let kind = Kind::ALL[index % 3];
                let len = length(index, requests, block);
                let mut ids = corpus.passage(index, 2 * requests, len);
                if kind == Kind::Shared {
                    ids.truncate(SHARED_PREFIX);
                    ids.extend(corpus.passage(requests + index, 2 * requests, len - SHARED_PREFIX));
                }
                Prompt { kind, ids, resumable: Some(0) }
            })
            .collect();
        Self { block, grid, first, corpus }
    }

    /// Nothing was seen before.
    pub(crate) fn cold(&self) -> Vec<Prompt> {
        self.first.clone()
    }

    /// Each shared prefix with a second tail: its blocks are known, its state is not yet.
    pub(crate) fn second_sight(&self) -> Vec<Prompt> {
        let shared = self.first.iter().enumerate().filter(|(_, p)| p.kind == Kind::Shared);
        shared
            .map(|(index, prompt)| Prompt {
                ids: self.with_tail(prompt, 1, index),
                resumable: Some(self.allowed(match self.grid {
                    Grid::Every(interval) => SHARED_PREFIX / interval * interval,
                    Grid::Anchors | Grid::Off => 0,
                })),
                ..prompt.clone()
            })
            .collect()
    }

    /// The repeated traffic; `outputs[i]` is what request `i` of the cold round generated.
    pub(crate) fn resumed(&self, outputs: &[Vec<u32>]) -> Vec<Prompt> {
        let prompts = self.first.iter().zip(outputs).enumerate();
        prompts
            .map(|(index, (prompt, output))| match prompt.kind {
                // The last token is always computed, so that there is a token to sample from.
                Kind::Identical => {
                    Prompt { resumable: Some(self.floor(prompt.ids.len() - 1)), ..prompt.clone() }
                }
                // Of what generated tokens add, decode spacing keeps a boundary one interval later:
                // further than an output reaches, unless the interval is a block.
                Kind::Continued => {
                    let mut ids = prompt.ids.clone();
                    ids.extend(output);
                    ids.extend(self.corpus.passage(self.first.len() - index, 97, TURN));
                    Prompt { resumable: Some(self.floor(prompt.ids.len())), ids, ..prompt.clone() }
                }
                Kind::Shared => Prompt {
                    ids: self.with_tail(prompt, 2, index),
                    resumable: Some(self.allowed(SHARED_PREFIX)),
                    ..prompt.clone()
                },
            })
            .collect()
    }

    /// Up to `count` prompts of the cold kind that no other round sends.
    pub(crate) fn fresh(&self, count: usize) -> Vec<Prompt> {
        let requests = self.first.len();
        (0..count.min(requests))
            .map(|index| {
                let mut ids = vec![u32::from(b'#')];
                let len = self.first[index].ids.len() - 1;
                ids.extend(self.corpus.passage(2 * index + 1, 2 * requests, len));
                Prompt { ids, ..self.first[index].clone() }
            })
            .collect()
    }

    /// Prompts that an earlier round has sent: each resumes at its own anchor.
    pub(crate) fn seen(&self, prompts: &[Prompt]) -> Vec<Prompt> {
        prompts
            .iter()
            .map(|prompt| Prompt {
                resumable: Some(self.floor(prompt.ids.len() - 1)),
                ..prompt.clone()
            })
            .collect()
    }

    fn floor(&self, tokens: usize) -> usize {
        self.allowed(tokens / self.block * self.block)
    }

    fn allowed(&self, tokens: usize) -> usize {
        if self.grid == Grid::Off { 0 } else { tokens }
    }

    fn with_tail(&self, prompt: &Prompt, sight: usize, index: usize) -> Vec<u32> {
        let mut ids = prompt.ids[..SHARED_PREFIX].to_vec();
        // The first token tells the tails apart, so that the shared prefix ends where it says.
        ids.push(u32::from(b'0') + sight as u32);
        // Residues of tail lengths are spread, too.
        let tail = TURN / sight + index * 5;
        ids.extend(self.corpus.passage(3 * index + sight, 89, tail));
        ids
    }
}

/// Lengths go through the residues of the block evenly and meet 0, 1 and `block - 1`.
fn length(index: usize, requests: usize, block: usize) -> usize {
    let residue = match index {
        0..=2 => [0, 1, block - 1][index],
        3..=5 => [block - 1, 0, 1][index - 3],
        _ => (index - 5) * block / (requests - 5),
    };
    (BLOCKS_MIN + index * 3 % BLOCKS_SPREAD) * block + residue
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_have_the_promised_shape() {
        let workload = Workload::new(Corpus::built_in(), 24, 256, Grid::Every(8_192));
        let cold = workload.cold();
        let mut residues: Vec<_> = cold.iter().map(|p| p.ids.len() % 256).collect();
        residues.sort_unstable();
        assert!(residues.windows(2).all(|w| w[1] - w[0] <= 40), "residues {residues:?}");
        for prompt in &cold {
            assert!((2_600..=4_800).contains(&prompt.ids.len()), "{}", prompt.ids.len());
        }
        for kind in Kind::ALL {
            assert_eq!(cold.iter().filter(|p| p.kind == kind).count(), 8);
        }
        let prefixes: std::collections::BTreeSet<_> =
            cold.iter().map(|p| p.ids[..256].to_vec()).collect();
        assert_eq!(prefixes.len(), 24, "no two prompts share their first block");
    }

    #[test]
    fn tails_part_right_behind_the_shared_prefix() {
        let workload = Workload::new(Corpus::built_in(), 6, 256, Grid::Every(8_192));
        let outputs = vec![vec![7; 32]; 6];
        let third = workload.resumed(&outputs);
        for (first, third) in workload.cold().iter().zip(&third) {
            if first.kind == Kind::Shared {
                let common = first.ids.iter().zip(&third.ids).take_while(|(a, b)| a == b).count();
                assert!((SHARED_PREFIX..SHARED_PREFIX + 256).contains(&common));
            }
        }
        let second = workload.second_sight();
        assert_eq!(second.len(), 2);
        assert_ne!(second[0].ids[SHARED_PREFIX], third[2].ids[SHARED_PREFIX]);
    }
}
