"""Suggestions in the user's own line: exact where the parser can prove it, none where it cannot."""

import pytest

from nandiag.analysis.causes.mends.script import fitting, quotients, widening
from nandiag.analysis.report import Origin


def at(line, expression):
    first = line.index(expression)
    return Origin("nan", 0, (0,), 5, source=f"    {line}\n", column=(first + 4, first + 4 + len(expression)))


def clamped(text):
    return f"{text}.clamp_min(1e-6)"


def raised(text):
    return f"{text} + 1e-6"


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
    assert quotients.divisor(at(line, expression), clamped) == fitted


@pytest.mark.parametrize(
    ("line", "expression", "op", "fitted"),
    [
        ("y = torch.log(p) * q", "torch.log(p)", "log", "y = torch.log(p.clamp_min(1e-6)) * q"),
        ("y = torch.log(p + q)", "torch.log(p + q)", "log", "y = torch.log((p + q).clamp_min(1e-6))"),
        ("y = (a - b).log()", "(a - b).log()", "log", "y = (a - b).clamp_min(1e-6).log()"),
        ("y = p.log_()", "p.log_()", "log", "y = p.clamp_min_(1e-6).log_()"),
        ("p.log_()", "p.log_()", "log", "p.clamp_min_(1e-6).log_()"),
        ("torch.log_(p)", "torch.log_(p)", "log", "torch.log_(p.clamp_min_(1e-6))"),
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
    ("line", "expression", "fitted"),
    [
        ("r = (a / b).rsqrt()[0]", "(a / b).rsqrt()", "r = ((a / b) + 1e-6).rsqrt()[0]"),
        ("r = x.rsqrt()", "x.rsqrt()", "r = (x + 1e-6).rsqrt()"),
        ("r = 2 * rsqrt(x)", "rsqrt(x)", "r = 2 * rsqrt(x + 1e-6)"),
        ("r = torch.rsqrt(a * b, out=c)", "torch.rsqrt(a * b, out=c)", "r = torch.rsqrt((a * b) + 1e-6, out=c)"),
    ],
)
def test_a_sum_in_the_place_of_what_a_method_is_called_on_is_bracketed(line, expression, fitted):
    assert fitting.argument(at(line, expression), "rsqrt", raised) == fitted


@pytest.mark.parametrize(
    ("guard", "fitted"),
    [
        ("{0}.clamp(0, 1).nan_to_num(0)", None),
        ("torch.clamp({0}, 0)", None),
        ("{0}.clamp_min(torch.finfo({0}.dtype).tiny)", "p.clamp_min_(torch.finfo(p.dtype).tiny).log_()"),
    ],
)
def test_a_single_call_alone_can_be_made_in_place(guard, fitted):
    assert fitting.argument(at("p.log_()", "p.log_()"), "log", guard.format) == fitted


def test_what_is_no_python_is_not_given():
    assert fitting.argument(at("y = log(p)", "log(p)"), "log", lambda text: f"{text} + * 1") is None


@pytest.mark.parametrize(
    ("line", "fitted"),
    [
        ("y = a / b.sum(1)", "divisor = b.sum(1); y = a / torch.where(divisor != 0, divisor, torch.inf)"),
        ("row[i] = a / b.sum(1)", "divisor = b.sum(1); row[i] = a / torch.where(divisor != 0, divisor, torch.inf)"),
        ("row.copy_(a / b.sum(1))", "divisor = b.sum(1); row.copy_(a / torch.where(divisor != 0, divisor, torch.inf))"),
        (
            "if n == 9: y = a / b.sum(1)",
            "if n == 9: divisor = b.sum(1); y = a / torch.where(divisor != 0, divisor, torch.inf)",
        ),
        (
            "with quiet(): y = a / b.sum(1)",
            "with quiet(): divisor = b.sum(1); y = a / torch.where(divisor != 0, divisor, torch.inf)",
        ),
        ("if (a / b.sum(1)).any(): y = 1", None),
        ("head(a / b.sum(1)", None),
        ("weight=a / b.sum(1),", None),
        ("head(a / b.sum(1)),", None),
        ("f = lambda b: a / b.sum(1)", "f = lambda b: a / torch.where(b.sum(1) != 0, b.sum(1), torch.inf)"),
        ("y = [a / b.sum(1) for b in c]", "y = [a / torch.where(b.sum(1) != 0, b.sum(1), torch.inf) for b in c]"),
    ],
)
def test_a_divisor_gets_a_name_where_it_is_known_before_the_line(line, fitted):
    assert quotients.left_out(at(line, "a / b.sum(1)")) == fitted


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
    assert quotients.normalised(at(f"y = {expression}", expression)) == fitted


def test_a_statement_is_given_whole_however_long_it_is():
    line = "y = " + "x + " * 40 + "a / b"
    assert quotients.divisor(at(line, "a / b"), clamped) == f"{line}.clamp_min(1e-6)"


def test_a_long_line_that_is_no_statement_by_itself_is_left_to_its_expression():
    line = "x + " * 40 + "a / b, f("
    assert quotients.divisor(at(line, "a / b"), clamped) == "a / b.clamp_min(1e-6)"
    assert quotients.divisor(at("a / b, f(", "a / b"), clamped) == "a / b.clamp_min(1e-6), f("


def test_nothing_is_fitted_without_a_place():
    assert quotients.divisor(Origin("nan", 0, (0,), 5), clamped) is None


@pytest.mark.parametrize(
    ("line", "expression", "fitted"),
    [
        (
            "loss = F.cross_entropy(z.flatten(0, 1), y.flatten())",
            "F.cross_entropy(z.flatten(0, 1), y.flatten())",
            (
                'loss = F.cross_entropy(z.flatten(0, 1), y.flatten(), reduction="sum") / '
                "(y.flatten() != -100).sum().clamp_min(1)"
            ),
        ),
        ('loss = F.cross_entropy(z, y, reduction="sum")', 'F.cross_entropy(z, y, reduction="sum")', None),
        ("loss = criterion(z, y)", "criterion(z, y)", None),
    ],
)
def test_a_mean_over_no_targets(line, expression, fitted):
    assert fitting.summed(at(line, expression), "-100") == fitted


@pytest.mark.parametrize("infinity", ['float("-inf")', "-torch.inf", "-float('inf')"])
def test_a_mask_of_minus_infinity(infinity):
    line = f"w = scores.masked_fill(hidden, {infinity}).softmax(-1)"
    fitted = fitting.filled(at(line, line[4:]))
    assert fitted == "w = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)"
    assert fitting.filled(at("w = scores.softmax(-1)", "scores.softmax(-1)")) is None
    assert fitting.filled(at("w = f(x).masked_fill(m, -inf)", "f(x).masked_fill(m, -inf)")) is None


@pytest.mark.parametrize(
    ("line", "expression", "outside", "plain"),
    [
        ("s = q @ k.transpose(1, 2)", "q @ k.transpose(1, 2)", "s = q.float() @ k.transpose(1, 2).float()", True),
        ("s = torch.bmm(q, k * 2)", "torch.bmm(q, k * 2)", "s = torch.bmm(q.float(), (k * 2).float())", True),
        ("return self.f(x) ** 2", "self.f(x) ** 2", "return self.f(x).float() ** 2", False),
        ("s = (a + b) * c", "(a + b) * c", "s = (a + b).float() * c.float()", True),
        ("s = x.sum(-1)", "x.sum(-1)", "s = x.float().sum(-1)", True),
        ("d = (z - c).pow(2).sum(-1)", "(z - c).pow(2).sum(-1)", "d = (z - c).float().pow(2).sum(-1)", True),
        ("d = (x ** 2).mean()", "(x ** 2).mean()", "d = (x.float() ** 2).mean()", True),
    ],
)
def test_a_line_in_float32(line, expression, outside, plain):
    assert widening.operands(at(line, expression)) == outside
    expected = f'with torch.autocast("cuda", enabled=False): {outside}' if plain else None
    assert widening.outside_autocast(at(line, expression), "cuda") == expected


@pytest.mark.parametrize(
    ("line", "expression", "widened"),
    [
        ("return self.out(h @ h.transpose(1, 2) @ h / 256).mean(1)", "h @ h.transpose(1, 2)",
         "return self.out(h.float() @ h.transpose(1, 2).float() @ h.float() / 256).mean(1)"),
        ("y = w @ (q @ k) + b", "q @ k", "y = w.float() @ (q.float() @ k.float()) + b"),
        ("y = torch.bmm(F.softmax(q @ k, -1), v)", "q @ k",
         "y = torch.bmm(F.softmax(q.float() @ k.float(), -1), v.float())"),
        ("y = q @ k + a @ b", "q @ k", "y = q.float() @ k.float() + a.float() @ b.float()"),
        ("y = (q @ k / math.sqrt(d)) @ v", "q @ k", "y = (q.float() @ k.float() / math.sqrt(d)) @ v.float()"),
        ("y = q @ k @ self.v(x)", "q @ k", None),  # what the module gives is half, and what it is given may be
        ("y = q @ k + self.v(x)", "q @ k", None),
    ],
)  # fmt: skip
def test_no_product_takes_a_float_beside_a_half(line, expression, widened):
    code = widening.outside_autocast(at(line, expression), "cpu")
    assert code is widened is None or code.split(":", 1)[1].strip() == widened
    assert code is None or all(len(one) <= fitting.LONGEST_LINE for one in code.splitlines())


@pytest.mark.parametrize("expression", ["self.proj(x)", "torch.cat([a, b])", "f(*x)", "x"])
def test_what_cannot_be_lifted_for_sure_is_left(expression):
    assert widening.operands(at(f"y = {expression}", expression)) is None
    assert widening.outside_autocast(at(f"y = {expression}", expression), "cpu") is None


@pytest.mark.parametrize(
    ("line", "expression", "fitted"),
    [
        ("y = a / torch.sqrt(v)", "a / torch.sqrt(v)", "y = a / torch.sqrt(v.clamp_min(1e-6))"),
        (
            "z = h / (h ** 2).sum(-1).sqrt()",
            "h / (h ** 2).sum(-1).sqrt()",
            "z = h / (h ** 2).sum(-1).clamp_min(1e-6).sqrt()",
        ),
        ("y = a / (u + v) ** 0.5", "a / (u + v) ** 0.5", "y = a / (u + v).clamp_min(1e-6) ** 0.5"),
        ("y = a / v ** 2", "a / v ** 2", None),
        ("y = a / v.norm()", "a / v.norm()", None),
        ("y = torch.sqrt(v) / a", "torch.sqrt(v) / a", None),
    ],
)
def test_a_divisor_that_is_a_root(line, expression, fitted):
    assert quotients.rooted(at(line, expression), clamped) == fitted


def test_a_zero_that_breaks_two_places_of_the_line_is_kept_out_of_both():
    line = "return (0.5 * torch.log(var) + 0.5 * (y - mean) ** 2 / var - var).mean()"
    both = "return (0.5 * torch.log(var.clamp_min(1e-6)) + 0.5 * (y - mean) ** 2 / var.clamp_min(1e-6) - var).mean()"
    assert fitting.argument(at(line, "torch.log(var)"), "log", clamped) == both
    assert quotients.divisor(at(line, "0.5 * (y - mean) ** 2 / var"), clamped) == both
    assert fitting.argument(at("y = torch.log(p) / q", "torch.log(p)"), "log", clamped) == (
        "y = torch.log(p.clamp_min(1e-6)) / q"
    )


@pytest.mark.parametrize(
    ("line", "expression", "fitted"),
    [
        ("return a / n, b / n", "a / n", "return a / n.clamp_min(1e-6), b / n.clamp_min(1e-6)"),
        ("return a / n, b / n", "b / n", "return a / n.clamp_min(1e-6), b / n.clamp_min(1e-6)"),
        ("y = a / (u - v), b / (u - v)", "a / (u - v)", "y = a / (u - v).clamp_min(1e-6), b / (u - v).clamp_min(1e-6)"),
        ("if a / n > b / n:", "a / n", "if a / n.clamp_min(1e-6) > b / n.clamp_min(1e-6):"),
        ("return a / n, b / m", "a / n", "return a / n.clamp_min(1e-6), b / m"),
    ],
)
def test_a_line_that_divides_twice_by_the_same_is_mended_twice(line, expression, fitted):
    assert quotients.divisor(at(line, expression), clamped) == fitted


def test_of_a_line_that_is_mended_twice_no_half_is_given_though_it_is_long():
    line = f"return {'left.' * 9}a / n, {'right.' * 9}b / n"
    fitted = quotients.divisor(at(line, f"{'left.' * 9}a / n"), clamped)
    assert fitted == line.replace("/ n", "/ n.clamp_min(1e-6)")


def test_a_guard_for_one_function_alone_stays_there():
    line = "y = torch.log(p) / torch.exp(p) / p"
    fitted = fitting.argument(at(line, "torch.exp(p)"), "exp", lambda text: f"{text}.clamp(max=20)")
    assert fitted == "y = torch.log(p) / torch.exp(p.clamp(max=20)) / p"


@pytest.mark.parametrize("before", ["loss = ", "return ", "y = 2 * "])
def test_a_line_that_grows_too_long_keeps_what_stands_before(before):
    called = f"f.cross_entropy({'logits.' * 8}view(-1, 20), y)"
    line = f"    {before}{called}\n"
    shown = Origin("nan", 0, (0,), 5, source=line, column=(4 + len(before), 4 + len(before) + len(called)))
    assert fitting.whole(shown, called + " / " + "n" * 60).startswith(before)


@pytest.mark.parametrize(
    ("line", "expression", "instead", "whole"),
    [
        ("loss = (a + b).exp().mean()", "(a + b).exp()", "a + b", "loss = (a + b).mean()"),
        ("y = c * exp(a + b)", "exp(a + b)", "a + b", "y = c * (a + b)"),
        ("y = exp(a * b) + c", "exp(a * b)", "a * b", "y = a * b + c"),
        ("if f((a + b).exp()):", "(a + b).exp()", "a + b", "if f(a + b):"),
        ("loss = a.exp().mean()", "a.exp()", "a", "loss = a.mean()"),
    ],
)
def test_what_stands_in_a_calls_place_is_bracketed_where_only_its_end_would_be_taken(line, expression, instead, whole):
    assert fitting.whole(at(line, expression), instead) == whole


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("z = y / (x.std(0) + 1e-8)", "z = y / (x.std(0) + 1e-6)"),
        ("z = y / (x.norm(dim=1) + 1e-4)", "z = y / (x.norm(dim=1) + 1e-4).clamp_min(1e-6)"),
        ("z = y / (x + 1e-8)", "z = y / (x + 1e-8).clamp_min(1e-6)"),
    ],
)
def test_a_tiny_eps_of_a_size_gives_way_to_the_greater_one(line, code):
    expression = line.removeprefix("z = ")
    origin = Origin("nan", 0, (0,), 5, source=line, column=(4, 4 + len(expression)))
    assert quotients.divisor(origin, lambda text: f"{text}.clamp_min(1e-6)") == code
