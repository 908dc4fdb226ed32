"""Replicas that come apart: by majority where there is one, and never a word on copies that were never equal."""

import pytest

from nandiag.analysis import analyse
from nandiag.events import Replicas


@pytest.fixture
def found(by_hand):
    def findings(*columns, ranks=None, steps=(16, 64)):
        world = len(columns)
        members = tuple(ranks or range(world))
        logs = []
        for rank, column in enumerate(columns):
            events = [
                Replicas(step, members, ("fc.weight", "fc.bias"), sums)
                for step, sums in zip(steps, column, strict=True)
            ]
            logs.append(by_hand.rank(rank, *events, world=world, steps=100))
        report = analyse(by_hand.run(*logs, world=world))
        assert report.verdict.anomaly is False
        return [one for one in report.findings if one.slug == "replica_diverged"]

    return findings


SAME, BAD = (("1", "2"), ("3", "4")), (("1", "2"), ("3", "9"))


def test_the_minority_is_named_with_its_weight(found):
    (one,) = found(SAME, SAME, BAD)
    assert (one.ranks, one.step, one.severity) == ((2,), 63, "warning")
    assert "Rank 2: fc.bias differs" in one.text
    assert "equal after 16 steps, not after 64" in one.text


def test_of_two_neither_is_blamed(found):
    (one,) = found(SAME, BAD)
    assert one.ranks == (0, 1)
    assert "which copy is right is not known" in one.text


@pytest.mark.parametrize(
    ("columns", "given"),
    [
        ((SAME, SAME), {}),
        ((SAME, (("5", "6"), ("7", "8"))), {}),
        ((SAME, BAD), {"ranks": (0, 1, 2)}),
    ],
    ids=["equal", "never equal", "one rank wrote nothing"],
)
def test_no_false_alarm(columns, given, found):
    assert found(*columns, **given) == []
