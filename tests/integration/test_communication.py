"""What a run says of the way its ranks talk: a backend that cannot work, NCCL's logs, torch's NaN check."""

import json

import pytest
import torch

pytestmark = pytest.mark.integration

ASKS_FOR_NCCL = """
import torch.distributed as dist
dist.init_process_group("nccl")
"""

TALKS = """
import os, socket
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
log = os.environ["NCCL_DEBUG_FILE"].replace("%h", socket.gethostname()).replace("%p", str(os.getpid()))
with open(log, "w") as file:
    file.write("NCCL version 2.27.3+cuda12.9\\n")
    if dist.get_rank() == 1:
        file.write(f"{socket.gethostname()}:{os.getpid()}:9 [1] misc/shmutils.cc:88 NCCL WARN Error: failed to extend "
                   "/dev/shm/nccl-WU88OE to 9637892 bytes, error: No space left on device (28)\\n")
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    dist.all_reduce(model.weight.grad)
    optimizer.step()
dist.barrier()
os._exit(0)
"""

# What torch's hook on process groups does from 2.14 on, done by the script.
CHECKS = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(8, 4)
    if step == 2 and dist.get_rank() == 1:
        x[3] = 0
    loss = (model(x) / x.norm(dim=-1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        torch.ops.c10d.check_for_nan(parameter.grad)
        dist.all_reduce(parameter.grad)
    optimizer.step()
"""


@pytest.mark.skipif(not hasattr(torch.ops.c10d, "check_for_nan"), reason="this torch has no check that can be called")
def test_a_rank_that_torchs_nan_check_ended_is_explained(nandiag, tmp_path):
    (tmp_path / "train.py").write_text(CHECKS)
    nandiag("run", "--nproc", 2, "--json", tmp_path / "r.json", tmp_path / "train.py", cwd=tmp_path)
    verdict = json.loads((tmp_path / "r.json").read_text())["verdict"]
    assert (verdict["cause"], verdict["origin"]["rank"], verdict["origin"]["step"]) == ("division_by_zero", 1, 2)
    assert "x.norm" in verdict["origin"]["source"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine on which NCCL cannot work")
def test_nccl_without_a_gpu_is_said_with_what_to_do(nandiag, tmp_path):
    (tmp_path / "train.py").write_text(ASKS_FOR_NCCL)
    done = nandiag("run", "--nproc", 1, tmp_path / "train.py", cwd=tmp_path)
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert "asked for NCCL, which moves data between GPUs" in said
    assert "init_process_group('gloo')" in said


def test_what_nccl_wrote_is_told_with_its_rank(nandiag, tmp_path):
    (tmp_path / "train.py").write_text(TALKS)
    done = nandiag("run", "--nproc", 2, "--json", tmp_path / "r.json", tmp_path / "train.py", cwd=tmp_path)
    report = json.loads((tmp_path / "r.json").read_text())
    (trouble,) = report["nccl"]["troubles"]
    assert (trouble["slug"], trouble["ranks"]) == ("nccl_shm_full", [1])
    assert report["nccl"]["versions"] == ["2.27.3+cuda12.9"]
    said = " ".join(done.stderr.split())
    assert "NCCL, rank 1: the shared memory of this host (/dev/shm) is full. Give the container more" in said
