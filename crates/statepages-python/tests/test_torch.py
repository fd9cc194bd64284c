"""Torch tensors as pages and slots: on the host, and on a CUDA device where there is one."""

import numpy as np
import pytest

import statepages as sp

torch = pytest.importorskip("torch", reason="torch is not installed: its tensors are not tested")
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: its copies are not tested")

DEVICES = ["cpu", pytest.param("cuda", marks=cuda)]
UNITS = np.array([[40, 3, 17, 8], [1, 2, 63, 5]], np.uint32)


def tensors(layout, device):
    make = torch.Generator().manual_seed(3)
    return [
        [torch.randint(0, 256, (count, size), generator=make, dtype=torch.uint8).to(device) for _, size in parts]
        for count, parts in ((64, layout.regions), (4, layout.planes))
    ]


def backend(layout, regions, planes, stream=None):
    if regions[0].device.type == "cpu":
        return sp.HostBackend(layout, regions=regions, planes=planes)
    return sp.CudaBackend(layout, regions=regions, planes=planes, stream=stream)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("stream", ["current", "side", "own"])
def test_store_then_restore_is_bit_for_bit(layout, device, stream):
    if device == "cpu":
        regions, planes = tensors(layout, device)
        copies = backend(layout, regions, planes)
        check(layout, regions, planes, copies)
        return
    with torch.cuda.stream(torch.cuda.Stream() if stream == "side" else torch.cuda.current_stream()):
        regions, planes = tensors(layout, device)
        torch.cuda.synchronize()
        handle = None if stream == "own" else torch.cuda.current_stream().cuda_stream
        copies = backend(layout, regions, planes, handle)
        assert copies.ordered is (stream != "own")
        check(layout, regions, planes, copies)


def check(layout, regions, planes, copies):
    before = [t.clone() for t in (*regions, *planes)]
    copies.submit(sp.MaintenanceOps.of(layout, store_slots=[0, 1], store_units=UNITS))
    ticket = copies.submit(sp.MaintenanceOps.of(layout, restore_slots=[2, 3], restore_units=UNITS))
    if not copies.ordered:
        copies.wait(ticket)
    for source, target in ((0, 2), (1, 3)):
        assert torch.equal(planes[0][source, 16:112], planes[0][target, 16:112])
        assert torch.equal(planes[1][source], planes[1][target])
        assert torch.equal(planes[0][target, :16], before[2][target, :16]), "what is no image is untouched"
        assert torch.equal(planes[0][target, 112:], before[2][target, 112:])
        stored = torch.cat([part for unit in UNITS[source].tolist() for part in (regions[0][unit], regions[1][unit])])
        image = torch.cat([before[2][source, 16:112], before[3][source]])
        assert torch.equal(stored[:160], image)
        last = int(UNITS[source][-1])
        assert torch.equal(regions[0][last, 16:], before[0][last, 16:]), "the last unit's tail is untouched"
        assert torch.equal(regions[1][last], before[1][last])
    others = [page for page in range(64) if page not in UNITS.flatten().tolist()]
    assert all(torch.equal(a[others], b[others]) for a, b in zip(regions, before[:2], strict=True))
    copies.wait(ticket)
    assert copies.poll(ticket)


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_that_cannot_be_lent_are_refused_by_name(layout, device):
    regions, planes = tensors(layout, device)
    strided = torch.zeros((4, 256), dtype=torch.uint8, device=device)[:, ::2]
    for bad, message in [
        ([strided, planes[1]], r"planes\[0\] \(rings\).*contiguous"),
        ([planes[0][:, :112].contiguous(), planes[1]], r"planes\[0\] \(rings\).*too small"),
        ([planes[0], planes[1][:3].contiguous()], r"planes\[1\] \(state\).*4 items"),
        ([planes[0].float().requires_grad_(), planes[1]], r"planes\[0\] \(rings\).*writable"),
    ]:
        with pytest.raises(sp.MemoryRefused, match=message):
            backend(layout, regions, bad)


@cuda
def test_wrong_devices_are_refused_by_name(layout):
    host, device = tensors(layout, "cpu"), tensors(layout, "cuda")
    with pytest.raises(sp.MemoryRefused, match=r"regions\[0\].*on the host, got one on Cuda"):
        sp.HostBackend(layout, regions=device[0], planes=device[1])
    with pytest.raises(sp.MemoryRefused, match=r"regions\[0\].*on a device, got one on the host"):
        sp.CudaBackend(layout, regions=host[0], planes=host[1])
    with pytest.raises(sp.MemoryRefused, match=r"planes\[0\] \(rings\).*on Cuda\(0\) as the first"):
        sp.CudaBackend(layout, regions=device[0], planes=host[1])


@cuda
def test_a_submission_does_not_wait_for_the_stream(layout):
    regions, planes = tensors(layout, "cuda")
    copies = backend(layout, regions, planes, torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    torch.cuda._sleep(500_000_000)
    ticket = copies.submit(sp.MaintenanceOps.of(layout, store_slots=[0, 1], store_units=UNITS))
    assert not copies.poll(ticket)
    copies.wait(ticket)
    assert copies.poll(ticket)


@cuda
def test_a_refused_batch_latches_on_a_device(layout):
    regions, planes = tensors(layout, "cuda")
    copies = backend(layout, regions, planes)
    with pytest.raises(sp.CopyRefused, match="slot"):
        copies.submit(sp.MaintenanceOps.of(layout, store_slots=[9], store_units=UNITS[:1]))
    with pytest.raises(sp.DeviceFailure):
        copies.store_room()
    copies.reset()
    assert copies.store_room() > 0
    copies.wait(copies.submit(sp.MaintenanceOps.of(layout, store_slots=[0], store_units=UNITS[:1])))
