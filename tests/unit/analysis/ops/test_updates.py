"""Updates that divide by 0 or take steps that are no numbers."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from nandiag.analysis import analyse
from nandiag.analysis.causes import explain
from nandiag.analysis.causes.facts import LIKELY
from nandiag.events import Around, Compared, Harm, Looked, Meaning, Setting, Site, Written, words
from tests.unit.analysis.mends.told import on as around
from tests.unit.analysis.mends.told import placed
from tests.unit.analysis.ops.told import codes, on


@pytest.mark.parametrize(("dtype", "slug"), [("float16", "precision_underflow"), ("float32", "optimizer_division")])
def test_an_update_that_divides_by_zero(at, by_hand, dtype, slug):
    given = [by_hand.fact(dtype=dtype), by_hand.fact(dtype=dtype), by_hand.fact(dtype=dtype, zeros=3)]
    extra = {"reconstructed": True, "parameters": ["fc.weight"]}
    bad = (by_hand.fact(nan=3, dtype=dtype),)
    story, found = explain(at("addcdiv_", tuple(given), bad, extra=extra, phase="optimizer"))
    assert (story.slug, found.slug) == (slug, "division_by_zero")
    assert explain(at("addcdiv_", tuple(given), bad, phase="optimizer"))[0] is None or dtype == "float16"


@pytest.mark.parametrize(("zeros", "slug"), [(16, "optimizer_division"), (3, "precision_underflow")])
def test_zeros_by_their_norm_were_not_rounded_by_half_precision(at, by_hand, zeros, slug):
    given = (
        by_hand.fact(dtype="bfloat16", shape=(16,), zeros=zeros),
        by_hand.fact(dtype="bfloat16", shape=(), zeros=1, min=0.0, max=0.0, absmax=0.0),
    )
    extra = {"reconstructed": True, "parameters": ["fc.weight"]}
    bad = (by_hand.fact(nan=16, shape=(16,), dtype="bfloat16"),)
    facts = at("div_", given, bad, extra=extra, **{**on("X /= X.norm()", "X /= X.norm()"), "phase": "optimizer"})
    assert explain(facts)[0].slug == slug
    rounded = [one for one in explain(facts)[1].suggestions if "no true zero" in one.text]
    assert bool(rounded) is (slug == "precision_underflow")


def test_an_update_with_a_step_size_that_is_no_number(at, by_hand):
    extra = {"reconstructed": True, "parameters": ["w"], "value": "nan"}
    story, _ = explain(at("addcdiv_", (by_hand.fact(),) * 3, (by_hand.fact(nan=1),), extra=extra, phase="optimizer"))
    assert (story.slug, story.strength) == ("lr_invalid", LIKELY)


def test_of_gradients_that_are_not_known_the_bad_number_is_told_alone(at, by_hand):
    extra = {"reconstructed": True, "parameters": ["w"], "arg1": "inf", "gradients_unknown": True}
    inputs = (by_hand.fact(zeros=16, min=0.0, max=0.0, guessed=True),)
    outputs = (by_hand.fact(nan=16, guessed=True),)
    story, told = explain(
        at("mul_", inputs, outputs, extra=extra, **{**placed("p.grad.mul_(s)", "p.grad.mul_(s)"), "phase": "optimizer"})
    )
    assert story is None  # what multiplies a gradient need be no rate
    assert told.evidence[0] == "what mul was given is +Inf"
    assert [one.text for one in told.suggestions] == [
        "Look at what makes s, which is +Inf here: a division by 0, as a rule."
    ]


@pytest.mark.parametrize("op", ["full_like", "fill_", "masked_fill_"])
def test_what_an_update_lays_as_a_number_is_no_step_size(at, by_hand, op):
    extra = {"reconstructed": True, "parameters": ["w"], "arg1": "nan"}
    story, _ = explain(at(op, (by_hand.fact(),), (by_hand.fact(nan=1),), extra=extra, phase="optimizer"))
    assert story is None or story.slug != "lr_invalid"


def test_an_update_of_the_scripts_own_gets_an_eps(at, by_hand):
    extra = {"reconstructed": True, "parameters": ["fc.weight"]}
    line = on("p.sub_(lr * m / v.sqrt())", "lr * m / v.sqrt()")
    facts = at("div", (by_hand.fact(), by_hand.fact(zeros=3, min=0.0)), (by_hand.fact(nan=3),), extra=extra, **line)
    assert codes(facts) == ["p.sub_(lr * m / (v.sqrt() + 1e-8))"]


@pytest.mark.parametrize(
    ("line", "names", "mended"),
    [
        ("t = p.norm() / u.norm()", (), "t = torch.where((p.norm() > 0) & (u.norm() > 0), p.norm() / u.norm(), 1.0)"),
        ("t = a / b", (("a", "torch.linalg.norm(p)"), ("b", "u.norm()")),
         "t = torch.where((a > 0) & (b > 0), a / b, 1.0)"),
        ("t = c * a / (b + d * a)", (("a", "p.norm()"), ("b", "g.norm()")),
         "t = c * torch.where((a > 0) & (b + d * a > 0), a / (b + d * a), 1.0)"),
        ("t = c * p.norm() / u.norm()", (),
         "t = c * torch.where((p.norm() > 0) & (u.norm() > 0), p.norm() / u.norm(), 1.0)"),
        ("t = a / b", (("a", "p.mean()"), ("b", "u.norm()")), "t = a / (b + 1e-8)"),
    ],
)  # fmt: skip
def test_the_ratio_of_two_lengths_is_1_where_one_is_0(at, by_hand, line, names, mended):
    given = (by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0),) * 2
    extra = {"reconstructed": True, "parameters": ["fc.weight"]}
    place = {**placed(line, line[4:]), "phase": "optimizer"}
    told = codes(around(at("div", given, (by_hand.fact(shape=(), nan=1),), extra=extra, **place), *names))
    assert (mended in told) is mended.endswith("1.0)")
    named = {one: torch.zeros(3) for one in "pug"} | {one: torch.zeros(()) for one in "ab"}
    named |= {"c": 1e-3, "d": 1e-4, "torch": torch}
    exec(mended, named)  # noqa: S102
    assert named["t"] == ((1e-3 if "c *" in mended else 1.0) if mended.endswith("1.0)") else 0.0)


@pytest.mark.parametrize(("text", "called"), [("    opt.step()\n", True), ("v.sqrt()", False)])
def test_a_mean_of_squares_below_zero_was_loaded_so(at, by_hand, text, called):
    extra = {"reconstructed": True, "parameters": ["fc.weight"], "settings": {"eps": 1e-8, "betas": [0.9, 0.999]}}
    place = {"text": text, "column": (text.index(text.strip()), len(text.rstrip())), "phase": "optimizer"}
    facts = at("sqrt", (by_hand.fact(min=-0.2),), (by_hand.fact(nan=3),), extra=extra, **place)
    story, found = explain(facts)
    assert found.slug == "domain_error"
    assert (story is not None and story.slug == "checkpoint_corruption") is called
    if called:
        assert story.suggestions[0].code.endswith("for state in optimizer.state.values())")
        harm = Harm("parameter", 0, "optimizer", (by_hand.fact(nan=3),), 1, 1, names={"optimizer": "opt"})
        assert explain(replace(facts, harm=harm))[0].suggestions[0].code.endswith("for state in opt.state.values())")
        assert (story.leads, "exp_avg_sq" in story.suggestions[0].code) == (True, True)
        assert "fc.weight goes down to -0.2" in story.evidence[0]
    fine = at("sqrt", (by_hand.fact(min=0.0),), (by_hand.fact(nan=3),), extra=extra, **place)
    assert explain(fine)[0] is None


@pytest.mark.parametrize(
    ("known", "slug", "told", "code"),
    [
        ({"updated_before": True}, "domain_error", "written since the update before", "assert all("),
        ({"updated_before": True, "state_written": {"exp_avg": ["a.py", 7, "m.x_()"]}}, "domain_error", "since", "as"),
        (
            {"updated_before": True, "state_written": {"exp_avg_sq": ["/a/train.py", 7, "s['sq'].sub_(m ** 2)"]}},
            "domain_error", "line 7 of train.py wrote exp_avg_sq", "s['sq'].sub_(m ** 2).clamp_(min=0)",
        ),
        ({"state_written": {"sum": ["a.py", 7, "s['sum'] = v - m"]}}, "domain_error", "line 7 of a.py wrote sum", None),
        (
            {"updated_before": True, "read_from": {"exp_avg_sq": ["ck.pt", "k", "a.py", 3]}},
            "checkpoint_corruption", "or loaded", "assert all(",
        ),
    ],
)  # fmt: skip
def test_a_mean_of_squares_that_was_written_by_hand_is_of_no_checkpoint(at, by_hand, known, slug, told, code):
    extra = {"reconstructed": True, "parameters": ["fc.weight"], "settings": {"eps": 1e-8, "betas": [0.9, 0.999]}}
    place = {"text": "    opt.step()\n", "column": (4, 14), "phase": "optimizer"}
    given, made = (by_hand.fact(min=-0.2),), (by_hand.fact(nan=3),)
    story = explain(at("sqrt", given, made, extra=extra | known, **place))[0]
    assert (story.slug, told in story.evidence[1]) == (slug, True)
    assert (story.suggestions[0].code or "").startswith(code or "")
    assert (story.suggestions[0].code is None) is (code is None)


def test_where_an_optimizer_of_a_library_divides_its_eps_leads(at, by_hand):
    given = (by_hand.fact(), by_hand.fact(), by_hand.fact(zeros=3))
    extra = {"reconstructed": True, "parameters": ["fc.weight"]}
    text = "    opt.step()\n"
    facts = at(
        "addcdiv_", given, (by_hand.fact(nan=3),), extra=extra, phase="optimizer", text=text, column=(4, 14)
    )  # fmt: skip
    assert (explain(facts)[0].leads, explain(facts)[0].follows) == (True, False)


def test_a_state_that_was_read_from_a_file_is_told_with_it_and_no_clamp_is_advised(at, by_hand):
    extra = {"reconstructed": True, "parameters": ["fc.weight"], "settings": {"betas": [0.9, 0.999]},
             "read_from": {"exp_avg": ["/a/adam.pt", "m", "/b/train.py", 7],
                           "exp_avg_sq": ["/a/adam.pt", "v", "/b/train.py", 7]}}  # fmt: skip
    facts = at("sqrt", (by_hand.fact(min=-0.1),), (by_hand.fact(nan=3),), phase="optimizer", extra=extra,
               text="opt.step()", column=(0, 10))  # fmt: skip
    story, mechanism = explain(facts)
    assert story.evidence[-1] == "This state was read from adam.pt (there v) at train.py:7."
    assert (mechanism.slug, mechanism.suggestions) == ("domain_error", ())


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (
            {"bn.running_var": [None, "var", None, None]},
            "It was read from a file; finite batches never make it negative.",
        ),
        ({"bn.weight": ["a.pt", "var", "b.py", 1]}, None),
        ({}, None),
    ],
)
def test_a_running_variance_below_0_is_told_with_its_file(at, by_hand, read, told):
    var = by_hand.fact("bn.running_var", shape=(4,), min=-0.1)
    facts = at("native_batch_norm", (by_hand.fact(), var), (by_hand.fact(nan=3),), extra={"read_from": read})
    assert explain(facts)[1].evidence[1:] == (() if told is None else (told,))


def test_weights_in_float32_are_called_with_float32(at, by_hand):
    given = (by_hand.fact(dtype="float16"), by_hand.fact(dtype="float16", zeros=3, min=0.0))
    extra = {"reconstructed": True, "parameters": ["fc.weight"], "settings": {"eps": 1e-8}}
    facts = at("div", given, (by_hand.fact(dtype="float16", posinf=3),), extra=extra, phase="optimizer")
    facts = replace(facts, harm=by_hand.state(5, names={"model": "net", "optimizer": "opt"}))
    told = explain(facts)[0].suggestions[0]
    assert told.code == "net.float()  # before the optimizer is made"
    assert "what the model is called with" in told.text
    facts = replace(facts, harm=by_hand.state(5, names={"model": "net", "optimizer": "opt", "handed": "half"}))
    assert explain(facts)[0].suggestions[0].code == "half.float()  # before the optimizer is made"


def test_a_correction_by_a_count_that_a_tensor_holds_has_nothing_to_do_with_gradients(at, by_hand):
    line = 'hat = s["m"] / (1 - b1 ** self.t)'
    given = (by_hand.fact(shape=(4, 4)), by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0, absmax=0.0))
    extra = {"reconstructed": True, "parameters": ["weight"]}
    facts = at("div", given, (by_hand.fact(posinf=16),), extra=extra,
               **{**placed(line, line[6:]), "phase": "optimizer"})  # fmt: skip
    story, mechanism = explain(facts)
    assert story.evidence == ("The update of weight divides by a number that is 0.",)
    assert mechanism.suggestions[0].code == 'hat = s["m"] / (1 - b1 ** (self.t + 1))'


KINDS = {"c1": "1 - self.b1 ** torch.tensor(float(self.t))", "c2": "1 - b2 ** self.t"}


@pytest.mark.parametrize("extra", [{"reconstructed": True}, {"reconstructed": True, "parameters": ["weight"]}])
def test_corrections_of_a_line_that_are_0_together_are_kept_from_0_together(at, by_hand, extra):
    line = "p -= self.lr * (m / c1) / ((v / c2).sqrt() + self.eps)"
    given = (by_hand.fact(shape=(4, 4)), by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0, absmax=0.0))
    facts = at("div", given, (by_hand.fact(posinf=16),), extra=extra,
               **{**placed(line, "m / c1"), "phase": "optimizer"})  # fmt: skip
    kinds = tuple(Meaning(name, text, "train.py", 3) for name, text in KINDS.items())
    facts = replace(facts, look=replace(facts.look, site=Site(around=Around(kinds=kinds))))
    told = explain(facts)[1].suggestions[0]
    assert "c1 is 1 - self.b1 ** torch.tensor(float(self.t)), which is 0 while self.t is 0, and so is c2" in told.text
    names = {"m": torch.ones(3), "v": torch.ones(3), "p": torch.zeros(3), "torch": torch, "b2": 0.99}
    names |= {"c1": torch.tensor(0.0), "c2": torch.tensor(0.0), "self": SimpleNamespace(lr=1.0, b1=0.9, eps=1e-8)}
    exec(told.code, names)  # noqa: S102
    assert torch.allclose(names["p"], torch.full((3,), -1.0))  # as the first update would be


def test_each_correction_of_a_line_counts_from_one(at, by_hand):
    line = "p -= lr * (m / (1 - b1 ** t)) / ((v / (1 - b2 ** t)).sqrt() + eps)"
    given = (by_hand.fact(), by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0, absmax=0.0))
    extra = {"reconstructed": True, "parameters": ["weight"]}
    facts = at("div", given, (by_hand.fact(posinf=16),), extra=extra,
               **{**placed(line, "m / (1 - b1 ** t)"), "phase": "optimizer"})  # fmt: skip
    code = "p -= lr * (m / (1 - b1 ** (t + 1))) / ((v / (1 - b2 ** (t + 1))).sqrt() + eps)"
    assert explain(facts)[1].suggestions[0].code == code


def test_where_an_update_made_again_is_finite_every_op_may_be_watched(by_hand):
    report = analyse(by_hand.run(by_hand.rank(0, by_hand.state(6, since=5), by_hand.finite(6), world=1)))
    assert report.verdict.suggestions[-1].code == "nandiag run --level op"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("s.get('step', 0)", "s['step']  # in the place of s.get('step', 0), line 35"),
        ("int(s.get('step', 0))", "s['step']  # in the place of s.get('step', 0), line 35"),
        ("saved['t']", None),
    ],
)
def test_a_count_that_came_out_of_a_loaded_state_is_looked_for_there_first(at, by_hand, text, code):
    """One more would let the update run, and correct averages of many steps as if they were new."""
    line = 'm_hat = state["m"] / (1 - b1**t)'
    extra = {"reconstructed": True, "parameters": ["weight"], "arg1": 0.0}
    facts = at("div", (by_hand.fact(),), (by_hand.fact(posinf=16),), extra=extra,
               **{**placed(line, line[8:]), "phase": "optimizer"})  # fmt: skip
    kinds = (Meaning("t", "state['step']", "optim.py", 20),)
    around = Around(kinds=kinds, restored=(Meaning("state['step']", text, "lib/optim.py", 35, inside=False),))
    story, mechanism = explain(replace(facts, look=replace(facts.look, site=Site(around=around))))
    assert story.leads
    assert "at optim.py:35" in story.suggestions[0].text
    assert ("It is 0 where" in story.suggestions[0].text) is (code is not None)
    assert story.suggestions[0].code == code
    assert mechanism.suggestions[0].text.startswith("Where nothing was loaded: ")
    assert mechanism.suggestions[0].code == 'm_hat = state["m"] / (1 - b1**(t + 1))'


@pytest.mark.parametrize("guessed", [True, False])
def test_what_stands_in_for_lost_weights_is_told_where_the_op_was_given_it(by_hand, guessed):
    facts = {"reconstructed": True, "parameters": ["0.weight"], **({"made_up": 0.02} if guessed else {})}
    look = Looked("found", "replay", 8, phase="optimizer", source="op", site=Site(op="aten.div.Tensor"), facts=facts,
                  inputs=(by_hand.fact(), by_hand.fact(zeros=1)), outputs=(by_hand.fact(posinf=1),))  # fmt: skip
    verdict = analyse(by_hand.run(by_hand.rank(0, look, by_hand.state(8, "0.weight"), world=1), world=1)).verdict
    told = "No finite weight was left to make it again from: 0.02 was taken for each."
    assert (told in verdict.evidence) is guessed


def test_of_gradients_that_are_not_known_the_kind_is_what_the_update_left(by_hand):
    facts = {"reconstructed": True, "parameters": ["w"], "arg1": "inf", "gradients_unknown": True}
    look = Looked("found", "replay", 8, phase="optimizer", source="op", site=Site(op="aten.mul_.Tensor"), facts=facts,
                  inputs=(by_hand.fact(zeros=16, guessed=True),),
                  outputs=(by_hand.fact(nan=16, guessed=True),))  # fmt: skip
    harm = by_hand.state(8, "w")
    harm = replace(harm, tensors=(by_hand.fact("w", neginf=1),))
    verdict = analyse(by_hand.run(by_hand.rank(0, look, harm, world=1), world=1)).verdict
    assert verdict.summary.startswith("-Inf born on rank 0")
    assert "It left its own gradients bad; what they held before is not known." in verdict.evidence
    assert not any("zero" in one for one in verdict.evidence)


def test_no_number_that_stood_in_is_shown_nor_an_infinity_told_that_hangs_on_it(by_hand):
    inputs = (by_hand.fact(shape=(), min=0.16, max=0.16, guessed=True), by_hand.fact(shape=(), zeros=1, min=0, max=0))
    outputs = (by_hand.fact(shape=(), posinf=1, min=None, max=None, guessed=True),)
    facts = {"reconstructed": True, "parameters": ["pos"], "made_up": 0.02}
    look = Looked("found", "replay", 8, phase="optimizer", source="op", site=Site(op="aten.div.Tensor"), facts=facts,
                  inputs=inputs, outputs=outputs)  # fmt: skip
    report = analyse(by_hand.run(by_hand.rank(0, look, by_hand.state(8, "pos"), world=1), world=1))
    assert report.verdict.summary.startswith("NaN born on rank 0")
    assert "the divisor of div is 0" in report.verdict.evidence
    assert (report.verdict.origin.kind, words.tensor(inputs[0])) == (
        "nan",
        "float32 [scalar], whose values are not known",
    )
    assert not any("Inf" in words.tensor(fact) for fact in report.verdict.origin.outputs)


def test_an_eps_of_0_has_the_line_of_the_number_where_another_hands_it_on(at, by_hand):
    lines = ['a.py:34: opt = Adam(w, eps=C["eps"])', 'b.py:7: C = {"lr": 1, "eps": 0.0}']
    extra = {"reconstructed": True, "parameters": ["w"], "settings": {"eps": 0.0, "eps_set_at": lines}}
    given, text = (by_hand.fact(), by_hand.fact(), by_hand.fact(zeros=3)), "opt.step()"
    facts = at("addcdiv_", given, (by_hand.fact(nan=3),), extra=extra, phase="optimizer", text=text, column=(0, 10))
    assert explain(facts)[0].suggestions[0].text.endswith(f"The script sets it in {lines[1]}.")


@pytest.mark.parametrize(("setting", "told"), [
    (Setting(0, "eps", 0.0, 1e-3, 1e-8, 1e-8, 1e-8, 3, 1, ('f23.py:22: group["eps"] = 0.0',)),
     ' The script sets it in f23.py:22: group["eps"] = 0.0.'),
    (None, ""),
])  # fmt: skip
def test_an_eps_of_0_is_said_to_be_0_and_where_it_is_set(at, by_hand, setting, told):
    extra = {"reconstructed": True, "parameters": ["emb.weight"], "settings": {"eps": 0.0, "betas": [0.9, 0.999]}}
    given, text = (by_hand.fact(), by_hand.fact(), by_hand.fact(zeros=3)), "opt.step()"
    facts = at("addcdiv_", given, (by_hand.fact(nan=3),), extra=extra, phase="optimizer", text=text, column=(0, 10))
    facts = replace(facts, compared=None if setting is None else Compared(6, settings=(setting,)))
    mend = explain(facts)[0].suggestions[0]
    assert (mend.text, mend.code) == (
        f"The optimizer's eps is 0: it divides by 0 for a gradient of zeros. Give it one.{told}", "eps=1e-8",
    )  # fmt: skip


def by_own_rate(at, by_hand, size, line="p -= lr * g", expression="lr * g"):
    """An update by hand that multiplies its gradients by a number of the script's own."""
    given = (by_hand.fact(shape=(), min=size, max=size, absmax=abs(size)), by_hand.fact(max=4e19, absmax=4e19))
    facts = at("mul", given, (by_hand.fact(posinf=3),), **{**on(line, expression), "phase": "optimizer"})
    kinds = (Meaning("lr", "lr + meta * h", "train.py", 18),)
    around = Around(written=(Written("lr", (7, 18)),), kinds=kinds)
    return replace(facts, look=replace(facts.look, site=Site(around=around)))


def test_a_step_size_of_the_scripts_own_that_ran_away_is_the_cause(at, by_hand):
    story, _ = explain(by_own_rate(at, by_hand, -5.96e19))
    assert story.slug == "lr_invalid"
    assert story.evidence[0].startswith("the step size lr is -5.96e19")
    mend = story.suggestions[0]
    assert "lines 7 and 18" in mend.text
    assert mend.code == "lr = (lr + meta * h).clamp(0.0, 0.1)"


def by_number(at, by_hand, line, expression, *, phase="optimizer", made="lr * 2", name="lr", size=2.0**21):
    """The same by a Python number, of a gradient that is a single number itself."""
    given = (by_hand.fact(shape=(), min=3.0, max=3.0, absmax=3.0),)
    words = {**on(line, expression), "phase": phase, "extra": {"arg1": size}}
    facts = at("mul", given, (by_hand.fact(posinf=1),), **words)
    around = Around(written=(Written(name, (7,)),), kinds=(Meaning(name, made, "train.py", 7),))
    return replace(facts, look=replace(facts.look, site=Site(around=around)))


def blamed(facts):
    story, _ = explain(facts)
    return story is not None and story.slug == "lr_invalid"


@pytest.mark.parametrize(
    ("line", "expression", "name"),
    [
        ("h = p.grad.half() * scale", "p.grad.half() * scale", "scale"),
        ("p.sub_(p.grad.half() * lr)", "p.grad.half() * lr", "lr"),
        ("h = p.grad * factor", "p.grad * factor", "factor"),
        ("p -= p.grad * loss_scale", "p.grad * loss_scale", "loss_scale"),
        ("h = p.grad * iterate", "p.grad * iterate", "iterate"),
        ("p -= total * weight", "total * weight", "weight"),
    ],
)
def test_what_scales_a_gradient_is_no_step_size(at, by_hand, line, expression, name):
    assert not blamed(by_number(at, by_hand, line, expression, name=name, made="2.0 ** 21"))


@pytest.mark.parametrize(
    ("line", "expression", "name", "made"),
    [
        ("p -= lr * g", "lr * g", "lr", "2.0 ** 21"),
        ("p.sub_(self.step_size * d)", "self.step_size * d", "self.step_size", "2.0 ** 21"),
        ("p.data = p.data - k * p.grad", "k * p.grad", "k", "2.0 ** 21"),
        ("p.add_(-(k * d))", "k * d", "k", "base_lr * 2.0 ** 21"),
    ],
)
def test_a_python_number_is_bounded_by_what_a_number_has(at, by_hand, line, expression, name, made):
    facts = by_number(at, by_hand, line, expression, name=name, made=made)
    assert blamed(facts)
    assert explain(facts)[0].suggestions[0].code == f"{name} = min(max({made}, 0.0), 0.1)"


@pytest.mark.parametrize(("what", "step"), [("parameter", 0), ("loss", 0), ("parameter", -1)])
def test_a_step_size_of_an_update_without_an_optimizer_is_named_where_weights_went_bad(at, by_hand, what, step):
    facts = by_number(at, by_hand, "p -= lr * p.grad", "lr * p.grad", phase="loss", size=1e39)
    phase = "optimizer" if what == "parameter" else "loss"
    own = Harm(what, facts.origin.step + step, phase, (), 1, 1)
    assert blamed(replace(facts, harm=own)) is (what == "parameter" and step == 0)


@pytest.mark.parametrize("size", [0.1, -0.1, 100.0])
def test_a_step_size_of_a_usual_kind_is_none(at, by_hand, size):
    story, _ = explain(by_own_rate(at, by_hand, size))
    assert story is None or story.slug != "lr_invalid"


def test_no_clip_of_gradients_is_offered_that_lie_in_no_grad(at, by_hand):
    facts = replace(by_own_rate(at, by_hand, 0.1), harm=Harm("parameter", 5, "optimizer", (), 1, 1))
    assert replace(facts, trained=("w",)).clipped() is not None
    asked = replace(facts, look=replace(facts.look, facts={"gradients_asked": True}))
    assert replace(asked, trained=("w",)).clipped() is None
