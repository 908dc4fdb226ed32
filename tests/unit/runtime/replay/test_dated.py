"""What an update by hand made is of the step before the one that shows it, for no border lies behind such an update."""

from dataclasses import replace

import pytest

from nandiag.events import Looked
from nandiag.runtime.replay.case import Case

MADE = Looked("found", "tape", 7, phase="optimizer", source="op")
SHOWN = Case(7, [], joint=False, by_hand=True)


def test_it_is_dated_by_the_step_that_made_it():
    assert SHOWN.dated(MADE).facts["made_at_step"] == 6
    known = replace(MADE, facts={"made_at_step": 3})
    assert SHOWN.dated(known).facts["made_at_step"] == 3


@pytest.mark.parametrize(
    ("case", "looked"),
    [
        (replace(SHOWN, by_hand=False), MADE),
        (replace(SHOWN, weights_were_finite=True), MADE),  # the harm itself has the step of the update
        (replace(SHOWN, within=True), MADE),
        (replace(SHOWN, step=0), replace(MADE, step=0)),
        (SHOWN, replace(MADE, phase="forward")),
        (SHOWN, replace(MADE, source="received")),
    ],
)
def test_all_else_is_of_its_own_step(case, looked):
    assert case.dated(looked) is looked
