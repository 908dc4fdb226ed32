"""Rows of a weight-normalised direction that were set to 0: the lines that keep them pruned, and finite."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from nandiag.analysis.causes import explain
from nandiag.analysis.causes.mends.divisors import zero_weights
from nandiag.analysis.causes.mends.script import naming
from nandiag.events import Harm
from tests.unit.analysis.mends.told import on


def told(at, by_hand, parts, *, shape=(4, 4), lengths=(4, 1), model="net"):
    given = by_hand.fact(f"a.{parts[0]}", zeros=4, shape=shape), by_hand.fact(f"a.{parts[1]}", shape=lengths)
    facts = at("_weight_norm_interface", given, (by_hand.fact(nan=4, shape=shape),), step=16)
    harm = Harm("gradient", 16, "backward", (), 1, 1, names={"model": model} if model else {})
    return explain(replace(facts, harm=harm))[1].suggestions[0]


def pruned(old):
    torch.manual_seed(0)
    with pytest.warns(FutureWarning) if old else torch.no_grad():
        wrap = nn.utils.weight_norm if old else parametrizations.weight_norm
        net = nn.Sequential(wrap(nn.Linear(3, 4)), nn.Tanh(), wrap(nn.Linear(4, 2)))
    direction = net[0].weight_v if old else net[0].parametrizations.weight.original1
    direction.data[1] = 0.0
    return net


@pytest.mark.parametrize("old", [False, True])
def test_the_lines_for_pruned_rows_leave_them_at_0_with_finite_gradients(at, by_hand, old):
    parts = ("weight_v", "weight_g") if old else [f"parametrizations.weight.original{one}" for one in (1, 0)]
    net = pruned(old)
    names = {"net": net, "p": 1, "v": 2, "gone": 3, "one": 4}
    exec(told(at, by_hand, parts).code, names)  # noqa: S102 - the help is to run as it is pasted
    assert [names[one] for one in ("p", "v", "gone", "one")] == [1, 2, 3, 4]
    made = net(torch.ones(2, 3))
    made.sum().backward()
    assert net[0].weight[1].tolist() == [0.0, 0.0, 0.0]
    assert all(one.grad.isfinite().all() for one in net.parameters())
    assert made.isfinite().all()


@pytest.mark.parametrize("words", [{"model": None}, {"shape": (4, 4), "lengths": (1, 4)}])
def test_without_a_name_for_the_model_or_of_columns_there_are_no_such_lines(at, by_hand, words):
    assert told(at, by_hand, ("weight_v", "weight_g"), **words).code is None


@pytest.mark.parametrize(("name", "free"), [("x", "pruned"), ("pruned_v", "zeroed")])
def test_no_name_of_the_script_is_written_over(at, by_hand, name, free):
    facts = at("_weight_norm_interface", (by_hand.fact(),), (by_hand.fact(nan=1),), text="y = self.a(x)")
    assert naming.free(on(facts, (name, "f(x)")), zero_weights._PREFIXES, begins=True) == free
