"""The armed sentinel in ordinary loops: what it calls harm, and what not."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from nandiag.events import Armed, Finished, History, ProbeDark, Skipped, Trainer
from nandiag.runtime.public import AnomalyStop
from nandiag.runtime.watch.judge import learning_rate
from tests.unit.runtime.watch.looping import Loop, at, bad_gradient, told

# ---------------------------------------------------------------------- what is harm


def test_a_healthy_run_says_nothing_and_is_counted(work):
    worker = work()
    Loop(torch.optim.Adam).run(4)
    assert worker.harms == []
    assert worker.looked == []
    assert worker.events(ProbeDark) == []
    (armed,) = worker.events(Armed)
    assert armed.torch == torch.__version__
    assert worker.sentinel.finish() == Finished(steps=4, skips=0, last_finite_step=3, updates=(None,))  # it is gone
    (history,) = worker.events(History)
    assert history.step == (0, 1, 2, 3)
    assert all(math.isfinite(value) for value in (*history.loss, *history.grad_norm))
    assert set(history.lr) == {0.1}


def test_a_bad_gradient(work):
    worker = work()
    Loop().run(3, spoil=at(1, bad_gradient))
    harm = worker.harms[0]
    assert told(worker)[0] == ("gradient", 1, "backward")
    assert (harm.tensors[0].name, harm.tensors[0].nan, harm.bad, harm.total) == ("0.bias", 1, 1, 6)
    assert (harm.optimizer, harm.since, harm.recoverable) == ("SGD", 0, True)


def test_the_groups_with_the_highest_and_the_lowest_rate_are_told(work):
    worker, loop = work(), Loop()
    assert loop.optimizer.param_groups[0]["lr"] == 0.1
    frozen = nn.Linear(2, 2)
    loop.optimizer.add_param_group({"params": frozen.parameters(), "lr": 4.0})
    loop.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 0.5})
    loop.run(2, spoil=at(1, bad_gradient))
    harm = worker.harms[0]
    assert [(one.group, one.lr) for one in harm.rates] == [(1, 4.0), (0, 0.1)]
    assert harm.rates[1].names == ("0.weight", "0.bias")


@pytest.mark.parametrize(
    ("rates", "told"),
    [((0.1, 4.0), 4.0), ((0.1, 0.01), 0.1), ((0.1, math.nan), math.nan), ((0.1, -1.0), -1.0), ((None, 0.1), 0.1)],
)
def test_of_groups_the_highest_rate_counts_but_for_one_that_is_none(rates, told):
    optimizer = SimpleNamespace(param_groups=[{"lr": rate} for rate in rates])
    assert learning_rate(optimizer) == pytest.approx(told, nan_ok=True)


def test_where_all_groups_have_one_rate_none_is_told(work):
    worker, loop = work(), Loop()
    loop.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 0.1})
    loop.run(2, spoil=at(1, bad_gradient))
    assert worker.harms[0].rates == ()


def test_the_update_that_spoils_the_weights(work):
    worker = work()
    Loop().run(3, spoil=at(1, bad_gradient))
    (harm,) = [harm for harm in worker.harms if harm.what == "parameter"]
    assert (harm.step, harm.phase, harm.since, harm.recoverable) == (1, "optimizer", 0, False)
    assert "0.bias" in [one.name for one in harm.tensors]
    assert worker.sentinel.finish().last_finite_step == 0


def test_a_loss_with_finite_gradients(work):
    worker = work()
    Loop().run(3, loss_of=lambda loop, out: out.mean() + (math.inf if loop.step == 1 else 0))
    assert told(worker) == [("loss", 1, "loss")]
    assert (worker.harms[0].loss, worker.harms[0].tensors[0].posinf) == (math.inf, 1)


@pytest.mark.parametrize("name", ["1.running_var", "1.running_mean"])
def test_a_buffer_that_turns_bad(name, work):
    worker = work()

    def spoil(loop):
        dict(loop.model.named_buffers())[name][0] = math.inf

    Loop().run(3, spoil=at(1, spoil))
    assert told(worker) == [("buffer", 1, "forward")]
    assert worker.harms[0].tensors[0].name == name


def test_optimizer_state_that_turns_bad(work):
    worker = work()
    loop = Loop(torch.optim.Adam)

    def spoil(loop):
        loop.optimizer.state[loop.model[2].bias]["exp_avg_sq"].fill_(math.inf)

    loop.run(20, spoil=at(2, spoil))
    assert told(worker)[0][0] == "optimizer_state"
    assert worker.harms[0].tensors[0].name == "exp_avg_sq of 2.bias"
    assert 2 <= worker.harms[0].step <= 10


def test_optimizer_state_that_was_bad_before_its_first_update(work):
    worker = work()
    loop = Loop(momentum=0.9)
    weight = loop.model[0].weight
    loop.optimizer.state[weight]["momentum_buffer"] = torch.full_like(weight, math.inf)
    loop.run(1)
    assert told(worker)[0] == ("optimizer_state", 0, "init")
    assert worker.harms[0].tensors[0].name == "momentum_buffer of 0.weight"
    assert all(one.outcome != "found" for one in worker.looked)  # what initialised the parameter is not to blame


def test_the_update_of_a_second_optimizer_belongs_to_the_step_in_which_it_is_made(work):
    worker = work()
    Loop().run(3)
    later = Loop(lr=math.inf).run(1)
    assert not torch.isfinite(later.model[0].weight).all()
    assert told(worker) == [("parameter", 3, "optimizer")]
    assert worker.looked[0].step == 3


def test_optimizer_state_that_is_loaded_bad_in_the_middle(work):
    worker = work()
    loop = Loop(momentum=0.9).run(2)
    state = loop.optimizer.state_dict()
    state["state"][0]["momentum_buffer"] = state["state"][0]["momentum_buffer"] * math.inf
    loop.optimizer.load_state_dict(state)
    loop.run(1)
    assert told(worker)[0] == ("optimizer_state", 2, "init")
    assert worker.harms[0].loaded_at.startswith("test_sentinel.py:")


def test_running_statistics_that_are_bad_at_first_sight_are_no_mask(work):
    """Training does not use them, so that neither loss nor gradients show what was loaded."""
    worker = work()
    loop = Loop()
    loop.model = nn.Sequential(nn.BatchNorm1d(3), *loop.model)
    loop.model[0].running_var[1] = math.inf
    loop.run(3)
    assert told(worker) == [("buffer", 0, "forward")]
    assert worker.harms[0].tensors[0].name == "0.running_var"


@pytest.mark.parametrize("level", ["step", "op"])
def test_an_update_is_not_made_again_of_state_that_was_loaded_bad(work, level):
    """Made of what stands in for that state it would be finite, and a write into the weights before it be blamed."""
    worker = work(level=level)
    loop = Loop(torch.optim.Adam).run(2)
    loop.model.load_state_dict({name: value + 0.0 for name, value in loop.model.state_dict().items()})
    state = loop.optimizer.state_dict()
    state["state"][0] = {name: value * math.inf for name, value in state["state"][0].items() if name != "step"}
    state["state"][0]["step"] = torch.tensor(2.0)
    loop.optimizer.load_state_dict(state)
    loop.run(1)
    assert told(worker) == [("optimizer_state", 2, "init"), ("parameter", 2, "optimizer")]
    assert worker.looked[-1].reason == "the optimizer's state was bad before this update"
    made = [one.site.source for one in worker.looked if one.outcome == "found"]
    assert ["value * math.inf" in one for one in made] == [True] * (level == "step"), made


@pytest.mark.parametrize(("spoil", "what"), [("grad", "gradient"), ("lr", "parameter")])
def test_a_resumed_step_has_one_number_before_its_update_and_after_it(work, spoil, what):
    worker = work()
    saved = Loop(torch.optim.Adam).run(5).optimizer.state_dict()
    loop = Loop(torch.optim.Adam)
    loop.optimizer.load_state_dict(saved)
    loop.run(2)
    if spoil == "lr":
        loop.optimizer.param_groups[0]["lr"] = math.inf
    loop.run(1, spoil=bad_gradient if spoil == "grad" else lambda loop: None)
    assert (worker.harms[0].what, worker.harms[0].global_step) == (what, 7)


def test_state_that_was_loaded_bad_and_mended_since_is_not_blamed(work):
    """Squares of gradients at inf move no weight, so that a script may see and mend them some steps later."""
    worker = work()
    loop = Loop(torch.optim.Adam).run(2)
    state = loop.optimizer.state_dict()
    state["state"][0]["exp_avg_sq"] = state["state"][0]["exp_avg_sq"] + math.inf
    loop.optimizer.load_state_dict(state)
    loop.run(2)
    loop.optimizer.state[loop.model[0].weight]["exp_avg_sq"].fill_(1.0)
    loop.run(1)
    loop.optimizer.param_groups[0]["lr"] = math.inf
    loop.run(1)
    assert told(worker) == [("optimizer_state", 2, "init"), ("parameter", 5, "optimizer")]
    assert worker.looked[-1].outcome == "found"


def test_a_parameter_that_is_bad_from_the_start(work):
    worker = work()
    loop = Loop()
    loop.model[2].weight.data[0, 2] = math.nan
    loop.run(1)
    assert told(worker)[0] == ("parameter", 0, "init")
    assert (worker.harms[0].tensors[0].name, worker.harms[0].since) == ("2.weight", None)


def test_large_values_are_no_harm(work):
    worker = work()

    def spoil(loop):
        for one in loop.model.parameters():
            one.grad.fill_(3e38)

    Loop(lr=0.0).run(3, spoil=spoil, loss_of=lambda loop, out: out.mean() * 1e30)
    assert worker.harms == []
    assert worker.sentinel.finish().last_finite_step == 2


def test_a_frozen_mask_and_a_running_minimum_are_no_harm(work):
    worker = work()
    loop = Loop()
    loop.model.register_buffer("mask", torch.full((3, 3), -math.inf).triu(1))
    loop.model.register_buffer("least", torch.tensor(math.inf))
    loop.run(3, spoil=lambda loop: loop.model.least.clamp_(max=float(2 - loop.step)))
    assert worker.harms == []


def test_a_bad_loss_that_the_script_leaves_out(work):
    worker = work()
    loop = Loop()
    for step in range(4):
        loss = loop.model(torch.randn(5, 3)).square().mean() * (math.nan if step == 1 else 1)
        loop.optimizer.zero_grad()
        loss.backward()
        if loss.isfinite():
            loop.optimizer.step()
    assert worker.harms == []
    assert [(event.step, event.by) for event in worker.events(Skipped)] == [(1, "script")]
    assert all(one.isfinite().all() for one in loop.model.parameters())


def test_the_first_update_on_loaded_state_is_made_again_from_that_state(work):
    """A negative second moment is finite, and its root is not."""
    saved = Loop(torch.optim.Adam).run(1).optimizer.state_dict()
    saved["state"][0]["exp_avg_sq"][1, 2] = -0.5
    worker, loop = work(), Loop(torch.optim.Adam)
    loop.optimizer.load_state_dict(saved)
    loop.run(1)
    (looked,) = worker.looked
    assert (looked.outcome, looked.phase, looked.site.op) == ("found", "optimizer", "aten.sqrt.default")
    assert looked.inputs[0].min < 0


@pytest.mark.parametrize("listed", [False, True])
def test_gradients_that_weights_were_changed_by_were_not_left_out(work, listed):
    """Sharpness-aware minimisation climbs by the first gradients, drops them, and descends by the second."""
    worker = work()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        x = torch.randn(5, 3)
        y = torch.ones(5, 1) / float(step != 1)
        (model(x) - y).square().mean().backward()
        with torch.no_grad():
            climbs = [0.05 * one.grad / one.grad.norm() for one in model.parameters()]
            if listed:
                torch._foreach_add_(list(model.parameters()), climbs)
            else:
                for one, climb in zip(model.parameters(), climbs, strict=True):
                    one.add_(climb)
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        with torch.no_grad():
            for one, climb in zip(model.parameters(), climbs, strict=True):
                one.sub_(climb)
        optimizer.step()
        optimizer.zero_grad()
    assert worker.events(Skipped) == []
    loss = worker.harms[0]
    assert (loss.what, loss.step, loss.micro_step, loss.bad) == ("loss", 1, 0, 2)
    assert (worker.looked[0].step, worker.looked[0].phase) == (1, "data")


def test_harm_that_goes_on_is_told_once(work):
    worker = work()
    Loop(lr=0.0).run(5, spoil=lambda loop: loop.model[0].bias.grad.fill_(math.inf))
    assert [what for what, _, _ in told(worker)].count("gradient") == 1


def test_harm_that_comes_back_is_told_again(work):
    worker = work()
    Loop(lr=0.1).run(5, loss_of=lambda loop, out: out.mean() + (math.inf if loop.step in (1, 2, 4) else 0))
    assert told(worker) == [("loss", 1, "loss"), ("loss", 4, "loss")]


def test_replays_are_bounded(work):
    worker = work(max_replays=2)
    Loop(lr=0.0).run(9, loss_of=lambda loop, out: out.mean() * 0 + (math.inf if loop.step % 2 else 0))
    assert len(worker.looked) == 2
    assert len(worker.harms) == 4


def test_several_optimizers_are_told_by_what_the_script_calls_them_and_their_models(work):
    worker = work(on_anomaly="continue")
    actor, critic = nn.Linear(2, 1), nn.Linear(2, 1)
    by_actor = torch.optim.SGD(actor.parameters(), lr=0.1)
    by_critic = torch.optim.Adam(critic.parameters(), lr=0.1)
    for step in range(3):
        for model, optimizer in ((critic, by_critic), (actor, by_actor)):
            (model(torch.ones(1, 2)).sum() * (math.nan if step == 2 else 1.0)).backward()
            optimizer.step()
            optimizer.zero_grad()
    told = worker.events(History)[-1]
    assert told.trainers == (Trainer("Adam", "by_critic", "critic"), Trainer("SGD", "by_actor", "actor"))
    assert told.optimizer[:2] == (0, 1)


@pytest.mark.parametrize(("bad", "counted"), [({3, 4, 7}, (3, 3, 7, 1)), (set(range(9)), (9, 0, 8, 1))])
def test_bad_losses_of_an_optimizer_behind_another_are_counted_by_its_own_steps(work, bad, counted):
    worker = work(on_anomaly="continue")
    teacher, student = nn.Linear(2, 1), nn.Linear(2, 1)
    first, second = torch.optim.SGD(teacher.parameters(), lr=0.01), torch.optim.SGD(student.parameters(), lr=0.01)
    for _ in range(12):
        teacher(torch.ones(1, 2)).sum().backward()
        first.step()
        first.zero_grad()
    for step in range(9):
        (student(torch.ones(1, 2)).sum() + (math.nan if step in bad else 0.0)).backward()
        second.step()
        second.zero_grad()
    assert worker.sentinel.finish().bad_losses == counted


def test_the_bad_loss_that_a_run_stops_at_is_one_though_its_optimizer_is_behind(work):
    worker = work(on_anomaly="stop")
    critic, actor = nn.Linear(2, 1), nn.Linear(2, 1)
    first, second = torch.optim.SGD(critic.parameters(), lr=0.01), torch.optim.SGD(actor.parameters(), lr=0.01)

    def run():
        for step in range(9):
            for model, optimizer in ((critic, first), (actor, second)):
                optimizer.zero_grad()
                bad = step == 5 and model is actor
                (model(torch.ones(1, 2)).sum() * (math.nan if bad else 1.0)).backward()
                optimizer.step()

    with pytest.raises(AnomalyStop):
        run()
    assert worker.sentinel.finish().bad_losses[0] == 1


@pytest.mark.parametrize(("bad", "counted"), [({3, 4, 5, 9}, (4, 3, 9)), ({7}, (1, 7, 7)), (set(), ())])
def test_steps_of_bad_losses_are_counted_though_the_first_alone_is_told(work, bad, counted):
    worker = work(on_anomaly="continue")

    def loss_of(loop, out):
        return out.square().mean() + (math.nan if loop.step in bad else 0.0)

    Loop().run(12, loss_of=loss_of)
    assert worker.sentinel.finish().bad_losses == counted
