"""Every way to train on many ranks, through the real command: the rank, step, op and line are those of the fault."""

import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

SCRIPT = Path(__file__).with_name("ways.py")
OWN_DATA = (
    "ddp", "ddp_static", "ddp_hook", "ddp_power", "ddp_no_sync", "join", "zero", "sharded_adam", "fsdp1", "fsdp1_flat",
    "fsdp2", "fsdp2_keep", "fsdp2_half", "sp", "experts", "context", "context_plain", "gpipe", "one_f_one_b", "by_hand",
    "contrast_own", "contrast_gather", "contrast_functional", "own_hooks", "fsdp1_narrow",
    "frozen_by_hand", "scattered", "functional_loop",
)  # fmt: skip
ON_FOUR = ("hsdp", "hsdp1")
SPLIT = ("tp", "lossp")
SPLIT_ON_FOUR = ("fsdp2_tp",)
# The last of these covers what only ranks that replay together can see: harm that came back to where it was made.
FAST = (("fsdp2", 2, 1), ("contrast_own", 2, 1), ("experts", 2, 1), ("frozen_by_hand", 2, 0))


def cases():
    every = [(way, 2, rank) for way in (*OWN_DATA, *SPLIT) for rank in range(2)]
    every += [(way, 4, rank) for way in (*OWN_DATA, *ON_FOUR, *SPLIT, *SPLIT_ON_FOUR) for rank in range(4)]
    return [pytest.param(*case, marks=() if case in FAST else (pytest.mark.slow,)) for case in every]


@pytest.mark.parametrize(("way", "nproc", "rank"), cases())
def test_the_origin_is_the_faulty_rank(way, nproc, rank, nandiag, tmp_path):
    file = tmp_path / "report.json"
    done = nandiag("run", "--nproc-per-node", nproc, "--log-dir", tmp_path, "--json", file, SCRIPT, way, rank)
    report = json.loads(file.read_text())
    origin = report["verdict"]["origin"]
    place = (origin["ranks"], origin["step"], origin["phase"], origin["op"], origin["source"].strip())
    split = way in {*SPLIT, *SPLIT_ON_FOUR}
    op, line = (
        ("exp", "torch.exp(x)  # too large") if split else ("div", "x / x.norm(dim=-1, keepdim=True)  # zero rows")
    )
    overload = "default" if split else "Tensor"
    assert place == ([rank], 3, "forward", f"aten.{op}.{overload}", f"return {line}"), done.stderr
    assert report["verdict"]["cause"] == ("overflow" if split else "division_by_zero"), done.stderr
    assert done.returncode == 3, done.stderr
    assert not [note for note in report["notes"] if "switched off" in note or "could not" in note], done.stderr


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_rank_that_spoils_its_own_shard_of_the_gradients_has_its_line(rank, nandiag, tmp_path):
    file = tmp_path / "report.json"
    words = ("--nproc-per-node", 2, "--log-dir", tmp_path, "--json", file, SCRIPT, "fsdp2_clipped", rank)
    done = nandiag("run", *words)
    verdict = json.loads(file.read_text())["verdict"]
    origin = verdict["origin"]
    assert (origin["ranks"], origin["step"], origin["op"]) == ([rank], 3, "aten.div.Tensor"), done.stderr
    assert "in its own unit" in origin["source"], done.stderr
    assert not [text for text in verdict["evidence"] if "damage" in text], done.stderr


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_ranks_that_anomaly_mode_ends_run_the_step_again_together(rank, nandiag, tmp_path):
    file = tmp_path / "report.json"
    done = nandiag("run", "--nproc-per-node", 2, "--log-dir", tmp_path, "--json", file, SCRIPT, "sp_checked", rank)
    verdict = json.loads(file.read_text())["verdict"]
    origin = verdict["origin"]
    assert (origin["ranks"], origin["step"], origin["op"]) == ([rank], 3, "aten.div.Tensor"), done.stderr
    assert "zero rows" in origin["source"], done.stderr
    assert verdict["cause"] == "division_by_zero", done.stderr
    assert not [text for text in verdict["evidence"] if "by itself" in text], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("nproc", [2, 4])
def test_a_sum_that_no_rank_alone_made_too_large_is_born_in_the_collective(nproc, nandiag, tmp_path):
    file = tmp_path / "report.json"
    words = ("--nproc-per-node", nproc, "--log-dir", tmp_path, "--json", file, SCRIPT, "fsdp2_narrow", 0)
    done = nandiag("run", *words)
    verdict = json.loads(file.read_text())["verdict"]
    assert verdict["cause"] == "collective_overflow", done.stderr
    assert verdict["origin"]["phase"] == "collective", done.stderr
    assert verdict["origin"]["ranks"] == list(range(nproc)), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("nproc", "rank"), [(2, 0), (4, 0), (4, 1), (4, 2)])
def test_a_stage_that_is_sent_infinities_did_not_go_bad_by_itself(nproc, rank, nandiag, tmp_path):
    file = tmp_path / "report.json"
    words = ("--nproc-per-node", nproc, "--log-dir", tmp_path, "--json", file, SCRIPT, "gpipe_infinite", rank)
    done = nandiag("run", *words)
    verdict = json.loads(file.read_text())["verdict"]
    assert (verdict["origin"]["ranks"], verdict["origin"]["op"]) == ([rank], "aten.log.default"), done.stderr
    assert verdict["cause"] == "log_of_zero", done.stderr
    assert not [text for text in verdict["evidence"] if "by itself" in text], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("way", ON_FOUR)
def test_what_went_over_to_a_copy_of_the_model_is_told_apart_from_what_went_to_a_shard(way, nandiag, tmp_path):
    file = tmp_path / "report.json"
    done = nandiag("run", "--nproc-per-node", 4, "--log-dir", tmp_path, "--json", file, SCRIPT, way, 2)
    ways = {tuple(one["ranks"]): one["via"] for one in json.loads(file.read_text())["verdict"]["spread"]}
    for ranks, kind, group in (
        ((3,), "reduce_scatter", "2-3"),
        ((0,), "all_reduce", "0, 2"),
        ((1,), "all_reduce", "1, 3"),
    ):
        assert ways[ranks].startswith(kind), done.stderr
        assert ways[ranks].endswith(f"of ranks {group}"), done.stderr
