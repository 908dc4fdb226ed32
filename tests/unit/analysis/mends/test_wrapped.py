"""Of integers that wrapped round the line that made them is mended, and what broke by them is not clamped."""

import pytest

from nandiag.analysis.causes import explain
from nandiag.events.forms import plain
from nandiag.events.site import Around, Site


def broken(at, by_hand, text, shown, *, of=(0,), numbers=False, dtype="int16", statement=None, file="train.py", **rest):
    """The facts on a root of -31660 that came of integers in the line ``text``, ``shown`` in it."""
    first = text.index(shown)
    around = None if statement is None else Around(statement=statement, column=(7, 7 + len(shown)))
    column = first, first + len(shown)
    site = Site(op="aten.mul.Tensor", file=file, line=14, column=column, source=text, around=around)
    lost = {"how": "wrapped", "dtype": dtype, "least": 4.0, "most": 72361.0, "of": list(of), "numbers": numbers}
    return at(
        "sqrt", (by_hand.fact(min=-31660.0),), (by_hand.fact(nan=9),), text="    return sq.float().sqrt()",
        column=(11, 28), file="train.py", line=15, extra={"lost": {**lost, "site": plain(site), **rest}},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shown", "of", "numbers", "code"),
    [
        ("sq = d[:, 0] * d[:, 0] + d[:, 1] * d[:, 1]", "d[:, 0] * d[:, 0]", (0,), False,
         "sq = d[:, 0].long() * d[:, 0] + d[:, 1].long() * d[:, 1]"),
        ("    ms = seconds * 1000", "seconds * 1000", (0,), True, "ms = seconds.long() * 1000"),
        ("ms = 1000 * (seconds + 1)", "1000 * (seconds + 1)", (0,), True, "ms = 1000 * (seconds.long() + 1)"),
        ("area = lens * lens * 2", "lens * lens * 2", (0,), True, "area = lens.long() * lens * 2"),
        ("area = 2 * (lens ** 2 + 1) * 3", "2 * (lens ** 2 + 1) * 3", (0,), True,
         "area = 2 * (lens.long() ** 2 + 1) * 3"),
        ("area = lens * n * 2", "lens * n * 2", (0,), True, "area = (lens * n).long() * 2"),
        ("return a * b", "a * b", (1,), False, "return a * b.long()"),
        ("return a @ b.t()", "a @ b.t()", (0, 1), False, "return a.long() @ b.t().long()"),
        ("y = x ** n", "x ** n", (0,), True, "y = x.long() ** n"),
        ("y = -x + 1", "-x", (0,), False, "y = -x.long() + 1"),
        ("y = x.mul(SCALE).float()", "x.mul(SCALE)", (0,), True, "y = x.long().mul(SCALE).float()"),
        ("y = torch.mul(x, 3)", "torch.mul(x, 3)", (0,), True, "y = torch.mul(x.long(), 3)"),
        ("t = x.sum(1, dtype=torch.int8)", "x.sum(1, dtype=torch.int8)", (0,), False,
         "t = x.sum(1, dtype=torch.int64)"),
        ("x *= 1000", "x *= 1000", (0,), True, "x = x.long() * 1000"),
        ("self.t += x", "self.t += x", (0,), False, "self.t = self.t.long() + x"),
        ("y = d * d.shape[0] * 2", "d * d.shape[0]", (0,), True, None),
        ("y = scale * x", "scale * x", (0,), True, None),
        ("x[0] *= 1000", "x[0] *= 1000", (0,), True, None),
        ("y = wrap(x)", "wrap(x)", (0,), True, None),
    ],
)  # fmt: skip
def test_the_line_is_mended_where_the_integers_are_made(at, by_hand, text, shown, of, numbers, code):
    mechanism = explain(broken(at, by_hand, text, shown, of=of, numbers=numbers))[1]
    assert mechanism.slug == "domain_error"
    (mend,) = mechanism.suggestions
    assert "line 14" in mend.text
    assert mend.code == ("x = x.long()  # before line 14" if code is None else f"{code}  # line 14")
    told = " ".join(mechanism.evidence)
    assert "mul in line 14" in told
    assert "int16 holds -32,768 to 32,767" in told
    assert "72,361" in told
    assert "clamp" not in told + str(mend)


def test_what_64_bits_do_not_hold_is_made_of_floats(at, by_hand):
    (mend,) = explain(broken(at, by_hand, "t = s * 10**9", "s * 10**9", dtype="int64", numbers=True))[1].suggestions
    assert mend.code == "t = s.double() * 10**9  # line 14"


def test_another_file_and_a_long_statement_are_told(at, by_hand):
    statement = "far = (d[:, 0] * d[:, 0]).sum()"
    facts = broken(
        at, by_hand, "    d[:, 0]", "d[:, 0]", file="/x/geo.py", statement=statement, lines=[17], least=-9e4, most=3.0
    )
    mechanism = explain(facts)[1]
    assert mechanism.suggestions[0].code is not None
    assert "line 14 of geo.py" in mechanism.suggestions[0].text
    assert "line 14 of geo.py" in " ".join(mechanism.evidence)
    assert "-90,000" in " ".join(mechanism.evidence)


@pytest.mark.parametrize("lost", [3, {}, {"how": "wrapped"}, {"how": "wrapped", "dtype": "int99", "site": {"line": []}},
                                  {"how": "wrapped", "dtype": "int8", "site": None}])  # fmt: skip
def test_a_damaged_fact_says_nothing(at, by_hand, lost):
    facts = broken(at, by_hand, "y = x * x", "x * x")
    facts.look.facts["lost"] = lost
    mechanism = explain(facts)[1]
    assert mechanism.slug == "domain_error"
    assert "clamp" in mechanism.suggestions[0].code
    assert len(mechanism.evidence) == 1
