//! A request's tokens with the content keys of their blocks.
//!
//! Invariants: `keys[i]` is the chained key of tokens `[0, (i + 1) * block)` in the request's
//! domain; a block has a key exactly when all its tokens are there. Keys come from the same vector
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
}

impl PromptKeys {
    /// No tokens yet.
    pub fn new(domain: DomainTag, block: BlockSize) -> Self {
        Self { domain, block, tokens: Vec::new(), keys: Vec::new() }
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
        (keys.len() == whole).then_some(Self { domain, block, tokens, keys })
    }

    /// Appends tokens and hashes each block they complete.
    pub fn extend(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
        let block = self.block.get() as usize;
        self.keys.reserve(self.tokens.len() / block - self.keys.len());
        while (self.keys.len() + 1) * block <= self.tokens.len() {
            let part = &self.tokens[self.keys.len() * block..][..block];
            let key = match self.keys.last() {
                Some(parent) => parent.next(part),
                None => self.domain.first(part),
            };
            self.keys.push(key);
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
