//! Addresses: no two live things share a byte, all lie inside, and the image rules name the same
//! bytes as the forward does.

use std::ops::Range;

use statepages_geometry::{
    BLOCK_TOKENS, CacheConfig, CacheOptions, Dsv4Geometry, IndexerFormat, KvFormat, LayerCache,
    LayerClass, StateField,
};
use statepages_page::{BlockSize, Boundary, ImageRule, Segment, Tokens};

const FIELDS: [StateField; 7] = [
    StateField::CsaMainKv,
    StateField::CsaMainScore,
    StateField::CsaIndexKv,
    StateField::CsaIndexScore,
    StateField::HcaMainKv,
    StateField::HcaMainScore,
    StateField::DraftWindow,
];

const FORMATS: [(KvFormat, IndexerFormat); 5] = [
    (KvFormat::Fp8, IndexerFormat::Fp8),
    (KvFormat::Fp8, IndexerFormat::Fp4),
    (KvFormat::Bf16, IndexerFormat::Fp8),
    (KvFormat::Bf16, IndexerFormat::Bf16),
    (KvFormat::F32, IndexerFormat::F32),
];

fn options(
    formats: (KvFormat, IndexerFormat),
    draft_tokens: u32,
    image: ImageRule,
) -> CacheOptions {
    let (kv, indexer) = formats;
    CacheOptions { kv, indexer, draft_tokens, block: BLOCK_TOKENS, dcp_world_size: 1, image }
}

/// Counts the owners of every byte of a list of buffers.
struct Owners(Vec<Vec<u8>>);

impl Owners {
    fn new(sizes: impl Iterator<Item = u64>) -> Self {
        Self(sizes.map(|size| vec![0; size as usize]).collect())
    }

    fn claim(&mut self, buffer: usize, bytes: Range<usize>) {
        assert!(!bytes.is_empty());
        for owner in &mut self.0[buffer][bytes] {
            *owner += 1;
        }
    }

    fn at_most_one(&self) {
        assert!(self.0.iter().flatten().all(|&owners| owners <= 1), "two things share a byte");
    }

    fn total(&self) -> u64 {
        self.0.iter().flatten().map(|&owners| u64::from(owners)).sum()
    }
}

fn fields_of(layer: LayerCache) -> impl Iterator<Item = StateField> {
    FIELDS.into_iter().filter(move |field| field.class() == layer.class)
}

fn page_owners(geometry: &Dsv4Geometry) -> Owners {
    let mut owners = Owners::new(geometry.layout().page.regions().iter().map(|r| r.len.get()));
    for &layer in geometry.layers() {
        if matches!(layer.class, LayerClass::Dense | LayerClass::Draft) {
            continue;
        }
        let entries = geometry.entries_per_block(layer);
        // The third block of a request: the addresses in a page do not depend on the block.
        for entry in 2 * entries..3 * entries {
            for plane in 0..geometry.planes() {
                let row = geometry.compressed_row(layer, entry, plane);
                assert_eq!(row.block, 2);
                assert_eq!(row.bytes.len(), geometry.row_bytes(plane));
                owners.claim(row.region, row.bytes);
            }
            if layer.class == LayerClass::Csa {
                let row = geometry.indexer_row(layer, entry);
                for bytes in [Some(row.data), row.scales].into_iter().flatten() {
                    assert_eq!(bytes.block, 2);
                    owners.claim(bytes.region, bytes.bytes);
                }
            }
        }
    }
    owners
}

fn slot_owners(geometry: &Dsv4Geometry) -> Owners {
    let mut owners = Owners::new(geometry.layout().slot.planes().iter().map(|p| p.len.get()));
    let start = 1000;
    for &layer in geometry.layers() {
        if layer.class != LayerClass::Draft {
            for position in start..start + geometry.ring() {
                for plane in 0..geometry.planes() {
                    let row = geometry.window_row(layer, Tokens::new(position), plane);
                    owners.claim(row.plane, row.bytes);
                }
            }
        }
        window_runs(geometry, layer, start);
        for field in fields_of(layer) {
            for position in start..start + geometry.state_ring(layer, field) {
                let row = geometry.state_row(layer, field, Tokens::new(position));
                owners.claim(row.plane, row.bytes);
            }
        }
    }
    owners
}

/// Window rows lie one behind the other as far as the geometry says, and no further.
fn window_runs(geometry: &Dsv4Geometry, layer: LayerCache, start: u32) {
    let planes = if layer.class == LayerClass::Draft { 1 } else { geometry.planes() };
    for position in start..start + 2 * geometry.ring() {
        let row =
            |i: u32, plane| geometry.window_row(layer, Tokens::new(position + i), plane).bytes;
        let run = geometry.window_run(layer, Tokens::new(position));
        assert!(run >= 1);
        for plane in 0..planes {
            assert!((1..run).all(|i| row(i, plane).start == row(i - 1, plane).end));
        }
        // Where a class has one layer, the next stride may happen to follow.
        let alone =
            geometry.layers().iter().filter(|other| other.class == layer.class).count() == 1;
        assert!(alone || row(run, 0).start != row(run - 1, 0).end, "{layer:?} at {position}");
    }
}

/// Pages are full to the byte; slots hold all rings with only padding left over.
fn unique(geometry: &Dsv4Geometry) {
    let page = page_owners(geometry);
    page.at_most_one();
    assert_eq!(page.total(), geometry.layout().page.page_bytes().get(), "a hole in the page");
    let slot = slot_owners(geometry);
    slot.at_most_one();
    assert!(slot.total() <= geometry.layout().slot.slot_bytes().get());
}

#[test]
fn no_two_things_share_a_byte_mini() {
    for formats in FORMATS {
        for drafts in [0, 1, 3, 5, 63, 64, 65] {
            let options = options(formats, drafts, ImageRule::Live);
            unique(&Dsv4Geometry::new(&CacheConfig::mini(), &options).unwrap());
        }
    }
}

#[test]
fn no_two_things_share_a_byte_published() {
    let fp8 = (KvFormat::Fp8, IndexerFormat::Fp8);
    let bf16 = (KvFormat::Bf16, IndexerFormat::Fp8);
    for (config, formats, drafts) in [
        (CacheConfig::v4_pro(), fp8, 1),
        (CacheConfig::v4_flash(), bf16, 3),
        (CacheConfig::v4_flash_dspark(), bf16, 5),
        (CacheConfig::v4_flash_dspark(), fp8, 5),
    ] {
        unique(&Dsv4Geometry::new(&config, &options(formats, drafts, ImageRule::Live)).unwrap());
    }
}

/// Other windows, blocks and mixes of layers, a compressing MTP block among them.
#[test]
fn no_two_things_share_a_byte_odd_shapes() {
    for ratios in [vec![4, 0], vec![128, 0], vec![0, 4, 4, 4], vec![128, 4, 128, 128]] {
        for (window, block, dcp) in [(128, 256, 1), (100, 128, 1), (17, 128, 2), (300, 384, 1)] {
            let config = CacheConfig {
                num_hidden_layers: ratios.len() as u32 - 1,
                compress_ratios: ratios.clone(),
                sliding_window: window,
                ..CacheConfig::mini()
            };
            for drafts in 0..4 {
                let mut options = options(FORMATS[0], drafts, ImageRule::Live);
                options.block = BlockSize::new(block).unwrap();
                options.dcp_world_size = dcp;
                unique(&Dsv4Geometry::new(&config, &options).unwrap());
            }
        }
    }
}

/// Fields start at multiples of 256 bytes, draft windows at whole rows of their own, in every slot
/// of a plane.
#[test]
fn fields_are_aligned_in_every_slot() {
    let odd = CacheConfig { index_head_dim: 36, ..CacheConfig::mini() };
    let spark = CacheConfig::v4_flash_dspark();
    // Packed rows narrower than a draft window row, and few enough layers that the windows move
    // into the narrow plane.
    let small_spark = CacheConfig {
        num_hidden_layers: 2,
        compress_ratios: vec![128, 128, 0, 0, 0],
        ..spark.clone()
    };
    for config in [odd, spark, small_spark] {
        for drafts in 0..8 {
            let options = options(FORMATS[0], drafts, ImageRule::Carried);
            let geometry = Dsv4Geometry::new(&config, &options).unwrap();
            for field in FIELDS {
                let mut layers = geometry.layers().iter();
                let Some(&layer) = layers.find(|layer| layer.class == field.class()) else {
                    continue;
                };
                let first = geometry.state_row(layer, field, Tokens::new(0));
                let plane = geometry.layout().slot.planes()[first.plane].len.get();
                let align = match field {
                    StateField::DraftWindow => 1024,
                    _ => 256,
                };
                assert_eq!(first.bytes.start as u64 % align, 0, "{field:?}, {drafts} drafts");
                assert_eq!(plane % align, 0, "{field:?}, {drafts} drafts");
            }
        }
    }
}

/// Marks the bytes that an image reads at a boundary.
fn image_bytes(geometry: &Dsv4Geometry, boundary: Boundary) -> Owners {
    let mut owners = Owners::new(geometry.layout().slot.planes().iter().map(|p| p.len.get()));
    for segment in geometry.layout().image.segments() {
        let plane = usize::from(segment.plane());
        match *segment {
            Segment::Fixed { offset, len, .. } => {
                owners.claim(plane, offset as usize..(offset + len) as usize);
            }
            Segment::Ring { run, .. } => {
                for row in 0..run.rows {
                    let start = run.row_offset(row, boundary) as usize;
                    owners.claim(plane, start..start + run.row_bytes as usize);
                }
            }
        }
    }
    owners
}

/// Marks the bytes that a resumer reads at a boundary, by the forward's own addresses: the window
/// before it, and before the first CSA pool the previous block's half of the columns.
fn resumed_bytes(geometry: &Dsv4Geometry, boundary: Boundary) -> Owners {
    let mut owners = Owners::new(geometry.layout().slot.planes().iter().map(|p| p.len.get()));
    let p = boundary.get();
    for &layer in geometry.layers() {
        let planes = if layer.class == LayerClass::Draft { 1 } else { geometry.planes() };
        for position in p - geometry.config().sliding_window..p {
            for plane in 0..planes {
                let row = geometry.window_row(layer, Tokens::new(position), plane);
                owners.claim(row.plane, row.bytes);
            }
        }
        if layer.class == LayerClass::Csa {
            for field in fields_of(layer) {
                for position in p - 4..p {
                    let row = geometry.state_row(layer, field, Tokens::new(position));
                    let half = row.bytes.len() / 2;
                    owners.claim(row.plane, row.bytes.start..row.bytes.start + half);
                }
            }
        }
    }
    owners
}

#[test]
fn live_image_is_what_a_resumer_reads() {
    let (mini, spark) = (CacheConfig::mini(), CacheConfig::v4_flash_dspark());
    for (config, formats) in [(&mini, FORMATS[0]), (&mini, FORMATS[4]), (&spark, FORMATS[2])] {
        for drafts in [0, 1, 3, 5] {
            let geometry =
                Dsv4Geometry::new(config, &options(formats, drafts, ImageRule::Live)).unwrap();
            for blocks in [1, 2, 7, 129] {
                let boundary = Boundary::from_raw(blocks * 256);
                let (image, resumed) =
                    (image_bytes(&geometry, boundary), resumed_bytes(&geometry, boundary));
                assert!(image.0 == resumed.0, "drafts {drafts}, boundary {boundary:?}");
            }
        }
    }
}

/// `carried` holds whatever is read at any boundary; only whole rings beside it.
#[test]
fn carried_image_covers_what_a_resumer_reads() {
    for config in [CacheConfig::mini(), CacheConfig::v4_flash_dspark()] {
        for drafts in [0, 1, 5] {
            let geometry =
                Dsv4Geometry::new(&config, &options(FORMATS[0], drafts, ImageRule::Carried))
                    .unwrap();
            let carried = image_bytes(&geometry, Boundary::ZERO);
            carried.at_most_one();
            for blocks in 1..12 {
                let resumed = resumed_bytes(&geometry, Boundary::from_raw(blocks * 256));
                let pairs = resumed.0.iter().flatten().zip(carried.0.iter().flatten());
                assert!(pairs.into_iter().all(|(read, held)| read <= held));
            }
        }
    }
}

/// A worked example: V4-Pro with fp8 rows and one draft, so a ring of 129.
#[test]
fn worked_example() {
    let options = options(FORMATS[0], 1, ImageRule::Carried);
    let pro = Dsv4Geometry::new(&CacheConfig::v4_pro(), &options).unwrap();
    let (csa, hca, mtp) = (pro.layers()[4], pro.layers()[3], pro.layers()[61]);
    assert_eq!(csa, LayerCache { class: LayerClass::Csa, index: 1 });
    assert_eq!(hca, LayerCache { class: LayerClass::Hca, index: 2 });
    assert_eq!(mtp, LayerCache { class: LayerClass::Dense, index: 0 });

    let entry = pro.compressed_row(csa, 64 * 5 + 7, 1);
    assert_eq!((entry.block, entry.region, entry.bytes.start), (5, 1, (62 + 64 + 7) * 128));
    let entry = pro.compressed_row(hca, 2 * 5 + 1, 0);
    assert_eq!((entry.block, entry.region, entry.bytes.start), (5, 0, (2 * 2 + 1) * 512));

    let position = Tokens::new(1000);
    let window = pro.window_row(csa, position, 0).bytes.start;
    assert_eq!(window, (31992 + 4158 + 64 + 1920 + 33) * 512);
    assert_eq!(pro.window_row(mtp, position, 1).bytes.start, (31992 + 97) * 128);
    let state = pro.state_row(csa, StateField::CsaMainKv, position);
    assert_eq!((state.plane, state.bytes.start), (1, (9 + 1000 % 9) * 1024 * 4));
    let scores = pro.state_row(csa, StateField::CsaIndexScore, Tokens::new(0));
    assert_eq!(scores.bytes.start, 2488320 + 9 * 256 * 4);

    let row = pro.indexer_row(csa, 64 * 5 + 7);
    assert_eq!((row.data.region, row.data.bytes), (3, 7 * 128..8 * 128));
    assert_eq!(row.scales.unwrap().bytes, 64 * 128 + 7 * 4..64 * 128 + 8 * 4);
}
