"""Where bad values came in."""

from dataclasses import replace

import pytest

from nandiag.analysis.causes import explain
from tests.unit.analysis.ops.told import mechanism


def test_what_came_from_code_that_was_not_run_again_is_not_blamed_on_its_user(at, by_hand):
    facts = at("mm", (by_hand.fact(nan=1),), (), source="outside")
    assert "the code that made it" in mechanism(facts).suggestions[0].text


def test_what_the_script_wrote_in_place_is_no_bad_sample(at, by_hand):
    facts = at("mul_", (by_hand.fact(nan=1),), (), source="input", extra={"written_in_place": "Tensor.mul_"})
    story, found = explain(facts)
    assert story is None
    assert "in place" in found.suggestions[0].text


@pytest.mark.parametrize("method", ["tape", "replay"])
def test_of_a_write_whose_values_are_gone_it_is_not_said_that_they_were_bad(at, by_hand, method):
    facts = at("copy_", (), (by_hand.fact(posinf=3),), phase="optimizer", extra={"written_in_place": "copy_"})
    facts = replace(facts, look=replace(facts.look, method=method))
    assert ("is not finite" in mechanism(facts).suggestions[0].text) is (method == "replay")


def test_a_sample_that_its_dataset_breaks_has_the_dataset_named(at, by_hand):
    zero, extra = by_hand.fact(zeros=1), {"dataset": "Fields", "dataset_index": 512}
    story, found = explain(at("div", (by_hand.fact(), zero), (by_hand.fact(nan=1),), phase="data", extra=extra))
    assert (story.slug, found.slug) == ("data_nonfinite", "division_by_zero")
    assert "Fields[512]" in story.evidence[0]
    assert story.strength < found.strength


@pytest.mark.parametrize(("extra", "advised"), [
    ({}, True), ({"dataset": "Clicks", "dataset_index": None}, True), ({"dataset": "Rows", "dataset_index": 7}, False),
    ({"came_in": "table.py:9"}, False),
])  # fmt: skip
def test_data_that_nothing_is_known_of_may_be_watched_as_they_are_made(at, by_hand, extra, advised):
    story, _ = explain(at("addmm", (by_hand.fact("x", nan=2),), (by_hand.fact(nan=2),), source="input", extra=extra))
    assert story.slug == "data_nonfinite"
    assert any(one.code == "nandiag run --level op" for one in story.suggestions) is advised
