//! The model's shape, under the public names of `config.json`.

use std::fmt;

use statepages_geometry::{CSA_RATIO, CacheConfig, DraftLayers, HCA_RATIO};

use crate::kernel::hyper::STREAMS_MAX;
use crate::kernel::lanes::LANES;

/// Everything that decides the arithmetic.
#[derive(Clone, PartialEq, Debug)]
pub struct ModelConfig {
    /// What decides the bytes of the caches too: layers and their ratios, row widths, window.
    pub cache: CacheConfig,
    /// Columns of each residual stream. A multiple of 16.
    pub hidden_size: u32,
    /// Query heads; one key and value head serves them all.
    pub num_attention_heads: u32,
    /// Columns between the two query projections.
    pub q_lora_rank: u32,
    /// Columns of each group between the two output projections.
    pub o_lora_rank: u32,
    /// Groups of heads with an output projection of their own.
    pub o_groups: u32,
    /// Query heads of the indexer.
    pub index_n_heads: u32,
    /// Compressed entries that a CSA layer attends to at most.
    pub index_topk: u32,
    /// Routed experts.
    pub n_routed_experts: u32,
    /// Routed experts of one token.
    pub num_experts_per_tok: u32,
    /// Columns inside an expert.
    pub moe_intermediate_size: u32,
    /// Factor of the normalised expert weights.
    pub routed_scaling_factor: f32,
    /// First layers whose experts are looked up by token id.
    pub num_hash_layers: u32,
    /// Bound of the experts' gate and up projections.
    pub swiglu_limit: f32,
    /// Residual streams: 1 to 4.
    pub hc_mult: u32,
    /// Sinkhorn iterations of the residual's mixing matrix.
    pub hc_sinkhorn_iters: u32,
    /// Guard of the mixing coefficients.
    pub hc_eps: f32,
    /// Guard of the norms.
    pub rms_norm_eps: f32,
    /// Rotary base of window-only layers.
    pub rope_theta: f64,
    /// Rotary base of layers with compressed entries.
    pub compress_rope_theta: f64,
    /// Long-context scaling of [`ModelConfig::compress_rope_theta`].
    pub rope_scaling: Option<Yarn>,
    /// Token ids are below this.
    pub vocab_size: u32,
    /// Positions are below this.
    pub max_position_embeddings: u32,
}

/// YaRN without a magnitude factor.
#[derive(Clone, PartialEq, Debug)]
pub struct Yarn {
    /// Divisor of the frequencies that are interpolated wholly.
    pub factor: f64,
    /// Positions before scaling.
    pub original_max_position_embeddings: f64,
    /// Rotations over those positions above which a frequency is kept.
    pub beta_fast: f64,
    /// Rotations over those positions below which a frequency is interpolated wholly.
    pub beta_slow: f64,
}

impl Yarn {
    fn validate(&self) -> Result<(), ConfigError> {
        for (field, got) in [
            ("rope_scaling.factor", self.factor),
            (
                "rope_scaling.original_max_position_embeddings",
                self.original_max_position_embeddings,
            ),
            ("rope_scaling.beta_fast", self.beta_fast),
            ("rope_scaling.beta_slow", self.beta_slow),
        ] {
            if !(got.is_finite() && got > 0.0) {
                return Err(ConfigError::NotPositive { field, got: got.to_string() });
            }
        }
        if self.beta_slow >= self.beta_fast {
            let (slow, fast) = (self.beta_slow.to_string(), self.beta_fast.to_string());
            return Err(ConfigError::NotBelow {
                field: "rope_scaling.beta_slow",
                limit: "rope_scaling.beta_fast",
                at: fast,
                got: slow,
            });
        }
        Ok(())
    }
}

/// A configuration that the forward refuses.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number is outside of its range.
    OutOfRange {
        /// Public name of the field.
        field: &'static str,
        /// Least value.
        min: u32,
        /// Greatest value.
        max: u32,
        /// The value.
        got: u32,
    },
    /// A number is no multiple of what it must be.
    Indivisible {
        /// Public name of the field.
        field: &'static str,
        /// It must be a multiple of this.
        divisor: u32,
        /// The value.
        got: u32,
    },
    /// A number is not finite and positive.
    NotPositive {
        /// Public name of the field.
        field: &'static str,
        /// The value, as text.
        got: String,
    },
    /// A number is not below another field's.
    NotBelow {
        /// Public name of the field.
        field: &'static str,
        /// The other field.
        limit: &'static str,
        /// Its value, as text.
        at: String,
        /// The value, as text.
        got: String,
    },
    /// Not every layer has a ratio, or there are ratios of no layer.
    RatioCount {
        /// `num_hidden_layers + num_nextn_predict_layers`.
        expected: u64,
        /// Ratios given.
        got: usize,
    },
    /// A layer's ratio is none that the forward has.
    UnknownRatio {
        /// Number of the layer.
        layer: usize,
        /// The ratio.
        got: u32,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange { field, min, max, got } => {
                write!(f, "{field}: expected {min} to {max}, got {got}")
            }
            Self::Indivisible { field, divisor, got } => {
                write!(f, "{field}: expected a multiple of {divisor}, got {got}")
            }
            Self::NotPositive { field, got } => {
                write!(f, "{field}: expected a positive number, got {got}")
            }
            Self::NotBelow { field, limit, at, got } => {
                write!(f, "{field}: expected a number below {at} ({limit}), got {got}")
            }
            Self::RatioCount { expected, got } => write!(
                f,
                "compress_ratios: expected {expected} entries (num_hidden_layers + \
                 num_nextn_predict_layers), got {got}"
            ),
            Self::UnknownRatio { layer, got } => write!(
                f,
                "compress_ratios[{layer}]: expected 0, {CSA_RATIO} or {HCA_RATIO}, got {got}"
            ),
        }
    }
}

impl std::error::Error for ConfigError {}

impl ModelConfig {
    /// The built-in model: every layer kind, the row widths of the published models, and one token
    /// per byte with eight ids behind them for special tokens.
    pub fn demo() -> Self {
        Self {
            cache: CacheConfig {
                num_hidden_layers: 5,
                num_nextn_predict_layers: 1,
                draft_layers: DraftLayers::Mtp,
                compress_ratios: vec![0, 128, 4, 128, 4, 0],
                head_dim: 512,
                qk_rope_head_dim: 64,
                index_head_dim: 128,
                sliding_window: 128,
            },
            hidden_size: 256,
            num_attention_heads: 4,
            q_lora_rank: 128,
            o_lora_rank: 128,
            o_groups: 2,
            index_n_heads: 4,
            index_topk: 64,
            n_routed_experts: 8,
            num_experts_per_tok: 2,
            moe_intermediate_size: 96,
            routed_scaling_factor: 1.5,
            num_hash_layers: 1,
            swiglu_limit: 10.0,
            hc_mult: 4,
            hc_sinkhorn_iters: 20,
            hc_eps: 1e-6,
            rms_norm_eps: 1e-6,
            rope_theta: 10_000.0,
            compress_rope_theta: 160_000.0,
            rope_scaling: Some(Yarn {
                factor: 16.0,
                original_max_position_embeddings: 65_536.0,
                beta_fast: 32.0,
                beta_slow: 1.0,
            }),
            vocab_size: 264,
            max_position_embeddings: 1_048_576,
        }
    }

    /// True where there is a multi-token-prediction block.
    pub fn has_draft(&self) -> bool {
        self.cache.draft_layers == DraftLayers::Mtp && self.cache.num_nextn_predict_layers > 0
    }

    /// Ratios of the trunk's layers, without the draft layers.
    pub fn trunk_ratios(&self) -> &[u32] {
        &self.cache.compress_ratios[..self.cache.num_hidden_layers as usize]
    }

    /// Checks everything that the arithmetic takes for granted. What the caches take for granted
    /// is checked where their geometry is derived.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let cache = &self.cache;
        // A DSpark model's draft layers are counted from its ratios.
        let drafts = match cache.draft_layers {
            DraftLayers::Mtp => 1,
            DraftLayers::DSpark => u32::MAX,
        };
        // Bounds keep every product of two of these inside u32, whatever file they come from.
        let wide = 1 << 15;
        for (field, min, max, got) in [
            ("num_hidden_layers", 1, 1 << 12, cache.num_hidden_layers),
            ("num_nextn_predict_layers", 0, drafts, cache.num_nextn_predict_layers),
            ("hidden_size", 1, wide, self.hidden_size),
            ("num_attention_heads", 1, 1 << 12, self.num_attention_heads),
            ("head_dim", 1, 1 << 12, cache.head_dim),
            ("qk_rope_head_dim", 2, cache.head_dim, cache.qk_rope_head_dim),
            ("index_head_dim", cache.qk_rope_head_dim, 1 << 12, cache.index_head_dim),
            ("q_lora_rank", 1, wide, self.q_lora_rank),
            ("o_lora_rank", 1, wide, self.o_lora_rank),
            ("o_groups", 1, self.num_attention_heads, self.o_groups),
            ("index_n_heads", 1, 1 << 12, self.index_n_heads),
            ("index_topk", 1, u32::MAX, self.index_topk),
            ("n_routed_experts", 1, 1 << 16, self.n_routed_experts),
            ("num_experts_per_tok", 1, self.n_routed_experts, self.num_experts_per_tok),
            ("moe_intermediate_size", 1, wide, self.moe_intermediate_size),
            ("num_hash_layers", 0, cache.num_hidden_layers, self.num_hash_layers),
            ("hc_mult", 1, STREAMS_MAX as u32, self.hc_mult),
            ("hc_sinkhorn_iters", 1, 1 << 10, self.hc_sinkhorn_iters),
            ("vocab_size", 1, 1 << 24, self.vocab_size),
            // A position must be exact as an f32.
            ("max_position_embeddings", 1, 1 << 24, self.max_position_embeddings),
        ] {
            if !(min..=max).contains(&got) {
                return Err(ConfigError::OutOfRange { field, min, max, got });
            }
        }
        for (field, divisor, got) in [
            ("hidden_size", LANES as u32, self.hidden_size),
            ("head_dim", LANES as u32, cache.head_dim),
            ("index_head_dim", LANES as u32, cache.index_head_dim),
            ("qk_rope_head_dim", 2, cache.qk_rope_head_dim),
            ("num_attention_heads", self.o_groups, self.num_attention_heads),
        ] {
            if !got.is_multiple_of(divisor) {
                return Err(ConfigError::Indivisible { field, divisor, got });
            }
        }
        for (field, got) in [
            ("routed_scaling_factor", f64::from(self.routed_scaling_factor)),
            ("swiglu_limit", f64::from(self.swiglu_limit)),
            ("hc_eps", f64::from(self.hc_eps)),
            ("rms_norm_eps", f64::from(self.rms_norm_eps)),
            ("rope_theta", self.rope_theta),
            ("compress_rope_theta", self.compress_rope_theta),
        ] {
            if !(got.is_finite() && got > 0.0) {
                return Err(ConfigError::NotPositive { field, got: got.to_string() });
            }
        }
        if let Some(yarn) = &self.rope_scaling {
            yarn.validate()?;
        }
        let got = cache.compress_ratios.len();
        let expected =
            u64::from(cache.num_hidden_layers) + u64::from(cache.num_nextn_predict_layers);
        if got as u64 != expected {
            return Err(ConfigError::RatioCount { expected, got });
        }
        if self.has_draft() {
            let got = cache.compress_ratios[cache.num_hidden_layers as usize];
            if got > 0 {
                let field = "compress_ratios of the draft layer";
                return Err(ConfigError::OutOfRange { field, min: 0, max: 0, got });
            }
        }
        for (layer, &got) in self.trunk_ratios().iter().enumerate() {
            if ![0, CSA_RATIO, HCA_RATIO].contains(&got) {
                return Err(ConfigError::UnknownRatio { layer, got });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_named() {
        assert_eq!(ModelConfig::demo().validate(), Ok(()));
        let check = |change: fn(&mut ModelConfig), message: &str| {
            let mut config = ModelConfig::demo();
            change(&mut config);
            assert_eq!(config.validate().unwrap_err().to_string(), message);
        };
        check(|c| c.hidden_size = 200, "hidden_size: expected a multiple of 16, got 200");
        check(|c| c.hc_mult = 5, "hc_mult: expected 1 to 4, got 5");
        check(
            |c| c.rope_scaling.as_mut().expect("YaRN").factor = 0.0,
            "rope_scaling.factor: expected a positive number, got 0",
        );
        check(
            |c| c.rope_scaling.as_mut().expect("YaRN").beta_fast = f64::NAN,
            "rope_scaling.beta_fast: expected a positive number, got NaN",
        );
        check(
            |c| c.rope_scaling.as_mut().expect("YaRN").beta_slow = 1_000.0,
            "rope_scaling.beta_slow: expected a number below 32 (rope_scaling.beta_fast), got 1000",
        );
        check(
            |c| c.cache.num_nextn_predict_layers = 2,
            "num_nextn_predict_layers: expected 0 to 1, got 2",
        );
        let count = |expected: u64, got: usize| {
            let sum = "num_hidden_layers + num_nextn_predict_layers";
            format!("compress_ratios: expected {expected} entries ({sum}), got {got}")
        };
        check(|c| c.cache.num_hidden_layers = 6, &count(7, 6));
        check(|c| c.cache.num_nextn_predict_layers = 0, &count(5, 6));
        check(|c| c.cache.compress_ratios.clear(), &count(6, 0));
        check(|c| c.o_groups = 3, "num_attention_heads: expected a multiple of 3, got 4");
        check(|c| c.hc_eps = f32::NAN, "hc_eps: expected a positive number, got NaN");
        check(
            |c| c.cache.compress_ratios[1] = 16,
            "compress_ratios[1]: expected 0, 4 or 128, got 16",
        );
    }
}
