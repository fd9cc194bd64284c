"""Copies in lent host memory: bit for bit, and only where they belong."""

import gc
import random
import threading
import weakref

import numpy as np
import pytest

import statepages as sp
from conftest import keep, prompt, run


class Only:
    """An array that is nothing but DLPack."""

    def __init__(self, array, version=True):
        self.array, self.version = array, version

    def __dlpack__(self, *, stream=None, **keywords):
        assert stream is None, "host arrays have no stream"
        if keywords and not self.version:
            raise TypeError("an exporter from before version 1")
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def image(planes, slot):
    """The bytes that the layout's segments name."""
    return np.concatenate([planes[0][slot, 16:112], planes[1][slot, :64]])


def stream_of(regions, units):
    return np.concatenate([part for unit in units for part in (regions[0][unit], regions[1][unit])])


@pytest.mark.parametrize("version", [True, False])
def test_store_and_restore_are_bit_for_bit_and_spoil_nothing(layout, arrays, version):
    regions, planes = arrays
    copies = sp.HostBackend(
        layout,
        regions=[Only(a, version) for a in regions],
        planes=[Only(a, version) for a in planes],
    )
    assert (copies.pages, copies.slots, copies.ordered) == (64, 4, True)
    before = [a.copy() for a in (*regions, *planes)]
    units = [40, 3, 17, 8]
    wanted = image(planes, 1)
    ticket = copies.submit(sp.MaintenanceOps.of(layout, store_slots=[1], store_units=[units]))
    assert copies.poll(ticket) is True
    written = stream_of(regions, units)
    assert (written[:160] == wanted).all()
    assert (written[160:] == stream_of(before[:2], units)[160:]).all(), "the last unit's tail is untouched"
    others = np.setdiff1d(np.arange(64), units)
    assert all((a[others] == b[others]).all() for a, b in zip(regions, before[:2], strict=True))
    assert all((a == b).all() for a, b in zip(planes, before[2:], strict=True))

    ticket = copies.submit(sp.MaintenanceOps.of(layout, restore_slots=[2], restore_units=[units]))
    copies.wait(ticket)
    assert (image(planes, 2) == wanted).all()
    assert (planes[0][2, :16] == before[2][2, :16]).all() and (planes[0][2, 112:] == before[2][2, 112:]).all()
    rest = [0, 1, 3]
    assert all((a[rest] == b[rest]).all() for a, b in zip(planes, before[2:], strict=True))


def test_rows_longer_than_the_layout_keep_their_tails(layout):
    draw = np.random.default_rng(5)
    regions = [draw.integers(0, 256, (8, size + 16), np.uint8) for _, size in layout.regions]
    planes = [draw.integers(0, 256, (2, size + 32), np.uint8) for _, size in layout.planes]
    before = [a.copy() for a in (*regions, *planes)]
    copies = sp.HostBackend(layout, regions=regions, planes=planes)
    copies.submit(sp.MaintenanceOps.of(layout, store_slots=[0], store_units=[[7, 5, 3, 1]]))
    copies.submit(sp.MaintenanceOps.of(layout, restore_slots=[1], restore_units=[[7, 5, 3, 1]]))
    copies.submit(sp.MaintenanceOps.of(layout, relocations=[(1, 0)]))
    sizes = [size for _, size in (*layout.regions, *layout.planes)]
    for array, old, size in zip((*regions, *planes), before, sizes, strict=True):
        assert (array[:, size:] == old[:, size:]).all()
    assert (planes[0][1, 16:112] == before[2][0, 16:112]).all()


def test_random_batches_against_a_model(layout, arrays):
    """Relocations, stores and restores by numpy alone, in the documented order."""
    regions, planes = arrays
    copies = sp.HostBackend(layout, regions=regions, planes=planes)
    model = [a.copy() for a in (*regions, *planes)]
    draw = random.Random(9)
    stored = []
    for _ in range(300):
        relocations = [tuple(draw.sample(range(4), 2))] if draw.random() < 0.4 else []
        stores = draw.sample(range(4), draw.randint(0, 2))
        # Stores must not write what restores of the same batch read.
        sources = draw.sample(stored, min(2, len(stored)))
        restores = list(zip(draw.sample(range(4), len(sources)), sources, strict=True))
        busy = {u for _, units in restores for u in units}
        free = [u for u in range(64) if u not in busy]
        pages = draw.sample(free, 4 * len(stores))
        drawn = [pages[4 * n : 4 * n + 4] for n in range(len(stores))]
        for a, b in relocations:
            model[2][b], model[3][b] = model[2][a].copy(), model[3][a].copy()
        for slot, units in zip(stores, drawn, strict=True):
            flat = stream_of(model[:2], units)
            flat[:160] = image(model[2:], slot)
            for n, unit in enumerate(units):
                model[0][unit], model[1][unit] = flat[48 * n : 48 * n + 32], flat[48 * n + 32 : 48 * n + 48]
        for slot, units in restores:
            flat = stream_of(model[:2], units)
            model[2][slot, 16:112], model[3][slot] = flat[:96], flat[96:160]
        copies.submit(
            sp.MaintenanceOps.of(
                layout,
                relocations=relocations,
                store_slots=stores,
                store_units=drawn or None,
                restore_slots=[slot for slot, _ in restores],
                restore_units=[units for _, units in restores] or None,
            )
        )
        stored.extend(drawn)
        assert all((a == b).all() for a, b in zip((*regions, *planes), model, strict=True))


def test_ring_rows_follow_their_position():
    layout = sp.StateLayout(
        "ring",
        regions=[("kv", 64)],
        planes=[("window", 4 * 32)],
        segments=[sp.RingRun(0, rows=3, ring=4, stride=4, outer=0, inner=32, row_bytes=32, offset=0)],
        rule="live",
    )
    assert layout.rows_before_boundary == 3
    regions, planes = [np.zeros((4, 64), np.uint8)], [np.zeros((2, 128), np.uint8)]
    for row in range(4):
        planes[0][0, row * 32 : row * 32 + 32] = row + 1
    copies = sp.HostBackend(layout, regions=regions, planes=planes)
    copies.submit(
        sp.MaintenanceOps.of(layout, store_slots=[0], store_units=[[2, 0]], store_boundaries=[6])
    )
    assert regions[0][2].reshape(2, 32)[:, 0].tolist() == [4, 1] and regions[0][0][0] == 2, "3, 4, 5 mod 4"
    early = sp.MaintenanceOps.of(layout, store_slots=[0], store_units=[[2, 0]], store_boundaries=[2])
    with pytest.raises(sp.CopyRefused, match="boundary"):
        copies.submit(early)


def test_a_refused_batch_writes_nothing_and_latches(layout, arrays):
    regions, planes = arrays
    copies = sp.HostBackend(layout, regions=regions, planes=planes)
    good = sp.MaintenanceOps.of(layout, store_slots=[0], store_units=[[0, 1, 2, 3]])
    before = [a.copy() for a in (*regions, *planes)]
    for bad, message in [
        ({"store_slots": [4], "store_units": [[0, 1, 2, 3]]}, "slot"),
        ({"store_slots": [0], "store_units": [[0, 1, 2, 64]]}, "unit"),
        ({"store_slots": [0], "store_units": [[0, 1, 2, 2]]}, "distinct"),
        ({"restore_slots": [0, 0], "restore_units": [[0, 1, 2, 3], [4, 5, 6, 7]]}, "restore"),
        ({"relocations": [(1, 1)]}, "relocation"),
    ]:
        with pytest.raises(sp.CopyRefused, match=message):
            copies.submit(sp.MaintenanceOps.of(layout, **bad))
        with pytest.raises(sp.DeviceFailure, match="reset"):
            copies.submit(good)
        copies.reset()
    assert all((a == b).all() for a, b in zip((*regions, *planes), before, strict=True))
    ticket = copies.submit(good)
    assert copies.poll(ticket)
    with pytest.raises(IndexError, match="ticket"):
        copies.poll(ticket + 1)


def test_another_layout_is_refused(layout, arrays):
    regions, planes = arrays
    copies = sp.HostBackend(layout, regions=regions, planes=planes)
    twin = sp.StateLayout(
        "tests-2", regions=layout.regions, planes=layout.planes, segments=[(0, 16, 96), (1, 0, 64)]
    )
    with pytest.raises(sp.CopyRefused, match="layout"):
        copies.submit(sp.MaintenanceOps.of(twin, store_slots=[0], store_units=[[0, 1, 2, 3]]))


class Elsewhere:
    def __init__(self, array, device):
        self.array, self.device = array, device

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.device


def refused(layout, arrays, message, regions=None, planes=None):
    regions = arrays[0] if regions is None else regions
    planes = arrays[1] if planes is None else planes
    with pytest.raises(sp.MemoryRefused, match=message):
        sp.HostBackend(layout, regions=regions, planes=planes)


def test_what_is_not_lent_is_refused_by_name(layout, arrays):
    (kv, index), (rings, state) = arrays
    refused(layout, arrays, r"regions: expected 2 arrays, got 1", regions=[kv])
    refused(layout, arrays, r"regions\[1\] \(index\).*__dlpack__, got list", regions=[kv, [1]])
    refused(layout, arrays, r"regions\[0\] \(kv\).*contiguous", regions=[np.zeros((64, 64), np.uint8)[:, ::2], index])
    refused(layout, arrays, r"regions\[0\] \(kv\).*contiguous", regions=[np.zeros((32, 64), np.uint8).T, index])
    refused(layout, arrays, r"planes\[0\] \(rings\).*too small", planes=[rings[:, :112].copy(), state])
    refused(layout, arrays, r"planes\[1\] \(state\).*4 items.*got 3", planes=[rings, state[:3].copy()])
    refused(layout, arrays, r"planes\[1\] \(state\).*bytes of its own.*rings", planes=[rings, rings])
    refused(layout, arrays, r"planes\[0\].*scalar", planes=[np.array(1.0), state])
    refused(layout, arrays, r"planes\[0\].*items", planes=[rings[:0].copy(), state])
    refused(layout, arrays, r"planes\[0\].*multiple of 16", planes=[np.zeros((4, 136), np.uint8), state])
    frozen = state.copy()
    frozen.flags.writeable = False
    refused(layout, arrays, r"planes\[1\] \(state\).*(writable|read-?only)", planes=[rings, frozen])
    refused(layout, arrays, r"planes\[1\] \(state\).*the first.*Cuda", planes=[rings, Elsewhere(state, (2, 0))])
    refused(layout, arrays, r"planes\[1\] \(state\).*device \(8, 0\)", planes=[rings, Elsewhere(state, (8, 0))])
    everywhere = [Elsewhere(a, (2, 0)) for a in (kv, index, rings, state)]
    refused(layout, arrays, "on the host", regions=everywhere[:2], planes=everywhere[2:])
    with pytest.raises(sp.MemoryRefused, match="on the host"):
        sp.CudaBackend(layout, regions=[kv, index], planes=[rings, state])


def test_other_item_types_are_bytes_too(layout):
    regions = [np.zeros((8, 8), np.float32), np.zeros((8, 2, 2), np.int32)]
    planes = [np.arange(64, dtype=np.float32).reshape(2, 32), np.ones((2, 16), np.float32)]
    copies = sp.HostBackend(layout, regions=regions, planes=planes)
    copies.submit(sp.MaintenanceOps.of(layout, store_slots=[1], store_units=[[0, 1, 2, 3]]))
    assert regions[0][0].tolist() == planes[0][1, 4:12].tolist()


def test_lent_arrays_live_as_long_as_the_backend(layout):
    class Array(np.ndarray):
        pass

    def lent(size, count):
        return np.zeros((count, size), np.uint8).view(Array)

    regions = [lent(size, 8) for _, size in layout.regions]
    planes = [lent(size, 2) for _, size in layout.planes]
    gone = weakref.ref(regions[0])
    copies = sp.HostBackend(layout, regions=regions, planes=planes)
    del regions, planes
    gc.collect()
    assert gone() is not None
    copies.submit(sp.MaintenanceOps.of(layout, store_slots=[1], store_units=[[0, 1, 2, 3]]))
    del copies
    gc.collect()
    assert gone() is None


def test_a_refused_array_is_given_back(layout, arrays):
    class Array(np.ndarray):
        pass

    poor = np.zeros((4, 16), np.uint8).view(Array)
    gone = weakref.ref(poor)
    refused(layout, arrays, "too small", planes=[poor, arrays[1][1]])
    del poor
    gc.collect()
    assert gone() is None


def test_copies_run_without_the_gil():
    """Another thread counts on while a large batch is copied."""
    size = 1 << 24
    layout = sp.StateLayout("large", regions=[("kv", size)], planes=[("state", size)])
    regions, planes = [np.zeros((2, size), np.uint8)], [np.ones((2, size), np.uint8)]
    copies = sp.HostBackend(layout, regions=regions, planes=planes)
    ops = sp.MaintenanceOps.of(layout, store_slots=[0, 1], store_units=[[0], [1]])
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    gained = 0
    for _ in range(30):
        before = counted[0]
        copies.submit(ops)
        gained += counted[0] - before
    stop.set()
    thread.join()
    assert gained > 0 and regions[0].all()


def test_threads_share_a_backend(layout, arrays):
    regions, planes = arrays
    copies = sp.HostBackend(layout, regions=regions, planes=planes)
    tickets = []

    def work(n):
        units = [list(range(16 * n, 16 * n + 4))]
        for _ in range(100):
            tickets.append(copies.submit(sp.MaintenanceOps.of(layout, store_slots=[n], store_units=units)))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(tickets) == list(range(400))
    for n in range(4):
        assert (stream_of(regions, range(16 * n, 16 * n + 4))[:160] == image(planes, n)).all()


def test_an_engine_resumes_from_pages(plane, layout, arrays):
    """Control plane and copies together: what a resumed request finds in its slot is what was filed."""
    regions, planes = arrays
    copies = sp.HostBackend(layout, regions=regions, planes=planes)
    keys = prompt(*range(1, 11))
    residency = plane.try_admit(1, keys).residency
    run(plane, residency, keys, 8, copies)
    wanted = image(planes, residency.slot).copy()
    plane.file(residency, keys, 8, "anchor")
    run(plane, residency, keys, 10, copies)
    for a in planes:
        a[residency.slot] = 0xEE
    plane.release(residency)
    other = plane.try_admit(2, prompt(50)).residency
    resumed = plane.try_admit(3, keys)
    assert resumed.resumed == 8 and resumed.residency.slot != other.slot
    run(plane, resumed.residency, keys, 10, copies)
    assert (image(planes, resumed.residency.slot) == wanted).all()
    plane.release_many([other, resumed.residency])
    keep(plane, 4, prompt(*range(100, 110)), 8, copies)
    plane.check()
