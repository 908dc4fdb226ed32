"""A collective that a backward makes has the name of the script's own call."""

import pytest

from nandiag.analysis.ways.carried import way_of
from nandiag.events import Looked, Site


def came(node, source):
    site = Site(file="train.py", line=14, op="c10d.scatter_.default", node=node, source=source)
    facts = {"carried_by": "scatter", "group": "default_pg", "group_ranks": [0, 1], "number": 3}
    return way_of(Looked("found", "replay", 3, phase="collective", source="received", site=site, facts=facts))


def test_it_is_told_as_the_backward_of_what_the_script_calls():
    told = came("_AllGatherBackward", "zs = torch.cat(dnn.all_gather(z))")
    assert told == "the backward of all_gather in line 14 of train.py, in the group of ranks 0-1"


@pytest.mark.parametrize(
    ("node", "source"), [("_AllGatherBackward", "zs = gathered(z)"), (None, "zs = dnn.all_gather(z)")]
)
def test_where_the_line_does_not_call_it_it_has_its_own_name(node, source):
    assert came(node, source) == "scatter, collective 3 of the step in the group of ranks 0-1"
