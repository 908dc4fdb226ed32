"""What the launcher says and does while a run goes on."""

import itertools
import os
import signal
import socket
import subprocess
from dataclasses import replace

import pytest

from nandiag.events import Attached, Finished, Harm, Looked, Record, Sent, Site, Stopping, TensorFact, Warned, encode
from nandiag.launch.live import Grace, Seen, Watch, signal_own
from nandiag.store.layout import RunFolder
from nandiag.store.tail import Fresh

BAD = TensorFact(dtype="torch.float32", shape=(4,), numel=4, nan=2, name="blocks.2.weight")
GRADIENT = "step 7, backward: gradient of blocks.2.weight is NaN (1 of 10 gradients)"
INF = TensorFact(dtype="torch.float32", shape=(), numel=1, posinf=1, name="loss")


def attached(rank, *, pid=100, attempt=0, host=None):
    return Attached(rank, 2, rank, attempt, host or socket.gethostname(), pid, "site", "3.11", "0.1")


def harm(what="gradient", tensors=(BAD,), *, step=7, total=10):
    return Harm(what, step, "backward", tensors, bad=len(tensors), total=total)


def found(source="op", *, step=7, module="blocks.2.attn"):
    return Looked("found", "modules", step, phase="forward", source=source, site=Site(module=module), outputs=(BAD,))


def seen(*events):
    everything = Seen()
    for rank, event in events:
        everything.take(Fresh(rank, 0, 100 + rank, Record(0, 1.0, event)))
    return everything


@pytest.mark.parametrize(
    ("events", "line"),
    [
        ([], None),
        ([(0, Finished(3))], None),
        ([(1, harm())], f"rank 1, {GRADIENT}"),
        ([(0, harm("loss", (INF,), total=1))], "rank 0, step 7, backward: loss is +Inf"),
        ([(0, harm("parameter"))], "rank 0, step 7, backward: parameter blocks.2.weight is NaN (1 of 10 parameters)"),
        ([(0, harm("buffer", ()))], "rank 0, step 7, backward: buffer is not finite (0 of 10 buffers)"),
        ([(1, harm()), (0, harm())], f"rank 0, {GRADIENT}"),
        ([(0, harm()), (1, found())], "rank 1, step 7, forward: blocks.2.attn made NaN"),
        ([(0, found("received")), (1, found())], "rank 1, step 7, forward: blocks.2.attn made NaN"),
        ([(0, found("received"))], "rank 0, step 7, forward: NaN was received from another rank"),
        ([(0, harm()), (1, Looked("finite", "modules", 7))], f"rank 0, {GRADIENT}"),
    ],
)  # fmt: skip
def test_the_line(events, line):
    assert seen(*events).line() == line


def test_a_rank_that_sent_it_is_named_and_not_the_one_that_received_it():
    way = ["send", [0, 1], 5, "0#0/0"]
    sent = Sent("send", (0, 1), 5, "0#0/0", replace(found(step=5), site=Site(module="stage")))
    received = replace(found("received"), facts={"handed": way})
    assert seen((0, sent), (1, harm()), (1, received)).line() == "rank 0, step 7, forward: stage made NaN"


def test_a_rank_that_went_on_with_what_another_one_sent_is_not_named():
    """It found an origin of its own, with infinities that it was fed."""
    fed = replace(found(module="head"), facts={"fed": True})
    assert seen((0, harm()), (0, fed), (1, found())).line() == "rank 1, step 7, forward: blocks.2.attn made NaN"


def test_a_parameter_is_named():
    look = Looked("found", "modules", 3, phase="forward", source="parameter", site=Site(module="emb"), inputs=(BAD,))
    assert seen((0, look)).line() == "rank 0, step 3, forward: parameter blocks.2.weight is NaN"


def test_a_kind_that_hangs_on_what_stood_in_for_others_is_not_named():
    look = replace(found(), outputs=(replace(BAD, guessed=True),))
    assert seen((0, look)).line() == "rank 0, step 7, forward: blocks.2.attn made NaN or Inf"


def test_what_came_bad_is_not_said_to_be_made_by_the_model():
    look = Looked("found", "record", 0, phase="data", source="outside", site=Site(), outputs=(BAD,))
    assert seen((0, look)).line() == "rank 0, step 0, data: NaN was read; what made it is not known yet"
    facts = {"weight": "2.weight", "weight_is": "parameter"}
    look = Looked("found", "tape", 0, phase="init", source="op", site=Site(), outputs=(BAD,), facts=facts)
    assert seen((0, look)).line() == "rank 0, step 0, init: parameter 2.weight is NaN"


@pytest.mark.parametrize(("source", "what"), [("input", "an input"), ("buffer", "a buffer")])
def test_what_has_no_name_gets_none(source, what):
    nameless = TensorFact(dtype="torch.float32", shape=(), numel=1, nan=1)
    look = Looked("found", "replay", 3, phase="data", source=source, site=Site(op="aten.x.default"), inputs=(nameless,))
    assert seen((0, look)).line() == f"rank 0, step 3, data: {what} is NaN"


def test_a_child_known_by_its_number_is_called_a_module():
    site = Site(module="0", module_class="Scale")
    look = Looked("found", "replay", 3, phase="forward", source="op", site=site, outputs=(INF,))
    assert seen((0, look)).line() == "rank 0, step 3, forward: module 0 (Scale) made +Inf"


def test_a_sum_of_what_was_finite_is_not_said_to_be_received():
    facts = {"carried_by": "all_reduce", "group_ranks": [0, 1], "sent_absmax": 38400.0}
    look = replace(found("received"), phase="collective", facts=facts)
    told = "rank 0, step 7, collective: NaN came out of all_reduce, into which this rank put finite values"
    assert seen((0, look)).line() == told


def test_what_torch_only_took_in_it_did_not_make():
    site = Site(op="aten.lift_fresh.default")
    look = Looked("found", "replay", 3, phase="data", source="op", site=site, inputs=(INF,), outputs=(INF,))
    assert seen((0, look)).line() == "rank 0, step 3, data: torch took +Inf in, from Python's numbers or numpy's"


@pytest.mark.parametrize(
    ("said", "made"),
    [
        ("divide by zero encountered in log10", "-Inf"),
        ("divide by zero encountered in scalar divide", "Inf"),
        ("overflow encountered in exp", "+Inf"),
        ("overflow encountered in multiply", "Inf"),
        ("invalid value encountered in divide", "NaN"),
        ("Mean of empty slice", "+Inf"),
    ],
)
def test_the_sign_of_what_came_of_it_is_not_said_to_be_that_of_what_numpy_made(said, made):
    look = Looked("found", "replay", 3, phase="data", source="op", outputs=(INF,), facts={"numpy": said})
    assert seen((0, look)).line() == f"rank 0, step 3, data: numpy made {made}"


def test_an_op_outside_all_modules():
    look = Looked("found", "replay", 3, phase="loss", source="op", site=Site(op="aten.log.default"), outputs=(INF,))
    assert seen((0, look)).line() == "rank 0, step 3, loss: log made +Inf"


def test_a_stop_of_any_rank_counts_also_when_elastic_started_the_workers_anew():
    stop = Stopping(4, "stop", "stop", "loss is NaN")
    everything = seen((0, attached(0)), (0, stop))
    assert everything.stopped
    everything.take(Fresh(0, 1, 300, Record(0, 1.0, attached(0, attempt=1))))
    assert everything.attempts == 2
    assert everything.stopped
    assert not seen((0, attached(0)), (0, Stopping(4, "skip", "skip", "x"))).stopped


class Run:
    """A run folder whose ranks write when told, and a watch turned by hand."""

    def __init__(self, path, grace=None):
        self.folder = RunFolder(path)
        self.folder.make()
        self.said, self.killed, self.gone, self.numbers = [], [], set(), itertools.count()
        self.watch = Watch(self.folder, self.said.append, self.kill, grace)

    def kill(self, pid, number):
        if pid in self.gone:
            raise ProcessLookupError
        self.killed.append((pid, number))

    def write(self, rank, event, *, attempt=0):
        with self.folder.rank_file(rank, attempt, 100 + rank).open("a") as file:
            file.write(encode(Record(next(self.numbers), 1.0, event)) + "\n")


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def test_waits_a_moment_for_the_rank_that_knows_more(run):
    run.write(0, harm())
    run.watch._turn(10.0)
    run.watch._turn(10.9)
    assert run.said == []
    run.write(1, found())
    run.watch._turn(11.1)
    run.write(1, harm(step=8))
    run.watch._turn(19.0)
    (line,) = run.said
    assert line.startswith("nandiag: rank 1, step 7, forward: blocks.2.attn made NaN; report when the run ends (")
    assert line.endswith(")\n")
    assert line.count("\n") == 1


def test_says_it_at_the_end_of_a_short_run(run):
    run.watch.start()
    run.write(0, harm())
    run.watch.end()
    (line,) = run.said
    assert "; where it was born: report when the run ends (" in line


def test_says_nothing_of_a_clean_run(run):
    run.watch.start()
    run.write(0, attached(0))
    run.write(0, Finished(3))
    end = run.watch.end()
    assert run.said == []
    assert end.finished
    assert run.watch.failure is None


def stopped(run, *, second=None):
    run.write(0, attached(0))
    run.write(1, second or attached(1, pid=101))
    run.write(0, Stopping(7, "stop", "stop", "loss is NaN"))


def test_ends_workers_that_miss_the_stop(run):
    stopped(run)
    run.watch._turn(0.0)
    run.watch._turn(9.0)
    assert run.killed == []
    run.watch._turn(10.5)
    run.watch._turn(11.0)
    assert run.killed == [(101, signal.SIGTERM)]
    run.watch._turn(41.0)
    assert run.killed[1] == (101, signal.SIGKILL)
    assert run.watch._seen.ended == {101}


def test_workers_that_train_apart_are_ended_as_soon_as_torchrun_would(run):
    run.write(0, attached(0))
    run.write(1, attached(1, pid=101))
    run.write(0, Stopping(7, "stop", "stop", "loss is NaN", alone=True))
    run.watch._turn(0.0)
    run.watch._turn(0.6)
    assert run.killed == [(101, signal.SIGTERM)]


def test_a_worker_that_still_looks_for_the_origin_is_given_the_time(run):
    stopped(run)
    run.write(1, harm())
    run.watch._turn(0.0)
    run.watch._turn(119.0)
    assert run.killed == []
    run.write(1, Looked("finite", "replay", 7))
    run.watch._turn(119.5)
    assert run.killed == [(101, signal.SIGTERM)]


def test_a_worker_that_looks_for_ever_is_ended(run):
    stopped(run)
    run.write(1, harm())
    run.watch._turn(0.0)
    run.watch._turn(121.0)
    assert run.killed == [(101, signal.SIGTERM)]


def test_a_harm_of_long_ago_that_nobody_looked_at_gives_no_time(run):
    run.write(1, attached(1, pid=101))
    run.write(1, harm())
    run.watch._turn(0.0)
    run.write(0, attached(0))
    run.write(0, Stopping(7, "stop", "stop", "loss is NaN"))
    run.watch._turn(300.0)
    run.watch._turn(309.0)
    assert run.killed == []
    run.watch._turn(311.0)
    assert run.killed == [(101, signal.SIGTERM)]


def test_a_newer_harm_gives_it_anew(run):
    run.write(1, harm())
    run.watch._turn(0.0)
    stopped(run)
    run.write(1, harm(step=9))
    run.watch._turn(300.0)
    run.watch._turn(400.0)
    assert run.killed == []


def test_one_that_stops_keeps_its_time_and_the_others_theirs(run):
    stopped(run)
    run.watch._turn(0.0)
    run.watch._turn(299.0)
    assert run.killed == [(101, signal.SIGTERM)]
    run.watch._turn(301.0)
    assert (100, signal.SIGTERM) in run.killed


def test_workers_that_go_on_after_a_restart_are_ended_too(run):
    stopped(run)
    run.watch._turn(0.0)
    run.write(1, attached(1, pid=301, attempt=1), attempt=1)
    run.watch._turn(11.0)
    assert run.killed == [(301, signal.SIGTERM)]


def test_leaves_a_worker_time_for_its_finally_blocks(tmp_path):
    run = Run(tmp_path, Grace(others=1, own=100, kill=1000))
    stopped(run)
    run.write(1, Stopping(7, "stop", "stop", "loss is NaN"))
    run.watch._turn(0.0)
    run.watch._turn(99.0)
    assert run.killed == []
    run.watch._turn(101.0)
    assert sorted(run.killed) == [(100, signal.SIGTERM), (101, signal.SIGTERM)]


def test_a_worker_that_has_ended_is_not_looked_for_again(run):
    stopped(run)
    run.gone = {101}
    run.watch._turn(0.0)
    run.watch._turn(31.0)
    run.gone = set()
    run.watch._turn(500.0)
    assert (101, signal.SIGKILL) not in run.killed


def test_workers_of_other_hosts_are_left_to_their_own_launcher(run):
    stopped(run, second=attached(1, pid=101, host="elsewhere"))
    run.watch._turn(0.0)
    run.watch._turn(31.0)
    assert run.killed == []


def test_a_fault_of_the_watch_is_kept_for_later(run):
    run.write(0, harm())
    run.watch._say = None
    run.watch.start()
    run.watch.end()
    assert isinstance(run.watch.failure, TypeError)


def test_the_first_early_warning_of_each_kind_is_said_once(run):
    for event in (attached(0), Warned("loss_spike", 3), Warned("loss_spike", 4), Warned("lr_jump", 5)):
        run.write(0, event)
    run.watch._turn(0.0)
    run.watch._turn(0.1)
    run.write(1, Warned("loss_spike", 3))
    run.watch._turn(0.2)
    said = [text.partition(": rank 0, step")[0] for text in run.said]
    assert said == ["nandiag: warning[loss_spike]", "nandiag: warning[lr_jump]"]


def test_no_early_warning_is_said_behind_a_harm(run):
    run.write(0, harm())
    run.watch._turn(0.0)
    run.write(0, Warned("loss_spike", 3))
    run.watch._turn(0.1)
    assert run.said == []


def test_the_line_carries_no_control_sequences(run):
    run.write(0, harm(tensors=(TensorFact("float32", (), 1, nan=1, name="w\x1b]0;owned\x07\x1b[2J\nsecond line"),)))
    run.watch.start()
    run.watch.end()
    (line,) = run.said
    assert "\x1b" not in line
    assert "\x07" not in line
    assert line.count("\n") == 1


def test_only_descendants_are_signalled():
    with subprocess.Popen(["sleep", "60"]) as child:
        signal_own(child.pid, signal.SIGKILL)
        assert child.wait(timeout=10) == -signal.SIGKILL
    for pid in (-1, 0, 1, os.getpid(), os.getppid(), 2**31):
        with pytest.raises(ProcessLookupError):
            signal_own(pid, 0)


def test_what_was_made_before_the_first_step_is_said_to_be():
    look = Looked("found", "record", 14, phase="data", source="op", site=Site(op="aten.div.Tensor"), outputs=(INF,),
                  facts={"birth": "op", "call": "div"})  # fmt: skip
    assert seen((0, look)).line() == "rank 0, before the first step: div made +Inf, used at step 14"
