"""A line that computes what was to be kept, and keeps it nowhere."""

from dataclasses import replace

import pytest

from nandiag.analysis.causes import explain
from nandiag.events import Around, Meaning, Site

NO_GRAD = "with torch.no_grad():\n    {}  # line 9"
OF_EITHER = "{}  # line 9; where each step makes it anew: {}"


@pytest.fixture
def broken(at, by_hand):
    """The facts on a logarithm below 0 beside statements of the script; ``trained``: of a weight itself."""

    def made(*texts, trained=False, by=(), given="self.scale", name="self.scale", anew=False):
        line = f"loss = torch.log({given})"
        extra = {} if trained is None else {"of_weights": trained, "made_by": list(by)}
        inputs, outputs = (by_hand.fact(min=-2.0, max=3.0),), (by_hand.fact(nan=1),)
        facts = at("log", inputs, outputs, text=line, column=(7, len(line)), extra=extra)
        around = Around(unkept=tuple(Meaning(name, text, "train.py", 9, anew=anew) for text in texts))
        return replace(facts, look=replace(facts.look, site=Site(around=around)))

    return made


@pytest.mark.parametrize(
    ("text", "trained", "code"),
    [
        ("self.scale.data.clamp(min=0.1)", True, "self.scale.data.clamp_(min=0.1)  # line 9"),
        ("self.scale.data.clamp(min=0.1)", None, "self.scale.data.clamp_(min=0.1)  # line 9"),
        ("self.scale.clamp(0.1)", True, "self.scale.data.clamp_(0.1)  # line 9"),
        ("torch.clamp(self.scale, min=0.1)", True, "self.scale.data.clamp_(min=0.1)  # line 9"),
        ("F.relu(self.scale)", True, "self.scale.data.relu_()  # line 9"),
        ("torch.softmax(self.scale, -1)", True, "self.scale.data.copy_(torch.softmax(self.scale, -1))  # line 9"),
        (
            "F.softmax(self.scale, dim=0)",
            None,
            OF_EITHER.format(
                "self.scale.data.copy_(F.softmax(self.scale, dim=0))", "self.scale = F.softmax(self.scale, dim=0)"
            ),
        ),
        ("torch.clamp(self.scale.data, 0.1)", None, "self.scale.data.clamp_(0.1)  # line 9"),
        (
            "torch.clamp(self.scale, 0.1)",
            None,
            OF_EITHER.format("self.scale.data.clamp_(0.1)", "self.scale = torch.clamp(self.scale, 0.1)"),
        ),
        (
            "old.scale.nan_to_num(0.0)",
            None,
            OF_EITHER.format("old.scale.data.nan_to_num_(0.0)", "old.scale = old.scale.nan_to_num(0.0)"),
        ),
        ("self.rows[0].abs()", None, None),
    ],
)
def test_a_bound_that_is_kept_nowhere_comes_first(broken, text, trained, code):
    plain = explain(broken(trained=trained))[1]
    told = explain(broken(text, trained=trained))[1]
    first, *rest = told.suggestions
    assert tuple(rest) == plain.suggestions
    assert first.text.startswith(f"Line 9 computes {text} and keeps it nowhere: self.scale stays as it was.")
    assert first.code == code


def test_what_is_no_bound_comes_last(broken):
    told = explain(broken("self.scale - 0.1", "self.scale.data.clamp(0.1)", trained=None))[1]
    assert told.suggestions[0].code == "self.scale.data.clamp_(0.1)  # line 9"
    assert told.suggestions[-1].code == OF_EITHER.format("self.scale.data -= 0.1", "self.scale = self.scale - 0.1")


@pytest.mark.parametrize(
    ("text", "trained", "by", "given", "code"),
    [
        ("self.scale.clamp(0.1)", True, ("ExpBackward0",), "self.scale", "self.scale = self.scale.clamp(0.1)"),
        ("self.scale + 1", True, ("ExpBackward0",), "self.scale", "self.scale = self.scale + 1"),
        (  # that is of the product: written into under no_grad, a part of a graph would make backward raise
            "self.scale.clamp(0.1)",
            True,
            ("MulBackward0",),
            "x * self.scale",
            "self.scale.data.clamp_(0.1)  # line 9; where each step makes it anew: self.scale = self.scale.clamp(0.1)",
        ),
        ("self.scale.clamp(0.1)", False, (), "self.scale", None),  # a weight that is not trained, a buffer
        ("self.scale.clamp(0.1)", False, (), "x * self.scale", None),
        ("self.scale * 2", True, (), "self.scale", "self.scale.data *= 2"),
    ],
)
def test_what_is_made_anew_in_each_step_is_given_another_value(broken, text, trained, by, given, code):
    told = explain(broken(text, trained=trained, by=by, given=given))[1]
    found = next(one.code for one in told.suggestions if one.text.startswith("Line 9"))
    wanted = NO_GRAD.format("self.scale.clamp_(0.1)") if code is None else code
    assert found == (wanted if "# line 9" in wanted else f"{wanted}  # line 9")


@pytest.mark.parametrize(("trained", "by"), [(True, ("RsubBackward1", "SigmoidBackward0")), (False, ()), (None, ())])
def test_what_the_text_shows_to_be_made_in_each_step_is_given_another_value(broken, trained, by):
    told = explain(broken("p.clamp(max=0.999)", trained=trained, by=by, given="1 - p", name="p", anew=True))[1]
    assert told.suggestions[0].code == "p = p.clamp(max=0.999)  # line 9"
