"""From facts to checks: versions, GPUs, machine, variables, self-test; and the block for a bug report."""

from dataclasses import replace

import pytest

from nandiag.analysis.doctor import Check, Doctor, devices, host, paste, selftest, variables, versions
from nandiag.analysis.doctor.host import Adapter, Host, chosen_ports
from nandiag.store.doctor import Collective, Examined, Gpu, Installation, Multiplied, Paired, SelfTest

GOOD = Installation(
    "3.12.1", "2.13.0+cu130", cuda="13.0", backends=("gloo", "nccl"), nccl_compiled="2.27.7", nccl_loaded="2.27.7",
    driver="580.65.06", driver_cuda="13.0", gpus=(Gpu(0, "NVIDIA H100"),),
)  # fmt: skip


def states(found):
    return {check.name: check.state for check in found}


def of(found, name):
    return next(check for check in found if check.name == name)


def test_an_installation_that_fits_is_ok():
    assert set(states(versions.checks(GOOD)).values()) == {"ok"}


@pytest.mark.parametrize(
    ("cuda", "driver", "state"),
    [("13.0", "575.51.03", "wrong"), ("13.0", "580.65", "ok"), ("12.8", "525.60.13", "ok"), ("12.1", "520.1", "wrong"),
     ("11.8", "450.80", "ok"), ("11.8", "440.33", "wrong"), ("14.0", "600.1", "ok")],
)  # fmt: skip
def test_a_driver_must_be_new_enough_for_the_cuda_of_torch(cuda, driver, state):
    found = of(versions.checks(replace(GOOD, cuda=cuda, driver=driver)), "CUDA and driver")
    assert found.state == state
    assert (found.mend is None) == (state == "ok")


def test_a_cpu_build_beside_a_driver_is_a_warning_and_without_one_is_skipped():
    cpu = replace(GOOD, cuda=None, backends=("gloo",))
    assert states(versions.checks(cpu))["CUDA and driver"] == "warning"
    found = states(versions.checks(replace(cpu, driver=None)))
    assert (found["CUDA and driver"], found["NCCL"]) == ("skipped", "skipped")


def test_cuda_that_does_not_work_is_wrong():
    found = of(versions.checks(replace(GOOD, trouble="RuntimeError: no CUDA GPUs are available")), "CUDA and driver")
    assert found.state == "wrong"
    assert "no CUDA GPUs" in found.seen


@pytest.mark.parametrize(
    ("loaded", "state"), [("2.26.5", "wrong"), ("2.28.3", "warning"), ("3.1.0", "wrong"), (None, "skipped")]
)
def test_the_nccl_that_is_loaded_must_be_the_one_compiled_with(loaded, state):
    found = of(versions.checks(replace(GOOD, nccl_loaded=loaded, nccl_path="/opt/lib/libnccl.so.2")), "NCCL")
    assert found.state == state
    assert "/opt/lib" in found.seen or loaded is None


def test_torch_that_cannot_be_imported_is_wrong_and_ends_the_list():
    found = list(versions.checks(Installation("3.9.1", trouble="ImportError: libtorch")))
    assert [(check.name, check.state) for check in found] == [("Python", "wrong"), ("torch", "wrong")]


@pytest.mark.parametrize(
    ("gpu", "state", "word"),
    [
        ({"ecc": 3}, "wrong", "3 uncorrected ECC"),
        ({"xids": {"79": 1}}, "wrong", "Xid 79"),
        ({"xids": {"13": 2}}, "warning", "Xid 13 (2 times)"),
        ({"temperature": 88, "slowdown_at": 90}, "warning", "88 degrees"),
        ({"throttled": ("hardware thermal slowdown",)}, "warning", "thermal"),
        ({"memory": 80 * 2**30, "memory_used": 70 * 2**30}, "warning", "70 of 80 GiB"),
        ({"retired": 2}, "warning", "2 rows"),
        ({"ecc": 0, "temperature": 40, "slowdown_at": 90, "memory": 80 * 2**30}, "ok", "80 GiB"),
    ],
)
def test_a_gpu_is_judged_by_what_its_driver_tells(gpu, state, word):
    (found,) = devices.checks(replace(GOOD, gpus=(Gpu(0, "H100", **gpu),)))
    assert found.state == state
    assert word in found.seen


def test_without_gpus_or_nvml_it_is_said_why():
    assert states(devices.checks(replace(GOOD, gpus=()))) == {"GPUs": "skipped"}
    found = list(devices.checks(replace(GOOD, unseen="nvidia-ml-py is not installed")))
    assert states(found) == {"GPU 0": "ok", "GPU health": "skipped"}


MACHINE = Host(shm_size=2**34, shm_free=2**34, open_files=65_536, log_folder="logs", disk_free=2**40)


@pytest.mark.parametrize(
    ("change", "name", "state"),
    [
        ({}, "shared memory", "ok"),
        ({"shm_free": 2**20}, "shared memory", "wrong"),
        ({"shm_free": 2**28}, "shared memory", "warning"),
        ({"shm_size": None}, "shared memory", "skipped"),
        ({"open_files": 1024}, "open files", "warning"),
        ({"open_files": host.NO_LIMIT}, "open files", "ok"),
        ({"disk_free": 2**20}, "log folder", "wrong"),
        ({"disk_free": 2**28}, "log folder", "warning"),
        ({"writable": "permission denied"}, "log folder", "wrong"),
        ({}, "InfiniBand, RoCE", "skipped"),
    ],
)
def test_the_machine_is_judged(change, name, state):
    assert states(host.checks(replace(MACHINE, **change), {}, 8))[name] == state


PORTS = (Adapter("mlx5_0:1", "4: ACTIVE", "InfiniBand"), Adapter("mlx5_1:1", "1: DOWN", "InfiniBand"))


@pytest.mark.parametrize(
    ("environ", "state", "word"),
    [
        ({}, "ok", "NCCL would use mlx5_0:1"),
        ({"NCCL_IB_DISABLE": "1"}, "warning", "NCCL_IB_DISABLE"),
        ({"NCCL_IB_DISABLE": "0"}, "ok", "mlx5_0"),
        ({"NCCL_IB_HCA": "mlx5_9"}, "wrong", "fits none"),
        ({"NCCL_IB_HCA": "^mlx5_0"}, "wrong", "fits none"),
        ({"NCCL_IB_HCA": "=mlx5_0:1"}, "ok", "mlx5_0:1"),
    ],
)
def test_adapters_are_held_against_what_nccl_would_use(environ, state, word):
    found = of(host.checks(replace(MACHINE, adapters=PORTS), environ, 8), "InfiniBand, RoCE")
    assert (found.state, word in found.seen) == (state, True)


def test_the_names_of_adapters_are_chosen_as_nccl_does():
    ports = ["mlx5_0:1", "mlx5_1:1", "mlx5_10:1"]
    assert chosen_ports("mlx5_1", ports) == ["mlx5_1:1", "mlx5_10:1"]
    assert chosen_ports("=mlx5_1", ports) == ["mlx5_1:1"]
    assert chosen_ports("^mlx5_1", ports) == ["mlx5_0:1"]
    assert chosen_ports("mlx5_0:2", ports) == []
    assert chosen_ports("", ports) == ports


@pytest.mark.parametrize(
    ("environ", "torch", "names"),
    [
        ({}, "2.13.0", {"environment": "ok"}),
        ({"NCCL_BLOCKING_WAIT": "1"}, "2.13.0", {"NCCL_BLOCKING_WAIT": "warning"}),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "100"}, "2.13.0", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "warning"}),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "100"}, "2.6.0", {"environment": "ok"}),
        ({"TORCH_FR_BUFFER_SIZE": "0"}, "2.13.0", {"TORCH_FR_BUFFER_SIZE": "warning"}),
        ({"TORCH_NCCL_NAN_CHECK": "1"}, "2.13.0", {"TORCH_NCCL_NAN_CHECK": "warning"}),
        ({"NCCL_P2P_DISABLE": "1"}, "2.13.0", {"NCCL_P2P_DISABLE": "warning"}),
        ({"NCCL_P2P_DISABLE": "0"}, "2.13.0", {"environment": "ok"}),
        ({"NCCL_SOCKET_IFNAME": "ib9"}, "2.13.0", {"NCCL_SOCKET_IFNAME": "wrong"}),
        ({"NCCL_SOCKET_IFNAME": "eth"}, "2.13.0", {"environment": "ok"}),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, "2.13.0", {"NCCL_SOCKET_IFNAME": "wrong"}),
        ({"NCCL_SOCKET_IFNAME": "^docker,lo"}, "2.13.0", {"environment": "ok"}),
        ({"NCCL_DEBUG_FILE": "/x"}, "2.13.0", {"NCCL_DEBUG_FILE": "warning"}),
    ],
)
def test_variables_in_the_way_are_named(environ, torch, names):
    assert states(variables.checks(environ, torch, ("lo", "eth0"))) == names


def product(**change):
    values = {"dtype": "float32", "size": 8, "rounds": 6, "differing": 0, "error": 1e-7, "limit": 1e-5, "digest": "a",
              "seconds": 0.001}  # fmt: skip
    return Multiplied(**{**values, **change})


def examined(rank, *, host="n", name="H100", outcome="ok", products=(), links=(), ahead=0.0):
    ops = tuple(Collective("all_reduce", dtype, outcome, "why") for dtype in ("float32", "bfloat16"))
    return Examined(rank, host, f"cuda:{rank}", name, ops, products or (product(),), links, 1e-4, 1e9, ahead, 0.001)


def test_a_self_test_that_passes():
    found = list(selftest.checks(SelfTest("nccl", (examined(0), examined(1)))))
    assert states(found) == {"all_reduce": "ok", "matrix products": "ok", "speed": "ok", "clocks": "skipped"}


def test_speed_is_told_by_rank_and_of_many_ranks_in_the_middle():
    few = of(selftest.checks(SelfTest("nccl", (examined(0), examined(1)))), "speed").seen
    assert "rank 0 100 us, 1.00 GB/s; rank 1 100 us, 1.00 GB/s; slowest rank 0 on n" in few
    many = of(selftest.checks(SelfTest("nccl", tuple(examined(rank) for rank in range(9)))), "speed").seen
    assert "100 us, 1.00 GB/s a rank (median of 9)" in many


@pytest.mark.parametrize("outcome", ["wrong", "failed"])
def test_a_wrong_result_names_its_ranks(outcome):
    found = of(
        selftest.checks(SelfTest("nccl", (examined(0), examined(1, outcome=outcome), examined(2)))), "all_reduce"
    )
    assert found.state == "wrong"
    assert f"{outcome} in float32, bfloat16 on rank 1" in found.seen


def test_what_a_backend_cannot_do_is_not_wrong():
    found = of(selftest.checks(SelfTest("gloo", (examined(0, outcome="unsupported"),))), "all_reduce")
    assert (found.state, found.seen) == ("skipped", "float32, bfloat16 not supported by gloo")


@pytest.mark.parametrize(
    ("change", "word"),
    [({"differing": 2}, "2 of 5 repeated"), ({"error": 1e-3}, "is off by"), ({"error": float("inf")}, "is off by"),
     ({"error": float("nan")}, "is off by")],
)  # fmt: skip
def test_a_device_that_computes_wrongly_is_named(change, word):
    ranks = (examined(0), examined(1, products=(product(**change),)))
    found = [check for check in selftest.checks(SelfTest("nccl", ranks)) if check.name == "matrix products"]
    assert [check.state for check in found] == ["wrong"]
    assert "cuda:1 of rank 1 on n" in found[0].seen
    assert word in found[0].seen


def test_one_device_of_many_that_disagrees_is_named_and_one_of_two_is_not():
    odd = (product(digest="b"),)
    many = SelfTest("nccl", (*(examined(rank) for rank in range(3)), examined(3, products=odd)))
    assert "rank 3" in of(selftest.checks(many), "matrix products").seen
    two = SelfTest("nccl", (examined(0), examined(1, products=odd)))
    assert of(selftest.checks(two), "matrix products").state == "ok"
    mixed = SelfTest(
        "gloo", (*(examined(rank, name="cpu") for rank in range(3)), examined(3, name="cpu", products=odd))
    )
    assert of(selftest.checks(mixed), "matrix products").state == "ok"


def test_the_slowest_link_and_rank_are_named():
    links = [Paired((0, 1), 1e-5, 9e9), Paired((1, 2), 1e-5, 8e9), Paired((2, 3), 5e-5, 1e9)]
    ranks = [examined(rank, links=tuple(link for link in links if rank in link.ranks)) for rank in range(4)]
    ranks[2] = replace(ranks[2], products=(product(seconds=0.01),))
    found = list(selftest.checks(SelfTest("nccl", tuple(ranks))))
    assert of(found, "links").state == "warning"
    assert "rank 2 to 3: 1.00 GB/s, 50 us" in of(found, "links").seen
    assert "slowest rank 2" in of(found, "speed").seen
    assert of(found, "speed").state == "warning"


def test_clocks_far_apart_are_told():
    ranks = (examined(0), examined(1, host="m", ahead=-7.5))
    assert of(selftest.checks(SelfTest("gloo", ranks)), "clocks").state == "warning"
    near = (examined(0), examined(1, host="m", ahead=0.2))
    assert of(selftest.checks(SelfTest("gloo", near)), "clocks").state == "ok"


def test_the_block_for_a_bug_report_keeps_secrets():
    doctor = Doctor((Check("GPU 0", "wrong", "cuda:0 of rank 0 on node17.corp: bad"), Check("x", "ok", "fine")),
                    {"torch": "2.13.0"}, ("node17.corp",))  # fmt: skip
    environ = {
        "NCCL_SOCKET_IFNAME": "eth0",
        "NCCL_COMM_ID": "10.1.2.3:999",
        "NCCL_AUTH_TOKEN": "hunter2",
        "NCCL_TOPO_FILE": "/home/jane/topo.xml",
        "WANDB_API_KEY": "k",
    }
    text = "\n".join(paste.lines(doctor, environ))
    assert "torch: 2.13.0" in text
    assert "NCCL_SOCKET_IFNAME=eth0" in text
    assert "NCCL_TOPO_FILE=.../topo.xml" in text
    assert "wrong: GPU 0: cuda:0 of rank 0 on HOST: bad" in text
    for secret in ("hunter2", "jane", "10.1.2.3", "node17", "WANDB", "fine"):
        assert secret not in text
