//! What decides the bytes: the model's shape and the engine's choices, and their validation.

use statepages_page::{BlockSize, ImageRule, MOVE_BYTES};

use crate::{GeometryError, LayerCache, LayerClass};

/// Tokens that a CSA layer compresses into one entry.
pub const CSA_RATIO: u32 = 4;
/// Tokens that an HCA layer compresses into one entry.
pub const HCA_RATIO: u32 = 128;
/// The block size of every published V4 model.
pub const BLOCK_TOKENS: BlockSize = BlockSize::new(256).expect("not zero");

/// Columns that share one scale in an fp8 row of the KV cache.
const FP8_GROUP: u32 = 64;
/// Columns that share one scale in an fp4 row of the indexer cache.
const FP4_GROUP: u32 = 32;

/// What the draft layers at the end of `compress_ratios` are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DraftLayers {
    /// Multi-token-prediction blocks; their windows are rows like any other layer's.
    Mtp,
    /// DSpark blocks (configs with `dspark_block_size`); their windows are a state field with a
    /// format of its own.
    DSpark,
}

/// The fields of a public `config.json` that decide bytes, under their public names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheConfig {
    /// Layers of the trunk.
    pub num_hidden_layers: u32,
    /// Draft layers behind the trunk. They count even where no token is drafted.
    pub num_nextn_predict_layers: u32,
    /// What the draft layers are.
    pub draft_layers: DraftLayers,
    /// Tokens per compressed entry, by layer, draft layers last: 0 (window only), 4 (CSA) or 128
    /// (HCA).
    pub compress_ratios: Vec<u32>,
    /// Columns of a KV row.
    pub head_dim: u32,
    /// Rotary columns at the end of a KV row.
    pub qk_rope_head_dim: u32,
    /// Columns of an indexer row.
    pub index_head_dim: u32,
    /// Positions that every layer attends to uncompressed.
    pub sliding_window: u32,
}

/// Number format of the KV rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum KvFormat {
    /// Two planes: `head_dim` bytes of e4m3 columns with their scales, and the rotary columns in
    /// bf16.
    Fp8,
    /// One plane of bf16 columns.
    Bf16,
    /// One plane of f32 columns, for tests against a float64 reference.
    F32,
}

/// Number format of the indexer rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum IndexerFormat {
    /// e4m3 columns and one f32 scale a row; a block holds all columns, then all scales.
    Fp8,
    /// e2m1 columns and one e8m0 scale per 32 columns, in two regions.
    Fp4,
    /// bf16 columns.
    Bf16,
    /// f32 columns, for tests against a float64 reference.
    F32,
}

/// The engine's choices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheOptions {
    /// Format of the KV rows.
    pub kv: KvFormat,
    /// Format of the indexer rows.
    pub indexer: IndexerFormat,
    /// Draft tokens that one forward may verify; every ring has as many rows of slack.
    pub draft_tokens: u32,
    /// Tokens per page.
    pub block: BlockSize,
    /// Ranks that share a sequence's blocks; checkpoints lie `block * dcp_world_size` apart.
    pub dcp_world_size: u32,
    /// Which bytes of a slot an image holds.
    pub image: ImageRule,
}

impl KvFormat {
    /// The name used by flags, layout ids and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fp8 => "fp8",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
        }
    }

    /// Bytes of a row in each plane.
    pub(crate) fn plane_widths(self, config: &CacheConfig) -> Vec<u64> {
        let (head, rope) = (u64::from(config.head_dim), u64::from(config.qk_rope_head_dim));
        match self {
            // Without rotary columns the second plane would be empty.
            Self::Fp8 if rope == 0 => vec![head],
            Self::Fp8 => vec![head, 2 * rope],
            Self::Bf16 => vec![2 * head],
            Self::F32 => vec![4 * head],
        }
    }

    /// Bytes of one column of a DSpark draft window, which is never packed.
    pub(crate) const fn draft_column_bytes(self) -> u64 {
        match self {
            Self::Fp8 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }
}

impl IndexerFormat {
    /// The name used by flags, layout ids and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fp8 => "fp8",
            Self::Fp4 => "fp4",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
        }
    }

    /// Bytes of a row's columns.
    pub(crate) const fn data_bytes(self, columns: u32) -> u64 {
        let columns = columns as u64;
        match self {
            Self::Fp8 => columns,
            Self::Fp4 => columns / 2,
            Self::Bf16 => 2 * columns,
            Self::F32 => 4 * columns,
        }
    }

    /// Bytes of a row's scales.
    pub(crate) const fn scale_bytes(self, columns: u32) -> u64 {
        match self {
            Self::Fp8 => 4,
            Self::Fp4 => (columns / FP4_GROUP) as u64,
            Self::Bf16 | Self::F32 => 0,
        }
    }
}

impl CacheConfig {
    /// DeepSeek-V4-Pro: 61 layers and one MTP block.
    pub fn v4_pro() -> Self {
        Self::published(61, DraftLayers::Mtp, 1, [128, 128])
    }

    /// DeepSeek-V4-Flash: 43 layers and one MTP block.
    pub fn v4_flash() -> Self {
        Self::published(43, DraftLayers::Mtp, 1, [0, 0])
    }

    /// DeepSeek-V4-Flash-DSpark: 43 layers and three DSpark blocks.
    pub fn v4_flash_dspark() -> Self {
        Self::published(43, DraftLayers::DSpark, 3, [0, 0])
    }

    /// Five layers of every kind and one MTP block, with production row widths.
    pub fn mini() -> Self {
        Self {
            num_hidden_layers: 5,
            compress_ratios: vec![0, 128, 4, 128, 4, 0],
            ..Self::published(5, DraftLayers::Mtp, 1, [0, 128])
        }
    }

    /// Two first layers, then CSA and HCA in turn up to a last CSA layer, then window-only draft
    /// layers.
    fn published(layers: u32, draft_layers: DraftLayers, drafts: u32, first: [u32; 2]) -> Self {
        let trunk = (2..layers).map(|layer| if layer % 2 == 0 { CSA_RATIO } else { HCA_RATIO });
        let tail = (0..drafts).map(|_| 0);
        Self {
            num_hidden_layers: layers,
            num_nextn_predict_layers: drafts,
            draft_layers,
            compress_ratios: first.into_iter().chain(trunk).chain(tail).collect(),
            head_dim: 512,
            qk_rope_head_dim: 64,
            index_head_dim: 128,
            sliding_window: 128,
        }
    }
}

/// Distance of checkpoint positions in tokens.
pub(crate) fn alignment(options: &CacheOptions) -> u64 {
    u64::from(options.block.get()) * u64::from(options.dcp_world_size)
}

/// Checks everything that the derivation takes for granted, and classes the layers.
pub(crate) fn validate(
    config: &CacheConfig,
    options: &CacheOptions,
) -> Result<Vec<LayerCache>, GeometryError> {
    let layers = u64::from(config.num_hidden_layers) + u64::from(config.num_nextn_predict_layers);
    // The bounds keep every product of the derivation inside u64, whatever file the numbers come
    // from, and every page offset inside usize.
    for (field, min, max, got) in [
        ("num_hidden_layers", 1, 4096, config.num_hidden_layers),
        ("num_nextn_predict_layers", 0, 64, config.num_nextn_predict_layers),
        ("head_dim", 16, 1 << 14, config.head_dim),
        ("index_head_dim", 16, 1 << 14, config.index_head_dim),
        ("sliding_window", 1, 1 << 16, config.sliding_window),
        ("draft_tokens", 0, 1 << 10, options.draft_tokens),
        ("block", 1, 1 << 16, options.block.get()),
        ("dcp_world_size", 1, 1 << 10, options.dcp_world_size),
    ] {
        let got = u64::from(got);
        if !(min..=max).contains(&got) {
            return Err(GeometryError::OutOfRange { field, min, max, got });
        }
    }
    if config.compress_ratios.len() as u64 != layers {
        let (expected, got) = (layers as usize, config.compress_ratios.len());
        return Err(GeometryError::RatioCount { expected, got });
    }
    validate_rows(config, options)?;
    let classed = class_layers(config, options)?;
    let (window, alignment) = (config.sliding_window, alignment(options));
    if options.image == ImageRule::Live && u64::from(window) > alignment {
        return Err(GeometryError::WindowExceedsBoundary { window, alignment });
    }
    Ok(classed)
}

fn validate_rows(config: &CacheConfig, options: &CacheOptions) -> Result<(), GeometryError> {
    let (head_dim, rope) = (config.head_dim, config.qk_rope_head_dim);
    if rope > head_dim || rope % 2 != 0 {
        return Err(GeometryError::Rope { head_dim, got: rope });
    }
    let nope = head_dim - rope;
    let packed = options.kv == KvFormat::Fp8;
    if packed && (nope % FP8_GROUP != 0 || nope + 2 * (nope / FP8_GROUP) > head_dim) {
        return Err(GeometryError::PackedRow { head_dim, nope });
    }
    if options.indexer == IndexerFormat::Fp4 && !config.index_head_dim.is_multiple_of(FP4_GROUP) {
        let bytes = u64::from(config.index_head_dim) / 2;
        return Err(GeometryError::Unaligned { what: "fp4 indexer row", bytes });
    }
    let widths = options.kv.plane_widths(config);
    let sizes = widths.iter().map(|&bytes| ("KV row", bytes)).chain([
        // The `live` rule cuts state rows in half.
        ("half of a CSA state row", 4 * u64::from(head_dim)),
        ("half of a CSA indexer state row", 4 * u64::from(config.index_head_dim)),
    ]);
    for (what, bytes) in sizes {
        if bytes % MOVE_BYTES != 0 {
            return Err(GeometryError::Unaligned { what, bytes });
        }
    }
    Ok(())
}

fn class_layers(
    config: &CacheConfig,
    options: &CacheOptions,
) -> Result<Vec<LayerCache>, GeometryError> {
    let (block, alignment) = (options.block.get(), alignment(options));
    let (mut dense, mut hca, mut csa, mut draft) = (0, 0, 0, 0);
    let mut layers = Vec::with_capacity(config.compress_ratios.len());
    for (layer, &ratio) in config.compress_ratios.iter().enumerate() {
        let drafts = layer >= config.num_hidden_layers as usize;
        let in_field = drafts && config.draft_layers == DraftLayers::DSpark;
        if in_field && ratio != 0 {
            return Err(GeometryError::DraftRatio { layer, got: ratio });
        }
        // This refusal comes first: it guards accuracy, the next two only the code.
        if ratio != 0 && alignment % u64::from(ratio) != 0 {
            return Err(GeometryError::RatioMisaligned { layer, ratio, alignment });
        }
        let (class, count) = match ratio {
            0 if in_field => (LayerClass::Draft, &mut draft),
            0 => (LayerClass::Dense, &mut dense),
            CSA_RATIO => (LayerClass::Csa, &mut csa),
            HCA_RATIO => (LayerClass::Hca, &mut hca),
            got => return Err(GeometryError::UnknownRatio { layer, got }),
        };
        if ratio != 0 && block % ratio != 0 {
            return Err(GeometryError::RatioSplitsBlock { layer, ratio, block });
        }
        layers.push(LayerCache { class, index: *count });
        *count += 1;
    }
    if csa + hca == 0 {
        return Err(GeometryError::NoCompressedLayer);
    }
    Ok(layers)
}
