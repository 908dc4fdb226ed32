"""What the script keeps from step to step until it nears an end of its dtype: the batch is not to blame."""

from dataclasses import replace

import pytest

from nandiag.analysis.causes import explain
from nandiag.analysis.causes.mends import states
from nandiag.events import Around, History, Looked, Meaning, Site, Warned, Written

CALM = History(
    tuple(range(12)), (1.0, 1.3, 0.8) * 4, (1.0, 1.3, 0.8) * 4, (0.01,) * 12, (None,) * 12, optimizer=()
)  # fmt: skip


def broken(at, by_hand, line, expression, sides, op="mul"):
    first = line.index(expression)
    facts = at(op, sides, (by_hand.fact(posinf=1),), history=CALM, step=12, extra={"float64_finite": True},
               text=line, column=(first, first + len(expression)), file="train.py", phase="loss")  # fmt: skip
    around = Around(written=(Written("self.t", (13, 16)),))
    look = Looked("found", "replay", 12, source="op", facts=facts.look.facts, site=Site(around=around))
    return replace(facts, look=look)


def sides(by_hand, size, shape=(4,), low=2e30):
    return by_hand.fact(shape=shape, min=low, max=size, absmax=size), by_hand.fact(max=4.4, min=3.4, absmax=4.4)


@pytest.mark.parametrize(
    ("line", "low", "size"),
    [("self.q = self.q * torch.exp(g)", 2e30, "sum"), ("self.q *= torch.exp(g)", 2e30, "sum"),
     ("self.q = self.q * f", -2e30, "norm"), ("q = q * f", 2e30, "sum")],
)  # fmt: skip
def test_what_a_line_makes_a_multiple_of_itself_in_each_step_is_not_the_batchs_doing(at, by_hand, line, low, size):
    expression = line if "*=" in line else line.partition(" = ")[2]
    story, told = explain(broken(at, by_hand, line, expression, sides(by_hand, 1.23e38, low=low)))
    name = line.split()[0]
    assert story is None or story.slug != "data_outlier"
    assert told.suggestions[0].code == f"{line}\n{name} = {name} / {name}.{size}()"
    assert "1.23e38" in told.suggestions[0].text


def test_a_number_that_grows_with_each_step_is_bounded(at, by_hand):
    line = "self.rho = self.rho * 4.0"
    story, told = explain(broken(at, by_hand, line, "self.rho * 4.0", sides(by_hand, 1.23e38, shape=())[:1]))
    assert story is None or story.slug != "data_outlier"
    assert told.suggestions[0].code == f"{line}\nself.rho = self.rho.clamp(max=1e6)"


def test_a_divisor_that_was_brought_down_from_step_to_step_is_bounded(at, by_hand):
    given = by_hand.fact(min=-25.0, max=-0.02, absmax=25.0), by_hand.fact(shape=(), min=1e-38, max=1e-38, absmax=1e-38)
    facts = broken(at, by_hand, "s = torch.softmax(-d / self.t, dim=1)", "-d / self.t", given, op="div")
    story, told = explain(facts)
    assert story is None or story.slug != "data_outlier"
    assert told.suggestions[0].code == "s = torch.softmax(-d / self.t.clamp_min(1e-6), dim=1)"
    assert "self.t" in told.suggestions[0].text
    assert "lines 13 and 16" in told.suggestions[0].text


@pytest.mark.parametrize(("line", "size"), [("y = x * w", 1.23e38), ("self.q = self.q * w", 60000.0)])
def test_large_values_of_the_step_itself_still_speak_for_its_batch(at, by_hand, line, size):
    given = by_hand.fact(min=-size, max=size, absmax=size), by_hand.fact(max=1e34, min=1.0, absmax=1e34)
    story = explain(broken(at, by_hand, line, line.partition(" = ")[2], given))[0]
    assert story.slug == "data_outlier"
    assert "points at" not in story.evidence[0]


def recurrent(at, by_hand, line, low, meant="torch.exp(einsum(delta, A))"):
    expression = line.removeprefix("x = ").partition(" + ")[0]
    factor = by_hand.fact(min=low, max=4.7e9, absmax=4.7e9)
    state = by_hand.fact(min=-1.6e34, max=1.3e36, absmax=1.3e36)
    facts = broken(at, by_hand, line, expression, (factor, state))
    around = Around(names=(Meaning("a", meant, "train.py", 9),))
    return replace(facts, look=replace(facts.look, site=Site(around=around)))


@pytest.mark.parametrize("line", ["x = a[:, i] * x + u[:, i]", "x = a * x + u"])
def test_a_decay_that_is_above_1_throughout_has_lost_its_sign(at, by_hand, line):
    told = explain(recurrent(at, by_hand, line, 1.4))[1]
    assert told.suggestions[0].code == "a = torch.exp(-einsum(delta, A))  # line 9"
    assert "above 1 throughout (1.4 at least)" in told.suggestions[0].text
    assert explain(recurrent(at, by_hand, line, 1.4, "f(A)"))[1].suggestions[0].code is None


@pytest.mark.parametrize(("lines", "code"), [((9,), "a = torch.exp(-(dt * A))  # line 9"), ((9, 12), None)])
def test_a_decay_that_a_name_stood_for_ahead_of_the_loop_is_turned_round_where_it_is_made(at, by_hand, lines, code):
    facts = recurrent(at, by_hand, "x = a * x + u", 1.4)
    around = Around(kinds=(Meaning("a", "torch.exp(dt * A)", "train.py", 9),), written=(Written("a", lines),))
    facts = replace(facts, look=replace(facts.look, site=Site(around=around)))
    assert explain(facts)[1].suggestions[0].code == code


@pytest.mark.parametrize(("low", "story"), [(1.4, None), (0.2, "data_outlier")])
def test_a_longer_batch_is_not_to_blame_for_a_decay_above_1(at, by_hand, low, story):
    facts = recurrent(at, by_hand, "x = a * x + u", low)
    warned = Warned("batch_longer", 12, {"shape": [8, 400, 1], "longest": [8, 24, 1], "batches": 12}, "x")
    found = explain(replace(facts, warned=(warned,)))[0]
    assert (None if found is None else found.slug) == story


def learnt(at, by_hand, line, meant="torch.exp(self.A * dt)", *, most=1.65, **extra):
    expression = line.removeprefix("x = ").partition(" + ")[0]
    factor = by_hand.fact(min=0.75, max=most, absmax=most, shape=(16,))
    state = by_hand.fact(min=-3e38, max=1e25, absmax=3e38)
    sides = (factor, state) if expression.startswith("a") else (state, factor)
    facts = broken(at, by_hand, line, expression, sides)
    around = Around(names=(Meaning("a", meant, "train.py", 9),))
    look = replace(facts.look, site=Site(around=around), facts={**facts.look.facts, "of_weights": True, **extra})
    warned = Warned("batch_longer", 12, {"shape": [8, 400, 1], "longest": [8, 24, 1], "batches": 12}, "x")
    return replace(facts, look=look, warned=(warned,))


@pytest.mark.parametrize("line", ["x = a * x + u", "x = x * a + u"])
def test_a_learnt_decay_that_goes_above_1_is_to_blame_and_bounded_where_it_is_made(at, by_hand, line):
    story, mechanism = explain(learnt(at, by_hand, line))
    assert (story, mechanism.slug) == (None, "overflow")
    (told,) = mechanism.suggestions
    assert "goes to 1.65: where it is above 1, x grows in each turn" in told.text
    assert told.code == "a = torch.sigmoid(self.A * dt)  # line 9"


def test_a_learnt_decay_whose_making_is_not_seen_is_bounded_in_the_line(at, by_hand):
    facts = learnt(at, by_hand, "x = a * x + u", "f(A)", made_by=["ExpBackward0"])
    assert explain(facts)[1].suggestions[0].code == "x = a.clamp(max=1) * x + u"


@pytest.mark.parametrize("changed", [{"of_weights": False}, {"most": 0.99}, {"most": 1e4}])
def test_a_factor_that_is_no_learnt_decay_above_1_leaves_the_length_to_blame(at, by_hand, changed):
    assert explain(learnt(at, by_hand, "x = a * x + u", **changed))[0].slug == "data_outlier"


@pytest.mark.parametrize(("line", "low"), [("x = a * x + u", 0.2), ("x = a * x", 1.4)])
def test_a_factor_that_is_no_such_decay_is_not_turned_round(at, by_hand, line, low):
    told = explain(recurrent(at, by_hand, line, low))[1]
    assert told.suggestions[0].code == f"{line}\nx = x / x.norm()"


@pytest.mark.parametrize("expression", ["2.0 * x", "x * 2.0", "a @ x"])
def test_a_number_or_a_matrix_that_multiplies_a_state_is_no_decay(at, by_hand, expression):
    state = by_hand.fact(min=-1.6e34, max=1.3e36, absmax=1.3e36)
    factors = [by_hand.fact(min=1.4, max=4.7, absmax=4.7)] if "@" in expression else []
    line = f"x = {expression} + u"
    told = explain(broken(at, by_hand, line, expression, (*factors, state)))[1]
    assert told.suggestions[0].code == f"{line}\nx = x / x.norm()"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("h = self.decay * h + self.inp(x)", "h = self.decay.clamp(-1, 1) * h + self.inp(x)"),
        ("h = h * self.decay", "h = h * self.decay.clamp(-1, 1)"),
        ("h *= self.decay", "h *= self.decay.clamp(-1, 1)"),
        ("h = self.decay * g", None),
    ],
)
def test_a_weight_that_multiplies_a_state_in_each_turn_is_to_stay_below_1(at, by_hand, line, code):
    factor, state = by_hand.fact("decay", min=0.7, max=1.3, absmax=1.3), by_hand.fact(max=2.9e38, absmax=2.9e38)
    expression = line if "*=" in line else line.removeprefix("h = ").partition(" + ")[0]
    given = (factor, state) if expression.startswith("self") else (state, factor)
    facts = broken(at, by_hand, line, expression, given)
    warned = Warned("batch_longer", 12, {"shape": [8, 400, 1], "longest": [8, 24, 1], "batches": 12}, "x")
    story, _ = explain(replace(facts, warned=(warned,)))
    assert story.slug == "data_outlier"
    first, *rest = story.suggestions
    assert (first.code == code, "self.decay goes to 1.3" in first.text) == (code is not None, code is not None)
    assert any(one.code == "x = x[:, :24]" for one in (first, *rest))
    assert not any("clamp(-1, 1)" in (one.code or "") for one in explain(facts)[1].suggestions)


@pytest.mark.parametrize(("factor", "state"), [(0.9, 2.9e38), (1.3, 20.0), (1e20, 2.9e38)])
def test_a_weight_of_another_size_is_not_to_blame_for_that(at, by_hand, factor, state):
    given = by_hand.fact("decay", max=factor, absmax=factor), by_hand.fact(max=state, absmax=state)
    facts = broken(at, by_hand, "h = self.decay * h", "self.decay * h", given)
    assert states.by_a_weight(facts) is None


def told_of_factor(at, by_hand, line, expression, op):
    state = by_hand.fact(min=-2.2e38, max=2.6e38, absmax=2.6e38)
    facts = broken(at, by_hand, line, expression, (state,), op)
    return replace(facts, look=replace(facts.look, facts={"float64_finite": True, "arg1": 1.9}))


@pytest.mark.parametrize(
    ("line", "expression", "op", "code"),
    [
        ("self.m = self.decay * self.m + (1 - self.decay) * x", "self.decay * self.m", "mul",
         "assert 0 <= self.decay <= 1"),
        ("s['v'] = s['v'] * (2 - b) ** 40 + (1 - b) * g", "s['v'] * (2 - b) ** 40", "mul",
         "assert 0 <= (2 - b) ** 40 <= 1"),
        ("self.v.mul_(self.mom).add_(x.var(0))", "self.v.mul_(self.mom)", "mul_", "assert 0 <= self.mom <= 1"),
        ("self.v = 1.9 * self.v + x", "1.9 * self.v", "mul", None),
    ],
)  # fmt: skip
def test_a_state_that_a_number_above_1_multiplies_grows_whatever_the_batch(at, by_hand, line, expression, op, code):
    facts = told_of_factor(at, by_hand, line, expression, op)
    story, told = explain(facts)
    assert story is None or story.slug != "data_outlier"
    assert (told.suggestions[0].code, len(told.suggestions)) == (code, 1)
    assert "1.9" in told.suggestions[0].text
    below = replace(facts, look=replace(facts.look, facts={"float64_finite": True, "arg1": 0.9}))
    assert "A decay" not in explain(below)[1].suggestions[0].text


@pytest.mark.parametrize(("shape", "more"), [((4,), "self.v.div_(self.v.norm())"), ((), "self.v.clamp_(max=1e6)")])
def test_a_state_that_is_multiplied_where_it_lies_is_bounded_there(at, by_hand, shape, more):
    state = by_hand.fact(shape=shape, min=-2.2e38, max=2.6e38, absmax=2.6e38)
    line = "self.v.mul_(self.mom)"
    assert explain(broken(at, by_hand, line, line, (state,), "mul_"))[1].suggestions[0].code == f"{line}\n{more}"


@pytest.mark.parametrize(
    ("line", "size", "code"),
    [
        ("b.copy_((1 + tau) * b - tau * a)", 3.2e38, "assert 0 <= 1 + tau <= 1"),
        ("b = (1 + tau) * b - tau * a", 3.2e38, "assert 0 <= 1 + tau <= 1"),
        ("b.copy_((1 + tau) * b - tau * a)", 20.0, None),
        ("c.copy_((1 + tau) * b - tau * a)", 3.2e38, None),
    ],
)
def test_a_weight_that_is_an_average_with_itself_and_is_next_to_the_end_grew_by_that(at, by_hand, line, size, code):
    first = line.index("(1")
    bad = by_hand.fact("weight", posinf=3, min=-size, max=size, absmax=size)
    facts = at("mul", (bad,), (), source="parameter", step=9, text=line, column=(first, first + 13), file="train.py")
    told = explain(facts)[1]
    assert [one.code for one in told.suggestions if "assert" in (one.code or "")] == ([code] if code else [])
