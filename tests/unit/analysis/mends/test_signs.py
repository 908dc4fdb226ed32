"""What leads the argument of a logarithm below zero: weights, or what came with the data."""

from dataclasses import replace

import pytest

from nandiag.analysis import analyse
from nandiag.analysis.causes import explain
from nandiag.events import Around, Meaning, Site, Statement, Warned
from tests.unit.analysis.mends.told import advice, on, placed

LINE = "nll = nll + 0.5 * (torch.log(s) + v**2 / s)"
NAMES = (("s", "p + r * var_scale[:, t]"), ("r", "self.log_r.exp()"))


def below(at, by_hand, line, expression, *names, made_by=(), warned=()):
    facts = at("log", (by_hand.fact(min=-5.1, max=-5.0),), (by_hand.fact(nan=1),), **placed(line, expression),
               extra={"of_weights": True, "made_by": list(made_by)})  # fmt: skip
    return replace(on(facts, *names), warned=warned)


def texts(facts):
    return [one.text for one in explain(facts)[1].suggestions]


@pytest.mark.parametrize(
    ("names", "made_by", "first"),
    [
        (NAMES, ("AddBackward0",), "r is above zero by itself: look at p, var_scale, which of them goes below."),
        (NAMES[:1], ("AddBackward0",), "It is made of weights: where nothing keeps these above zero"),
        (NAMES[:1], ("AddBackward0", "ExpBackward0"), "Find out why the value leaves the domain"),
        ((("s", "a.exp() - b.exp()"),), ("SubBackward0",), "Find out why the value leaves the domain"),
        (
            (("s", "gap.clamp_min(-1) + 0.6 - i * 0.02"), ("gap", "torch.exp(h) - margin")),
            ("SubBackward0",),
            "Find out why the value leaves the domain",
        ),
        (
            (("s", "mu + r * (past * torch.exp(-d)).sum(1)"), ("r", "self.log_r.exp()"), ("past", "(d > 0).float()")),
            ("AddBackward0",),
            "r is above zero by itself: look at mu.",
        ),
        ((("s", "F.softplus(a) * x"),), ("MulBackward0",), "F.softplus(a) is above zero by itself: look at x."),
    ],
)
def test_weights_are_not_told_to_lack_an_exponential_that_they_have(at, by_hand, names, made_by, first):
    assert texts(below(at, by_hand, LINE, "torch.log(s)", *names, made_by=made_by))[0].startswith(first)


@pytest.mark.parametrize(
    ("name", "step", "others", "first"),
    [
        ("var_scale", 5, 7, "All of the batch is unlike those before, and goes into this: look at what var_scale"),
        ("var_scale", 5, 0, "Sensors[11] is unlike those before"),
        ("var_scale", 4, 7, "r is above zero"),
        ("y", 5, 7, "r is above zero"),
    ],
)
def test_a_batch_that_made_what_is_below_zero_leads_and_is_not_clipped(by_hand, name, step, others, first):
    """The bound on its size would leave it where it is: below zero."""
    facts = {"size": 9.0, "largest": 2.0, "batches": 5, "samples": 8, "sample": 0, "others": others,
             "dataset": "Sensors", "index": 11}  # fmt: skip
    at = LINE.index("torch.log(s)")
    around = Around(tuple(Meaning(one, text, "kf.py", 3) for one, text in NAMES))
    site = Site("", "KalmanFilter", "aten.log.default", file="kf.py", line=22, column=(at, at + 12), source=LINE,
                around=around)  # fmt: skip
    look = by_hand.found(
        5, phase="forward", site=site, inputs=(by_hand.fact(min=-5.1, max=-5.0),), outputs=(by_hand.fact(nan=8),),
        facts={"of_weights": True, "made_by": ["AddBackward0"]},
    )  # fmt: skip
    log = by_hand.rank(0, Warned("batch_outlier", step, facts, name), by_hand.loss(5), look, world=1)
    told = analyse(by_hand.run(log, world=1)).verdict.suggestions
    assert told[0].text.startswith(first)
    assert step == 4 or name == "y" or not any("var_scale = var_scale.clamp" in (one.code or "") for one in told)


@pytest.mark.parametrize(
    ("phase", "made_by", "first"),
    [
        ("loss", ("DivBackward0", "AddmmBackward0"), "It is made of the model's output, which may have any sign: let "),
        ("forward", ("MulBackward0", "ConvolutionBackward0"), "It is made of what a layer gives, which may have any"),
        ("loss", ("DivBackward0", "torch::autograd::AccumulateGrad"), "It is made of weights: where nothing keeps"),
    ],
)
def test_what_a_layer_gives_is_not_told_as_weights(at, by_hand, phase, made_by, first):
    facts = at("log", (by_hand.fact(min=-46.0, max=-1.4),), (by_hand.fact(nan=12),),
               **{**placed("r = torch.log(out / y)", "torch.log(out / y)"), "phase": phase},
               extra={"of_weights": True, "made_by": list(made_by)})  # fmt: skip
    assert texts(facts)[0].startswith(first)


@pytest.mark.parametrize(
    ("least", "largest", "first"),
    [
        (
            -0.05,
            1.0,
            "self.var is as low as -0.05, by more than rounding makes: find out why in lines 9 and 17, which ",
        ),
        (-1e-5, 1.0, "Find out why the value leaves the domain; where rounding alone does it, clamp it."),
        (-0.05, 1e4, "Find out why the value leaves the domain; where rounding alone does it, clamp it."),
    ],
)
def test_what_rounding_does_not_explain_is_looked_for_where_the_script_writes_it(at, by_hand, least, largest, first):
    line = "return (x - self.mean) / self.var.sqrt()"
    given = (by_hand.fact(min=least, max=largest, absmax=largest),)
    facts = at("sqrt", given, (by_hand.fact(nan=1),), **placed(line, line[25:]))
    told = explain(on(facts, written=[("self.var", (9, 17))]))[1].suggestions
    assert told[0].text.startswith(first)
    assert told[-1 if least < -1e-4 else 0].code == "return (x - self.mean) / self.var.clamp_min(1e-12).sqrt()"


@pytest.mark.parametrize(("outlive", "clamped"), [(("P", "m", "nll"), False), ((), True)])
def test_what_is_made_of_a_state_that_goes_on_is_not_bounded_beside_the_weights(at, by_hand, outlive, clamped):
    lines = ("S = P + r", "nll = nll + torch.log(S) + e / S", "m, P = m + P / S * e, (1 - P / S) * P")
    facts = at("log", (by_hand.fact(min=-0.28, max=-0.28, shape=()),), (by_hand.fact(nan=1, shape=()),),
               extra={"of_weights": True, "made_by": ["AddBackward0", "MulBackward0"]}, line=20,
               **{**placed(lines[1], "torch.log(S)"), "phase": "forward"})  # fmt: skip
    block = tuple(Statement(19 + number, line) for number, line in enumerate(lines))
    around = Around((Meaning("S", "P + r", "train.py", 19),), block=block, outlive=outlive)
    told = advice(replace(facts, look=replace(facts.look, site=Site(around=around))))
    assert told[0].text.startswith("It is made of weights")
    assert any("clamp" in (one.code or "") for one in told) is clamped
