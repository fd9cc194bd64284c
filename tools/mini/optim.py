"""Muon for matrices, Adam for the rest, made to be captured in a CUDA graph: rates live in tensors.

Muon: the momentum of a matrix's gradient is replaced by its nearest semi-orthogonal matrix (five Newton-Schulz steps in
bf16) and applied with step rate * sqrt(max(1, rows / cols)). Matrices of one shape are stacked, so that a step costs
few launches. A stack of experts or of output groups is as many matrices.
"""

import torch

MATRICES = ("wq_a.weight", "wq_b.weight", "wkv.weight", "wgate.weight", "wo_a.weight", "wo_b.weight", "experts.w1", "experts.w2", "experts.w3",
            "shared_experts.w1.weight", "shared_experts.w2.weight", "shared_experts.w3.weight")
TABLES = ("embed.weight", "head.weight")
BETAS, EPS = (0.9, 0.95), 1e-10


def orthogonal(g):
    """[n, r, c] -> the same singular vectors with singular values near 1."""
    x = g.bfloat16()
    flip = x.shape[1] > x.shape[2]
    x = x.mT if flip else x
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.mT if flip else x).float()


class Adam:
    def __init__(self, params, rate):
        self.params, self.rate = params, rate
        self.first, self.second = ([torch.zeros_like(p) for p in params] for _ in range(2))
        self.scale = torch.zeros((), device=params[0].device)

    def set_scale(self, scale, step):
        self.scale.fill_(-self.rate * scale * (1 - BETAS[1] ** step) ** 0.5 / (1 - BETAS[0] ** step))

    def step(self):
        grads = [p.grad for p in self.params]
        torch._foreach_lerp_(self.first, grads, 1 - BETAS[0])
        torch._foreach_mul_(self.second, BETAS[1])
        torch._foreach_addcmul_(self.second, grads, grads, 1 - BETAS[1])
        below = torch._foreach_sqrt(self.second)
        torch._foreach_add_(below, EPS)
        update = torch._foreach_div(self.first, below)
        torch._foreach_mul_(update, self.scale)
        torch._foreach_add_(self.params, update)


class Optimiser:
    def __init__(self, weights, groups, rate=0.004, momentum=0.95, adam=0.002, table=0.006):
        self.rate, self.momentum, self.steps = rate, momentum, 0
        learned = {k: v for k, v in weights.items() if v.requires_grad}
        self.learned, self.stacks = list(learned.values()), {}
        for name, p in learned.items():
            if name.endswith(MATRICES):
                shape = (groups, p.shape[0] // groups, p.shape[1]) if name.endswith("wo_a.weight") else (1, *p.shape)[-3:]
                self.stacks.setdefault(shape[1:], []).append((p, shape))
        device = self.learned[0].device
        self.buffers = {key: torch.zeros(sum(s[0] for _, s in members), *key, device=device) for key, members in self.stacks.items()}
        self.adams = [Adam([p for k, p in learned.items() if not k.endswith(MATRICES) and k not in TABLES], adam),
                      Adam([learned[k] for k in TABLES], table)]
        self.scale = torch.zeros((), device=device)

    def set_scale(self, scale):
        """Call before every step: the step runs at `scale` times the base rates."""
        self.steps += 1
        self.scale.fill_(-self.rate * scale)
        for adam in self.adams:
            adam.set_scale(scale, self.steps)

    @torch.no_grad()
    def step(self):
        """One step; gradients are dropped."""
        for adam in self.adams:
            adam.step()
        for (rows, cols), members in self.stacks.items():
            buffer = self.buffers[rows, cols]
            grad = torch.cat([p.grad.view(shape) for p, shape in members])
            buffer.lerp_(grad, 1 - self.momentum)
            update = orthogonal(grad.lerp_(buffer, self.momentum)) * (self.scale * max(1.0, rows / cols) ** 0.5)
            parts = update.split([shape[0] for _, shape in members])
            torch._foreach_add_([p for p, _ in members], [u.reshape(p.shape) for u, (p, _) in zip(parts, members)])
        for p in self.learned:
            p.grad = None
