"""A line that computes what was to be kept, and keeps it nowhere."""

from dataclasses import replace

import pytest

from nandiag.analysis.causes import explain
from nandiag.events import Around, Meaning, Site


@pytest.fixture
def broken(at, by_hand):
    """The facts on a logarithm below 0 beside statements of the script; ``trained``: of a weight itself."""

    def made(*texts, trained=False):
        line = "loss = torch.log(self.scale)"
        extra = {"of_weights": True, "made_by": []} if trained else {}
        inputs, outputs = (by_hand.fact(min=-2.0, max=3.0),), (by_hand.fact(nan=1),)
        facts = at("log", inputs, outputs, text=line, column=(7, 28), extra=extra)
        around = Around(unkept=tuple(Meaning("self.scale", text, "train.py", 9) for text in texts))
        return replace(facts, look=replace(facts.look, site=Site(around=around)))

    return made


@pytest.mark.parametrize(
    ("text", "trained", "code"),
    [
        ("self.scale.data.clamp(min=0.1)", True, "self.scale.data.clamp_(min=0.1)  # line 9"),
        ("self.scale.clamp(0.1)", True, "self.scale.data.clamp_(0.1)  # line 9"),
        ("self.scale.clamp(0.1)", False, "self.scale = self.scale.clamp(0.1)  # line 9"),
        ("torch.clamp(self.scale, 0.1)", False, "self.scale = torch.clamp(self.scale, 0.1)  # line 9"),
        ("old.scale.nan_to_num(0.0)", False, "old.scale = old.scale.nan_to_num(0.0)  # line 9"),
        ("self.rows[0].abs()", False, None),
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
    told = explain(broken("self.scale + 1", "self.scale.data.clamp(0.1)"))[1]
    assert told.suggestions[0].code == "self.scale.data.clamp_(0.1)  # line 9"
    assert told.suggestions[-1].code == "self.scale += 1  # line 9"
