"""Mends that train, and keep the model: rates, merges, pruned rows, dtypes and data."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from nandiag.analysis.causes import explain
from nandiag.events import History
from tests.unit.analysis.mends.told import advice, on, placed


def test_rows_of_a_weight_that_were_pruned_give_0_and_have_no_gradient(at, by_hand):
    line = "w = self.weight / self.weight.norm(dim=1, keepdim=True)"
    given = by_hand.fact("a.weight", zeros=8, min=-1.0), by_hand.fact(zeros=2, min=0.0)
    told = advice(at("div", given, (by_hand.fact(nan=8),), **placed(line, line[4:]), extra={"of_weights": True}))
    assert len(told) == 1
    assert "a.weight" in told[0].text
    weight = torch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    named = {"self": SimpleNamespace(weight=weight), "torch": torch}
    exec(told[0].code, named)  # noqa: S102
    named["w"].sum().backward()
    assert named["w"].tolist()[1] == weight.grad.tolist()[1] == [0.0, 0.0]


_LEAF, _NO_LEAF = {"of_weights": True, "made_by": []}, {"of_weights": False, "made_by": []}


@pytest.mark.parametrize(
    ("line", "extra", "leaves"),
    [
        ("p.data /= total", {}, True), ("p.data.div_(total)", {}, True), ("p.grad /= total", {}, False),
        ("m /= total", {}, False), ("p.div_(total)", _LEAF, True), ("p /= total", _LEAF, True),
        ("mean.div_(total)", _NO_LEAF, False),
    ],
)  # fmt: skip
def test_weights_that_are_merged_by_a_count_of_0_are_left_as_they_are(at, by_hand, line, extra, leaves):
    given = by_hand.fact(zeros=16, min=0.0, max=0.0), by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0)
    facts = at("div_", given, (by_hand.fact(nan=16),), extra=extra, **{**placed(line, line), "phase": "optimizer"})
    assert (advice(on(facts, ends=""))[0].code == "if total == 0: return") is leaves


@pytest.mark.parametrize(
    ("rate", "setting", "code"),
    [
        (math.nan, 'g["lr"] = base * float(pace)', 'g["lr"] = max(0.0, base * float(pace))'),
        (math.inf, "g['lr'] = pace", "g['lr'] = min(0.004, pace)"),
        (-0.1, 'g["lr"] = pace', None),
        (math.nan, "sched = LambdaLR(opt, factor)", None),
    ],
)
def test_a_bad_rate_is_bounded_by_the_most_that_it_was(at, by_hand, rate, setting, code):
    past = History((3, 4, 5), (1.0,) * 3, (1.0,) * 3, (0.004, 0.002, rate), (None,) * 3)
    line = "progress = value / change"
    given = by_hand.fact(shape=(), min=0.1, max=0.1), by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0)
    facts = at("div", given, (by_hand.fact(shape=(), posinf=1),), history=past,
               extra={"rate_set_at": [f"train.py:20: {setting}"]}, **placed(line, "value / change"))  # fmt: skip
    story, told = explain(replace(facts, origin=replace(facts.origin, phase="optimizer")))
    assert story.suggestions[0].code == code
    shown = f"The script sets the rate at train.py:20, by {setting}."
    assert story.suggestions[0].text.endswith(shown) is (code is None)
    assert all("1e-6" not in (one.code or "") for one in told.suggestions)


def test_a_rate_of_nan_that_is_read_of_a_tensor_gets_no_bound(at, by_hand):
    """What is carried on in the tensor stays NaN, and the rate would be 0 to the end of the training."""
    past = History((3, 4, 5), (1.0,) * 3, (1.0,) * 3, (0.004, 0.002, math.nan), (None,) * 3)
    setting = 'group["lr"] = 0.1 / (1 + self.turn.item())'
    facts = at("add_", (by_hand.fact(),), (by_hand.fact(nan=16),), history=past,
               extra={"rate_set_at": [f"train.py:20: {setting}"]}, **placed("opt.step()", "opt.step()"))  # fmt: skip
    told = explain(replace(facts, origin=replace(facts.origin, phase="optimizer")))[0].suggestions[0]
    assert (told.text, told.code) == (
        "train.py:20 sets the rate by what self.turn holds: look at what makes that.",
        None,
    )


def test_a_rate_that_a_division_by_zero_made_is_no_end_of_a_schedule(at, by_hand):
    past = History((3, 4, 5), (1.0,) * 3, (1.0,) * 3, (0.004, 0.0, math.nan), (None,) * 3)
    extra = {"rate_set_at": ['train.py:20: g["lr"] = float(s(t))'], "number": True,
             "numpy": "divide by zero encountered in divide"}  # fmt: skip
    line = "return lo * (hi / lo) ** pct"
    facts = at("add_", (by_hand.fact(),), (by_hand.fact(nan=16),), history=past, extra=extra, **placed(line, "hi / lo"))
    told = explain(replace(facts, origin=replace(facts.origin, phase="optimizer")))[0].suggestions[0]
    assert told.code is None
    assert "its end" not in told.text


def test_a_mended_rate_of_nan_is_0():
    assert max(0.0, math.nan) == 0.0
    assert max(0.0, torch.tensor(math.nan)) == 0.0


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("return (v - mean) / np.sqrt(var)", "return (v - mean) / np.sqrt(np.maximum(var, 1e-12))"),
        ("return np.sqrt(var)", "return np.sqrt(np.maximum(var, 0))"),
    ],
)
def test_a_root_of_numpys_that_is_divided_by_stays_above_zero(at, by_hand, line, code):
    extra = {"heard": True, "number": True, "numpy": "invalid value encountered in sqrt"}
    facts = at(None, (), (by_hand.fact(nan=8),), extra=extra, **placed(line, "np.sqrt(var)"))
    assert advice(facts)[-1].code == code


@pytest.mark.parametrize(("rated", "base"), [(True, "np.maximum(t, 1)"), (False, "np.where(t > 0, t, np.inf)")])
def test_what_a_rate_is_made_of_in_numpy_is_at_least_one(at, by_hand, rated, base):
    line = "return np.sqrt(WARM) * t ** -0.5"
    extra = {"heard": True, "number": True, "numpy": "divide by zero encountered in scalar power"}
    extra |= {"rate_set_at": ["train.py:48: sched = LambdaLR(opt, factor)"]} if rated else {}
    facts = at(None, (), (by_hand.fact(neginf=8),), extra=extra, **placed(line, "t ** -0.5"))
    assert advice(facts)[0].code == f"return np.sqrt(WARM) * {base} ** -0.5"


@pytest.mark.parametrize(
    ("line", "shown", "code"),
    [
        ("return float(base * np.power(step, -0.5))", "np.power(step, -0.5)",
         "return float(base * np.power(np.maximum(step, 1), -0.5))"),
        ("return base / np.sqrt(step)", "np.sqrt(step)", "return base / np.sqrt(np.maximum(step, 1))"),
    ],
)  # fmt: skip
def test_so_is_it_in_a_function_of_numpy(at, by_hand, line, shown, code):
    extra = {"heard": True, "number": True, "numpy": "divide by zero encountered in power"}
    extra |= {"rate_set_at": ["train.py:48: sched = LambdaLR(opt, factor)"]}
    facts = at(None, (), (by_hand.fact(neginf=8),), extra=extra, **placed(line, shown))
    assert advice(facts)[0].code == code


@pytest.mark.parametrize(
    ("line", "first"), [("y = np.log(x)", "y = np.log(np.maximum(x, 1e-12))"), ("y = own(x)", None)]
)
def test_the_help_that_has_code_stands_before_the_one_to_look_at_a_sample(at, by_hand, line, first):
    extra = {"numpy": "divide by zero encountered in log", "dataset": "Houses", "dataset_index": 77}
    facts = at(None, (), (by_hand.fact(neginf=1),), extra=extra, **placed(line, line[4:]))
    told = explain(replace(facts, origin=replace(facts.origin, phase="data")))[0].suggestions
    assert told[0].code == first
    assert [one.text.partition(" ")[0] for one in told] == (["Guard", "Or"] if first else ["Look", "Or"])


@pytest.mark.parametrize(
    ("dtype", "code"),
    [
        ("bfloat16", "return -torch.log((-torch.log(u)).clamp_min(1e-12))"),
        ("float16", "return -torch.log((-torch.log(u)).float().clamp_min(1e-12)).half()"),
    ],
)
def test_a_logarithm_that_is_mended_has_the_dtype_that_it_had(at, by_hand, dtype, code):
    line = "return -torch.log(-torch.log(u))"
    given = by_hand.fact(zeros=1, dtype=dtype, max=5.0, absmax=5.0)
    facts = at("log", (given,), (by_hand.fact(neginf=1, dtype=dtype),), **placed(line, "torch.log(-torch.log(u))"))
    assert advice(facts)[0].code == code
    u = torch.tensor([1.0, 0.5], dtype=getattr(torch, dtype))
    mended = eval(code.removeprefix("return "), {"torch": torch, "u": u})  # noqa: S307
    assert mended.dtype == u.dtype
    assert mended.isfinite().all()


def test_a_count_by_a_sum_of_the_script_is_at_least_one_first_of_all(at, by_hand):
    line = "weight = negatives / positives"
    given = by_hand.fact(shape=(), min=96.0, max=96.0), by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0)
    facts = at("div", given, (by_hand.fact(shape=(), posinf=1),), **placed(line, "negatives / positives"))
    told = advice(on(facts, ("positives", "torch.tensor(sum((c[0] for c in counts)))")))
    assert told[0].code == "weight = negatives / positives.clamp_min(1)"


@pytest.mark.parametrize(("above", "first"), [(96.0, True), (0.5, False), (1.0, False)])
def test_a_whole_number_by_0_is_one_count_by_another_as_a_rule(at, by_hand, above, first):
    line = "weight = negatives / positives"
    given = by_hand.fact(shape=(), min=above, max=above), by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0)
    facts = at("div", given, (by_hand.fact(shape=(), posinf=1),), **placed(line, "negatives / positives"))
    assert (advice(facts)[0].code == "weight = negatives / positives.clamp_min(1)") is first


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("number", ["torch.finfo(torch.float32).min", "-1e9", "MASK", "config.MASK"])
def test_a_mask_by_a_number_that_half_precision_has_not_is_mended_in_its_line(at, by_hand, number, dtype):
    line = f"bias = (1.0 - mask)[:, None] * {number}"
    given = by_hand.fact(dtype=dtype, min=0.0, max=1.0, zeros=4)
    facts = at("mul", (given,), (by_hand.fact(dtype=dtype, neginf=4),), **placed(line, line[7:]),
               extra={"arg1": -3.4028e38, "float64_finite": True, "of_weights": False})  # fmt: skip
    assert advice(facts)[0].code == f"bias = (1.0 - mask)[:, None] * torch.finfo(torch.{dtype}).min"


@pytest.mark.parametrize(
    ("line", "name", "shown"),
    [("loss = f(net(x).squeeze(1), y)", None, "x"), ("return self.f(x)", "x", "x"), ("h = enc(a, b)", "b", "b"),
     ("h = enc(a, b)", None, None), ("h = enc(load(a))", "input", None)],
)  # fmt: skip
def test_bad_data_is_checked_by_the_scripts_own_name(at, by_hand, line, name, shown):
    call = {"l": "net(x)", "r": "self.f(x)", "h": line[4:]}[line[0]]
    facts = at("addmm", (by_hand.fact(name, nan=1),), (by_hand.fact(nan=4),), source="input", **placed(line, call))
    told = explain(facts)[0].suggestions
    assert told[0].code == f"assert torch.isfinite({shown or 'x'}).all()"
    assert (f"{shown} = torch.nan_to_num({shown}, nan=0.0)" in [one.code for one in told]) is (shown is not None)


@pytest.mark.parametrize("ends", [None, ""])
def test_an_average_of_nothing_is_left_only_where_it_is_known_how(at, by_hand, ends):
    line = "p.copy_(total / (1 - decay ** self.t))"
    facts = at("div", (by_hand.fact(zeros=16, min=0.0),), (by_hand.fact(nan=16),), extra={"arg1": 0.0},
               **placed(line, "total / (1 - decay ** self.t)"))  # fmt: skip
    told = advice(on(facts, ends=ends))[0]
    assert ("leave" in told.text) is (told.code is not None) is (ends is not None)


@pytest.mark.parametrize(
    ("line", "learnt", "least"),
    [
        ("return (0.5 * ((x - mu) / s) ** 2 + torch.log(s)).mean()", True, "1e-2"),
        ("return (0.5 * ((x - mu) / s) ** 2 + torch.log(s)).mean()", False, "1e-3"),
        ("return (0.5 * ((x - mu) / s).abs() + torch.log(s)).mean()", True, "1e-6"),
    ],
)
def test_a_deviation_that_a_model_makes_stays_where_one_over_its_square_is_no_huge_loss(
    at, by_hand, line, learnt, least
):
    given = (by_hand.fact(), by_hand.fact(zeros=1, min=0.0, absmin=0.1))
    first = line.index("(x - mu) / s")
    extra = {"of_weights": learnt, "below_by": ["ReluBackward0"] if learnt else []}
    facts = at(
        "div", given, (by_hand.fact(posinf=1),), text=line, column=(first, first + 12), phase="loss", extra=extra
    )
    told = explain(facts)[1].suggestions[0]
    assert told.code == line.replace("/ s)", f"/ s.clamp_min({least}))").replace("log(s)", f"log(s.clamp_min({least}))")
    assert (f"better is softplus(...) + {least}" in told.text) is learnt
