"""`nandiag run --launcher none`: a command with the runtime injected, ranks taken from the environment."""

import json
import signal
import subprocess
import sys
import time

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

BARE = [sys.executable, "-m", "nandiag", "run", "--launcher", "none"]


@pytest.fixture
def start(known_environment):
    def start(words, folder, **env):
        env = {**known_environment, **env}
        return subprocess.Popen([*BARE, *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)

    return start


@pytest.fixture
def run(start):
    def run(words, folder, **env):
        child = start(words, folder, **env)
        out, err = child.communicate(timeout=60)
        return child.returncode, out, err

    return run


def infos(folder):
    return [json.loads((run / "run.json").read_text()) for run in sorted((folder / "nandiag_logs").iterdir())]


def agent_ends(folder):
    return [json.loads(path.read_text()) for path in sorted((folder / "nandiag_logs").glob("*/agents/*.json"))]


def test_output_and_arguments_pass_untouched(tmp_path, run):
    code = "import sys; sys.stdout.buffer.write(b'\\xff' + ' '.join(sys.argv[1:]).encode())"
    status, out, _ = run([sys.executable, "-c", code, "--nproc", "3", "--help", "--", "x"], tmp_path)
    assert (status, out) == (0, b"\xff--nproc 3 --help -- x")


@pytest.mark.parametrize(
    ("code", "status"),
    [("pass", 0), ("raise SystemExit(7)", 1), ("raise ValueError", 1), ("import os; os.kill(os.getpid(), 9)", 1)],
)
def test_exit_codes(code, status, tmp_path, run):
    assert run([sys.executable, "-c", code], tmp_path)[0] == status
    assert agent_ends(tmp_path)[0]["state"] == ("failed" if status else "succeeded")


def test_two_ranks_by_hand_share_a_run(tmp_path, start):
    code = "import os; print(os.environ['NANDIAG_RUN_ID'])"
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29513"}
    both = [start([sys.executable, "-c", code], tmp_path, RANK=str(rank), **job) for rank in range(2)]
    ids = [child.communicate(timeout=60)[0] for child in both]
    assert ids[0] == ids[1]
    assert [info["world_size"] for info in infos(tmp_path)] == [2, 2]
    assert sorted(end["ranks"][0]["rank"] for end in agent_ends(tmp_path)) == [0, 1]
    assert {info["launcher"] for info in infos(tmp_path)} == {"none"}


def test_a_chosen_run_id(tmp_path, run):
    run([sys.executable, "-c", "pass"], tmp_path, NANDIAG_RUN_ID="mine")
    assert infos(tmp_path)[0]["id"] == "mine"


SPAWNS = """
import multiprocessing, os
def work(rank):
    os.environ["RANK"] = str(rank)
    # In one write: unbuffered, print makes several, and the two processes share a pipe.
    os.write(1, f"{rank} {bool(os.environ.get('NANDIAG_FOLDER'))}\\n".encode())
    raise SystemExit(rank)
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=work, args=(rank,)) for rank in range(2)]
    [child.start() for child in children]
    [child.join() for child in children]
    raise SystemExit(max(child.exitcode for child in children))
"""


def test_processes_that_the_script_spawns_inherit_the_run(tmp_path, run):
    (tmp_path / "spawns.py").write_text(SPAWNS)
    status, out, err = run([sys.executable, "spawns.py"], tmp_path)
    assert sorted(out.splitlines()) == [b"0 True", b"1 True"], err
    assert status == 1
    # The launcher knows no rank here, and says nothing of any.
    assert agent_ends(tmp_path)[0]["ranks"] == []


WAITS = """
import sys, time
open("up", "w").close()
try:
    time.sleep(60)
except KeyboardInterrupt:
    open("interrupted", "w").close()
    sys.exit(5)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_handed_on(number, tmp_path, start):
    (tmp_path / "waits.py").write_text(WAITS)
    child = start([sys.executable, "waits.py"], tmp_path, RANK="0")
    end = time.monotonic() + 30
    while not (tmp_path / "up").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    child.send_signal(number)
    child.communicate(timeout=30)
    assert child.returncode == 128 + number
    assert (tmp_path / "interrupted").exists() == (number == signal.SIGINT)
    (agent,) = agent_ends(tmp_path)
    assert (agent["state"], agent["signal"]) == ("signalled", number)
    expected = {"exit_code": 5, "signal": None} if number == signal.SIGINT else {"exit_code": None, "signal": number}
    assert expected.items() <= agent["ranks"][0].items()


def test_does_not_import_torch(tmp_path, run):
    status, _, err = run([sys.executable, "-c", "pass"], tmp_path, PYTHONPROFILEIMPORTTIME="1")
    assert status == 0
    assert b" torch.distributed" not in err
