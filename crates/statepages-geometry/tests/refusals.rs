//! What start-up refuses, by name, and what a budget holds.

use statepages_geometry::{
    BLOCK_TOKENS, Budget, CacheConfig, CacheOptions, CapacityError, Dsv4Geometry, GeometryError,
    IndexerFormat, KvFormat,
};
use statepages_page::{BlockSize, Bytes, ImageRule, Pages};

fn options() -> CacheOptions {
    CacheOptions {
        kv: KvFormat::Fp8,
        indexer: IndexerFormat::Fp8,
        draft_tokens: 0,
        block: BLOCK_TOKENS,
        dcp_world_size: 1,
        image: ImageRule::Live,
    }
}

fn refused(config: &CacheConfig, options: &CacheOptions) -> (GeometryError, String) {
    let error = Dsv4Geometry::new(config, options).unwrap_err();
    let text = error.to_string();
    (error, text)
}

fn with_ratios(ratios: &[u32]) -> CacheConfig {
    CacheConfig {
        num_hidden_layers: ratios.len() as u32 - 1,
        compress_ratios: ratios.to_vec(),
        ..CacheConfig::mini()
    }
}

fn with_block(tokens: u32) -> CacheOptions {
    CacheOptions { block: BlockSize::new(tokens).unwrap(), ..options() }
}

#[test]
fn ratio_that_does_not_divide_the_checkpoint_alignment() {
    let (error, text) = refused(&with_ratios(&[0, 4, 96, 0]), &options());
    assert_eq!(error, GeometryError::RatioMisaligned { layer: 2, ratio: 96, alignment: 256 });
    assert!(text.contains("compress_ratios[2]") && text.contains("256") && text.contains("96"));
    let (error, _) = refused(&with_ratios(&[128, 0]), &with_block(192));
    assert_eq!(error, GeometryError::RatioMisaligned { layer: 0, ratio: 128, alignment: 192 });
    // Two ranks make the alignment whole, but a block would still hold half an entry too many.
    let options = CacheOptions { dcp_world_size: 2, ..with_block(192) };
    let (error, _) = refused(&with_ratios(&[128, 0]), &options);
    assert_eq!(error, GeometryError::RatioSplitsBlock { layer: 0, ratio: 128, block: 192 });
    let (error, _) = refused(&with_ratios(&[64, 0]), &self::options());
    assert_eq!(error, GeometryError::UnknownRatio { layer: 0, got: 64 });
}

#[test]
fn block_smaller_than_the_window_under_live() {
    let csa = with_ratios(&[4, 0]);
    let (error, text) = refused(&csa, &with_block(64));
    assert_eq!(error, GeometryError::WindowExceedsBoundary { window: 128, alignment: 64 });
    assert!(text.contains("128") && text.contains("64"));
    let wider = CacheConfig { sliding_window: 129, ..csa.clone() };
    let (error, _) = refused(&wider, &with_block(128));
    assert_eq!(error, GeometryError::WindowExceedsBoundary { window: 129, alignment: 128 });
    assert!(Dsv4Geometry::new(&csa, &with_block(128)).is_ok(), "one block is one window");
    let carried = CacheOptions { image: ImageRule::Carried, ..with_block(64) };
    assert!(Dsv4Geometry::new(&csa, &carried).is_ok(), "only position order needs the window");
}

#[test]
fn h4_ring_smaller_than_window_and_drafts() {
    let options = CacheOptions { draft_tokens: 4, ..options() };
    let geometry = Dsv4Geometry::new(&CacheConfig::v4_pro(), &options).unwrap();
    assert_eq!(geometry.ring(), 132);
    assert_eq!(geometry.require_ring(4), Ok(()));
    let error = geometry.require_ring(5).unwrap_err();
    assert_eq!(error, GeometryError::RingTooSmall { expected: 133, got: 132 });
}

#[test]
fn numbers_that_make_no_cache() {
    let mini = CacheConfig::mini;
    let base = options();
    let bf16 = CacheOptions { kv: KvFormat::Bf16, ..base };
    let fp4 = CacheOptions { indexer: IndexerFormat::Fp4, ..base };
    for (config, options, field) in [
        (CacheConfig { num_hidden_layers: 0, ..mini() }, base, "num_hidden_layers"),
        (CacheConfig { sliding_window: 0, ..mini() }, base, "sliding_window"),
        (CacheConfig { head_dim: 1 << 20, ..mini() }, base, "head_dim"),
        (CacheConfig { num_hidden_layers: 6, ..mini() }, base, "compress_ratios"),
        (CacheConfig { qk_rope_head_dim: 514, ..mini() }, base, "qk_rope_head_dim"),
        (CacheConfig { qk_rope_head_dim: 63, ..mini() }, base, "qk_rope_head_dim"),
        // 512 columns without rotation leave no room for scales; 480 are no whole groups.
        (CacheConfig { qk_rope_head_dim: 0, ..mini() }, base, "head_dim"),
        (CacheConfig { qk_rope_head_dim: 32, ..mini() }, base, "head_dim"),
        // 576 columns and 9 scales would fit 592 bytes; each scale is written twice.
        (CacheConfig { head_dim: 592, qk_rope_head_dim: 16, ..mini() }, base, "head_dim"),
        (CacheConfig { head_dim: 68, qk_rope_head_dim: 4, ..mini() }, bf16, "KV row"),
        (CacheConfig { index_head_dim: 130, ..mini() }, base, "CSA indexer state row"),
        (CacheConfig { index_head_dim: 144, ..mini() }, fp4, "fp4 indexer row"),
        (with_ratios(&[0, 0, 0]), base, "compress_ratios"),
        (mini(), CacheOptions { draft_tokens: 5000, ..base }, "draft_tokens"),
        (mini(), CacheOptions { dcp_world_size: 0, ..base }, "dcp_world_size"),
    ] {
        let (error, text) = refused(&config, &options);
        assert!(text.contains(field), "{error:?}: {text}");
        assert!(text.contains("expected") && text.contains("got"), "{text}");
    }
    let mut spark = CacheConfig::v4_flash_dspark();
    spark.compress_ratios[44] = 4;
    let (error, _) = refused(&spark, &base);
    assert_eq!(error, GeometryError::DraftRatio { layer: 44, got: 4 });
}

/// Small fp8 rows whose block of indexer rows is no multiple of 16 bytes.
#[test]
fn indexer_block_must_be_copyable() {
    let config = CacheConfig { index_head_dim: 20, ..with_ratios(&[4, 0]) };
    let whole = |tokens| CacheOptions { image: ImageRule::Whole, ..with_block(tokens) };
    let (error, text) = refused(&config, &whole(4));
    assert!(matches!(error, GeometryError::Layout(_)), "{error:?}");
    assert!(text.contains("indexer") && text.contains("24"), "{text}");
    assert!(Dsv4Geometry::new(&config, &whole(16)).is_ok(), "four rows of 24 bytes");
}

#[test]
fn layout_id_names_everything_that_moves_a_byte() {
    let base = Dsv4Geometry::new(&CacheConfig::v4_pro(), &options()).unwrap();
    let id = base.layout().id.clone();
    assert_eq!(id, Dsv4Geometry::new(&CacheConfig::v4_pro(), &options()).unwrap().layout().id);
    let wider = CacheConfig { sliding_window: 127, ..CacheConfig::v4_pro() };
    let mut ratios = CacheConfig::v4_pro();
    ratios.compress_ratios.swap(1, 2);
    for (config, options) in [
        (CacheConfig::v4_flash(), options()),
        (ratios, options()),
        (wider, CacheOptions { draft_tokens: 1, ..options() }),
        (CacheConfig::v4_pro(), CacheOptions { draft_tokens: 1, ..options() }),
        (CacheConfig::v4_pro(), CacheOptions { kv: KvFormat::Bf16, ..options() }),
        (CacheConfig::v4_pro(), CacheOptions { indexer: IndexerFormat::Fp4, ..options() }),
        (CacheConfig::v4_pro(), CacheOptions { image: ImageRule::Carried, ..options() }),
        (CacheConfig::v4_pro(), with_block(512)),
    ] {
        let other = Dsv4Geometry::new(&config, &options).unwrap();
        assert_ne!(id, other.layout().id);
        assert_ne!(id.tag(), other.layout().id.tag());
    }
}

#[test]
fn capacity_of_a_budget() {
    let pro = Dsv4Geometry::new(&CacheConfig::v4_pro(), &options()).unwrap();
    let memory = Bytes::new(80 << 30);
    let capacity = pro.capacity(Budget { memory, max_seqs: 256 }).unwrap();
    // (80 GiB - 256 * 25,395,200 B) / 1,521,920 B
    assert_eq!((capacity.slots, capacity.pages), (256, Pages::new(52169)));
    assert_eq!((capacity.images, capacity.tokens), (13042, 52169 * 256));
    assert_eq!(capacity.slot_bytes + capacity.page_bytes + capacity.unused, memory);

    let of = |memory, max_seqs| pro.capacity(Budget { memory: Bytes::new(memory), max_seqs });
    assert_eq!(of(80 << 30, 0), Err(CapacityError::NoSequences));
    assert!(matches!(of(1 << 30, 256), Err(CapacityError::SlotsExceedMemory { .. })));
    assert!(matches!(of(u64::MAX, 1), Err(CapacityError::TooManyPages { .. })));
    let needed = 25395200 + 4 * 1521920;
    let error = of(needed - 1, 1).unwrap_err();
    assert_eq!(
        error,
        CapacityError::PoolBelowOneImage {
            pages: Pages::new(3),
            units: Pages::new(4),
            memory: Bytes::new(needed - 1),
            needed: Bytes::new(needed),
        }
    );
    assert!(error.to_string().contains(&needed.to_string()), "{error}");
    assert_eq!(of(needed, 1).unwrap().images, 1);
}
