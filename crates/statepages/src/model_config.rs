//! Reads a published `config.json` into the geometry's config. Fields that decide no bytes are passed over.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use serde::Deserialize;
use statepages_geometry::{CacheConfig, DraftLayers};

/// The fields of a public `config.json` that decide bytes.
#[derive(Deserialize)]
struct PublishedConfig {
    model_type: Option<String>,
    num_hidden_layers: u32,
    num_nextn_predict_layers: Option<u32>,
    compress_ratios: Vec<u32>,
    head_dim: u32,
    qk_rope_head_dim: u32,
    index_head_dim: u32,
    sliding_window: u32,
    dspark_block_size: Option<u32>,
}

/// The geometry config of a model's `config.json`.
pub(crate) fn read(path: &Path) -> Result<CacheConfig> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("--config: cannot read {}", path.display()))?;
    parse(&text).with_context(|| format!("--config: {}", path.display()))
}

fn parse(text: &str) -> Result<CacheConfig> {
    let value: serde_json::Value = serde_json::from_str(text)?;
    if !value.is_object() {
        return Err(anyhow!("expected a JSON object"));
    }
    let config: PublishedConfig = serde_json::from_value(value)?;
    if let Some(kind) = config.model_type.filter(|kind| kind != "deepseek_v4") {
        return Err(anyhow!("model_type: expected deepseek_v4, got {kind}"));
    }
    // A DSpark config lists its draft layers in the ratios; its count of MTP blocks says nothing.
    let (draft_layers, drafts) = if config.dspark_block_size.is_some() {
        let listed = u32::try_from(config.compress_ratios.len())?;
        (DraftLayers::DSpark, listed.saturating_sub(config.num_hidden_layers))
    } else {
        (DraftLayers::Mtp, config.num_nextn_predict_layers.unwrap_or(0))
    };
    Ok(CacheConfig {
        num_hidden_layers: config.num_hidden_layers,
        num_nextn_predict_layers: drafts,
        draft_layers,
        compress_ratios: config.compress_ratios,
        head_dim: config.head_dim,
        qk_rope_head_dim: config.qk_rope_head_dim,
        index_head_dim: config.index_head_dim,
        sliding_window: config.sliding_window,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PRO_TAIL: &str = r#""head_dim": 512, "qk_rope_head_dim": 64, "index_head_dim": 128,
        "sliding_window": 128, "vocab_size": 129280"#;

    #[test]
    fn a_published_config_gives_the_preset() {
        let ratios = CacheConfig::v4_pro().compress_ratios;
        let text = format!(
            r#"{{"model_type": "deepseek_v4", "num_hidden_layers": 61,
                "num_nextn_predict_layers": 1, "compress_ratios": {ratios:?}, {PRO_TAIL}}}"#
        );
        assert_eq!(parse(&text).unwrap(), CacheConfig::v4_pro());
        let ratios = CacheConfig::v4_flash_dspark().compress_ratios;
        let text = format!(
            r#"{{"num_hidden_layers": 43, "num_nextn_predict_layers": 1, "dspark_block_size": 5,
                "compress_ratios": {ratios:?}, {PRO_TAIL}}}"#
        );
        assert_eq!(parse(&text).unwrap(), CacheConfig::v4_flash_dspark());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let missing = parse(r#"{"num_hidden_layers": 61}"#).unwrap_err().to_string();
        assert!(missing.contains("compress_ratios"), "{missing}");
        let negative = parse(r#"{"num_hidden_layers": -1}"#).unwrap_err().to_string();
        assert!(negative.contains("-1"), "{negative}");
        let text = format!(
            r#"{{"model_type": "llama", "num_hidden_layers": 1, "compress_ratios": [4], {PRO_TAIL}}}"#
        );
        let list = parse(r#"["deepseek_v4", 4, 1]"#).unwrap_err().to_string();
        assert!(list.contains("object"), "{list}");
        let other = parse(&text).unwrap_err().to_string();
        assert!(other.contains("llama") && other.contains("deepseek_v4"), "{other}");
    }

    proptest! {
        /// A config with any run of it replaced by any text: a config, or a refusal.
        #[test]
        fn fuzz_any_config_is_read_or_refused(
            from in 0..160usize,
            len in 0..12usize,
            put in prop_oneof!["[0-9.,:\\[\\]{}\"a-z_-]{0,8}", ".{0,6}"],
        ) {
            let mut text = format!(
                r#"{{"num_hidden_layers": 2, "compress_ratios": [4, 128], {PRO_TAIL}}}"#
            );
            let end = (from + len).min(text.len());
            text.replace_range(from.min(end)..end, &put);
            let _read_or_refused = parse(&text);
        }
    }
}
