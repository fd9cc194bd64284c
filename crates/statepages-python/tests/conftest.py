"""What the tests of the native interface share: a tiny engine's layout, prompts and control planes."""

import numpy as np
import pytest

import statepages as sp

BLOCK = 4
DOMAIN = sp.Domain("tests")


@pytest.fixture
def layout():
    """Units of 48 bytes in two regions; an image of 160 bytes over two planes, so 4 units."""
    return sp.StateLayout(
        "tests-1",
        regions=[("kv", 32), ("index", 16)],
        planes=[("rings", 128), ("state", 64)],
        segments=[(0, 16, 96), (1, 0, 64)],
    )


@pytest.fixture
def runtime(layout):
    return sp.StateRuntime(sp.StateTransfer.copy(layout.id), layout.spec())


@pytest.fixture
def plane(runtime):
    return sp.ControlPlane(pages=64, slots=4, runtime=runtime, block_size=BLOCK, interval=BLOCK, events_max=64)


@pytest.fixture
def arrays(layout):
    """Random bytes: `(regions, planes)` of 64 pages and 4 slots."""
    draw = np.random.default_rng(3)
    regions = [draw.integers(0, 256, (64, size), np.uint8) for _, size in layout.regions]
    planes = [draw.integers(0, 256, (4, size), np.uint8) for _, size in layout.planes]
    return regions, planes


def prompt(*tokens):
    return sp.PromptKeys(DOMAIN, BLOCK, list(tokens))


def run(plane, residency, keys, to, copies=None):
    """One batch of one member."""
    batch = plane.begin_batch()
    plane.join(batch, residency, to)
    if copies is not None:
        copies.wait(copies.submit(batch.ops))
    plane.settle(batch)
    plane.advance(residency, keys, to)
    return batch


def keep(plane, request, keys, boundary, copies=None):
    """Computes a prompt and keeps its state at a boundary."""
    residency = plane.try_admit(request, keys).residency
    run(plane, residency, keys, boundary, copies)
    assert plane.file(residency, keys, boundary, "anchor") == "pending"
    run(plane, residency, keys, len(keys), copies)
    plane.release(residency)
