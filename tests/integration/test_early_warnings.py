"""Early warnings through the real command: said at once, told at the end, minded only where that is asked for."""

import json

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(150)]

SCRIPT = """
import os, time, torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
features = torch.randn(1600, 6)
if rank == dist.get_world_size() - 1:
    features[777] *= 1e5
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for (batch,) in DataLoader(TensorDataset(features), 8):
    loss = (model(batch) - batch.clamp(-3, 3).sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(6e-3)  # batches of shorter steps are sampled
print("trained", flush=True)
os._exit(0)
"""


@pytest.fixture
def run(nandiag, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")

    def start(*options, nproc=2):
        done = nandiag("run", "--nproc", nproc, "--nccl", "off", "--log-dir", tmp_path / "logs", "--json",
                       tmp_path / "r.json", *options, script)  # fmt: skip
        return done, json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))

    return start


def test_an_outlier_is_named_with_its_rank_and_index_while_all_is_finite(run):
    done, report = run("--fail-on", "warning")
    assert done.returncode == 3, done.stderr
    assert "trained" in done.stdout
    assert report["verdict"]["anomaly"] is False
    (found,) = [one for one in report["findings"] if one["slug"] == "batch_outlier"]
    assert (found["severity"], found["ranks"], found["step"]) == ("warning", [1], 97)
    assert "sample 1 of 8 in input, index 777 of TensorDataset" in found["text"]
    assert "nandiag: warning[batch_outlier]: rank 1, step 97: " in done.stderr
    assert "= warning[batch_outlier]: Rank 1, step 97: " in done.stderr


def test_no_warnings_are_given_where_none_are_wanted(run):
    done, report = run("--fail-on", "warning", "--no-warnings", nproc=1)
    assert done.returncode == 0, done.stderr
    assert "trained" in done.stdout
    assert [one["slug"] for one in report["findings"] if one["severity"] == "warning"] == []
