"""Measures dsv4-mini on prompts that training never saw.

    python evaluate.py --model DIR [--prompts 522] [--rows exact,bf16,fp8] [--faults empty,other,older] [--out FILE]

DIR holds config.json, world.json and model.safetensors (or `--weights DIR` of train.py, which is quantised first, so
that the published form is what is measured). Everything runs in float32, ties in the index go to the lower entry.
An answer is right if greedy decoding gives all its words. `--faults` also measures what a wrong resume would give:
the state at the boundary is empty, that of another prompt, or its own 256 tokens older; pages are right in all three.
Recall: how often one of the two compressed entries that hold the fact's first value word is among the 16 (64) best of
the indexer of a CSA layer, at the position that predicts the answer's first word.
"""

import argparse
import json
import multiprocessing
import time

import torch

import model
import publish
import worldgen
from vocabulary import load_world


def start_worker(path):
    global WORLD
    WORLD = worldgen.World(load_world(path))


def make_prompt(index):
    return worldgen.evaluation_prompt(WORLD, index)


def prompts(world, count, workers):
    """The first `count` prompts, a third of each kind."""
    wanted, found = {k: count // 3 for k in worldgen.KINDS.values()}, []
    with multiprocessing.get_context("fork").Pool(workers, start_worker, (world,)) as pool:
        for prompt in pool.imap(make_prompt, range(4 * count), chunksize=4):
            if prompt is not None and wanted[prompt["kind"]] > 0:
                wanted[prompt["kind"]] -= 1
                found.append(prompt)
            if not any(wanted.values()):
                break
    return found


def batches(found, size):
    """Prompts of one boundary together, no batch of one."""
    by_boundary = {}
    for p in found:
        by_boundary.setdefault(p["boundary"], []).append(p)
    for boundary, group in sorted(by_boundary.items()):
        parts = max(1, len(group) // size)
        for i in range(parts):
            yield boundary, group[i * len(group) // parts : (i + 1) * len(group) // parts]


def recall(run, cfg, tables, row, prompt, counts):
    for layer, ratio in enumerate(cfg["compress_ratios"]):
        if ratio == 4:
            scores = run.taps["index", layer][row * tables.length + prompt["answer_start"] - 1]
            order = scores.sort(descending=True, stable=True).indices[:64].tolist()
            ranks = [order.index(e) for e in (prompt["source"] // 4, prompt["source"] // 4 + 1) if e in order]
            best = min(ranks, default=64)
            tally = counts.setdefault(f"{prompt['kind']}, layer {layer}", [0, 0, 0])
            tally[0] += best < 16
            tally[1] += best < 64
            tally[2] += 1


@torch.no_grad()
def measure(found, w, cfg, device, rows, fault):
    """Right answers and prompts by kind, and the recall of the indexer."""
    right, seen, counts = {}, {}, {}
    for boundary, group in batches(found, 8):
        length = boundary + model.WINDOW_BLOCK
        tokens = torch.full((len(group), length), 2)
        for i, p in enumerate(group):
            tokens[i, : len(p["tokens"])] = torch.tensor(p["tokens"])
        tables = model.Tables(cfg, len(group), length, device, torch.float32)
        run = model.Run(torch.float32, True, exact_ties=True, rows=rows, taps={}, fault=model.Fault(fault, boundary) if fault else None)
        logits = model.forward(tokens.to(device), w, cfg, tables, run)
        guess = logits.argmax(-1).view(len(group), length).cpu()
        for i, p in enumerate(group):
            at = p["answer_start"]
            good = guess[i, at - 1 : at + 1].tolist() == p["tokens"][at : at + 2]
            right[p["kind"]] = right.get(p["kind"], 0) + good
            seen[p["kind"]] = seen.get(p["kind"], 0) + 1
            if p["source"] is not None:
                recall(run, cfg, tables, i, p, counts)
    return {"right": right, "of": seen, "all": round(sum(right.values()) / sum(seen.values()), 4), "index_top16_top64_of": counts}


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--model", required=True)
    a.add_argument("--weights")
    a.add_argument("--prompts", type=int, default=522)
    a.add_argument("--rows", default="exact")
    a.add_argument("--faults", default="")
    a.add_argument("--workers", type=int, default=12)
    a.add_argument("--out")
    args = a.parse_args()
    cfg = json.load(open(f"{args.model}/config.json"))
    found = prompts(f"{args.model}/world.json", args.prompts, args.workers)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.weights:
        from train import load_weights
        stored = publish.published(load_weights(args.weights))
    else:
        stored = publish.read_safetensors(f"{args.model}/model.safetensors")
    w = {k: v.to(device) for k, v in publish.restored(stored).items()}
    runs = [(rows, None) for rows in args.rows.split(",")]
    runs += [(runs[0][0], fault) for fault in args.faults.split(",") if fault]
    results = []
    for rows, fault in runs:
        began = time.time()
        result = {"rows": rows, "state": fault or "right"} | measure(found, w, cfg, device, rows, fault)
        results.append(result)
        print(json.dumps(result), f"{time.time() - began:.1f} s", flush=True)
    if args.out:
        json.dump(results, open(args.out, "w"), indent=1)


if __name__ == "__main__":
    main()
