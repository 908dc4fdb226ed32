"""Ranks in the wrong place or on the wrong backend, from recorded events."""

import pytest

from nandiag.analysis import analyse
from nandiag.analysis.nccl import placement
from nandiag.events import Armed, Attached, Finished, Placed, Raised, Record
from nandiag.store.reader import RankLog, RunRecord


def rank(number, placed=None, *, host="n", raised=None, cuda="13.0", nccl="2.27.7"):
    events = [
        Attached(number, 2, number, 0, host, 70 + number, "site", "3.12", "0.1.0"),
        Armed("2.13.0", ("sentinel",), cuda=cuda, nccl=nccl),
        *([placed] if placed else []),
        Raised("ValueError", raised, "", 0) if raised else Finished(3),
    ]
    return RankLog(number, 0, 70 + number, tuple(Record(seq, 1.0 + seq, event) for seq, event in enumerate(events)))


def on(index, *, uuid=None, current=None, visible=4, backend="nccl"):
    current = index if current is None else current
    backends = {"cpu": "gloo", "cuda": backend}
    return Placed(f"cuda:{index}", current, visible, "NVIDIA H100", uuid or f"GPU-{index}", backends)


def findings(*logs):
    return {one.slug: one for one in placement.findings_of({log.rank: log for log in logs})}


def test_ranks_each_on_a_gpu_of_its_own_through_nccl_are_well():
    assert findings(rank(0, on(0)), rank(1, on(1))) == {}


def test_gloo_on_gpus_is_told():
    found = findings(rank(0, on(0, backend="gloo")), rank(1, on(1, backend="gloo")))["gloo_on_cuda"]
    assert found.ranks == (0, 1)
    assert found.severity == "warning"
    assert "Use init_process_group('nccl')" in found.text
    without = findings(rank(0, on(0, backend="gloo"), nccl=None), rank(1, on(1, backend="gloo"), nccl=None))
    assert "Install a torch with NCCL" in without["gloo_on_cuda"].text


def test_gloo_on_cpus_and_for_cpu_tensors_beside_nccl_is_well():
    cpu = Placed("cpu", None, None, None, None, {"cpu": "gloo", "cuda": "gloo"})
    assert findings(rank(0, cpu), rank(1, cpu)) == {}


def test_all_ranks_on_the_first_of_many_gpus_have_forgotten_set_device():
    found = findings(*(rank(number, on(0, uuid="GPU-a")) for number in range(3)))
    assert list(found) == ["set_device_forgotten"]
    assert "Ranks 0-2 on n all use cuda:0, although 4 GPUs are there" in found["set_device_forgotten"].text


@pytest.mark.parametrize("placed", [on(0, uuid="GPU-a", visible=1), on(2, uuid="GPU-a", current=2)])
def test_ranks_that_share_a_gpu_for_another_reason_are_told_so(placed):
    assert list(findings(rank(0, placed), rank(1, placed))) == ["shared_gpu"]


def test_the_same_name_of_a_gpu_on_two_hosts_is_no_sharing():
    assert findings(rank(0, on(0)), rank(1, on(0), host="m")) == {}


def test_a_cuda_context_beside_training_on_the_cpu_is_no_sharing():
    placed = Placed("cpu", 0, 1, "H100", "GPU-a", {"cpu": "gloo"})
    assert findings(rank(0, placed), rank(1, placed)) == {}


@pytest.mark.parametrize(
    ("message", "cuda", "word"),
    [
        ("ProcessGroupNCCL is only supported with GPUs, no GPUs found!", "13.0", "torch sees no GPU there"),
        ("Distributed package doesn't have NCCL built in", None, "this torch is a CPU build"),
    ],
)
def test_nccl_without_a_gpu_says_what_to_do(message, cuda, word):
    found = findings(rank(0, raised=message, cuda=cuda), rank(1, raised=message, cuda=cuda))["nccl_without_gpu"]
    assert found.ranks == (0, 1)
    assert word in found.text
    assert "init_process_group('gloo')" in found.text


def test_another_error_is_no_advice():
    assert findings(rank(0, raised="CUDA out of memory")) == {}


def test_the_report_holds_advice_and_versions():
    logs = (rank(0, on(0, uuid="GPU-a")), rank(1, on(0, uuid="GPU-a")))
    report = analyse(RunRecord(None, logs, ()))
    assert "set_device_forgotten" in {one.slug for one in report.findings}
    assert report.run.versions["nccl"] == "2.27.7"
