"""Suggestions in the user's own line: exact where the parser can prove it, none where it cannot."""

import pytest

from nandiag.analysis.causes import fitting
from nandiag.analysis.report import Origin


def at(line, expression):
    first = line.index(expression)
    return Origin("nan", 0, (0,), 5, source=f"    {line}\n", column=(first + 4, first + 4 + len(expression)))


def clamped(text):
    return f"{text}.clamp_min(1e-6)"


@pytest.mark.parametrize(
    ("line", "expression", "fitted"),
    [
        ("y = a / b", "a / b", "y = a / b.clamp_min(1e-6)"),
        ("y = f(a / b.norm(dim=1))", "a / b.norm(dim=1)", "y = f(a / b.norm(dim=1).clamp_min(1e-6))"),
        ("y = 2 * a / (b + c)", "2 * a / (b + c)", "y = 2 * a / (b + c).clamp_min(1e-6)"),
        ("y = a / -b", "a / -b", "y = a / (-b).clamp_min(1e-6)"),
        ("y = a * b", "a * b", None),
        ("y = div(a, b)", "div(a, b)", None),
        ("y = a /", "a /", None),
        ("y = a / größe", "a / größe", None),
    ],
)
def test_a_divisor(line, expression, fitted):
    assert fitting.divisor(at(line, expression), clamped) == fitted


@pytest.mark.parametrize(
    ("line", "expression", "op", "fitted"),
    [
        ("y = torch.log(p) * q", "torch.log(p)", "log", "y = torch.log(p.clamp_min(1e-6)) * q"),
        ("y = torch.log(p + q)", "torch.log(p + q)", "log", "y = torch.log((p + q).clamp_min(1e-6))"),
        ("y = (a - b).log()", "(a - b).log()", "log", "y = (a - b).clamp_min(1e-6).log()"),
        ("y = p.log_()", "p.log_()", "log", "y = p.clamp_min(1e-6).log_()"),
        ("y = log(p)", "log(p)", "log", "y = log(p.clamp_min(1e-6))"),
        ("y = x ** 0.5", "x ** 0.5", "pow", "y = x.clamp_min(1e-6) ** 0.5"),
        ("y = F.kl_div(p, q)", "F.kl_div(p, q)", "log", None),
        ("y = torch.log(*p)", "torch.log(*p)", "log", None),
        ("y = torch.log()", "torch.log()", "log", None),
    ],
)
def test_an_argument(line, expression, op, fitted):
    assert fitting.argument(at(line, expression), op, clamped) == fitted


@pytest.mark.parametrize(
    ("expression", "fitted"),
    [
        ("x.std()", "y = x.std(unbiased=False)"),
        ("x.std(0)", "y = x.std(0, unbiased=False)"),
        ("torch.std(x, dim=0,)", "y = torch.std(x, dim=0, unbiased=False)"),
        ("x.std(unbiased=True)", None),
        ("x.var()", None),
    ],
)
def test_a_keyword(expression, fitted):
    assert fitting.added(at(f"y = {expression}", expression), "std", "unbiased=False") == fitted


@pytest.mark.parametrize(
    ("expression", "fitted"),
    [
        ("x / x.norm(dim=-1, keepdim=True)", "y = torch.nn.functional.normalize(x, dim=-1)"),
        ("x / z.norm(dim=-1, keepdim=True)", None),
        ("x / x.norm()", None),
        ("x / x.norm(1, dim=-1, keepdim=True)", None),
        ("x / x.norm(dim=-1, keepdim=False)", None),
    ],
)
def test_a_vector_divided_by_its_norm(expression, fitted):
    assert fitting.normalised(at(f"y = {expression}", expression)) == fitted


def test_a_line_that_would_be_too_long_is_left_to_its_expression():
    line = "y = " + "x + " * 40 + "a / b"
    assert fitting.divisor(at(line, "a / b"), clamped) == "a / b.clamp_min(1e-6)"


def test_nothing_is_fitted_without_a_place():
    assert fitting.divisor(Origin("nan", 0, (0,), 5), clamped) is None
