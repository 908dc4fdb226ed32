"""The two ways in: under both of them a script finds the process that torchrun would have given it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SCRIPT = Path(__file__).parent / "runtime" / "properties.py"
TORCHRUN = ["torchrun"]
NANDIAG = ["nandiag", "run", "--log-dir", "logs"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inject")
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("")
    for name in ("script.py", "package/tool.py"):
        (folder / name).write_text(SCRIPT.read_text())
    (folder / "package" / "link.py").symlink_to(folder / "script.py")
    return folder


@pytest.fixture(scope="module")
def run(launch, folder):
    def start(command, timeout=60):
        return launch(*command, cwd=folder, timeout=timeout)

    return start


@pytest.fixture(scope="module")
def properties(run):
    """What the script told of its process, by the words of the launcher; each is run once."""
    known = {}

    def told(command):
        key = tuple(command)
        if key not in known:
            done = run(command)
            assert done.returncode == 0, done.stderr
            known[key] = json.loads(done.stdout)
        return dict(known[key])

    return told


WORDS = {
    "relative": ["script.py", "--lr", "0.1", "--", "-x"],
    "in a folder, by a link": ["package/link.py"],
    "module": ["-m", "package.tool", "-m", "x"],
    "run-path": ["--run-path", "script.py", "a"],
}


@pytest.mark.parametrize(
    ("words", "inject"),
    [
        ("relative", "site"), ("module", "exec"),
        pytest.param("relative", "exec", marks=pytest.mark.slow),
        pytest.param("in a folder, by a link", "exec", marks=pytest.mark.slow),
        pytest.param("in a folder, by a link", "site", marks=pytest.mark.slow),
        pytest.param("module", "site", marks=pytest.mark.slow),
        pytest.param("run-path", "site", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_script_finds_the_process_that_torchrun_gives_it(inject, words, properties):
    theirs = properties([*TORCHRUN, *WORDS[words]])
    ours = properties([*NANDIAG, "--inject", inject, *WORDS[words]])
    if inject == "exec":  # there the script is run by a function of ours
        del ours["depth"], theirs["depth"]
    # Until it trains, one mode of ours lies below the script's own and looks at what it writes.
    assert ours.pop("modes") == theirs.pop("modes") + 1
    assert ours == theirs


RAISES = """
import sys
import torch
try:
    sys.argv.index("--chained")
    raise KeyError("first")
except ValueError:
    pass
def work():
    raise RuntimeError("the script's own words")
work()
"""


@pytest.mark.parametrize("inject", [pytest.param("site", marks=pytest.mark.slow), "exec"])
@pytest.mark.parametrize("words", [["raises.py", "--chained"], ["-m", "package.raises"], ["wrong.py"]])
def test_a_traceback_is_pythons_own(inject, words, run, folder, known_environment):
    for name in ("raises.py", "package/raises.py"):
        (folder / name).write_text(RAISES)
    (folder / "wrong.py").write_text("x = (1\n")
    plain = subprocess.run(
        [sys.executable, *words], cwd=folder, env=known_environment, capture_output=True, text=True, check=False
    )
    ours = run([*NANDIAG, "--inject", inject, *words])
    assert plain.stderr
    assert plain.stderr in ours.stderr


FORKS = """
import os, sys, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.ones(4) * index, torch._C._len_torch_function_stack()

def main():
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    modes = []
    for epoch in range(2):
        for x, mode in DataLoader(Rows(), batch_size=4, num_workers=2, multiprocessing_context=sys.argv[1]):
            modes += mode.tolist()
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(sum(modes), flush=True)

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_the_workers_of_a_loader_are_no_ranks_and_are_not_watched(context, run, folder):
    (folder / "forks.py").write_text(FORKS)
    done = run([*NANDIAG, "--json", f"{context}.json", "forks.py", context])
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    report = json.loads((folder / f"{context}.json").read_text())
    assert list(report["ranks"]) == ["0"]
    assert (report["ranks"]["0"]["last_step"], report["verdict"]["anomaly"]) == (3, False)


SPAWNS = """
import gc, os
import torch, torch.distributed as dist, torch.multiprocessing as mp
from torch import nn

def work(rank, port):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(rank)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        loss = model(torch.ones(2, 4)).square().mean()
        if step == 2 and rank == 1:
            loss = (loss * 0).log()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    del model
    dist.destroy_process_group()
    gc.collect()

if __name__ == "__main__":
    import socket
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    mp.spawn(work, (port,), nprocs=2)
"""


def test_ranks_that_the_script_spawns_itself(run, folder):
    (folder / "spawns.py").write_text(SPAWNS)
    options = ["--on-anomaly", "continue", "--json", "spawns.json", "--launcher", "none"]
    done = run([*NANDIAG, *options, sys.executable, "spawns.py"])
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "spawns.json").read_text())
    assert sorted(report["ranks"]) == ["0", "1"]
    origin = report["verdict"]["origin"]
    assert (origin["rank"], origin["step"], origin["op"], origin["source"].strip()) == (
        1, 2, "aten.log.default", "loss = (loss * 0).log()",
    )  # fmt: skip


SCORES = """
import sys
import torch
import torch.multiprocessing as mp
from torch import nn

def work(rank, port):
    import os
    import torch.distributed as dist
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    score(rank)
    dist.destroy_process_group()

def score(rank):
    torch.manual_seed(rank)
    model = nn.Linear(4, 4)
    with torch.no_grad():
        for batch in range(4):
            x = torch.ones(2, 4)
            if rank and batch == 2:
                x = x / (x - 1)
            model(x)

if __name__ == "__main__":
    if len(sys.argv) > 1:
        nn.Linear(4, 4)(torch.ones(4))
        import socket
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        mp.spawn(work, (port,), nprocs=2)
    else:
        score(1)
"""


@pytest.mark.parametrize(
    ("words", "ranks"), [((), ["0"]), pytest.param(("spawn",), ["0", "1"], marks=pytest.mark.slow)]
)
def test_a_script_without_torchrun_that_only_calls_models(words, ranks, run, folder):
    (folder / "scores.py").write_text(SCORES)
    options = ["--level", "op", "--json", "scores.json", "--on-anomaly", "continue", "--launcher", "none"]
    done = run([*NANDIAG, *options, sys.executable, "scores.py", *words])
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "scores.json").read_text())
    assert sorted(report["ranks"]) == ranks
    origin = report["verdict"]["origin"]
    assert (origin["rank"], origin["step"], origin["source"].strip()) == (int(ranks[-1]), 2, "x = x / (x - 1)")


def test_two_ranks_started_by_hand(folder, known_environment, nandiag):
    (folder / "by_hand.py").write_text(
        SPAWNS.split("if __name__", maxsplit=1)[0] + 'work(int(os.environ["RANK"]), int(os.environ["MASTER_PORT"]))\n'
    )
    job = {**known_environment, "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29617"}
    words = [sys.executable, "-m", "nandiag", "run", "--log-dir", "by_hand", "--on-anomaly", "continue"]
    words += ["--launcher", "none", sys.executable, "by_hand.py"]
    both = [
        subprocess.Popen(words, cwd=folder, env={**job, "RANK": str(rank)}, stderr=subprocess.PIPE) for rank in (0, 1)
    ]
    errors = [one.communicate(timeout=60)[1] for one in both]
    assert [one.returncode for one in both] == [0, 0], errors
    runs = sorted(map(str, (folder / "by_hand").iterdir()))
    report = json.loads(nandiag("report", "--json", *runs).stdout)
    assert sorted(report["ranks"]) == ["0", "1"]
    assert (report["verdict"]["origin"]["rank"], report["verdict"]["origin"]["step"]) == (1, 2)
