"""Code that is to be pasted has torch by the name that the file has, or says what to import."""

from dataclasses import replace

import pytest

from nandiag.analysis.report import Suggestion
from nandiag.analysis.verdict.fitted.imported import in_names_of_file
from nandiag.events import Around, Site

MEND = Suggestion("Leave it out.", "w = torch.where(d != 0, d, torch.inf).pow(-2)")
NEEDS = "Leave it out. For that the file needs import torch."


def told(at, by_hand, name, *suggestions, text="w = d.pow(-2)"):
    facts = at("pow", [by_hand.fact(zeros=1)], [by_hand.fact(posinf=1)], text=text)
    return in_names_of_file(replace(facts, look=replace(facts.look, site=Site(around=Around(torch=name)))), suggestions)


@pytest.mark.parametrize("name", [None, "torch"])
def test_torch_by_its_own_name_stays(at, by_hand, name):
    assert told(at, by_hand, name, MEND) == (MEND,)


def test_a_file_that_has_torch_by_another_name_is_given_that(at, by_hand):
    (mend,) = told(at, by_hand, "th", MEND)
    assert mend.code == "w = th.where(d != 0, d, th.inf).pow(-2)"


def test_a_file_without_torch_is_told_to_import_it(at, by_hand):
    other = Suggestion("Bound it.", "w = d.clamp_min(1e-6).pow(-2)")
    assert told(at, by_hand, "", MEND, other) == (Suggestion(NEEDS, MEND.code), other)


def test_a_line_that_says_torch_itself_has_it_somehow(at, by_hand):
    assert told(at, by_hand, "", MEND, text="w = torch.pow(d, -2)") == (MEND,)
