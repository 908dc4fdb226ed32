"""Faults in steps of several optimizers and of closures: what the replay names, and that no bit changes."""

import torch
from torch import nn

from tests.unit.runtime.replay.faults.table import BAD, Table, data, each_of, named_without_a_trace, net

TABLE = Table()
fault = TABLE.fault


@fault("aten.log.default", "loss", module=None, step=BAD + 1)
def two_optimizers_and_the_second_is_hit():
    critic, maker = net(), nn.Linear(3, 4)
    optimizers = torch.optim.Adam(critic.parameters()), torch.optim.Adam(maker.parameters())
    for step, _, y in data():
        fake = maker(y)
        loss = critic(fake.detach()).square().mean()
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()
        loss = (critic(fake).square().mean() * (step != BAD)).log()  # <-
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
    return nn.ModuleList([critic, maker]), *optimizers


@fault("aten.log.default", "loss", module=None, step=BAD + 1)
def noise_that_is_drawn_in_the_call_of_the_maker():
    """Nobody holds the noise when the first optimizer's step is over; it is drawn again."""
    critic, maker = net(), nn.Linear(3, 4)
    optimizers = torch.optim.Adam(critic.parameters()), torch.optim.Adam(maker.parameters())
    for step, _, y in data():
        fake = maker(torch.rand(len(y), 3) + y)
        loss = critic(fake.detach()).square().mean()
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()
        loss = (critic(fake).square().mean() * (step != BAD)).log()  # <-
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
    return nn.ModuleList([critic, maker]), *optimizers


@fault("aten.log.default", "loss", module=None)
def two_optimizers_and_the_first_is_hit_while_a_graph_is_open():
    """The maker's graph, batch norm and all, is needed after the replay: no version of what it saved may move."""
    critic, maker = net(nn.BatchNorm1d(8)), nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizers = torch.optim.Adam(critic.parameters()), torch.optim.Adam(maker.parameters())
    for step, _, y in data():
        fake = maker(y)
        loss = (critic(fake.detach()).square().mean() * (step != BAD)).log()  # <-
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()
        loss = fake.square().mean()
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
    return nn.ModuleList([critic, maker]), *optimizers


@fault("aten.log.default", "loss", module=None)
def a_closure():
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    for step, x, y in data():

        def closure(x=x, y=y, step=step):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss = (loss * (step != BAD)).log() if step == BAD else loss  # <-
            loss.backward()
            return loss

        optimizer.step(closure)
    return model, optimizer


@fault("aten.log.default", "forward", module=None)
def a_closure_that_calls_no_module():
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    for step, x, y in data():

        def closure(x=x, y=y, step=step):
            optimizer.zero_grad()
            loss = (x @ model[0].weight.T @ model[-1].weight.T - y).square().mean()
            loss = (loss * (step != BAD)).log() if step == BAD else loss  # <-
            loss.backward()
            return loss

        optimizer.step(closure)
    return model, optimizer


@fault("aten.div_.Tensor", "optimizer", module=None)
def a_hook_that_the_script_gave_the_optimizer():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def normalise(optimizer, args, kwargs):
        for group in optimizer.param_groups:
            for one in group["params"]:
                one.grad.div_(one.grad.norm())  # <-

    optimizer.register_step_pre_hook(normalise)
    for step, x, y in data():
        loss = (model(x) - y).square().mean() * (step != BAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


@each_of(TABLE)
def test_the_fault_is_named_and_no_trace_left(function, expected, level, work):
    named_without_a_trace(function, expected, work, level)
