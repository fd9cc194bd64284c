//! What is replayed: prompts in an order, with what each generates, when it arrives, and whose turn
//! it is.

use std::sync::Arc;

use crate::random::Random;

/// Ids that made-up tokens are drawn from: `0 .. MADE_UP`.
const MADE_UP: usize = 1 << 17;

/// Prompts in the order of their file.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Name of the workload.
    pub name: String,
    /// The prompts.
    pub asks: Vec<Ask>,
}

/// One prompt.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Its tokens.
    pub prompt: Prompt,
    /// What is generated for it.
    pub reply: Reply,
    /// Microseconds from the first arrival to its own, where the trace has times.
    pub arrival: Option<u64>,
    /// The session it is a turn of: a turn is sent when the turn before it has ended.
    pub session: Option<u32>,
}

/// Tokens of a prompt.
#[derive(Clone, Debug)]
pub enum Prompt {
    /// Ids.
    Ids(Arc<[u32]>),
    /// Pieces of made-up ids one behind the other, expanded where they are sent.
    Pieces(Vec<Piece>),
}

/// Made-up ids: equal pieces are equal texts, and pieces of one seed share their beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which text.
    pub seed: u64,
    /// Its tokens.
    pub tokens: u32,
}

/// What a request generates.
#[derive(Clone, Debug)]
pub enum Reply {
    /// So many tokens, at least one; whichever the runner makes up.
    Tokens(u32),
    /// Exactly these ids, at least one.
    Ids(Arc<[u32]>),
}

impl Prompt {
    /// Number of tokens.
    pub fn len(&self) -> usize {
        match self {
            Self::Ids(ids) => ids.len(),
            Self::Pieces(pieces) => pieces.iter().map(|piece| piece.tokens as usize).sum(),
        }
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its ids.
    pub fn ids(&self) -> Vec<u32> {
        let mut all = Vec::with_capacity(self.len());
        match self {
            Self::Ids(ids) => all.extend_from_slice(ids),
            Self::Pieces(pieces) => {
                for Piece { seed, tokens } in pieces {
                    let mut draw = Random::new(*seed, 0);
                    all.extend((0..*tokens).map(|_| draw.below(MADE_UP) as u32));
                }
            }
        }
        all
    }
}

impl Reply {
    /// Number of tokens.
    pub fn len(&self) -> u32 {
        match self {
            Self::Tokens(tokens) => *tokens,
            Self::Ids(ids) => ids.len() as u32,
        }
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// In which order prompts are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// That of the file.
    File,
    /// The longest prompt first; equal lengths in the order of the file.
    LongestFirst,
    /// A new random order each round.
    Shuffled,
}

impl Order {
    /// Indices of `asks` in this order, of round `round`.
    pub fn of(self, asks: &[Ask], seed: u64, round: u64) -> Vec<usize> {
        let mut all: Vec<usize> = (0..asks.len()).collect();
        match self {
            Self::File => {}
            Self::LongestFirst => all.sort_by_key(|&at| std::cmp::Reverse(asks[at].prompt.len())),
            Self::Shuffled => Random::new(seed, round).shuffle(&mut all),
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(tokens: u32) -> Ask {
        let prompt = Prompt::Pieces(vec![Piece { seed: u64::from(tokens), tokens }]);
        Ask { prompt, reply: Reply::Tokens(1), arrival: None, session: None }
    }

    #[test]
    fn a_cut_piece_is_a_prefix_of_the_whole_one() {
        let of = |tokens| Prompt::Pieces(vec![Piece { seed: 9, tokens }]).ids();
        assert_eq!(of(300)[..100], of(100)[..]);
        let other = Prompt::Pieces(vec![Piece { seed: 10, tokens: 100 }]).ids();
        assert_ne!(of(100), other);
    }

    #[test]
    fn orders() {
        let asks = [ask(5), ask(9), ask(5), ask(7)];
        assert_eq!(Order::File.of(&asks, 0, 0), [0, 1, 2, 3]);
        assert_eq!(Order::LongestFirst.of(&asks, 0, 0), [1, 3, 0, 2]);
        let many: Vec<Ask> = (1..50).map(ask).collect();
        assert_ne!(Order::Shuffled.of(&many, 1, 0), Order::Shuffled.of(&many, 1, 1));
        assert_eq!(Order::Shuffled.of(&many, 1, 1), Order::Shuffled.of(&many, 1, 1));
    }
}
