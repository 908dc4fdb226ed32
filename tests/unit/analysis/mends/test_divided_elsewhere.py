"""Divisors that are made elsewhere than in the line that divides."""

from dataclasses import replace

import pytest

from nandiag.analysis.causes import explain
from nandiag.events import Looked, Meaning, Site, Written
from nandiag.events.site import Around
from tests.unit.analysis.mends.placing import first, on


def test_a_division_in_what_the_line_calls_is_mended_where_the_divisor_is_made(at, by_hand):
    line = on("kl = kl_divergence(q, p).sum(-1)", "kl_divergence(q, p)")
    facts = at("div", (by_hand.fact(), by_hand.fact(zeros=2)), (by_hand.fact(posinf=2),), **line)
    only = explain(facts)[1].suggestions
    assert [one.code for one in only] == ["torch.nn.functional.softplus(z) + 1e-6"]
    assert "in kl_divergence" in only[0].text
    line = on("y = torch.div(a, b)", "torch.div(a, b)")
    facts = at("div", (by_hand.fact(), by_hand.fact(zeros=2)), (by_hand.fact(nan=2),), **line)
    assert "above zero where it is made" not in explain(facts)[1].suggestions[0].text


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("xy.norm(dim=-1, keepdim=True)", "(xy.square().sum(dim=-1, keepdim=True) + 1e-12).sqrt()"),
        ("torch.linalg.vector_norm(a - b, dim=1)", "((a - b).square().sum(dim=1) + 1e-12).sqrt()"),
        ("torch.norm(x)", "(x.square().sum() + 1e-12).sqrt()"),
        ("x.norm(1, dim=-1)", None),
    ],
)
def test_a_length_whose_gradient_is_differentiated_is_written_out(at, by_hand, call, code):
    line, node = on(f"r = {call}", call), "DivBackward0"
    facts = at(
        "div",
        (by_hand.fact(), by_hand.fact(zeros=1)),
        (by_hand.fact(nan=2),),
        node=node,
        forward_op="aten.div.Tensor",
        **line,
    )
    assert first(facts) == (f"r = {code}" if code else "torch.nn.functional.softplus(z) + 1e-6")


def test_of_what_else_the_line_divides_by_the_same_zero_nothing_is_known(at, by_hand):
    line = on("return f(a / n, b / n)", "a / n")
    facts = at("div", (by_hand.fact(), by_hand.fact(zeros=1, min=0.0)), (by_hand.fact(nan=1),), **line)
    assert first(facts) == "return f(a / torch.where(n != 0, n, torch.inf), b / torch.where(n != 0, n, torch.inf))"


def corrected(at, by_hand, line, expression, bad, meanings=()):
    facts = at("div", (by_hand.fact(),), (by_hand.fact(**bad),), extra={"arg1": 0.0}, **on(line, expression))
    look = replace(facts.look, site=Site(around=Around(meanings)))
    return replace(facts, look=look)


def test_a_bias_correction_of_nothing_counts_from_one_wherever_the_line_stands(at, by_hand):
    line = "q.copy_(s / (1 - self.beta**self.t))"
    facts = corrected(at, by_hand, line, "s / (1 - self.beta**self.t)", {"posinf": 9})
    assert first(facts) == "q.copy_(s / (1 - self.beta**(self.t + 1)))"


def test_an_optimizer_of_the_script_s_own_that_keeps_its_count_in_a_tensor_counts_from_one(at, by_hand):
    line = on('m = st["m"] / (1 - b1 ** st["t"])', 'st["m"] / (1 - b1 ** st["t"])')
    divisor = by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0, absmax=0.0)
    extra = {"reconstructed": True, "parameters": ["w"]}
    facts = at("div", (by_hand.fact(), divisor), (by_hand.fact(posinf=9),), extra=extra, phase="optimizer", **line)
    assert first(facts) == 'm = st["m"] / (1 - b1 ** (st["t"] + 1))'


def test_a_bias_correction_by_a_name_is_mended_where_the_name_is_made(at, by_hand):
    named = (Meaning("corr", "1 - decay ** t", "train.py", 3),)
    assert (
        first(corrected(at, by_hand, "q = s / corr", "s / corr", {"posinf": 9}, named)) == "corr = 1 - decay ** (t + 1)"
    )


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
    assert [one.code for one in found] == ["z = logits / max(temperature, 1e-3)", None]
    assert found[1].text == f"temperature is 0, and what it divides is not: look at {told}"


@pytest.mark.parametrize(
    ("made", "told"),
    [("self.temp.t", "it (self.temp.t) is set: lines 8 and 11."), ("self.other", "it is set: line 18."),
     ("self.f(x)", "it is set: line 18.")],
)  # fmt: skip
def test_of_another_name_for_an_attribute_the_lines_that_set_that_are_told(at, by_hand, made, told):
    facts = at("div", (by_hand.fact(),), (by_hand.fact(posinf=4),), **on("z = logits / T", "logits / T"))
    lines = Written("T", (18,)), Written("self.temp.t", (8, 11))
    around = Around((Meaning("T", made, "train.py", 18),), written=lines)
    look = Looked("found", "replay", 1, source="op", site=Site(around=around), facts={"arg1": 0.0})
    assert explain(replace(facts, look=look))[1].suggestions[-1].text.endswith(f"look at where {told}")


@pytest.mark.parametrize(
    ("line", "divided", "code"),
    [
        ("p = torch.softmax(a / t, -1)", "a / t", "p = torch.softmax(a / t.clamp_min(1e-3), -1)"),
        ("p = (a / self.tau).softmax(-1)", "a / self.tau", "p = (a / self.tau.clamp_min(1e-3)).softmax(-1)"),
        ("z = a / scale", "a / scale", None),
    ],
)
def test_a_temperature_is_bounded_where_it_divides(at, by_hand, line, divided, code):
    given = (by_hand.fact(), by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0, absmax=0.0))
    found = explain(at("div", given, (by_hand.fact(posinf=4),), **on(line, divided)))[1].suggestions
    assert found[0].code == code


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("p.grad.mul_(1.0 / norm)", "p.grad.mul_(1.0 / norm.clamp_min(1e-6))"),
        ("p.grad.mul_(1.0 / n)", "p.grad.mul_(1.0 / n.clamp_min(1e-12))"),
        ("p.mul_(1.0 / total)", None),
    ],
)
def test_gradients_whose_norm_is_zero_stay_so_by_any_factor(at, by_hand, line, code):
    zero = by_hand.fact(zeros=1, shape=(), min=0.0, max=0.0, absmax=0.0)
    known = on(line, line.partition("(")[2][:-1])
    facts = at("reciprocal", (zero,), (by_hand.fact(posinf=1, shape=()),), phase="optimizer", **known)
    named = Around((Meaning("n", "p.grad.norm()", "train.py", 3),))
    assert first(replace(facts, look=replace(facts.look, site=Site(around=named)))) == code


def test_a_norm_that_is_called_n_is_no_count_though_its_text_may_be_old(at, by_hand):
    zero = by_hand.fact(zeros=1, shape=(), min=0.0, max=0.0, absmax=0.0)
    known = on('e = p.grad * (g["rho"] / n)', 'g["rho"] / n')
    facts = at("reciprocal", (zero,), (by_hand.fact(posinf=1, shape=()),), phase="optimizer", **known)
    made = "torch.stack([p.grad.norm() for p in ps]).norm()"
    named = Around(kinds=(Meaning("n", made, "train.py", 3),))
    told = first(replace(facts, look=replace(facts.look, site=Site(around=named))))
    assert told == 'e = p.grad * (g["rho"] / n.clamp_min(1e-12))'


def test_an_average_of_nothing_that_is_read_in_a_loop_is_not_told_to_count_otherwise(at, by_hand):
    """What made the correction stands before the loop, and may be old by then: it is of the same kind still."""
    zeros = by_hand.fact(zeros=16, min=0.0, max=0.0), by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0)
    facts = at("div", zeros, (by_hand.fact(nan=16),), **on("v.copy_(s[k] / fix)", "s[k] / fix"))
    kinds = (Meaning("fix", "torch.tensor(1 - self.beta ** self.n)", "ema.py", 15),)
    told = explain(replace(facts, look=replace(facts.look, site=Site(around=Around(kinds=kinds, ends="")))))[1]
    (mend,) = told.suggestions
    assert mend.code == "if self.n == 0: return"
    assert "which is 0 while self.n is 0: nothing was averaged yet. Update the average before it is read" in mend.text
    assert "count from 1" not in mend.text


@pytest.mark.parametrize("made", ["1 - self.decay ** self.updates", "torch.tensor(1 - self.decay ** self.updates)"])
def test_an_average_of_nothing_is_not_read(at, by_hand, made):
    named = (Meaning("corr", made, "train.py", 3),)
    facts = corrected(at, by_hand, "v.copy_(s / corr)", "s / corr", {"nan": 9}, named)
    assert "nothing was averaged yet" in explain(facts)[1].suggestions[0].text
    assert "1e-6" not in (first(facts) or "")
    zeros = by_hand.fact(zeros=16, min=0.0, max=0.0), by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0)
    facts = at("div", zeros, (by_hand.fact(nan=16),), **on("return {k: v / corr for k, v in avg}", "v / corr"))
    told = explain(replace(facts, look=replace(facts.look, site=Site(around=Around(named)))))[1].suggestions
    assert "self.updates is 0: nothing was averaged yet" in told[0].text
    assert len(told) == 1


@pytest.mark.parametrize(
    ("use", "code", "extra"),
    [
        (
            "p.add_(g * v.rsqrt(), alpha=-lr)",
            "p.add_(g * v.clamp_min(1e-30).rsqrt(), alpha=-lr)",
            {"of_weights": False},
        ),
        ("p.sub_(lr * g / v.sqrt())", "p.sub_(lr * g / v.clamp_min(1e-30).sqrt())", {"of_weights": False}),
        ("p.sub_(lr * g / (v.sqrt() + eps))", None, {"of_weights": False}),
        ("p.sub_(v)", None, {"of_weights": False}),
        ("d = v.sqrt()", "d = v.clamp_min(1e-12).sqrt()", {"of_weights": True}),
        ("y = w / v + 1 / v", "y = w / v.clamp_min(1e-12) + 1 / v.clamp_min(1e-12)", {"of_weights": True}),
    ],
)
def test_a_quotient_that_a_guard_makes_zero_is_guarded_where_it_divides_next(at, by_hand, use, code, extra):
    given = by_hand.fact(zeros=16, min=0.0, max=0.0), by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0)
    update = {} if extra["of_weights"] else {"reconstructed": True, "parameters": ["w"]}
    place = on("v = o / r.mean()", "o / r.mean()")
    facts = at("div", given, (by_hand.fact(nan=16),), phase="loss", extra={**extra, **update}, **place)
    facts = replace(facts, look=replace(facts.look, site=Site(around=Around(uses=(use,)))))
    codes = [one.code for one in explain(facts)[1].suggestions]
    assert (codes[1:] or [None])[0] == code


ROUNDED = "keep {}, the average and its correction in float32"


def halved(at, by_hand, dtype, beta, count="self.steps", kinds=()):
    """What is told of 0/0, and of a number by 0, where ``1 - beta ** count`` divides."""
    zero = by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0, dtype=dtype)
    line = f"return x / (self.average / (1 - {beta}**{count}))"
    facts = at(
        "div", (zero, zero), (by_hand.fact(shape=(), nan=1, dtype=dtype),), **on(line, line[len("return x / (") : -1])
    )
    around = Around(kinds=tuple(Meaning(name, text, "t.py", 3) for name, text in kinds))
    return explain(replace(facts, look=replace(facts.look, site=Site(around=around))))[1].suggestions[0].text.lower()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_correction_of_0_in_half_precision_may_be_rounding(at, by_hand, dtype):
    told = halved(at, by_hand, dtype, "self.decay")
    assert told.startswith("1 - self.decay ** self.steps is 0 while self.steps is 0: nothing was averaged yet")
    assert f"where self.steps is not 0, {dtype} has rounded self.decay ** self.steps to 1" in told
    assert ROUNDED.format("self.decay") in told


@pytest.mark.parametrize(
    ("dtype", "beta", "count"),
    [("bfloat16", "0.9", "self.steps"), ("float16", "0.999", "self.steps"), ("bfloat16", "0.9999", "0")],
)
def test_a_count_of_0_is_told_alone_where_the_dtype_holds_its_first_correction(at, by_hand, dtype, beta, count):
    told = halved(at, by_hand, dtype, beta, count)
    assert f"is 0 while {count} is 0" in told
    assert "float32" not in told


def test_a_beta_that_half_precision_rounds_is_told_with_its_count(at, by_hand):
    told = halved(at, by_hand, "bfloat16", "decay", "t", [("decay", "0.999")])
    assert told.startswith("1 - decay ** t is 0 where t is 0, and in bfloat16 where it is small, too")
    assert ROUNDED.format("decay") in told
    assert "from 1 on" in told


def test_a_beta_of_the_module_s_own_is_known_by_its_number(at, by_hand):
    one = by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0, dtype="bfloat16")
    line = "y = self.average / (1 - self.beta**self.steps)"
    for beta, rounds in ((0.9, False), (0.9999, True)):
        facts = at("div", (one, one), (by_hand.fact(shape=(), nan=1, dtype="bfloat16"),),
                   **on(line, line[4:]), extra={"numbers": {"self.beta": beta}})  # fmt: skip
        assert ("float32" in explain(facts)[1].suggestions[0].text) is rounds


def test_no_count_of_0_is_told_where_it_is_known_to_be_another(at, by_hand):
    told = halved(at, by_hand, "bfloat16", "0.999", "t", [("t", "1")])
    assert told.startswith("1 - 0.999 ** t is 0 in bfloat16, which rounds 0.999 ** t to 1: keep 0.999, the average")
    assert "averaged yet" not in told


def in_hook(at, by_hand, hook, state=None):
    given = by_hand.fact(shape=(1, 40, 1), zeros=40), by_hand.fact(shape=(1, 1, 1), zeros=1)
    text = f"model.register_comm_hook(state, hooks.{hook})"
    facts = at("div_", given, (by_hand.fact(shape=(1, 40, 1), nan=40),), text=text, column=(0, len(text)),
               phase="collective", extra={"comm_hook": hook})  # fmt: skip
    around = Around((Meaning("state", state, "train.py", 6),) if state else ())
    look = replace(facts.look, site=Site(around=around))
    return replace(facts, look=look, harm=by_hand.gradient(5, "aux.weight"))


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("P.PowerSGDState(None, 2)", "state = P.PowerSGDState(None, 2, orthogonalization_epsilon=1e-08)"),
        ("PowerSGDState(None, orthogonalization_epsilon=0)",
         "state = PowerSGDState(None, orthogonalization_epsilon=1e-08)"),
        (None, "PowerSGDState(process_group, orthogonalization_epsilon=1e-8)"),
    ],
)  # fmt: skip
def test_power_sgd_divides_by_the_length_of_a_gradient_that_is_zero(at, by_hand, state, code):
    _, cause = explain(in_hook(at, by_hand, "powerSGD_hook", state))
    (told,) = cause.suggestions
    assert (cause.slug, told.code) == ("division_by_zero", code)
    assert "aux.weight" in told.text


@pytest.mark.parametrize("hook", ["batched_powerSGD_hook", "quantization_hook"])
def test_a_hook_of_torch_s_is_no_scale_that_is_trained(at, by_hand, hook):
    _, cause = explain(in_hook(at, by_hand, hook))
    told = " ".join(f"{one.text} {one.code}" for one in cause.suggestions)
    assert hook in told
    assert "softplus" not in told
    assert ("orthogonalization_epsilon" in told) is (hook == "batched_powerSGD_hook")
