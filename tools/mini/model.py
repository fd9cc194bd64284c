"""The DeepSeek-V4 forward in PyTorch, for whole sequences, differentiable; and the weights it starts from.

Weights are a dict of float32 tensors under the public names, with one difference: a layer's experts are stacked,
`layers.L.ffn.experts.w1` [E, I, D]. `publish.py` takes them apart. Everything that is a row per token is flattened to
N = B * T; T must be a multiple of the window (pad at the end: the model is causal).

Matrix products run in `Run.dtype` (bf16 to train, float32 to measure, float64 to compare with a reference); norms,
router, compressor, indexer weights and hyper-connections run in float32 or better.

The indexer gets no gradient through its choice. `Run.teach` = a phase in 0..3 adds the divergence between what its
layer attends to and what it scores, over the queries of that phase, with detached inputs. `Run.lead` shows it the entries instead.
"""

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from sinkhorn import sinkhorn

WINDOW_BLOCK = 128
LOWEST = float("-inf")


@dataclass
class Fault:
    """What a resumer finds in its slot instead of the state at `boundary`: 'empty' (zero rows, scores of -inf),
    'other' (the state of another sequence of the batch at the same boundary), 'older' (its own, 256 tokens older)."""

    kind: str
    boundary: int


@dataclass
class Lead:
    """What the first CSA layer is shown in a run with `train.py --lead`, at `rows` [B * K], as many in every sequence: the first of the two
    entries that hold the fact, the question's name and attribute, each with its weight (0: nothing to show); `names` and
    `attributes` [V, D] read them out of the layer's input. `found` receives the three losses and, by row, whether the fact is among the 16 best."""

    rows: torch.Tensor
    entry: torch.Tensor
    name: torch.Tensor
    attribute: torch.Tensor
    weights: torch.Tensor
    names: torch.Tensor
    attributes: torch.Tensor
    found: list = field(default_factory=list)


@dataclass
class Run:
    """How one forward is executed. `rows`: the format of cached rows, 'exact' | 'bf16' | 'fp8' (the two-plane row, and fp8
    index rows); every query reads rounded rows, those of its own chunk too. `taps` receives the index scores and choices by layer when it is a dict.
    `divergence` and `odd` receive, per CSA layer, the index loss and how many of its targets, log-probabilities and terms are not finite."""

    dtype: torch.dtype
    sparse: bool
    teach: int | None = None
    exact_ties: bool = False
    rows: str = "exact"
    fault: Fault | None = None
    taps: dict | None = None
    lead: Lead | None = None
    divergence: list = field(default_factory=list)
    odd: list = field(default_factory=list)


PIECES = []
GROWING = {"joint_softmax": (1, 2), "index_sum": (0,), "divergence": (0, 2)}


def piece(function):
    """Marks a function that `compile_pieces` may replace by its compiled form."""
    PIECES.append(function.__name__)
    return function


def compile_pieces():
    """Replaces the pieces by compiled ones. The number of tokens of a batch is part of the compiled code, so it should
    stay the same over a run; the number of entries may change: it is the last dimension of the arguments in GROWING."""
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.automatic_dynamic_shapes = False

    def growing(compiled, arguments):
        def call(*args):
            for i in arguments:
                if args[i] is not None:
                    torch._dynamo.maybe_mark_dynamic(args[i], args[i].ndim - 1)
            return compiled(*args)

        return call

    for name in PIECES:
        compiled = torch.compile(globals()[name])
        globals()[name] = growing(compiled, GROWING[name]) if name in GROWING else compiled


# ------------------------------------------------------------------------------------------------ small pieces
def wide(x):
    return x if x.dtype == torch.float64 else x.float()


def matmul(x, weight, dtype):
    return x.to(dtype) @ weight.to(dtype).mT


def rms(x, weight, eps):
    x = wide(x)
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight


def rope(x, cos, sin):
    """Adjacent pairs of the last 2 * cos.shape[-1] columns."""
    n = 2 * cos.shape[-1]
    a, b = x[..., -n::2], x[..., 1 - n :: 2]
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([x[..., :-n], turned], -1)


def inverse_frequencies(cfg, ratio):
    dr = cfg["qk_rope_head_dim"]
    i = torch.arange(dr // 2, dtype=torch.float64)
    if ratio == 0:
        return cfg["rope_theta"] ** (-2 * i / dr)
    base, yarn = cfg["compress_rope_theta"], cfg["rope_scaling"]
    f = base ** (-2 * i / dr)
    turns = lambda n: dr * math.log(yarn["original_max_position_embeddings"] / (n * 2 * math.pi)) / (2 * math.log(base))
    low, high = max(math.floor(turns(yarn["beta_fast"])), 0), min(math.ceil(turns(yarn["beta_slow"])), dr - 1)
    smooth = 1 - ((i - low) / (high - low if high != low else 0.001)).clamp(0, 1)
    return f / yarn["factor"] * (1 - smooth) + f * smooth


def fp8_groups(x, size, least):
    """Round trip through e4m3 with one power-of-two scale per `size` columns."""
    groups = x.unflatten(-1, (-1, size))
    amax = groups.abs().amax(-1, keepdim=True)
    scale = torch.exp2(torch.ceil(torch.log2((amax / 448).clamp(min=least))))
    return ((groups / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale).flatten(-2)


def cached(row, run, rotated):
    """A row as its cache gives it back. `rotated`: how many columns at the end stay bf16; 0 for an index row."""
    if run.rows == "exact":
        return row
    if run.rows == "bf16":
        return row.bfloat16().to(row.dtype)
    assert run.rows == "fp8", run.rows
    if rotated == 0:
        return fp8_groups(row, row.shape[-1], 1e-4 / 448)
    return torch.cat([fp8_groups(row[..., :-rotated], 64, 1e-4), row[..., -rotated:].bfloat16().to(row.dtype)], -1)


# ------------------------------------------------------------------------------------------------ hyper-connections
@piece
def hc_parts(stack, fn, base, scale, eps, hc_eps):
    flat = stack.flatten(1)
    z = (flat @ fn.T) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + eps)
    m = stack.shape[1]
    pre = torch.sigmoid(z[:, :m] * scale[0] + base[:m]) + hc_eps
    post = 2 * torch.sigmoid(z[:, m : 2 * m] * scale[1] + base[m : 2 * m])
    return pre, post, (z[:, 2 * m :] * scale[2] + base[2 * m :]).unflatten(-1, (m, m))


@piece
def hc_in(stack, pre, weight, eps):
    return rms((stack * pre[:, :, None]).sum(1), weight, eps)


@piece
def hc_out(stack, y, post, mix):
    y = wide(y)
    m = stack.shape[1]
    columns = [post[:, b, None] * y + sum(mix[:, a, b, None] * stack[:, a] for a in range(m)) for b in range(m)]
    return torch.stack(columns, 1)


# ------------------------------------------------------------------------------------------------ attention
@piece
def attention_inputs(x, wq_a, q_norm, wq_b, wkv, kv_norm, cos, sin, heads: int, eps, dtype: torch.dtype):
    qr = rms(matmul(x, wq_a, dtype), q_norm, eps)
    q = rms(matmul(qr, wq_b, dtype).unflatten(-1, (heads, -1)), None, eps)
    kv = rms(matmul(x, wkv, dtype), kv_norm, eps)
    return qr, rope(q, cos[:, None], sin[:, None]).to(dtype), rope(kv, cos, sin).to(dtype)


@piece
def pool(kv, score, prev_kv, prev_score, weight, cos, sin, eps):
    """Entries from pools. kv, score [n, r, d] of the current block, prev_* [n, r, d] of the block before or None."""
    if prev_kv is not None:
        kv, score = torch.cat([prev_kv, kv], 1), torch.cat([prev_score, score], 1)
    entry = (torch.softmax(score, 1) * kv).sum(1)
    return rope(rms(entry, weight, eps), cos, sin)


def compress(x, w, pre, ratio, tables, eps, run):
    """x [N, D] -> entries [B, E, d]; entry e covers tokens e * ratio .. and, for ratio 4, also the block before."""
    kv = (x @ w[pre + "wkv.weight"].T).unflatten(0, (tables.batch, -1, ratio))
    score = (x @ w[pre + "wgate.weight"].T).unflatten(0, (tables.batch, -1, ratio)) + w[pre + "ape"]
    d = w[pre + "norm.weight"].shape[0]
    cos, sin = tables.entries(ratio)
    prev_kv = prev_score = None
    if ratio == 4:
        prev_kv = previous(kv[..., :d], 0.0, run, 4).flatten(0, 1)
        prev_score = previous(score[..., :d], LOWEST, run, 4).flatten(0, 1)
        kv, score = kv[..., d:], score[..., d:]
    entries = pool(kv.flatten(0, 1), score.flatten(0, 1), prev_kv, prev_score, w[pre + "norm.weight"], cos, sin, eps)
    return entries.unflatten(0, (tables.batch, -1))


def previous(blocks, nothing, run, size):
    """blocks [B, n, size, d] -> the block before each, `nothing` before the first. A fault replaces what stands before its boundary."""
    out = F.pad(blocks[:, :-1], (0, 0, 0, 0, 1, 0), value=nothing)
    if run.fault is not None:
        out = out.clone()
        at = run.fault.boundary // size
        if run.fault.kind == "empty":
            out[:, at] = nothing
        elif run.fault.kind == "other":
            out[:, at] = blocks[:, at - 1].roll(1, 0)
        elif run.fault.kind == "older":
            out[:, at] = blocks[:, at - 1 - 256 // size]
        else:
            raise ValueError(run.fault.kind)
    return out


def masked_logits(raw_window, raw_entries, chosen, position, ratio: int, scale: float):
    """raw_window [n, H, 256] against the block before and the own block, raw_entries [n, H, E] -> both, scaled and masked."""
    at, j = (position % WINDOW_BLOCK)[:, None, None], torch.arange(2 * WINDOW_BLOCK, device=raw_window.device)
    first = (position < WINDOW_BLOCK)[:, None, None]
    seen = (j <= at + WINDOW_BLOCK) & (j > at) & (~first | (j >= WINDOW_BLOCK))
    window = torch.where(seen, wide(raw_window) * scale, LOWEST)
    if raw_entries is None:
        return window, None
    visible = (torch.arange(raw_entries.shape[-1], device=window.device) < ((position + 1) // ratio)[:, None])[:, None]
    if chosen is not None:
        visible = visible & chosen[:, None]
    return window, torch.where(visible, wide(raw_entries) * scale, LOWEST)


@piece
def joint_softmax(raw_window, raw_entries, chosen, sink, position, ratio: int, scale: float, dtype: torch.dtype):
    window, entries = masked_logits(raw_window, raw_entries, chosen, position, ratio, scale)
    top = torch.maximum(window.amax(-1, keepdim=True), sink[:, None])
    if entries is not None:
        top = torch.maximum(top, entries.amax(-1, keepdim=True))
    top = top.detach()
    p_window = torch.exp(window - top)
    total = p_window.sum(-1, keepdim=True) + torch.exp(sink[:, None] - top)
    if entries is None:
        return (p_window / total).to(dtype), None
    p_entries = torch.exp(entries - top)
    total = total + p_entries.sum(-1, keepdim=True)
    return (p_window / total).to(dtype), (p_entries / total).to(dtype)


@piece
def attention_output(o, wo_a, wo_b, cos, sin, dtype: torch.dtype):
    o = rope(wide(o), cos[:, None], -sin[:, None]).to(dtype)
    groups = wo_a.shape[0]
    y = torch.einsum("ngi,goi->ngo", o.flatten(1).unflatten(-1, (groups, -1)), wo_a.to(dtype))
    return matmul(y.flatten(1), wo_b, dtype)


def attention(x, w, pre, cfg, layer, tables, run):
    heads, ratio, eps = cfg["num_attention_heads"], cfg["compress_ratios"][layer], cfg["rms_norm_eps"]
    batch, scale = tables.batch, cfg["head_dim"] ** -0.5
    cos, sin = tables.tokens(ratio)
    qr, q, kv = attention_inputs(x, w[pre + "wq_a.weight"], w[pre + "q_norm.weight"], w[pre + "wq_b.weight"], w[pre + "wkv.weight"],
                                 w[pre + "kv_norm.weight"], cos, sin, heads, eps, run.dtype)
    d, kv = kv.shape[-1], cached(kv, run, cfg["qk_rope_head_dim"])
    blocks = kv.unflatten(0, (batch, -1, WINDOW_BLOCK))
    keys = torch.cat([previous(blocks, 0.0, run, WINDOW_BLOCK), blocks], 2).flatten(0, 1)
    raw_window = (q.reshape(len(keys), -1, d) @ keys.mT).view(len(x), heads, -1)
    entries = raw_entries = chosen = None
    if ratio:
        entries = compress(x, w, pre + "compressor.", ratio, tables, eps, run).to(run.dtype)
        entries = cached(entries, run, cfg["qk_rope_head_dim"])
        raw_entries = (q.reshape(batch, -1, d) @ entries.mT).view(len(x), heads, -1)
    if ratio == 4:
        chosen = index(x, qr, w, pre, cfg, layer, tables, run, raw_window, raw_entries)
    p_window, p_entries = joint_softmax(raw_window, raw_entries, chosen, w[pre + "attn_sink"], tables.position, ratio or 1, scale, run.dtype)
    o = (p_window.view(len(keys), -1, 2 * WINDOW_BLOCK) @ keys).view(batch, -1, d)
    if ratio:
        o = o + p_entries.view(batch, -1, p_entries.shape[-1]) @ entries
    wo_a = w[pre + "wo_a.weight"].unflatten(0, (cfg["o_groups"], -1))
    return attention_output(o.view(-1, heads, d), wo_a, w[pre + "wo_b.weight"], cos, sin, run.dtype)


# ------------------------------------------------------------------------------------------------ indexer
@piece
def index_query(x, qr, wq_b, weights_proj, cos, sin, heads: int, dtype: torch.dtype):
    q = rope(wide(matmul(qr, wq_b, dtype)).unflatten(-1, (heads, -1)), cos[:, None], sin[:, None]).to(dtype)
    return q, (x @ weights_proj.T) * (q.shape[-1] ** -0.5 * heads**-0.5)


@piece
def index_sum(raw, weights, position):
    """raw [n, heads, E], weights [n, heads] -> scores [n, E], -inf where an entry does not exist yet."""
    visible = torch.arange(raw.shape[-1], device=raw.device) < ((position + 1) // 4)[:, None]
    return torch.where(visible, (torch.relu(wide(raw)) * weights[..., None]).sum(1), LOWEST)


def every(t, tables, phase):
    """Rows of the queries at phase, phase + 4, ... of every sequence; all rows if phase is None."""
    return t if phase is None else t.unflatten(0, (tables.batch, -1, 4))[:, :, phase].flatten(0, 1)


def index_scores(q, weights, keys, tables, phase):
    q = every(q, tables, phase)
    raw = (q.reshape(tables.batch, -1, q.shape[-1]) @ keys.mT).view(len(q), q.shape[1], -1)
    return index_sum(raw, every(weights, tables, phase), every(tables.position, tables, phase))


@piece
def divergence(scores, raw_window, raw_entries, sink, weight, position, scale: float):
    """Mean over queries, weighted, of KL(what all heads together attend to among the entries || softmax of scores)."""
    window, entries = masked_logits(raw_window, raw_entries, None, position, 4, scale)
    top = torch.maximum(torch.maximum(window.amax(-1, keepdim=True), entries.amax(-1, keepdim=True)), sink[:, None])
    total = torch.exp(window - top).sum(-1, keepdim=True) + torch.exp(sink[:, None] - top)
    mass = torch.exp(entries - top)
    target = (mass / (total + mass.sum(-1, keepdim=True))).sum(1)
    target = target / (target.sum(-1, keepdim=True) + 1e-20)
    safe = torch.where(scores > LOWEST, scores, -1e30)
    log_q = torch.log_softmax(safe, -1)
    terms = target * (torch.log(target + 1e-20) - log_q)
    odd = torch.stack([(~torch.isfinite(t)).sum().float() for t in (target, log_q, terms)])
    terms = torch.where(target > 0, terms, 0.0)
    return (terms.sum(-1) * weight).sum() / weight.sum(), odd


plain_index_query = index_query  # stays as it is when the pieces are compiled


def show(lead, x, qr, w, pre, cfg, tables, run):
    """The losses of `Lead`. Unlike the divergence they reach the layers below."""
    cos, sin = (t[lead.rows] for t in tables.tokens(4))
    pre_index = pre + "indexer."
    q, weights = plain_index_query(x[lead.rows], qr[lead.rows], w[pre_index + "wq_b.weight"], w[pre_index + "weights_proj.weight"], cos, sin, cfg["index_n_heads"], run.dtype)
    keys = compress(x, w, pre_index + "compressor.", 4, tables, cfg["rms_norm_eps"], run).to(run.dtype)
    raw = wide(q.reshape(tables.batch, -1, q.shape[-1]) @ keys.mT).view(len(q), q.shape[1], -1)
    visible = torch.arange(raw.shape[-1], device=raw.device) < ((tables.position[lead.rows] + 1) // 4)[:, None]
    scores = torch.where(visible, (torch.relu(raw) * weights[..., None]).sum(1), -1e30)
    pair = torch.stack([lead.entry, lead.entry + 1], 1)
    best = torch.gather(scores, 1, pair).amax(1, keepdim=True)
    mean = lambda each, weight: (each * weight).sum() / weight.sum().clamp(min=1)
    read = lambda table, wanted: F.cross_entropy(x[lead.rows] @ table.T, wanted, reduction="none")
    entry = -torch.logsumexp(torch.gather(torch.log_softmax(scores, -1), 1, pair), 1)
    lead.found += [mean(entry, lead.weights[0]), mean(read(lead.names, lead.name), lead.weights[1]), mean(read(lead.attributes, lead.attribute), lead.weights[2]),
                   (scores > best).sum(1) < 16]


def index(x, qr, w, pre, cfg, layer, tables, run, raw_window, raw_entries):
    """The choice of entries [N, E], or None if every visible entry is to be used."""
    heads, eps = cfg["index_n_heads"], cfg["rms_norm_eps"]
    teach_weight = tables.teach_weight
    if run.lead is not None and layer == cfg["compress_ratios"].index(4):
        show(run.lead, x, qr, w, pre, cfg, tables, run)
        teach_weight = teach_weight.scatter(0, run.lead.rows, teach_weight[run.lead.rows] * (1 - run.lead.weights[0]))
    x, qr = x.detach(), qr.detach()
    pre_index = pre + "indexer."
    cos, sin = tables.tokens(4)
    with torch.set_grad_enabled(torch.is_grad_enabled() and run.teach is not None):
        q, weights = index_query(x, qr, w[pre_index + "wq_b.weight"], w[pre_index + "weights_proj.weight"], cos, sin, heads, run.dtype)
        keys = cached(compress(x, w, pre_index + "compressor.", 4, tables, eps, run).to(run.dtype), run, 0)
    if run.teach is not None:
        scores = index_scores(q, weights, keys, tables, run.teach)
        seen = [every(t, tables, run.teach) for t in (raw_window.detach(), raw_entries.detach(), teach_weight, tables.position)]
        loss, odd = divergence(scores, seen[0], seen[1], w[pre + "attn_sink"].detach(), seen[2] * (seen[3] >= 3), seen[3], cfg["head_dim"] ** -0.5)
        run.divergence.append(loss)
        run.odd.append(odd)
    if not run.sparse:
        return None
    with torch.no_grad():
        scores = index_scores(q, weights, keys, tables, None)
        count = min(cfg["index_topk"], scores.shape[-1])
        if run.exact_ties:
            order = scores.sort(dim=-1, descending=True, stable=True).indices[..., :count]
            chosen = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order, True)
        else:
            chosen = scores >= scores.topk(count, sorted=True).values[..., -1:]
    if run.taps is not None:
        run.taps["index", layer] = scores
    return chosen


# ------------------------------------------------------------------------------------------------ experts
@piece
def router(x, gate, bias, fixed, count: int, factor: float):
    """x [N, D] -> weights [N, E], zero where an expert is not chosen, and the load of every expert."""
    s = torch.sqrt(F.softplus(x @ gate.T))
    picked = fixed if fixed is not None else (s.detach() + bias).topk(count, -1).indices
    on = torch.zeros_like(s).scatter(-1, picked, 1.0)
    kept = s * on
    return kept / (kept.sum(-1, keepdim=True) + 1e-20) * factor, on.mean(0)


@piece
def experts(x, weights, w1, w2, w3, s1, s2, s3, limit: float, dtype: torch.dtype):
    """All experts on all tokens, those not chosen with weight zero: one wide product is faster than eight gathers at this size."""
    gate = wide(matmul(x, torch.cat([w1.flatten(0, 1), s1]), dtype)).clamp(max=limit)
    up = wide(matmul(x, torch.cat([w3.flatten(0, 1), s3]), dtype)).clamp(-limit, limit)
    share = torch.cat([weights.repeat_interleave(w1.shape[1], -1), torch.ones_like(weights[:, :1]).expand(-1, s1.shape[0])], -1)
    return matmul(F.silu(gate) * up * share, torch.cat([w2.transpose(0, 1).flatten(1), s2], 1), dtype)


def feed_forward(x, tokens, w, pre, cfg, layer, run):
    hashed = layer < cfg["num_hash_layers"]
    fixed = w[pre + "gate.tid2eid"][tokens] if hashed else None
    weights, load = router(x, w[pre + "gate.weight"], None if hashed else w[pre + "gate.bias"], fixed, cfg["num_experts_per_tok"], cfg["routed_scaling_factor"])
    if run.taps is not None:
        run.taps["load", layer] = load.detach()
    parts = [w[f"{pre}experts.w{i}"] for i in (1, 2, 3)] + [w[f"{pre}shared_experts.w{i}.weight"] for i in (1, 2, 3)]
    return experts(x, weights, *parts, cfg["swiglu_limit"], run.dtype)


# ------------------------------------------------------------------------------------------------ whole model
class Tables:
    """Positions and rotation tables of one batch shape. The angle is float32: that is part of the definition."""

    def __init__(self, cfg, batch, length, device, dtype):
        assert length % WINDOW_BLOCK == 0, length
        self.batch, self.length = batch, length
        self.position = torch.arange(length, device=device).repeat(batch)
        self.teach_weight = None
        self.dtype = dtype if dtype == torch.float64 else torch.float32
        self.cache = {}
        for ratio in set(cfg["compress_ratios"]) | {4}:
            frequencies = inverse_frequencies(cfg, ratio).to(device)
            self.cache["tokens", ratio] = self.angles(self.position, frequencies)
            if ratio:
                starts = torch.arange(length // ratio, device=device) * ratio
                self.cache["entries", ratio] = self.angles(starts.repeat(batch), frequencies)

    def angles(self, positions, frequencies):
        if self.dtype == torch.float64:
            a = positions.double()[:, None] * frequencies
        else:
            a = (positions.float()[:, None] * frequencies.float()).double()
        return a.cos().to(self.dtype), a.sin().to(self.dtype)

    def tokens(self, ratio):
        return self.cache["tokens", ratio]

    def entries(self, ratio):
        return self.cache["entries", ratio]


@piece
def head(stack, fn, base, scale, weight, matrix, eps, hc_eps, dtype: torch.dtype):
    flat = stack.flatten(1)
    z = (flat @ fn.T) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + eps)
    pre = torch.sigmoid(z * scale + base) + hc_eps
    return matmul(rms((stack * pre[:, :, None]).sum(1), weight, eps), matrix, dtype)


def forward(tokens, w, cfg, tables, run):
    """tokens [B, T] -> logits [B * T, vocab]."""
    flat = tokens.flatten()
    eps, hc_eps = cfg["rms_norm_eps"], cfg["hc_eps"]
    stack = w["embed.weight"][flat][:, None].expand(-1, cfg["hc_mult"], -1).contiguous()
    for layer in range(cfg["num_hidden_layers"]):
        for sub in ("attn", "ffn"):
            p = f"layers.{layer}."
            pre, post, logits = hc_parts(stack, w[f"{p}hc_{sub}_fn"], w[f"{p}hc_{sub}_base"], w[f"{p}hc_{sub}_scale"], eps, hc_eps)
            mix = sinkhorn(logits, cfg["hc_sinkhorn_iters"], hc_eps)
            x = hc_in(stack, pre, w[f"{p}{sub}_norm.weight"], eps)
            if sub == "attn":
                y = attention(x, w, p + "attn.", cfg, layer, tables, run)
            else:
                y = feed_forward(x, flat, w, p + "ffn.", cfg, layer, run)
            stack = hc_out(stack, y, post, mix)
    return head(stack, w["hc_head_fn"], w["hc_head_base"], w["hc_head_scale"], w["norm.weight"], w["head.weight"], eps, hc_eps, run.dtype)


# ------------------------------------------------------------------------------------------------ first weights
def initial_weights(cfg, seed, local=True):
    """Float32 weights on the CPU. Output projections are damped, residual streams start nearly separate, and eight
    columns of the embedding are constant, which gives every linear map a bias. `local`: see `look_near`."""
    g = torch.Generator().manual_seed(seed)
    D, H, d, E, I, m, V = (cfg[k] for k in ("hidden_size", "num_attention_heads", "head_dim", "n_routed_experts", "moe_intermediate_size", "hc_mult", "vocab_size"))
    w = {}

    def normal(*shape, k=1.0):
        return torch.randn(*shape, generator=g) * k

    def linear(name, out, inner, k=1.0):
        w[name + ".weight"] = normal(out, inner, k=k * inner**-0.5)

    def compressor(pre, ratio, dim):
        cols = 2 * dim if ratio == 4 else dim
        w[pre + "ape"] = normal(ratio, cols, k=0.1)
        linear(pre + "wkv", cols, D), linear(pre + "wgate", cols, D)
        w[pre + "norm.weight"] = torch.ones(dim)

    def connection(pre, rows):
        w[pre + "_fn"], w[pre + "_base"] = normal(rows, m * D, k=0.5 * (m * D) ** -0.5), normal(rows, k=0.3)
        w[pre + "_scale"] = torch.ones(3 if rows > m else 1)
        if rows > m:
            w[pre + "_base"][2 * m :] += 3 * torch.eye(m).flatten()

    w["embed.weight"] = normal(V, D)
    w["embed.weight"][:, :8] = 1.0
    linear("head", V, D)
    w["norm.weight"] = torch.ones(D)
    connection("hc_head", m)
    for layer in range(cfg["num_hidden_layers"]):
        ratio, p = cfg["compress_ratios"][layer], f"layers.{layer}."
        a, f = p + "attn.", p + "ffn."
        w[p + "attn_norm.weight"], w[p + "ffn_norm.weight"] = torch.ones(D), torch.ones(D)
        connection(p + "hc_attn", (2 + m) * m), connection(p + "hc_ffn", (2 + m) * m)
        linear(a + "wq_a", cfg["q_lora_rank"], D), linear(a + "wq_b", H * d, cfg["q_lora_rank"]), linear(a + "wkv", d, D)
        w[a + "q_norm.weight"], w[a + "kv_norm.weight"] = torch.ones(cfg["q_lora_rank"]), torch.ones(d)
        w[a + "attn_sink"] = torch.zeros(H)
        linear(a + "wo_a", cfg["o_groups"] * cfg["o_lora_rank"], H * d // cfg["o_groups"])
        linear(a + "wo_b", D, cfg["o_groups"] * cfg["o_lora_rank"], k=0.7)
        if ratio:
            compressor(a + "compressor.", ratio, d)
        if ratio == 4:
            linear(a + "indexer.wq_b", cfg["index_n_heads"] * cfg["index_head_dim"], cfg["q_lora_rank"])
            linear(a + "indexer.weights_proj", cfg["index_n_heads"], D)
            compressor(a + "indexer.compressor.", 4, cfg["index_head_dim"])
        linear(f + "gate", E, D)
        if layer < cfg["num_hash_layers"]:
            w[f + "gate.tid2eid"] = torch.stack([torch.randperm(E, generator=g)[: cfg["num_experts_per_tok"]] for _ in range(V)])
        else:
            w[f + "gate.bias"] = torch.zeros(E)
        w[f + "experts.w1"], w[f + "experts.w3"] = normal(E, I, D, k=D**-0.5), normal(E, I, D, k=D**-0.5)
        w[f + "experts.w2"] = normal(E, D, I, k=0.3 * I**-0.5)
        linear(f + "shared_experts.w1", I, D), linear(f + "shared_experts.w2", D, I, k=0.3), linear(f + "shared_experts.w3", I, D)
    if local:
        look_near(w, cfg)
    return w


def look_near(w, cfg):
    """Lets all heads of the first layer but one start by looking 1, 2, 3, ... tokens back. With random weights a window of 128
    tokens is averaged, so that what stands beside a word drowns; the constant columns of the embedding give query and key a
    constant part in the faster half of the rotated dimensions, whose product peaks at the wanted distance."""
    dr, d = cfg["qk_rope_head_dim"], cfg["head_dim"]
    frequencies = inverse_frequencies(cfg, 0)[: dr // 4].float()
    p = "layers.0.attn."
    w[p + "wkv.weight"][d - dr : d - dr // 2 : 2, :8] += 2.5 / 8
    w[p + "wq_a.weight"][0], w[p + "wq_b.weight"][:, 0] = 0.0, 0.0
    w[p + "wq_a.weight"][0, :8] = 1 / 8
    for h in range(cfg["num_attention_heads"] - 1):
        turn = (h + 1) * frequencies
        rows = w[p + "wq_b.weight"][h * d + d - dr : h * d + d - dr // 2]
        rows[0::2, 0], rows[1::2, 0] = 8.0 * torch.cos(turn), -8.0 * torch.sin(turn)
