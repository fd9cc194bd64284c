//! What every position of every request must be: the tokens, the state after them, and which content
//! key names it. Knows no page, slot, batch or checkpoint.
//!
//! The state after `n` tokens is one digest of the tenant and of those tokens; the token generated
//! next is a function of it. So the oracle knows a request's whole stream before it has run.

use std::collections::BTreeMap;

use statepages_engine::{RemoteSource, RemoteState};
use statepages_page::{
    BlockSize, Boundary, ContentKey, Domain, DomainTag, LayoutId, RequestId, Tokens,
};
use statepages_store::PromptKeys;

use crate::random::mix;

/// Bytes of one lane of a slot and of one entry of a page region.
pub(crate) const LANE: usize = 16;
/// Regions of a page.
pub(crate) const REGIONS: usize = 2;
/// Planes of a slot.
pub(crate) const PLANES: usize = 2;
/// Ids of the vocabulary.
pub(crate) const VOCAB: u32 = 5;
/// Stands for the model's weights.
pub(crate) const REVISION: &str = "simulated";

/// A state that some content key names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) digest: u64,
    pub(crate) position: u32,
}

/// One request's stream.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub(crate) keys: PromptKeys,
    /// `digests[n]` is the state after `n` tokens.
    pub(crate) digests: Vec<u64>,
    pub(crate) prompt: usize,
}

/// Every live request's stream, and the state of every key that was ever possible.
#[derive(Clone, Debug)]
pub(crate) struct Oracle {
    block: BlockSize,
    layout: LayoutId,
    lanes: u32,
    streams: BTreeMap<RequestId, Stream>,
    /// By key; several where keys collide.
    known: BTreeMap<u128, Vec<Named>>,
    key_bits: Option<u32>,
}

/// A state, and the block that ends there.
#[derive(Clone, Debug)]
struct Named {
    parent: Option<ContentKey>,
    domain: DomainTag,
    tokens: Vec<u32>,
    known: Known,
}

impl Oracle {
    pub(crate) fn new(
        block: BlockSize,
        layout: LayoutId,
        lanes: u32,
        key_bits: Option<u32>,
    ) -> Self {
        let (streams, known) = (BTreeMap::new(), BTreeMap::new());
        Self { block, layout, lanes, streams, known, key_bits }
    }

    pub(crate) fn domain(&self, tenant: u8) -> DomainTag {
        let salt = salt(tenant);
        let domain = Domain {
            tenant_salt: salt.as_deref(),
            adapter: None,
            media: None,
            model_revision: REVISION,
            layout: Some(&self.layout),
        };
        domain.tag()
    }

    /// Keys of a tenant's prompt that has no token yet.
    pub(crate) fn keys(&self, tenant: u8) -> PromptKeys {
        let domain = self.domain(tenant);
        match self.key_bits {
            None => PromptKeys::new(domain, self.block),
            Some(bits) => PromptKeys::colliding(domain, self.block, bits),
        }
    }

    /// Takes a request in, with all the tokens it can come to.
    pub(crate) fn add(&mut self, id: RequestId, tenant: u8, prompt: &[u32], generated: u32) {
        let mut tokens = prompt.to_vec();
        let mut digests = digests(tenant, prompt);
        for _ in 0..generated {
            let last = *digests.last().expect("the state after no token is there");
            let token = next_token(last);
            digests.push(step(last, token, tokens.len()));
            tokens.push(token);
        }
        let domain = self.domain(tenant);
        let mut keys = self.keys(tenant);
        keys.extend(&tokens);
        let block = self.block.get() as usize;
        let mut parent = None;
        for position in (block..=tokens.len()).step_by(block) {
            let at = Boundary::from_raw(position as u32);
            let key = keys.key_at(at).expect("whole blocks have keys");
            let known = Known { digest: digests[position], position: position as u32 };
            let named = self.known.entry(key.raw()).or_default();
            if named.iter().all(|named| named.known != known) {
                let tokens = tokens[position - block..position].to_vec();
                named.push(Named { parent, domain, tokens, known });
            }
            parent = Some(key);
        }
        self.streams.insert(id, Stream { keys, digests, prompt: prompt.len() });
    }

    pub(crate) fn remove(&mut self, id: RequestId) {
        self.streams.remove(&id);
    }

    pub(crate) fn stream(&self, id: RequestId) -> &Stream {
        &self.streams[&id]
    }

    /// Keys of the whole blocks that a request can come to.
    pub(crate) fn block_keys(&self, id: RequestId) -> impl Iterator<Item = ContentKey> {
        let keys = &self.stream(id).keys;
        let blocks = 1..=keys.tokens().len() as u32 / self.block.get();
        blocks.filter_map(|block| keys.key_at(Boundary::from_raw(block * self.block.get())))
    }

    /// The state after a block.
    pub(crate) fn known(
        &self,
        key: ContentKey,
        (parent, domain, tokens): (Option<ContentKey>, DomainTag, &[u32]),
    ) -> Option<Known> {
        let named = self.known.get(&key.raw())?.iter().find(|named| {
            (named.parent, named.domain, &named.tokens[..]) == (parent, domain, tokens)
        })?;
        Some(named.known)
    }

    /// Bytes of an image, and of a slot: all lanes of all planes.
    pub(crate) fn slot_bytes(&self, known: Known) -> Vec<u8> {
        slot_bytes(known, self.lanes)
    }
}

impl Stream {
    pub(crate) fn at(&self, position: usize) -> Known {
        Known { digest: self.digests[position], position: position as u32 }
    }
}

/// The salt that names a tenant; the first has none.
pub(crate) fn salt(tenant: u8) -> Option<Vec<u8>> {
    (tenant > 0).then(|| vec![tenant])
}

fn digests(tenant: u8, tokens: &[u32]) -> Vec<u64> {
    let mut all = vec![mix(u64::from(tenant) ^ 0x5eed)];
    for (position, &token) in tokens.iter().enumerate() {
        all.push(step(all[position], token, position));
    }
    all
}

fn step(digest: u64, token: u32, position: usize) -> u64 {
    mix(digest ^ mix(u64::from(token) | (position as u64) << 32))
}

pub(crate) fn next_token(digest: u64) -> u32 {
    (mix(digest ^ 0x70_6b65) % u64::from(VOCAB)) as u32
}

/// The entry that the token before `known.position` leaves in a page's region.
pub(crate) fn entry_bytes(known: Known, region: usize) -> [u8; LANE] {
    pair(mix(known.digest ^ region as u64), known.position)
}

fn slot_bytes(known: Known, lanes: u32) -> Vec<u8> {
    let lanes = PLANES * lanes as usize;
    let mut bytes = Vec::with_capacity(lanes * LANE);
    (0..lanes).for_each(|lane| bytes.extend(lane_bytes(known, lane)));
    bytes
}

fn lane_bytes(known: Known, lane: usize) -> [u8; LANE] {
    pair(known.digest.rotate_left(lane as u32), known.position)
}

fn pair(first: u64, second: u32) -> [u8; LANE] {
    let mut bytes = [0; LANE];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..12].copy_from_slice(&second.to_le_bytes());
    bytes
}

/// A remote side that holds whole blocks of some texts of the tenant without salt.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    pub(crate) domain: DomainTag,
    pub(crate) block: BlockSize,
    pub(crate) lanes: u32,
    pub(crate) texts: Vec<Vec<u32>>,
}

impl RemoteSource for Remote {
    fn reach(&self, domain: DomainTag, tokens: &[u32], limit: Boundary) -> Option<Boundary> {
        if domain != self.domain {
            return None;
        }
        let common = |held: &Vec<u32>| held.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let longest = self.texts.iter().map(common).max()?.min(limit.tokens().index());
        Some(self.block.boundary_floor(Tokens::new(longest as u32)))
    }

    fn fetch(&self, _: DomainTag, tokens: &[u32], from: Boundary, to: Boundary) -> RemoteState {
        let to = to.tokens().index();
        let digests = digests(0, &tokens[..to]);
        let at = |position: usize| Known { digest: digests[position], position: position as u32 };
        let block = self.block.get() as usize;
        let page = |start: usize| {
            (0..REGIONS)
                .flat_map(|region| {
                    (start + 1..=start + block)
                        .flat_map(move |position| entry_bytes(at(position), region))
                })
                .collect()
        };
        RemoteState {
            pages: (from.tokens().index()..to).step_by(block).map(page).collect(),
            slot: slot_bytes(at(to), self.lanes),
        }
    }
}
