"""Rows that are masked whole, targets and draws beyond what they may be: the mend in whole lines."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from nandiag.analysis.causes import explain
from nandiag.events import Around, History, Site, Statement
from nandiag.events.forms import plain
from tests.unit.analysis.mends.told import advice, on, placed

# ---------------------------------------------------------------------- before the maximum


def shifted(at, by_hand, line, *names, uses=()):
    given = (by_hand.fact(neginf=8), by_hand.fact(neginf=1, shape=(4, 1)))
    return on(at("sub", given, (by_hand.fact(nan=4),), **placed(line, "s - m")), *names, uses=uses)


def test_a_row_that_is_masked_whole_is_mended_before_its_maximum_is_taken(at, by_hand):
    told = advice(shifted(at, by_hand, "e = torch.exp(s - m)", ("m", "s.max(-1, keepdim=True).values")))
    assert told[0].text.startswith("Before line 3, which takes the maximum, put the lowest finite number")
    assert told[0].code == "s = s.clamp_min(torch.finfo(s.dtype).min)"


@pytest.mark.parametrize("made", ["torch.maximum(top, s.amax(-1, keepdim=True))", "torch.max(top, s.amax(-1, True))"])
def test_a_block_of_a_softmax_in_blocks_may_be_masked_whole(at, by_hand, made):
    told = advice(shifted(at, by_hand, "e = torch.exp(s - m)", ("m", made)))
    assert told[0].code == "s = s.clamp_min(torch.finfo(s.dtype).min)"
    assert told[0].text.endswith("scaled to 0 by the first block that has a score for it.")
    assert not any("mean over all" in one.text or "unmasked" in one.text for one in told)


def test_the_line_that_takes_the_maximum_is_told_behind_a_view_of_it(at, by_hand):
    line = "e = torch.exp(s - m.unsqueeze(d))"
    given = (by_hand.fact(neginf=8), by_hand.fact(neginf=1, shape=(4, 1)))
    facts = at("sub", given, (by_hand.fact(nan=4),), **placed(line, "s - m.unsqueeze(d)"))
    assert advice(on(facts, ("m", "s.max(d).values")))[0].text.startswith("Before line 3, which takes the maximum")


def test_the_maxima_of_groups_are_mended_whole_and_not_where_they_are_fetched(at, by_hand):
    given = (by_hand.fact(neginf=8, shape=(16,)), by_hand.fact(neginf=1, shape=(16,)))
    facts = at("sub", given, (by_hand.fact(nan=1),), **placed("p = torch.exp(e - m[group])", "e - m[group]"))
    told = advice(on(facts, ("m", "low.scatter_reduce(0, group, e, 'amax')")))
    assert told[0].code == "m = m.clamp_min(torch.finfo(m.dtype).min)"
    assert "a group" in told[1].text


def test_a_maximum_that_the_line_gives_back_is_kept_finite_itself(at, by_hand):
    line = "z = torch.exp(s - m).sum(-1) * torch.exp(m.squeeze(-1))"
    told = advice(shifted(at, by_hand, line, ("m", "s.amax(-1, keepdim=True)"), uses=("log(z)",)))[0]
    assert told.text.startswith("Behind line 3, which takes the maximum, put the lowest finite number")
    assert told.code == "m = m.clamp_min(torch.finfo(m.dtype).min)"


@pytest.mark.parametrize("over", ["AllReduceSum.apply", "funcol.all_reduce", "keep"])
def test_the_maximum_of_a_part_of_the_vocabulary_is_to_be_that_of_all_ranks(at, by_hand, over):
    use = f"z = {over}(e.sum(-1) * torch.exp(m.squeeze(-1)))"
    facts = shifted(at, by_hand, "e = torch.exp(s - m)", ("m", "s.max(dim=-1, keepdim=True).values"), uses=(use,))
    told = advice(facts)
    finite = "m = m.clamp_min(torch.finfo(m.dtype).min)"
    summed = over != "keep"
    assert [one.code for one in told[: 1 + summed]] == [
        *(["torch.distributed.all_reduce(m, op=torch.distributed.ReduceOp.MAX)"] if summed else []), finite,
    ]  # fmt: skip
    assert explain(facts)[1].slug == "masked_infinity"
    assert not any("mean over all" in one.text for one in told)


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (["acc, den = (acc * scale + p @ v, den * scale + p.sum(1, keepdim=True))"], "acc / den.clamp_min(1e-6)"),
        (["l = l * scale + torch.sum(p, -1)", "o = scale * o + p @ v", "m = new_m"], "o / l.clamp_min(1e-6)"),
        (["acc = acc * scale + p @ v"], None),
        ([], None),
    ],
)
def test_the_sum_of_a_softmax_in_blocks_is_kept_from_0_by_its_name(at, by_hand, lines, code):
    given = (by_hand.fact(neginf=10, shape=(10, 1)), by_hand.fact(neginf=2, shape=(10, 1)))
    line = placed("scale = torch.exp(m - new_m)", "m - new_m")
    facts = at("sub", given, (by_hand.fact(nan=2, neginf=8),), **line)
    lines = ["new_m = torch.maximum(m, s.amax(1, keepdim=True))", *lines]
    around = Around(block=tuple(Statement(30 + at, text) for at, text in enumerate(lines)))
    told = advice(replace(facts, look=replace(facts.look, site=Site(around=around))))
    assert told[1].code == code
    assert told[1].text.startswith("And keep ")


def test_the_infinities_of_a_sum_may_be_in_either_term(at, by_hand):
    given = (by_hand.fact(neginf=8), by_hand.fact(neginf=1, shape=(4, 1)))
    facts = at("sub", given, (by_hand.fact(nan=4),), **placed("e = (s + b - m).exp()", "s + b - m"))
    told = advice(on(facts, ("m", "(s + b).amax(-1, keepdim=True)")))[0]
    assert "and take the maximum and this difference of that" in told.text
    assert told.code == "(s + b).clamp_min(torch.finfo((s + b).dtype).min)"


@pytest.mark.parametrize(
    ("line", "uses"), [("y = m + (s - m).exp().sum(-1).log()", ()), ("e = (s - m).exp()", ("y = torch.log(e.sum())",))]
)
def test_the_logarithm_of_a_sum_of_nothing_has_no_number_in_its_place(at, by_hand, line, uses):
    told = advice(shifted(at, by_hand, line, ("m", "s.amax(-1)"), uses=uses))[0]
    assert told.code == "s = s[s.isfinite().any(-1)]"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("return (s - m).exp().sum(d).log() + m.squeeze(d)", "return torch.logsumexp(s.clamp_min(-1e30), dim=d)"),
        ("a = m + torch.log((s - m).exp().sum(1)) + e", "a = torch.logsumexp(s.clamp_min(-1e30), dim=1) + e"),
        ("a = torch.log(w @ (s - m).exp()) + m", "s = s.clamp_min(-1e30)"),
    ],
)
def test_rows_of_rows_stay_far_below_all_others(at, by_hand, line, code):
    given = (by_hand.fact(neginf=8, shape=(2, 4, 4)), by_hand.fact(neginf=1, shape=(2, 1, 4)))
    facts = at("sub", given, (by_hand.fact(nan=4),), **placed(line, "s - m"))
    assert advice(facts)[0].code == code


@pytest.mark.parametrize(
    ("shape", "along", "code"),
    [
        ((4, 1), "-1", "s = s[s.isfinite().any(-1)]"),
        ((1, 4), "0", "return (torch.logsumexp(s.clamp_min(-1e30), dim=0, keepdim=True)).squeeze(0)"),
        ((4, 1), "dim", "return (torch.logsumexp(s.clamp_min(-1e30), dim=dim, keepdim=True)).squeeze(dim)"),
    ],
)
def test_rows_are_left_out_of_a_table_along_its_last_dimension_alone(at, by_hand, shape, along, code):
    """What is taken out along another one is no row; and behind a maximum of 0 the gradient of a logarithm is NaN."""
    given = (by_hand.fact(neginf=8), by_hand.fact(neginf=1, shape=shape))
    line = f"return (m + torch.log(torch.exp(s - m).sum({along}, keepdim=True))).squeeze({along})"
    facts = at("sub", given, (by_hand.fact(nan=4),), **placed(line, "s - m"))
    found = explain(on(facts, ("m", f"s.max({along}, keepdim=True).values")))[1]
    assert (found.slug, found.suggestions[0].code) == ("masked_infinity", code)


@pytest.mark.parametrize(
    ("fill", "code"),
    [
        ("q.masked_fill(~keep, -inf)", "keep = keep | ~keep.any(-1, keepdim=True)"),
        ("q.masked_fill(pad, -inf)", "pad = pad.masked_fill(pad.all(-1, keepdim=True), False)"),
    ],
)
def test_a_mask_is_opened_the_way_it_is_meant(at, by_hand, fill, code):
    assert advice(shifted(at, by_hand, "e = torch.exp(s - m)", ("s", fill)))[1].code == code


@pytest.mark.parametrize(
    ("fill", "code"),
    [
        ('s.masked_fill(~keep.unsqueeze(1), float("-inf"))', "keep = keep | ~keep.any(-1, keepdim=True)"),
        ("torch.where(keep[:, None], s, -math.inf)", "keep = keep | ~keep.any(-1, keepdim=True)"),
        ("s.masked_fill(pad[:, None, :], NEG_INF)", "pad = pad.masked_fill(pad.all(-1, keepdim=True), False)"),
        ("s.masked_fill(keep == 0, -math.inf)", None),
        ("s.masked_fill(~keep[:, :, None], -math.inf)", None),
        ("s + bias", None),
    ],
)
def test_a_softmax_is_given_a_mask_that_is_opened_the_way_it_is_meant(at, by_hand, fill, code):
    given = (by_hand.fact(neginf=8),)
    facts = on(
        at("_softmax", given, (by_hand.fact(nan=4),), **placed("y = s.softmax(-1)", "s.softmax(-1)")), ("s", fill)
    )
    told = advice(facts)
    assert [one.code for one in told] == ["y = s.clamp_min(torch.finfo(s.dtype).min).softmax(-1)", code]
    names = {"keep": torch.tensor([[True, False], [False, False]]), "s": torch.zeros(2, 2, 2), "torch": torch}
    names |= {"pad": ~names["keep"], "math": math, "NEG_INF": -math.inf}
    if code is not None:
        exec(f"{code}\ny = ({fill}).softmax(-1)", names)  # noqa: S102
        assert names["y"].tolist() == [[[1.0, 0.0]] * 2, [[0.5, 0.5]] * 2]


def test_a_mask_that_torch_is_handed_is_opened_the_way_torch_takes_it(at, by_hand):
    given, bad = (by_hand.fact(), by_hand.fact(dtype="bool")), (by_hand.fact(nan=4),)
    call = "F.scaled_dot_product_attention(q, k, v, attn_mask=seen)"
    facts = at("_scaled_dot_product_efficient_attention", given, bad, **placed(f"y = {call}", call))
    assert [one.code for one in advice(facts)] == ["seen = seen | ~seen.any(-1, keepdim=True)"]
    own = at("_softmax", (by_hand.fact(neginf=8),), bad, module_class="MultiheadAttention")
    assert "key_padding_mask.all(-1" in advice(own)[0].code
    assert advice(at("_softmax", (by_hand.fact(neginf=8),), bad))[0].code is None


def test_a_padding_mask_is_opened_where_the_line_hands_it_over(at, by_hand):
    call = "self.attend(x, x, x, key_padding_mask=pad)"
    place = placed(f"y, _ = {call}", call)
    facts = at(
        "_softmax", (by_hand.fact(neginf=8),), (by_hand.fact(nan=4),), **place, module_class="MultiheadAttention"
    )
    (told,) = [one.code for one in advice(facts)]
    attend = torch.nn.MultiheadAttention(4, 2, batch_first=True).eval()
    pad = torch.tensor([[False, True], [True, True]])
    names = {"self": SimpleNamespace(attend=attend), "x": torch.ones(2, 2, 4), "pad": pad}
    exec(told, names)  # noqa: S102
    assert bool(names["y"].isfinite().all())


# ---------------------------------------------------------------------- eight bits by hand


@pytest.mark.parametrize(("dtype", "end"), [("float8_e5m2", "57344"), ("float8_e4m3fnuz", "240")])
def test_a_cast_to_eight_bits_ends_at_the_largest_that_they_hold(at, by_hand, dtype, end):
    large = by_hand.fact(max=62890.0, absmax=62890.0)
    line = f"y = (x * scale).to(torch.{dtype}).float()"
    facts = at("_to_copy", (large,), (by_hand.fact(dtype=dtype, nan=1),), extra={"float64_finite": True},
               **placed(line, f"(x * scale).to(torch.{dtype})"))  # fmt: skip
    cause = explain(facts)[1]
    assert cause.slug == "overflow"
    mended = cause.suggestions[0].code
    assert mended == f"y = (x * scale).clamp(-{end}, {end}).to(torch.{dtype}).float()"
    names = {"torch": torch, "x": torch.tensor([3.0, 1e6]), "scale": 1.0}
    exec(mended, names)  # noqa: S102
    assert names["y"].isfinite().all()


# ---------------------------------------------------------------------- targets beyond 0 and 1


@pytest.mark.parametrize(
    ("low", "high", "code"),
    [(-1.0, 1.0, "loss = F.binary_cross_entropy_with_logits(z, (y + 1) / 2)"),
     (1.0, 2.0, "loss = F.binary_cross_entropy_with_logits(z, y - 1)"),
     (0.0, 255.0, "loss = F.binary_cross_entropy_with_logits(z, y.clamp(0, 1))"), (0.0, 1.0, None)],
)  # fmt: skip
def test_targets_beyond_0_and_1_are_the_story_of_a_loss_without_a_bound(at, by_hand, low, high, code):
    given = (by_hand.fact(min=-6e37, absmax=6e37), by_hand.fact(min=low, max=high))
    line = "loss = F.binary_cross_entropy_with_logits(z, y)"
    facts = at("binary_cross_entropy_with_logits", given, (by_hand.fact(neginf=1),), extra={"float64_finite": True},
               **placed(line, line[7:]))  # fmt: skip
    story, _ = explain(facts)
    assert (story and story.suggestions[0].code) == code
    assert story is None or story.slug == "domain_error"


@pytest.mark.parametrize(("loss", "asks"), [(-5.2, True), (0.3, False)])
def test_a_cross_entropy_by_hand_that_went_below_0_asks_for_its_targets(at, by_hand, loss, asks):
    line = "loss = -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()"
    past = History((0, 1, 2), (0.7, loss, 0.5), (1.0,) * 3, (0.1,) * 3, (None,) * 3)
    facts = at("log", (by_hand.fact(zeros=1, min=0.0),), (by_hand.fact(neginf=1),), history=past,
               **placed(line, "torch.log(1 - p)"))  # fmt: skip
    story, mechanism = explain(facts)
    assert (story is not None) is asks
    assert mechanism.slug == "log_of_zero"
    assert not asks or story.suggestions[0].code == "assert ((y >= 0) & (y <= 1)).all()"


# ---------------------------------------------------------------------- what is drawn by


def test_weights_that_are_drawn_by_are_equal_where_all_are_0(at, by_hand):
    line = "p = w / w.sum(-1, keepdim=True)"
    given = (by_hand.fact(zeros=9), by_hand.fact(zeros=1, min=0.0, shape=(4, 1)))
    facts = at("div", given, (by_hand.fact(nan=1),), **placed(line, line[4:]))
    told = advice(on(facts, uses=("i = torch.multinomial(p, 1)",)))[0].code
    assert told == "p = (w + 1e-6) / (w + 1e-6).sum(-1, keepdim=True)"
    names = {"torch": torch, "w": torch.tensor([[0.0, 0.0], [1.0, 3.0]])}
    exec(told, names)  # noqa: S102
    assert torch.allclose(names["p"], torch.tensor([[0.5, 0.5], [0.25, 0.75]]), atol=1e-5)
    assert advice(on(facts, uses=("y = p @ v",)))[0].code == "p = w / w.sum(-1, keepdim=True).clamp_min(1e-6)"


@pytest.mark.parametrize("given", ["probs=w", "w"])
def test_a_categorical_of_weights_that_are_all_0(at, by_hand, given):
    line = f"dist = Categorical({given})"
    facts = at("div", (by_hand.fact(zeros=9), by_hand.fact(zeros=1)), (by_hand.fact(nan=1),), **placed(line, line[7:]))
    assert advice(facts)[0].code == f"dist = Categorical({given} + 1e-6)"


# ---------------------------------------------------------------------- scores that a mask took out

_ENTROPY = "return -(p * p.log()).sum(-1).mean()"
_NARROW = {"max": 0.22, "absmin": 0.06}


@pytest.mark.parametrize(
    ("made", "before", "seen", "bounded"),
    [
        ("z.softmax(-1)", "z = z.masked_fill(z < floor, -torch.inf)", {}, True),
        ("z.softmax(-1)", "z[~keep] = float('-inf')", {}, True),
        ("z.softmax(-1)", "z = torch.where(keep, z, -float('inf'))", {}, True),
        ("z.masked_fill(pad, -math.inf).softmax(-1)", None, {}, True),
        ("z.softmax(-1)", None, _NARROW, True),
        ("z.softmax(-1)", None, {"max": 1.0, "absmin": 0.2}, False),
        ("z.softmax(-1)", None, {"max": 0.22, "absmin": 1e-40}, False),
        ("z.softmax(-1)", None, {**_NARROW, "dtype": "float16"}, False),
        ("torch.softmax(z - 1e9 * pad, -1)", None, {"max": 1.0}, False),
        ("torch.sigmoid(z)", None, _NARROW, False),
    ],
)
def test_scores_of_minus_inf_have_no_logarithm_in_one_step(at, by_hand, made, before, seen, bounded):
    given = by_hand.fact(zeros=4, min=0.0, **seen)
    facts = on(at("log", (given,), (by_hand.fact(neginf=4),), **placed(_ENTROPY, "p.log()")), ("p", made))
    block = tuple(Statement(line, text) for line, text in ((3, before), (4, f"p = {made}"), (5, _ENTROPY)) if text)
    site = facts.look.site
    site = replace(site, around=replace(site.around, block=block))
    codes = [one.code for one in advice(replace(facts, look=replace(facts.look, site=site)))]
    assert any("log_softmax" in code or "logsigmoid" in code for code in codes) is not bounded
    assert ("clamp_min" in codes[0]) is bounded


def test_zeros_of_a_masked_softmax_made_elsewhere_are_bounded_too(at, by_hand):
    given = by_hand.fact(zeros=12, min=0.0, **_NARROW)
    extra = {"of_weights": True, "made_by": ["SoftmaxBackward0"]}
    facts = at("log", (given,), (by_hand.fact(neginf=12),), extra=extra, **placed(_ENTROPY, "p.log()"))
    assert [one.code for one in advice(facts)] == ["return -(p * p.clamp_min(1e-12).log()).sum(-1).mean()"]


@pytest.mark.parametrize(
    ("seen", "left_out"),
    [({"max": 0.9955, "absmin": 9.8e-5}, True), ({"max": 1.0, "absmin": 9.8e-5}, False), ({"max": 0.9955}, False)],
)
def test_a_teacher_whose_scores_are_masked_has_its_terms_left_out(at, by_hand, seen, left_out):
    line = "return (p * (p.log() - F.log_softmax(student / t, -1))).sum(-1).mean() * t * t"
    given = by_hand.fact(shape=(16, 6), zeros=32, min=0.0, **{"absmin": 1e-30, **seen})
    facts = at("log", (given,), (by_hand.fact(neginf=32),), extra={"of_weights": False}, **placed(line, "p.log()"))
    told = advice(on(facts, ("p", "F.softmax(teacher / t, -1)")))
    assert (".masked_fill(p == 0, 0.0)" in told[0].code) is left_out
    if not left_out:
        assert "which is finite where the scores are" in told[0].text
        return
    teacher = torch.randn(16, 6).masked_fill(torch.arange(6) > 3, -math.inf)
    student = teacher.clone().requires_grad_()
    share = teacher.requires_grad_().softmax(-1)
    names = {"p": share, "student": student, "t": 2.0, "torch": torch, "F": torch.nn.functional}
    loss = eval(told[0].code.removeprefix("return "), names)  # noqa: S307
    loss.backward()
    assert loss.isfinite()
    assert student.grad.isfinite().all()
    assert teacher.grad.isfinite().all()


@pytest.mark.parametrize(
    ("line", "expression", "code"),
    [
        ("loss = nn.functional.cross_entropy(z, y)", "nn.functional.cross_entropy(z, y)",
         "loss = nn.functional.cross_entropy(z.clamp_min(torch.finfo(z.dtype).min), y)"),
        ("logp = z[:, 0].log_softmax(-1)", "z[:, 0].log_softmax(-1)",
         "logp = z[:, 0].clamp_min(torch.finfo(z[:, 0].dtype).min).log_softmax(-1)"),
        ("loss = F.cross_entropy(self.net(x), y)", "F.cross_entropy(self.net(x), y)", None),
        ("loss = self.criterion(z, y)", "self.criterion(z, y)", None),
    ],
)  # fmt: skip
def test_scores_that_are_masked_whole_are_bounded_in_a_loss_too(at, by_hand, line, expression, code):
    facts = at("_log_softmax", (by_hand.fact(neginf=4),), (by_hand.fact(nan=4),), **placed(line, expression))
    assert advice(facts)[0].code == code


BOUNDED = """scores = torch.zeros(n).masked_fill(~m, float('-inf'))
w = scores.clamp_min(torch.finfo(scores.dtype).min).softmax(1)"""


@pytest.mark.parametrize(
    ("line", "expression", "code"),
    [
        ('w = torch.zeros(n).masked_fill(~m, float("-inf")).softmax(1)',
         'torch.zeros(n).masked_fill(~m, float("-inf")).softmax(1)',
         BOUNDED),
        ("w = torch.softmax(q @ k + m, -1)", "torch.softmax(q @ k + m, -1)",
         "scores = q @ k + m\nw = torch.softmax(scores.clamp_min(torch.finfo(scores.dtype).min), -1)"),
        ("w = s[:, 0].softmax(1)", "s[:, 0].softmax(1)",
         "w = s[:, 0].clamp_min(torch.finfo(s[:, 0].dtype).min).softmax(1)"),
    ],
)  # fmt: skip
def test_scores_that_are_computed_in_the_line_are_bounded_under_a_name(at, by_hand, line, expression, code):
    facts = at("_softmax", (by_hand.fact(neginf=4),), (by_hand.fact(nan=4),), **placed(line, expression))
    assert advice(facts)[0].code == code


# ---------------------------------------------------------------------- NaN that stands for what is missing


def missing(at, by_hand, line, shown, mask="bool", *, first=True, met=None):
    given = (by_hand.fact(nan=3), by_hand.fact(zeros=5, dtype=mask))
    given = given if first else given[::-1]
    extra = {"masked_nan": True, "masked_at": ["data.py", 9], **({} if met is None else {"met": met})}
    facts = at("mul", given, (by_hand.fact(nan=3),), **placed(line, shown), line=9, extra=extra)
    return explain(facts)[1]


def meeting(op, line, shown, which=1, at=7, module_class=None):
    first = line.index(shown)
    site = Site(op=f"aten.{op}", file="train.py", line=at, column=(first, first + len(shown)), source=line,
                module_class=module_class)  # fmt: skip
    return {"site": plain(site), "which": which}


def test_a_product_with_a_mask_leaves_no_nan_out(at, by_hand):
    line = "return ((pred - target) ** 2 * mask).sum() / mask.sum()"
    cause = missing(at, by_hand, line, "(pred - target) ** 2 * mask",
                    met=meeting("sub.Tensor", line, "pred - target", at=9))  # fmt: skip
    assert cause.slug == "masked_infinity"
    assert cause.evidence == ("0 times NaN is NaN: 3 NaN where the mask is 0", "The NaN was written at data.py:9.")
    assert cause.suggestions[0].text.startswith("Put a number in the place of the NaN before the arithmetic")
    assert cause.suggestions[0].code == line.replace("pred - target", "pred - torch.where(mask, target, 0)")


@pytest.mark.parametrize(
    ("shown", "mask", "first", "met", "code"),
    [
        ("x * m", "bool", True, ("mul.Tensor", "y = x * m", "x * m", 0, 9), "y = torch.where(m, x, 0) * m"),
        (
            "m * d",
            "float32",
            False,
            ("mse_loss.default", "d = F.mse_loss(f(x), y, reduction='none')", "F.mse_loss(f(x), y, reduction='none')"),
            "d = F.mse_loss(f(x), torch.where(m != 0, y, 0), reduction='none')",
        ),
        (
            "d * m[0]",
            "bool",
            True,
            ("mse_loss.default", "d = loss(f(x), y)", "loss(f(x), y)", 1, 7, "MSELoss"),
            "d = loss(f(x), torch.where(m[0], y, 0))",
        ),
        ("d * m", "bool", True, ("mse_loss.default", "d = loss(f(x), y)", "loss(f(x), y)"), None),
        ("d * m", "bool", True, ("sub.Tensor", "d = gone(f(x), y)", "gone(f(x), y)"), None),
        ("d * m", "bool", True, ("sub.Tensor", "d -= y", "d -= y"), None),
        (
            "d * m",
            "bool",
            True,
            ("sub.Tensor", "d = f(x).sub(y)", "f(x).sub(y)"),
            "d = f(x).sub(torch.where(m, y, 0))",
        ),
        (
            "d * m",
            "bool",
            True,
            ("sub.Tensor", "d = y.sub(f(x)).abs()", "y.sub(f(x))", 0),
            "d = torch.where(m, y, 0).sub(f(x)).abs()",
        ),
        (
            "d * m",
            "bool",
            True,
            ("sub.Tensor", "d = torch.sub(f(x), other=y)", "torch.sub(f(x), other=y)"),
            "d = torch.sub(f(x), other=torch.where(m, y, 0))",
        ),
        ("d * m", "bool", True, ("sub.Tensor", "d = f(x).sub_(y)", "f(x).sub_(y)"), None),
        ("d * m", "bool", True, ("sub.out", "d = torch.sub(f(x), y, out=z)", "torch.sub(f(x), y, out=z)"), None),
        ("d * draw(m)", "bool", True, ("sub.Tensor", "d = f(x) - y", "f(x) - y"), None),
        ("torch.mul(d, m)", "bool", True, ("sub.Tensor", "d = f(x) - y", "f(x) - y"), None),
        ("d * m", "bool", True, None, None),
        ("(pred - target) ** 2 * m", "bool", True, None, None),
    ],
)
def test_a_number_stands_for_the_nan_only_where_it_is_known_what_holds_it(at, by_hand, shown, mask, first, met, code):
    told = missing(at, by_hand, f"y = {shown}", shown, mask, first=first, met=met and meeting(*met)).suggestions[0]
    assert told.code == code
    assert told.text.startswith("In line 7, put") is (code is not None and met[-1] != 9)


# ---------------------------------------------------------------------- the logarithm of a sum of nothing


@pytest.mark.parametrize(
    ("laid", "code"),
    [
        ("s = s.masked_fill(same, -torch.inf)", "n = torch.logsumexp(s, 1)\nn = n.masked_fill(n.isinf(), 0.0)"),
        ("mask = torch.full((4,), -torch.inf)", "left = scores.isfinite().any(-1)\nscores = scores[left]"),
    ],
)
def test_rows_of_which_a_sum_finds_nothing_are_filled_behind_it_where_no_gradient_is_nan(at, by_hand, laid, code):
    given = (by_hand.fact(neginf=8), by_hand.fact(neginf=4, shape=(4,)))
    extra = {"masked_at": ["loss.py", 2], "masked_text": laid}
    line = "n = torch.logsumexp(s, 1)"
    cause = explain(at("logsumexp", given[:1], given[1:], **placed(line, "torch.logsumexp(s, 1)"), extra=extra))[1]
    assert cause.slug == "masked_infinity"
    assert cause.evidence[0] == "all that logsumexp is taken of is -Inf in places: the mask leaves nothing there"
    assert cause.suggestions[0].code == code
