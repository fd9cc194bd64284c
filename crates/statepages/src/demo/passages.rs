//! Passages of a text, for a model whose answers nobody knows.

use crate::demo::corpus::Corpus;
use crate::demo::workload::{Kind, Prompt, Rules, Workload, blocks};

/// Tokens of the prefix that the prompts of one shared-prefix group have in common.
const SHARED_PREFIX: usize = 2_304;
/// Tokens of a new turn that continues a conversation, and of a tail behind a shared prefix.
const TURN: usize = 96;

/// Prompts cut from a corpus.
pub(crate) struct Passages {
    rules: Rules,
    first: Vec<Prompt>,
    corpus: Corpus,
}

impl Passages {
    /// `requests` prompts, a multiple of 3.
    pub(crate) fn new(corpus: Corpus, requests: usize, rules: Rules) -> Self {
        let first = (0..requests)
            .map(|index| {
                let kind = Kind::ALL[index % 3];
                let len = length(index, requests, rules.block);
                let mut ids = corpus.passage(index, 2 * requests, len);
                if kind == Kind::Shared {
                    ids.truncate(SHARED_PREFIX);
                    ids.extend(corpus.passage(requests + index, 2 * requests, len - SHARED_PREFIX));
                }
                Prompt { kind, ids, resumable: Some(0), asked: None }
            })
            .collect();
        Self { rules, first, corpus }
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

impl Workload for Passages {
    fn rules(&self) -> Rules {
        self.rules
    }

    fn cold(&self) -> Vec<Prompt> {
        self.first.clone()
    }

    fn second_sight(&self) -> Vec<Prompt> {
        let shared = self.first.iter().enumerate().filter(|(_, p)| p.kind == Kind::Shared);
        shared
            .map(|(index, prompt)| Prompt {
                ids: self.with_tail(prompt, 1, index),
                resumable: Some(self.rules.grid_floor(SHARED_PREFIX)),
                ..prompt.clone()
            })
            .collect()
    }

    fn resumed(&self, outputs: &[Vec<u32>]) -> Vec<Prompt> {
        let prompts = self.first.iter().zip(outputs).enumerate();
        prompts
            .map(|(index, (prompt, output))| match prompt.kind {
                // The last token is always computed, so that there is a token to sample from.
                Kind::Identical => {
                    let resumable = self.rules.floor(prompt.ids.len() - 1);
                    Prompt { resumable: Some(resumable), ..prompt.clone() }
                }
                // Of what generated tokens add, decode spacing keeps a boundary one interval later:
                // further than an output reaches, unless the interval is a block.
                Kind::Continued => {
                    let mut ids = prompt.ids.clone();
                    ids.extend(output);
                    ids.extend(self.corpus.passage(self.first.len() - index, 97, TURN));
                    let resumable = self.rules.floor(prompt.ids.len());
                    Prompt { resumable: Some(resumable), ids, ..prompt.clone() }
                }
                Kind::Shared => Prompt {
                    ids: self.with_tail(prompt, 2, index),
                    resumable: Some(self.rules.allowed(SHARED_PREFIX)),
                    ..prompt.clone()
                },
            })
            .collect()
    }

    fn fresh(&self, count: usize) -> Vec<Prompt> {
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
}

/// Lengths go through the residues of the block evenly and meet 0, 1 and `block - 1`.
fn length(index: usize, requests: usize, block: usize) -> usize {
    let residue = match index {
        0..=2 => [0, 1, block - 1][index],
        3..=5 => [block - 1, 0, 1][index - 3],
        _ => (index - 5) * block / (requests - 5),
    };
    blocks(index) * block + residue
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::workload::Grid;
    use crate::tokens::Tokenizer;

    fn passages(requests: usize) -> Passages {
        let corpus = Corpus::built_in(&Tokenizer::Bytes).unwrap();
        Passages::new(corpus, requests, Rules { block: 256, grid: Grid::Every(8_192) })
    }

    #[test]
    fn prompts_have_the_promised_shape() {
        let cold = passages(24).cold();
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
        let workload = passages(6);
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
