//! How much arithmetic a forward is.

use statepages_geometry::CSA_RATIO;

use crate::config::ModelConfig;

/// Floating-point operations of the forward over positions `[start, start + tokens)` of one request
/// with logits of the last: two per multiply-add of projections, experts, attention scores and
/// values, indexer scores, pools and residual mixing. Nothing else is counted: no padding, norm,
/// softmax, rotation or elementary function. Of the last layer, tokens but the last need only what
/// their successors read: KV rows and pools.
pub fn forward_flops(config: &ModelConfig, start: u32, tokens: u32) -> u64 {
    let size = |n: u32| u64::from(n);
    let c = config;
    let (hidden, streams) = (size(c.hidden_size), size(c.hc_mult));
    let (heads, width) = (size(c.num_attention_heads), size(c.cache.head_dim));
    let index = size(c.index_n_heads) * size(c.cache.index_head_dim);
    let mixing = streams * hidden * (2 + streams) * streams + streams * hidden * (streams + 2);
    let rows = size(c.q_lora_rank) * hidden + width * hidden;
    let attention = size(c.q_lora_rank) * heads * width
        + size(c.o_lora_rank) * (heads * width + size(c.o_groups) * hidden);
    let experts = size(c.num_experts_per_tok) + 1;
    let moe =
        hidden * size(c.n_routed_experts) + experts * 3 * hidden * size(c.moe_intermediate_size);
    let mut total = streams * hidden * streams + streams * hidden + hidden * size(c.vocab_size);
    let last = c.trunk_ratios().len() - 1;
    for (layer, &ratio) in c.trunk_ratios().iter().enumerate() {
        // Tokens that are computed to the layer's end.
        let whole = if layer == last { tokens.min(1) } else { tokens };
        let indexed = ratio == CSA_RATIO;
        let compressor = match ratio {
            0 => 0,
            _ if indexed => {
                let columns = 2 * (width + size(c.cache.index_head_dim));
                2 * columns * hidden + hidden * size(c.index_n_heads)
            }
            _ => 2 * width * hidden,
        };
        let queries = if indexed { index * size(c.q_lora_rank) } else { 0 };
        total += size(tokens) * (mixing + rows + compressor);
        total += size(whole) * (mixing + attention + queries + moe);
        for position in start..start + tokens {
            let seen = size(position + 1);
            if ratio != 0 && seen.is_multiple_of(size(ratio)) {
                let columns = if indexed { width + size(c.cache.index_head_dim) } else { width };
                let pooled = if indexed { 2 * size(ratio) } else { size(ratio) };
                total += pooled * columns;
            }
            if position + whole < start + tokens {
                continue;
            }
            let window = seen.min(size(c.cache.sliding_window));
            let visible = if ratio == 0 { 0 } else { seen / size(ratio) };
            let chosen = if indexed { visible.min(size(c.index_topk)) } else { visible };
            total += 2 * (window + chosen) * heads * width;
            if indexed && visible > chosen {
                total += visible * index;
            }
        }
    }
    2 * total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_add_up_but_for_their_logits() {
        let config = ModelConfig::demo();
        let head = forward_flops(&config, 0, 0);
        let whole = forward_flops(&config, 0, 1000) - head;
        let parts = forward_flops(&config, 0, 300) + forward_flops(&config, 300, 700) - 2 * head;
        // Token 299 in the last layer: its projections, experts, and 128 + 64 rows chosen of 74.
        let products = 128 * (2048 + 512) + 128 * (2048 + 2 * 256) + 256 * (8 + 9 * 96);
        let rows = 2 * (128 + 64) * 2048 + 75 * 512;
        assert_eq!(parts - whole, 2 * (products + rows + 4 * 256 * 30));
        // The products of one token with every weight, twice, and its one window row.
        let one = forward_flops(&config, 0, 1) - head;
        assert!(one > 2 * 6_000_000 && one < 2 * 9_000_000, "{one}");
    }
}
