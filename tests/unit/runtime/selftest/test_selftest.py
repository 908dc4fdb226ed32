"""Doctor's half that imports torch: known values, matrix products with a device that errs, links, what NVML tells."""

import pytest
import torch
import torch.distributed as dist

from nandiag.runtime.selftest import collectives, gpus, probe, products, speed
from nandiag.runtime.selftest.collectives import World


@pytest.mark.parametrize("size", [1, 2, 7, 8, 64, 256, 300])
def test_sums_of_the_known_values_are_exact_in_the_smallest_dtype(size):
    every = torch.stack([collectives.values(rank, size, 64) for rank in range(size)])
    exact = every.sum(0)
    assert exact.max() <= collectives.EXACT
    for dtype in (torch.bfloat16, torch.float16):
        one_by_one = torch.zeros(64, dtype=dtype)
        for row in every:
            one_by_one += row.to(dtype)
        assert torch.equal(one_by_one.double(), exact)


def test_ranks_differ_so_that_a_missing_one_shows():
    assert not torch.equal(collectives.values(0, 2), collectives.values(1, 2))
    assert collectives.values(1, 2).count_nonzero() > 0


@pytest.fixture
def alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield World(0, 1, torch.device("cpu"))
    dist.destroy_process_group()


def test_collectives_of_one_rank_are_exact(alone):
    begun = []
    found = list(collectives.checked(alone, begun.append))
    assert {one.outcome for one in found} <= {"ok", "unsupported"}
    assert {one.op for one in found} == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"}
    assert begun[0] == "all_reduce float32"


def test_a_wrong_value_is_told_with_its_place():
    expected = torch.arange(4, dtype=torch.float64)
    found = collectives.one("all_reduce", "float32", lambda: torch.tensor([0.0, 1.0, 5.0, 3.0]), expected)
    assert (found.outcome, found.detail) == ("wrong", "1 of 4 values differ, the first at 2: 5, not 2")


def test_a_nan_in_a_result_is_wrong():
    expected = torch.zeros(1, dtype=torch.float64)
    assert collectives.one("all_reduce", "float32", lambda: torch.tensor([float("nan")]), expected).outcome == "wrong"


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RuntimeError("ProcessGroupGloo does not support reduce_scatter"), "unsupported"),
        (RuntimeError("Invalid scalar type"), "unsupported"),
        (RuntimeError("Connection closed by peer"), "failed"),
    ],
)
def test_a_refusal_of_the_backend_is_told_from_a_failure(error, outcome):
    def run():
        raise error

    assert collectives.one("x", "float16", run, torch.zeros(1)).outcome == outcome


CPU = torch.device("cpu")


def test_a_sound_device_multiplies_alike_and_near_float64():
    for found in products.checked(CPU):
        assert found.differing == 0
        assert 0 < found.error <= found.limit
        assert found.seconds > 0


def flipped(tensor):
    """One bit of the exponent of one value, as a failing unit flips it."""
    bits = tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16).clone()
    bits[5, 5] ^= 1 << (25 if tensor.dtype == torch.float32 else 9)
    return bits.view(tensor.dtype)


def test_a_device_that_errs_now_and_then_is_found():
    calls = []

    def multiply(a, b):
        calls.append(1)
        return flipped(a @ b) if len(calls) % 4 == 0 else a @ b

    found = products.product(CPU, torch.float32, 64, multiply)
    assert found.differing == 1
    assert found.error > found.limit


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_device_that_always_errs_the_same_way_is_found_against_float64(dtype):
    found = products.product(CPU, dtype, 64, lambda a, b: flipped(a @ b))
    assert found.differing == 0
    assert found.error > found.limit


def test_a_nan_is_an_error_without_bound():
    found = products.product(CPU, torch.float32, 8, lambda a, b: (a @ b).fill_(float("nan")))
    assert found.error == float("inf")
    assert found.differing == products.ROUNDS - 1


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_each_link_of_the_ring_has_a_turn_and_no_rank_has_two_at_once(size):
    turns = speed.turns(size)
    for turn in turns:
        ranks = [rank for pair in turn for rank in pair]
        assert len(ranks) == len(set(ranks))
    assert {frozenset(pair) for turn in turns for pair in turn} == {
        frozenset((rank, (rank + 1) % size)) for rank in range(size)
    }


def test_the_version_of_nccl_is_read_from_its_number():
    assert [probe.version_text(number) for number in (22703, 21805, 2804)] == ["2.27.3", "2.18.5", "2.8.4"]


def test_xids_are_counted_by_gpu():
    text = (
        "6,123,1;NVRM: Xid (PCI:0000:c8:00): 79, pid=1, GPU has fallen off the bus.\n"
        "6,124,1;NVRM: Xid (PCI:0000:c8:00): 79, pid=1\n6,125,1;NVRM: Xid (PCI:0000:17:00.0): 13, Graphics\n"
    )
    assert gpus.kernel_xids(text) == {"c8:00": {"79": 2}, "17:00": {"13": 1}}
    assert gpus.short_bus("00000000:C8:00.0") == "c8:00"


def test_reasons_of_throttling_that_are_no_trouble_are_left_out():
    assert gpus.throttled(0x1 | 0x2) == ()
    assert gpus.throttled(0x40 | 0x1) == ("hardware thermal slowdown",)


class Nvml:
    """Answers as pynvml does; what this GPU does not tell raises."""

    def __getattr__(self, name):
        answers = {
            "nvmlDeviceGetHandleByIndex": 7,
            "nvmlDeviceGetName": b"NVIDIA H100",
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlDeviceGetTotalEccErrors": 2,
            "nvmlDeviceGetTemperature": 61,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x8,
            "nvmlDeviceGetRemappedRows": (0, 1, 1, 0),
        }

        def answer(*_words):
            if name not in answers:
                raise RuntimeError("NVML_ERROR_NOT_SUPPORTED")
            return answers[name]

        return answer


def test_what_nvml_tells_is_taken_and_what_it_refuses_is_left_out():
    gpu = gpus._gpu(Nvml(), 3, {})
    assert (gpu.index, gpu.name, gpu.uuid, gpu.ecc, gpu.retired, gpu.temperature) == (
        3,
        "NVIDIA H100",
        "GPU-1",
        2,
        2,
        61,
    )
    assert gpu.throttled == ("hardware slowdown",)
    assert (gpu.memory, gpu.bus, gpu.slowdown_at) == (None, None, None)


def test_this_installation_is_looked_at_without_raising():
    found = probe.installation()
    assert found.torch == torch.__version__
    assert "gloo" in found.backends
    assert found.trouble is None
