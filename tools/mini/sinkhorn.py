"""The mixing matrix of a hyper-connection: rows through softmax, then column and row normalisation in turn.

One definition, two executions: `reference` in plain PyTorch, which autograd differentiates, and a pair of Triton
kernels that keep a token's m x m matrix in registers. The backward pass needs only the sums of every normalisation:
from C' = C / (s + eps) follows C = C' (s + eps) and dC = (dC' - sum(dC' C')) / (s + eps), so nothing but sums is kept.
"""

import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None


def reference(logits, iters, eps):
    """logits [N, m, m] -> C [N, m, m]; the column index is the output stream. iters column passes, iters - 1 row passes."""
    c = torch.softmax(logits, -1) + eps
    c = c / (c.sum(1, keepdim=True) + eps)
    for _ in range(iters - 1):
        c = c / (c.sum(2, keepdim=True) + eps)
        c = c / (c.sum(1, keepdim=True) + eps)
    return c


if triton is not None:

    @triton.jit
    def forward_kernel(x, out, sums, n, eps, ITERS: tl.constexpr, BLOCK: tl.constexpr):
        t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        cell = tl.arange(0, 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
        at = t[:, None, None] * 16 + cell[None]
        live = (t < n)[:, None, None]
        side = tl.arange(0, 4)[None, :]
        live_side = (t < n)[:, None]
        v = tl.load(x + at, mask=live, other=0.0)
        v = tl.exp(v - tl.max(v, axis=2)[:, :, None])
        c = v / tl.sum(v, axis=2)[:, :, None] + eps
        for k in range(ITERS):
            if k > 0:
                s = tl.sum(c, axis=2)
                tl.store(sums + ((2 * k - 1) * n + t)[:, None] * 4 + side, s, mask=live_side)
                c = c / (s + eps)[:, :, None]
            s = tl.sum(c, axis=1)
            tl.store(sums + ((2 * k) * n + t)[:, None] * 4 + side, s, mask=live_side)
            c = c / (s + eps)[:, None, :]
        tl.store(out + at, c, mask=live)

    @triton.jit
    def backward_kernel(out, sums, grad, dx, n, eps, ITERS: tl.constexpr, BLOCK: tl.constexpr):
        t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        cell = tl.arange(0, 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
        at = t[:, None, None] * 16 + cell[None]
        live = (t < n)[:, None, None]
        side = tl.arange(0, 4)[None, :]
        live_side = (t < n)[:, None]
        c = tl.load(out + at, mask=live, other=0.0)
        g = tl.load(grad + at, mask=live, other=0.0)
        for j in range(ITERS):
            k = ITERS - 1 - j
            s = tl.load(sums + ((2 * k) * n + t)[:, None] * 4 + side, mask=live_side, other=1.0) + eps
            g = (g - tl.sum(g * c, axis=1)[:, None, :]) / s[:, None, :]
            c = c * s[:, None, :]
            if k > 0:
                s = tl.load(sums + ((2 * k - 1) * n + t)[:, None] * 4 + side, mask=live_side, other=1.0) + eps
                g = (g - tl.sum(g * c, axis=2)[:, :, None]) / s[:, :, None]
                c = c * s[:, :, None]
        p = c - eps
        tl.store(dx + at, p * (g - tl.sum(g * p, axis=2)[:, :, None]), mask=live)


class Kernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, iters, eps):
        x = logits.contiguous()
        n, block = x.shape[0], 64
        out = torch.empty_like(x)
        sums = torch.empty(2 * iters - 1, n, 4, device=x.device, dtype=torch.float32)
        forward_kernel[(triton.cdiv(n, block),)](x, out, sums, n, eps, ITERS=iters, BLOCK=block)
        ctx.save_for_backward(out, sums)
        ctx.iters, ctx.eps = iters, eps
        return out

    @staticmethod
    def backward(ctx, grad):
        out, sums = ctx.saved_tensors
        n, block = out.shape[0], 64
        dx = torch.empty_like(out)
        backward_kernel[(triton.cdiv(n, block),)](out, sums, grad.contiguous(), dx, n, ctx.eps, ITERS=ctx.iters, BLOCK=block)
        return dx, None, None


def sinkhorn(logits, iters, eps):
    if logits.is_cuda and logits.dtype == torch.float32 and logits.shape[-1] == 4:
        return Kernel.apply(logits, iters, eps)
    return reference(logits, iters, eps)
