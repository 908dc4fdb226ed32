"""What is divided by next to nothing: the number that shrank is named, and no gradients of earlier steps are blamed."""

from dataclasses import replace

import pytest

from nandiag.analysis.causes import explain
from nandiag.events import Around, History, Meaning, Site, Written
from tests.unit.analysis.mends.told import advice, on, placed


def divided(at, by_hand, line, expression, *, number, **more):
    wide = {"float64_finite": True, "float64_absmax": 4e38, "of_weights": True}
    given = (by_hand.fact(min=-0.5, max=0.6, absmax=0.6),)
    extra = {**wide, "arg1": number}
    return at("div", given, (by_hand.fact(posinf=3),), **{**placed(line, expression), **more}, extra=extra)


def with_lines(facts, name, text, lines, scaled):
    around = Around(
        (Meaning(name, text, "train.py", 29, inside=False),), (), written=(Written(text, lines, scaled=scaled),)
    )
    return replace(facts, look=replace(facts.look, site=Site(around=around)))


@pytest.mark.parametrize("node", [None, "DivBackward0"])
def test_a_temperature_that_shrank_is_told_with_its_value_and_its_lines(at, by_hand, node):
    facts = divided(at, by_hand, "return a @ b.t() / tau", "a @ b.t() / tau", number=1.7e-39, node=node)
    cause = explain(with_lines(facts, "tau", "temp.tau", (7, 10), (10,)))[1]
    assert "tau (temp.tau), which is 1.7e-39 by then; set in lines 7 and 10; line 10" in cause.evidence[1]
    (told,) = cause.suggestions
    assert "Keep temp.tau from falling to 1.7e-39 where it is set (line 10)" in told.text
    assert told.code == "return a @ b.t() / max(tau, 1e-3)"


def test_of_another_number_no_bound_is_known(at, by_hand):
    facts = divided(at, by_hand, "y = x / width", "x / width", number=1e-38)
    (told,) = advice(on(facts, written=[("width", (4,))]))
    assert "Keep width from falling to 1e-38 where it is set (line 4)" in told.text
    assert told.code is None


@pytest.mark.parametrize("number", [0.5, 1e-5])
def test_an_ordinary_number_is_not_to_blame(at, by_hand, number):
    cause = explain(on(divided(at, by_hand, "y = x / tau", "x / tau", number=number)))[1]
    assert len(cause.evidence) == 1


def multiplied(at, by_hand, size, *, history=None, **more):
    given = (by_hand.fact(absmax=size), by_hand.fact(absmax=3.0))
    extra = {"float64_finite": True, "float64_absmax": 9e40, "of_weights": True}
    where = placed("return u[:, None] * K * v", "u[:, None] * K")
    return at("mul", given, (by_hand.fact(posinf=3),), history=history, extra=extra, **{**where, **more})


BACKWARD = {"node": "MulBackward0", "forward_op": "aten.mul.Tensor", "phase": "backward"}


def test_what_was_divided_by_vanishing_exponentials_is_told_by_what_divides_the_exponent(at, by_hand):
    facts = on(multiplied(at, by_hand, 3e17, **BACKWARD), ("K", "torch.exp(-cost / eps)"), ("u", "a / (K @ v)"))
    (told,) = advice(facts)
    assert "K (line 3) holds exponentials that come towards 0 as eps falls" in told.text
    assert "keep eps above a floor" in told.text
    for names in ([("K", "torch.exp(-cost)"), ("u", "a / (K @ v)")], [("K", "torch.exp(-cost / eps)"), ("u", "a / b")]):
        assert "eps above" not in advice(on(multiplied(at, by_hand, 3e17, **BACKWARD), *names))[0].text


def test_gradients_of_earlier_steps_are_no_matter_where_all_were_calm_or_what_went_in_is_ordinary(at, by_hand):
    calm = History(tuple(range(5)), (1.0,) * 5, (0.5,) * 5, (0.1,) * 5, (None,) * 5)
    told = [
        advice(multiplied(at, by_hand, 3e17, history=calm, **BACKWARD))[0].text,
        advice(multiplied(at, by_hand, 2.0, **BACKWARD))[0].text,
    ]
    assert all("clip the gradients" not in text for text in told)
    assert "clip the gradients" in advice(multiplied(at, by_hand, 3e17, **BACKWARD))[0].text
