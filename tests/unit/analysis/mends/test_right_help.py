"""Help that names what is bad, and offers a line only where pasting it is right."""

from dataclasses import replace

import pytest
import torch

from nandiag.analysis.causes import explain
from nandiag.events import Around, Site, Statement
from tests.unit.analysis.mends.told import on, placed


def texts(facts):
    return [(one.text, one.code) for one in explain(facts)[1].suggestions]


@pytest.mark.parametrize(
    ("line", "expression", "name"),
    [
        ("loss = (net(x).squeeze(1) - y).abs().mean()", "(net(x).squeeze(1) - y)", "y"),
        ("loss = (batch['y'] - net(x)).abs().mean()", "(batch['y'] - net(x))", "batch['y']"),
        ("loss = F.mse_loss(net(x), y)", "F.mse_loss(net(x), y)", "y"),
        ("loss = (made - y).abs().mean()", "(made - y)", "y"),
        ("loss = (x - y).abs().mean()", "(x - y)", None),
    ],
)
def test_a_bad_target_is_checked_by_its_own_name(at, by_hand, line, expression, name):
    given = by_hand.fact(posinf=1, name="batch[1]")
    facts = at("sub", (given,), (), source="input", **{**placed(line, expression), "phase": "data"})
    story = explain(on(facts, ("made", "net(x)")))[0]
    codes = [one.code for one in story.suggestions if "assert" in (one.code or "")]
    assert codes == ([f"assert torch.isfinite({name}).all()"] if name else [])


@pytest.mark.parametrize("line", ["n = f * n + i; h = c / n", "self.n = f * self.n; h = c / self.n"])
def test_a_state_that_others_are_measured_by_is_not_scaled_alone(at, by_hand, line):
    first = line.index("f * ")
    name = line.partition(" ")[0]
    expression = f"f * {name}"
    sides = (by_hand.fact(shape=(4,), max=5.0, min=0.9, absmax=5.0),
             by_hand.fact(shape=(4,), max=1.8e38, min=2e23, absmax=1.8e38))  # fmt: skip
    facts = at("mul", sides, (by_hand.fact(posinf=1),), extra={"float64_finite": True}, text=line,
               column=(first, first + len(expression)), file="train.py", phase="forward")  # fmt: skip
    text, code = texts(facts)[0]
    assert code is None
    assert "scale" in text


def test_one_less_than_a_length_is_at_least_one_where_positions_are_divided(at, by_hand):
    line = "rel = torch.arange(L, dtype=torch.float32) / (L - 1)"
    facts = at("div", (by_hand.fact(zeros=1, shape=(1,)),), (by_hand.fact(nan=1),),
               **placed(line, line.partition(" = ")[2]), extra={"arg1": 0})  # fmt: skip
    text, code = texts(facts)[0]
    assert code == "rel = torch.arange(L, dtype=torch.float32) / max(L - 1, 1)"
    assert "spread" not in text


def test_all_weights_that_may_go_below_zero_are_named(at, by_hand):
    line = "nll = nll + torch.log(s)"
    facts = at("log", (by_hand.fact(min=-0.58, max=-0.58),), (by_hand.fact(nan=1),), **placed(line, "torch.log(s)"),
               extra={"of_weights": True, "below_zero": ["r"], "beside": ["q"]})  # fmt: skip
    ((text, code),) = texts(facts)
    assert text.startswith("What log is given is made of r and q alone, which nothing keeps above 0, and r is below 0")
    assert [one.split("  ")[0] for one in code.splitlines()] == ["self.r.data.log_()", "self.q.data.log_()"]


def test_what_is_added_to_one_may_be_negative_but_not_below_minus_one(at, by_hand):
    line = "ld = torch.log(1 + psi @ self.u)"
    facts = at("log", (by_hand.fact(min=-0.1, max=0.99),), (by_hand.fact(nan=7),),
               **placed(line, "torch.log(1 + psi @ self.u)"), extra={"of_weights": True, "made_by": []})  # fmt: skip
    text = texts(facts)[0][0]
    assert "psi @ self.u" in text
    assert "above -1" in text
    assert "logarithm" not in text


def test_what_lies_far_outside_is_no_rounding_and_the_clamp_comes_last(at, by_hand):
    line = "return torch.acosh(1 + 2 * d / a)"
    facts = at("acosh", (by_hand.fact(min=-36.13, max=20.82),), (by_hand.fact(nan=1),),
               **placed(line, "torch.acosh(1 + 2 * d / a)"))  # fmt: skip
    (first, code), (last, clamp) = texts(facts)
    assert "37.13 below 1" in first
    assert "rounding alone" not in first + last
    assert code is None
    assert "clamp_min" in clamp


def test_what_rounding_leaves_of_a_wide_spectrum_is_bounded_by_its_largest(at, by_hand):
    line = "return q @ torch.diag(w.pow(-0.25)) @ q.T"
    facts = at("pow", (by_hand.fact(min=-0.1722, max=1.97e6, absmax=1.97e6),), (by_hand.fact(nan=1),),
               **placed(line, "w.pow(-0.25)"), extra={"arg1": -0.25})  # fmt: skip
    assert texts(facts)[0][1] == "return q @ torch.diag(w.clamp_min(1e-6 * w.max()).pow(-0.25)) @ q.T"


def of_factor(at, by_hand, **extra):
    made = {"of_weights": True, "made_by": ["DiagonalBackward0", "LinalgCholeskyExBackward0"], **extra}
    facts = at("log", (by_hand.fact(min=-2.86e-6, max=3.6),), (by_hand.fact(nan=1),),
               **placed("return L.diagonal().log().sum()", "L.diagonal().log()"), extra=made)  # fmt: skip
    ((text, code),) = texts(facts)
    return text, code


def test_a_factor_whose_info_nobody_looked_at_is_told_as_a_matrix_that_is_not_positive_definite(at, by_hand):
    text, code = of_factor(at, by_hand)
    assert "not positive definite" in text
    assert "info" in text
    assert "torch.eye" in code


@pytest.mark.parametrize(
    ("known", "shapes"),
    [
        ({}, [(3, 3), (2, 3, 3)]),
        ({"factored_dims": 2, "factored_diagonal": [0.5, 1.0]}, [(3, 3)]),
        ({"factored_dims": 2, "factored_diagonal": [-1e-8, 1.0]}, [(3, 3)]),
        ({"factored_dims": 3, "factored_diagonal": [0.5, 1.0]}, [(2, 3, 3)]),
        ({"factored_dims": 4, "factored_diagonal": [0.5, 1.0]}, [(4, 2, 3, 3)]),
    ],
)
def test_jitter_is_by_the_scale_of_each_matrix_of_a_batch(at, by_hand, known, shapes):
    call = of_factor(at, by_hand, **known)[1].splitlines()[0]
    code = f"K = {call.partition('(')[2][:-1]}"
    assert ("K.diagonal().mean()" in code) is (known.get("factored_diagonal") == [0.5, 1.0] and len(shapes[0]) == 2)
    for shape in shapes:
        given = torch.ones(shape).cumsum(0) * 10.0  # each of a batch has its own scale
        scope = {"torch": torch, "K": given}
        exec(code, scope)  # noqa: S102 - what the help would have pasted
        added = (scope["K"].double() - given.double()).diagonal(dim1=-2, dim2=-1)
        assert added.numpy() == pytest.approx(1e-5 * given.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
                                              .expand_as(added).numpy(), rel=0.2)  # fmt: skip


def test_no_jitter_is_offered_where_the_diagonal_itself_is_below_0(at, by_hand):
    text, code = of_factor(at, by_hand, factored_dims=3, factored_diagonal=[-1.001, 1.001])
    assert "No jitter" in text
    assert "-1.001" in text
    assert "torch.eye" not in code
    assert "info" in code


@pytest.mark.parametrize(
    ("call", "own"),
    [
        ("chol, _ = torch.linalg.cholesky_ex(k)", True),
        ("chol, bad = linalg.cholesky_ex(self.k)", True),
        ("chol, _ = torch.linalg.cholesky_ex(k + noise)", False),
        ("both = torch.linalg.cholesky_ex(k)", False),
    ],
)
def test_a_factor_whose_call_is_in_sight_is_told_by_the_names_of_the_script(at, by_hand, call, own):
    line = "logdet = 2 * chol.diagonal().log().sum()"
    facts = at("log", (by_hand.fact(min=-2.86e-6, max=3.6),), (by_hand.fact(nan=1),), line=23,
               **placed(line, "chol.diagonal().log()"),
               extra={"of_weights": True, "made_by": ["DiagonalBackward0", "LinalgCholeskyExBackward0"],
                      "factored_dims": 2, "factored_diagonal": [0.5, 1.0]})  # fmt: skip
    block = (Statement(20, "k = self.kernel(x, x)"), Statement(21, call), Statement(23, line))
    facts = replace(facts, look=replace(facts.look, site=Site(around=Around(block=block))))
    factored, checked = texts(facts)[0][1].splitlines()
    matrix = call.partition("(")[2].rstrip(")") if own else "K"
    unit = f"torch.eye({matrix}.shape[-1], dtype={matrix}.dtype, device={matrix}.device)"
    jitter = f"1e-5 * {matrix}.diagonal().mean() * {unit}"
    called = call.partition("= ")[2].partition("(")[0] if own else "torch.linalg.cholesky_ex"
    put = f"info = {called}({matrix} + {jitter})"  # a weight, or a buffer, stays what it is
    assert factored == (f"chol, {put}  # line 21" if own else f"L, {put}")
    assert checked == "assert not info.any()"


def test_a_weight_that_was_divided_in_place_by_its_own_norm_of_0_is_told_so(at, by_hand):
    line = "for p in self.mats: p.div_(p.norm(dim=1, keepdim=True))"
    facts = at("div_", (), (by_hand.fact(nan=8, shape=(21, 8), first_bad=(20, 0)),),
               **placed(line, "p.div_(p.norm(dim=1, keepdim=True))"),
               extra={"written_in_place": "div_"})  # fmt: skip
    cause = explain(facts)[1]
    assert cause.slug == "division_by_zero"
    assert "0/0" in cause.evidence[0]
    assert "row 20" in cause.evidence[0]
    assert cause.suggestions[0].code == "for p in self.mats: p.div_(p.norm(dim=1, keepdim=True).clamp_min(1e-6))"


@pytest.mark.parametrize(("first", "shape"), [((0, 0), (8, 8)), ((3, 2), (21, 8)), ((0, 5), (8, 8))])
def test_no_row_is_named_where_it_may_be_a_column(first, shape, at, by_hand):
    line = "p.div_(p.norm(dim=0, keepdim=True))"
    facts = at("div_", (), (by_hand.fact(nan=8, shape=shape, first_bad=first),),
               **placed(line, line), extra={"written_in_place": "div_"})  # fmt: skip
    cause = explain(facts)[1]
    assert cause.slug == "division_by_zero"
    assert "row" not in cause.evidence[0]


def test_a_buffer_of_a_loss_is_told_by_what_it_was_made_of_and_not_looked_for_in_the_model(at, by_hand):
    line = "l = crit(net(x), y)"
    given = by_hand.fact(posinf=1, name="weight", shape=(4,))
    facts = at("mul", (given,), (), source="buffer", module_class="CrossEntropyLoss",
               **{**placed(line, "crit(net(x), y)"), "phase": "init"}, step=16)  # fmt: skip
    facts = on(facts, ("crit", "nn.CrossEntropyLoss(weight=torch.from_numpy(weights_of(y)), label_smoothing=0.1)"))
    first = explain(facts)[0].suggestions[0]
    assert "torch.from_numpy(weights_of(y))" in first.text
    assert "line 3" in first.text
    assert first.code == "assert crit.weight.isfinite().all()"
