"""What a rank hands to others bad is looked at before it goes, and told where another rank's harm needs it."""

import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from nandiag.events import Looked, Next, Sent
from nandiag.runtime.births import record
from nandiag.runtime.collectives import messages
from nandiag.runtime.collectives.messages import ARRIVALS, Message, Post
from nandiag.runtime.collectives.ring import Call, Group
from nandiag.runtime.evidence.exchange.arrived import arrived
from nandiag.runtime.evidence.exchange.exchanged import with_exchange
from nandiag.runtime.numeric.warned import HEARD
from nandiag.runtime.tape.exchange import Exchange


@pytest.fixture
def alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def time_to_look(monkeypatch):
    """What may be spent in the first moments of a run does not last for a hundred looks on a busy machine."""
    monkeypatch.setattr(record, "CREDIT", 60.0)


class Unit(nn.Module):
    def forward(self, x):
        return x / x.norm(dim=1, keepdim=True)  # zero rows


def line_of(words):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(words))


def hand(*many):
    return [dist.scatter(torch.empty_like(one), [one], src=0) for one in many]


def test_what_was_made_in_this_step_is_run_again(work, alone):
    worker = work()
    model = Unit()
    with torch.no_grad():
        for step in range(3):
            x = torch.rand(4, 6)
            if step == 1:
                x[2] = 0.0
            hand(model(x))
    sent = worker.events(Sent)
    assert [(one.way, one.ranks, one.number, one.look.outcome, one.look.method) for one in sent] == [
        ("scatter", (0,), 1, "found", "replay")
    ]
    assert (sent[0].look.site.line, sent[0].look.site.op) == (line_of("# zero rows"), "aten.div.Tensor")
    assert (sent[0].site.line, sent[0].site.op) == (line_of("src=0) for one in many]"), "c10d::scatter_.default")
    assert worker.harms == worker.looked == []


class Hand(torch.autograd.Function):
    """Hands on what it is given, and is handed its gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        hand(x.detach().contiguous())
        return x.new_zeros(())

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.ones_like(ctx.saved_tensors[0])


@pytest.mark.parametrize("between", [lambda x: x, lambda x: x * 2.0])
def test_what_a_function_of_the_scripts_own_hands_on_is_run_again(work, alone, between):
    """Each step communicates then, so that the steps before must not forbid it."""
    worker = work()
    model = nn.Sequential(nn.Linear(6, 6), Unit())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for step in range(3):
        x = torch.rand(4, 6)
        with torch.no_grad():
            model[0].weight.mul_(step != 2)
            model[0].bias.mul_(step != 2)
        Hand.apply(between(model(x))).backward()
        optimizer.step()
    (sent,) = worker.events(Sent)
    assert (sent.number, sent.look.outcome, sent.look.method) == (2, "found", "replay"), sent
    assert (sent.look.site.line, sent.look.site.op) == (line_of("# zero rows"), "aten.div.Tensor")


def test_a_gradient_that_is_handed_on_is_run_again(work, alone):
    worker = work()
    weight = nn.Parameter(torch.zeros(3))
    torch.optim.SGD([weight], lr=0.1)
    loss = torch.sqrt(weight).sum()  # steep at 0
    loss.backward()
    hand(weight.grad)
    (sent,) = worker.events(Sent)
    assert (sent.look.site.line, sent.look.site.node) == (line_of("# steep at 0"), "SqrtBackward0")


def test_where_nothing_shows_what_made_it_the_line_that_hands_it_on_is_told(work, alone):
    worker = work()
    x = torch.rand(4)
    x.numpy()[1] = float("nan")
    hand(x)  # handed on
    (sent,) = worker.events(Sent)
    assert (sent.look.method, sent.look.source, sent.look.phase) == ("message", "outside", "collective")
    assert sent.look.site.line == line_of("return [dist.scatter(torch.empty_like(one), [one], src=0) for one in many]")


def centred(rows):
    return (rows - rows.mean()) / rows.std()  # of rows that are alike


def test_what_numpy_made_and_torch_only_took_has_the_line_of_which_numpy_complained(work, alone):
    worker = work()
    HEARD.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rows in (np.arange(4.0), np.ones(4)):
            hand(torch.from_numpy(centred(rows)))
    (sent,) = worker.events(Sent)
    assert (sent.number, sent.look.site.line, sent.look.phase) == (1, line_of("# of rows that are alike"), "data")
    assert sent.look.facts["numpy"].startswith("invalid value encountered in")
    HEARD.clear()


def test_masks_and_finite_values_are_not_told(work, alone):
    worker = work()
    hand(torch.full((4,), -torch.inf), torch.ones(4), torch.ones(4, dtype=torch.int64), torch.tensor(torch.inf))
    assert worker.events(Sent) == []


def test_minus_infinity_is_told_where_it_was_computed_and_a_mask_that_is_laid_is_not(work, alone):
    worker = work()
    model = Unit()
    with torch.no_grad():
        share = model(torch.eye(3)[:2])[0]
        prior = torch.log(share)  # of none
        hand(prior)
        banned = torch.rand(3).masked_fill(share == 0, -torch.inf)
        hand(banned)
    (sent,) = worker.events(Sent)
    assert (sent.number, sent.look.site.line) == (0, line_of("# of none"))


def test_one_infinite_number_is_told_where_it_was_computed_and_not_where_it_is_the_best_so_far(work, alone):
    worker = work()
    model, best = Unit(), torch.tensor(torch.inf)
    with torch.no_grad():
        for step in range(3):
            share = model(torch.eye(3))[0, :1] * step
            best = torch.minimum(best, torch.tensor(torch.inf))
            hand(torch.log(share), best)  # of the first count
    (sent,) = worker.events(Sent)
    assert (sent.number, sent.look.site.line) == (0, line_of("# of the first count"))


def test_what_is_put_into_a_reduction_is_looked_at_unless_it_is_a_gradient(work, alone):
    """A rank whose own loss leaves it out sees no harm; one with bad gradients does."""
    worker = work()
    weight = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(3):
        counted = torch.rand(4)[: 0 if step == 1 else 4]
        mean = counted.mean()  # of none that counts
        dist.all_reduce(mean)
        (weight.sum() * 2).backward()
        dist.all_reduce(weight.grad * (torch.nan if step == 2 else 1))
        optimizer.step()
        optimizer.zero_grad()
    (sent,) = worker.events(Sent)
    assert (sent.way, sent.ranks, sent.look.outcome) == ("all_reduce", (0,), "found")
    assert (sent.look.site.line, sent.look.site.op) == (line_of("# of none that counts"), "aten.mean.default")
    assert not worker.harms


def test_what_is_no_gradient_is_looked_at_behind_the_backward_too(work, alone):
    """Statistics for the next step, say, reduced while this one ends; what descends from the loss is harm by itself."""
    worker = work()
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(3):
        x = torch.rand(4, 3) * (step != 1)
        loss = (weight * x).sum()
        loss.backward()
        statistics = torch.stack([x.mean(0), torch.log(x).mean(0).exp() / x.mean(0)])  # of zeros alone
        dist.all_reduce(statistics)
        shown = loss.detach() * (torch.nan if step == 2 else 1)
        dist.all_reduce(shown)
        flat = torch.cat([one.grad.flatten() for one in (weight,)]) * (torch.nan if step == 2 else 1)
        dist.all_reduce(flat)
        optimizer.step()
        optimizer.zero_grad()
    (sent,) = worker.events(Sent)
    assert (sent.way, sent.look.outcome) == ("all_reduce", "found")
    assert (sent.look.site.line, sent.look.site.op) == (line_of("# of zeros alone"), "aten.div.Tensor")
    assert not worker.harms


def test_running_again_is_within_a_share_of_the_time(work, alone, monkeypatch):
    worker = work()
    looks = []

    def look(case):
        time.sleep(0.02)
        looks.append(case)

    monkeypatch.setattr(worker.sentinel.looker.examiner, "examine_handed", look)
    hand(*(torch.full((4,), torch.nan) for _ in range(100)))
    assert len(looks) == 2
    assert len(worker.events(Sent)) == 16
    for one in (torch.rand(4), torch.full((4,), torch.nan)):
        dist.scatter(torch.empty(4), [one], src=0)  # another line
    assert len(worker.events(Sent)) == 17


def gathered(rows):
    dist.all_gather([torch.empty_like(rows)], rows)


def gathered_into_one(rows):
    dist.all_gather_into_tensor(torch.empty_like(rows), rows)


def exchanged(rows):
    dist.all_to_all_single(torch.empty_like(rows), rows)


def scattered_sum(rows):
    dist.reduce_scatter_tensor(torch.empty_like(rows), rows)


@pytest.mark.parametrize("exchange", [gathered, gathered_into_one, exchanged, scattered_sum])
def test_what_is_put_into_an_exchange_of_all_is_looked_at(work, alone, exchange):
    """The loss of the rank that put it in need not use it: that of another rank does."""
    worker = work()
    for step in range(3):
        x = torch.rand(4, 6)
        if step == 1:
            x[2] = 0.0
        exchange(x / x.norm(dim=1, keepdim=True))  # rows of zeros
    (sent,) = worker.events(Sent)
    assert (sent.ranks, sent.number, sent.look.outcome) == ((0,), 1, "found")
    assert (sent.look.site.line, sent.look.site.op) == (line_of("# rows of zeros"), "aten.div.Tensor")
    assert not worker.harms


def test_what_a_library_of_torch_exchanges_by_itself_is_not_looked_at(work, alone):
    """It is weights or gradients, which are looked at otherwise, and often."""
    worker = work()
    names = {}
    exec(compile("def own(call, *words): call(*words)", torch.__file__, "exec"), names)  # noqa: S102 - as torch's code
    names["own"](dist.all_gather_into_tensor, torch.empty(4), torch.full((4,), torch.nan))
    assert worker.events(Sent) == []


def test_handing_on_counts_for_no_replay_and_leaves_the_step_as_it_was(work, alone):
    worker = work(max_replays=1)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        y = model(torch.rand(2, 3)).log()
        before = torch.get_rng_state()
        hand(y.detach() * torch.nan)
        assert torch.equal(torch.get_rng_state(), before)
    y.sum().backward()
    optimizer.step()
    assert len(worker.looked) == 1


def test_messages_are_counted_by_their_ends_and_their_tag(alone):
    group, post = Group(dist.group.WORLD, "0", 0), Post()

    def message(op, peer, tag=0):
        call = Call(op, group, None)
        call.peer = peer
        return [part.message for part in post.parts([call], (torch.ones(1),), {"tag": tag})]

    calls = [("send", 1), ("isend", 1), ("recv", 1), ("send", 2), ("send", 1, 7), ("irecv", 1)]
    told = [(one.ranks, one.number, one.group) for call in calls for one in message(*call)]
    assert told == [
        ((0, 1), 0, "0#0/0"), ((0, 1), 1, "0#0/0"), ((1, 0), 0, "0#0/0"), ((0, 2), 0, "0#0/0"), ((0, 1), 0, "0#0/7"),
        ((1, 0), 1, "0#0/0"),
    ]  # fmt: skip
    assert message("recv", None) == message("recv", 1) == []
    assert len(message("send", 1)) == 1


def test_tags_without_end_are_not_counted_without_end(alone, monkeypatch):
    monkeypatch.setattr(messages, "_MOST_WAYS", 3)
    group, post = Group(dist.group.WORLD, "0", 0), Post()

    def number(tag):
        call = Call("send", group, None)
        call.peer = 1
        return [part.message.number for part in post.parts([call], (torch.ones(1),), {"tag": tag})]

    assert [number(tag) for tag in (0, 1, 2, 3, 2, 4)] == [[0], [0], [0], [], [1], []]


@pytest.mark.parametrize("touched", [False, True])
def test_a_batch_that_was_asked_for_in_the_step_before_was_received(work, touched):
    """One that the script has written into since may be bad by that."""
    worker = work()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def ask(step):
        batch = torch.empty(4, 3)
        messages.ARRIVALS.note(batch, messages.Message("send", (0, 1), step, "default"))
        batch.numpy()[:] = float("nan") if step == 2 else 1.0  # as another rank fills it
        return batch

    asked = ask(0)
    for step in range(1, 4):
        x, asked = asked, ask(step)
        if touched:
            x.mul_(1.0)
        loss = model(x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    looked = worker.looked[0]
    assert (looked.step, looked.source == "received") == (2, not touched)
    assert touched or looked.facts["handed"] == ["send", [0, 1], 2, "default"]


def test_a_gradient_is_no_earlier_message_that_lay_in_the_same_memory(work, alone):
    """Memory is handed out again: what came there before is none of what goes there now."""
    worker = work()
    weight = nn.Parameter(torch.ones(3))
    torch.optim.SGD([weight], lr=0.1)
    (weight * torch.ones(3)).sum().backward()
    messages.ARRIVALS.note(weight.grad, Message("all_reduce", (0,), 5, "0#0"))
    dist.all_reduce(weight.grad)
    assert [(one.name, one.message) for one in worker.capture.exchanges] == [("all_reduce", None)]
    dist.all_reduce(torch.ones(2))
    assert worker.capture.exchanges[-1].message.number == 1


def test_an_exchange_that_was_not_run_again_is_told_by_what_it_brought():
    message = Message("gather", (0, 1), 20, "0#0")
    own = [Exchange("gather", (), 0, message), Exchange("all_reduce", (), 0)]
    looked = with_exchange(Looked("finite", "replay", 5), 1.0, [], own)
    assert looked.facts["exchanged"] == [["gather", [0, 1], 20, "0#0"]]
    assert looked.facts["collective"] == "all_reduce"


def given(values, worker, number=0):
    """Have ``values`` lie in memory that another rank filled, as far as this one can tell."""
    into = torch.ones(len(values))
    messages.ARRIVALS.note(into, Message("broadcast", (0, 1), number, "0#0"))
    worker.capture.births.received(into)
    into.numpy()[:] = values
    return into


def test_what_is_computed_before_training_of_what_another_rank_sent_is_known_as_received(work):
    worker = work()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scale = given([1.0, np.inf, 1.0], worker)
    inputs = (torch.randn(4, 3) - 0.5) * scale
    model(inputs).sum().backward()
    optimizer.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.phase) == ("found", "received", "collective"), looked
    assert looked.facts["handed"] == ["broadcast", [0, 1], 0, "0#0"]


def test_weights_that_are_made_of_it_are_told_by_the_rank_that_sent_it(work):
    worker = work()
    model = nn.Linear(3, 1)
    with torch.no_grad():
        model.weight.copy_(given([1.0, np.inf, 1.0], worker) * 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    assert all("birth" not in one.facts and one.source != "op" for one in worker.looked)


def test_what_a_rank_has_broadcast_is_made_again_by_itself(work, alone, next_places):
    worker = work()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        inputs = torch.randn(8, 3)
        if step == 2:
            inputs[:, 1] = 2.0
        scale = 1 / inputs.std(0)  # a column of one number
        dist.broadcast(scale, 0)
        optimizer.zero_grad()
        model((inputs - inputs.mean(0)) * scale).abs().mean().backward()
        optimizer.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.site.line) == ("found", "op", line_of("# a column of one number"))
    following = worker.events(Next)
    assert [one.look.outcome for one in following] == ["finite"], following


@pytest.mark.parametrize("written", [False, True])
def test_what_a_reduction_filled_tells_its_call_and_that_what_was_given_was_finite(work, alone, written):
    work()
    temp = torch.tensor(1.02)
    dist.all_reduce(temp, op=dist.ReduceOp.PRODUCT)  # of temperatures
    if written:
        temp.mul_(2.0)
    facts = ARRIVALS.facts_of(temp)
    file, line, source, function, _ = facts["called_at"]
    assert (file, line) == (__file__, line_of("# of temperatures"))
    assert "PRODUCT" in source
    assert function.startswith("test_what_a_reduction")
    told = facts["reduce"], facts["given_finite"], facts["as_it_came"], facts["carried_by"]
    assert told == ("product", True, not written, "all_reduce")


def test_what_a_reduction_was_given_bad_is_not_said_to_be_finite(work, alone):
    work()
    temp = torch.tensor(float("nan"))
    dist.all_reduce(temp)
    assert (ARRIVALS.facts_of(temp)["given_finite"], ARRIVALS.facts_of(temp)["reduce"]) == (False, "sum")


@pytest.mark.parametrize("peer", [0, 1])
def test_what_goes_into_an_op_as_another_rank_sent_it_tells_of_its_call(work, alone, monkeypatch, peer):
    work()
    std = torch.zeros(3)
    call = Call("broadcast", None, None)
    call.peer = peer
    ARRIVALS.note(std, Message("broadcast", (0, 1), 0, "0#0"), messages.Filling(call, finite=False))
    op = SimpleNamespace(words=((torch.ones(3), std), {}))
    assert arrived(op) == ({"arrived": [[1, "broadcast", 1, None, None]]} if peer else {})
    std.add_(1.0)
    assert arrived(op) == {}
