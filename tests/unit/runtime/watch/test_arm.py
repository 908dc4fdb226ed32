"""Arming: what is put into torch, that it bears the names of what it wraps, and that the tests take it out again."""

import sys
import types
import warnings

import torch

from nandiag.runtime.watch.arm import arm


def namespaces():
    """Every module of torch and every class in one, by name, with what they hold."""
    found = {}
    for name, module in list(sys.modules.items()):
        if isinstance(module, types.ModuleType) and name.partition(".")[0] in {"torch", "warnings"}:
            held = vars(module)
            found[name] = held
            classes = [one for one in held.values() if issubclass(type(one), type) and one.__module__ == name]
            found.update({f"{name}.{one.__qualname__}": vars(one) for one in classes})
    return {name: dict(held) for name, held in found.items()}


def changed(before, after):
    return {
        f"{name}.{key}"
        for name in before.keys() & after.keys()
        for key in before[name].keys() & after[name].keys()
        if before[name][key] is not after[name][key] and not key.startswith(("_abc", "__abstractmethods__", "next_id"))
    }


def test_all_that_arming_replaces_is_put_back_by_these_tests(recording, as_it_was):
    recording()
    with as_it_was():  # what arming imports for the first time is imported now
        arm().capture.training()
    before = namespaces()
    with as_it_was():
        arm().capture.training()
        armed = changed(before, namespaces())
    assert {
        "torch.autograd.backward",
        "torch.Tensor.backward",
        "torch.nn.modules.module.Module.__call__",
    } <= armed
    assert changed(before, namespaces()) == set()


def test_a_wrap_looks_like_what_it_wraps(work):
    before = {name: getattr(torch.optim.Optimizer, name) for name in ("zero_grad", "__init__")}
    backward, grad, clip = torch.autograd.backward, torch.autograd.grad, torch.nn.utils.clip_grad_norm_
    work()
    for now, then in (
        (torch.autograd.backward, backward),
        (torch.autograd.grad, grad),
        (torch.nn.utils.clip_grad_norm_, clip),
        (torch.optim.Optimizer.zero_grad, before["zero_grad"]),
        (torch.optim.Optimizer.__init__, before["__init__"]),
    ):
        assert now is not then
        assert (now.__name__, now.__doc__) == (then.__name__, then.__doc__)


def test_arming_is_silent(work, capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        work()
    assert capfd.readouterr() == ("", "")
