"""Where the step went bad next is told with the help for the origin, so that what is pasted trains."""

from dataclasses import replace

import pytest

from nandiag.analysis import analyse
from nandiag.analysis.causes import explain
from nandiag.analysis.report import Suggestion
from nandiag.analysis.verdict.further import with_next
from nandiag.events import Alike, Around, Meaning, Next, Site, Statement


def look(by_hand, line, expression, number, *, op="log", file="train.py", **given):
    first = line.index(expression)
    site = Site("", "Net", f"aten.{op}.default", file=file, line=number, column=(first, first + len(expression)),
                function="loss", source=line)  # fmt: skip
    values = {"inputs": (by_hand.fact(zeros=3, min=0.0),), "outputs": (by_hand.fact(neginf=3),), **given}
    if op == "div":
        values = {"inputs": (by_hand.fact(), by_hand.fact(zeros=3, min=0.0)), "outputs": (by_hand.fact(nan=3),)}
    facts = {"of_weights": True}
    return by_hand.found(5, site=replace(site, **given.pop("at", {})), facts=facts, **{"phase": "loss", **values})


def verdict(by_hand, origin, *further, whole=True):
    looks = [*further, *([by_hand.finite(5)] if whole else [])]
    nexts = [Next(number, one) for number, one in enumerate(looks)]
    return analyse(by_hand.run(by_hand.rank(0, by_hand.loss(5), origin, *nexts, world=1), world=1)).verdict


ORIGIN = ("share = w / w.sum(-1)", "w / w.sum(-1)", 13)


def test_the_next_line_stands_below_the_first_one(by_hand):
    origin = look(by_hand, *ORIGIN, op="div")
    told = verdict(by_hand, origin, look(by_hand, "    loss = -(share * share.log()).sum()", "share.log()", 14))
    assert told.suggestions[0].code.splitlines() == [
        "share = w / w.sum(-1).clamp_min(1e-6)",
        "loss = -(share * share.clamp_min(1e-12).log()).sum()  # line 14",
    ]
    assert told.suggestions[0].text.endswith("Line 14 breaks next in the same step: mend that too.")
    assert not any("line 14" in each or "Beyond" in each for each in told.evidence)  # the help says so


@pytest.mark.parametrize(("op", "told"), [("empty", False), ("div", True)])
def test_what_stood_in_for_memory_that_nobody_wrote_shows_no_second_fault(by_hand, op, told):
    bad = {"inputs": (), "outputs": (by_hand.fact(nan=3),)} if op == "empty" else {}
    origin = look(by_hand, "w = torch.empty(n)" if op == "empty" else "w = a / b", "w", 13, op=op, **bad)
    seen = verdict(by_hand, origin, look(by_hand, "loss = f(w)", "f(w)", 14))
    assert any("line 14" in text for text in seen.evidence) is told


def test_two_places_of_one_line_are_mended_in_it(by_hand):
    line = "nll = err / scale + p.log()"
    told = verdict(by_hand, look(by_hand, line, "err / scale", 7, op="div"), look(by_hand, line, "p.log()", 7))
    assert told.suggestions[0].code == "nll = err / scale.clamp_min(1e-6) + p.clamp_min(1e-12).log()"


@pytest.mark.parametrize(
    ("line", "number", "when"),
    [("nll = err / scale + p.log()", 7, "The same line breaks in another place too: mend both."),
     ("loss = p.log()", 9, "Line 9 breaks in the same step as well: mend that too.")],
)  # fmt: skip
def test_what_broke_by_itself_needs_no_number_in_another_place(by_hand, line, number, when):
    one = look(by_hand, "nll = err / scale + p.log()", "err / scale", 7, op="div")
    other = look(by_hand, line, "p.log()", number)
    told = verdict(by_hand, one, replace(other, facts={**other.facts, "beside": True}), whole=False)
    assert told.suggestions[0].text.endswith(when)
    assert "p.clamp_min(1e-12).log()" in told.suggestions[0].code
    assert told.evidence[1].startswith(f"Line {number} made Inf of finite values as well: the input of log")


def test_of_a_place_in_the_same_line_without_a_mend_of_its_own_only_the_evidence_tells(by_hand):
    line = "y = -(p.exp() / p).sum() + f(p)"
    one = look(by_hand, line, "p.exp() / p", 7, op="div")
    told = verdict(by_hand, one, look(by_hand, line, "f(p)", 7, op="mystery"))
    assert not any("mend both" in each.text for each in told.suggestions)
    assert any("line 7 made" in each for each in told.evidence)


LINE = "nll = err / scale + scale.log()"


@pytest.mark.parametrize(("first", "second"), [(ORIGIN, ORIGIN), ((LINE, "err / scale", 7), (LINE, "scale.log()", 7))])
def test_what_the_first_help_mends_already_is_not_told_twice(by_hand, first, second):
    """The op of one expression may be several, and a guard is put wherever its argument may break the line."""
    op = "log" if second[1].endswith("log()") else "div"
    told = verdict(by_hand, look(by_hand, *first, op="div"), look(by_hand, *second, op=op))
    alone = verdict(by_hand, look(by_hand, *first, op="div"), whole=False)
    assert (told.suggestions, told.evidence) == (alone.suggestions, alone.evidence)


def test_what_stands_around_the_mended_expression_is_mended_too(by_hand):
    """With its divisor kept from 0 the quotient is 0, and its logarithm next to go."""
    line = "    exact = torch.log(up / low)"
    one = look(by_hand, line, "up / low", 7, op="div")
    told = verdict(by_hand, one, look(by_hand, line, "torch.log(up / low)", 7))
    assert told.suggestions[0].code == "exact = torch.log((up / low.clamp_min(1e-6)).clamp_min(1e-12))"
    assert told.suggestions[0].text.endswith("The same line breaks in another place next: mend both.")


@pytest.mark.parametrize("file", ["losses.py", "train.py"])
def test_a_line_of_another_file_says_so(by_hand, file):
    told = verdict(by_hand, look(by_hand, *ORIGIN, op="div"), look(by_hand, "y = p.log()", "p.log()", 3, file=file))
    where = "losses.py, line 3" if file == "losses.py" else "line 3"
    assert any("line 3 of losses.py made" in each for each in told.evidence) is (file == "losses.py")
    assert told.suggestions[0].code.splitlines()[1] == f"y = p.clamp_min(1e-12).log()  # {where}"


def test_what_is_not_known_how_to_mend_is_told_as_a_place_alone(by_hand):
    odd = look(by_hand, "y = made(p)", "made(p)", 30, op="lerp")
    told = verdict(by_hand, look(by_hand, *ORIGIN, op="div"), odd)
    assert told.suggestions[0].code == "share = w / w.sum(-1).clamp_min(1e-6)"
    assert "Line 30 breaks next" in told.suggestions[0].text
    assert told.evidence[1].startswith("With finite numbers put in its place, line 30 made Inf next")


@pytest.mark.parametrize("elsewhere", [True, False])
def test_of_a_mend_where_the_value_is_made_it_is_not_known_what_breaks_behind_it(at, by_hand, elsewhere):
    """What stood in for the origin's result is not what this mend leaves, here and where the value is used besides."""
    zeros = by_hand.fact(zeros=3, min=0.0)
    facts = at("div", (by_hand.fact(), zeros), (by_hand.fact(nan=3),), text="x = x / e", column=(4, 9), line=21,
               file="train.py")  # fmt: skip
    code = "e = n.clamp_min(1e-6)" if elsewhere else "x = x / e.clamp_min(1e-6)"
    own = Suggestion("Keep it away from zero where it is made, in line 20." if elsewhere else "Guard it.", code)
    after = look(by_hand, "inv = 1.0 / e", "1.0 / e", 24, op="div")
    suggestions, why = with_next(facts, 0, (own,), [after])
    assert why == ()
    assert (suggestions == (own,)) is elsewhere


@pytest.mark.parametrize(
    ("mend", "told"),
    [
        ("w = 1 / torch.where(d != 0, d, torch.inf)", 1),
        ("w = 1 / d.clamp_min(1e-6)", 0),
        ("w = torch.softmax(s, -1)", 0),
    ],
)
def test_where_a_0_stood_in_nothing_is_told_of_a_mend_that_leaves_another_number(at, by_hand, mend, told):
    """With 1e6 in the place of 1/0, and with a softmax in that of 0/0, the next line may train well."""
    bad = {"nan": 3} if "softmax" in mend else {"posinf": 3}
    facts = at("div", (by_hand.fact(), by_hand.fact(zeros=3, min=0.0)), (by_hand.fact(**bad),), text="w = 1 / d",
               column=(4, 9), line=21, file="train.py")  # fmt: skip
    own, after = Suggestion("Guard it.", mend), look(by_hand, "    return torch.log(w).mean()", "torch.log(w)", 24)
    assert ("Line 24" in with_next(facts, 0, (own,), [after])[0][0].text) == bool(told)


def test_nothing_is_told_next_of_a_scale_that_is_bounded_by_a_tanh(at, by_hand):
    facts = at("exp", (by_hand.fact(max=5e3),), (by_hand.fact(posinf=3),), text="y = x * torch.exp(s)",
               column=(8, 20), line=21, file="train.py")  # fmt: skip
    own = Suggestion("Bound it before this line.", "s = 2 * torch.tanh(s / 2)\ny = x * torch.exp(s)")
    after = look(by_hand, "    return y.square().sum()", "y.square()", 24, op="pow")
    assert with_next(facts, 0, (own,), [after]) == ((own,), ())


@pytest.mark.parametrize(
    ("mend", "told"), [("w = torch.where(d != 0, d, torch.inf) ** -6", 0), ("w = d.clamp_min(1e-6) ** -6", 1)]
)
def test_where_a_large_number_stood_in_nothing_is_told_of_a_mend_that_leaves_0(at, by_hand, mend, told):
    facts = at("pow", (by_hand.fact(zeros=3, min=0.0),), (by_hand.fact(posinf=3),), text="w = d ** -6",
               column=(4, 11), line=21, file="train.py")  # fmt: skip
    own, after = (
        Suggestion("Guard it.", mend),
        look(by_hand, "    return torch.exp(w).mean()", "torch.exp(w)", 24, op="exp"),
    )
    assert len(with_next(facts, 0, (own,), [after])[1]) == told


@pytest.mark.parametrize(("wide", "told"), [(1e5, 0), (1e39, 1)])
def test_what_the_same_wider_dtype_holds_is_no_next_place(at, by_hand, wide, told):
    given, bad = by_hand.fact(dtype="float16", max=300.0), by_hand.fact(dtype="float16", posinf=3)
    known = {"float64_finite": True, "autocast": True}
    facts = at("mul", (given,), (bad,), text="y = x * x", column=(4, 9), line=21, file="train.py",
               extra={**known, "float64_absmax": 1e5})  # fmt: skip
    own = explain(facts)[1].suggestions[0]
    after = look(by_hand, "    return y.sum()", "y.sum()", 24, op="sum", inputs=(given,), outputs=(bad,))
    after = replace(after, facts={**known, "float64_absmax": wide})
    assert "bfloat16" in own.code
    assert len(with_next(facts, 0, (own,), [after])[1]) == told


@pytest.mark.parametrize(("size", "told"), [(3e38, False), (80.0, True)])
def test_of_numbers_that_had_grown_huge_by_then_no_next_place_is_told(by_hand, size, told):
    out = (by_hand.fact(posinf=1),)
    first = look(
        by_hand, "h = h * a", "h * a", 11, op="mul", inputs=(by_hand.fact(max=3e38, absmax=3e38),), outputs=out
    )
    grown = (by_hand.fact(max=size, absmax=size),)
    then = look(by_hand, "loss = (x / 2).exp()", "(x / 2).exp()", 16, op="exp", inputs=grown, outputs=out)
    said = " ".join(verdict(by_hand, first, then).evidence)
    assert ("line 16 made Inf next" in said) is told, said


def test_of_two_lines_in_the_place_of_one_each_is_told_once(by_hand):
    line = "h = h * a + u"
    huge = by_hand.fact(absmax=3e38, max=3e38)
    origin = look(by_hand, line, "h * a", 7, op="mul", inputs=(huge, by_hand.fact()), outputs=(by_hand.fact(posinf=1),))
    told = verdict(by_hand, origin, look(by_hand, "loss = h.log()", "h.log()", 9))
    assert told.suggestions[0].code.splitlines() == [
        line,
        "h = h / h.norm()",
        "loss = h.clamp_min(1e-12).log()  # line 9",
    ]


@pytest.mark.parametrize("same", [True, False])
def test_the_gradient_of_the_op_that_is_mended_is_no_further_place(by_hand, same):
    origin = look(by_hand, "p.div_(p.sum(-1))", "p.div_(p.sum(-1))", 17, op="div")
    at = {"node": "DivBackward0" if same else "PowBackward0"}
    told = verdict(by_hand, origin, look(by_hand, "loss.backward()", "loss.backward()", 54, op="div", at=at))
    assert any("line 54" in each for each in told.evidence) is not same


@pytest.mark.parametrize("arrived", [True, False])
def test_a_gradient_that_the_infinity_of_the_origin_was_multiplied_into_breaks_nothing_behind_its_mend(
    by_hand, arrived
):
    minus = by_hand.fact(shape=(64, 6), neginf=2, max=-0.9)
    origin = look(by_hand, "entropy = -(probs * logp).sum()", "probs * logp", 27, op="mul",
                  inputs=(by_hand.fact(zeros=2), minus), outputs=(by_hand.fact(nan=2),))  # fmt: skip
    gradient = by_hand.fact(shape=(64, 6), neginf=2, max=-1e-4) if arrived else by_hand.fact(zeros=2)
    then = look(by_hand, "probs = logp.exp()", "logp.exp()", 24, op="mul",
                inputs=(gradient, by_hand.fact(zeros=2) if arrived else minus), outputs=(by_hand.fact(nan=2),),
                phase="backward")  # fmt: skip
    behind = replace(then.site, node="ExpBackward0", forward_op="aten.exp.default")
    seen = verdict(by_hand, origin, replace(then, site=behind))
    texts = (*seen.evidence, *(one.text for one in seen.suggestions))
    assert any("ine 24" in text for text in texts) is not arrived


@pytest.mark.parametrize("fed", [True, False])
def test_what_another_rank_had_sent_before_the_mend_breaks_nothing_behind_it(by_hand, fed):
    odd = look(by_hand, "y = x * scale", "x * scale", 21, op="mul")
    told = verdict(by_hand, look(by_hand, *ORIGIN, op="div"), replace(odd, facts={**odd.facts, "fed": fed}))
    assert any("line 21" in each for each in told.evidence) is not fed


def test_a_line_that_breaks_again_and_again_is_told_once(by_hand):
    origin = look(by_hand, *ORIGIN, op="div")
    places = [look(by_hand, "h = big.log() + other.log()", part, 30) for part in ("big.log()", "other.log()")]
    last = look(by_hand, "z = more.log()", "more.log()", 31)
    told = verdict(by_hand, origin, *(replace(one, inputs=(by_hand.fact(min=-1.0),)) for one in (*places, last)))
    again = [each for each in told.evidence if "next" in each]
    assert [each.partition(" made ")[0].rpartition(", ")[2] for each in again] == ["line 30", "line 31"]


def test_a_scale_that_divides_in_the_same_line_too_is_guarded_in_both_places(by_hand):
    line = "    return (torch.log(sigma) + 0.5 * ((y - mu) / sigma) ** 2).mean()"
    one = look(by_hand, line, "torch.log(sigma)", 7)
    other = look(by_hand, line, "(y - mu) / sigma", 7, op="div")
    other = replace(other, facts={**other.facts, "beside": True})
    for whole in (True, False):
        told = verdict(by_hand, one, other, whole=whole)
        least = "sigma.clamp_min(1e-2)"
        assert told.suggestions[0].code == f"return (torch.log({least}) + 0.5 * ((y - mu) / {least}) ** 2).mean()"


def test_the_code_for_a_line_that_computes_the_like_stands_with_the_first_one(by_hand):
    """Line 12 alone would be told to bound x where it is made, for line 11 breaks by it ahead: that mends no line."""
    lines = {11: "    z = torch.log(x) - torch.log1p(-x)", 12: "    ldj = -(torch.log(x) + torch.log1p(-x)).sum(1)"}
    column = {number: (text.index("torch.log(x)"), text.index("torch.log(x)") + 12) for number, text in lines.items()}
    block = (Statement(10, "x = f(img)"), *(Statement(number, text.strip()) for number, text in lines.items()))

    def at(number):
        other = 23 - number
        around = Around((Meaning("x", "f(img)", "train.py", 10),), again=(other,), block=block,
                        alike=(Alike(other, lines[other], column[other]),))  # fmt: skip
        one = look(by_hand, lines[number], "torch.log(x)", number)
        return replace(one, site=replace(one.site, around=around))

    told = verdict(by_hand, at(11), at(12)).suggestions[0]
    assert told.text.endswith("Line 12 breaks next in the same step: mend that too.")
    assert told.code.splitlines() == [
        "z = torch.log(x.clamp_min(1e-12)) - torch.log1p((-x).clamp_min(-1 + 1e-6))",
        "ldj = -(torch.log(x.clamp_min(1e-12)) + torch.log1p((-x).clamp_min(-1 + 1e-6))).sum(1)  # line 12",
    ]


@pytest.mark.parametrize(("number", "when"), [(12, "in the same step as well"), (14, "next in the same step")])
def test_a_line_ahead_of_the_origin_in_its_function_is_no_next_one(by_hand, number, when):
    origin = look(by_hand, *ORIGIN, op="div")
    told = verdict(by_hand, origin, look(by_hand, "    loss = -(share * share.log()).sum()", "share.log()", number))
    assert told.suggestions[0].text.endswith(f"Line {number} breaks {when}: mend that too.")
