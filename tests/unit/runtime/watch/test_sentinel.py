"""The armed sentinel in ordinary loops: what it calls harm, what not, what the policies do, and that it fails open."""

import gc
import math
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from nandiag.events import Armed, Finished, History, Note, ProbeDark, Skipped, Stopping
from nandiag.runtime.inject import ending
from nandiag.runtime.public import AnomalyStop
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.watch.judge import learning_rate
from nandiag.runtime.watch.sentinel import Sentinel


class Loop:
    """A small training loop; ``spoil(step, self)`` may do harm before the step."""

    def __init__(self, optimizer=torch.optim.SGD, **options):
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.optimizer = optimizer(self.model.parameters(), **{"lr": 0.1, **options})
        self.step = 0

    def run(self, steps, *, spoil=lambda loop: None, loss_of=lambda loop, out: out.square().mean()):
        for _ in range(steps):
            loss = loss_of(self, self.model(torch.randn(5, 3)))
            self.optimizer.zero_grad()
            loss.backward()
            spoil(self)
            self.optimizer.step()
            self.step += 1
        return self

    @property
    def bits(self):
        tensors = [*self.model.state_dict().values(), *(one.grad for one in self.model.parameters())]
        return [None if one is None else one.reshape(-1).view(torch.uint8).tolist() for one in tensors]


def at(step, action):
    return lambda loop: action(loop) if loop.step == step else None


def bad_gradient(loop):
    loop.model[0].bias.grad[1] = math.nan


def told(worker):
    return [(harm.what, harm.step, harm.phase) for harm in worker.harms]


# ---------------------------------------------------------------------- what is harm


def test_a_healthy_run_says_nothing_and_is_counted(work):
    worker = work()
    Loop(torch.optim.Adam).run(4)
    assert worker.harms == []
    assert worker.looked == []
    assert worker.events(ProbeDark) == []
    (armed,) = worker.events(Armed)
    assert armed.torch == torch.__version__
    assert worker.sentinel.finish() == Finished(steps=4, skips=0, last_finite_step=3)
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
    assert not any(one.outcome == "found" for one in worker.looked)


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


# ---------------------------------------------------------------------- steps of all sorts


def test_without_an_optimizer_each_backward_is_a_step(work):
    worker = work()
    weight = torch.ones(3, requires_grad=True)
    for step in range(3):
        weight.grad = None
        (weight.sum() * (math.nan if step == 1 else 1)).backward()
        with torch.no_grad():
            weight -= 0.0 * weight.grad.nan_to_num()
    assert told(worker) == [("loss", 1, "loss"), ("gradient", 1, "backward")]
    assert worker.sentinel.finish().steps == 3


@pytest.mark.parametrize("positional", [True, False])
def test_a_closure_brings_the_gradients(positional, work):
    worker = work()
    loop = Loop(torch.optim.LBFGS, max_iter=3)
    calls = []

    def closure():
        calls.append(1)
        loop.optimizer.zero_grad()
        loss = loop.model(torch.randn(5, 3)).square().mean() * (math.nan if len(calls) == 2 else 1)
        loss.backward()
        return loss

    returned = loop.optimizer.step(closure) if positional else loop.optimizer.step(closure=closure)
    assert isinstance(returned, torch.Tensor)
    assert told(worker)[0] == ("loss", 0, "loss")


def test_a_step_that_raised_is_followed_by_one_that_is_watched(work):
    worker = work()

    class Fussy(torch.optim.SGD):
        fuss = False

        def step(self, closure=None):
            if self.fuss:
                raise ValueError("fussy")
            return super().step(closure)

    loop = Loop(Fussy).run(1)
    for _ in range(3):
        loop.optimizer.fuss = True
        with pytest.raises(ValueError, match="fussy"):
            loop.run(1)
    loop.optimizer.fuss = False
    loop.run(2, spoil=at(2, bad_gradient))
    assert told(worker)[0] == ("gradient", 2, "backward")


def test_an_optimizer_within_an_optimizer_is_one_step(work):
    worker = work()

    class Outer(torch.optim.Optimizer):
        def __init__(self, params, lr):
            params = list(params)
            super().__init__(params, {"lr": lr})
            self.inner = torch.optim.SGD(params, lr=lr)

        def step(self, closure=None):
            return self.inner.step(closure)

    Loop(Outer).run(3)
    assert worker.sentinel.finish().steps == 3


def test_a_backward_call_that_makes_the_updates_itself_is_the_first_of_its_step(work):
    worker = work(on_anomaly="continue")
    model = torch.nn.Linear(4, 1)
    each = {one: torch.optim.SGD([one], lr=0.1) for one in model.parameters()}
    for one in model.parameters():
        one.register_post_accumulate_grad_hook(lambda one: each[one].step())
    for scale in (1.0, 1.0, math.inf):
        model(torch.ones(3, 4)).mean().mul(scale).backward()
    assert (worker.harms[0].step, worker.harms[0].micro_step) == (2, 0)


def test_gradient_accumulation_counts_micro_steps(work):
    worker = work()
    loop = Loop()
    for part in range(3):
        (loop.model(torch.randn(5, 3)).mean() + (math.nan if part == 2 else 0)).backward()
    loop.optimizer.step()
    assert worker.harms[0].micro_step == 2


def test_a_run_that_an_update_spoils_is_stopped_in_the_step_of_that_update(work):
    worker = work(on_anomaly="auto")
    loop = Loop()
    loop.run(2)
    loop.optimizer.param_groups[0]["lr"] = math.inf
    with pytest.raises(AnomalyStop):
        loop.run(1)
    (stopping,) = worker.events(Stopping)
    assert {harm.step for harm in worker.harms} == {stopping.step} == {2}


# ---------------------------------------------------------------------- the loss scale


def scaled(worker, loop, steps, loss_of, scale=2.0**10):
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)
    for _ in range(steps):
        out = loop.model(torch.randn(5, 3))
        loop.optimizer.zero_grad()
        scaler.scale(loss_of(loop, out)).backward()
        scaler.step(loop.optimizer)
        scaler.update()
        loop.step += 1
    return scaler


def test_a_search_for_the_loss_scale_is_no_harm(work):
    worker = work()
    loop = Loop()
    scaled(worker, loop, 6, lambda loop, out: out.square().mean() * 1e3, scale=2.0**127)
    assert worker.harms == []
    skips = worker.events(Skipped)
    assert skips
    assert {event.by for event in skips} == {"scaler"}
    assert skips[0].scale == 2.0**127
    assert worker.sentinel.finish().steps == 6 - len(skips)


def test_a_plain_loss_that_is_bad_is_harm_though_the_scaler_skips(work):
    worker = work()
    loop = Loop()
    scaled(worker, loop, 3, lambda loop, out: out.square().mean() * (math.nan if loop.step == 1 else 1))
    assert told(worker)[0] == ("loss", 1, "loss")
    assert all(one.isfinite().all() for one in loop.model.parameters())


def test_the_history_holds_the_plain_loss_and_the_scale(work):
    worker = work()
    scaled(worker, Loop(), 2, lambda loop, out: out.mean() * 0 + 2)
    worker.sentinel.finish()
    history = worker.events(History)[-1]
    assert history.loss == (2.0, 2.0)
    assert history.scale == (1024.0, 1024.0)


# ---------------------------------------------------------------------- policies


@pytest.fixture
def kept_ending(monkeypatch):
    monkeypatch.setattr(ending, "_state", dict(ending._state))


@pytest.mark.parametrize("policy", ["auto", "stop"])
def test_a_stop_comes_before_the_weights_change(policy, work, kept_ending):
    worker = work(on_anomaly=policy)
    loop = Loop()
    with pytest.raises(AnomalyStop):
        loop.run(3, spoil=at(1, bad_gradient))
    assert loop.step == 1
    assert all(one.isfinite().all() for one in loop.model.parameters())
    (stopping,) = worker.events(Stopping)
    assert (stopping.step, stopping.policy, stopping.action) == (1, policy, "stop")
    assert stopping.reason == "non-finite gradient (0.bias)"


def test_auto_goes_on_while_the_weights_are_safe_and_stop_does_not(work, kept_ending):
    def loss_of(loop, out):
        return out.mean() + (math.inf if loop.step == 1 else 0)

    work(on_anomaly="auto")
    assert Loop().run(3, loss_of=loss_of).step == 3


def test_stop_at_a_bad_loss(work, kept_ending):
    work(on_anomaly="stop")
    with pytest.raises(AnomalyStop):
        Loop().run(3, loss_of=lambda loop, out: out.mean() + (math.inf if loop.step == 1 else 0))


def test_a_skip_leaves_weights_and_gradients_as_they_are(work):
    worker = work(on_anomaly="skip")
    loop = Loop(torch.optim.Adam)
    kept = []

    def spoil(loop):
        bad_gradient(loop)
        kept.append([one.detach().clone() for one in loop.model.parameters()])

    loop.run(2, spoil=at(1, spoil))
    assert all(torch.equal(one, before) for one, before in zip(loop.model.parameters(), kept[0], strict=True))
    assert loop.model[0].bias.grad.isnan().sum() == 1
    assert {state["step"].item() for state in loop.optimizer.state.values()} == {1}
    loop.run(1)
    assert all(one.isfinite().all() for one in loop.model.parameters())
    assert [event.action for event in worker.events(Stopping)] == ["skip"]
    assert worker.sentinel.finish().steps == 2


# ---------------------------------------------------------------------- fail open

PROBES = {
    "before_step": Sentinel, "after_step": Sentinel, "backward_begins": Sentinel, "backward_ended": Sentinel,
    "gradients_dropped": Sentinel, "root_begins": Capture, "root_ends": Capture, "backward_ends": Capture,
    "step_ends": Capture,
}  # fmt: skip


def breaks(*_, **__):
    raise ZeroDivisionError("a fault of ours")


@pytest.mark.parametrize("name", PROBES)
def test_a_fault_in_any_hook_of_ours_leaves_the_training_as_it_is(name, work, monkeypatch):
    torch.manual_seed(1)
    plain = Loop(torch.optim.Adam).run(4).bits
    inner = {"root_begins": "_habit", "root_ends": None, "backward_ends": None, "step_ends": "_keep_to_budget"}
    if name == "root_ends":
        monkeypatch.setattr("nandiag.runtime.tape.entries.Tape.made", breaks)
    elif name == "backward_ends":
        monkeypatch.setattr("nandiag.runtime.tape.window.Window.open", breaks)
    else:
        monkeypatch.setattr(PROBES[name], inner.get(name, name), breaks)
    worker = work()
    torch.manual_seed(1)
    assert Loop(torch.optim.Adam).run(4).bits == plain
    assert worker.events(ProbeDark)[0].reason.startswith("ZeroDivisionError: a fault of ours")
    assert torch._C._len_torch_function_stack() == 0 or worker.capture.window.on


def test_a_full_disk_leaves_the_training_as_it_is(work, monkeypatch):
    torch.manual_seed(1)
    plain = Loop().run(4, spoil=at(1, bad_gradient)).bits
    work()
    monkeypatch.setattr("os.write", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    torch.manual_seed(1)
    watched = Loop().run(4, spoil=at(1, bad_gradient)).bits
    monkeypatch.undo()
    assert watched == plain


def test_a_mute_process_is_not_watched(work):
    worker = work()
    RECORDER.mute = True
    Loop().run(2, spoil=bad_gradient)
    RECORDER.mute = False
    assert worker.harms == []


def test_notes_are_not_needed_for_a_clean_run(work):
    worker = work()
    Loop().run(3)
    worker.sentinel.finish()
    assert worker.events(Note) == []


def test_a_scripted_module_beside_the_model_disarms_nothing(work):
    worker = work()
    scripted = torch.jit.script(torch.nn.BatchNorm1d(3))
    Loop().run(3, loss_of=lambda loop, out: out.mean() * (math.nan if loop.step == 1 else 1))
    assert worker.events(ProbeDark) == []
    assert worker.harms[0].step == 1
    del scripted


class Around(torch.optim.Optimizer):
    """Steps another optimizer in its own step."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self):
        self.inner.step()


@pytest.mark.parametrize("around", [False, True])
def test_a_model_that_the_script_lets_go_of_is_gone_with_its_optimizer(work, around):
    worker = work()

    def fold():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.Adam(model.parameters())
        optimizer = Around(optimizer) if around else optimizer
        for _ in range(2):
            model(torch.ones(2, 4)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return weakref.ref(model), weakref.ref(optimizer), weakref.ref(model.weight)

    left = fold()
    gc.collect()
    assert [one() for one in left] == [None, None, None]
    assert worker.sentinel.finish().steps == 2
