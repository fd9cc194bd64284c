//! A recurrent model small enough to be obvious, on real pages and slots.
//!
//! Its state after `n` tokens is one digest of those tokens and of `n`; the state fills a slot, lane
//! by lane. Each token leaves one entry in each of a page's two regions. The logits after `n` tokens
//! are a function of the slot and of every entry before `n`. So any wrong byte that a request can
//! read - a slot or a page of another request, at another position, or torn - changes its output,
//! and [`RecurrentModel::generate`] says what the output must be without pages, slots or batches.
//!
//! For tests, examples and simulators.

use statepages_page::{
    BlockSize, Boundary, Bytes, DomainTag, ImageLayout, ImageRule, LayoutId, PageLayout, Plane,
    Region, Segment, SlotLayout, StateLayout, Tokens,
};

use crate::delayed::RemoteSource;
use crate::runner::RemoteState;

/// Bytes of one lane of a slot and of one entry of a page region.
pub(crate) const LANE: usize = 16;
pub(crate) const REGIONS: usize = 2;
pub(crate) const PLANES: usize = 2;

/// The model: pure functions of tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecurrentModel {
    /// Stands for the weights.
    pub seed: u64,
    /// Ids of the vocabulary: `0 .. vocab`.
    pub vocab: u32,
    /// Tokens per block.
    pub block: BlockSize,
    /// Lanes of each of a slot's two planes; one at least.
    pub lanes: u32,
}

impl RecurrentModel {
    /// Regions of a page, planes of a slot, and an image that is the whole slot.
    ///
    /// # Panics
    /// Where the model has no lanes.
    pub fn layout(&self) -> StateLayout {
        let page = (0..REGIONS).map(|i| Region {
            name: format!("entries {i}"),
            len: Bytes::new(u64::from(self.block.get()) * LANE as u64),
        });
        let plane = Bytes::new(u64::from(self.lanes) * LANE as u64);
        let planes = (0..PLANES).map(|i| Plane { name: format!("lanes {i}"), len: plane });
        let slot = SlotLayout::new(planes.collect()).expect("a slot has lanes");
        let segments = (0..PLANES as u16)
            .map(|i| Segment::Fixed { plane: i, offset: 0, len: plane.get() })
            .collect();
        let name = format!("recurrent-{}-{}", self.block.get(), self.lanes);
        StateLayout {
            id: LayoutId::new(&name).expect("not empty"),
            page: PageLayout::new(page.collect()).expect("a page has entries"),
            image: ImageLayout::new(ImageRule::Whole, segments, &slot).expect("planes are whole"),
            slot,
        }
    }

    /// Tokens that `prompt` is continued by, greedily: the naive loop.
    pub fn generate(&self, prompt: &[u32], count: usize) -> Vec<u32> {
        let mut tokens = prompt.to_vec();
        for _ in 0..count {
            let logits = self.logits(&tokens);
            tokens.push(greedy(&logits));
        }
        tokens.split_off(prompt.len())
    }

    /// Logits after `tokens`.
    pub fn logits(&self, tokens: &[u32]) -> Vec<f32> {
        let mut state = self.seed;
        let mut history = self.seed;
        for (position, &token) in tokens.iter().enumerate() {
            state = step(state, token, position);
            for region in 0..REGIONS {
                history = mix(history ^ entry_mark(state, region));
            }
        }
        self.project(state, history)
    }

    /// What pages of `from .. tokens.len()` and the slot after `tokens` hold: what a remote load of
    /// them delivers.
    pub fn remote_state(&self, tokens: &[u32], from: Boundary) -> RemoteState {
        let block = self.block.get() as usize;
        let mut state = self.seed;
        let mut marks = Vec::with_capacity(tokens.len());
        for (position, &token) in tokens.iter().enumerate() {
            state = step(state, token, position);
            marks.push(state);
        }
        let slot = (0..PLANES * self.lanes as usize)
            .flat_map(|lane| lane_bytes(state, tokens.len(), lane))
            .collect();
        let pages = (from.tokens().index()..tokens.len())
            .step_by(block)
            .map(|start| {
                let mut bytes = Vec::with_capacity(REGIONS * block * LANE);
                for region in 0..REGIONS {
                    for (offset, &mark) in marks[start..start + block].iter().enumerate() {
                        bytes.extend(entry_bytes(mark, start + offset, region));
                    }
                }
                bytes
            })
            .collect();
        RemoteState { pages, slot }
    }

    pub(crate) fn project(&self, state: u64, history: u64) -> Vec<f32> {
        let seed = mix(state ^ history.rotate_left(17));
        // 24 bits are exact in f32, so two logits are equal only where their bits are.
        (0..self.vocab).map(|id| (mix(seed ^ u64::from(id)) >> 40) as f32).collect()
    }
}

/// The largest logit; the lower id among equals.
fn greedy(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

pub(crate) fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

pub(crate) fn step(state: u64, token: u32, position: usize) -> u64 {
    mix(state ^ mix(u64::from(token) | (position as u64) << 32))
}

fn entry_mark(state: u64, region: usize) -> u64 {
    mix(state ^ region as u64)
}

pub(crate) fn entry_bytes(state: u64, position: usize, region: usize) -> [u8; LANE] {
    pair(entry_mark(state, region), position as u64)
}

pub(crate) fn lane_bytes(state: u64, position: usize, lane: usize) -> [u8; LANE] {
    // The state itself can be read back from any lane, so each lane is checked against all others.
    pair(state.rotate_left(lane as u32), position as u64)
}

fn pair(first: u64, second: u64) -> [u8; LANE] {
    let mut bytes = [0; LANE];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..].copy_from_slice(&second.to_le_bytes());
    bytes
}

pub(crate) fn unpair(bytes: &[u8]) -> (u64, u64) {
    let (first, second) = bytes.split_at(8);
    let word = |half: &[u8]| u64::from_le_bytes(half.try_into().expect("half a lane is 8 bytes"));
    (word(first), word(second))
}

/// A remote side that holds some prompts of one domain, whole blocks of each.
#[derive(Clone, Debug)]
pub struct RecurrentRemote {
    /// The model that computed them.
    pub model: RecurrentModel,
    /// The domain they belong to.
    pub domain: DomainTag,
    /// The prompts.
    pub prompts: Vec<Vec<u32>>,
}

impl RemoteSource for RecurrentRemote {
    fn reach(&self, domain: DomainTag, tokens: &[u32], limit: Boundary) -> Option<Boundary> {
        if domain != self.domain {
            return None;
        }
        let common = |held: &Vec<u32>| {
            held.iter().zip(tokens).take_while(|(held, wanted)| held == wanted).count()
        };
        let longest = self.prompts.iter().map(common).max()?;
        let longest = longest.min(limit.tokens().index());
        Some(self.model.block.boundary_floor(Tokens::new(longest as u32)))
    }

    fn fetch(&self, _: DomainTag, tokens: &[u32], from: Boundary, to: Boundary) -> RemoteState {
        self.model.remote_state(&tokens[..to.tokens().index()], from)
    }
}
