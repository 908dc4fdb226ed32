"""Updates that divide by 0 or take steps that are no numbers."""

import pytest

from nandiag.analysis.causes import explain
from nandiag.analysis.causes.facts import LIKELY
from tests.unit.analysis.ops.told import codes, on


@pytest.mark.parametrize(("dtype", "slug"), [("float16", "precision_underflow"), ("float32", "optimizer_division")])
def test_an_update_that_divides_by_zero(at, by_hand, dtype, slug):
    given = [by_hand.fact(dtype=dtype), by_hand.fact(dtype=dtype), by_hand.fact(dtype=dtype, zeros=3)]
    extra = {"reconstructed": True, "parameters": ["fc.weight"]}
    bad = (by_hand.fact(nan=3, dtype=dtype),)
    story, found = explain(at("addcdiv_", tuple(given), bad, extra=extra, phase="optimizer"))
    assert (story.slug, found.slug) == (slug, "division_by_zero")
    assert explain(at("addcdiv_", tuple(given), bad, phase="optimizer"))[0] is None or dtype == "float16"


def test_an_update_with_a_step_size_that_is_no_number(at, by_hand):
    extra = {"reconstructed": True, "parameters": ["w"], "value": "nan"}
    story, _ = explain(at("addcdiv_", (by_hand.fact(),) * 3, (by_hand.fact(nan=1),), extra=extra, phase="optimizer"))
    assert (story.slug, story.strength) == ("lr_invalid", LIKELY)


def test_an_update_of_the_scripts_own_gets_an_eps(at, by_hand):
    extra = {"reconstructed": True, "parameters": ["fc.weight"]}
    line = on("p.sub_(lr * m / v.sqrt())", "lr * m / v.sqrt()")
    facts = at("div", (by_hand.fact(), by_hand.fact(zeros=3, min=0.0)), (by_hand.fact(nan=3),), extra=extra, **line)
    assert codes(facts) == ["p.sub_(lr * m / (v.sqrt() + 1e-8))"]


@pytest.mark.parametrize(("text", "called"), [("    opt.step()\n", True), ("v.sqrt()", False)])
def test_a_mean_of_squares_below_zero_was_loaded_so(at, by_hand, text, called):
    extra = {"reconstructed": True, "parameters": ["fc.weight"], "settings": {"eps": 1e-8, "betas": [0.9, 0.999]}}
    place = {"text": text, "column": (text.index(text.strip()), len(text.rstrip())), "phase": "optimizer"}
    story, found = explain(at("sqrt", (by_hand.fact(min=-0.2),), (by_hand.fact(nan=3),), extra=extra, **place))
    assert found.slug == "domain_error"
    assert (story is not None and story.slug == "checkpoint_corruption") is called
    if called:
        assert (story.leads, "exp_avg_sq" in story.suggestions[0].code) == (True, True)
        assert "fc.weight goes down to -0.2" in story.evidence[0]
    fine = at("sqrt", (by_hand.fact(min=0.0),), (by_hand.fact(nan=3),), extra=extra, **place)
    assert explain(fine)[0] is None


def test_where_an_optimizer_of_a_library_divides_its_eps_leads(at, by_hand):
    given = (by_hand.fact(), by_hand.fact(), by_hand.fact(zeros=3))
    extra = {"reconstructed": True, "parameters": ["fc.weight"]}
    text = "    opt.step()\n"
    facts = at(
        "addcdiv_", given, (by_hand.fact(nan=3),), extra=extra, phase="optimizer", text=text, column=(4, 14)
    )  # fmt: skip
    assert (explain(facts)[0].leads, explain(facts)[0].follows) == (True, False)
