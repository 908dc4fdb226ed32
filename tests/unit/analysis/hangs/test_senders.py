"""What another rank sent is told with the line that sent it, where its calls show one line alone."""

from dataclasses import replace

import pytest

from nandiag.analysis import analyse
from tests.unit.analysis.hangs.made_up import call, stands

SENDS = [call("send", 49, step=step, peer=0) for step in range(4)]


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        (SENDS, "; rank 1 sent it in line 49"),
        ([*SENDS, call("send", 51, step=4, peer=0)], ""),
        ([call("send", 49, peer=2)], ""),
        ([], ""),
    ],
)
def test_the_line_of_the_sender_is_told(by_hand, calls, told):
    zero = by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0, absmax=0.0)
    site = replace(by_hand.found(5).site, op="aten.reciprocal.default", file="/home/u/train.py")
    look = by_hand.found(5, site=site, inputs=(zero,), outputs=(by_hand.fact(shape=(), posinf=1),),
                         facts={"arrived": [[0, "recv", 1, "/home/u/train.py", 23]]})  # fmt: skip
    sender = replace(by_hand.rank(1), standing=stands(*calls, why="raised"))
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(5), look), sender)).verdict
    assert f"the divisor came from rank 1, by the recv in line 23{told}" in verdict.evidence
