"""The scale of an affine map is bounded for its exponential and for its log-determinant alike."""

import pytest
import torch

from nandiag.analysis.causes import explain
from tests.unit.analysis.mends.test_log_space import facts_on
from tests.unit.analysis.mends.told import advice, on, placed

AHEAD = "s, t = self.net(x).chunk(2, -1)\n"


def first_help(at, by_hand, text, line, expression):
    return explain(facts_on(at, by_hand, text, line, expression))[1].suggestions[0]


@pytest.mark.parametrize(
    ("own", "behind", "expression"),
    [
        ("y = x * torch.exp(s) + t", "return y, s.sum(-1)", "torch.exp(s)"),
        ("y = torch.exp(-s) * (x - t)", "return y, -torch.sum(s, dim=1)", "torch.exp(-s)"),
        ("y = t + x * s.exp()", "det = det + s.flatten(1).sum(1) + s.sum()", "s.exp()"),
        ("y = x * torch.exp(s)", "return (y, s)", "torch.exp(s)"),
    ],
)
def test_what_is_summed_as_it_is_is_bounded_before_the_line(at, by_hand, own, behind, expression):
    told = first_help(at, by_hand, f"{AHEAD}{own}\n{behind}", 2, expression)
    assert told.code == f"s = 2 * torch.tanh(s / 2)\n{own}"
    assert told.text.startswith("s is what the exponential is taken of")


@pytest.mark.parametrize(
    ("own", "behind", "expression"),
    [
        ("y = x * torch.exp(s) + t", "return y, t.sum(-1)", "torch.exp(s)"),
        ("y = torch.exp(s)", "return y, s.sum(-1)", "torch.exp(s)"),
        ("y = 0.1 * torch.exp(s)", "return y, s.sum(-1)", "torch.exp(s)"),
        ("y = x * torch.exp(s[0])", "return y, s.sum(-1)", "torch.exp(s[0])"),
        ("y = x * torch.exp(s)", "return (y - k * s).mean()", "torch.exp(s)"),
    ],
)
def test_other_exponentials_have_their_own_bound(at, by_hand, own, behind, expression):
    told = first_help(at, by_hand, f"{AHEAD}{own}\n{behind}", 2, expression)
    assert "tanh" not in (told.code or "")


def test_with_the_bound_both_are_finite_whatever_goes_in():
    s = torch.tensor([-1e4, 0.0, 1e4])
    bounded = 2 * torch.tanh(s / 2)
    assert torch.isfinite(torch.exp(bounded)).all()
    assert bounded.abs().max() <= 2


KENDALL = "torch.exp(-s[0])"


@pytest.mark.parametrize(
    ("line", "expression", "bound"),
    [
        ("loss = torch.exp(-s[0]) * a + s[0] + torch.exp(-s[1]) * b + s[1]", KENDALL, "s = s.clamp(min=-10)"),
        ("loss = 0.5 * (s + torch.exp(-s) * a)", "torch.exp(-s)", "s = s.clamp(min=-10)"),
        ("return w.exp() * a - 0.5 * w", "w.exp()", "w = w.clamp(max=10)"),
    ],
)
def test_what_weighs_a_loss_and_is_added_to_it_is_bounded_for_both(at, by_hand, line, expression, bound):
    told = first_help(at, by_hand, f"{line}\nloss.backward()", 1, expression)
    assert told.code == f"{bound}\n{line}"


@pytest.mark.parametrize(
    "line",
    [
        "loss = torch.exp(-s[0]) * a",
        "loss = torch.exp(-s[0]) + a",
        "loss = torch.exp(-s[0]) * a - s[0]",
    ],
)
def test_an_exponential_that_is_a_part_of_the_loss_is_bounded_itself(at, by_hand, line):
    given, bad = by_hand.fact(shape=(), max=90.0, absmax=90.0), by_hand.fact(shape=(), posinf=1)
    facts = at("exp", (given,), (bad,), **placed(line, KENDALL), extra={"of_weights": True})
    told = advice(on(facts, uses=("loss.backward()",)))[0]
    assert told.code == line.replace("-s[0])", "(-s[0]).clamp(max=20))", 1)


@pytest.mark.parametrize(
    "behind",
    [
        "return 0.5 * (precision * (y - mean) ** 2 + logvar).mean()",
        "loss = (precision * (y - mean) ** 2).sum() + logvar.sum()",
    ],
)
def test_a_log_variance_whose_exponential_has_a_name_is_bounded_for_both(at, by_hand, behind):
    line = "precision = torch.exp(-logvar)"
    given, bad = by_hand.fact(min=88.9, max=92.0, absmax=92.0), by_hand.fact(posinf=16)
    facts = at("exp", (given,), (bad,), **placed(line, "torch.exp(-logvar)"), extra={"of_weights": True})
    (told,) = advice(on(facts, uses=(behind,)))
    assert told.code == f"logvar = logvar.clamp(min=-10)\n{line}"
    names = {"torch": torch, "logvar": torch.tensor([-92.0, -88.0, 0.0])}
    exec(told.code, names)  # noqa: S102
    assert names["precision"].isfinite().all()


@pytest.mark.parametrize(("nodes", "told"), [(["SumBackward1"], True), (["NegBackward0", "AddmmBackward0"], False)])
def test_a_mean_in_the_place_of_a_sum_is_told_where_there_is_a_sum(at, by_hand, nodes, told):
    line = "w = torch.exp(z)"
    given, bad = by_hand.fact(min=88.9, max=92.0, absmax=92.0), by_hand.fact(posinf=16)
    extra = {"of_weights": True, "made_by": nodes}
    facts = at("exp", (given,), (bad,), **placed(line, "torch.exp(z)"), extra=extra)
    assert any("by a mean in the place of the sum" in one.text for one in advice(on(facts))) is told
