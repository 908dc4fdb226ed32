"""Where a rank computes and through what it talks, told once and without touching CUDA where it is not in use."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from nandiag.events import Placed
from nandiag.runtime.collectives import placement
from nandiag.runtime.collectives.placement import Placement


@pytest.fixture
def told(monkeypatch):
    events = []
    recorder = SimpleNamespace(
        attached=True, mute=False, darkened=(), is_dark=lambda _probe: False, emit=events.append,
        dark=lambda probe, error: pytest.fail(f"{probe}: {error!r}"),
    )  # fmt: skip
    monkeypatch.setattr(placement, "RECORDER", recorder)
    monkeypatch.setattr("nandiag.runtime.guard.RECORDER", recorder)
    return events


def test_a_rank_without_group_and_cuda_has_nothing_to_say(told):
    Placement(list).tell()
    assert told == []


def test_a_gloo_rank_is_told_once(told, group):
    one = Placement(lambda: [torch.zeros(1)])
    one.tell()
    one.tell()
    (event,) = told
    assert (event.device, event.current, event.gpu_uuid) == ("cpu", None, None)
    assert event.backends["cpu"] == "gloo"
    assert not torch.cuda.is_initialized()


def test_a_rank_on_a_gpu_tells_which(told, group, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: SimpleNamespace(name="H100", uuid="ab-1"))
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cpu:gloo,cuda:nccl")
    Placement(lambda: [SimpleNamespace(device="cuda:3")]).tell()
    assert told == [Placed("cuda:3", 3, 8, "H100", "GPU-ab-1", {"cpu": "gloo", "cuda": "nccl"})]


def test_a_build_without_nccl_has_no_version_of_it(monkeypatch):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    assert placement.nccl_version() is None
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 7))
    assert placement.nccl_version() == "2.27.7"
