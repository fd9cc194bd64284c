"""Makes the forward's fixtures: tokens, float64 logits and choices of a reference forward.

    make_forward_fixtures.py REFERENCE.py OUTPUT_DIRECTORY [CASE ...]

REFERENCE.py has `forward(ids, weights, config, taps)` in float64 numpy, where `taps` receives one dict
a layer with `index_score`, `index_sel`, `route_idx` and the input `ffn_in` of the experts, and `mtp_forward(stack,
next_ids, weights, config)` for cases with `draft`. Weights
are drawn here by the rule of `crates/statepages-model/src/seeded.rs`.

A case is two files. NAME.txt holds `field = value` lines. NAME.bin holds, little-endian:

    u32 token ids [tokens]
    f32 logits [tokens][vocab]
    for every layer:
        CSA layers, for every token with more visible entries than index_topk:
            u16 entries [index_topk], ascending; f32 score margin of the choice
        layers without hash routing, for every token:
            u16 experts [num_experts_per_tok], ascending; f32 score margin of the choice
    with `draft`: f32 logits of the draft layer [tokens][vocab], the first token following the last
"""
import importlib.util
import math
import pathlib
import sys

import numpy as np

GAMMA = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1
DEVIATION = math.sqrt(4 * (2**32 - 1) / 12)
SEED = 20

YARN = dict(factor=4, original_max_position_embeddings=64, beta_fast=32, beta_slow=1)
LONG_YARN = dict(factor=16, original_max_position_embeddings=65536, beta_fast=32, beta_slow=1)
BASE = dict(
    hidden_size=64, num_attention_heads=4, head_dim=32, qk_rope_head_dim=8, q_lora_rank=24,
    o_lora_rank=12, o_groups=2, sliding_window=128, compress_ratios=[0, 128, 4, 128, 4, 0],
    index_n_heads=8, index_head_dim=16, index_topk=16, n_routed_experts=8, num_experts_per_tok=2,
    moe_intermediate_size=20, routed_scaling_factor=1.5, num_hash_layers=1, swiglu_limit=10.0,
    hc_mult=4, hc_sinkhorn_iters=20, hc_eps=1e-6, rms_norm_eps=1e-6, rope_theta=10000,
    compress_rope_theta=160000, rope_scaling=YARN, vocab_size=64,
)
CASES = {
    "every_kind": (dict(), 600),
    "no_hash_clamped": (
        dict(compress_ratios=[4, 4, 128, 0, 128, 4, 0], num_hash_layers=0, index_topk=3,
             swiglu_limit=0.4, qk_rope_head_dim=16, hidden_size=48, o_groups=4,
             n_routed_experts=12, num_experts_per_tok=3, routed_scaling_factor=2.5,
             vocab_size=50), 431),
    "production_rows": (
        dict(compress_ratios=[0, 128, 4, 0], head_dim=512, qk_rope_head_dim=64,
             index_head_dim=128, index_n_heads=4, rope_scaling=LONG_YARN, hidden_size=128,
             num_hash_layers=0, vocab_size=48), 400),
    "narrow_window": (
        dict(compress_ratios=[4, 128, 0, 0], rope_scaling=None, sliding_window=32, hc_mult=2,
             hc_sinkhorn_iters=5, hc_eps=1e-3, num_attention_heads=6, o_groups=3,
             index_n_heads=6, num_hash_layers=2, vocab_size=40), 300),
    "draft": (dict(compress_ratios=[0, 4, 128, 0], vocab_size=40, draft=1), 220),
}


def mix(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def draws(name, n):
    fnv = 0xCBF29CE484222325
    for byte in name.encode():
        fnv = ((fnv ^ byte) * 0x100000001B3) & MASK
    with np.errstate(over="ignore"):
        stream = mix(np.array([((SEED + GAMMA) & MASK) ^ fnv], dtype=np.uint64))
        return mix(stream + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(GAMMA))


def spread(name, shape):
    inputs = 1 / math.sqrt(shape[-1])
    for suffixes, answer in [
        (["norm.weight"], (1, 0.2)),
        (["_scale"], (1, 0.3)),
        (["embed.weight", "ape", "attn_sink", "_base"], (0, 1)),
        (["gate.bias"], (0, 0.3)),
        (["gate.weight"], (0, 2 * inputs)),
        ([".w1.weight", ".w3.weight"], (0, 1.5 * inputs)),
    ]:
        if name.endswith(tuple(suffixes)):
            return answer
    return 0, inputs


def floats(name, *shape):
    offset, k = spread(name, shape)
    u = draws(name, math.prod(shape))
    words = sum((u >> np.uint64(16 * i)) & np.uint64(0xFFFF) for i in range(4)).astype(np.int64)
    values = np.float32(offset) + (words - 131070).astype(np.float32) * np.float32(k / DEVIATION)
    return values.reshape(shape)


def ids(name, rows, each, below):
    u = draws(name, rows * each)
    table = np.empty((rows, each), dtype=np.int64)
    for row in range(rows):
        free = list(range(below))
        for slot in range(each):
            table[row, slot] = free.pop(int(u[row * each + slot]) % len(free))
    return table


def weights(c):
    D, H, d, m = c["hidden_size"], c["num_attention_heads"], c["head_dim"], c["hc_mult"]
    q, o, G, V = c["q_lora_rank"], c["o_lora_rank"], c["o_groups"], c["vocab_size"]
    E, I, k = c["n_routed_experts"], c["moe_intermediate_size"], c["num_experts_per_tok"]
    w = {}

    def put(name, *shape):
        w[name] = floats(name, *shape)

    def hyper(prefix, outputs, scales):
        put(prefix + "_fn", outputs, m * D)
        put(prefix + "_base", outputs)
        put(prefix + "_scale", scales)

    def compressor(prefix, r, width):
        columns = 2 * width if r == 4 else width
        put(prefix + "ape", r, columns)
        put(prefix + "wkv.weight", columns, D)
        put(prefix + "wgate.weight", columns, D)
        put(prefix + "norm.weight", width)

    put("embed.weight", V, D)
    put("head.weight", V, D)
    put("norm.weight", D)
    hyper("hc_head", m, 1)
    prefixes = [f"layers.{layer}." for layer in range(c["num_hidden_layers"])]
    if c.get("draft"):
        prefixes.append("mtp.0.")
        hyper("mtp.0.hc_head", m, 1)
        put("mtp.0.norm.weight", D)
        put("mtp.0.enorm.weight", D)
        put("mtp.0.hnorm.weight", D)
        put("mtp.0.e_proj.weight", D, D)
        put("mtp.0.h_proj.weight", D, D)
    for layer, p in enumerate(prefixes):
        r = c["compress_ratios"][layer]
        a, f = p + "attn.", p + "ffn."
        hyper(p + "hc_attn", (2 + m) * m, 3)
        hyper(p + "hc_ffn", (2 + m) * m, 3)
        put(p + "attn_norm.weight", D)
        put(p + "ffn_norm.weight", D)
        put(a + "attn_sink", H)
        put(a + "wq_a.weight", q, D)
        put(a + "q_norm.weight", q)
        put(a + "wq_b.weight", H * d, q)
        put(a + "wkv.weight", d, D)
        put(a + "kv_norm.weight", d)
        put(a + "wo_a.weight", G * o, H * d // G)
        put(a + "wo_b.weight", D, G * o)
        if r:
            compressor(a + "compressor.", r, d)
        if r == 4:
            ih, width = c["index_n_heads"], c["index_head_dim"]
            put(a + "indexer.wq_b.weight", ih * width, q)
            put(a + "indexer.weights_proj.weight", ih, D)
            compressor(a + "indexer.compressor.", r, width)
        put(f + "gate.weight", E, D)
        if layer < c["num_hash_layers"]:
            w[f + "gate.tid2eid"] = ids(f + "gate.tid2eid", V, k, E)
        else:
            put(f + "gate.bias", E)
        for expert in [f"experts.{e}." for e in range(E)] + ["shared_experts."]:
            put(f + expert + "w1.weight", I, D)
            put(f + expert + "w2.weight", D, I)
            put(f + expert + "w3.weight", I, D)
    return w


def choice(scores, k, chosen):
    """The chosen ids, ascending, and by how much the worst of them beats the best of the rest."""
    ranked = np.sort(scores)[::-1]
    return np.sort(chosen).astype("<u2").tobytes() + np.float32(ranked[k - 1] - ranked[k]).tobytes()


def case(reference, config, tokens):
    w = weights(config)
    token_ids = np.random.default_rng(1).integers(0, config["vocab_size"], tokens)
    taps = []
    logits, stack = reference.forward(token_ids, w, config, taps, return_stack=True)
    out = [token_ids.astype("<u4").tobytes(), logits.astype("<f4").tobytes()]
    for layer, tap in enumerate(taps):
        top = config["index_topk"]
        if config["compress_ratios"][layer] == 4:
            for t in range(tokens):
                visible = (t + 1) // 4
                if visible > top:
                    chosen = np.nonzero(tap["index_sel"][t])[0]
                    out.append(choice(tap["index_score"][t, :visible], top, chosen))
        if layer >= config["num_hash_layers"]:
            f = f"layers.{layer}.ffn."
            x = tap["ffn_in"] @ w[f + "gate.weight"].astype(np.float64).T
            scores = np.sqrt(np.logaddexp(0, x)) + w[f + "gate.bias"]
            for t in range(tokens):
                out.append(choice(scores[t], config["num_experts_per_tok"], tap["route_idx"][t]))
    if config.get("draft"):
        draft, _ = reference.mtp_forward(stack, np.roll(token_ids, -1), w, config)
        out.append(draft.astype("<f4").tobytes())
    return b"".join(out)


def text(config, tokens):
    lines = {"tokens": tokens, "seed": SEED, **config}
    yarn = lines.pop("rope_scaling")
    if yarn:
        lines.update({f"rope_scaling.{k}": v for k, v in yarn.items()})
    show = lambda v: ",".join(map(str, v)) if isinstance(v, list) else str(v)
    return "".join(f"{k} = {show(v)}\n" for k, v in sorted(lines.items()))


def main():
    spec = importlib.util.spec_from_file_location("reference", sys.argv[1])
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    out = pathlib.Path(sys.argv[2])
    for name, (change, tokens) in CASES.items():
        if sys.argv[3:] and name not in sys.argv[3:]:
            continue
        config = {**BASE, **change}
        config["num_hidden_layers"] = len(config["compress_ratios"]) - 1
        (out / f"{name}.txt").write_text(text(config, tokens))
        (out / f"{name}.bin").write_bytes(case(reference, config, tokens))


if __name__ == "__main__":
    main()
