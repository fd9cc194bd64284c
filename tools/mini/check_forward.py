"""Compares `model.forward` in float64 with a numpy reference of the same maths.

    python check_forward.py REFERENCE.py CONFIG.json

REFERENCE.py must define forward(ids [T], weights, config, taps) -> logits [T, vocab] over public tensor names and put
per-layer dicts with "index_score" into taps. Weights are random, of the sizes of CONFIG. Exits 1 above 1e-9.
"""

import importlib.util
import json
import sys

import numpy as np
import torch

import model
from publish import public_names


def main():
    path, config = sys.argv[1:3]
    spec = importlib.util.spec_from_file_location("reference", path)
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    cfg = json.load(open(config))
    g = torch.Generator().manual_seed(5)
    w = model.initial_weights(cfg, 3)
    for name, t in w.items():
        if t.is_floating_point() and t.ndim == 1:
            w[name] = t + 0.2 * torch.randn(t.shape, generator=g)
    w = {k: v.double() if v.is_floating_point() else v for k, v in w.items()}
    public = {k: v.numpy() for k, v in public_names(w).items()}
    worst = 0.0
    for length in (640,):
        ids = torch.randint(0, cfg["vocab_size"], (2, length), generator=g)
        for sparse in (True, False):
            run_cfg = dict(cfg, index_topk=cfg["index_topk"] if sparse else 10**6)
            tables = model.Tables(cfg, 2, length, "cpu", torch.float64)
            run = model.Run(torch.float64, sparse, exact_ties=True)
            with torch.no_grad():
                ours = model.forward(ids, w, cfg, tables, run).view(2, length, -1).numpy()
            for b in range(2):
                theirs = reference.forward(ids[b].numpy(), public, run_cfg, [])
                error = np.linalg.norm(ours[b] - theirs) / np.linalg.norm(theirs)
                worst = max(worst, error)
                print(f"T={length} sparse={sparse} sequence {b}: relative L2 {error:.2e}")
    sys.exit(0 if worst < 1e-9 else 1)


if __name__ == "__main__":
    main()
