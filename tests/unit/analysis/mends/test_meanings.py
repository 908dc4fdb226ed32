"""Advice that knows, by the script's own text, what the names in the underlined expression stand for."""

from dataclasses import replace

import pytest

from nandiag.analysis.causes import explain
from nandiag.events import Around, Meaning, Site


def on(facts, *names, uses=()):
    """Return the facts with the names known, in the function itself where no place is told."""
    meanings = tuple(Meaning(*one) if len(one) > 2 else Meaning(*one, "train.py", 3) for one in names)
    return replace(facts, look=replace(facts.look, site=Site(around=Around(meanings, tuple(uses)))))


def logarithm(at, by_hand, line, expression, **extra):
    first = line.index(expression)
    return at(
        "log", (by_hand.fact(zeros=1),), (by_hand.fact(neginf=1),), text=line,
        column=(first, first + len(expression)), extra=extra, phase="loss",
    )  # fmt: skip


def first(facts):
    return explain(facts)[1].suggestions[0]


@pytest.mark.parametrize(
    ("expression", "names", "code"),
    [
        ("torch.log(p)", [("p", "torch.sigmoid(h + 1)")], "torch.nn.functional.logsigmoid(h + 1)"),
        ("torch.log(1 - p)", [("p", "torch.sigmoid(z)")], "torch.nn.functional.logsigmoid(-z)"),
        ("p.log()", [("p", "z.softmax(-1)")], "torch.log_softmax(z, -1)"),
        ("torch.log(p)", [("p", "F.softmax(a / t, dim=1)")], "torch.log_softmax(a / t, dim=1)"),
        ("torch.log(p)", [("p", "q.squeeze(1)"), ("q", "sigmoid(z)")], "torch.nn.functional.logsigmoid(z).squeeze(1)"),
        ("torch.log(torch.softmax(z, -1))", [], "torch.log_softmax(z, -1)"),
    ],
)
def test_the_logarithm_of_scores_in_one_step_in_the_scripts_own_names(at, by_hand, expression, names, code):
    facts = on(logarithm(at, by_hand, f"loss = -{expression}.mean()", expression), *names)
    assert first(facts).code == f"loss = -{code}.mean()"


@pytest.mark.parametrize(
    "names",
    [
        [("p", "torch.sigmoid(z)", "main.py", 9, False)],  # its names mean nothing where the logarithm stands
        [("p", "torch.rand(3)")],
        [("p", "torch.softmax(z)")],
        [("p", "a b")],
        [],
    ],
)
def test_where_nothing_better_is_known_it_is_kept_from_zero(at, by_hand, names):
    facts = on(logarithm(at, by_hand, "y = torch.log(p)", "torch.log(p)"), *names)
    assert first(facts).code == "y = torch.log(p.clamp_min(1e-12))"


def variance(at, by_hand, expression="torch.log(var)", made_by=("ViewBackward0", "AddmmBackward0"), least=-0.5):
    line = f"nll = {expression} + d / var"
    given = (by_hand.fact(min=least),)
    return at(
        "log", given, (by_hand.fact(nan=1),), text=line, column=(6, 6 + len(expression)),
        extra={"made_by": list(made_by)},
    )  # fmt: skip


def test_what_a_layer_makes_of_any_sign_is_made_positive_where_it_is_made(at, by_hand):
    found = first(on(variance(at, by_hand), ("var", "self.head(h)")))
    assert found.code == "var = torch.nn.functional.softplus(self.head(h)) + 1e-6"
    assert "in line 3" in found.text
    found = first(on(variance(at, by_hand), ("var", "self.head(h)", "src/model.py", 27, False)))
    assert found.code == "torch.nn.functional.softplus(self.head(h)) + 1e-6"
    assert "at model.py:27" in found.text
    assert first(on(variance(at, by_hand))).code == "var = torch.nn.functional.softplus(var) + 1e-6"
    code = first(on(variance(at, by_hand, "torch.log(self.head(h))"))).code
    assert code == "nll = torch.log((torch.nn.functional.softplus(self.head(h)) + 1e-6)) + d / var"


def test_what_is_the_chance_of_something_is_made_to_lie_between_0_and_1(at, by_hand):
    line = "nll = -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()"
    facts = at(
        "log", (by_hand.fact(min=-0.5),), (by_hand.fact(nan=1),), text=line, column=(12, 24),
        extra={"made_by": ["SqueezeBackward0", "ViewBackward0", "ConvolutionBackward0"]},
    )  # fmt: skip
    found = first(on(facts))
    assert found.code == "p = torch.sigmoid(p).clamp(1e-6, 1 - 1e-6)"
    assert "between 0 and 1" in found.text
    assert first(on(variance(at, by_hand))).code == "var = torch.nn.functional.softplus(var) + 1e-6"


def test_a_difference_that_rounding_makes_negative_is_clamped(at, by_hand):
    facts = on(variance(at, by_hand, made_by=("SubBackward0", "AddmmBackward0"), least=-1e-7), ("var", "a - b * c"))
    assert first(facts).code == "nll = torch.log(var.clamp_min(1e-12)) + d / var.clamp_min(1e-12)"


def test_an_exponential_that_is_divided_by_its_sum_below_is_a_softmax(at, by_hand):
    line = "rows = [torch.exp(v @ r / t) for v in left]"
    facts = at(
        "exp", (by_hand.fact(max=114.0, absmax=114.0),), (by_hand.fact(posinf=1),), text=line, column=(8, 28),
        phase="loss",
    )  # fmt: skip
    uses = ("shares = [row[i] / row.sum() for i, row in enumerate(rows)]",)
    assert first(on(facts, uses=uses)).code == "rows = [torch.softmax(v @ r / t, dim=-1) for v in left]"
    assert "softmax" not in first(on(facts, uses=("y = rows.sum()",))).code
    assert first(on(facts, uses=("p = rows / rows.sum(1, keepdim=True)",))).code.endswith("dim=1) for v in left]")


def test_the_scripts_own_small_number_stays_outside_of_the_clamp(at, by_hand):
    line = "y = x / torch.sqrt(var + 1e-5)"
    given = (by_hand.fact(min=-0.5),)
    facts = at("sqrt", given, (by_hand.fact(nan=1),), text=line, column=(8, len(line)))
    assert first(facts).code == "y = x / torch.sqrt(var.clamp_min(0) + 1e-5)"
    told = explain(on(facts, ("var", "sq - mean.square()", "m.py", 19, False)))[1].suggestions
    assert told[0] == first(facts)
    assert told[1].text.startswith("var, of line 19 of m.py, is the difference of two squares, and loses its digits")


@pytest.mark.parametrize(
    ("op", "expression", "code", "dtype"),
    [
        ("rsqrt", "(a - b + self.eps).rsqrt()", "((a - b).clamp_min(0) + self.eps).rsqrt()", "float32"),
        ("log", "torch.log(1e-8 + p)", "torch.log(1e-8 + p.clamp_min(0))", "float32"),
        ("log", "torch.log(p + 1e-8)", "torch.log((p + 1e-8).clamp_min(1e-12))", "float16"),
        ("sqrt", "torch.sqrt(p + 1.0)", "torch.sqrt((p + 1.0).clamp_min(1e-12))", "float32"),
        ("sqrt", "torch.sqrt(p + steps)", "torch.sqrt((p + steps).clamp_min(1e-12))", "float32"),
    ],
)
def test_only_what_is_small_stays_outside_of_the_clamp(at, by_hand, op, expression, code, dtype):
    given = (by_hand.fact(min=-0.5, dtype=dtype),)
    facts = at(op, given, (by_hand.fact(nan=1),), text=expression, column=(0, len(expression)))
    assert first(facts).code == code


def test_the_cross_entropy_of_a_sigmoid_is_named(at, by_hand):
    line = "return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()"
    facts = logarithm(at, by_hand, line, "torch.log(1 - p)", made_by=["RsubBackward1", "SqueezeBackward1",
                                                                     "SigmoidBackward0"])  # fmt: skip
    keep, both = explain(facts)[1].suggestions
    assert ".clamp_min(1e-12) +" not in (keep.code or "")
    assert "(p.clamp_min(1e-12))" in keep.code
    assert both.code == "torch.nn.functional.binary_cross_entropy_with_logits(scores, y)"


def test_of_counts_another_logarithm_is_taken(at, by_hand):
    def codes(line, expression):
        told = explain(logarithm(at, by_hand, line, expression, whole=True))[1].suggestions
        return [one.code for one in told if one.code]

    assert codes("h = lin(torch.log(x))", "torch.log(x)") == [
        "h = lin(torch.log(x.clamp_min(1)))",
        "h = lin(torch.log1p(x))",
    ]
    assert codes("y = (a + b).log()", "(a + b).log()") == ["y = (a + b).clamp_min(1).log()", "y = (a + b).log1p()"]
    assert codes("y = take(x)", "take(x)") == ["x.clamp_min(1).log()", "torch.log1p(x)"]


@pytest.mark.parametrize("op", ["log", "log2"])
def test_whole_numbers_by_their_dtype_are_at_least_1(at, by_hand, op):
    line, shown = f"y = s - keep.sum(1).{op}()", f"keep.sum(1).{op}()"
    given = by_hand.fact(zeros=1, min=0.0, max=5.0, dtype="int64")
    facts = at(op, (given,), (by_hand.fact(neginf=1),), text=line, column=(8, 8 + len(shown)))
    assert first(facts).code == f"y = s - keep.sum(1).clamp_min(1).{op}()"


@pytest.mark.parametrize(
    ("ratio", "code"),
    [
        ("(1 + a) / (1 - a)", "a = a.clamp(-1 + 1e-6, 1 - 1e-6)"),
        ("p / (1 - p)", "p = p.clamp(1e-6, 1 - 1e-6)"),
        ("a / (1 - b)", "u = torch.log((a + 1e-12) / (1 - b + 1e-12))"),
    ],
)
def test_the_ends_of_a_range_are_kept_from_where_the_value_comes(at, by_hand, ratio, code):
    facts = logarithm(at, by_hand, f"u = torch.log({ratio})", f"torch.log({ratio})", of_weights=False)
    assert first(facts).code == code
