"""Steps that the script leaves out by itself behind a bad loss, or bad gradients: counted, and led back to the line."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from nandiag.events import ProbeDark, Skipped


def shares(x):
    return x / x.sum(1, keepdim=True)


class Loop:
    """Trains for eight steps, of which two are spoilt; ``WAY`` says how the script leaves these out."""

    def __init__(self, spoilt=(3, 5)):
        torch.manual_seed(0)
        self.net, self.spoilt = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), spoilt
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)

    def loss(self, step):
        x = torch.rand(3, 4)
        if step in self.spoilt:
            x[1] = 0.0
        return self.net(shares(x)).square().mean()

    def update(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def continues(self, step):
        loss = self.loss(step)
        if not torch.isfinite(loss):
            return
        self.update(loss)

    def reads_a_number(self, step):
        loss = self.loss(step)
        if math.isfinite(loss.item()):
            self.update(loss)

    def asks_of_a_detached_one(self, step):
        loss = self.loss(step)
        if torch.isnan(loss.detach()).any():
            return
        self.update(loss)

    def puts_zero_in_its_place(self, step):
        loss = self.loss(step)
        if torch.isnan(loss):
            loss = torch.zeros((), requires_grad=True) * self.net[1].bias.sum()
        self.update(loss)

    def leaves_the_update_out(self, step):
        self.optimizer.zero_grad()
        loss = self.loss(step)
        loss.backward()
        if torch.isfinite(loss):
            self.optimizer.step()

    def drops_by_the_model(self, step):
        loss = self.loss(step)
        self.net.zero_grad()
        loss.backward()
        if loss.item() == loss.item():
            self.optimizer.step()

    def asks_of_the_norm(self, step):
        loss = self.loss(step)
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        if torch.isfinite(norm):
            self.optimizer.step()


WAYS = [one for name, one in vars(Loop).items() if name not in {"loss", "update"} and not name.startswith("__")]


def skips(worker):
    return worker.events(Skipped)


@pytest.mark.parametrize("way", WAYS)
def test_each_is_counted_once_and_the_first_has_its_line(work, way):
    worker, loop = work(), Loop()
    for step in range(8):
        way(loop, step)
    worker.sentinel.finish()
    told = skips(worker)
    called = {Loop.leaves_the_update_out, Loop.drops_by_the_model, Loop.asks_of_the_norm}
    of = "loss" if way in called else "unused loss"
    assert [(one.by, one.of, one.in_a_row, one.total) for one in told] == [("script", of, 1, n) for n in (1, 2)]
    assert all(math.isnan(one.loss) for one in told)
    look = told[0].look
    assert (look.outcome, look.site.op, look.site.function) == ("found", "aten.div.Tensor", "shares")
    assert look.inputs[1].zeros == 1
    assert told[1].look is None  # one line is enough
    assert (worker.harms, worker.looked) == ([], [])


@pytest.mark.parametrize("way", WAYS)
def test_a_loop_that_leaves_nothing_out_is_not_told(work, way):
    worker, loop = work(), Loop(spoilt=())
    for step in range(8):
        way(loop, step)
    worker.sentinel.finish()
    assert (skips(worker), worker.harms, worker.looked) == ([], [], [])


def test_steps_that_are_left_out_side_by_side_are_counted_each(work):
    worker, loop = work(), Loop(spoilt=(2, 3, 4))
    for step in range(8):
        loop.continues(step)
    worker.sentinel.finish()
    (told,) = skips(worker)
    assert (told.step, told.in_a_row, told.total) == (2, 3, 3)
    assert told.look.site.function == "shares"


@pytest.mark.parametrize("asks", [torch.isfinite, lambda loss: loss.item() < 1e9])
def test_a_loss_whose_gradients_are_dropped_to_the_end_is_counted_once(work, asks):
    """The script asks of the newest behind its backward, and nothing is called any more."""
    worker, loop = work(), Loop(spoilt=range(3, 8))
    for step in range(8):
        loss = loop.loss(step)
        loop.optimizer.zero_grad()
        loss.backward()
        if not asks(loss):
            loop.optimizer.zero_grad()
            continue
        loop.optimizer.step()
    worker.sentinel.finish()
    assert [(one.of, one.step, one.total) for one in skips(worker)] == [("loss", 3, 5)]


def roots(loop, step):
    x = torch.rand(3, 4)
    target = torch.rand(3, 1)
    out = loop.net(x)
    if step in loop.spoilt:
        target[1] = out.detach()[1]
    loss = torch.sqrt((out - target).square().sum(1)).mean()
    loop.optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(loop.net.parameters(), 1.0)
    if torch.isfinite(norm):
        loop.optimizer.step()


def test_gradients_that_are_bad_behind_a_loss_that_is_not_are_led_back_too(work):
    worker, loop = work(), Loop()
    for step in range(8):
        roots(loop, step)
    worker.sentinel.finish()
    told = skips(worker)
    assert [(one.of, one.total) for one in told] == [("gradient norm", 1), ("gradient norm", 2)]
    assert (told[0].look.phase, told[0].look.site.forward_op) == ("backward", "aten.sqrt.default")


def test_a_script_that_ends_by_an_error_on_a_norm_has_left_nothing_out(work):
    worker, loop = work(), Loop()
    loop.optimizer.register_step_pre_hook(lambda *_: pytest.fail("no update is made of such gradients"))
    with pytest.raises(FloatingPointError) as raised:
        ends_on(loop)
    worker.sentinel.last.take(raised.value)
    assert skips(worker) == []
    assert [harm.what for harm in worker.harms] == ["gradient"]
    assert worker.looked[-1].site.forward_op == "aten.sqrt.default"


def ends_on(loop):
    out = loop.net(torch.rand(3, 4))
    loss = torch.sqrt((out - out.detach()).square().sum(1)).mean()
    loss.backward()
    if not torch.isfinite(nn.utils.clip_grad_norm_(loop.net.parameters(), 1.0)):
        raise FloatingPointError
    loop.optimizer.step()


def test_a_loss_that_was_asked_of_and_is_used_all_the_same_is_harm_and_nothing_left_out(work):
    worker, loop = work(), Loop()
    for step in range(4):
        loss = loop.loss(step)
        if torch.isnan(loss):
            pass  # a warning, say
        loop.update(loss)
    worker.sentinel.finish()
    assert skips(worker) == []
    assert worker.harms[0].step == 3


def test_what_has_no_graph_is_no_loss(work):
    """NaN in targets that are padded with it, or in a metric, is asked of in each step."""
    worker, loop = work(), Loop(spoilt=())
    for step in range(6):
        target = torch.full((3, 1), math.nan)
        keep = ~torch.isnan(target)
        accuracy = keep.float().sum() / keep.sum()
        assert math.isnan(accuracy.item())
        assert torch.isnan(target).any()
        loop.update(loop.loss(step))
    worker.sentinel.finish()
    assert (skips(worker), worker.harms) == ([], [])


def test_the_update_goes_on_as_without(work):
    ends = []
    for watched in (False, True):
        if watched:
            work()
        loop = Loop()
        for step in range(8):
            loop.continues(step)
        ends.append(torch.cat([one.detach().flatten() for one in (*loop.net.parameters(), torch.rand(3))]))
    assert torch.equal(*ends)


def told_of(worker):
    return [(one.of, one.step, one.in_a_row, one.total) for one in skips(worker)]


def test_what_looks_on_the_weights_before_it_makes_its_update_has_not_used_what_it_left_out(work):
    """Its first gradients are used, and dropped; a loss that no backward was called on is none of them."""
    worker, loop = work(on_anomaly="stop"), Loop(spoilt=(3,))
    for step in range(8):
        loss = loop.loss(step)
        if torch.isnan(loss):
            continue
        loss.backward()
        with torch.no_grad():
            moved = [0.05 * one.grad for one in loop.net.parameters()]
            for one, by in zip(loop.net.parameters(), moved, strict=True):
                one.add_(by)
        loop.optimizer.zero_grad()
        loop.loss(8).backward()
        with torch.no_grad():
            for one, by in zip(loop.net.parameters(), moved, strict=True):
                one.sub_(by)
        loop.optimizer.step()
        loop.optimizer.zero_grad()
    worker.sentinel.finish()
    assert (told_of(worker), worker.harms) == ([("unused loss", 3, 1, 1)], [])


def test_a_loop_without_modules_leaves_losses_out_too(work):
    worker, weight = work(), nn.Parameter(torch.ones(4, 1))
    optimizer = torch.optim.SGD([weight], lr=0.01)
    for step in range(6):
        x = torch.rand(3, 4) if step != 2 else torch.zeros(3, 4)
        loss = (shares(x) @ weight).square().mean()
        if torch.isnan(loss):
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    worker.sentinel.finish()
    assert told_of(worker) == [("unused loss", 2, 1, 1)]


def test_parts_and_their_sum_are_one_loss(work):
    worker, loop = work(), Loop(spoilt=(2,))
    for step in range(6):
        out = loop.loss(step)
        first, second = out * 0.5, out * 0.25
        if not (torch.isfinite(first) and torch.isfinite(second)) or torch.isnan(first + second):
            continue
        loop.update(first + second)
    worker.sentinel.finish()
    assert told_of(worker) == [("unused loss", 2, 1, 1)]


def logs_after_the_update(loop, step):
    loss = loop.loss(step)
    loop.update(loss)
    return math.isnan(torch.log(-loss - 1.0).item())


def asks_of_a_metric(loop, step):
    out = loop.net(torch.rand(3, 4))
    metric = torch.log(-out.abs() - 1.0).mean()
    assert torch.isnan(metric)
    loop.update(out.square().mean())


@pytest.mark.parametrize("way", [logs_after_the_update, asks_of_a_metric])
def test_what_is_made_with_a_loss_that_is_used_is_none_that_is_left_out(work, way):
    worker, loop = work(), Loop(spoilt=())
    for step in range(6):
        way(loop, step)
    worker.sentinel.finish()
    assert (told_of(worker), worker.harms) == ([], [])


def test_a_step_that_was_left_out_for_another_rank_does_not_hide_the_next_one(work):
    worker, loop = work(), Loop(spoilt=(4,))
    for step in range(7):
        loss = loop.loss(step)
        bad = (~torch.isfinite(loss.detach())).float()
        bad += step == 3  # as an all-reduce does
        if bad:
            continue
        loop.update(loss)
    worker.sentinel.finish()
    assert told_of(worker) == [("unused loss", 3, 1, 1)]


def test_all_that_is_left_out_to_the_end_is_counted(work):
    worker, loop = work(), Loop(spoilt=range(2, 60))
    for step in range(60):
        loop.asks_of_the_norm(step)
    for _ in range(2):
        loop.continues(61)
    worker.sentinel.finish()
    assert sum(one.in_a_row for one in skips(worker)) == 58


@pytest.mark.parametrize("spoilt", [(3, 5), (5, 6, 7), range(3, 40)])
def test_what_was_asked_of_may_be_more_than_one_number(work, spoilt):
    worker, loop = work(), Loop(spoilt=spoilt)
    for step in range(42):
        x = torch.rand(3, 4)
        if step in spoilt:
            x[1] = 0.0
        out = loop.net(shares(x))
        if torch.isnan(out).any():
            continue
        loop.update(out.square().mean())
    worker.sentinel.finish()
    assert worker.events(ProbeDark) == []
    assert (sum(one.in_a_row for one in skips(worker)), worker.harms) == (len(spoilt), [])
    assert skips(worker)[0].look.site.function == "shares"


class Running:
    """Scales by what it keeps from turn to turn, as rewards are: once that is bad, it stays so."""

    def __init__(self):
        self.mean = torch.ones(())

    def __call__(self, x):
        self.mean.mul_(0.9).add_(x.mean(), alpha=0.1)  # the state
        return x - self.mean


def of_running(loop, scale, step):
    x = torch.rand(3, 4)
    if step == 3:
        x[1, 1] = 0.0
    return loop.net(scale(-torch.log(x))).square().mean()


@pytest.mark.parametrize("steps", [20, 200])
def test_where_all_are_left_out_from_a_step_on_the_first_has_its_line_before_the_end(work, steps):
    worker, loop, scale = work(), Loop(), Running()
    for step in range(steps):
        loss = of_running(loop, scale, step)
        if not torch.isfinite(loss):
            continue
        loop.update(loss)
    assert skips(worker)[0].look.site.op == "aten.log.default"
    assert skips(worker)[0].look.facts["kept_bad"] == [f"{__file__}:{line_of('# the state')}"]
    worker.sentinel.finish()
    told = skips(worker)
    assert told[-1].total == steps - 3
    assert [one.last for one in told] == [False] * (len(told) - 1) + [True]
    assert worker.harms == []


def test_the_last_of_many_that_are_left_out_is_what_the_script_ends_on(work):
    """The eight before it were told already, in the same step."""
    worker, loop, scale = work(), Loop(), Running()
    for step in range(12):
        if not torch.isfinite(of_running(loop, scale, step)):
            continue
        loop.update(loop.net(torch.rand(3, 4)).square().mean())
    assert sum(one.in_a_row for one in skips(worker)) == 8
    worker.sentinel.finish()
    assert [(one.in_a_row, one.last) for one in skips(worker)] == [(8, False), (1, True)]


def kept_in_a_list(loop, scale, losses):
    for _ in range(20):
        loss = of_running(loop, scale, 3)
        losses.append(loss)
        if not torch.isfinite(loss):
            continue


def summed_up(loop, scale, losses):
    losses.append(torch.zeros(()))
    for _ in range(20):
        loss = of_running(loop, scale, 3)
        losses[0] = losses[0] + loss
        if not torch.isfinite(loss):
            continue


@pytest.mark.parametrize("gather", [kept_in_a_list, summed_up])
def test_losses_that_are_kept_may_be_used_yet_and_are_none_that_are_left_out(work, gather):
    worker, loop, losses = work(), Loop(), []
    gather(loop, Running(), losses)
    loop.update(torch.stack(losses).mean())
    worker.sentinel.finish()
    assert skips(worker) == []
    assert [harm.what for harm in worker.harms[:1]] == ["loss"]


def line_of(words, file=__file__):
    lines = Path(file).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"  {words}"))
