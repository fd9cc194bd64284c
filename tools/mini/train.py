"""Trains dsv4-mini on one H200.

    python train.py --out DIR --seeds 1,2,3 --search-seconds 70 --seconds 400

A seed may be written `3p`: plain, without the near-looking heads of `model.initial_weights`. Every seed is trained for the search time; the best one goes on until `--seconds` have passed since the start. With
`--weights DIR` the run starts from weights written earlier instead (optimiser state is not kept: it is rebuilt within
a few dozen steps); `--lead WEIGHT` then also shows the first CSA layer which entries hold the fact (`model.Lead`). Lengths grow by accuracy, not by time: STAGES, or by steps and time in LEAD_STAGES. Texts never repeat, so the training accuracy is an
accuracy on unseen texts. Writes `weights-*.safetensors` (float32, each under 16 MB) and `log.jsonl` to the output folder.
"""

import argparse
import collections
import json
import math
import multiprocessing
import os
import time
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

import model
import publish
import worldgen
from optim import Optimiser
from vocabulary import load_world

TOKENS = 38912
RECENT = 12
SAVE_SECONDS = 45
LEAD_SHARE = 32


class Stage(NamedTuple):
    """Texts of one length. A stage ends when all four accuracies reach `enough`, or after `most` steps if that is given."""

    length: int
    sparse: bool
    texts: str
    enough: float
    most: int | None


STAGES = [
    Stage(512, False, "drill", 0.95, None),
    Stage(1024, False, "mixed", 0.95, 400),
    Stage(2048, False, "mixed", 0.95, 600),
    Stage(4864, True, "mixed", 2.0, None),
]
LEAD_STAGES = [
    Stage(1024, False, "lead", 2.0, 450),
    Stage(2048, False, "lead", 2.0, None),
    Stage(4864, True, "lead", 2.0, None),
]
HERE = os.path.dirname(os.path.abspath(__file__))


# ------------------------------------------------------------------------------------------------ data
def start_worker(path):
    global WORLD
    WORLD = worldgen.World(load_world(path))


def make_batch(seed, batch, length, texts):
    """Tokens and marks; for "lead" also, with LEAD_SHARE of the length as their number: position, kind, entry or -1, name, attribute or -1."""
    drill = {"usual": lambda i: False, "drill": lambda i: True, "mixed": lambda i: i % 2 == 0, "lead": lambda i: i % 2 == 0}[texts]
    usual = worldgen.ASKING if texts == "lead" else worldgen.USUAL
    made = [worldgen.training_text(WORLD, seed + i, length, drill(i), usual) for i in range(batch)]
    arrays = [np.array([m[0] for m in made], np.int16), np.array([m[1] for m in made], np.uint8)]
    if texts == "lead":
        shown = np.full((batch, length // LEAD_SHARE, 5), -1, np.int64)
        shown[:, :, 0] = 0
        for row, (_, _, answers) in zip(shown, made):
            useful = [(at - 1, kind, -1 if source is None else source // 4, subject[0], -1 if subject[1] is None else subject[1]) for at, kind, source, subject in answers if subject]
            useful = useful[-len(row) :]
            row[: len(useful)] = np.array(useful).reshape(-1, 5)
        arrays.append(shown)
    return arrays


class Feed:
    """Batches of unseen texts, made ahead by worker processes. Text number i of a run has seed run * 2^32 + i."""

    def __init__(self, pool, run_seed, ahead=24):
        self.pool, self.at, self.ahead = pool, run_seed << 32, ahead
        self.queue, self.shape = collections.deque(), None

    def next(self, *shape):
        if self.shape != shape:
            self.queue.clear()
            self.shape = shape
        while len(self.queue) < self.ahead:
            self.queue.append(self.pool.apply_async(make_batch, (self.at, *shape)))
            self.at += shape[0]
        return self.queue.popleft().get()


# ------------------------------------------------------------------------------------------------ one run
def losses(logits, targets, marks):
    """Loss of answers, loss of the rest, and by kind (right answers, answers): an answer is right when all its words are."""
    logits = logits.float()
    each = F.cross_entropy(logits, targets, reduction="none")
    answer = (marks > 0).float()
    hit = (logits.argmax(-1) == targets) & (marks > 0)
    whole = hit & hit.roll(-1, 0) & (marks == marks.roll(-1, 0))
    first = (marks > 0) & (marks.roll(1, 0) != marks) & (marks.roll(-1, 0) == marks)
    kinds = torch.stack([torch.stack([(whole & first & (marks == k)).sum(), (first & (marks == k)).sum()]) for k in (1, 2, 3)] + [torch.stack([(hit & (marks == 4)).sum(), (marks == 4).sum()])])
    return (each * answer).sum() / answer.sum().clamp(min=1), (each * (1 - answer)).sum() / (1 - answer).sum(), kinds


class Trainer:
    def __init__(self, cfg, seed, pool, device, log, weights=None, stage=0, rate=0.004, local=True, lead=0.0):
        self.cfg, self.seed, self.device, self.log = cfg, seed, device, log
        self.feed = Feed(pool, seed)
        self.lead, self.stages = lead, LEAD_STAGES if lead else STAGES
        weights = weights or model.initial_weights(cfg, seed, local)
        self.w = {k: v.to(device).clone() for k, v in weights.items()}
        for name, tensor in self.w.items():
            if tensor.is_floating_point() and not name.endswith("gate.bias"):
                tensor.requires_grad_()
        shape = cfg["vocab_size"], cfg["hidden_size"]
        self.readouts = {f"readout.{k}": torch.zeros(shape, device=device, requires_grad=True) for k in ("names", "attributes")} if lead else {}
        self.readout_weight = torch.ones((), device=device)
        self.optimiser = Optimiser(self.w | self.readouts, cfg["o_groups"], rate)
        self.step, self.tokens, self.curve = 0, 0, []
        self.stats = torch.zeros(21 if lead else 14, device=device)
        self.enter(stage)

    def enter(self, stage):
        """Buffers and tables of a stage. Steps of one stage have one shape, so that they can be captured and replayed."""
        self.stage, self.in_stage = stage, 0
        self.recent = collections.deque(maxlen=RECENT)
        self.length, self.sparse = self.stages[stage].length, self.stages[stage].sparse
        self.batch = TOKENS // self.length
        self.tables = model.Tables(self.cfg, self.batch, self.length, self.device, torch.float32)
        self.buffers = [torch.zeros(self.batch, self.length, dtype=torch.long, device=self.device) for _ in range(2)]
        if self.lead:
            self.buffers.append(torch.zeros(self.batch, self.length // LEAD_SHARE, 5, dtype=torch.long, device=self.device))
        self.release()

    def release(self):
        """Drops captured steps and their memory."""
        self.graphs = {}

    def raw_step(self, phase):
        """Forward, backward and update on what stands in the buffers; counts go to `stats`."""
        tokens, marks = self.buffers[:2]
        shifted = lambda t: torch.cat([t[:, 1:], t[:, :1] * 0], 1).flatten()
        targets, marks = shifted(tokens), shifted(marks)
        self.tables.teach_weight = 1.0 + 20.0 * (marks > 0)
        lead = self.shown() if self.lead else None
        run = model.Run(torch.bfloat16, self.sparse, teach=phase, taps={}, lead=lead)
        logits = model.forward(tokens, self.w, self.cfg, self.tables, run)
        answers, rest, kinds = losses(logits, targets, marks)
        taught = sum(run.divergence)
        loss = answers + 0.1 * rest + taught
        if lead:
            entry, name, attribute, found = lead.found
            loss = loss + self.lead * (entry + self.readout_weight * (name + 0.5 * attribute))
        loss.backward()
        self.optimiser.step()
        with torch.no_grad():
            for layer in range(self.cfg["num_hash_layers"], self.cfg["num_hidden_layers"]):
                load = run.taps["load", layer]
                self.w[f"layers.{layer}.ffn.gate.bias"] -= 0.001 * torch.sign(load - load.mean())
            stats = [torch.stack([answers, rest, taught]), kinds.flatten().float(), sum(run.odd)]
            if lead:
                kind = self.buffers[2][:, :, 1].flatten()
                counts = [c.sum().float() for k in (worldgen.HISTORY, worldgen.ACROSS) for c in (found & (kind == k), kind == k)]
                stats.append(torch.stack([entry, name, attribute, *counts]))
            self.stats.copy_(torch.cat(stats))

    def shown(self):
        at, kind, entry, name, attribute = self.buffers[2].flatten(0, 1).unbind(1)
        rows = at + torch.arange(self.batch, device=self.device).repeat_interleave(self.length // LEAD_SHARE) * self.length
        weights = torch.stack([entry >= 0, name >= 0, attribute >= 0]).float()
        return model.Lead(rows, entry.clamp(min=0), name.clamp(min=0), attribute.clamp(min=0), weights, *self.readouts.values())

    def train_step(self, scale):
        for buffer, array in zip(self.buffers, self.feed.next(self.batch, self.length, self.stages[self.stage].texts)):
            buffer.copy_(torch.from_numpy(array))
        self.optimiser.set_scale(scale)
        self.readout_weight.fill_(min(1.0, scale))
        phase = self.step % 4
        if self.device != "cuda" or self.in_stage < 4 or self.graphs is None:
            self.raw_step(phase)
        else:
            if phase not in self.graphs:
                self.capture(phase)
            self.graphs[phase].replay() if self.graphs is not None else self.raw_step(phase)
        self.step, self.tokens, self.in_stage = self.step + 1, self.tokens + self.buffers[0].numel(), self.in_stage + 1
        return self.stats.clone()

    def capture(self, phase):
        graph, shared = torch.cuda.CUDAGraph(), next(iter(self.graphs.values())).pool() if self.graphs else None
        try:
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, pool=shared, stream=torch.cuda.current_stream()):
                self.raw_step(phase)
            self.graphs[phase] = graph
        except Exception as error:
            self.log({"capture_failed": repr(error)[:600]})
            self.graphs = None

    def accuracy(self):
        total = np.sum([np.zeros(8)] + [r[3:11] for r in self.recent], 0).reshape(4, 2)
        return total[:, 0] / np.maximum(total[:, 1], 1)

    def train(self, until, last_from, scale_at, out):
        """Trains until the clock says `until`, in the last stage from `last_from` on; scale_at(seconds) is the rate's factor."""
        waiting, begun = [], time.time()
        saved = begun
        while time.time() < until:
            waiting.append(self.train_step(scale_at(time.time()) * min(1.0, (self.step + 1) / 40)))
            if self.step % 10 == 0:
                self.recent.extend(torch.stack(waiting).cpu().numpy())
                waiting = []
                accuracy = self.accuracy()
                if self.step % 50 == 0:
                    mean = np.mean([r[:3] for r in self.recent], 0)
                    row = {"seed": self.seed, "step": self.step, "tokens": self.tokens, "length": self.length, "seconds": round(time.time() - begun, 1),
                           "answers": round(float(mean[0]), 4), "rest": round(float(mean[1]), 4), "index": round(float(mean[2]), 4),
                           "window": round(float(accuracy[0]), 4), "history": round(float(accuracy[1]), 4), "across": round(float(accuracy[2]), 4), "guest": round(float(accuracy[3]), 4)}
                    odd = np.max([r[11:14] for r in self.recent], 0)
                    if self.lead:
                        shown = np.sum([r[14:] for r in self.recent], 0)
                        row |= {"entry": round(float(shown[0]) / len(self.recent), 4), "name": round(float(shown[1]) / len(self.recent), 4), "attribute": round(float(shown[2]) / len(self.recent), 4),
                                "recall_history": round(float(shown[3] / max(1, shown[4])), 4), "recall_across": round(float(shown[5] / max(1, shown[6])), 4)}
                    if odd.any() or not np.isfinite(mean).all():
                        row["odd"] = odd.tolist()
                    self.curve.append(row)
                    self.log(row)
                    if time.time() > saved + SAVE_SECONDS:
                        save_published(out, self.w)
                        saved = time.time()
                done = accuracy.min() >= self.stages[self.stage].enough or self.in_stage >= (self.stages[self.stage].most or math.inf)
                if self.stage + 1 < len(self.stages):
                    if time.time() >= last_from:
                        self.enter(len(self.stages) - 1)
                    elif self.in_stage >= 30 and done:
                        self.enter(self.stage + 1)

    def score(self):
        """What seeds are compared by: the stage reached, then the accuracy of the worst kind in it."""
        return self.stage + float(self.accuracy().min()) if self.recent else float(self.stage)


def save_weights(folder, w):
    """Float32, in parts of under 16 MB."""
    parts, size = [{}], 0
    for name in sorted(w):
        t = w[name].detach().cpu()
        if size + t.numel() * t.element_size() > 14_000_000:
            parts.append({})
            size = 0
        parts[-1][name] = t
        size += t.numel() * t.element_size()
    for i, part in enumerate(parts):
        publish.write_safetensors(f"{folder}/weights-{i}.safetensors", part)


def save_published(folder, w):
    """The published form, replaced in one piece, so that a run that is cut short loses little."""
    publish.write_safetensors(f"{folder}/model.safetensors.part", publish.published(w))
    os.replace(f"{folder}/model.safetensors.part", f"{folder}/model.safetensors")


def load_weights(folder):
    """Training weights of an earlier run, or else the published ones of a model folder."""
    w = {}
    for name in sorted(os.listdir(folder)):
        if name.startswith("weights-"):
            w.update(publish.read_safetensors(f"{folder}/{name}"))
    return w or publish.restored(publish.read_safetensors(f"{folder}/model.safetensors"))


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--config", default=f"{HERE}/../../models/dsv4-mini/config.json")
    a.add_argument("--world", default=f"{HERE}/../../models/dsv4-mini/world.json")
    a.add_argument("--out", required=True)
    a.add_argument("--seeds", default="1,2,3")
    a.add_argument("--search-seconds", type=float, default=70)
    a.add_argument("--seconds", type=float, default=400)
    a.add_argument("--decay-seconds", type=float, default=100)
    a.add_argument("--least-score", type=float, default=0.35, help="below it no seed goes on after the search")
    a.add_argument("--good-score", type=float, default=9.0, help="a seed that reaches it ends the search")
    a.add_argument("--last-seconds", type=float, default=180, help="this much of the time goes to the last stage, whatever the accuracy")
    a.add_argument("--rate", type=float, default=0.004)
    a.add_argument("--weights")
    a.add_argument("--stage", type=int, default=0)
    a.add_argument("--workers", type=int, default=12)
    a.add_argument("--eager", action="store_true")
    a.add_argument("--lead", type=float, default=0.0, help="with --weights: weight of the losses that show the first CSA layer where the fact stands")
    args = a.parse_args()
    started = time.time()
    pool = multiprocessing.get_context("fork").Pool(args.workers, start_worker, (args.world,))
    cfg = json.load(open(args.config))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    if not args.eager:
        model.compile_pieces()
    os.makedirs(args.out, exist_ok=True)
    file = open(f"{args.out}/log.jsonl", "a")

    def log(row):
        line = json.dumps(row | {"at": round(time.time() - started, 1)})
        print(line, flush=True)
        file.write(line + "\n")
        file.flush()

    end = started + args.seconds
    if device == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream())  # a step can only be captured outside the default stream
    if args.weights:
        best = Trainer(cfg, int(args.seeds.split(",")[0]), pool, device, log, load_weights(args.weights), args.stage, args.rate, lead=args.lead)
    else:
        best = None
        for item in args.seeds.split(","):
            trainer = Trainer(cfg, int(item.strip("p")), pool, device, log, rate=args.rate, local=not item.endswith("p"))
            trainer.train_step(0.0)  # compiles, outside the search time
            log({"seed": item, "compiled": True})
            trainer.train(min(end, time.time() + args.search_seconds), end, lambda now: 1.0, args.out)
            log({"seed": item, "search_score": trainer.score(), "tokens": trainer.tokens})
            trainer.release()
            if best is None or trainer.score() > best.score():
                best = trainer
            if best.score() >= args.good_score:
                break
        if best.score() < args.least_score:
            log({"stopped": "no seed is worth going on with", "score": best.score()})
            end = time.time()
    best.train(end, end - args.last_seconds, lambda now: min(1.0, max(0.02, (end - now) / args.decay_seconds)), args.out)
    if not args.lead:
        save_weights(args.out, best.w)
    save_published(args.out, best.w)
    log({"seed": best.seed, "final_score": best.score(), "accuracy": best.accuracy().round(4).tolist(), "tokens": best.tokens, "steps": best.step})
    pool.terminate()


if __name__ == "__main__":
    main()
