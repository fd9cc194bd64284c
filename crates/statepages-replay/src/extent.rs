//! How much of a pool a trace would fill if nothing were ever given up.

use std::collections::BTreeSet;

use statepages_page::{BlockSize, Boundary, Domain, Pages, Tokens};
use statepages_store::PromptKeys;

use crate::trace::Trace;
use crate::watch::{Stage, Watch};

/// What the prompts of traces come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Distinct whole blocks of prompts: a block is what it holds and all before it.
    pub blocks: u64,
    /// Distinct boundaries that an identical prompt would resume from.
    pub anchors: u64,
}

impl Extent {
    /// Of the prompts of `traces` on blocks of `block` tokens.
    pub fn of(traces: &[Trace], block: BlockSize, watch: &Watch<'_>) -> Self {
        let domain = Domain::default().tag();
        let (mut blocks, mut anchors) = (BTreeSet::new(), BTreeSet::new());
        let of = traces.iter().map(|trace| trace.asks.len() as u64).sum();
        for (done, ask) in (1..).zip(traces.iter().flat_map(|trace| &trace.asks)) {
            (watch.progress)(Stage::Hashing, done, of);
            let mut keys = PromptKeys::new(domain, block);
            keys.extend(&ask.prompt.ids());
            let last = keys.len().saturating_sub(Tokens::new(1));
            anchors.extend(keys.key_at(block.boundary_floor(last)));
            let whole = block.blocks_floor(keys.len()).get();
            let ends = (1..=whole).map(|count| Boundary::from_raw(count * block.get()));
            blocks.extend(ends.filter_map(|end| keys.key_at(end)));
        }
        Self { blocks: blocks.len() as u64, anchors: anchors.len() as u64 }
    }

    /// The working set: every distinct block, and an image of `units` at every distinct anchor.
    pub fn pages(&self, units: Pages) -> u64 {
        self.blocks + self.anchors * u64::from(units.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::Shared;

    #[test]
    fn shared_blocks_count_once() {
        let trace = Shared {
            prompts: 6,
            prefixes: 2,
            prefix_tokens: 8,
            tail_tokens: 5,
            output_tokens: 1,
            seed: 0,
        }
        .trace();
        let block = BlockSize::new(4).expect("not zero");
        // Two prefixes of two blocks; six tails of one whole block and a token.
        let extent = Extent::of(&[trace.clone(), trace], block, &Watch::QUIET);
        assert_eq!(extent, Extent { blocks: 10, anchors: 6 });
        assert_eq!(extent.pages(Pages::new(3)), 28);
    }
}
