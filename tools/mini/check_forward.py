"""Compares `model.forward` in float64 with a numpy reference of the same maths.

    python check_forward.py REFERENCE.py MODEL_DIR

REFERENCE.py must define forward(ids [T], weights, config, taps) -> logits [T, vocab] over public tensor names and put
per-layer dicts into taps. First random weights of the sizes of MODEL_DIR/config.json, then the weights published there,
dequantised. Exits 1 above 1e-9.
"""

import importlib.util
import json
import sys

import numpy as np
import torch

import model
import publish

LENGTH = 640


def main():
    path, folder = sys.argv[1:3]
    spec = importlib.util.spec_from_file_location("reference", path)
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    cfg = json.load(open(f"{folder}/config.json"))
    g = torch.Generator().manual_seed(5)
    random = model.initial_weights(cfg, 3)
    for name, t in random.items():
        if t.is_floating_point() and t.ndim == 1:
            random[name] = t + 0.2 * torch.randn(t.shape, generator=g)
    cases = {"random": random, "published": publish.restored(publish.read_safetensors(f"{folder}/model.safetensors"))}
    worst = 0.0
    for case, w in cases.items():
        w = {k: v.double() if v.is_floating_point() else v for k, v in w.items()}
        public = {k: v.numpy() for k, v in publish.public_names(w).items()}
        ids = torch.randint(0, cfg["vocab_size"], (2, LENGTH), generator=g)
        for sparse in (True, False):
            run = model.Run(torch.float64, sparse, exact_ties=True)
            with torch.no_grad():
                ours = model.forward(ids, w, cfg, model.Tables(cfg, 2, LENGTH, "cpu", torch.float64), run).view(2, LENGTH, -1).numpy()
            for b in range(2):
                theirs = reference.forward(ids[b].numpy(), public, cfg if sparse else dict(cfg, index_topk=LENGTH), [])
                error = np.linalg.norm(ours[b] - theirs) / np.linalg.norm(theirs)
                worst = max(worst, error)
                print(f"{case} weights, sparse={sparse}, sequence {b}: relative L2 {error:.2e}")
    sys.exit(0 if worst < 1e-9 else 1)


if __name__ == "__main__":
    main()
