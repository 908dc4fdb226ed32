"""Mends of whole lines: in place, means of nothing, casts, reciprocals, and whose function a backward belongs to."""

from dataclasses import replace

import pytest

from nandiag.analysis.causes import Facts, data_nonfinite, explain
from nandiag.analysis.report import Origin
from nandiag.events import Looked, Meaning, Site, Written, words
from nandiag.events.site import Around


def on(source, expression):
    first = source.index(expression)
    return {"text": source, "column": (first, first + len(expression)), "file": "train.py", "line": 7}


def first(facts):
    return explain(facts)[1].suggestions[0].code


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("pooled /= sizes[:, None]", "pooled /= sizes[:, None].clamp_min(1e-6)"),
        ("x /= x.norm(dim=-1, keepdim=True)", "x /= x.norm(dim=-1, keepdim=True).clamp_min(1e-6)"),
        ("w /= (a + b)", "w /= (a + b).clamp_min(1e-6)"),
        ("w /= a.sqrt()", "w /= a.clamp_min(1e-12).sqrt()"),
    ],
)
def test_a_division_in_place(at, by_hand, line, code):
    facts = at("div_", (by_hand.fact(), by_hand.fact(zeros=1, min=0.0)), (by_hand.fact(nan=1),), **on(line, line))
    assert first(facts) == code


def test_a_quotient_in_place_that_leaves_elements_out(at, by_hand):
    facts = at("div_", (by_hand.fact(), by_hand.fact(zeros=1)), (by_hand.fact(posinf=1),), **on("w /= n", "w /= n"))
    assert first(facts) == "w /= torch.where(n != 0, n, torch.inf)"


@pytest.mark.parametrize(
    ("line", "expression", "code"),
    [
        ("r = v.sqrt().reciprocal()", "v.sqrt().reciprocal()", "r = v.clamp_min(1e-12).sqrt().reciprocal()"),
        ("r = torch.reciprocal(v)", "torch.reciprocal(v)", "r = torch.reciprocal(torch.where(v != 0, v, torch.inf))"),
        ("r = 1 / v", "1 / v", "r = 1 / torch.where(v != 0, v, torch.inf)"),
    ],
)
def test_a_reciprocal(at, by_hand, line, expression, code):
    facts = at("reciprocal", (by_hand.fact(zeros=1, min=0.0),), (by_hand.fact(posinf=1),), **on(line, expression))
    assert first(facts) == code


@pytest.mark.parametrize(
    ("expression", "code"),
    [
        ("F.cross_entropy(z[m], y[m])", 'F.cross_entropy(z[m], y[m], reduction="sum") / max(y[m].numel(), 1)'),
        ("loss[m].mean()", "loss[m].sum() / max(loss[m].numel(), 1)"),
        ("torch.mean(loss[m])", "loss[m].sum() / max(loss[m].numel(), 1)"),
        ("F.mse_loss(z, y, reduction='mean')", "x.sum() / max(x.numel(), 1)"),
        ("loss.mean(0)", "loss.sum(0) / max(loss.size(0), 1)"),
        ("loss.mean(dim=-1, keepdim=True)", "loss.sum(dim=-1, keepdim=True) / max(loss.size(-1), 1)"),
        ("loss.mean((0, 1))", "x.sum() / max(x.numel(), 1)"),
    ],
)
def test_the_mean_of_nothing(at, by_hand, expression, code):
    facts = at("mean", (by_hand.fact(shape=(0,)),), (by_hand.fact(nan=1),), **on(f"return {expression}", expression))
    assert first(facts) in {code, f"return {code}"}


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("m = torch.stack([x[k].mean(), (x[k] ** 2).mean()])",
         "m = torch.stack([x[k].sum() / max(x[k].numel(), 1), (x[k] ** 2).sum() / max((x[k] ** 2).numel(), 1)])"),
        ("m = y.mean() / x[k].mean()", "m = y.mean() / (x[k].sum() / max(x[k].numel(), 1))"),
        ("m, v = x[k].mean(), x[k].var()", "x.sum() / max(x.numel(), 1)"),
    ],
)  # fmt: skip
def test_each_mean_of_the_same_nothing_in_a_line_is_mended(at, by_hand, line, code):
    facts = at("mean", (by_hand.fact(shape=(0,)),), (by_hand.fact(nan=1),), **on(line, "x[k].mean()"))
    assert first(facts) == code


@pytest.mark.parametrize(
    ("ends", "weights", "code"),
    [
        ("", False, "if not x.numel(): return"),
        ("self", False, "x.sum() / max(x.numel(), 1)"),
        (None, False, "x.sum() / max(x.numel(), 1)"),
        ("", True, "x.sum() / max(x.numel(), 1)"),
    ],
)
def test_statistics_that_only_take_in_are_left_alone_by_an_empty_batch(at, by_hand, ends, weights, code):
    line = "m, v, n = x.mean(0), x.var(0, unbiased=False), x.size(0)"
    facts = at("mean", (by_hand.fact(shape=(0, 5)),), (by_hand.fact(nan=5),), **on(line, "x.mean(0)"),
               function="update", extra={"of_weights": weights})  # fmt: skip
    facts = replace(facts, look=replace(facts.look, site=Site(around=Around(ends=ends))))
    assert first(facts) == code


@pytest.mark.parametrize(
    ("expression", "code"),
    [("f.half()", "f.bfloat16()"), ("f.to(torch.float16)", "f.to(torch.bfloat16)"), ("f.to(kind)", None)],
)
def test_a_cast_of_the_scripts_own(at, by_hand, expression, code):
    given, out = by_hand.fact(absmax=2e5, max=2e5), by_hand.fact(posinf=1, dtype="float16")
    facts = at("_to_copy", (given,), (out,), extra={"float64_finite": True, "float64_absmax": 2e5},
               **on(f"kept = {expression}", expression))  # fmt: skip
    assert first(facts) == (f"kept = {code}" if code else "(x / scale).half()")


def test_the_form_of_torch_leads_though_the_data_is_to_blame_too(at, by_hand):
    line = "return torch.log(1 + torch.exp(x))"
    facts = at("exp", (by_hand.fact(max=405.0, absmax=405.0),), (by_hand.fact(posinf=1),), **on(line, "torch.exp(x)"))
    assert explain(facts)[1].leads


def test_code_that_torch_runs_in_a_function_of_its_own_is_no_function_of_the_script(at, by_hand):
    given = (by_hand.fact(), by_hand.fact(zeros=1))
    line = on("return g / n", "g / n")
    facts = at("div", given, (by_hand.fact(nan=1),), node="BackwardHookFunctionBackward", phase="backward", **line)
    story, found = explain(facts)
    assert (story, found.slug) == (None, "division_by_zero")
    assert words.own_function("EntropyBackward") == "Entropy"
    assert words.own_function("DivBackward0") is None


def test_a_division_in_what_the_line_calls_is_mended_where_the_divisor_is_made(at, by_hand):
    line = on("kl = kl_divergence(q, p).sum(-1)", "kl_divergence(q, p)")
    facts = at("div", (by_hand.fact(), by_hand.fact(zeros=2)), (by_hand.fact(posinf=2),), **line)
    only = explain(facts)[1].suggestions
    assert [one.code for one in only] == ["torch.nn.functional.softplus(z) + 1e-6"]
    assert "in kl_divergence" in only[0].text
    line = on("y = torch.div(a, b)", "torch.div(a, b)")
    facts = at("div", (by_hand.fact(), by_hand.fact(zeros=2)), (by_hand.fact(nan=2),), **line)
    assert "above zero where it is made" not in explain(facts)[1].suggestions[0].text


def test_a_gamma_function_at_zero(at, by_hand):
    line = on("logp = dist.log_prob(a)", "dist.log_prob(a)")
    facts = at("lgamma", (by_hand.fact(zeros=1, min=0.0),), (by_hand.fact(posinf=1),), **line)
    found = explain(facts)[1]
    assert (found.slug, found.evidence) == ("domain_error", ("the input of lgamma holds 1 zero; it is infinite there",))


def test_a_softmax_by_hand_of_a_row_that_is_masked_whole(at, by_hand):
    line = on("s = s - s.amax(-1, keepdim=True)", "s - s.amax(-1, keepdim=True)")
    scores, most = by_hand.fact(neginf=36, shape=(2, 6, 6)), by_hand.fact(neginf=6, shape=(2, 6, 1))
    facts = at("sub", (scores, most), (by_hand.fact(nan=36),), **line)
    found = explain(facts)[1]
    assert (found.slug, found.suggestions[0].code) == (
        "attention_fully_masked",
        "s = s.clamp_min(torch.finfo(s.dtype).min)",
    )
    assert explain(at("sub", (scores, scores), (by_hand.fact(nan=36),), **line))[1].slug != "attention_fully_masked"


def test_a_softmax_in_blocks_knows_rows_that_no_block_has_anything_of(at, by_hand):
    old = by_hand.fact(neginf=12, shape=(12, 1), min=None, max=None)
    new = by_hand.fact(neginf=4, shape=(12, 1), min=-0.2, max=0.6)
    text = "    alpha = torch.exp(m - new)"
    found = explain(at("sub", (old, new), (by_hand.fact(nan=4, neginf=8),), text=text, column=(22, 29)))[1]
    assert (found.slug, found.suggestions[0].code) == (
        "attention_fully_masked",
        "new = new.clamp_min(torch.finfo(new.dtype).min)",
    )
    plain = at("sub", (old, new), (by_hand.fact(nan=4, neginf=8),), text="    alpha = m - new", column=(12, 19))
    assert explain(plain)[1].slug != "attention_fully_masked"


def test_a_weight_of_zeros_is_to_begin_otherwise(at, by_hand):
    line = on(
        "p = self.proto / self.proto.norm(dim=-1, keepdim=True)", "self.proto / self.proto.norm(dim=-1, keepdim=True)"
    )
    weight = by_hand.fact("proto", zeros=16, min=0.0, max=0.0)
    facts = at("div", (weight, by_hand.fact(zeros=4, min=0.0)), (by_hand.fact(nan=16),), **line)
    assert first(facts) == "torch.nn.init.normal_(self.proto, std=0.02)"
    some = by_hand.fact("proto", zeros=4, min=0.0)
    facts = at("div", (some, by_hand.fact(zeros=1, min=0.0)), (by_hand.fact(nan=4),), **line)
    divisor = "divisor = self.proto.norm(dim=-1, keepdim=True)"  # behind a guard the gradient of such a row is huge
    assert first(facts) == f"{divisor}; p = self.proto / torch.where(divisor != 0, divisor, torch.inf)"


@pytest.mark.parametrize(
    ("expression", "code"),
    [
        ("torch.log(torch.det(self.weight))", "ld = torch.linalg.slogdet(self.weight)[1]"),
        ("torch.linalg.det(a @ b).abs().log()", "ld = torch.linalg.slogdet(a @ b)[1]"),
        ("torch.log(torch.abs(j.det()))", "ld = torch.linalg.slogdet(j)[1]"),
        ("torch.log(j.det() + eps)", None),
    ],
)
@pytest.mark.parametrize("given", [{"min": -8e-18}, {"zeros": 1, "min": 0.0}])
def test_the_logarithm_of_a_determinant(at, by_hand, expression, code, given):
    bad = by_hand.fact(shape=(), **({"neginf": 1} if "zeros" in given else {"nan": 1}))
    facts = at("log", (by_hand.fact(shape=(), **given),), (bad,), **on(f"ld = {expression}", expression))
    found = explain(facts)[1]
    assert found.slug == ("log_of_zero" if "zeros" in given else "domain_error")
    if code is None:
        assert not any("slogdet" in (one.code or "") for one in found.suggestions)
    else:
        assert [one.code for one in found.suggestions] == [code]


def test_of_what_else_the_line_divides_by_the_same_zero_nothing_is_known(at, by_hand):
    line = on("return f(a / n, b / n)", "a / n")
    facts = at("div", (by_hand.fact(), by_hand.fact(zeros=1, min=0.0)), (by_hand.fact(nan=1),), **line)
    assert first(facts) == "return f(a / torch.where(n != 0, n, torch.inf), b / torch.where(n != 0, n, torch.inf))"


def test_the_logarithm_of_a_determinant_behind_a_name(by_hand):
    text = "    ld = torch.log(jac.abs())\n"
    names = (Meaning("jac", "torch.det(self.w)", "flow.py", 6),)
    site = Site(None, None, "aten.log.default", around=Around(names=names))
    given, bad = by_hand.fact(shape=(), zeros=1, min=0.0), by_hand.fact(shape=(), neginf=1)
    place = {"op": "aten.log.default", "source": text, "column": (9, 29)}
    origin = Origin("inf", 0, (0,), 5, **place, inputs=(given,), outputs=(bad,))
    facts = Facts(origin, "look", look=Looked("found", "replay", 5, source="op", site=site))
    assert [one.code for one in explain(facts)[1].suggestions] == ["ld = torch.linalg.slogdet(self.w)[1]"]


def test_weight_norm_of_a_layer_that_begins_at_zero(at, by_hand):
    direction, length = by_hand.fact(zeros=16, min=0.0, max=0.0), by_hand.fact(zeros=4, shape=(4, 1))
    for step, mended in ((0, "nn.init.zeros_(layer.parametrizations.weight.original0)"), (5, "original0[rows] = 0.0")):
        found = explain(at("_weight_norm_interface", (direction, length), (by_hand.fact(nan=16),), step=step))[1]
        assert found.slug == "division_by_zero"
        assert found.suggestions[0].code.endswith(mended)
    rows = by_hand.fact(min=0.5)
    assert explain(at("_weight_norm_interface", (rows, length), (by_hand.fact(nan=16),)))[1].slug != "division_by_zero"


def test_each_logarithm_of_a_line_is_kept_away_from_zero(at, by_hand):
    line = "return (p * (p.log() - q.log())).sum()"
    facts = at("log", (by_hand.fact(zeros=1),), (by_hand.fact(neginf=1),), **on(line, "p.log()"))
    assert first(facts) == "return (p * (p.clamp_min(1e-12).log() - q.clamp_min(1e-12).log())).sum()"


def test_a_logarithm_beside_it_that_is_guarded_already_stays(at, by_hand):
    line = "return p.log() - (q + 1e-9).log()"
    facts = at("log", (by_hand.fact(zeros=1),), (by_hand.fact(neginf=1),), **on(line, "p.log()"))
    assert first(facts) == "return p.clamp_min(1e-12).log() - (q + 1e-9).log()"


def corrected(at, by_hand, line, expression, bad, meanings=()):
    facts = at("div", (by_hand.fact(),), (by_hand.fact(**bad),), extra={"arg1": 0.0}, **on(line, expression))
    look = replace(facts.look, site=Site(around=Around(meanings)))
    return replace(facts, look=look)


def test_a_bias_correction_of_nothing_counts_from_one_wherever_the_line_stands(at, by_hand):
    line = "q.copy_(s / (1 - self.beta**self.t))"
    facts = corrected(at, by_hand, line, "s / (1 - self.beta**self.t)", {"posinf": 9})
    assert first(facts) == "q.copy_(s / (1 - self.beta**(self.t + 1)))"


def test_a_bias_correction_by_a_name_is_mended_where_the_name_is_made(at, by_hand):
    named = (Meaning("corr", "1 - decay ** t", "train.py", 3),)
    assert (
        first(corrected(at, by_hand, "q = s / corr", "s / corr", {"posinf": 9}, named)) == "corr = 1 - decay ** (t + 1)"
    )


def test_an_average_of_nothing_is_not_read(at, by_hand):
    named = (Meaning("corr", "1 - self.decay ** self.updates", "train.py", 3),)
    facts = corrected(at, by_hand, "v.copy_(s / corr)", "s / corr", {"nan": 9}, named)
    assert "nothing was averaged yet" in explain(facts)[1].suggestions[0].text
    assert "1e-6" not in (first(facts) or "")


@pytest.mark.parametrize(
    ("op", "line", "code"),
    [
        ("sum", "loss = F.cross_entropy(z, y, label_smoothing=0.1)", "loss = F.cross_entropy(z, y)"),
        ("mean", "loss = scores.mean()", "loss = scores.masked_fill(scores.isinf(), 0).mean()"),
        ("amin", "near = d.amin(1)", "near = near[near.isfinite()]"),
    ],
)
def test_what_a_mask_made_infinite_is_left_out(at, by_hand, line, op, code):
    masked = by_hand.fact(posinf=3) if op == "amin" else by_hand.fact(neginf=3)
    facts = at(op, (masked,), (by_hand.fact(posinf=1),), **on(line, line.partition("= ")[2]))
    assert explain(facts)[1].slug == "domain_error"
    assert first(facts) == code
    shares = [one.code for one in explain(facts)[1].suggestions if "the share" in one.text]
    assert all(text.startswith("logp = z.log_softmax(-1); left = z.isfinite()") for text in shares)
    assert bool(shares) is ("smoothing" in line)


def test_a_divisor_of_several_lines_is_mended_where_it_is_made(at, by_hand):
    line = "zero = torch.round(-low / scale)"
    facts = at(
        "div", (by_hand.fact(), by_hand.fact(zeros=1, min=0.0)), (by_hand.fact(nan=1),), **on(line, "-low / scale")
    )
    around = Around((Meaning("scale", "(high - low) / 255", "train.py", 6, divides=True),))
    facts = replace(facts, look=Looked("found", "replay", 1, source="op", site=Site(around=around)))
    assert first(facts) == "scale = ((high - low) / 255).clamp_min(1e-6)"


@pytest.mark.parametrize(
    ("lines", "told"),
    [((), "where it is set, updated or restored."), ((9,), "where it is set: line 9."),
     ((3, 9, 14), "where it is set: lines 3, 9 and 14.")],
)  # fmt: skip
def test_the_lines_that_set_a_divisor_of_one_number_are_told(at, by_hand, lines, told):
    line = "z = logits / temperature"
    facts = at("div", (by_hand.fact(),), (by_hand.fact(posinf=4),), **on(line, "logits / temperature"))
    around = Around(written=(Written("temperature", lines),) if lines else ())
    look = Looked("found", "replay", 1, source="op", site=Site(around=around), facts={"arg1": 0.0})
    found = explain(replace(facts, look=look))[1].suggestions
    assert [one.text for one in found] == [f"temperature is 0, and what it divides is not: look at {told}"]


@pytest.mark.parametrize(
    ("op", "line", "expression", "code"),
    [
        ("empty_like", "h = torch.empty_like(x)", "torch.empty_like(x)", "h = torch.zeros_like(x)"),
        ("empty", "h = torch.empty(3, 4)", "torch.empty(3, 4)", "h = torch.zeros(3, 4)"),
        ("empty", "h = torch.empty(*n, 4)", "torch.empty(*n, 4)", "h = torch.zeros(*n, 4)"),
        ("empty", "h = x.new_empty(3)", "x.new_empty(3)", "h = x.new_zeros(3)"),
        ("empty", "h = made(3)", "made(3)", "torch.zeros_like(x)"),
    ],
)
def test_memory_that_was_left_unwritten_is_to_begin_with_zeros(at, by_hand, op, line, expression, code):
    facts = at(op, (), (by_hand.fact(nan=3),), **on(line, expression))
    assert explain(facts)[1].slug == "uninitialised_memory"
    assert first(facts) == code


def test_what_came_bad_into_a_line_has_the_scripts_name_and_the_lines_that_set_it(at, by_hand):
    line = "loss = (error / scale).pow(2).mean()"
    facts = at("div", (by_hand.fact(nan=1),), (by_hand.fact(nan=4),), **on(line, "error / scale"))
    around = Around(written=(Written("scale", (10, 19)),))
    look = Looked("found", "replay", 1, source="outside", site=Site(around=around), facts={"script_name": "scale"})
    found = explain(replace(facts, look=look))[1].suggestions
    assert found[0].text == "scale was bad before this line used it: look at where it is set, lines 10 and 19."


def test_a_number_that_is_bad_has_the_scripts_name_and_the_lines_that_set_it(at, by_hand):
    line = "loss = mean * factor"
    facts = at("mul", (by_hand.fact(),), (by_hand.fact(nan=1),), **on(line, "mean * factor"))
    around = Around(written=(Written("factor", (12,)),))
    known = {"script_name": "factor", "arg1": "nan"}
    look = Looked("found", "replay", 1, source="op", site=Site(around=around), facts=known)
    found = explain(replace(facts, look=look))[1].suggestions
    assert found[0].text == "factor is nan: look at where it is set, line 12. Torch was given it as it is."


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("p.grad.mul_(1.0 / norm)", "p.grad.mul_(1.0 / norm.clamp_min(1e-6))"),
        ("p.grad.mul_(1.0 / n)", "p.grad.mul_(1.0 / n.clamp_min(1e-6))"),
        ("p.mul_(1.0 / total)", None),
    ],
)
def test_gradients_whose_norm_is_zero_stay_so_by_any_factor(at, by_hand, line, code):
    zero = by_hand.fact(zeros=1, shape=(), min=0.0, max=0.0, absmax=0.0)
    known = on(line, line.partition("(")[2][:-1])
    facts = at("reciprocal", (zero,), (by_hand.fact(posinf=1, shape=()),), phase="optimizer", **known)
    named = Around((Meaning("n", "p.grad.norm()", "train.py", 3),))
    assert first(replace(facts, look=replace(facts.look, site=Site(around=named)))) == code


def test_the_values_alone_are_those_of_the_same_factorisation(at, by_hand):
    line = on("u, s, v = torch.linalg.svd(a)", "torch.linalg.svd(a)")
    given, bad = by_hand.fact(zeros=2), by_hand.fact(nan=2)
    facts = at(
        "div",
        (given,),
        (bad,),
        node="LinalgSvdBackward0",
        forward_op="aten._linalg_svd.default",
        phase="backward",
        **line,
    )
    assert "torch.linalg.svdvals(A)" in [one.code for one in explain(facts)[1].suggestions]


def test_the_matrix_of_a_determinants_logarithm_is_guarded_in_its_own_line(at, by_hand):
    facts = at("_linalg_slogdet", (by_hand.fact(),), (by_hand.fact(neginf=1),), **on("loss = -logdet(c)", "logdet(c)"))
    assert first(facts) == "loss = -logdet(c + 1e-6 * torch.eye(c.shape[-1], device=c.device))"


@pytest.mark.parametrize(
    ("use", "bad", "told"),
    [
        ("loss = F.cross_entropy(z, y, weight=w, label_smoothing=0.1)", 2, "w[~w.isfinite()] = 0"),
        ("criterion = nn.BCEWithLogitsLoss(pos_weight=w)", 2, "w[~w.isfinite()] = 0"),
        ("loss = F.mse_loss(model(w), y)", 2, "assert torch.isfinite(x).all()"),
        ("loss = F.cross_entropy(z, y, weight=w)", 16, "assert torch.isfinite(x).all()"),
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
