"""Mends of whole lines: in place, means of nothing, casts, reciprocals, and whose function a backward belongs to."""

from dataclasses import replace

import pytest

from nandiag.analysis.causes import Facts, explain
from nandiag.analysis.report import Origin
from nandiag.events import Looked, Meaning, Site, Written, words
from nandiag.events.site import Around
from tests.unit.analysis.mends import told
from tests.unit.analysis.mends.placing import first, on


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


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("pos.sum().float()", "loss_l /= N.clamp_min(1)"),
        ("w.norm()", "loss_l /= N.clamp_min(1e-6)"),
    ],
)
def test_a_sum_that_is_divided_in_place_by_a_count_of_0_is_no_weight(at, by_hand, text, code):
    zero = by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0, absmax=0.0)
    facts = at(
        "div_", (zero, zero), (by_hand.fact(shape=(), nan=1),), extra={"of_weights": True, "made_by": []},
        **{**on("loss_l /= N", "loss_l /= N"), "phase": "loss"},
    )  # fmt: skip
    assert first(told.on(facts, ("N", text))) == code


@pytest.mark.parametrize("line", ["avg[k] /= total", "new = acc / total"])
@pytest.mark.parametrize(("spoilt", "told"), [(["0.weight"], "if total == 0: return"), ([], None)])
def test_an_average_of_nothing_that_became_the_weights_is_left_out(at, by_hand, line, spoilt, told):
    """By a small number in the divisor's place it would be finite: all weights 0."""
    zero = by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0, absmax=0.0)
    extra = {"of_weights": False, "reconstructed": True, **({"began_bad": spoilt} if spoilt else {})}
    facts = at(
        "div_", (by_hand.fact(zeros=16, min=0.0, max=0.0, absmax=0.0), zero), (by_hand.fact(nan=16),), extra=extra,
        **{**on(line, line.partition("= ")[2] if " /= " not in line else line), "phase": "optimizer"},
    )  # fmt: skip
    look = replace(facts.look, site=Site(around=Around(ends="")))
    assert (first(replace(facts, look=look)) == told) is (told is not None)


def test_a_quotient_in_place_that_leaves_elements_out(at, by_hand):
    facts = at("div_", (by_hand.fact(), by_hand.fact(zeros=1)), (by_hand.fact(posinf=1),), **on("w /= n", "w /= n"))
    assert first(facts) == "w /= torch.where(n != 0, n, torch.inf)"


@pytest.mark.parametrize(
    ("line", "expression", "code"),
    [
        (
            "r = v.sqrt().reciprocal()",
            "v.sqrt().reciprocal()",
            "r = torch.where(v > 1e-12, v.clamp_min(1e-12).sqrt(), torch.inf).reciprocal()",
        ),
        ("r = torch.reciprocal(v)", "torch.reciprocal(v)", "r = torch.reciprocal(torch.where(v != 0, v, torch.inf))"),
        ("r = 1 / v", "1 / v", "r = 1 / torch.where(v != 0, v, torch.inf)"),
    ],
)
def test_a_reciprocal(at, by_hand, line, expression, code):
    facts = at("reciprocal", (by_hand.fact(zeros=1, min=0.0),), (by_hand.fact(posinf=1),), **on(line, expression))
    assert first(facts) == code


@pytest.mark.parametrize(
    ("expression", "code"),
    [("f.half()", "f.float()"), ("f.to(torch.float16)", "f.to(torch.float32)"), ("f.to(kind)", None)],
)
def test_a_cast_of_the_scripts_own(at, by_hand, expression, code):
    given, out = by_hand.fact(absmax=2e5, max=2e5), by_hand.fact(posinf=1, dtype="float16")
    facts = at("_to_copy", (given,), (out,), extra={"float64_finite": True, "float64_absmax": 2e5},
               **on(f"kept = {expression}", expression))  # fmt: skip
    assert first(facts) == (f"kept = {code}" if code else "(x / scale).half()")
    in_hook = explain(replace(facts, origin=replace(facts.origin, phase="collective")))[1]
    assert in_hook.suggestions == ()


@pytest.mark.parametrize(
    ("expression", "code"),
    [("f.half()", "f.float()"), ("f.to(torch.float16)", "f.to(torch.float32)"), ("f.to(kind)", None)],
)
def test_a_cast_of_whole_numbers_is_to_float32(at, by_hand, expression, code):
    given, out = by_hand.fact(absmax=7e4, max=7e4, dtype="int64"), by_hand.fact(posinf=1, dtype="float16")
    facts = at("_to_copy", (given,), (out,), extra={"float64_finite": True, "float64_absmax": 7e4},
               **on(f"kept = {expression}", expression))  # fmt: skip
    assert first(facts) == (f"kept = {code}" if code else "x.float()")


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


def test_a_gamma_function_at_zero(at, by_hand):
    line = on("logp = dist.log_prob(a)", "dist.log_prob(a)")
    facts = at("lgamma", (by_hand.fact(zeros=1, min=0.0),), (by_hand.fact(posinf=1),), **line)
    found = explain(facts)[1]
    assert (found.slug, found.evidence) == ("domain_error", ("the input of lgamma holds 1 zero; it is infinite there",))
    (told,) = found.suggestions
    assert told.text.startswith("Where the model makes it")
    assert "Dirichlet" in told.text


def test_a_gamma_function_of_the_scripts_own_at_zero(at, by_hand):
    line = on("return torch.lgamma(k + r) - torch.lgamma(k + 1)", "torch.lgamma(k + r)")
    extra = {"made_by": ["AddBackward0", "ReluBackward0"]}
    facts = at("lgamma", (by_hand.fact(zeros=1, min=0.0),), (by_hand.fact(posinf=1),), extra=extra, **line)
    kept, made = explain(facts)[1].suggestions
    assert kept.code == "return torch.lgamma((k + r).clamp_min(1e-6)) - torch.lgamma(k + 1)"
    assert ("softplus" in kept.text, "distribution" in kept.text + made.text) == (False, False)
    assert "in the place of relu" in made.text
    assert made.code == "torch.nn.functional.softplus(z) + 1e-6"


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
    facts = at("sub", (old, new), (by_hand.fact(nan=4, neginf=8),), text=text, column=(22, 29))
    found = explain(told.on(facts, ("new", "torch.maximum(m, s.amax(-1, keepdim=True))")))[1]
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
    ("made", "slug", "code"),
    [
        ("z.T @ z / (len(z) - 1)", "linalg_degenerate", "cov + 1e-6 * torch.eye(cov.shape[-1], device=cov.device)"),
        ("z @ z.transpose(1, 2)", "linalg_degenerate", "cov + 1e-6 * torch.eye(cov.shape[-1], device=cov.device)"),
        ("a @ b.T", "domain_error", None),
        ("z @ z", "domain_error", None),
    ],
)
def test_the_determinant_of_a_product_with_its_own_transpose_is_negative_by_rounding_alone(
    at, by_hand, made, slug, code
):
    line = on("return -torch.logdet(cov)", "torch.logdet(cov)")
    facts = at("scalar_tensor", (), (by_hand.fact(shape=(), nan=1),), **line)
    found = explain(told.on(facts, ("cov", made)))[1]
    assert found.slug == slug
    size = "return -torch.linalg.slogdet(cov).logabsdet"
    assert found.suggestions[0].code == (size if code is None else f"return -torch.logdet({code})")


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
    for step in (0, 5):
        found = explain(at("_weight_norm_interface", (direction, length), (by_hand.fact(nan=16),), step=step))[1]
        assert (found.slug, found.suggestions[0].code) == ("division_by_zero", None)  # its name is not known
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


@pytest.mark.parametrize(
    ("line", "rows", "before", "code"),
    [
        ("loss = F.cross_entropy(z, y)", (6,), "gone = z.gather(1, y.clamp(min=0)[:, None])[:, 0].isinf()\n",
         "loss = F.cross_entropy(z, y.masked_fill(gone, -100))"),
        ("total += self.criterion(o[0], 1 + y) / n", (6,),
         "gone = o[0].gather(1, (1 + y).clamp(min=0)[:, None])[:, 0].isinf()\n",
         'total += self.criterion(o[0], (1 + y).masked_fill(gone, getattr(self.criterion, "ignore_index", -100))) / n'),
        ("F.nll_loss(z, y, ignore_index=PAD)", (6,), "gone = z.gather(1, y.clamp(min=0)[:, None])[:, 0].isinf()\n",
         "F.nll_loss(z, y.masked_fill(gone, PAD), ignore_index=PAD)"),
        ("F.cross_entropy(z, target=y)", (6,), "", None),
        ("F.cross_entropy(*pair)", (6,), "", None),
        ("F.cross_entropy(z, y)", (6, 4), "", None),
    ],
)  # fmt: skip
def test_a_target_that_is_masked_is_left_out(at, by_hand, line, rows, before, code):
    given = (by_hand.fact(neginf=3, shape=(6, 9)), by_hand.fact(dtype="int64", shape=rows))
    call = line.partition("= ")[2] if "loss =" in line or "+=" in line else line
    facts = at("nll_loss_forward", given, (by_hand.fact(posinf=1),), **on(line, call.partition(" /")[0]))
    assert explain(facts)[1].slug == "masked_infinity"
    assert first(facts) == (None if code is None else before + code)


def test_extremes_of_several_columns_keep_their_rows(at, by_hand):
    given, line = (by_hand.fact(neginf=30, shape=(12, 10, 24)),), "high = h.masked_fill(~m, -INF).amax(1)"
    facts = at("amax", given, (by_hand.fact(neginf=24, shape=(12, 24)),), **on(line, line.partition("= ")[2]))
    assert first(facts) == f"{line}\nhigh = high.masked_fill(high.isinf(), 0.0)"


@pytest.mark.parametrize(
    ("uses", "bad", "left_out"),
    [
        (["loss = near.mean()"], 1, True),
        (["loss = torch.relu(near).mean()"], 1, True),
        (["loss = near.mean()"], 6, False),  # nothing would be left
        (["loss = (near - far + 0.3).relu().mean()"], 1, False),
        ([], 1, False),  # it is not known what it meets
    ],
)
def test_rows_without_an_extreme_are_left_out_where_nothing_else_has_as_many(at, by_hand, uses, bad, left_out):
    line = "near = d.masked_fill(~same, torch.inf).amin(1)"
    facts = at("amin", (by_hand.fact(posinf=9),), (by_hand.fact(posinf=bad, shape=(6,)),),
               **on(line, line.partition("= ")[2]))  # fmt: skip
    facts = replace(facts, look=replace(facts.look, site=Site(around=Around(uses=tuple(uses)))))
    mend = "near[near.isfinite()]" if left_out else "near.masked_fill(near.isinf(), 0.0)"
    assert first(facts) == f"{line}\nnear = {mend}"


@pytest.mark.parametrize(
    ("op", "line", "code"),
    [
        ("sum", "loss = F.cross_entropy(z, y, label_smoothing=0.1)", "loss = F.cross_entropy(z, y)"),
        ("mean", "loss = scores.mean()", "loss = scores.masked_fill(scores.isinf(), 0).mean()"),
        ("amin", "near = d.amin(1)", "near = d.amin(1)\nnear = near.masked_fill(near.isinf(), 0.0)"),
    ],
)
def test_what_a_mask_made_infinite_is_left_out(at, by_hand, line, op, code):
    masked = by_hand.fact(posinf=3) if op == "amin" else by_hand.fact(neginf=3)
    facts = at(op, (masked,), (by_hand.fact(posinf=1, shape=(6,)),), **on(line, line.partition("= ")[2]))
    assert explain(facts)[1].slug == "masked_infinity"
    assert first(facts) == code
    shares = [one.code for one in explain(facts)[1].suggestions if "the share" in one.text]
    assert all(text.startswith("logp = z.log_softmax(-1); left = z.isfinite()") for text in shares)
    assert bool(shares) is ("smoothing" in line)


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


@pytest.mark.parametrize(("line", "op", "code"), [
    ("u, s, v = torch.linalg.svd(a)", "svd", "s = torch.linalg.svdvals(a)"),
    ("lam, vec = torch.linalg.eigh(h.mT @ h)", "eigh", "lam = torch.linalg.eigvalsh(h.mT @ h)"),
    ("vec = torch.linalg.eigh(h)[1]", "eigh", "torch.linalg.eigvalsh(h)"),
    ("_, vec = torch.linalg.eigh(h)", "eigh", None), ("q, r = torch.linalg.qr(h)", "qr", None),
])  # fmt: skip
def test_the_values_alone_are_those_of_the_same_factorisation(at, by_hand, line, op, code):
    shown = line.partition(" = ")[2].removesuffix("[1]")
    given, bad = by_hand.fact(zeros=2), by_hand.fact(nan=2)
    facts = at(
        "div",
        (given,),
        (bad,),
        node=f"Linalg{op.title()}Backward0",
        forward_op=f"aten._linalg_{op}.default",
        phase="backward",
        **on(line, shown),
    )
    assert [one.code for one in explain(facts)[1].suggestions][1:] == ([] if code is None else [code])


def test_the_matrix_of_a_determinants_logarithm_is_guarded_in_its_own_line(at, by_hand):
    facts = at("_linalg_slogdet", (by_hand.fact(),), (by_hand.fact(neginf=1),), **on("loss = -logdet(c)", "logdet(c)"))
    assert first(facts) == "loss = -logdet(c + 1e-6 * torch.eye(c.shape[-1], device=c.device))"


@pytest.mark.parametrize(
    ("op", "line", "expression", "code"),
    [
        ("log1p", "z = torch.log(u) - torch.log1p(-u)", "torch.log1p(-u)",
         "z = torch.log(u.clamp_min(1e-12)) - torch.log1p((-u).clamp_min(-1 + 1e-6))"),
        ("log", "z = torch.log(u) - torch.log1p(-u)", "torch.log(u)",
         "z = torch.log(u.clamp_min(1e-12)) - torch.log1p((-u).clamp_min(-1 + 1e-6))"),
        ("log1p", "z = torch.log(v) - torch.log1p(-u)", "torch.log1p(-u)",
         "z = torch.log(v) - torch.log1p((-u).clamp_min(-1 + 1e-6))"),
        ("log1p", "z = torch.log(u + 1e-6) - torch.log1p(-u)", "torch.log1p(-u)",
         "z = torch.log(u + 1e-6) - torch.log1p((-u).clamp_min(-1 + 1e-6))"),
    ],
)  # fmt: skip
def test_both_ends_of_one_number_are_bounded(at, by_hand, op, line, expression, code):
    """Behind a bound at one end the other is the next to break."""
    first = line.index(expression)
    given = by_hand.fact(min=-1.0) if op == "log1p" else by_hand.fact(zeros=1, min=0.0)
    facts = at(op, (given,), (by_hand.fact(neginf=1),), text=line, column=(first, first + len(expression)),
               file="train.py", phase="forward")  # fmt: skip
    assert code in [one.code for one in explain(facts)[1].suggestions]


_PARTS = [("parametrizations.weight.original1", "parametrizations.weight.original0"), ("weight_v", "weight_g")]


@pytest.mark.parametrize(("step", "lengths", "told"), [
    (0, 4, "Let the direction of"),
    (30, 4, "If it is new, made of zeros: let the direction of"),
    (30, 3, "Rows of the direction were set to 0"),
])  # fmt: skip
@pytest.mark.parametrize("parts", _PARTS)
def test_a_layer_that_is_zeros_since_training_began_may_be_new(at, by_hand, parts, step, lengths, told):
    """Of a weight of zeros weight_norm makes a length of zeros; what was pruned keeps its length, as a rule."""
    names = [f"blocks.1.c2.{one}" for one in parts]
    given = by_hand.fact(names[0], zeros=16, min=0.0, max=0.0), by_hand.fact(names[1], zeros=lengths, shape=(4, 1))
    line = on("return x + self.c2(h)", "self.c2(h)")
    (mend,) = explain(at("_weight_norm_interface", given, (by_hand.fact(nan=16),), step=step, **line))[1].suggestions
    assert mend.text.startswith(told)
    assert (mend.code is None) is (lengths == 3)
    assert "new" in mend.text or step == 0
    assert "pruning does" not in mend.text


@pytest.mark.parametrize("parts", _PARTS)
def test_a_layer_whose_weight_is_normalised_is_called_as_the_line_calls_it(at, by_hand, parts):
    names = [f"blocks.1.c2.{one}" for one in parts]
    given = by_hand.fact(names[0], zeros=16, min=0.0, max=0.0), by_hand.fact(names[1], zeros=4, shape=(4, 1))
    line = on("return x + self.c2(h)", "self.c2(h)")
    facts = at("_weight_norm_interface", given, (by_hand.fact(nan=16),), step=0, **line)
    site = Site(around=Around(written=(Written("self.c2", (18,)),)))
    facts = replace(facts, look=Looked("found", "replay", 0, source="op", site=site))
    (mend,) = explain(facts)[1].suggestions
    normal, zeros = (f"self.c2.{one}" for one in parts)
    assert mend.code == f"torch.nn.init.normal_({normal}, std=0.02); torch.nn.init.zeros_({zeros})  # behind line 18"
    assert "blocks.1.c2" in mend.text


def test_what_a_gamma_function_is_taken_of_is_bounded_in_its_own_line(at, by_hand):
    line = on("ml = (torch.digamma(S) - torch.digamma(alpha)).sum(1)", "torch.digamma(S)")
    facts = at("digamma", (by_hand.fact(zeros=1, min=0.0),), (by_hand.fact(neginf=1),), **line)
    assert first(facts) == "ml = (torch.digamma(S.clamp_min(1e-6)) - torch.digamma(alpha)).sum(1)"
