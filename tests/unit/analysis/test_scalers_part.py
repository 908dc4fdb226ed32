"""Scalers of ranks that part, for each has looked for Inf before gradients were exchanged."""

import pytest

from nandiag.analysis import analyse
from nandiag.events import Looked, Site, Skipped


def told(by_hand, facts, *, skips=True):
    here = Site(file="train.py", line=17, source="dist.all_reduce(p.grad)")
    received = Looked("finite", "replay", 3, phase="collective", site=here, facts=facts)
    born = Looked("found", "replay", 3, phase="forward", source="op", site=Site(file="train.py", line=12))
    skipped = (Skipped(3, 256.0, 1, 1, float("nan")),) if skips else ()
    run = by_hand.run(by_hand.rank(0, by_hand.gradient(3), received), by_hand.rank(1, *skipped, by_hand.loss(3), born))
    return " ".join(analyse(run).verdict.evidence)


SCRIPTS = {"complete": False, "collective": "all_reduce", "by": "script"}


def test_an_exchange_behind_unscale_is_told(by_hand):
    assert (
        "The scaler of rank 1 left out the update of step 3, that of rank 0 did not: the all_reduce in line 17 comes "
        "behind unscale_()"
    ) in told(by_hand, SCRIPTS)


@pytest.mark.parametrize(("facts", "skips"), [(SCRIPTS, False), ({**SCRIPTS, "by": "ddp"}, True)])
def test_without_a_scaler_and_an_exchange_of_the_scripts_it_is_not(by_hand, facts, skips):
    assert "unscale_" not in told(by_hand, facts, skips=skips)
