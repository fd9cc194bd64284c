"""What calls cost: `python -m statepages.bench store` and, on a GPU with torch, `... copy`.

Both print one line a figure, or one JSON object with `--json`. `--rust PATH` names the `statepages`
command: its own figures are then measured in the same run, in turns with those of Python.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import statepages as sp
from statepages.compat.block_pool import BlockPool
from statepages.compat.page_unit_checkpoint import PagedStateCheckpointSpec, PageUnitCheckpointStore

GROUP = 8
QUEUED = 4_000
BLOCK = 256


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m statepages.bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    store = commands.add_parser("store", help="control plane: compat calls and batches of native ones")
    store.add_argument("--pages", type=int, default=100_000)
    store.add_argument("--units-per-checkpoint", type=int, default=17)
    copy = commands.add_parser("copy", help="stores and restores of torch tensors on its current stream")
    copy.add_argument("--images", type=int, default=64)
    copy.add_argument("--rounds", type=int, default=50)
    copy.add_argument("--turns", type=int, default=3, help="turns of the arms")
    for command in (store, copy):
        command.add_argument("--rust", metavar="PATH", help="the statepages command, to measure beside")
        command.add_argument("--json", action="store_true")
    args = parser.parse_args()
    report = bench_store(args) if args.command == "store" else bench_copy(args)
    if args.json:
        print(json.dumps(report))
    else:
        for name, value in report.items():
            print(f"{name:42} {value}")


def rust(path: str, *arguments: str) -> Any:
    """The JSON that the command prints."""
    run = [path, "bench", *arguments, "--json"]
    return json.loads(subprocess.run(run, capture_output=True, text=True, check=True).stdout)


def timed(calls: int, call: Callable[[], object]) -> float:
    """Nanoseconds of one of `calls` calls that `call` makes."""
    begun = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - begun) / calls


# The control plane


def bench_store(args: argparse.Namespace) -> dict[str, Any]:
    pages, units = args.pages, args.units_per_checkpoint
    report: dict[str, Any] = {"pages": pages, "units_per_checkpoint": units}
    figures = compat_figures(pages, units) | native_figures(pages, units)
    report |= {f"{name}_ns": round(value, 1) for name, value in figures.items()}
    if args.rust:
        rows = rust(args.rust, "store", "--units", str(pages), "--units-per-checkpoint", str(units))["rows"]
        for row in rows:
            report[f"rust_{row['op']}_ns"] = round(row["ns"], 1)
        for name in ("store_evicting_kv", "restore"):
            ratio = figures[f"native_{name}"] / report[f"rust_{name}_ns"]
            report[f"native_{name}_over_rust"] = round(ratio, 2)
    return report


def compat_figures(pages: int, units: int) -> dict[str, float]:
    """One call each, on a pool that ten turnovers of stores and random uses have scattered."""
    spec = PagedStateCheckpointSpec(16, units * 16, "bench", units * 16)
    store = PageUnitCheckpointStore(BlockPool(pages), spec)
    draw, records = random.Random(1), pages // units
    keys = [draw.getrandbits(64) for _ in range(records * 11 + 4_000)]
    for n, key in enumerate(keys[:-4_000]):
        store.begin_store(key, 0)
        store.complete_inflight()
        if n % 2:
            store.begin_restore(keys[draw.randrange(max(0, n - records), n)], 0)
            store.take_restore_ops()
            store.complete_inflight()

    evicting, read = [], []
    for at in range(len(keys) - 4_000, len(keys), 2 * GROUP):
        group, others = keys[at : at + GROUP], keys[at + GROUP : at + 2 * GROUP]

        def stores(group: list[int] = group) -> None:
            for key in group:
                store.begin_store(key, 3)

        def stores_and_units(group: list[int] = others) -> None:
            for key in group:
                op = store.begin_store(key, 3)
                assert op is not None and op.unit_ids

        evicting.append(timed(GROUP, stores))
        read.append(timed(GROUP, stores_and_units))
        store.complete_inflight()
    ready = list(store.hash_to_checkpoint)
    draw.shuffle(ready)
    restores = []
    for at in range(0, min(QUEUED, len(ready)), GROUP):
        group = ready[at : at + GROUP]

        def begin(group: list[int] = group) -> None:
            for key in group:
                store.begin_restore(key, 3)

        restores.append(timed(len(group), begin))
    taken = timed(len(ready[:QUEUED]), store.take_restore_ops)
    store.complete_inflight()
    return {
        "compat_store": statistics.median(evicting),
        "compat_store_and_unit_ids": statistics.median(read),
        "compat_restore": statistics.median(restores),
        "compat_take_restore": taken,
    }


def native_figures(pages: int, units: int) -> dict[str, float]:
    """What `statepages bench store` measures, through the calls of a Python engine."""
    image = units * 16
    layout = sp.CheckpointSpec(page_unit_bytes=16, slot_bytes=image, image_bytes=image, layout_id="bench")
    runtime = sp.StateRuntime(sp.StateTransfer.copy("bench"), layout)
    queued = min(QUEUED, pages // units // 4)
    plane = sp.ControlPlane(
        pages=pages, slots=2 * queued + 64, runtime=runtime, interval=BLOCK, copying_max=pages
    )
    domain, ids = sp.Domain("bench"), iter(range(1, 1 << 60))
    tokens = np.arange(0, 4 * BLOCK, dtype=np.uint32)

    def fresh(count: int) -> sp.PromptKeys:
        return sp.PromptKeys(domain, BLOCK, (tokens[:count] + 1000 * next(ids)).astype(np.uint32))

    def computed(keys: list[sp.PromptKeys], to: int) -> list[sp.Residency]:
        held = residencies(plane.admit_many([next(ids) for _ in keys], keys))
        batch = plane.begin_batch()
        plane.join_many(batch, held, [to] * len(held))
        plane.settle(batch)
        plane.advance_many(held, keys, [to] * len(held))
        return held

    # A long request's boundaries are stored; the rest of the pool is cached blocks, freed at random.
    blocks = pages // (units + 1) + 8 * GROUP
    long_keys = sp.PromptKeys(domain, BLOCK, np.arange(blocks * BLOCK, dtype=np.uint32))
    (anchor,) = computed([long_keys], blocks * BLOCK)
    draw = random.Random(1)
    for _ in range(2 * pages // (4 * 1_000) + 1):
        held = computed([fresh(4 * BLOCK) for _ in range(min(1_000, queued))], 4 * BLOCK)
        draw.shuffle(held)
        plane.release_many(held)

    boundary = iter(range(BLOCK, blocks * BLOCK, BLOCK))

    def filed() -> None:
        for _ in range(GROUP):
            scratch = plane.reserve_scratch(anchor, next(boundary))
            assert scratch is not None and plane.file_scratch(scratch, long_keys, "grid") == "pending"

    batches: list[sp.Batch] = []
    evicting = []
    groups = max(1, min(plane.pool.cached // units // 4, blocks // 2) // GROUP)
    for _ in range(groups):
        filed()
        evicting.append(timed(GROUP, lambda: batches.append(plane.begin_batch())))
        assert batches[-1].ops.store_units.shape == (GROUP, units)
        plane.settle(batches.pop())

    restored = list(restores(plane, fresh, computed, queued, ids))
    plane.release(anchor)
    return {
        "native_store_evicting_kv": statistics.median(evicting),
        "native_restore": statistics.median(restored),
    }


def residencies(admitted: list[sp.Admitted | sp.Refused]) -> list[sp.Residency]:
    """Those of requests that the pool is large enough for."""
    held = [answer.residency for answer in admitted if isinstance(answer, sp.Admitted)]
    assert len(held) == len(admitted), "the pool holds what is measured"
    return held


def restores(
    plane: sp.ControlPlane,
    fresh: Callable[[int], sp.PromptKeys],
    computed: Callable[[list[sp.PromptKeys], int], list[sp.Residency]],
    count: int,
    ids: Iterator[int],
) -> Iterator[float]:
    """Nanoseconds a restore: batches that carry many and are settled."""
    prompts = [fresh(BLOCK + 1) for _ in range(count)]
    held = computed(prompts, BLOCK)
    plane.file_many(held, prompts, [BLOCK] * count, "anchor")
    plane.settle(plane.begin_batch())
    plane.release_many(held)
    for _ in range(40):
        admitted = plane.admit_many([next(ids) for _ in prompts], prompts)
        queued = plane.checkpoints.queued_restores
        yield timed(queued, lambda: plane.settle(plane.begin_batch()))
        plane.release_many(residencies(admitted))


# The copies


def bench_copy(args: argparse.Namespace) -> dict[str, Any]:
    import torch  # type: ignore[import-not-found,unused-ignore]

    layout = sp.Dsv4Geometry("v4-pro").layout  # Whole slots: the images are compared with them.
    arm = TorchArm(torch, layout, args.images)
    report: dict[str, Any] = {
        "device": arm.copies.device,
        "images": args.images,
        "image_bytes": layout.image_bytes,
        "bit_for_bit": arm.round_trip(),
        "returns_before_the_device": arm.returns_at_once(),
    }
    times: dict[str, list[float]] = {}
    for _ in range(args.turns):
        for direction in ("store", "restore"):
            times.setdefault(f"torch_{direction}", []).append(arm.microseconds(direction, args.rounds))
            if args.rust:
                rows = rust(
                    args.rust, "copy", "--device", "cuda:0", "--image", "whole", "--images",
                    str(args.images), "--direction", direction, "--rounds", str(args.rounds),
                )["rows"]  # fmt: skip
                times.setdefault(f"rust_{direction}", []).append(rows[0]["launch_us"])
    report |= {f"{name}_us": [round(us, 2) for us in turns] for name, turns in times.items()}
    for direction in ("store", "restore"):
        torch_us = statistics.median(times[f"torch_{direction}"])
        report[f"torch_{direction}_tb_s"] = round(2 * args.images * layout.image_bytes / torch_us / 1e6, 3)
        if args.rust:
            ratio = torch_us / statistics.median(times[f"rust_{direction}"])
            report[f"torch_over_rust_{direction}"] = round(ratio, 4)
    return report


class TorchArm:
    """Tensors of torch as planes and pools; copies on torch's current stream."""

    def __init__(self, torch: Any, layout: sp.StateLayout, images: int) -> None:
        self.torch, self.layout, self.images = torch, layout, images
        units = layout.units_per_checkpoint
        with torch.cuda.device(0):
            self.regions = [self.random(images * units, size) for _, size in layout.regions]
            self.planes = [self.random(2 * images, size) for _, size in layout.planes]
            self.copies = sp.CudaBackend(
                layout,
                regions=self.regions,
                planes=self.planes,
                stream=torch.cuda.current_stream().cuda_stream,
                staging_images=images,
            )
        shuffled = np.random.default_rng(1).permutation(images * units)
        pages = shuffled.astype(np.uint32).reshape(images, units)
        slots = np.arange(images)
        boundaries = 8192 + 256 * (slots % 128)
        self.ops = {
            "store": sp.MaintenanceOps.of(
                layout, store_slots=slots, store_units=pages, store_boundaries=boundaries
            ),
            "restore": sp.MaintenanceOps.of(
                layout, restore_slots=slots + images, restore_units=pages, restore_boundaries=boundaries
            ),
        }
        self.pages = pages

    def random(self, items: int, size: int) -> Any:
        return self.torch.randint(0, 256, (items, size), dtype=self.torch.uint8, device="cuda:0")

    def round_trip(self) -> bool:
        """Store, then restore into other slots, on the current stream and with nothing in between."""
        torch, images = self.torch, self.images
        before = [region.clone() for region in self.regions]
        self.copies.submit(self.ops["store"])
        self.copies.submit(self.ops["restore"])
        # Enqueued behind the copies by torch itself.
        same = [torch.equal(plane[:images], plane[images:]) for plane in self.planes]
        return all(same) and self.units_hold_the_image(before)

    def units_hold_the_image(self, before: list[Any]) -> bool:
        """Every page against what the plan's spans say; the tails of last units are untouched."""
        pages = self.torch.from_numpy(self.pages.astype(np.int64)).cuda()
        columns = (column.tolist() for column in sp.CopyPlan(self.layout).spans())
        for plane, at, unit, region, into, length in zip(*columns, strict=True):
            source = self.planes[plane][: self.images, at : at + length]
            before[region][pages[:, unit], into : into + length] = source
        return all(self.torch.equal(a, b) for a, b in zip(self.regions, before, strict=True))

    def returns_at_once(self) -> bool:
        """A batch is submitted while the stream is busy for a long time, and does not wait for it."""
        torch = self.torch
        torch.cuda.synchronize()
        torch.cuda._sleep(200_000_000)
        ticket = self.copies.submit(self.ops["store"])
        pending = not self.copies.poll(ticket)
        self.copies.wait(ticket)
        return pending and self.copies.poll(ticket)

    def microseconds(self, direction: str, rounds: int) -> float:
        """Median time on the device, behind a kernel that outlasts the host's call."""
        torch, times = self.torch, []
        for turn in range(rounds + 2):
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(400_000)
            before.record()
            self.copies.submit(self.ops[direction])
            after.record()
            torch.cuda.synchronize()
            if turn >= 2:
                times.append(before.elapsed_time(after) * 1e3)
        return statistics.median(times)


if __name__ == "__main__":
    main()
