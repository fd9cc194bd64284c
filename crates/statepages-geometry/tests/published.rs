//! The published byte counts, and those derived by rule for further configurations.

use statepages_geometry::{
    BLOCK_TOKENS, CacheConfig, CacheOptions, Dsv4Geometry, IndexerFormat, KvFormat,
};
use statepages_page::ImageRule;

fn geometry(
    config: &CacheConfig,
    (kv, indexer): (KvFormat, IndexerFormat),
    draft_tokens: u32,
    image: ImageRule,
) -> Dsv4Geometry {
    let options =
        CacheOptions { kv, indexer, draft_tokens, block: BLOCK_TOKENS, dcp_world_size: 1, image };
    Dsv4Geometry::new(config, &options).unwrap()
}

/// Page, slot and image bytes, and units per checkpoint.
fn sizes(geometry: &Dsv4Geometry) -> (u64, u64, u64, u32) {
    let layout = geometry.layout();
    (
        layout.page.page_bytes().get(),
        layout.slot.slot_bytes().get(),
        layout.image.image_bytes().get(),
        layout.units_per_checkpoint().get(),
    )
}

const FP8: (KvFormat, IndexerFormat) = (KvFormat::Fp8, IndexerFormat::Fp8);
const BF16: (KvFormat, IndexerFormat) = (KvFormat::Bf16, IndexerFormat::Fp8);

#[test]
fn whole_and_carried_images() {
    let pro = CacheConfig::v4_pro();
    let flash = CacheConfig::v4_flash();
    let spark = CacheConfig::v4_flash_dspark();
    let fp4 = (KvFormat::Fp8, IndexerFormat::Fp4);
    for (config, formats, drafts, page, slot, whole_units, image, units) in [
        (&pro, FP8, 0, 1521920, 25395200, 17, 7536640, 5),
        (&pro, FP8, 1, 1521920, 26782720, 18, 7883520, 6),
        (&pro, FP8, 3, 1521920, 27142400, 18, 8577280, 6),
        (&pro, fp4, 0, 1399040, 25395200, 19, 7536640, 6),
        (&pro, BF16, 0, 2283008, 26836992, 12, 10584064, 5),
        (&flash, FP8, 0, 1063168, 16711680, 16, 5324800, 6),
        (&flash, FP8, 1, 1063168, 17661440, 17, 5568000, 6),
        (&flash, BF16, 0, 1594624, 17973248, 12, 7487488, 5),
        (&spark, BF16, 5, 1594624, 21184512, 14, 9060352, 6),
        (&spark, FP8, 5, 1063168, 18557440, 18, 6864256, 7),
        (&CacheConfig::mini(), FP8, 0, 101376, 1802240, 18, 655360, 7),
        (&CacheConfig::mini(), FP8, 1, 101376, 1857280, 19, 679680, 7),
    ] {
        let whole = geometry(config, formats, drafts, ImageRule::Whole);
        assert_eq!(sizes(&whole), (page, slot, slot, whole_units));
        let carried = geometry(config, formats, drafts, ImageRule::Carried);
        assert_eq!(sizes(&carried), (page, slot, image, units));
    }
}

/// Smaller rows: the fp8 planes must hold scales, and slots must stay aligned in narrow planes.
#[test]
fn small_dims() {
    let small = |head_dim, rope, index| CacheConfig {
        head_dim,
        qk_rope_head_dim: rope,
        index_head_dim: index,
        ..CacheConfig::mini()
    };
    for (config, formats, drafts, page, slot, whole_units, image, units) in [
        (small(64, 16, 32), BF16, 0, 21504, 253952, 12, 122880, 6),
        (small(64, 16, 32), BF16, 1, 21504, 267008, 13, 126720, 6),
        (small(128, 64, 32), FP8, 0, 38400, 499712, 14, 237568, 7),
        (small(128, 64, 32), FP8, 1, 38400, 524800, 14, 244224, 7),
    ] {
        let whole = geometry(&config, formats, drafts, ImageRule::Whole);
        assert_eq!(sizes(&whole), (page, slot, slot, whole_units));
        let carried = geometry(&config, formats, drafts, ImageRule::Carried);
        assert_eq!(sizes(&carried), (page, slot, image, units));
    }
    // State that ends off the grid of 256 bytes: rows after it start on the grid.
    let csa = CacheConfig {
        num_hidden_layers: 3,
        compress_ratios: vec![4, 4, 4, 0],
        ..small(32, 16, 20)
    };
    let carried = geometry(&csa, BF16, 3, ImageRule::Carried);
    assert_eq!(carried.arena_rows(), 432);
    // Planes narrower than 128 bytes need slots of more than two rows' alignment.
    for (head_dim, rope) in [(128, 16), (128, 8), (128, 0)] {
        // Columns that do not split into groups of 64 have no fp8 form; bf16 and f32 have.
        let config = small(head_dim, rope, 32);
        for kv in [KvFormat::Bf16, KvFormat::F32] {
            aligned(&geometry(&config, (kv, IndexerFormat::F32), 1, ImageRule::Live));
        }
    }
    let narrow = CacheConfig { head_dim: 96, qk_rope_head_dim: 32, ..small(128, 64, 32) };
    aligned(&geometry(&narrow, FP8, 3, ImageRule::Live));
}

fn aligned(geometry: &Dsv4Geometry) {
    for plane in geometry.layout().slot.planes() {
        assert_eq!(plane.len.get() % 256, 0, "{plane:?}");
    }
}

#[test]
fn rows_of_v4_pro() {
    for (drafts, arena, entry, slot) in [(0, 31744, 7936, 39680), (1, 31992, 9855, 41848)] {
        let pro = geometry(&CacheConfig::v4_pro(), FP8, drafts, ImageRule::Carried);
        assert_eq!(pro.envelope_rows(), 1982);
        assert_eq!((pro.arena_rows(), pro.entry_rows(), pro.slot_rows()), (arena, entry, slot));
    }
    let spark = geometry(&CacheConfig::v4_flash_dspark(), BF16, 5, ImageRule::Carried);
    assert_eq!((spark.arena_rows(), spark.entry_rows(), spark.slot_rows()), (13769, 6918, 20688));
    assert_eq!(spark.layout().image.segments().len(), 41);
}

/// Position order makes the live image independent of the ring, hence of the draft tokens.
#[test]
fn live_images_do_not_depend_on_drafts() {
    for drafts in [0, 1, 3, 5] {
        let pro = geometry(&CacheConfig::v4_pro(), FP8, drafts, ImageRule::Live);
        let (page, _, image, units) = sizes(&pro);
        assert_eq!((page, image, units), (1521920, 5693440, 4));
        let flash = geometry(&CacheConfig::v4_flash(), FP8, drafts, ImageRule::Live);
        let (_, _, image, units) = sizes(&flash);
        assert_eq!((image, units), (4034560, 4));
        // 21 CSA layers, 43 windows of trunk rows and 3 draft windows, all of 128 bf16 rows.
        let spark = geometry(&CacheConfig::v4_flash_dspark(), BF16, drafts, ImageRule::Live);
        let (_, _, image, _) = sizes(&spark);
        assert_eq!(image, 21 * 20480 + 43 * 128 * 1024 + 3 * 128 * 1024);
    }
}

/// The formats of the forward's own tests: a bf16 indexer row is 256 bytes, an f32 one 512.
#[test]
fn plain_formats() {
    for (kv, indexer, row, index_row) in [
        (KvFormat::Bf16, IndexerFormat::Bf16, 1024, 256),
        (KvFormat::F32, IndexerFormat::F32, 2048, 512),
    ] {
        let mini = geometry(&CacheConfig::mini(), (kv, indexer), 0, ImageRule::Live);
        let (page, _, image, _) = sizes(&mini);
        assert_eq!(page, (2 * 2 + 2 * 64) * row + 2 * 64 * index_row);
        assert_eq!(image, 2 * 20480 + 6 * 128 * row);
    }
}
