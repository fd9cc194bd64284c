//! The public `config.json`. Fields that decide neither arithmetic nor bytes are passed over.

use std::path::Path;

use serde::{Deserialize, Serialize};
use statepages_geometry::{CacheConfig, DraftLayers};
use statepages_model::{ModelConfig, Yarn};

use crate::error::OpenError;
use crate::json::{self, JsonError};
use crate::shard::read_text;

/// How the directory's linear weights may be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Quantised {
    pub(crate) fp8: bool,
    pub(crate) fp4_experts: bool,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct RawYarn {
    #[serde(alias = "rope_type")]
    r#type: String,
    factor: f64,
    original_max_position_embeddings: f64,
    beta_fast: f64,
    beta_slow: f64,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct RawQuantisation {
    quant_method: String,
    fmt: String,
    weight_block_size: Vec<u32>,
    scale_fmt: String,
}

/// `config.json` as far as it is looked at, in its order when written.
#[derive(Serialize, Deserialize)]
pub(crate) struct RawConfig {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    architectures: Option<Vec<String>>,
    model_type: String,
    vocab_size: u32,
    hidden_size: u32,
    num_hidden_layers: u32,
    #[serde(default)]
    num_nextn_predict_layers: u32,
    num_attention_heads: u32,
    num_key_value_heads: u32,
    head_dim: u32,
    qk_rope_head_dim: u32,
    q_lora_rank: u32,
    o_lora_rank: u32,
    o_groups: u32,
    sliding_window: u32,
    compress_ratios: Vec<u32>,
    index_n_heads: u32,
    index_head_dim: u32,
    index_topk: u32,
    n_routed_experts: u32,
    n_shared_experts: u32,
    num_experts_per_tok: u32,
    moe_intermediate_size: u32,
    routed_scaling_factor: f32,
    scoring_func: String,
    topk_method: String,
    norm_topk_prob: bool,
    num_hash_layers: u32,
    swiglu_limit: f32,
    hc_mult: u32,
    hc_sinkhorn_iters: u32,
    hc_eps: f32,
    rms_norm_eps: f32,
    rope_theta: f64,
    compress_rope_theta: f64,
    rope_scaling: Option<RawYarn>,
    max_position_embeddings: u32,
    #[serde(default)]
    hidden_act: Option<String>,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    use_index_cache: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dspark_block_size: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expert_dtype: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    quantization_config: Option<RawQuantisation>,
}

/// The shape of the model that a published `config.json` describes.
pub fn read_config(path: &Path) -> Result<ModelConfig, OpenError> {
    Ok(read(path)?.0)
}

pub(crate) fn read(path: &Path) -> Result<(ModelConfig, Quantised), OpenError> {
    let text = read_text(path).map_err(OpenError::file(path))?;
    parse(path, &text)
}

/// What the text of `path` says.
pub(crate) fn parse(path: &Path, text: &str) -> Result<(ModelConfig, Quantised), OpenError> {
    let raw =
        RawConfig::parse(text).map_err(|source| OpenError::Json { path: path.into(), source })?;
    let quantised = raw.check()?;
    let config = raw.model();
    config.validate().map_err(OpenError::Config)?;
    Ok((config, quantised))
}

fn must(field: &'static str, expected: &str, got: &str) -> Result<(), OpenError> {
    if got == expected {
        return Ok(());
    }
    Err(OpenError::Field { field, expected: expected.into(), got: got.into() })
}

impl RawConfig {
    fn parse(text: &str) -> Result<Self, JsonError> {
        // The parser would take a list for the fields in their order.
        if !text.trim_start().starts_with('{') {
            return Err(json::plain(serde::de::Error::custom("expected a JSON object")));
        }
        json::from_slice(text.as_bytes())
    }

    /// Refuses what the forward lacks.
    fn check(&self) -> Result<Quantised, OpenError> {
        must("model_type", "deepseek_v4", &self.model_type)?;
        must("num_key_value_heads", "1", &self.num_key_value_heads.to_string())?;
        must("n_shared_experts", "1", &self.n_shared_experts.to_string())?;
        must("scoring_func", "sqrtsoftplus", &self.scoring_func)?;
        must("topk_method", "noaux_tc", &self.topk_method)?;
        must("norm_topk_prob", "true", &self.norm_topk_prob.to_string())?;
        must("hidden_act", "silu", self.hidden_act.as_deref().unwrap_or("silu"))?;
        must("tie_word_embeddings", "false", &self.tie_word_embeddings.to_string())?;
        must("attention_bias", "false", &self.attention_bias.to_string())?;
        let shared = self.use_index_cache.unwrap_or(false);
        must("use_index_cache", "false", &shared.to_string())?;
        if let Some(yarn) = &self.rope_scaling {
            must("rope_scaling.type", "yarn", &yarn.r#type)?;
        }
        if let Some(q) = &self.quantization_config {
            must("quantization_config.quant_method", "fp8", &q.quant_method)?;
            must("quantization_config.fmt", "e4m3", &q.fmt)?;
            must("quantization_config.scale_fmt", "ue8m0", &q.scale_fmt)?;
            let blocks = format!("{:?}", q.weight_block_size);
            must("quantization_config.weight_block_size", "[128, 128]", &blocks)?;
        }
        let fp8 = self.quantization_config.is_some();
        let fp4_experts = match self.expert_dtype.as_deref() {
            None | Some("bf16" | "fp8") => false,
            Some("fp4") => true,
            Some(got) => {
                let expected = "fp4, fp8 or bf16".into();
                return Err(OpenError::Field { field: "expert_dtype", expected, got: got.into() });
            }
        };
        Ok(Quantised { fp8, fp4_experts })
    }

    fn model(self) -> ModelConfig {
        // A DSpark config lists its draft layers in the ratios; its count of MTP blocks says nothing.
        let listed = self.compress_ratios.len() as u32;
        let (draft_layers, drafts) = match self.dspark_block_size {
            Some(_) => (DraftLayers::DSpark, listed.saturating_sub(self.num_hidden_layers)),
            None => (DraftLayers::Mtp, self.num_nextn_predict_layers),
        };
        ModelConfig {
            cache: CacheConfig {
                num_hidden_layers: self.num_hidden_layers,
                num_nextn_predict_layers: drafts,
                draft_layers,
                compress_ratios: self.compress_ratios,
                head_dim: self.head_dim,
                qk_rope_head_dim: self.qk_rope_head_dim,
                index_head_dim: self.index_head_dim,
                sliding_window: self.sliding_window,
            },
            hidden_size: self.hidden_size,
            num_attention_heads: self.num_attention_heads,
            q_lora_rank: self.q_lora_rank,
            o_lora_rank: self.o_lora_rank,
            o_groups: self.o_groups,
            index_n_heads: self.index_n_heads,
            index_topk: self.index_topk,
            n_routed_experts: self.n_routed_experts,
            num_experts_per_tok: self.num_experts_per_tok,
            moe_intermediate_size: self.moe_intermediate_size,
            routed_scaling_factor: self.routed_scaling_factor,
            num_hash_layers: self.num_hash_layers,
            swiglu_limit: self.swiglu_limit,
            hc_mult: self.hc_mult,
            hc_sinkhorn_iters: self.hc_sinkhorn_iters,
            hc_eps: self.hc_eps,
            rms_norm_eps: self.rms_norm_eps,
            rope_theta: self.rope_theta,
            compress_rope_theta: self.compress_rope_theta,
            rope_scaling: self.rope_scaling.map(|yarn| Yarn {
                factor: yarn.factor,
                original_max_position_embeddings: yarn.original_max_position_embeddings,
                beta_fast: yarn.beta_fast,
                beta_slow: yarn.beta_slow,
            }),
            vocab_size: self.vocab_size,
            max_position_embeddings: self.max_position_embeddings,
        }
    }

    /// What a directory of `config` says.
    pub(crate) fn of(config: &ModelConfig, quantised: Quantised) -> Self {
        let cache = &config.cache;
        Self {
            architectures: Some(vec!["DeepseekV4ForCausalLM".into()]),
            model_type: "deepseek_v4".into(),
            vocab_size: config.vocab_size,
            hidden_size: config.hidden_size,
            num_hidden_layers: cache.num_hidden_layers,
            num_nextn_predict_layers: cache.num_nextn_predict_layers,
            num_attention_heads: config.num_attention_heads,
            num_key_value_heads: 1,
            head_dim: cache.head_dim,
            qk_rope_head_dim: cache.qk_rope_head_dim,
            q_lora_rank: config.q_lora_rank,
            o_lora_rank: config.o_lora_rank,
            o_groups: config.o_groups,
            sliding_window: cache.sliding_window,
            compress_ratios: cache.compress_ratios.clone(),
            index_n_heads: config.index_n_heads,
            index_head_dim: cache.index_head_dim,
            index_topk: config.index_topk,
            n_routed_experts: config.n_routed_experts,
            n_shared_experts: 1,
            num_experts_per_tok: config.num_experts_per_tok,
            moe_intermediate_size: config.moe_intermediate_size,
            routed_scaling_factor: config.routed_scaling_factor,
            scoring_func: "sqrtsoftplus".into(),
            topk_method: "noaux_tc".into(),
            norm_topk_prob: true,
            num_hash_layers: config.num_hash_layers,
            swiglu_limit: config.swiglu_limit,
            hc_mult: config.hc_mult,
            hc_sinkhorn_iters: config.hc_sinkhorn_iters,
            hc_eps: config.hc_eps,
            rms_norm_eps: config.rms_norm_eps,
            rope_theta: config.rope_theta,
            compress_rope_theta: config.compress_rope_theta,
            rope_scaling: config.rope_scaling.as_ref().map(|yarn| RawYarn {
                r#type: "yarn".into(),
                factor: yarn.factor,
                original_max_position_embeddings: yarn.original_max_position_embeddings,
                beta_fast: yarn.beta_fast,
                beta_slow: yarn.beta_slow,
            }),
            max_position_embeddings: config.max_position_embeddings,
            hidden_act: Some("silu".into()),
            tie_word_embeddings: false,
            attention_bias: false,
            use_index_cache: None,
            dspark_block_size: None,
            expert_dtype: quantised.fp4_experts.then(|| "fp4".into()),
            quantization_config: quantised.fp8.then(|| RawQuantisation {
                quant_method: "fp8".into(),
                fmt: "e4m3".into(),
                weight_block_size: vec![128, 128],
                scale_fmt: "ue8m0".into(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// What the public file of V4-Pro says, fields that decide nothing here included.
    fn v4_pro() -> Value {
        let mut config: Value = serde_json::from_str(
            r#"{
                "architectures": ["DeepseekV4ForCausalLM"], "attention_bias": false,
                "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 1,
                "compress_rope_theta": 160000, "expert_dtype": "fp4", "hc_eps": 1e-6, "hc_mult": 4,
                "hc_sinkhorn_iters": 20, "head_dim": 512, "hidden_act": "silu",
                "hidden_size": 7168, "index_head_dim": 128, "index_n_heads": 64,
                "index_topk": 1024, "max_position_embeddings": 1048576,
                "model_type": "deepseek_v4", "moe_intermediate_size": 3072,
                "n_routed_experts": 384, "n_shared_experts": 1, "norm_topk_prob": true,
                "num_attention_heads": 128, "num_experts_per_tok": 6, "num_hash_layers": 3,
                "num_hidden_layers": 61, "num_key_value_heads": 1, "num_nextn_predict_layers": 1,
                "o_groups": 16, "o_lora_rank": 1024, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
                "quantization_config": {
                    "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                    "scale_fmt": "ue8m0", "weight_block_size": [128, 128]
                },
                "rms_norm_eps": 1e-6,
                "rope_scaling": {
                    "beta_fast": 32, "beta_slow": 1, "factor": 16,
                    "original_max_position_embeddings": 65536, "type": "yarn"
                },
                "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sqrtsoftplus",
                "sliding_window": 128, "swiglu_limit": 10.0, "tie_word_embeddings": false,
                "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "vocab_size": 129280
            }"#,
        )
        .expect("sound JSON");
        config["compress_ratios"] = json!(CacheConfig::v4_pro().compress_ratios);
        config
    }

    fn parsed(text: &str) -> Result<ModelConfig, OpenError> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("config.json");
        std::fs::write(&path, text).expect("a writable file");
        read_config(&path)
    }

    fn with(changes: &Value) -> Result<ModelConfig, OpenError> {
        let mut config = v4_pro();
        let changes = changes.as_object().expect("fields").clone();
        config.as_object_mut().expect("fields").extend(changes);
        parsed(&config.to_string())
    }

    #[test]
    fn a_published_config_gives_the_preset() {
        assert_eq!(with(&json!({})).unwrap().cache, CacheConfig::v4_pro());
        let dspark = with(&json!({
            "num_hidden_layers": 43, "dspark_block_size": 5,
            "compress_ratios": CacheConfig::v4_flash_dspark().compress_ratios,
        }));
        assert_eq!(dspark.unwrap().cache, CacheConfig::v4_flash_dspark());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let refused = |got: Result<ModelConfig, OpenError>, parts: &[&str]| {
            let text = got.unwrap_err().to_string();
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        };
        refused(parsed(r#"{"model_type": "deepseek_v4"}"#), &["config.json", "vocab_size"]);
        refused(parsed(r#"["deepseek_v4", 4, 1]"#), &["config.json", "object"]);
        refused(with(&json!({ "model_type": "llama" })), &["model_type", "deepseek_v4", "llama"]);
        refused(with(&json!({ "num_hidden_layers": -1 })), &["-1"]);
        // Each field, whatever else it makes wrong, names itself.
        let block = |size: u32| {
            json!({
                "quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0",
                "weight_block_size": [size, 128],
            })
        };
        for (field, value) in [
            ("num_key_value_heads", json!(2)),
            ("n_shared_experts", json!(0)),
            ("scoring_func", json!("sigmoid")),
            ("topk_method", json!("greedy")),
            ("norm_topk_prob", json!(false)),
            ("hidden_act", json!("gelu")),
            ("tie_word_embeddings", json!(true)),
            ("attention_bias", json!(true)),
            ("use_index_cache", json!(true)),
            ("expert_dtype", json!("int4")),
            ("quantization_config", block(64)),
            (
                "rope_scaling",
                json!({
                    "type": "linear", "factor": 16, "original_max_position_embeddings": 65536,
                    "beta_fast": 32, "beta_slow": 1,
                }),
            ),
            ("num_hidden_layers", json!(0)),
            ("num_nextn_predict_layers", json!(2)),
            ("compress_ratios", json!([0, 4])),
            ("hidden_size", json!(0)),
            ("num_attention_heads", json!(0)),
            ("head_dim", json!(1 << 13)),
            ("qk_rope_head_dim", json!(513)),
            ("index_head_dim", json!(32)),
            ("q_lora_rank", json!(0)),
            ("o_lora_rank", json!(0)),
            ("o_groups", json!(129)),
            ("index_n_heads", json!(0)),
            ("index_topk", json!(0)),
            ("n_routed_experts", json!(0)),
            ("num_experts_per_tok", json!(385)),
            ("moe_intermediate_size", json!(0)),
            ("num_hash_layers", json!(62)),
            ("hc_mult", json!(5)),
            ("hc_sinkhorn_iters", json!(0)),
            ("vocab_size", json!(0)),
            ("max_position_embeddings", json!(0)),
            ("routed_scaling_factor", json!(0.0)),
            ("swiglu_limit", json!(-1.0)),
            ("hc_eps", json!(0.0)),
            ("rms_norm_eps", json!(0.0)),
            ("rope_theta", json!(0.0)),
            ("compress_rope_theta", json!(-1.0)),
        ] {
            let text = with(&json!({ (field): value })).unwrap_err().to_string();
            let named = text.strip_prefix("config.json: ").unwrap_or(&text);
            assert!(named.starts_with(field), "{field}: {text}");
        }
        // The published form has one draft layer, with a window alone.
        let mut ratios = CacheConfig::v4_pro().compress_ratios;
        ratios.push(0);
        refused(
            with(&json!({ "num_nextn_predict_layers": 2, "compress_ratios": ratios })),
            &["num_nextn_predict_layers: expected 0 to 1, got 2"],
        );
        ratios.pop();
        *ratios.last_mut().expect("layers") = 4;
        refused(
            with(&json!({ "compress_ratios": ratios })),
            &["compress_ratios of the draft layer: expected 0 to 0, got 4"],
        );
    }

    proptest! {
        /// A config with any run of it replaced by any text: a config, or a refusal.
        #[test]
        fn fuzz_any_config_is_read_or_refused(
            from in 0..2000usize,
            len in 0..12usize,
            put in prop_oneof!["[0-9.,:\\[\\]{}\"a-z_-]{0,8}", ".{0,6}"],
        ) {
            let mut text = v4_pro().to_string();
            let end = (from + len).min(text.len());
            text.replace_range(from.min(end)..end, &put);
            if let Ok(raw) = RawConfig::parse(&text) && raw.check().is_ok() {
                let _valid_or_refused = raw.model().validate();
            }
        }
    }
}
