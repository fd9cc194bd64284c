//! What start-up refuses, each with the field, what was expected and what was got.

use std::fmt;

use statepages_page::{LayoutError, MOVE_BYTES};

/// A configuration that has no geometry.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum GeometryError {
    /// A number outside what the arithmetic and the kernels are made for.
    OutOfRange {
        /// Public name of the field or option.
        field: &'static str,
        /// Smallest accepted value.
        min: u64,
        /// Largest accepted value.
        max: u64,
        /// The value.
        got: u64,
    },
    /// `compress_ratios` does not have one entry per layer and draft layer.
    RatioCount {
        /// `num_hidden_layers + num_nextn_predict_layers`.
        expected: usize,
        /// Entries found.
        got: usize,
    },
    /// A ratio that does not divide the checkpoint alignment: a pool would straddle a boundary, and
    /// a resumed request would silently read entries that its image does not carry.
    RatioMisaligned {
        /// Index into `compress_ratios`.
        layer: usize,
        /// The ratio.
        ratio: u32,
        /// `block * dcp_world_size`, the distance of checkpoint positions.
        alignment: u64,
    },
    /// A ratio that names no kind of layer.
    UnknownRatio {
        /// Index into `compress_ratios`.
        layer: usize,
        /// The ratio.
        got: u32,
    },
    /// A ratio that does not divide the block: an entry would straddle two pages.
    RatioSplitsBlock {
        /// Index into `compress_ratios`.
        layer: usize,
        /// The ratio.
        ratio: u32,
        /// Tokens per block.
        block: u32,
    },
    /// A model whose pages would hold nothing.
    NoCompressedLayer,
    /// A DSpark draft layer with a compressor, whose state no image would carry.
    DraftRatio {
        /// Index into `compress_ratios`.
        layer: usize,
        /// The ratio.
        got: u32,
    },
    /// More rotary columns than the head has, or an odd number of them.
    Rope {
        /// `head_dim`.
        head_dim: u32,
        /// `qk_rope_head_dim`.
        got: u32,
    },
    /// An fp8 row whose columns and scales do not fit its plane, or that does not split into groups
    /// of 64 columns.
    PackedRow {
        /// `head_dim`, the bytes of the plane.
        head_dim: u32,
        /// Columns without rotation.
        nope: u32,
    },
    /// A size that copies cannot move in steps of [`MOVE_BYTES`] bytes.
    Unaligned {
        /// What was measured.
        what: &'static str,
        /// Its value in bytes.
        bytes: u64,
    },
    /// Under the `live` rule the first boundary must have a whole window before it.
    WindowExceedsBoundary {
        /// `sliding_window`.
        window: u32,
        /// `block * dcp_world_size`.
        alignment: u64,
    },
    /// A ring that rejected drafts would overwrite while their window is still read.
    RingTooSmall {
        /// `sliding_window + draft_tokens`.
        expected: u64,
        /// Positions the ring holds.
        got: u64,
    },
    /// The derived layout cannot be copied.
    Layout(LayoutError),
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange { field, min, max, got } => {
                write!(f, "{field}: expected {min} to {max}, got {got}")
            }
            Self::RatioCount { expected, got } => write!(
                f,
                "compress_ratios: expected {expected} entries (num_hidden_layers + \
                 num_nextn_predict_layers), got {got}"
            ),
            Self::RatioMisaligned { layer, ratio, alignment } => write!(
                f,
                "compress_ratios[{layer}]: expected a divisor of the checkpoint alignment \
                 {alignment} (block * dcp), got {ratio}"
            ),
            Self::UnknownRatio { layer, got } => {
                write!(f, "compress_ratios[{layer}]: expected 0, 4 or 128, got {got}")
            }
            Self::RatioSplitsBlock { layer, ratio, block } => write!(
                f,
                "compress_ratios[{layer}]: expected a divisor of the block of {block} tokens, got \
                 {ratio}"
            ),
            Self::NoCompressedLayer => {
                f.write_str("compress_ratios: expected at least one entry above 0, got none")
            }
            Self::DraftRatio { layer, got } => write!(
                f,
                "compress_ratios[{layer}]: expected 0 for a DSpark draft layer, got {got}"
            ),
            Self::Rope { head_dim, got } => write!(
                f,
                "qk_rope_head_dim: expected an even number up to head_dim {head_dim}, got {got}"
            ),
            Self::PackedRow { head_dim, nope } => write!(
                f,
                "head_dim: expected for fp8 rows a plane that holds {nope} columns in groups of 64 \
                 with two scale bytes a group, got {head_dim}"
            ),
            Self::Unaligned { what, bytes } => {
                write!(f, "{what}: expected a multiple of {MOVE_BYTES} bytes, got {bytes}")
            }
            Self::WindowExceedsBoundary { window, alignment } => write!(
                f,
                "block: expected for image rule live a checkpoint alignment (block * dcp) of at \
                 least the window of {window} tokens, got {alignment}"
            ),
            Self::RingTooSmall { expected, got } => write!(
                f,
                "ring: expected at least {expected} positions (sliding_window + draft_tokens), got \
                 {got}"
            ),
            Self::Layout(error) => error.fmt(f),
        }
    }
}

// Its text holds that of its cause; a source beside it would be printed a second time.
impl std::error::Error for GeometryError {}

impl From<LayoutError> for GeometryError {
    fn from(error: LayoutError) -> Self {
        Self::Layout(error)
    }
}
