"""Mends in the names of the script: lines that compute the like, calls that are made once, torch's own functions."""

from dataclasses import replace

import pytest
import torch

from nandiag.analysis import analyse
from nandiag.analysis.causes import explain
from nandiag.events import Alike, Around, Meaning, Site, Statement
from tests.unit.analysis.mends.told import advice, logarithm, on, placed, quotient

# ---------------------------------------------------------------------- what is called once


@pytest.mark.parametrize("scores", ["net(x)", "self.head(h)", "F.dropout(z)", "z + torch.rand_like(z)"])
def test_what_makes_the_scores_is_not_called_twice(at, by_hand, scores):
    code = logarithm(at, by_hand, "p", ("p", f"torch.softmax({scores}, -1).gather(1, y[:, None])"))
    assert code == (
        f"scores = {scores}; p = torch.softmax(scores, -1).gather(1, y[:, None])  # line 3\n"
        "loss = -torch.log_softmax(scores, -1).gather(1, y[:, None])"
    )


@pytest.mark.parametrize("scores", ["z", "q @ k.transpose(-2, -1) / 8", "torch.matmul(q, k)"])
def test_what_is_the_same_again_needs_no_name(at, by_hand, scores):
    code = logarithm(at, by_hand, "p[0]", ("p", f"torch.softmax({scores}, -1)"))
    assert code == f"torch.log_softmax({scores}, -1)[0]"


@pytest.mark.parametrize(
    ("made", "code"),
    [
        ("net(x).exp()", "scores = net(x); rate = scores.exp()  # line 3\nloss = rate - y * scores"),
        ("torch.exp(a @ b)", "loss = rate - y * (a @ b)"),
        ("net(x).exp() + 1", "loss = rate - y * rate.clamp_min(1e-12).log()"),
    ],
)
def test_the_logarithm_of_an_exponential_is_the_number_itself(at, by_hand, made, code):
    line = "loss = rate - y * rate.log()"
    facts = at("log", (by_hand.fact(zeros=3),), (by_hand.fact(neginf=3),), **placed(line, "rate.log()"))
    first = advice(on(facts, ("rate", made)))[0]
    assert first.code == code
    assert ("exponential" in first.text) is ("clamp_min" not in code)


def test_a_root_that_is_looked_at_stands_in_the_line_itself(at, by_hand):
    below = "torch.sqrt(v)[:, None]"
    facts = quotient(at, by_hand, f"y = a * x / {below}", f"a * x / {below}", "nan", below_by=["SqrtBackward0"])
    assert advice(facts)[0].code == "y = a * x / torch.sqrt(v.clamp_min(1e-12))[:, None]"


@pytest.mark.parametrize("below", ["var.sqrt()", "torch.sqrt(var)", "self.var.sqrt()"])
def test_what_a_divisor_of_one_number_is_made_of_has_its_lines(at, by_hand, below):
    line = f"y = (x - m) / {below}"
    facts = at("div", (by_hand.fact(), by_hand.fact(zeros=1, shape=(1,), max=0.0)), (by_hand.fact(posinf=9),),
               **placed(line, line.removeprefix("y = ")), extra={"birth": "x"})  # fmt: skip
    name = "self.var" if "self" in below else "var"
    told = advice(on(facts, written=[(name, (8, 13))]))[0].text
    assert told.endswith(f"look at what it is made of: {name}, set in lines 8 and 13.")


def test_a_negative_power_of_many_is_left_out_where_they_are_0(at, by_hand):
    def told(power=-0.5, **of):
        base = by_hand.fact(zeros=1, min=0.0, **of)
        line = f"d = A.sum(1) ** {power}"
        facts = at("pow", (base,), (by_hand.fact(posinf=1),), **placed(line, line[4:]), extra={"arg1": power})
        return advice(facts)[0].code

    # Zeros that are made by rounding are below 0 in the next run, where a fraction has no power.
    assert told() == "d = torch.where(A.sum(1) > 0, A.sum(1), torch.inf) ** -0.5"
    assert told(-2) == "d = torch.where(A.sum(1) != 0, A.sum(1), torch.inf) ** -2"
    assert told(shape=()) == "d = A.sum(1).clamp_min(1e-6) ** -0.5"


@pytest.mark.parametrize(("zeros", "bounded"), [(2, False), (1, True)])
def test_where_all_is_0_a_bound_would_leave_no_gradient(at, by_hand, zeros, bounded):
    facts = at("log", (by_hand.fact(zeros=zeros, shape=(3,)),), (by_hand.fact(neginf=zeros),),
               **placed("y = torch.log(a.sum(-1))", "torch.log(a.sum(-1))"),
               extra={"of_weights": True, "made_by": ["SumBackward1", "MulBackward0"]})  # fmt: skip
    assert ("clamp_min" in advice(facts)[0].code) is bounded


def test_a_model_that_ends_in_a_sigmoid_is_to_hand_back_its_scores(at, by_hand):
    given = (by_hand.fact(zeros=20, shape=(32,), min=0.0, max=1e-24, absmax=1e-24),)
    extra = {"of_weights": True, "made_by": ["SqueezeBackward1", "SigmoidBackward0"]}
    facts = at("log", given, (by_hand.fact(neginf=20),), extra=extra,
               **placed("g = -torch.log(self.D(fake)).mean()", "torch.log(self.D(fake))"))  # fmt: skip
    first, second = advice(facts)
    assert first.code == "g = -torch.nn.functional.logsigmoid(self.D(fake)).mean()"
    assert "let self.D hand back the scores" in first.text
    assert second.code == "g = -torch.log(self.D(fake).clamp_min(1e-12)).mean()"


_SIG, _ONE_LESS = ["SliceBackward0", "SigmoidBackward0"], ["RsubBackward1", "SigmoidBackward0"]


@pytest.mark.parametrize(("line", "shown", "made_by", "code"), [
    ("return -(torch.log(real) + torch.log(1 - fake)).mean()", "torch.log(real)", _SIG,
     "return -(torch.nn.functional.logsigmoid(real) + torch.nn.functional.logsigmoid(-fake)).mean()"),
    ("return -(torch.log(real) + torch.log(1 - fake)).mean()", "torch.log(1 - fake)", _ONE_LESS,
     "return -(torch.nn.functional.logsigmoid(real) + torch.nn.functional.logsigmoid(-fake)).mean()"),
    ("y = torch.log(p) - torch.log(width)", "torch.log(p)", _SIG,
     "y = torch.nn.functional.logsigmoid(p) - torch.log(width)"),
    ("y = D(a).log() + (1 - D(b)).log() + c.log()", "D(a).log()", _SIG,
     "y = torch.nn.functional.logsigmoid(D(a)) + torch.nn.functional.logsigmoid(-D(b)) + c.log()"),
    ("y = -torch.log(p[rows, y]).mean()", "torch.log(p[rows, y])", ["IndexBackward0", "SoftmaxBackward0"],
     "y = -torch.log_softmax(p, dim=-1)[rows, y].mean()"),
    ("return -(p * p.log()).sum(-1).mean()", "p.log()", ["SoftmaxBackward0"],
     "return -(torch.softmax(p, dim=-1) * torch.log_softmax(p, dim=-1)).sum(-1).mean()"),
    ("y = (p.log() + (1 - p).log()) * p", "p.log()", _SIG,
     "y = (torch.nn.functional.logsigmoid(p) + torch.nn.functional.logsigmoid(-p)) * torch.sigmoid(p)"),
    ("y = torch.log(q)", "torch.log(q)", _ONE_LESS, None),
    ("y = torch.log(p * w)", "torch.log(p * w)", _SIG, None),
])  # fmt: skip
def test_a_sigmoid_that_is_made_elsewhere_is_told_in_the_names_of_the_line(at, by_hand, line, shown, made_by, code):
    given = (by_hand.fact(zeros=16, shape=(16,), min=0.0, max=0.0),)
    facts = at("log", given, (by_hand.fact(neginf=16),), extra={"of_weights": True, "made_by": made_by},
               **placed(line, shown))  # fmt: skip
    name = shown.removesuffix(")").partition("log(")[2].removeprefix("1 - ").partition(" ")[0].partition("[")[0] or "p"
    meaning = Meaning(name, "both[:16]", "gan/trainer.py", 20, inside=False)
    told = advice(replace(facts, look=replace(facts.look, site=Site(around=Around((meaning,))))))
    assert told[0].code == code
    assert all("scores" not in (one.code or "") for one in told)
    if "D(" not in line:
        assert "trainer.py:20" in told[0].text


@pytest.mark.parametrize(("meaning", "inside", "code"), [
    ("probs.gather(-1, y.unsqueeze(-1)).squeeze(-1)", True,
     "return -torch.log_softmax(probs, dim=-1).gather(-1, y.unsqueeze(-1)).squeeze(-1).mean()"),
    ("probs[rows, y]", True, "return -torch.log_softmax(probs, dim=-1)[rows, y].mean()"),
    ("probs[rows, y]", False, "return -torch.log_softmax(p, dim=-1).mean()"),  # of the caller's names
    ("probs * 2", True, "return -torch.log_softmax(p, dim=-1).mean()"),
])  # fmt: skip
def test_what_a_name_is_picked_of_is_what_the_softmax_is_of(at, by_hand, meaning, inside, code):
    """Of what was picked there are no classes left to take a softmax over."""
    line = "return -torch.log(p).mean()"
    made_by = ["SqueezeBackward1", "GatherBackward0", "SoftmaxBackward0"]
    facts = at("log", (by_hand.fact(zeros=16, shape=(16,), min=0.0, max=0.0),), (by_hand.fact(neginf=16),),
               extra={"of_weights": True, "made_by": made_by}, **placed(line, "torch.log(p)"))  # fmt: skip
    known = Around((Meaning("p", meaning, "train.py", 20, inside=inside),))
    told = advice(replace(facts, look=replace(facts.look, site=Site(around=known))))
    assert told[0].code == code
    assert ("what makes probs hand back" in told[0].text) is ("probs, dim" in code)


def test_the_logarithm_of_what_is_picked_is_picked_of_the_logarithms():
    p, y = torch.softmax(torch.randn(4, 5), -1), torch.tensor([1, 0, 4, 2])
    own = torch.log(p.gather(-1, y.unsqueeze(-1)).squeeze(-1))
    mended = torch.log_softmax(p.log(), dim=-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(own, mended)


@pytest.mark.parametrize(("names", "least", "text"), [
    (["kf.q", "kf.r"], -0.3, "kf.q, kf.r are below 0"), (["q"], -0.3, "q is below 0"), (["q"], -1e-9, None),
])  # fmt: skip
def test_the_few_weights_that_are_below_0_are_learnt_as_logarithms(at, by_hand, names, least, text):
    facts = at("log", (by_hand.fact(min=least),), (by_hand.fact(nan=1),), **placed("y = S.log()", "S.log()"),
               extra={"of_weights": True, "made_by": ["AddBackward0"], "below_zero": names})  # fmt: skip
    told = advice(facts)[0]
    assert (text or "where rounding alone does it") in told.text
    assert ("self.q.data.log_()" in told.code) is (text is not None)


def test_a_weight_below_0_on_the_diagonal_of_a_matrix_is_learnt_as_a_logarithm(at, by_hand):
    made_by = ["DiagonalBackward0", "LinalgCholeskyExBackward0", "AddBackward0"]
    facts = at("log", (by_hand.fact(min=-0.003),), (by_hand.fact(nan=1),), **placed("y = L.log()", "L.log()"),
               extra={"of_weights": True, "made_by": made_by, "diagonal": ["gp.noise", -0.0048],
                      "diagonal_least": [-0.0047, 0.0048]})  # fmt: skip
    (told,) = advice(facts)
    assert "is -0.0048. It takes 0.0048 off the eigenvalues, of which the least is -0.0047." in told.text
    assert told.code == "self.noise.data.log_()  # where it is made; self.noise.exp() for it elsewhere"
    look = replace(facts.look, facts={**facts.extra, "diagonal_if": "shown"})
    unsure = replace(facts, look=look)
    assert "info was not looked at" in advice(unsure)[0].text
    block = (Statement(3, "K = kernel(x, x) + self.noise * torch.eye(len(x))"), Statement(7, "y = L.log()"))
    (told,) = advice(replace(unsure, look=replace(look, site=Site(around=Around(block=block)))))
    assert told.code.splitlines() == [
        "self.noise.data.log_()  # where it is made",
        "K = kernel(x, x) + self.noise.exp() * torch.eye(len(x))  # line 3",
    ]


@pytest.mark.parametrize(
    ("q", "zeros", "code"),
    [
        ("torch.softmax(z, -1)", 0, "(torch.log(p) - torch.log_softmax(z, -1))"),
        ("torch.softmax(net(x), -1)", 0, "(torch.log(p) - torch.log(q.clamp_min(1e-12)))"),
        ("counts / n", 2, "(torch.log(p.clamp_min(1e-12)) - torch.log(q.clamp_min(1e-12)))"),
    ],
)
def test_the_logarithm_of_a_ratio_is_that_of_both_sides(at, by_hand, q, zeros, code):
    given = (by_hand.fact(zeros=zeros, min=0.0), by_hand.fact(zeros=3, min=0.0))
    facts = at("div", given, (by_hand.fact(posinf=3),), **placed("loss = (p * torch.log(p / q)).sum()", "p / q"))
    assert advice(on(facts, ("q", q)))[0].code == f"loss = (p * {code}).sum()"


@pytest.mark.parametrize(
    ("base", "mended"),
    [
        ("torch.tensor(5.0)", "torch.tensor(5.0)"),
        ("torch.full((), 2.0)", "torch.full((), 2.0)"),
        ("classes", "classes.clamp_min(1e-12)"),
    ],
)
def test_a_logarithm_beside_it_is_mended_too_but_not_that_of_a_number(at, by_hand, base, mended):
    facts = at("log", (by_hand.fact(zeros=3, min=0.0),), (by_hand.fact(neginf=3),),
               **placed(f"loss = torch.log(p) / torch.log({base})", "torch.log(p)"))  # fmt: skip
    assert f"torch.log(p.clamp_min(1e-12)) / torch.log({mended})" in advice(facts)[0].code


# ---------------------------------------------------------------------- lines that compute the like


@pytest.mark.parametrize(
    ("again", "more"),
    [((), ""), ((12,), " Line 12 computes the like: mend that too."),
     ((12, 15), " Lines 12 and 15 compute the like: mend that too.")],
)  # fmt: skip
def test_other_lines_that_compute_the_like_are_told_beside_the_mend(by_hand, again, more):
    look = by_hand.found(5)
    look = replace(look, site=replace(look.site, around=Around(again=again)))
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(5), look, world=1), world=1)).verdict
    assert verdict.suggestions[0].text == f"Keep the argument of the logarithm away from zero.{more}"


def test_such_a_line_stands_mended_below_the_mend(by_hand):
    look = by_hand.found(5)
    twin = Alike(12, "    z = (x + w).log()", (8, 21))
    look = replace(look, site=replace(look.site, line=11, around=Around(again=(12, 15), alike=(twin,))))
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(5), look, world=1), world=1)).verdict
    assert verdict.suggestions[0].code.splitlines() == [
        "y = x.clamp_min(1e-12).log()",
        "z = (x + w).clamp_min(1e-12).log()  # line 12",
    ]
    assert verdict.suggestions[0].text.endswith(" Lines 12 and 15 compute the like: mend that too.")


@pytest.mark.parametrize(
    ("line", "dtype", "told"),
    [
        ("z = y * (w + 1e-6).log() + torch.log(eps + v)", "float32", False),
        ("z = y * (w + 1e-6).log() + torch.log(v)", "float32", True),
        ("z = (w + 1e-8).log()", "float16", True),
        ("z = (w + 1.0).log()", "float32", True),
    ],
)
def test_a_line_that_adds_a_small_number_already_is_not_told_to_be_mended(by_hand, line, dtype, told):
    look = by_hand.found(5, inputs=(by_hand.fact(zeros=3, min=0.0, dtype=dtype),))
    twin = Alike(12, line, (0, len(line)))
    look = replace(look, site=replace(look.site, line=14, around=Around(again=(12,), alike=(twin,))))
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(5), look, world=1), world=1)).verdict
    assert any("Line 12" in one.text for one in verdict.suggestions) is told


@pytest.mark.parametrize(
    ("line", "shown", "bad", "told"),
    [
        ("c = (a / n).clamp(max=1.0) if a else 1.0", "a / n", {"posinf": 1}, False),
        ("c = torch.clamp(a / n, 0, 1)", "a / n", {"posinf": 1}, False),
        ("c = torch.minimum(a / n, one)", "a / n", {"posinf": 1}, False),
        ("c = (a / n).clamp(max=1.0)", "a / n", {"nan": 1}, True),
        ("c = (2.0 / n).clamp(max=1.0)", "2.0 / n", {"nan": 1}, False),
        ("c = (self.max_norm / n).clamp(max=1.0)", "self.max_norm / n", {"nan": 1}, False),
        ("c = (self.seen / n).clamp(max=1.0)", "self.seen / n", {"nan": 1}, True),
        ("c = (a / n).clamp(min=1.0)", "a / n", {"posinf": 1}, True),
        ("c = (a / n).clamp_min(1.0)", "a / n", {"posinf": 1}, True),
        ("c = (a / n) * b.clamp(max=1.0)", "a / n", {"posinf": 1}, True),
    ],
)
def test_what_is_bounded_from_above_already_is_not_told_to_be_mended(by_hand, line, shown, bad, told):
    first = line.index(shown)
    twin, own = Alike(12, line, (first, first + len(shown))), "g = a / n"
    look = by_hand.found(5, inputs=(by_hand.fact(), by_hand.fact(zeros=1, shape=(), min=0.0)),
                         outputs=(by_hand.fact(**bad),))  # fmt: skip
    site = replace(look.site, op="aten.div.Tensor", line=14, source=own, column=(4, 9),
                   around=Around(again=(12,), alike=(twin,)))  # fmt: skip
    run = by_hand.run(by_hand.rank(0, by_hand.loss(5), replace(look, site=site), world=1), world=1)
    texts = [one.text for one in analyse(run).verdict.suggestions]
    assert any("Line 12 computes the like" in text for text in texts) is told


def test_a_name_that_is_mended_where_it_is_made_needs_no_mend_where_it_divides(by_hand):
    line = "c = a / n"
    look = by_hand.found(5, inputs=(by_hand.fact(), by_hand.fact(zeros=1, shape=(), min=0.0)),
                         outputs=(by_hand.fact(nan=1),))  # fmt: skip
    around = Around((Meaning("n", "g.norm()", "train.py", 11, divides=True),), again=(12,),
                    alike=(Alike(12, line, (4, 9)),))  # fmt: skip
    site = replace(look.site, op="aten.div.Tensor", line=14, source="g = a / n", column=(4, 9), around=around)
    run = by_hand.run(by_hand.rank(0, by_hand.loss(5), replace(look, site=site), world=1), world=1)
    told = analyse(run).verdict.suggestions[0]
    assert told.code == "n = (g.norm()).clamp_min(1e-6)"
    assert told.text.endswith("keep it away from zero where it is made. What is shown is to replace line 11.")


# ---------------------------------------------------------------------- torch's own functions


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("F.normalize(h.half(), dim=-1)", "F.normalize(h.half().float(), dim=-1)"),
        ("F.cosine_similarity(a, b, dim=1)", "F.cosine_similarity(a.float(), b.float(), dim=1)"),
        ("nn.functional.normalize(h, eps=0.0)", "nn.functional.normalize(h, eps=1e-12)"),
        ("self.unit(h)", None),
    ],
)
def test_an_eps_that_float16_rounds_to_0_is_of_use_in_float32(at, by_hand, call, code):
    given = (by_hand.fact(dtype="float16"), by_hand.fact(zeros=16, dtype="float16", min=0.0))
    told = advice(at("div", given, (by_hand.fact(nan=16, dtype="float16"),), **placed(f"y = {call}", call)))[0]
    assert told.code == (f"y = {code}" if code else "torch.nn.functional.softplus(z) + 1e-6")


def test_in_float32_the_own_eps_of_a_function_is_no_reason(at, by_hand):
    given = (by_hand.fact(), by_hand.fact(zeros=16, min=0.0))
    facts = at("div", given, (by_hand.fact(nan=16),), **placed("y = F.normalize(h)", "F.normalize(h)"))
    assert "where it is made" in advice(facts)[0].text


def test_a_norm_in_float16_is_computed_in_float32_as_the_line_has_it(at, by_hand):
    line = placed("return F.layer_norm(h.half(), (8,), eps=1e-12)", "F.layer_norm(h.half(), (8,), eps=1e-12)")
    facts = at("native_layer_norm", (by_hand.fact(dtype="float16"),), (by_hand.fact(posinf=3, dtype="float16"),),
               extra={"float64_finite": True, "float64_absmax": 1e6, "dtype_max": 65504.0}, **line)  # fmt: skip
    assert "return F.layer_norm(h.half().float(), (8,), eps=1e-12)" in [one.code for one in advice(facts)]


@pytest.mark.parametrize(
    ("line", "call", "names", "code"),
    [
        ("y = Normal(0.0, s).log_prob(x)", "Normal(0.0, s).log_prob(x)", {},
         "y = Normal(0.0, s.clamp_min(1e-6)).log_prob(x)"),
        ("y = d.log_prob(x)", "d.log_prob(x)", {"d": "torch.distributions.Laplace(loc=m, scale=F.softplus(z))"},
         "d = torch.distributions.Laplace(loc=m, scale=F.softplus(z).clamp_min(1e-6))"),
        ("y = d.log_prob(x)", "d.log_prob(x)", {"d": "Independent(Normal(m, s), 1)"},
         "d = Independent(Normal(m, s.clamp_min(1e-6)), 1)"),
        ("y = d.log_prob(x)", "d.log_prob(x)", {"d": "Gamma(a, b)"}, "y = d.log_prob(x.clamp_min(1e-6))"),
        # The transform takes the logarithm of the value; and a number is hardly 0.
        ("y = d.log_prob(x)", "d.log_prob(x)", {"d": "TransformedDistribution(Normal(m, s), [ExpTransform()])"},
         "y = d.log_prob(x.clamp_min(1e-6))"),
        ("y = Normal(m, 1.0).log_prob(x)", "Normal(m, 1.0).log_prob(x)", {},
         "y = Normal(m, 1.0).log_prob(x.clamp_min(1e-6))"),
    ],
)  # fmt: skip
def test_a_scale_of_0_is_told_from_a_value_at_the_end_of_the_support(at, by_hand, line, call, names, code):
    facts = at("log", (by_hand.fact(zeros=3, min=0.0, max=9.0),), (by_hand.fact(neginf=3),), **placed(line, call))
    assert advice(on(facts, *names.items()))[0].code == code


@pytest.mark.parametrize("least", [-1.5, 0.5])
def test_zero_to_the_negative_powers_of_a_tensor(at, by_hand, least):
    given = (by_hand.fact(zeros=4, min=0.0, absmin=0.1), by_hand.fact(min=least))
    facts = at("pow", given, (by_hand.fact(posinf=2),), **placed("return b ** h", "b ** h"))
    if least < 0:
        (only,) = advice(facts)
        assert only.code == "return b.clamp_min(1e-6) ** h"
    else:
        assert explain(facts)[1].slug != "division_by_zero"


@pytest.mark.parametrize(
    ("line", "chosen"),
    [
        ("y = torch.where(r > 0, r.sqrt(), torch.zeros_like(r))", True),
        ("y = torch.where(r > 0, 0.0, other=r.sqrt())", True),
        ("y = torch.where(r.sqrt() > 1, r, 0.0)", False),
        ("y = r.sqrt()", False),
    ],
)
def test_what_torch_where_leaves_out_is_kept_within_the_domain_before_it(at, by_hand, line, chosen):
    facts = at("sqrt", (by_hand.fact(min=-3.0),), (by_hand.fact(nan=5),), **placed(line, "r.sqrt()"),
               extra={"of_weights": True, "made_by": ["AddmmBackward0"], "below_zero": ["w"]})  # fmt: skip
    told = advice(facts)
    assert (("torch.where" in told[0].text), len(told)) == ((True, 1) if chosen else (False, len(told)))
    if chosen:
        assert "r.clamp_min(1e-12).sqrt()" in told[0].code


@pytest.mark.parametrize(
    ("line", "expression", "code"),
    [
        ("return -(p.diag().log().mean() + q.diag().log().mean()) / 2", "p.diag().log()",
         "return -(torch.log_softmax(z, -1).diag().mean() + torch.log_softmax(z.t(), -1).diag().mean()) / 2"),
        ("n = torch.log(torch.diagonal(p, 0, 0, 1)) + r.log()", "torch.log(torch.diagonal(p, 0, 0, 1))",
         "n = torch.diagonal(torch.log_softmax(z, -1), 0, 0, 1) + r.clamp_min(1e-12).log()"),
        ("n = -p[m].log().mean()", "p[m].log()", "n = -torch.log_softmax(z, -1)[m].mean()"),
        ("n = torch.log(torch.gather(p, 1, y))", "torch.log(torch.gather(p, 1, y))",
         "n = torch.gather(torch.log_softmax(z, -1), 1, y)"),
    ],
)  # fmt: skip
def test_what_is_picked_of_a_softmax_is_picked_of_its_logarithm(at, by_hand, line, expression, code):
    block = (Statement(1, "p = z.softmax(-1)"), Statement(2, "q = z.t().softmax(-1)"), Statement(7, line))
    facts = at("log", (by_hand.fact(zeros=3, shape=(4,)),), (by_hand.fact(neginf=3),), line=7,
               **placed(line, expression))  # fmt: skip
    around = Around((Meaning("p", "z.softmax(-1)", "train.py", 1),), block=block)
    assert advice(replace(facts, look=replace(facts.look, site=Site(around=around))))[0].code == code


def test_a_name_that_another_meaning_was_given_to_on_the_way_is_bounded(at, by_hand):
    line = "n = p.log() + q.log()"
    block = (Statement(2, "q = z.softmax(-1)"), Statement(3, "z = z + 1"), Statement(7, line))
    facts = at("log", (by_hand.fact(zeros=3),), (by_hand.fact(neginf=3),), line=7, **placed(line, "p.log()"))
    around = Around((Meaning("p", "w.softmax(-1)", "train.py", 1),), block=block)
    code = advice(replace(facts, look=replace(facts.look, site=Site(around=around))))[0].code
    assert code == "n = torch.log_softmax(w, -1) + q.clamp_min(1e-12).log()"


@pytest.mark.parametrize(
    ("behind", "code"),
    [
        ("l = normal.log_prob(x)", "l = l - 2 * (0.6931472 - x - torch.nn.functional.softplus(-2 * x))"),
        ("l = x.add_(1)", "2 * (0.6931472 - u - torch.nn.functional.softplus(-2 * u))"),
    ],
)
def test_the_square_of_a_tanh_has_the_name_of_what_statements_ahead_gave_it(at, by_hand, behind, code):
    line = "l = l - torch.log(1 - y.pow(2))"
    block = (Statement(5, "y = torch.tanh(x)"), Statement(6, behind), Statement(7, line))
    facts = at("log", (by_hand.fact(zeros=1),), (by_hand.fact(neginf=1),), line=7,
               **placed(line, "torch.log(1 - y.pow(2))"))  # fmt: skip
    facts.look.facts["made_by"] = ["RsubBackward1", "PowBackward0", "TanhBackward0"]
    assert advice(replace(facts, look=replace(facts.look, site=Site(around=Around(block=block)))))[0].code == code


@pytest.mark.parametrize(("text", "told"), [("loss = (center - c).square().mean()", False), ("z = h[w].mean(0)", True)])
def test_a_mean_of_what_an_empty_one_gave_is_not_told_to_be_mended(by_hand, text, told):
    line = "    center = h[m].mean(0)"
    site = Site("net", "Net", "aten.mean.dim", file="t.py", line=13, column=(13, 25), source=line,
                around=Around(again=(14,), alike=(Alike(14, text, (text.index("= ") + 2, len(text))),)))  # fmt: skip
    look = by_hand.found(5, site=site, inputs=(by_hand.fact(shape=(0, 6), min=None, max=None, absmax=None),),
                         outputs=(by_hand.fact(shape=(6,), nan=6),))  # fmt: skip
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(5), look, world=1), world=1)).verdict
    assert verdict.cause == "empty_reduction"
    assert any("Line 14 computes the like" in one.text for one in verdict.suggestions) is told
