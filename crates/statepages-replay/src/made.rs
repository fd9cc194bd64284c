//! Made-up traffic: prompts that share nothing, and prompts that share a few prefixes.

use crate::trace::{Ask, Piece, Prompt, Reply, Trace};

/// Prompts that have no block in common.
#[derive(Clone, Copy, Debug)]
pub struct Distinct {
    /// Number of prompts.
    pub prompts: u32,
    /// Tokens of each.
    pub tokens: u32,
    /// Tokens generated for each.
    pub output_tokens: u32,
    /// Seeds the texts.
    pub seed: u64,
}

/// Prompts that take turns on a few prefixes, each with a tail of its own.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    /// Number of prompts.
    pub prompts: u32,
    /// Number of prefixes.
    pub prefixes: u32,
    /// Tokens of a prefix.
    pub prefix_tokens: u32,
    /// Tokens of a tail.
    pub tail_tokens: u32,
    /// Tokens generated for each.
    pub output_tokens: u32,
    /// Seeds the texts.
    pub seed: u64,
}

/// Texts of one seed are told apart by number; prefixes and tails take numbers of different halves.
fn text(seed: u64, half: u64, number: u32, tokens: u32) -> Piece {
    Piece { seed: seed.rotate_left(40) ^ (half << 32) ^ u64::from(number), tokens }
}

fn ask(pieces: Vec<Piece>, output_tokens: u32) -> Ask {
    let (prompt, reply) = (Prompt::Pieces(pieces), Reply::Tokens(output_tokens));
    Ask { prompt, reply, arrival: None, session: None }
}

impl Distinct {
    /// The prompts.
    pub fn trace(&self) -> Trace {
        let asks = (0..self.prompts)
            .map(|number| ask(vec![text(self.seed, 0, number, self.tokens)], self.output_tokens));
        Trace { name: "distinct".to_owned(), asks: asks.collect() }
    }
}

impl Shared {
    /// The prompts: prefix `i mod prefixes`, tail `i`.
    pub fn trace(&self) -> Trace {
        let asks = (0..self.prompts).map(|number| {
            let prefix = text(self.seed, 1, number % self.prefixes, self.prefix_tokens);
            ask(vec![prefix, text(self.seed, 2, number, self.tail_tokens)], self.output_tokens)
        });
        Trace { name: "shared".to_owned(), asks: asks.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_prompts_share_their_prefix_alone() {
        let shared = Shared {
            prompts: 6,
            prefixes: 3,
            prefix_tokens: 40,
            tail_tokens: 10,
            output_tokens: 1,
            seed: 4,
        };
        let ids: Vec<_> = shared.trace().asks.iter().map(|ask| ask.prompt.ids()).collect();
        assert_eq!(ids[0][..40], ids[3][..40]);
        assert_ne!(ids[0][40..], ids[3][40..]);
        assert_ne!(ids[0][..40], ids[1][..40]);
        let distinct = Distinct { prompts: 3, tokens: 20, output_tokens: 1, seed: 4 }.trace();
        assert_ne!(distinct.asks[0].prompt.ids(), distinct.asks[1].prompt.ids());
        assert_ne!(distinct.asks[0].prompt.ids()[..], ids[0][..20]);
    }
}
