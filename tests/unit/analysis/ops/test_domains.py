"""Logarithms, powers and matrices out of their domain."""

from dataclasses import replace

import pytest
import torch

from nandiag.analysis.causes import explain
from nandiag.events import Around, Meaning, Site, Written
from tests.unit.analysis.ops.told import codes, mechanism, on


@pytest.mark.parametrize(
    ("op", "low", "high", "arg1", "slug"),
    [
        ("pow", -2.0, 2.0, 0.5, "domain_error"),
        ("pow", -2.0, 2.0, 3, "unknown"),
        ("pow", 0.0, 2.0, 0.5, "unknown"),
        ("atanh", -1.0, 0.5, None, "domain_error"),
        ("atanh", -0.9, 0.9, None, "unknown"),
        ("logit", 0.1, 1.0, None, "domain_error"),
    ],
)
def test_domains_of_powers_and_poles(at, by_hand, op, low, high, arg1, slug):
    bad = by_hand.fact(nan=1) if op == "pow" else by_hand.fact(posinf=1)
    facts = at(op, (by_hand.fact(min=low, max=high),), (bad,), extra={} if arg1 is None else {"arg1": arg1})
    assert mechanism(facts).slug == slug


def test_the_log_of_a_negative_is_not_clamped_to_zero(at, by_hand):
    facts = at("log", (by_hand.fact(min=-1.0),), (by_hand.fact(nan=1),), **on("y = r.log()", "r.log()"))
    assert codes(facts)[0] == "y = r.clamp_min(1e-12).log()"


def test_log1p_at_minus_one(at, by_hand):
    assert mechanism(at("log1p", (by_hand.fact(min=-1.0),), (by_hand.fact(neginf=1),))).slug == "log_of_zero"


@pytest.mark.parametrize(
    ("op", "node", "slug"),
    [
        ("linalg_inv_ex", None, "linalg_degenerate"),
        ("linalg_vector_norm", None, "unknown"),
        ("div", "LinalgEighBackward0", "linalg_degenerate"),
    ],
)
def test_matrices(at, by_hand, op, node, slug):
    given = (by_hand.fact(), by_hand.fact(zeros=4))
    facts = at(op, given, (by_hand.fact(nan=1),), node=node, forward_op=node and "aten._linalg_eigh.default",
               extra={"float64_finite": False})  # fmt: skip
    assert mechanism(facts).slug == slug


@pytest.mark.parametrize(("zeros", "told"), [(2, "two are equal"), (6, "some are equal"), (56, "all 8 are equal")])
def test_how_many_values_are_equal_is_told(at, by_hand, zeros, told):
    given = (by_hand.fact(), by_hand.fact(zeros=zeros, shape=(8, 8)))
    facts = at("div", given, (by_hand.fact(nan=1),), node="LinalgEighBackward0", forward_op="aten._linalg_eigh.default")
    assert mechanism(facts).evidence[0].endswith(f": {told}")


@pytest.mark.parametrize(
    ("nodes", "code"),
    [
        (["SoftmaxBackward0", "AddmmBackward0"], "F.log_softmax(scores, dim=-1)"),
        (["StackBackward0", "SoftmaxBackward0"], "F.log_softmax(scores, dim=-1)"),
        (["SigmoidBackward0"], "F.logsigmoid(scores)"),
        (["RsubBackward1", "SigmoidBackward0"], "F.logsigmoid(-scores)"),
        (["SubBackward0", "SigmoidBackward0"], None),  # of two sigmoids
        (
            ["RsubBackward1", "PowBackward0", "TanhBackward0"],
            "2 * (0.6931472 - u - torch.nn.functional.softplus(-2 * u))",
        ),
        (["SumBackward1", "MulBackward0", "SoftmaxBackward0"], "torch.logsumexp(log_p, dim=-1)"),
        (["ReluBackward0"], None),
        ([], None),
    ],
)
def test_the_logarithm_in_one_step_is_that_of_what_made_its_input(at, by_hand, nodes, code):
    facts = at("log", (by_hand.fact(zeros=3, min=0.0),), (by_hand.fact(neginf=3),), extra={"made_by": nodes})
    codes = [one.code for one in explain(facts)[1].suggestions]
    assert codes == ([] if code is None else [code]) + ["x.clamp_min(1e-12).log()"]


@pytest.mark.parametrize(("high", "guard"), [(1.0, "clamp(1e-6, 1 - 1e-6)"), (7.0, "clamp_min(1e-6)")])
def test_a_value_at_the_end_of_a_distributions_support(at, by_hand, high, guard):
    given = (by_hand.fact(), by_hand.fact(zeros=1, min=0.0, max=high))
    line = on("loss = -model(x).log_prob(rate).mean()", "model(x).log_prob(rate)")
    found = mechanism(at("xlogy", given, (by_hand.fact(neginf=1),), **line))
    assert (found.slug, found.suggestions[0].code) == (
        "log_of_zero",
        f"loss = -model(x).log_prob(rate.{guard}).mean()",
    )


def test_xlogy_is_judged_by_what_it_takes_the_logarithm_of(at, by_hand):
    line = on("loss = rate - torch.xlogy(n, rate)", "torch.xlogy(n, rate)")
    zero = (by_hand.fact(min=0.0), by_hand.fact(zeros=2, min=0.0))
    assert codes(at("xlogy", zero, (by_hand.fact(neginf=1),), **line)) == [
        "loss = rate - torch.xlogy(n, rate.clamp_min(1e-12))"
    ]
    below = (by_hand.fact(min=0.0), by_hand.fact(min=-1.0))
    assert mechanism(at("xlogy", below, (by_hand.fact(nan=1),), **line)).slug == "domain_error"


@pytest.mark.parametrize(("low", "first"), [(-0.018, "It is made of weights"), (-1e-7, "Find out why")])
def test_what_was_trained_below_zero_is_no_rounding(at, by_hand, low, first):
    given = by_hand.fact(min=low, max=low)
    facts = at("log", (given,), (by_hand.fact(nan=16),), extra={"of_weights": True}, **on("n = s.log()", "s.log()"))
    assert mechanism(facts).suggestions[0].text.startswith(first)


@pytest.mark.parametrize(
    ("expression", "advised"),
    [
        ("(s[1] / s[2] - mean ** 2).sqrt()", True), ("torch.sqrt(sq - m * m)", True), ("(a - b).sqrt()", False),
        ("(sq - mean.square()).sqrt()", True), ("v.sqrt()", False),
    ],
)  # fmt: skip
def test_a_difference_of_squares_is_told_to_lose_its_digits(at, by_hand, expression, advised):
    facts = at("sqrt", (by_hand.fact(min=-5e-4),), (by_hand.fact(nan=1),), **on(f"std = {expression}", expression))
    texts = [one.text for one in mechanism(facts).suggestions]
    assert any("loses its digits" in text for text in texts[:1]) is advised
    assert any("Find out why" in text for text in texts)


@pytest.mark.parametrize(("source", "told"), [("n = v.sqrt()", False), ("n = torch.where(v > 0, v.sqrt(), v)", True)])
def test_a_where_is_spoken_of_where_there_is_one(at, by_hand, source, told):
    given = (by_hand.fact(), by_hand.fact(zeros=3, min=0.0))
    facts = at("div", given, (by_hand.fact(nan=3),), node="SqrtBackward0", forward_op="aten.sqrt.default",
               **on(source, "v.sqrt()"))  # fmt: skip
    assert any("torch.where" in one.text for one in mechanism(facts).suggestions) is told


@pytest.mark.parametrize(("trained", "code"), [
    (False, "r = torch.log((price + 1e-12) / (yesterday + 1e-12))"),
    (True, "r = torch.log((price / yesterday).clamp_min(1e-12))"),
])  # fmt: skip
def test_the_logarithm_of_a_ratio_of_data_has_both_sides_above_zero(at, by_hand, trained, code):
    line = on("r = torch.log(price / yesterday)", "torch.log(price / yesterday)")
    given = (by_hand.fact(zeros=1, min=0.0),)
    found = codes(at("log", given, (by_hand.fact(neginf=1),), extra={"of_weights": trained}, **line))
    assert found[0] == code
    assert "r = torch.log((price / yesterday).clamp_min(1e-12))" in found  # where only what is above can be 0


@pytest.mark.parametrize("expression", ["torch.log(w[1:] / w[:-1])", "(w[1:] / w[:-1]).log()"])
@pytest.mark.parametrize(("phase", "extra"), [("data", {"dataset": "Ticks"}), ("forward", {"of_weights": True})])
def test_of_neighbours_in_one_table_no_bound_of_the_quotient_alone_is_told(at, by_hand, expression, phase, extra):
    line = {**on(f"ret = {expression}", expression), "phase": phase}
    given = (by_hand.fact(zeros=1, min=0.0),)
    found = [one for one in codes(at("log", given, (by_hand.fact(neginf=1),), extra=extra, **line)) if one]
    assert len(found) == 1
    names = {"torch": torch, "w": torch.tensor([100.0, 101.0, 0.0, 99.0])}
    exec(found[0], names)  # noqa: S102
    assert names["ret"].isfinite().all()


OF_TENSORS = (
    "repeats = yl.new_tensor([(one[:n].diff() == 0).sum() for one, n in zip(y, yl)])\n"
    "fits = ol >= yl + repeats  # keep these alone"
)
LISTED = (
    "repeats = torch.as_tensor(yl).new_tensor([(one[:n].diff() == 0).sum() for one, n in zip(y, yl)])\n"
    "fits = torch.as_tensor(ol) >= torch.as_tensor(yl) + repeats  # keep these alone"
)


@pytest.mark.parametrize(("overload", "fits"), [
    ("Tensor", OF_TENSORS),
    ("default", LISTED),
])  # fmt: skip
def test_a_criterion_of_the_scripts_own_is_set_and_its_names_are_told(overload, fits, at, by_hand):
    given = (by_hand.fact(), by_hand.fact(dtype="int64", shape=(4, 9)))
    facts = at(f"_ctc_loss.{overload}", given, (by_hand.fact(shape=(4,), posinf=1),), module_class="CTCLoss",
               **on("loss = self.criterion(logp, y, ol, yl)", "self.criterion(logp, y, ol, yl)"))  # fmt: skip
    around = Around(written=(Written("self.criterion", (34,)),))
    facts = replace(facts, look=replace(facts.look, site=Site(around=around)))
    assert codes(facts) == [
        "self.criterion.zero_infinity = True  # behind line 34",
        fits,
    ]


@pytest.mark.parametrize(
    ("made", "call", "first"),
    [
        ("{'ctc': partial(nn.functional.ctc_loss, blank=0)}", "LOSS['ctc'](logp, y, ol, yl)",
         "loss = LOSS['ctc'](logp, y, ol, yl, zero_infinity=True)"),
        ("partial(ctc_loss, blank=0)", "LOSS(logp, y, ol, yl)", "loss = LOSS(logp, y, ol, yl, zero_infinity=True)"),
        ("[nn.CTCLoss()]", "LOSS[0](logp, y, ol, yl)", "LOSS[0].zero_infinity = True"),
    ],
)  # fmt: skip
def test_a_ctc_loss_that_the_script_keeps_under_a_name_is_asked_for_it(at, by_hand, made, call, first):
    given = (by_hand.fact(), by_hand.fact(dtype="int64", shape=(4, 9)))
    facts = at("_ctc_loss.Tensor", given, (by_hand.fact(shape=(4,), posinf=1),), **on(f"loss = {call}", call))
    around = Around(kinds=(Meaning("LOSS", made, "train.py", 3),))
    facts = replace(facts, look=replace(facts.look, site=Site(around=around)))
    assert codes(facts) == [first, OF_TENSORS]


@pytest.mark.parametrize(("high", "told"), [(1.0004, "where rounding alone does it"), (1.852, "by more than rounding")])
def test_what_lies_far_outside_an_interval_was_not_rounded_there(at, by_hand, high, told):
    facts = at(
        "atanh",
        (by_hand.fact(min=0.6, max=high),),
        (by_hand.fact(nan=1),),
        **on("d = torch.atanh(r)", "torch.atanh(r)"),
    )
    assert told in explain(facts)[1].suggestions[0].text


@pytest.mark.parametrize(
    ("phase", "extra", "told"),
    [
        ("forward", {}, True),
        ("data", {}, False),
        ("forward", {"of_weights": False}, False),
        ("forward", {"dataset": "Sales"}, False),
    ],
)
def test_what_is_born_while_data_is_loaded_is_made_by_no_model(at, by_hand, phase, extra, told):
    facts = at("log", (by_hand.fact(min=-17.0),), (by_hand.fact(nan=1),), phase=phase, extra=extra,
               text="y = price.log()", column=(4, 15))  # fmt: skip
    texts = [one.text for one in explain(facts)[1].suggestions]
    assert any("by construction" in text for text in texts) is told
    assert any("clamp it" in text for text in texts)


@pytest.mark.parametrize(("op", "bound"), [("sqrt", "0"), ("log", "1")])
def test_whole_numbers_out_of_a_domain_are_bounded_by_one_that_is_whole(at, by_hand, op, bound):
    facts = at(op, (by_hand.fact(min=-3.0, dtype="int64"),), (by_hand.fact(nan=1),),
               text=f"y = n.{op}()", column=(4, 8 + len(op)))  # fmt: skip
    assert codes(facts)[0] == f"y = n.clamp_min({bound}).{op}()"
