"""`nandiag run` with real torchrun workers: output, exit codes, arguments and files are what torchrun gives."""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

NANDIAG = ["nandiag", "run"]
TORCHRUN = ["torchrun"]
REAL_NANDIAG = [sys.executable, "-m", "nandiag", "run"]
REAL_TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


@pytest.fixture
def run(launch):
    def run(command, folder, **env):
        return launch(*command, cwd=folder, env=env, timeout=90, text=False)

    return run


@pytest.fixture
def run_alone(known_environment):
    """Run any command as it is, in a process that shares nothing with the tests'."""

    def run(command, folder, **env):
        env = {**known_environment, **env}
        return subprocess.run(command, cwd=folder, capture_output=True, timeout=90, check=False, env=env)

    return run


@pytest.fixture
def script(tmp_path):
    def write(text, name="train.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return tmp_path

    return write


def run_folder(folder, base="nandiag_logs"):
    (found,) = (folder / base).iterdir()
    return found


def agent_end(folder, base="nandiag_logs"):
    (path,) = (run_folder(folder, base) / "agents").iterdir()
    return json.loads(path.read_text())


def ends(folder):
    return {end["rank"]: end for end in agent_end(folder)["ranks"]}


NOISY = """
import os, sys
sys.stdout.write(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} {sys.argv[1:]} \\x1b[31m no newline")
sys.stdout.flush()
os.write(1, b"\\xff\\xfe raw bytes\\n")
sys.stderr.write("err\\n")
"""


def test_stdout_is_byte_for_byte_torchruns(script, run_alone):
    folder = script(NOISY)
    theirs = run_alone([*REAL_TORCHRUN, "--nproc-per-node", "1", "train.py", "--lr", "0.1", "--help"], folder)
    ours = run_alone([*REAL_NANDIAG, "--nproc", "1", "train.py", "--lr", "0.1", "--help"], folder)
    assert ours.stdout == theirs.stdout
    assert b"--help" in ours.stdout
    assert (ours.returncode, theirs.returncode) == (0, 0)


def test_redirected_and_teed_output_is_torchruns(script, run):
    folder = script(NOISY)
    words = ["--nproc-per-node", "2", "--redirects", "0:3", "--tee", "1:1", "train.py"]
    theirs = run([*TORCHRUN, "--log-dir", "theirs", *words], folder)
    ours = run([*NANDIAG, "--log-dir", "ours", *words], folder)
    assert ours.stdout == theirs.stdout

    def logs(base):
        return {str(path.relative_to(base)).split(os.sep, 1)[1]: path.read_bytes() for path in base.rglob("*.log")}

    kept = logs(run_folder(folder, "ours") / "torchrun")
    assert kept == logs(folder / "theirs")
    assert any(b"rank 0" in text for text in kept.values())


def test_success_is_recorded(script, run_alone):
    folder = script("import os; os.write(1, os.environ['RANK'].encode() + b'\\n')")
    added = {"NCCL_SOCKET_IFNAME": "lo", "SECRET_TOKEN": "hidden", "CUDA_VISIBLE_DEVICES": ""}
    done = run_alone([*REAL_NANDIAG, "train.py", "--nproc", "2", "--x"], folder, **added)
    assert done.returncode == 0
    assert sorted(done.stdout.split()) == [b"0", b"1"]
    assert b"--nproc 2 was taken" in done.stderr
    info = json.loads((run_folder(folder) / "run.json").read_text())
    assert info["command"] == ["nandiag", "run", "train.py", "--nproc", "2", "--x"]
    assert (info["nproc"], info["nnodes"], info["world_size"]) == (2, 1, 2)
    assert info["environment"]["NCCL_SOCKET_IFNAME"] == "lo"
    assert info["environment"]["NCCL_DEBUG"] == "WARN"
    assert "hidden" not in json.dumps(info)
    end = agent_end(folder)
    assert (end["state"], end["exit_code"], end["attempts"]) == ("succeeded", 0, 1)
    assert {rank: one["exit_code"] for rank, one in ends(folder).items()} == {0: 0, 1: 0}


def test_workers_get_the_run(script, run):
    folder = script("import os, sys; print(os.environ['NANDIAG_FOLDER']); print(os.environ['NANDIAG_ON_ANOMALY'])")
    done = run([*NANDIAG, "--on-anomaly", "continue", "train.py"], folder)
    assert done.stdout.decode().split() == [str(run_folder(folder)), "continue"]


RAISES = """
import os, time
if os.environ["RANK"] == "1":
    raise ValueError("the script's own words")
time.sleep(60)
"""


def test_a_script_that_raises(script, run, run_alone):
    folder = script(RAISES)
    done = run([*NANDIAG, "--nproc", "2", "train.py"], folder)
    plain = run_alone([sys.executable, "train.py"], folder, RANK="1")
    assert done.returncode == 1
    assert plain.stderr in done.stderr
    assert b"ChildFailedError" in done.stderr
    assert b"nandiag/launch" not in done.stderr
    assert b'torch/distributed/run.py", line' not in done.stderr
    assert agent_end(folder)["state"] == "failed"
    assert agent_end(folder)["ranks"][0]["rank"] == 1
    assert (ends(folder)[1]["exit_code"], ends(folder)[1]["stopped_by_launcher"]) == (1, False)
    assert (ends(folder)[0]["signal"], ends(folder)[0]["stopped_by_launcher"]) == (15, True)


@pytest.mark.parametrize(
    ("death", "field", "value"), [("os._exit(3)", "exit_code", 3), ("os.kill(os.getpid(), 9)", "signal", 9)]
)
def test_any_failure_of_a_worker_is_1_as_under_torchrun(script, death, field, value, run):
    folder = script(f"import os, time\nif os.environ['RANK'] == '0': {death}\ntime.sleep(60)")
    done = run([*NANDIAG, "--nproc", "2", "train.py"], folder)
    assert done.returncode == 1
    assert ends(folder)[0][field] == value
    assert not ends(folder)[0]["stopped_by_launcher"]
    assert ends(folder)[1]["stopped_by_launcher"]


WAITS = """
import os, sys, time
open(f"up-{os.environ['RANK']}", "w").close()
try:
    time.sleep(60)
finally:
    open(f"down-{os.environ['RANK']}", "w").close()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher(script, number, known_environment):
    folder = script(WAITS)
    child = subprocess.Popen(
        [*REAL_NANDIAG, "--nproc", "2", "train.py"], cwd=folder, stderr=subprocess.PIPE, env=known_environment
    )
    wait_for(folder / "up-0", folder / "up-1")
    child.send_signal(number)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 128 + number
    assert b"nandiag/launch" not in err
    assert f"ended by signal {int(number)} ({number.name})".encode() in err
    assert (agent_end(folder)["state"], agent_end(folder)["signal"]) == ("signalled", number)
    if number == signal.SIGINT:
        wait_for(folder / "down-0", folder / "down-1")


def wait_for(*paths, seconds=40):
    end = time.monotonic() + seconds
    while not all(path.exists() for path in paths):
        assert time.monotonic() < end, f"{paths} did not appear"
        time.sleep(0.05)


def test_arguments_reach_the_script_as_under_torchrun(script, run):
    folder = script("import sys; print(sys.argv[1:])")
    for words in (["train.py", "--", "--nproc", "3"], ["--", "train.py", "-h"], ["train.py", "", "a b", "--level=x"]):
        ours, theirs = run([*NANDIAG, *words], folder), run([*TORCHRUN, *AMBIGUOUS(words)], folder)
        assert ours.stdout == theirs.stdout.replace(b"--zproc", b"--nproc")
        assert ours.returncode == 0


def AMBIGUOUS(words):  # noqa: N802
    # Older argparse refuses `--nproc` among the words of the script, as an abbreviation of two of torchrun's options.
    return ["--zproc" if word == "--nproc" else word for word in words]


def test_module_and_program(script, run):
    folder = script("import sys; print('module', __name__, sys.argv[1:])", "package/tool.py")
    assert run([*NANDIAG, "-m", "package.tool", "-x"], folder).stdout == b"module __main__ ['-x']\n"
    done = run([*NANDIAG, "--no-python", "echo", "hello", "--nproc", "2"], folder)
    assert done.stdout == b"hello\nhello\n"
    assert done.returncode == 0


def test_restarts(script, run):
    folder = script(
        "import os\nattempt = os.environ['TORCHELASTIC_RESTART_COUNT']\nprint('attempt', attempt)\n"
        "raise SystemExit(attempt != '2')"
    )
    done = run([*NANDIAG, "--max-restarts", "2", "train.py"], folder)
    assert done.returncode == 0
    assert done.stdout == b"attempt 0\nattempt 1\nattempt 2\n"
    assert (agent_end(folder)["attempts"], agent_end(folder)["state"]) == (3, "succeeded")


STOPS = """
import os, sys, time
from nandiag.events import Attached, Record, Stopping, Harm, TensorFact, encode
rank = int(os.environ["RANK"])
folder = os.environ["NANDIAG_FOLDER"]
with open(f"{folder}/ranks/r{rank:05d}-a0-p{os.getpid()}.jsonl", "a") as file:
    fact = TensorFact("torch.float32", (2,), 2, nan=1, name="fc.weight")
    for event in (
        Attached(rank, 2, rank, 0, "h", os.getpid(), "site", "3", "0"),
        Harm("gradient", 4, "backward", (fact,), 1, 2),
        Stopping(4, "stop", "stop", "a gradient is NaN"),
    ):
        file.write(encode(Record(0, time.time(), event)) + "\\n")
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize("seconds", ["0", "2"])
def test_a_stop_of_ours_is_3_without_a_restart(script, seconds, run):
    folder = script(STOPS)
    done = run([*NANDIAG, "--nproc", "2", "--max-restarts", "2", "train.py", seconds], folder)
    assert done.returncode == 3
    (live,) = [line for line in done.stderr.splitlines() if b"report when the run ends" in line]
    assert live.startswith(b"nandiag: rank 0, step 4, backward: gradient of fc.weight is NaN")
    assert (agent_end(folder)["state"], agent_end(folder)["attempts"]) == ("stopped", 1)
    assert b"ChildFailedError" not in done.stderr


ONE_STOPS = """
import os, time
from nandiag.events import Attached, Record, Stopping, encode
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
events = [Attached(rank, 2, rank, attempt, "h", os.getpid(), "site", "3", "0")]
if (rank, attempt) == (1, 0):
    events.append(Stopping(4, "auto", "stop", "a gradient is NaN"))
with open(f"{os.environ['NANDIAG_FOLDER']}/ranks/r{rank:05d}-a{attempt}-p{os.getpid()}.jsonl", "a") as file:
    file.writelines(encode(Record(0, time.time(), event)) + "\\n" for event in events)
time.sleep(1)
raise SystemExit(rank == 0)
"""


@pytest.mark.parametrize("restarts", ["0", "1"])
def test_a_stop_of_one_rank_is_3_whatever_becomes_of_the_others(restarts, script, run):
    folder = script(ONE_STOPS)
    done = run([*NANDIAG, "--nproc", "2", "--max-restarts", restarts, "train.py"], folder)
    assert done.returncode == 3, done.stderr
    assert (agent_end(folder)["state"], agent_end(folder)["exit_code"]) == ("stopped", 3)
    assert b"ChildFailedError" not in done.stderr


def test_run_folders_go_where_they_are_sent_and_are_never_reused(script, run):
    folder = script("print('x')")
    for _ in range(2):
        assert run([*NANDIAG, "--log-dir", "a/b", "--json", "copy.json", "train.py"], folder).returncode == 0
    assert len(list((folder / "a" / "b").iterdir())) == 2
    assert not (folder / "nandiag_logs").exists()
    assert json.loads((folder / "copy.json").read_text())["schema"] == 1


def test_what_torchrun_refuses_is_a_sentence(script, run):
    folder = script("print('x')")
    done = run([*NANDIAG, "--redirects", "9", "train.py"], folder)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert b"nandiag: torchrun refused: " in done.stderr


def test_a_finished_run_leaves_no_process_and_no_handler(script, run_alone):
    folder = script("import time; time.sleep(0.1)")
    code = (
        "import signal, sys, threading\n"
        "from nandiag.cli.main import main\n"
        "before = [signal.getsignal(n) for n in (2, 15, 1, 3)]\n"
        "sys.argv[1:] = ['run', 'train.py']\n"
        "assert main() == 0\n"
        "assert before == [signal.getsignal(n) for n in (2, 15, 1, 3)]\n"
        "assert not [t for t in threading.enumerate() if t.name == 'nandiag-watch']\n"
        "import os; assert 'NANDIAG_FOLDER' not in os.environ\n"
        "assert sys.excepthook is sys.__excepthook__\n"
    )
    Path(folder / "outer.py").write_text(code)
    done = run_alone([sys.executable, "outer.py"], folder)
    assert done.returncode == 0, done.stderr.decode()


def test_a_closed_stderr_harms_nothing(script, known_environment):
    folder = script("import os; os.write(1, b'x')")
    line = f"exec {sys.executable} -m nandiag run --log-dir logs train.py 2>&-"
    done = subprocess.run(
        ["sh", "-c", line], cwd=folder, stdout=subprocess.PIPE, timeout=60, check=False, env=known_environment
    )
    assert (done.returncode, done.stdout) == (0, b"x")
    assert (run_folder(folder, "logs") / "report.json").exists()


@pytest.mark.slow
def test_starts_nearly_as_fast_as_torchrun(script, run_alone):
    folder = script("")

    def seconds(command):
        began = time.perf_counter()
        assert run_alone(command, folder).returncode == 0
        return time.perf_counter() - began

    words = ["--nproc-per-node", "2", "train.py"]
    pairs = [(seconds([*REAL_TORCHRUN, *words]), seconds([*REAL_NANDIAG, *words])) for _ in range(7)]
    torchrun, nandiag = (statistics.median(times) for times in zip(*pairs, strict=True))
    assert nandiag - torchrun <= 0.3, pairs
