"""Under `nandiag run --on-anomaly continue` a run is bit for bit what it is under torchrun, replays and all.

What torchrun alone ends with is kept in pytest's cache for the next time, by all that it depends on; where a run
differs from what was kept it is compared with a new one.
"""

import hashlib
import json
import sys
from pathlib import Path

import pytest
import torch
from scoring.corpus import EXPECTED, SAMPLES, missing, name_of, script_of, truth_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

WITNESS = Path(__file__).with_name("witness.py")
TORCHRUN = ["torchrun"]
NANDIAG = ["nandiag", "run", "--log-dir", "logs", "--on-anomaly", "continue", "--json", "told.json"]
IN_ANY_RUN = {("ddp_bandit", 2)}
AGAIN = 2
SECONDS = 250
# They train bare tensors, and have what they print of them to be held to.
BARE = {"functional_regression", "hand_descent"}
# They let go of model and optimizer before they end.
LET_GO = {"zero_listener_tastes"}


def cases():
    """Each sample with as many ranks as it is for, then with the other number."""
    for turned in (False, True):
        for expected in EXPECTED:
            name, nproc = name_of(expected), 1 if (truth_of(expected)["nproc"] == 1) != turned else 2
            marks = () if (name, nproc) in IN_ANY_RUN else pytest.mark.slow
            yield pytest.param(expected, nproc, marks=marks, id=f"{name}-{nproc}")


@pytest.fixture
def run(launchers, known_environment, tmp_path):
    """Run a script under a launcher in a folder of its own; returns all that is to be the same, and that folder."""
    count = iter(range(100))

    def start(launcher, script, nproc):
        folder = tmp_path / str(next(count))
        folder.mkdir()
        words = [*launcher, "--nproc-per-node", str(nproc), str(WITNESS), str(script)]
        code, _ = launchers.run(words, folder, {**known_environment, "WITNESS": str(folder / "out")}, SECONDS)
        told = {path.stem: json.loads(path.read_text()) for path in sorted((folder / "out").glob("*.json"))}
        streams = [folder / "stdout", *sorted((folder / "out").glob("*.stdout"))]
        stdout = {path.name: told_by(path.read_bytes(), folder) for path in streams}
        return {"code": code, "stdout": stdout, "ranks": told}, folder

    return start


@pytest.fixture(scope="session")
def surroundings():
    """What the numbers of a plain run depend on, beside its script: versions, kernels and the other samples' code."""
    versions = [sys.version, torch.__version__, torch.backends.cpu.get_cpu_capability(), *sorted(_installed())]
    found = hashlib.sha256(repr(versions).encode())
    for path in (WITNESS, *sorted(SAMPLES.rglob("*.py"))):
        found.update(path.read_bytes())
    return found.hexdigest()


def _installed():
    from importlib import metadata

    return {f"{one.name} {one.version}" for one in metadata.distributions() if one.name != "nandiag"}


@pytest.fixture
def plain(run, surroundings, request):
    """What torchrun alone ends with, from an earlier time where there was one."""

    def found(script, nproc):
        key = f"nandiag/{surroundings[:16]}/{script.relative_to(SAMPLES)}/{nproc}"
        kept = request.config.cache.get(key, None)
        if kept is None:
            kept, _ = run(TORCHRUN, script, nproc)
            request.config.cache.set(key, kept)
            return kept, True
        return kept, False

    return found


def told_by(stdout, folder):
    """What was printed, with one name for the folder."""
    return stdout.replace(str(folder).encode(), b"FOLDER").decode(errors="backslashreplace")


def both(script, nproc, run, plain):
    """Return what the script ends with, with nandiag and without: the same, or what differs for no other reason."""
    theirs, new = plain(script, nproc)
    ours, folder = run(NANDIAG, script, nproc)
    for _ in range(AGAIN):
        if ours == theirs:
            break
        other, _ = run(TORCHRUN, script, nproc)
        if new and other != theirs:
            varying = differing(other, theirs)
            if varying & {"code", "parameters", "optimizers"}:
                pytest.skip(f"without nandiag {', '.join(sorted(varying))} differ from run to run as well")
            return without(ours, varying), without(theirs, varying), folder
        theirs, new = other, True
        if ours != theirs:
            ours, folder = run(NANDIAG, script, nproc)
    return ours, theirs, folder


@pytest.mark.parametrize(("expected", "nproc"), list(cases()))
def test_a_sample_trains_to_the_same_bits(expected, nproc, run, plain):
    script, truth = script_of(expected), truth_of(expected)
    if absent := missing(truth):
        pytest.skip(f"{', '.join(absent)} is not installed")
    ours, theirs, folder = both(script, nproc, run, plain)
    assert set(ours["ranks"]) == set(theirs["ranks"]), (folder / "stderr").read_text()
    if script.stem in BARE | LET_GO:
        assert theirs["stdout"]["0.stdout"]
    elif theirs["code"] == 0:  # for some samples the other number of ranks is an error, which is to be the same
        assert any(told["modules"] or told["optimizers"] for told in theirs["ranks"].values())
    for rank, told in theirs["ranks"].items():
        assert ours["ranks"][rank] == told
    assert ours["stdout"] == theirs["stdout"]
    assert ours["code"] == theirs["code"]
    if truth["anomaly"] and nproc == truth["nproc"] and "options" not in truth:
        assert json.loads((folder / "told.json").read_text())["verdict"]["anomaly"]


def differing(one, other):
    """Name what differs between two runs."""
    ranks = [(one["ranks"].get(rank, {}), told) for rank, told in other["ranks"].items()]
    inside = {key for mine, told in ranks for key in told if mine.get(key) != told[key]}
    return {key for key in ("code", "stdout") if one[key] != other[key]} | inside


def without(told, names):
    """What a run ended with, but for what differs from run to run anyway (memory that nobody wrote, say)."""
    ranks = {rank: {key: one[key] for key in one if key not in names} for rank, one in told["ranks"].items()}
    return {**told, "ranks": ranks, **({"stdout": None} if "stdout" in names else {})}


def test_every_sample_is_among_them():
    names = {name_of(param.values[0]) for param in cases()}
    assert len(names) >= 100
    assert {name for name, _ in IN_ANY_RUN} <= names


CONTROL = """
import torch
from torch import nn
model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr={rate})
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
"""


@pytest.mark.slow
def test_the_witness_sees_a_difference(run, tmp_path):
    """A smaller rate, and one more number drawn: the comparison above is worth something."""
    told = []
    for rate in ("0.1", "0.1000001", "0.1 + 0 * torch.rand(1).item()"):
        script = tmp_path / "control.py"
        script.write_text(CONTROL.format(rate=rate))
        told.append(run(TORCHRUN, script, 1)[0]["ranks"]["0"])
    assert told[0]["parameters"] != told[1]["parameters"]
    assert told[0]["torch"] == told[1]["torch"] != told[2]["torch"]
