"""Makes the fixtures of the public oracle: PyPI transformers 5.24.0, `deepseek_v4`, in true float64.

    cargo run --release -p statepages-weights --example oracle_inputs -- INPUTS
    make_published_fixtures.py INPUTS OUTPUT_DIRECTORY      needs torch, transformers 5.24.0, accelerate

The oracle loads the very files in INPUTS/NAME: config.json and safetensors with fp8, fp4 and bf16
weights. NAME_f32.bin is its own forward; NAME_fp8.bin and NAME_fp8_fp4.bin are its forward with our
cached rows, read from INPUTS/NAME/rows_*.bin and decoded here, in place of its keys, values and
indexer keys. NAME.sha256 is the digest of the files that it loaded. A .bin holds, little-endian:

    f32 logits [tokens][vocab]
    for every layer:
        CSA layers, for every token with more visible entries than index_topk:
            u16 entries [index_topk], ascending; f32 score margin of the choice
        layers without hash routing, for every token:
            u16 experts [num_experts_per_tok], ascending; f32 score margin of the choice
"""
import hashlib
import json
import pathlib
import sys

import numpy as np
import torch
import transformers
from transformers import DeepseekV4ForCausalLM
from transformers import modeling_rope_utils as rope_utils
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as oracle

assert transformers.__version__ == "5.24.0", transformers.__version__
CHUNK = 128


class Wide:
    """torch, with float32 meaning float64: the oracle casts to float32 whatever the model's dtype is."""
    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def load(directory):
    """The oracle on a directory, its arithmetic in float64; weights are exact in float32."""
    model, info = DeepseekV4ForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
        output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"], info
    assert all(key.startswith("mtp.") for key in info["unexpected_keys"]), info
    model = model.eval().double()
    for module in model.modules():
        if isinstance(module, oracle.DeepseekV4RotaryEmbedding):
            for kind in module.layer_types:
                default = module.rope_type[kind] == "default"
                make = module.compute_default_rope_parameters if default else rope_utils.ROPE_INIT_FUNCTIONS[module.rope_type[kind]]
                setattr(module, f"{kind}_inv_freq", make(model.config, None, layer_type=kind)[0].double())
    return model


def stable_topk(x, k, dim=-1, **_):
    """Ties go to the lower index."""
    values, indices = torch.sort(x, dim=dim, descending=True, stable=True)
    return torch.return_types.topk((values.narrow(dim, 0, k), indices.narrow(dim, 0, k)))


def e4m3(codes):
    return torch.frombuffer(bytearray(codes.tobytes()), dtype=torch.uint8).view(torch.float8_e4m3fn).double().numpy().reshape(codes.shape)


def decode_kv(rows, c):
    d, r = c["head_dim"], c["qk_rope_head_dim"]
    nope = d - r
    scales = 2.0 ** (rows[:, nope:nope + 2 * (nope // 64):2].astype(float) - 127)
    values = e4m3(rows[:, :nope]) * np.repeat(scales, 64, 1)
    rope = np.ascontiguousarray(rows[:, d:]).view("<u2").astype(np.uint32) << 16
    return np.concatenate([values, rope.view(np.float32).astype(float)], 1)


def decode_index(rows, c, form):
    n = c["index_head_dim"]
    if form == "fp8":
        return e4m3(rows[:, :n]) * np.ascontiguousarray(rows[:, n:]).view("<f4").astype(float)
    table = np.array([0, .5, 1, 1.5, 2, 3, 4, 6])
    table = np.concatenate([table, -table])
    packed = rows[:, :n // 2]
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(len(rows), n)
    return table[codes] * np.repeat(2.0 ** (rows[:, n // 2:].astype(float) - 127), 32, 1)


def cached_rows(path, c, tokens, form):
    """By layer: keys in the oracle's order (window rows, then entries), and indexer keys."""
    data, at = np.frombuffer(path.read_bytes(), np.uint8), 0
    kv_bytes = c["head_dim"] + 2 * c["qk_rope_head_dim"]
    n = c["index_head_dim"]
    index_bytes = n + 4 if form == "fp8" else n // 2 + n // 32
    parts = [([], [], []) for _ in range(c["num_hidden_layers"])]
    for start in range(0, tokens, CHUNK):
        end = min(tokens, start + CHUNK)
        for layer, (window, entries, index) in enumerate(parts):
            r = c["compress_ratios"][layer]
            done = end // r - start // r if r else 0
            for out, count, size in ((window, end - start, kv_bytes), (entries, done, kv_bytes), (index, done if r == 4 else 0, index_bytes)):
                out.append(data[at:at + count * size].reshape(count, size))
                at += count * size
    assert at == len(data)
    join = lambda rows: np.concatenate(rows)
    keys = [decode_kv(np.concatenate([join(w), join(e)]), c) for w, e, _ in parts]
    index = [decode_index(join(i), c, "fp8" if form == "fp8" else "fp4") if c["compress_ratios"][l] == 4 else None
             for l, (_, _, i) in enumerate(parts)]
    return keys, index


def forward(model, ids, rows):
    """Logits, and by layer index scores, chosen entries, expert scores and chosen experts."""
    seen, hooks, plain = {}, [], oracle.eager_attention_forward
    if rows:
        keys, index = rows

        def attend(module, query, key, value, *args, **kwargs):
            ours = torch.tensor(keys[module.layer_idx])[None, None]
            assert ours.shape == key.shape, (ours.shape, key.shape)
            seen["distance"] = max(seen.get("distance", 0), float((ours - key).norm() / key.norm()))
            return plain(module, query, ours, ours, *args, **kwargs)
        oracle.eager_attention_forward = attend
    for l, layer in enumerate(model.model.layers):
        indexer = getattr(layer.self_attn.compressor, "indexer", None)
        if indexer is not None:
            if rows:
                def feed(module, args, l=l):
                    ours = torch.tensor(rows[1][l])[None]
                    assert ours.shape == args[1].shape
                    return (args[0], ours, *args[2:])
                hooks.append(indexer.scorer.register_forward_pre_hook(feed))
            hooks.append(indexer.scorer.register_forward_hook(lambda m, i, o, l=l: seen.__setitem__((l, "scores"), o[0].numpy())))
            hooks.append(indexer.register_forward_hook(lambda m, i, o, l=l: seen.__setitem__((l, "entries"), o[0].numpy())))

        def route(module, i, o, l=l):
            bias = getattr(module, "e_score_correction_bias", None)
            if bias is not None:
                seen[l, "experts"] = o[2].numpy()
                seen[l, "router"] = (module.score_fn(o[0]) + bias).numpy()
        hooks.append(layer.mlp.gate.register_forward_hook(route))
    old_float, old_topk, old_torch = torch.Tensor.float, torch.Tensor.topk, torch.topk
    rope_utils.torch = oracle.torch = Wide()
    torch.Tensor.float, torch.Tensor.topk, torch.topk = torch.Tensor.double, stable_topk, stable_topk
    with torch.no_grad():
        logits = model(torch.tensor(ids)[None], use_cache=False).logits[0].numpy()
    rope_utils.torch = oracle.torch = torch
    torch.Tensor.float, torch.Tensor.topk, torch.topk = old_float, old_topk, old_torch
    oracle.eager_attention_forward = plain
    [hook.remove() for hook in hooks]
    assert logits.dtype == np.float64
    return logits, seen


def choice(scores, k, chosen):
    ranked = np.sort(scores)[::-1]
    assert len(set(chosen)) == k
    return np.sort(chosen).astype("<u2").tobytes() + np.float32(ranked[k - 1] - ranked[k]).tobytes()


def pack(c, logits, seen):
    out = [logits.astype("<f4").tobytes()]
    for layer in range(c["num_hidden_layers"]):
        top = c["index_topk"]
        for t in range(len(logits)):
            visible = (t + 1) // 4
            if c["compress_ratios"][layer] == 4 and visible > top:
                out.append(choice(seen[layer, "scores"][t, :visible], top, seen[layer, "entries"][t]))
        if layer >= c["num_hash_layers"]:
            for t in range(len(logits)):
                out.append(choice(seen[layer, "router"][t], c["num_experts_per_tok"], seen[layer, "experts"][t]))
    return b"".join(out)


def main():
    inputs, out = map(pathlib.Path, sys.argv[1:3])
    for directory in sorted(path for path in inputs.iterdir() if path.is_dir()):
        name, c = directory.name, json.loads((directory / "config.json").read_text())
        files = sorted(directory.glob("*.safetensors"))
        digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
        (out / f"{name}.sha256").write_text(digest + "\n")
        ids = np.frombuffer((directory / "ids.bin").read_bytes(), "<u4").astype(np.int64)
        model = load(directory)
        for form in ("f32", "fp8", "fp8_fp4"):
            rows = None if form == "f32" else cached_rows(directory / f"rows_{form}.bin", c, len(ids), form)
            logits, seen = forward(model, ids, rows)
            print(name, form, "rows differ from the oracle's own by at most", seen.get("distance"), flush=True)
            (out / f"{name}_{form}.bin").write_bytes(pack(c, logits, seen))


if __name__ == "__main__":
    main()
