//! A request's tokens with the content keys of their blocks.
//!
//! Invariants: `keys[i]` is the chained key of tokens `[0, (i + 1) * block)` in the request's
//! domain, or a part of it where a simulator asked for that; a block has a key exactly when all its tokens are there. Keys come from the same vector
//! as the tokens they name, so a key can never describe other tokens than those kept beside it.

use statepages_page::{BlockSize, Boundary, ContentKey, DomainTag, Tokens};

/// Tokens and chained block keys of one request: computed once, so that a retried admission hashes
/// nothing again. Grows at the end only.
#[derive(Clone, Debug)]
pub struct PromptKeys {
    domain: DomainTag,
    block: BlockSize,
    tokens: Vec<u32>,
    keys: Vec<ContentKey>,
    /// Chained key of the last whole block, whatever of it is shown.
    chain: Option<ContentKey>,
    shown: Shown,
}

/// What is shown of the chained keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// All bits of all keys.
    Whole,
    /// So many bits of every other key, the first one's among them.
    Folded { bits: u32 },
}

impl PromptKeys {
    /// No tokens yet.
    pub fn new(domain: DomainTag, block: BlockSize) -> Self {
        let (tokens, keys) = (Vec::new(), Vec::new());
        Self { domain, block, tokens, keys, chain: None, shown: Shown::Whole }
    }

    /// As [`Self::new`], but of every other key only `bits` bits are kept, at most 127: for
    /// simulators, which meet colliding keys that way. The keys between are whole, so a comparison
    /// that includes the parent still tells blocks of equal keys apart.
    pub fn colliding(domain: DomainTag, block: BlockSize, bits: u32) -> Self {
        Self { shown: Shown::Folded { bits: bits.min(127) }, ..Self::new(domain, block) }
    }

    /// Tokens with keys that an embedding engine has made by its own rule: one for each whole block,
    /// each naming all tokens up to its block's end. `None` where their number differs.
    pub fn with_keys(
        domain: DomainTag,
        block: BlockSize,
        tokens: Vec<u32>,
        keys: Vec<ContentKey>,
    ) -> Option<Self> {
        let whole = tokens.len() / block.get() as usize;
        let chain = keys.last().copied();
        (keys.len() == whole).then_some(Self {
            domain,
            block,
            tokens,
            keys,
            chain,
            shown: Shown::Whole,
        })
    }

    /// Appends tokens and hashes each block they complete.
    pub fn extend(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
        let block = self.block.get() as usize;
        self.keys.reserve(self.tokens.len() / block - self.keys.len());
        while (self.keys.len() + 1) * block <= self.tokens.len() {
            let part = &self.tokens[self.keys.len() * block..][..block];
            let key = match self.chain {
                Some(parent) => parent.next(part),
                None => self.domain.first(part),
            };
            self.chain = Some(key);
            self.keys.push(match self.shown {
                Shown::Folded { bits } if self.keys.len().is_multiple_of(2) => {
                    ContentKey::from_raw(key.raw() & ((1 << bits) - 1))
                }
                Shown::Whole | Shown::Folded { .. } => key,
            });
        }
    }

    /// The request's domain.
    pub const fn domain(&self) -> DomainTag {
        self.domain
    }

    /// Tokens per block.
    pub const fn block(&self) -> BlockSize {
        self.block
    }

    /// Number of tokens.
    pub fn len(&self) -> Tokens {
        Tokens::new(u32::try_from(self.tokens.len()).expect("a request's tokens fit u32"))
    }

    /// True before the first token.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The key of the state after `boundary` tokens; `None` at zero, off the grid, and behind the
    /// last whole block.
    pub fn key_at(&self, boundary: Boundary) -> Option<ContentKey> {
        let block = self.block.get();
        if !boundary.get().is_multiple_of(block) {
            return None;
        }
        let index = (boundary.get() / block).checked_sub(1)?;
        self.keys.get(index as usize).copied()
    }

    /// Whole blocks, each of which has a key.
    pub(crate) fn blocks(&self) -> usize {
        self.keys.len()
    }

    /// Key of block `index`.
    pub(crate) fn key(&self, index: usize) -> ContentKey {
        self.keys[index]
    }

    /// Key of the block before block `index`; `None` for the first.
    pub(crate) fn parent(&self, index: usize) -> Option<ContentKey> {
        index.checked_sub(1).map(|before| self.keys[before])
    }

    /// Tokens of block `index`.
    pub(crate) fn block_tokens(&self, index: usize) -> &[u32] {
        let block = self.block.get() as usize;
        &self.tokens[index * block..][..block]
    }
}
