//! Plans of real layouts: published counts, and every move against a naive byte walk.

use crate::twin::{Twin, image_walk, restore, store, unit_walk};
use statepages_copy::{CopyBackend, CopyPlan, CopyState, HostBackend, Pieces, TILE_BYTES};
use statepages_geometry::{
    BLOCK_TOKENS, CacheConfig, CacheOptions, Dsv4Geometry, IndexerFormat, KvFormat,
};
use statepages_page::{Boundary, ImageRule, MOVE_BYTES, MaintenanceOps, StateLayout};

type Formats = (KvFormat, IndexerFormat);
const FP8: Formats = (KvFormat::Fp8, IndexerFormat::Fp8);
const FP4: Formats = (KvFormat::Fp8, IndexerFormat::Fp4);
const BF16: Formats = (KvFormat::Bf16, IndexerFormat::Fp8);
const F32: Formats = (KvFormat::F32, IndexerFormat::F32);

fn layout(config: &CacheConfig, formats: Formats, drafts: u32, image: ImageRule) -> StateLayout {
    let (kv, indexer) = formats;
    let options = CacheOptions {
        kv,
        indexer,
        draft_tokens: drafts,
        block: BLOCK_TOKENS,
        dcp_world_size: 1,
        image,
    };
    Dsv4Geometry::new(config, &options).unwrap().layout().clone()
}

fn spans_and_tiles(layout: &StateLayout) -> (usize, usize) {
    let plan = CopyPlan::new(layout);
    (plan.spans().len(), plan.tiles(TILE_BYTES).count())
}

#[test]
fn published_counts() {
    let pro = CacheConfig::v4_pro();
    let flash = CacheConfig::v4_flash();
    let spark = CacheConfig::v4_flash_dspark();
    let mini = CacheConfig::mini();
    let small = CacheConfig {
        head_dim: 64,
        qk_rope_head_dim: 16,
        index_head_dim: 32,
        ..CacheConfig::mini()
    };
    let packed = CacheConfig { head_dim: 128, qk_rope_head_dim: 64, ..small.clone() };
    for (config, formats, drafts, segments, spans, tiles) in [
        (&pro, FP8, 0, Some(3), 154, 1975),
        (&pro, FP8, 1, Some(121), 281, 2177),
        (&pro, FP8, 3, None, 281, 2337),
        (&pro, FP4, 0, None, 313, 1984),
        (&pro, BF16, 0, None, 126, 2699),
        (&flash, FP8, 0, None, 118, 1404),
        (&flash, FP8, 1, None, 196, 1533),
        (&flash, BF16, 0, None, 90, 1908),
        (&spark, BF16, 5, Some(41), 151, 2342),
        (&spark, FP8, 5, None, 219, 1859),
        (&mini, FP8, 0, Some(3), 27, 181),
        (&mini, FP8, 1, Some(7), 32, 189),
        (&small, BF16, 0, Some(2), 17, 39),
        (&small, BF16, 1, Some(4), 20, 42),
        (&packed, FP8, 0, Some(4), 28, 74),
        (&packed, FP8, 1, Some(8), 32, 78),
    ] {
        let layout = layout(config, formats, drafts, ImageRule::Carried);
        assert_eq!(spans_and_tiles(&layout), (spans, tiles), "{}", layout.id);
        if let Some(segments) = segments {
            assert_eq!(layout.image.segments().len(), segments, "{}", layout.id);
        }
    }
    let whole = |drafts| layout(&pro, FP8, drafts, ImageRule::Whole);
    assert_eq!(spans_and_tiles(&whole(0)), (515, 6657));
    assert_eq!(spans_and_tiles(&whole(1)), (546, 7024));
    let whole = layout(&spark, BF16, 5, ImageRule::Whole);
    let tiles = whole.image.image_bytes().get().div_ceil(TILE_BYTES);
    assert_eq!((tiles, spans_and_tiles(&whole).1), (5172, 5428));
}

#[test]
fn tiles_cover_every_span_once() {
    let layout = layout(&CacheConfig::mini(), FP8, 1, ImageRule::Live);
    let plan = CopyPlan::new(&layout);
    let mut next = vec![0; plan.spans().len()];
    for tile in plan.tiles(TILE_BYTES) {
        let next = &mut next[tile.span as usize];
        assert_eq!(*next, tile.start);
        assert!(tile.len > 0 && tile.len <= TILE_BYTES);
        *next += tile.len;
    }
    assert!(next.iter().zip(plan.spans()).all(|(&covered, span)| covered == span.len));
}

/// Spans, then pieces at a boundary, name the very bytes that the two streams pair, in order.
fn plan_equals_walk(layout: &StateLayout, boundary: Boundary) {
    let plan = CopyPlan::new(layout);
    let (image, units) = (image_walk(layout, boundary), unit_walk(layout));
    assert_eq!(image.len() as u64, plan.image_bytes().get());
    let mut at = 0;
    for span in plan.spans() {
        let segment = &layout.image.segments()[span.segment as usize];
        let mut target = span.region_offset as usize;
        for piece in Pieces::new(segment, span.segment_offset, span.len, boundary) {
            assert_eq!((piece.offset | piece.len) % MOVE_BYTES, 0, "16-byte moves");
            assert_eq!(target as u64 % MOVE_BYTES, 0, "16-byte moves");
            for byte in 0..piece.len as usize {
                let source = (usize::from(segment.plane()), piece.offset as usize + byte);
                assert_eq!(image[at], source);
                assert_eq!(units[at], (span.unit as usize, span.region as usize, target));
                at += 1;
                target += 1;
            }
        }
        assert_eq!(target as u64, span.region_offset + span.len);
    }
    assert_eq!(at, image.len());
}

/// A slot goes into units and from there into a poisoned slot: the bytes that the layout carries
/// arrive, every other byte of every page and slot stays.
fn round_trip(layout: &StateLayout, boundary: Boundary) {
    let units = layout.units_per_checkpoint().get();
    // Canonical order is not the order of ids, and units need not be adjacent.
    let ids: Vec<u32> = (0..units).map(|unit| (units - 1 - unit) * 2).collect();
    let mut twin = Twin::filled(layout, 2 * units, 2, u64::from(boundary.get()));
    for plane in &mut twin.slots[1] {
        plane.fill(0xA5);
    }
    let mut arena = twin.arena(layout);
    let mut backend = HostBackend::new(layout.clone());
    let mut ops = MaintenanceOps::default();
    store(&mut ops, layout, 0, boundary.get(), &ids);
    let ticket = backend.submit(&mut arena, &ops).unwrap();
    assert_eq!(backend.poll(&mut arena, ticket), Ok(CopyState::Done));
    twin.run(layout, &ops);
    let context = format!("{} at {boundary:?}", layout.id);
    twin.assert_equals(&arena, &context);

    ops.clear();
    restore(&mut ops, layout, 1, boundary.get(), &ids);
    backend.submit(&mut arena, &ops).unwrap();
    for (plane, byte) in image_walk(layout, boundary) {
        twin.slots[1][plane][byte] = twin.slots[0][plane][byte];
    }
    twin.assert_equals(&arena, &context);
}

/// One layer of each kind: all ways of addressing, few bytes.
fn few_layers() -> CacheConfig {
    CacheConfig {
        num_hidden_layers: 5,
        compress_ratios: vec![0, 128, 4, 128, 4, 0],
        head_dim: 128,
        qk_rope_head_dim: 64,
        index_head_dim: 32,
        ..CacheConfig::mini()
    }
}

/// Every residue of `P / 256` that a ring can see.
fn every_phase(formats: Formats) {
    for drafts in [0, 1, 3, 5] {
        let ring = 128 + drafts;
        for rule in [ImageRule::Whole, ImageRule::Carried] {
            let layout = layout(&few_layers(), formats, drafts, rule);
            plan_equals_walk(&layout, Boundary::from_raw(256));
            round_trip(&layout, Boundary::from_raw(256));
        }
        let layout = layout(&few_layers(), formats, drafts, ImageRule::Live);
        for blocks in 1..=ring {
            plan_equals_walk(&layout, Boundary::from_raw(blocks * 256));
            if blocks % 8 == 1 || (drafts == 1 && formats == FP8) {
                round_trip(&layout, Boundary::from_raw(blocks * 256));
            }
        }
        let late = Boundary::from_raw(u32::MAX - u32::MAX % 256);
        round_trip(&layout, late);
    }
}

#[test]
fn every_phase_fp8() {
    every_phase(FP8);
}

#[test]
fn every_phase_bf16() {
    every_phase(BF16);
}

#[test]
fn every_phase_f32() {
    every_phase(F32);
}

#[test]
fn production_rows_round_trip() {
    for (config, formats, drafts) in [
        (CacheConfig::mini(), FP8, 1),
        (CacheConfig::mini(), FP4, 3),
        (CacheConfig::v4_pro(), FP8, 1),
        (CacheConfig::v4_flash_dspark(), BF16, 5),
    ] {
        for rule in [ImageRule::Whole, ImageRule::Carried, ImageRule::Live] {
            let layout = layout(&config, formats, drafts, rule);
            round_trip(&layout, Boundary::from_raw(256 * 37));
        }
    }
}

/// The image is the same bytes whatever the ring: what a live image of one draft count holds, one
/// of another count holds too.
#[test]
fn live_images_do_not_depend_on_the_ring() {
    let orders = [0, 1, 3, 5].map(|drafts| {
        let layout = layout(&few_layers(), FP8, drafts, ImageRule::Live);
        let plan = CopyPlan::new(&layout);
        plan.spans().to_vec()
    });
    assert!(orders.iter().all(|spans| *spans == orders[0]));
}
