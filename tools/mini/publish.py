"""DeepSeek-V4's published weight form: public tensor names, fp8 linears, fp4 experts, bf16 and f32 for the rest.

  fp8   attention projections, the indexer's query projection and the shared expert: F8_E4M3, with `NAME.scale`
        F8_E8M0 [ceil(rows / 128), ceil(cols / 128)], one power of two per 128 x 128 block.
  fp4   routed experts: I8 [rows, cols / 2], two E2M1 values a byte, the even column in the low nibble, with
        `NAME.scale` F8_E8M0 [rows, cols / 32], one power of two per 32 columns.
  bf16  embedding, head, norms, router, compressor projections, the indexer's head weights.
  f32   sinks, position biases (ape), router biases, hyper-connections.   I64  tid2eid.

A block's scale is the smallest power of two with amax / scale <= 448 (fp8) or <= 6 (fp4); a zero block has scale 1.
Values round to nearest, ties to even; none saturates.
"""

import json
import struct

import torch

FP8_MAX, FP4_MAX = 448.0, 6.0
FP4_VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
FP8_NAMES = ("attn.wq_a.weight", "attn.wq_b.weight", "attn.wkv.weight", "attn.wo_a.weight", "attn.wo_b.weight", "attn.indexer.wq_b.weight",
             "shared_experts.w1.weight", "shared_experts.w2.weight", "shared_experts.w3.weight")
F32_NAMES = ("attn_sink", ".ape", "gate.bias", "_fn", "_base", "_scale")
DTYPES = {torch.float8_e4m3fn: "F8_E4M3", torch.float8_e8m0fnu: "F8_E8M0", torch.int8: "I8", torch.bfloat16: "BF16", torch.float32: "F32", torch.int64: "I64"}


def public_names(w):
    """The stacked experts taken apart; everything else as it is."""
    out = {}
    for name, tensor in w.items():
        if ".experts.w" in name:
            layer, which = name.split(".experts.")
            for e in range(tensor.shape[0]):
                out[f"{layer}.experts.{e}.{which}.weight"] = tensor[e]
        else:
            out[name] = tensor
    return out


def stacked_names(public):
    """The inverse of `public_names`."""
    out, groups = {}, {}
    for name, tensor in public.items():
        if ".experts." in name and ".shared_experts." not in name:
            layer, rest = name.split(".experts.")
            e, which, _ = rest.split(".")
            groups.setdefault(f"{layer}.experts.{which}", {})[int(e)] = tensor
        else:
            out[name] = tensor
    for name, members in groups.items():
        out[name] = torch.stack([members[e] for e in sorted(members)])
    return out


def form_of(name):
    """'fp8' | 'fp4' | 'f32' | 'i64' | 'bf16' for a public name."""
    if name.endswith("tid2eid"):
        return "i64"
    if ".experts." in name and ".shared_experts." not in name:
        return "fp4"
    if name.endswith(FP8_NAMES):
        return "fp8"
    return "f32" if name.endswith(F32_NAMES) else "bf16"


def power_of_two(amax, largest):
    """Smallest power of two s with amax / s <= largest; 1 for a zero block."""
    mantissa, exponent = torch.frexp(torch.where(amax > 0, amax / largest, 1.0).double())
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
    return torch.ldexp(torch.ones_like(mantissa), exponent.clamp(-127, 127)).float()


def blocks(t, rows, cols):
    """t [r, c] -> [ceil(r / rows), ceil(c / cols), rows, cols], zero-padded."""
    r, c = t.shape
    t = torch.nn.functional.pad(t, (0, -c % cols, 0, -r % rows))
    return t.unflatten(1, (-1, cols)).unflatten(0, (-1, rows)).transpose(1, 2)


def unblock(b, shape):
    return b.transpose(1, 2).flatten(2, 3).flatten(0, 1)[: shape[0], : shape[1]]


def quantise_fp8(t):
    b = blocks(t.float(), 128, 128)
    scale = power_of_two(b.abs().amax((2, 3)), FP8_MAX)
    q = unblock(b / scale[:, :, None, None], t.shape)
    return q.contiguous().to(torch.float8_e4m3fn), scale.to(torch.float8_e8m0fnu)


def dequantise_fp8(q, scale):
    return unblock(blocks(q.float(), 128, 128) * scale.float()[:, :, None, None], q.shape).contiguous()


def quantise_fp4(t):
    b = t.float().unflatten(1, (-1, 32))
    scale = power_of_two(b.abs().amax(2), FP4_MAX)
    x = (b / scale[:, :, None]).flatten(1)
    values = torch.tensor(FP4_VALUES)
    middle = (values[1:] + values[:-1]) / 2
    size = x.abs()[..., None]
    even = torch.arange(7) % 2 == 0
    code = torch.where(even, size > middle, size >= middle).sum(-1)
    code = (code + 8 * (torch.signbit(x) & (code > 0))).to(torch.uint8)
    packed = code[:, 0::2] | (code[:, 1::2] << 4)
    return packed.view(torch.int8), scale.to(torch.float8_e8m0fnu)


def dequantise_fp4(packed, scale):
    code = packed.view(torch.uint8)
    code = torch.stack([code & 15, code >> 4], -1).flatten(1).long()
    table = torch.tensor(FP4_VALUES + [-v for v in FP4_VALUES])
    return (table[code].unflatten(1, (-1, 32)) * scale.float()[:, :, None]).flatten(1)


def published(w):
    """Training weights -> {public name: tensor in its stored type}, scales included."""
    out = {}
    for name, tensor in public_names(w).items():
        tensor, form = tensor.detach().cpu(), form_of(name)
        if form in ("fp8", "fp4"):
            quantise = quantise_fp8 if form == "fp8" else quantise_fp4
            out[name], out[name.removesuffix("weight") + "scale"] = quantise(tensor)
        else:
            out[name] = tensor.to({"i64": torch.int64, "f32": torch.float32, "bf16": torch.bfloat16}[form]).contiguous()
    return out


def restored(stored):
    """The inverse of `published`, in float32, with stacked experts: what a loader computes with."""
    out = {}
    for name, tensor in stored.items():
        if form_of(name) == "bf16" and name.endswith(".scale"):
            continue
        form = form_of(name)
        if form in ("fp8", "fp4") and not name.endswith(".scale"):
            dequantise = dequantise_fp8 if form == "fp8" else dequantise_fp4
            out[name] = dequantise(tensor, stored[name.removesuffix("weight") + "scale"])
        elif not name.endswith(".scale"):
            out[name] = tensor if form == "i64" else tensor.float()
    return stacked_names(out)


def write_safetensors(path, tensors):
    """Sorted by name, so that equal weights give equal files."""
    header, at, parts = {"__metadata__": {"format": "pt"}}, 0, []
    for name in sorted(tensors):
        t = tensors[name].contiguous()
        raw = t.view(torch.uint8).numpy().tobytes() if t.ndim else bytes(t.reshape(1).view(torch.uint8).numpy())
        header[name] = {"dtype": DTYPES[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        parts.append(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


def read_safetensors(path):
    types = {v: k for k, v in DTYPES.items()}
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = bytearray(f.read())
    out = {}
    for name, entry in header.items():
        if name != "__metadata__":
            a, b = entry["data_offsets"]
            out[name] = torch.frombuffer(data[a:b], dtype=types[entry["dtype"]]).reshape(entry["shape"])
    return out
