//! The draft layer: its logits are the same bits however its request was computed, resumed ones
//! included.

mod harness;

use std::sync::{Arc, LazyLock};

use harness::{Rig, Rows, first_difference, geometry, pages, small_config, tokens};
use statepages_copy::HostArena;
use statepages_geometry::{BLOCK_TOKENS, CacheOptions, Dsv4Geometry};
use statepages_model::{
    ForwardError, Isa, Logits, LogitsWanted, Model, RunOptions, SequenceChunk, Weights,
};
use statepages_page::{Boundary, ImageRule, PageId, Pages, SlotId, Tokens};

static SMALL: LazyLock<Arc<Weights>> =
    LazyLock::new(|| Arc::new(Weights::seeded(&small_config(), 3).expect("weights")));

struct Drafting {
    model: Model,
    arena: HostArena,
    geometry: Dsv4Geometry,
}

impl Drafting {
    fn new(rows: Rows, threads: usize) -> Self {
        let geometry = geometry(SMALL.config(), rows, 1);
        let threads = std::num::NonZeroUsize::new(threads).expect("a thread");
        let options = RunOptions { isa: Isa::Auto, threads };
        Self {
            model: Model::new(SMALL.clone(), &geometry, options).expect("a model").drafting(),
            arena: HostArena::new(geometry.layout(), Pages::new(harness::PAGES), harness::SLOTS)
                .expect("memory"),
            geometry,
        }
    }

    /// Trunk and draft logits of `ids[start..end]`, whose next tokens are those of `ids`.
    fn chunk(
        &mut self,
        slot: u32,
        pages: &[PageId],
        ids: &[u32],
        (start, end): (usize, usize),
        before: Option<u32>,
    ) -> [Vec<f32>; 2] {
        let batch = [SequenceChunk {
            slot: SlotId::new(slot),
            pages,
            start: start as u32,
            tokens: &ids[start..end],
            before,
            logits: LogitsWanted::All,
        }];
        let mut out = [Logits::new(), Logits::new()];
        self.model.forward(&mut self.arena, &batch, &mut out[0]).expect("a sound batch");
        let next = [ids[end]];
        self.model.draft(&mut self.arena, &batch, &next, &mut out[1]).expect("a sound draft");
        out.map(|logits| logits.sequence(0).to_vec())
    }

    /// Draft logits of all tokens but the last, computed in chunks.
    fn request(&mut self, slot: u32, pages: &[PageId], ids: &[u32], chunk: usize) -> Vec<f32> {
        let (mut logits, last) = (Vec::new(), ids.len() - 1);
        for start in (0..last).step_by(chunk) {
            let range = (start, last.min(start + chunk));
            logits.append(&mut self.chunk(slot, pages, ids, range, None)[1]);
        }
        logits
    }
}

#[test]
fn every_chunk_size() {
    let ids = tokens(1, 301, SMALL.config().vocab_size);
    for rows in [Rows::F32, Rows::Fp8Fp4] {
        let want = Drafting::new(rows, 1).request(0, &pages(0, 1, 2), &ids, 300);
        assert!(want.iter().all(|x| x.is_finite()));
        let mut rig = Drafting::new(rows, 2);
        for chunk in [1, 2, 7, 128, 129, 255] {
            let got = rig.request(1, &pages(chunk as u32, 5, 2), &ids, chunk);
            assert_eq!(first_difference(&got, &want), None, "{rows:?}, chunks of {chunk}");
        }
    }
}

/// The row before a boundary follows from the token behind it: the request that stored the image
/// went on otherwise than the one that resumes from it.
#[test]
fn resuming_rebuilds_the_row_before_the_boundary() {
    let vocab = SMALL.config().vocab_size as usize;
    let ids = tokens(2, 500, vocab as u32);
    let mut theirs = ids[..256].to_vec();
    theirs.extend(tokens(3, 40, vocab as u32));
    for rows in Rows::SERVED {
        let want = Drafting::new(rows, 1).request(0, &pages(0, 1, 2), &ids, 499);
        for rule in [ImageRule::Whole, ImageRule::Carried, ImageRule::Live] {
            let mut rig = Drafting::new(rows, 2);
            let options = CacheOptions { image: rule, ..*rig.geometry.options() };
            let image = Dsv4Geometry::new(rig.geometry.config(), &options).expect("caches");
            rig.request(2, &pages(3, 1, 2), &theirs[..257], 256);
            let boundary = BLOCK_TOKENS.boundary_at(Tokens::new(256)).expect("a boundary");
            carry(&mut rig, &image, boundary);
            let table = [pages(3, 1, 1), pages(9, 1, 1)].concat();
            let range = (256, 499);
            let resumed =
                |rig: &mut Drafting, slot, before| rig.chunk(slot, &table, &ids, range, before);
            let [trunk, draft] = resumed(&mut rig, 4, Some(ids[255]));
            let want = &want[256 * vocab..];
            assert_eq!(first_difference(&draft, want), None, "{rows:?}, {rule:?}");
            // Without it the trunk is the same, and the draft is not.
            let [same, other] = resumed(&mut rig, 5, None);
            assert_eq!(first_difference(&trunk, &same), None);
            assert!(first_difference(&other, want).is_some(), "{rows:?}: the row shows");
        }
    }
}

/// Copies the image of slot 2 to the slots 4 and 5.
fn carry(rig: &mut Drafting, image: &Dsv4Geometry, boundary: Boundary) {
    for segment in image.layout().image.segments() {
        for (plane, bytes) in harness::ranges(segment, boundary) {
            let from = rig.arena.slot(plane, SlotId::new(2))[bytes.clone()].to_vec();
            for to in [4, 5].map(SlotId::new) {
                rig.arena.slot_mut(plane, to)[bytes.clone()].copy_from_slice(&from);
            }
        }
    }
}

#[test]
fn drafts_follow_forwards() {
    let mut rig = Drafting::new(Rows::Bf16, 1);
    let table = pages(0, 1, 1);
    let chunk = SequenceChunk {
        slot: SlotId::new(0),
        pages: &table,
        start: 0,
        tokens: &[1, 2],
        before: None,
        logits: LogitsWanted::Last,
    };
    let mut out = Logits::new();
    let mut draft = |rig: &mut Drafting, next: &[u32]| {
        rig.model.draft(&mut rig.arena, &[chunk], next, &mut out)
    };
    assert_eq!(draft(&mut rig, &[3]), Err(ForwardError::NotForwarded));
    let mut logits = Logits::new();
    rig.model.forward(&mut rig.arena, &[chunk], &mut logits).expect("sound");
    assert_eq!(draft(&mut rig, &[]), Err(ForwardError::NotForwarded));
    let large = Err(ForwardError::Token { sequence: 0, got: 40, vocab: 40 });
    assert_eq!(draft(&mut rig, &[40]), large);
    assert_eq!(draft(&mut rig, &[3]), Ok(()));
    assert_eq!(draft(&mut rig, &[3]), Err(ForwardError::NotForwarded));
    let before = SequenceChunk { before: Some(1), ..chunk };
    let got = rig.model.forward(&mut rig.arena, &[before], &mut logits);
    assert_eq!(got, Err(ForwardError::NothingBefore { sequence: 0 }));

    let mut config = small_config();
    config.cache.num_nextn_predict_layers = 0;
    config.cache.compress_ratios.pop();
    let weights = Arc::new(Weights::seeded(&config, 3).expect("weights"));
    let mut rig = Rig::new(&weights, Rows::Bf16, Isa::Auto, 1);
    let got = rig.model.draft(&mut rig.arena, &[chunk], &[3], &mut logits);
    assert_eq!(got, Err(ForwardError::NoDraftLayer));
    let mut rig = Rig::new(&SMALL, Rows::Bf16, Isa::Auto, 1);
    rig.model.forward(&mut rig.arena, &[chunk], &mut logits).expect("sound");
    let got = rig.model.draft(&mut rig.arena, &[chunk], &[3], &mut logits);
    assert_eq!(got, Err(ForwardError::NotDrafting));
}
