"""The plan of a run: command, environment, sizes and id."""

import os
import sys
from pathlib import Path

import pytest

from nandiag.errors import UsageError
from nandiag.launch.arguments import read
from nandiag.launch.plan import check, make, run_id
from nandiag.settings import Settings, from_env
from nandiag.store.layout import RunFolder

FOLDER = RunFolder(Path("/logs/run"))


def plan(words, environ=None, settings=None):
    return make(read(words.split(), settings or Settings()), FOLDER, environ or {})


def test_command_and_sizes():
    made = plan("train.py --nproc 2 --lr 1")
    assert made.command == (
        "torchrun", "--nproc-per-node", "2", "--log-dir", "/logs/run/torchrun", "train.py", "--lr", "1"
    )  # fmt: skip
    assert (made.nproc, made.nnodes, made.world_size) == (2, 1, 2)
    assert plan("--nproc 4 --nnodes 2 train.py").world_size == 8
    assert plan("--nproc 4 --nnodes 1:3 train.py").world_size is None


def test_settings_reach_the_workers():
    made = plan("--on-anomaly skip --max-replays 5 train.py")
    told = from_env(made.added)
    assert (told.on_anomaly, told.max_replays, told.folder, told.active) == ("skip", 5, "/logs/run", True)
    assert told.run_id == made.settings.run_id
    assert (Path(told.root) / "nandiag" / "launch" / "plan.py").is_file()


def test_our_folder_comes_first_on_the_python_path_and_only_once():
    first = plan("train.py", {"PYTHONPATH": "/a:/b"}).added["PYTHONPATH"].split(os.pathsep)
    assert first[0].endswith(str(Path("runtime/inject/site")))
    assert first[1:] == ["/a", "/b"]
    again = plan("train.py", {"PYTHONPATH": os.pathsep.join(first)}).added["PYTHONPATH"].split(os.pathsep)
    assert again == first
    # An empty part would put the current folder on the path.
    assert plan("train.py", {"PYTHONPATH": ""}).added["PYTHONPATH"] == first[0]


@pytest.mark.parametrize(
    ("words", "script", "rest"),
    [
        ("--inject exec train.py --lr 1", "exec_script.py", ["train.py", "--lr", "1"]),
        ("--inject exec -m pkg.mod x", "exec_script.py", ["-m", "pkg.mod", "x"]),
    ],
)
def test_exec_runs_the_script_through_ours(words, script, rest):
    made = plan(words)
    assert Path(made.torchrun.training_script).name == script
    assert made.torchrun.training_script_args == rest
    assert made.torchrun.module is False
    assert "PYTHONPATH" not in made.added


def test_without_torchrun():
    made = plan("--launcher none python train.py", {"RANK": "1", "WORLD_SIZE": "2"})
    assert made.command == ("python", "train.py")
    assert (made.torchrun, made.nproc, made.world_size) == (None, None, 2)


def test_only_named_variables_are_written_down():
    environ = {"NCCL_IB_HCA": "mlx5", "AWS_SECRET_ACCESS_KEY": "hidden", "CUDA_VISIBLE_DEVICES": "0", "HOME": "/h"}
    recorded = plan("train.py", environ).recorded
    assert recorded["NCCL_IB_HCA"] == "mlx5"
    assert recorded["CUDA_VISIBLE_DEVICES"] == "0"
    assert recorded["NCCL_DEBUG"] == "WARN"
    assert not {"AWS_SECRET_ACCESS_KEY", "HOME"} & set(recorded)


def id_of(words, environ=None, settings=None):
    return run_id(read(words.split(), settings or Settings()), environ or {})


def test_one_job_has_one_id_and_two_jobs_have_two():
    nodes = "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint h:1"
    assert id_of(f"{nodes} --rdzv-id 7 t.py") == id_of(f"{nodes} --rdzv-id 7 t.py --x")
    assert id_of(f"{nodes} --rdzv-id 7 t.py") != id_of(f"{nodes} --rdzv-id 8 t.py")
    assert id_of(f"{nodes} t.py") == id_of(f"{nodes} t.py")
    static = "--nnodes 2 --master-addr h --master-port 5"
    assert id_of(f"{static} --node-rank 0 t.py") == id_of(f"{static} --node-rank 1 t.py")
    assert id_of("t.py") != id_of("t.py")


def test_ranks_started_by_hand_share_an_id():
    job = {"MASTER_ADDR": "h", "MASTER_PORT": "5", "WORLD_SIZE": "2"}
    bare = "--launcher none python t.py"
    assert id_of(bare, {**job, "RANK": "0"}) == id_of(bare, {**job, "RANK": "1"})
    assert id_of(bare, job) != id_of(bare, {**job, "MASTER_PORT": "6"})
    assert id_of(bare, {"WORLD_SIZE": "1", "MASTER_ADDR": "h"}) != id_of(bare, {"WORLD_SIZE": "1", "MASTER_ADDR": "h"})


def test_an_id_of_the_user_is_kept_and_that_of_an_outer_run_is_not():
    assert id_of("t.py", settings=Settings(run_id="mine")) == "mine"
    assert id_of("t.py", {"NANDIAG_FOLDER": "/outer"}, Settings(run_id="outer")) != "outer"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("no_such_script.py", "no script 'no_such_script.py'"),
        ("trian.py", "Did you mean train.py?"),
        ("folder", "without a __main__.py"),
        ("--no-python no_such_program", "no program 'no_such_program'"),
        ("--launcher none no_such_program", "no program 'no_such_program'"),
        ("--launcher none ./train.py", "Try `python ./train.py`"),
        ("--no-python -m sh", "--no-python and --module do not go together"),
        ("--inject exec --no-python sh", "do not go together"),
        ("--inject exec --launcher none sh", "needs torchrun"),
        ("--nproc two train.py", "--nproc two: give a number of workers, 1 at least, or auto"),
        ("--nproc 0 train.py", "--nproc 0: each node needs 1 worker"),
        ("--nnodes x train.py", "--nnodes x: give a number"),
        ("--nnodes 0 train.py", "--nnodes 0: give a number"),
        ("--nnodes 3:2 train.py", "--nnodes 3:2: give a number"),
    ],
)
def test_what_cannot_be_started_is_said_before(words, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError) as caught:
        check(read(words.split(), Settings()), dict(os.environ))
    assert text in " ".join(caught.value.sentences())


@pytest.mark.parametrize("words", ["train.py", "-m anything.at.all", "package", f"--launcher none {sys.executable} x"])
def test_what_can_be_started_passes(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text("")
    check(read(words.split(), Settings()), dict(os.environ))
