//! Content keys: a chained 128-bit digest over a domain and the token blocks of a prefix.
//!
//! Formula: `root = H("domain" ‖ fields)`, `key(0) = H(root ‖ tokens(0))`,
//! `key(n) = H(key(n-1) ‖ tokens(n))`, where `H` is BLAKE3 cut to its first 128 bits, tokens are
//! little-endian u32 and every domain field carries its tag and its length. Two domains that differ
//! in any field share no key.

use std::fmt;

use crate::LayoutId;

/// Content key of a prefix that ends on a block border. Opaque to the checkpoint store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentKey(u128);

/// Digest of a [`Domain`]; the parent of every chain's first key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomainTag(u128);

/// What must be equal, beside the tokens, for one request to read what another wrote.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Domain<'a> {
    /// Salt of the tenant; `None` is the shared domain and differs from the empty salt.
    pub tenant_salt: Option<&'a [u8]>,
    /// Name of the adapter (LoRA) that computes the request.
    pub adapter: Option<&'a str>,
    /// Digest of media that the tokens stand for.
    pub media: Option<&'a [u8]>,
    /// Revision of the model weights.
    pub model_revision: &'a str,
    /// Layout of pages and images; `None` for engines without paged state.
    pub layout: Option<&'a LayoutId>,
}

impl Domain<'_> {
    /// The digest that seeds the domain's key chains.
    pub fn tag(&self) -> DomainTag {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"statepages domain 1");
        let layout = self.layout.map(|l| l.as_str().as_bytes());
        for (tag, field) in [
            (1u8, self.tenant_salt),
            (2, self.adapter.map(str::as_bytes)),
            (3, self.media),
            (4, Some(self.model_revision.as_bytes())),
            (5, layout),
        ] {
            // An absent field adds nothing; a present one always adds tag and length, so neither
            // absence nor concatenation can be mistaken for another field's bytes.
            if let Some(bytes) = field {
                hasher.update(&[tag]);
                hasher.update(&(bytes.len() as u64).to_le_bytes());
                hasher.update(bytes);
            }
        }
        DomainTag(cut(&hasher))
    }
}

impl DomainTag {
    /// The raw digest.
    pub const fn raw(self) -> u128 {
        self.0
    }

    /// A digest that came over the wire or from an embedding engine.
    pub const fn from_raw(raw: u128) -> Self {
        Self(raw)
    }

    /// Key of a chain's first block.
    pub fn first(self, tokens: &[u32]) -> ContentKey {
        ContentKey(chain(self.0, tokens))
    }
}

impl ContentKey {
    /// The raw digest.
    pub const fn raw(self) -> u128 {
        self.0
    }

    /// A key that came over the wire, or that an embedding engine made by its own rule.
    pub const fn from_raw(raw: u128) -> Self {
        Self(raw)
    }

    /// Key of the block that follows this one.
    #[must_use]
    pub fn next(self, tokens: &[u32]) -> ContentKey {
        ContentKey(chain(self.0, tokens))
    }
}

fn chain(parent: u128, tokens: &[u32]) -> u128 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&parent.to_le_bytes());
    // Tokens go through a small buffer: one update a token would hash a byte at a time.
    let mut buffer = [0u8; 256];
    for part in tokens.chunks(buffer.len() / 4) {
        for (bytes, token) in buffer.chunks_exact_mut(4).zip(part) {
            bytes.copy_from_slice(&token.to_le_bytes());
        }
        hasher.update(&buffer[..part.len() * 4]);
    }
    cut(&hasher)
}

fn cut(hasher: &blake3::Hasher) -> u128 {
    let digest = hasher.finalize();
    let (head, _) = digest.as_bytes().split_first_chunk().expect("BLAKE3 gives 32 bytes");
    u128::from_le_bytes(*head)
}

impl fmt::Debug for ContentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "k{:032x}", self.0)
    }
}

impl fmt::Debug for DomainTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "d{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Domain<'static> {
        Domain { model_revision: "m", ..Domain::default() }
    }

    #[test]
    fn every_domain_field_separates() {
        let layout = LayoutId::new("l").unwrap();
        let tags = [
            plain().tag(),
            Domain { tenant_salt: Some(b""), ..plain() }.tag(),
            Domain { tenant_salt: Some(b"x"), ..plain() }.tag(),
            Domain { adapter: Some("x"), ..plain() }.tag(),
            Domain { media: Some(b"x"), ..plain() }.tag(),
            Domain { model_revision: "n", ..plain() }.tag(),
            Domain { layout: Some(&layout), ..plain() }.tag(),
        ];
        for (i, a) in tags.iter().enumerate() {
            for b in &tags[..i] {
                assert_ne!(a, b);
            }
        }
    }

    #[test]
    fn chain_depends_on_parent_order_and_every_byte() {
        let root = plain().tag();
        let a = root.first(&[1, 2, 3]);
        assert_ne!(a, root.first(&[1, 2, 4]));
        assert_ne!(a, root.first(&[1, 2, 3 + (1 << 24)]), "high bytes of a token count");
        assert_ne!(a.next(&[7]), root.first(&[7]));
        assert_eq!(a.next(&[7]), root.first(&[1, 2, 3]).next(&[7]));
        let long: Vec<u32> = (0..300).collect();
        let mut other = long.clone();
        other[299] = 0;
        assert_ne!(root.first(&long), root.first(&other));
    }
}
