"""Sums of exponentials and of weights, mended in the line or above it."""

from dataclasses import replace

import pytest

from nandiag.analysis.causes import data_nonfinite, explain
from nandiag.events import Harm, Looked, Site
from nandiag.events.site import Around, Meaning
from tests.unit.analysis.mends.placing import first, on


@pytest.mark.parametrize(
    ("use", "bad", "told"),
    [
        ("loss = F.cross_entropy(z, y, weight=w, label_smoothing=0.1)", 2, "w[~w.isfinite()] = 0"),
        ("criterion = nn.BCEWithLogitsLoss(pos_weight=w)", 2, "w[~w.isfinite()] = 0"),
        ("loss = F.mse_loss(model(w), y)", 2, "assert torch.isfinite(w).all()"),
        ("loss = F.cross_entropy(z, y, weight=w)", 16, "assert torch.isfinite(w).all()"),
    ],
    ids=["in a call", "in a module", "a sample", "nothing of it is left"],
)
def test_weights_of_a_loss_are_no_samples(at, by_hand, use, bad, told):
    line = "w = torch.tensor(n / counts)"
    facts = at(None, (), (by_hand.fact(posinf=bad),), phase="data", **on(line, "torch.tensor(n / counts)"))
    site = Site(around=Around(uses=(use,)))
    look = Looked("found", "record", 0, source="outside", site=site, facts={"birth": "outside"})
    found = data_nonfinite.explain(replace(facts, look=look))
    assert [one.code for one in found.suggestions] == [told]


def of_exponentials(at, by_hand, line, expression, op="div"):
    given = (by_hand.fact(zeros=9, min=0.0), by_hand.fact(zeros=2, min=0.0))
    extra = {"vanished": -104.25, "vanished_at": ["train.py", 5]}
    return at(op, given, (by_hand.fact(nan=3),), extra=extra, **on(line, expression))


@pytest.mark.parametrize(
    ("line", "code"),
    [("a = w / total[dst]", None), ("a = w / w.sum(1, keepdim=True)", "torch.softmax(score, dim=1)")],
)
def test_exponentials_that_vanish_are_shifted_and_their_sum_is_not_bent(at, by_hand, line, code):
    _, cause = explain(of_exponentials(at, by_hand, line, line[4:]))
    assert cause.suggestions[0].code == code
    assert not any("clamp" in (one.code or "") for one in cause.suggestions)
    assert "line 5 the largest" in cause.suggestions[-1].text
    assert any("alone in line 5; those of -104.2 and below are 0 in float32" in one for one in cause.evidence)


def test_exponentials_that_are_divided_by_their_sums_in_turn_are_kept_as_logarithms(at, by_hand):
    line = "q /= q.sum(1, keepdim=True)"
    (help,) = explain(of_exponentials(at, by_hand, line, line, "div_"))[1].suggestions  # noqa: A001 - what it is
    assert "subtract torch.logsumexp" in help.text
    assert help.code is None


@pytest.mark.parametrize(
    ("line", "numel", "code"),
    [
        ("p.mul_(weight / total)", 1, "if total == 0: return self.model"),
        ("loss = loss_sum / total", 1, "loss = loss_sum / total.clamp_min(1e-6)"),
        ("p.mul_(weight / total)", 8, "p.mul_(weight / total.clamp_min(1e-6))"),
    ],
)
def test_a_weight_of_nothing_does_not_wipe_out_what_it_weighs(at, by_hand, line, numel, code):
    given = (by_hand.fact(zeros=numel, shape=(numel,), min=0.0), by_hand.fact(zeros=numel, shape=(numel,), min=0.0))
    expression = line[line.index("weight") if "weight" in line else line.index("loss_") :].rstrip(")")
    facts = at("div", given, (by_hand.fact(nan=numel, shape=(numel,)),), **on(line, expression), function="aggregate")
    facts = replace(facts, look=replace(facts.look, site=Site(around=Around(ends="self.model"))))
    assert first(facts) == code


def test_gradients_that_are_clipped_by_hand_are_0_where_their_norm_is(at, by_hand):
    line = "p.grad.mul_(max_norm / total)"
    given = (by_hand.fact(zeros=1, shape=(), min=0.0, max=0.0),)
    place = {**on(line, "max_norm / total"), "phase": "optimizer", "function": "clip_"}
    facts = at("reciprocal", given, (by_hand.fact(posinf=1, shape=()),), **place)
    facts = replace(facts, look=replace(facts.look, site=Site(around=Around(ends="total"))))
    assert first(facts) == "p.grad.mul_(max_norm / total.clamp_min(1e-6))"


@pytest.mark.parametrize(
    ("what", "bad", "step", "leaves"),
    [
        ("gradient", {"nan": 4}, 5, False),
        ("gradient", {"posinf": 4}, 5, True),
        ("gradient", {"nan": 4}, 6, True),
        ("parameter", {"nan": 4}, 5, True),
    ],
)
def test_gradients_under_another_name_that_are_0_stay_so_by_any_factor(at, by_hand, what, bad, step, leaves):
    given = (by_hand.fact(zeros=1, shape=(), min=0.0, max=0.0),)
    place = {**on("g.mul_(limit / total)", "limit / total"), "phase": "optimizer", "function": "clip_"}
    facts = at("reciprocal", given, (by_hand.fact(posinf=1, shape=()),), **place)
    harm = Harm(what, step, "optimizer", (by_hand.fact("w", **bad),), 1, 4)
    facts = replace(facts, harm=harm, look=replace(facts.look, site=Site(around=Around(ends=""))))
    assert first(facts) == ("if total == 0: return" if leaves else "g.mul_(limit / total.clamp_min(1e-6))")


@pytest.mark.parametrize(
    ("made", "lacks"),
    [("torch.stack(norms).norm()", "no direction to go in"), ("sum(weights)", "nothing to average")],
)
def test_a_step_of_a_given_length_has_no_direction_where_the_norm_is_zero(at, by_hand, made, lacks):
    given = (by_hand.fact(zeros=1, shape=(), min=0.0, max=0.0),)
    place = {**on("e.mul_(self.rho / total)", "self.rho / total"), "phase": "optimizer", "function": "ascent"}
    facts = at("reciprocal", given, (by_hand.fact(posinf=1, shape=()),), **place)
    around = Around((Meaning("total", made, "train.py", 3),), ends="")
    told = explain(replace(facts, look=replace(facts.look, site=Site(around=around))))[1].suggestions[0]
    assert told.code == "if total == 0: return"
    assert f"Where total is zero there is {lacks}: leave" in told.text


def test_a_function_is_left_only_where_it_is_known_what_it_hands_back(at, by_hand):
    given = (by_hand.fact(zeros=4, shape=(4,)), by_hand.fact(shape=(), zeros=1))
    facts = at("div", given, (by_hand.fact(nan=4, shape=(4,)),), **on("t.copy_(s / n)", "s / n"), function="teacher")
    for ends, code in ((None, None), ("", "if n == 0: return"), ("self.model", "if n == 0: return self.model")):
        told = replace(facts, look=replace(facts.look, site=Site(around=Around(ends=ends))))
        assert first(told) == code


def test_xlog1py_at_minus_one_is_a_logarithm_of_zero(at, by_hand):
    line = "y = torch.special.xlog1py(a, b)"
    given = (by_hand.fact(), by_hand.fact(min=-1.0, max=2.0))
    facts = at("special_xlog1py", given, (by_hand.fact(neginf=1),), **on(line, "torch.special.xlog1py(a, b)"))
    assert explain(facts)[1].slug == "log_of_zero"
    assert first(facts) == "y = torch.special.xlog1py(a, b.clamp_min(-1 + 1e-6))"
